//! The answer in words, and the iteration drawn with characters.

use kv_cache::placement::{Batch, Interval, Phase, Timeline};

use super::Answer;
use crate::output::{counted, say};

/// Columns of the drawing.
const COLUMNS: usize = 96;
/// Most requests that are drawn.
const ROWS_MAX: usize = 24;

pub(super) fn print(batch: &Batch, answer: &Answer) {
    let requests = batch.requests();
    say!(
        "{}, {}; the link brings {} blocks in the time of a layer; the GPU has room for {}",
        counted(batch.layers().into(), "layer"),
        counted(requests.len() as u64, "request"),
        batch.link(),
        counted(batch.gpu_blocks(), "block")
    );
    if let Some(reason) = &answer.reason {
        say!("not feasible: {reason}");
    }
    let Some(stall) = &answer.stall_blocks else { return };
    say!("stall     {stall} block-transfer times{}", proof(answer));
    say!("moved     {} an iteration", counted(answer.moved_blocks.unwrap_or_default(), "block"));
    let memory = answer.memory_blocks.unwrap_or_default();
    say!("memory    {memory} of {}", counted(batch.gpu_blocks(), "block"));
    say!("holds for {}", counted(answer.window_steps.into(), "decode step"));
    say!("");
    say!("request  blocks a layer  offloaded layers");
    for (number, (request, offloaded)) in requests.iter().zip(&answer.placements).enumerate() {
        say!("{:>7}  {:>14}  {}", number + 1, request.blocks_per_layer, listed(offloaded));
    }
    if let Some(timeline) = &answer.timeline {
        say!("");
        draw(timeline, requests.len());
    }
    if let Some(released) = &answer.released {
        released.print();
    }
}

fn proof(answer: &Answer) -> String {
    match &answer.bound_blocks {
        None => String::new(),
        Some(_) if answer.optimal == Some(true) => " (no choice stalls less)".to_owned(),
        Some(bound) if answer.stall_blocks.as_ref() == Some(bound) => {
            " (no choice stalls less; stopped early, so another may move fewer blocks: see \
             --limit-ms)"
                .to_owned()
        }
        Some(bound) => {
            format!(" (stopped early: no choice stalls less than {bound}; see --limit-ms)")
        }
    }
}

fn listed(layers: &[u16]) -> String {
    if layers.is_empty() {
        return "none".to_owned();
    }
    let layers: Vec<_> = layers.iter().map(ToString::to_string).collect();
    layers.join(" ")
}

/// The iteration: a column shows the middle of its time.
fn draw(timeline: &Timeline, requests: usize) {
    let length = timeline.length();
    // Whole columns a layer, where they have room.
    let columns = match COLUMNS as f64 / length {
        room if room >= 1.0 => (length * room.floor()).round(),
        _ => COLUMNS as f64,
    };
    let column = length / columns;
    let middles = || (0..).map(|number| (f64::from(number) + 0.5) * column);
    let intervals: Vec<_> =
        middles().take_while(|time| *time < length).map(|time| at(timeline, time)).collect();
    let row = |symbol: &dyn Fn(&Interval) -> char| -> String {
        intervals.iter().map(|interval| symbol(interval)).collect()
    };
    say!("time      {}", row_of_times(column, intervals.len()));
    say!(
        "GPU       {}",
        row(&|interval| match interval.phase {
            Phase::Compute(layer) => digit(layer),
            Phase::Stall(_) => '.',
        })
    );
    let moving = |request: &usize| {
        let of_request = |interval: &Interval| {
            interval.transfers.iter().any(|transfer| transfer.request == *request)
        };
        timeline.intervals.iter().any(of_request)
    };
    let moving: Vec<_> = (0..requests).filter(moving).collect();
    for &request in moving.iter().take(ROWS_MAX) {
        let symbols = row(&|interval| {
            let found = interval.transfers.iter().find(|transfer| transfer.request == request);
            found.map_or(' ', |transfer| digit(transfer.layer))
        });
        say!("link {:<5}{}", request + 1, symbols.trim_end());
    }
    if moving.len() > ROWS_MAX {
        say!("(and {})", counted((moving.len() - ROWS_MAX) as u64, "request"));
    }
    say!("");
    say!("A digit is the last one of the layer that executes, or whose KV the link brings for the");
    say!("request; a dot is a stall. Time is in layer times.");
}

fn at(timeline: &Timeline, time: f64) -> &Interval {
    let intervals = &timeline.intervals;
    let number = intervals.partition_point(|interval| interval.end <= time);
    &intervals[number.min(intervals.len() - 1)]
}

fn digit(layer: u16) -> char {
    char::from_digit(u32::from(layer % 10), 10).unwrap_or('?')
}

/// A mark about every ten columns, at whole layer times; fewer where the numbers are longer.
fn row_of_times(column: f64, columns: usize) -> String {
    let longest = (columns as f64 * column).ceil().to_string().len();
    let step = (longest.max(8) as f64 + 2.0) * column;
    let step = step.ceil().max(1.0);
    let mut row = String::new();
    let mut time = 0.0;
    while time < columns as f64 * column {
        while (row.len() as f64) < (time / column).round() {
            row.push(' ');
        }
        row.push_str(&time.to_string());
        time += step;
    }
    row
}
