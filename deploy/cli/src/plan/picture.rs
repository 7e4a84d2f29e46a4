//! The iteration as SVG: what the GPU does, what the link brings, and where the GPU waits.

use std::fmt::Write as _;

use kv_cache::placement::{Batch, Interval, Phase, Timeline};

use super::Answer;

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 70.0;
const GPU_TOP: f64 = 60.0;
const ROW: f64 = 54.0;
const LINK_TOP: f64 = GPU_TOP + ROW + 16.0;
const AXIS: f64 = LINK_TOP + ROW + 8.0;
/// Colours that readers with colour-blindness can tell apart, for the requests in turn.
const COLOURS: [&str; 8] =
    ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#999999"];
/// Most requests that the legend names.
const LEGEND_MAX: usize = 16;
const LEGEND_COLUMNS: usize = 8;

/// Draws an iteration.
pub(super) fn draw(batch: &Batch, timeline: &Timeline, answer: &Answer) -> String {
    let scale = (WIDTH - LEFT - 20.0) / timeline.length();
    let x = |time: f64| LEFT + time * scale;
    let shown = batch.requests().len().min(LEGEND_MAX);
    let height = AXIS + 44.0 + 22.0 * shown.div_ceil(LEGEND_COLUMNS) as f64;
    let mut svg = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"
 font-family="sans-serif" font-size="13">
<defs><pattern id="wait" width="6" height="6" patternUnits="userSpaceOnUse"
 patternTransform="rotate(45)"><rect width="6" height="6" fill="#ffffff"/>
<rect width="2.5" height="6" fill="#c03020"/></pattern></defs>
<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>
<text x="{LEFT}" y="24" font-size="15">{}</text>"##,
        title(batch, answer)
    );
    label(&mut svg, GPU_TOP, "GPU");
    label(&mut svg, LINK_TOP, "link");
    for interval in merged(timeline) {
        gpu(&mut svg, x(interval.start), (interval.end - interval.start) * scale, interval.phase);
    }
    for interval in &timeline.intervals {
        link(&mut svg, x(interval.start), (interval.end - interval.start) * scale, interval);
    }
    axis(&mut svg, timeline.length(), x);
    legend(&mut svg, shown, batch.requests().len());
    svg.push_str("</svg>\n");
    svg
}

fn title(batch: &Batch, answer: &Answer) -> String {
    let number = |number: Option<u64>| number.unwrap_or_default();
    let stall = answer.stall_blocks.as_ref().map(ToString::to_string).unwrap_or_default();
    format!(
        "{} layers, {} requests: stall {stall} block-transfer times, {} blocks moved, {} of {} in \
         memory",
        batch.layers(),
        batch.requests().len(),
        number(answer.moved_blocks),
        number(answer.memory_blocks),
        batch.gpu_blocks()
    )
}

fn label(svg: &mut String, top: f64, text: &str) {
    let _ = writeln!(
        svg,
        r#"<text x="{}" y="{}" text-anchor="end">{text}</text>"#,
        LEFT - 10.0,
        top + ROW / 2.0 + 5.0
    );
}

/// The intervals, those with the same phase made one.
fn merged(timeline: &Timeline) -> Vec<Interval> {
    let mut merged: Vec<Interval> = Vec::new();
    for interval in &timeline.intervals {
        match merged.last_mut() {
            Some(last) if last.phase == interval.phase => last.end = interval.end,
            _ => merged.push(interval.clone()),
        }
    }
    merged
}

fn gpu(svg: &mut String, left: f64, width: f64, phase: Phase) {
    let (fill, layer) = match phase {
        Phase::Compute(layer) => ("#d8e2ef", Some(layer)),
        Phase::Stall(_) => ("url(#wait)", None),
    };
    rectangle(svg, (left, GPU_TOP), (width, ROW), fill);
    if let Some(layer) = layer {
        text(svg, (left + width / 2.0, GPU_TOP + ROW / 2.0), width, layer);
    }
}

fn link(svg: &mut String, left: f64, width: f64, interval: &Interval) {
    let height = ROW / interval.transfers.len().max(1) as f64;
    let mut top = LINK_TOP;
    for transfer in &interval.transfers {
        rectangle(svg, (left, top), (width, height), COLOURS[transfer.request % COLOURS.len()]);
        if height >= 12.0 {
            text(svg, (left + width / 2.0, top + height / 2.0), width, transfer.layer);
        }
        top += height;
    }
}

fn rectangle(svg: &mut String, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str) {
    let _ = writeln!(
        svg,
        r##"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}"
 fill="{fill}" stroke="#404040" stroke-width="0.6"/>"##
    );
}

/// The number of a layer, where the box has room for it.
fn text(svg: &mut String, (x, y): (f64, f64), width: f64, layer: u16) {
    if width >= 8.0 * layer.to_string().len() as f64 {
        let y = y + 5.0;
        let _ = writeln!(svg, r#"<text x="{x:.2}" y="{y:.2}" text-anchor="middle">{layer}</text>"#);
    }
}

fn axis(svg: &mut String, length: f64, x: impl Fn(f64) -> f64) {
    // At most twenty marks, at 1, 2, 5, 10, ... layer times.
    let steps = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0];
    let fits = |step: &&f64| length / **step <= 20.0;
    let step = steps.iter().find(fits).copied().unwrap_or(length / 20.0);
    let mut time = 0.0;
    while time <= length {
        let (x, y) = (x(time), AXIS + 14.0);
        let _ =
            writeln!(svg, r#"<text x="{x:.2}" y="{y:.2}" text-anchor="middle">{time:.0}</text>"#);
        time += step;
    }
    let (x, y) = (x(length) - 4.0, AXIS + 32.0);
    let _ = writeln!(svg, r#"<text x="{x:.2}" y="{y:.2}" text-anchor="end">layer times</text>"#);
}

fn legend(svg: &mut String, shown: usize, requests: usize) {
    for request in 0..shown {
        let column = (request % LEGEND_COLUMNS) as f64;
        let x = LEFT + column * 104.0;
        let y = AXIS + 38.0 + 22.0 * (request / LEGEND_COLUMNS) as f64;
        rectangle(svg, (x, y - 11.0), (14.0, 14.0), COLOURS[request % COLOURS.len()]);
        let more = if request + 1 == shown && shown < requests { " ..." } else { "" };
        let number = request + 1;
        let _ =
            writeln!(svg, r#"<text x="{:.2}" y="{y:.2}">request {number}{more}</text>"#, x + 19.0);
    }
    let y = GPU_TOP - 22.0;
    rectangle(svg, (WIDTH - 160.0, y), (14.0, 14.0), "url(#wait)");
    let _ = writeln!(svg, r#"<text x="{}" y="{}">the GPU waits</text>"#, WIDTH - 140.0, y + 12.0);
}
