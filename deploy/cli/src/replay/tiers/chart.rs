//! Hits of pool and drive by the room of the pool, drawn for every admission.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use kv_drive::policy::AdmissionKind;
use plotters::prelude::*;
use rackline_replay::{Capacity, Simulation, TierOptions, Trace};

use super::super::Options;
use super::Rooms;

/// Where the curves are computed: room of the pool, in percent of the different blocks.
const PERCENTS: [f64; 11] = [0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 25.0, 50.0, 100.0];
const SIZE: (u32, u32) = (900, 540);
const GRAY: RGBColor = RGBColor(120, 120, 120);

/// Points of a curve: room of the pool and share of hits, both in percent.
type Points = Vec<(f64, f64)>;

/// What is drawn.
struct Picture {
    title: String,
    unlimited: f64,
    pool_alone: Points,
    curves: Vec<(AdmissionKind, Points)>,
}

/// Replays `trace` with pools of several sizes before one drive, and draws what came of it.
pub(super) fn draw(
    path: &Path,
    options: &Options,
    rooms: Rooms,
    trace: &Trace,
    chosen: impl Fn(AdmissionKind) -> TierOptions,
) -> Result<()> {
    let policy = options.policy.policy_of("--tiers")?;
    let name = options.trace.file_name().unwrap_or(options.trace.as_os_str()).to_string_lossy();
    let drive = match rooms.drive {
        Capacity::Unlimited => "a drive without limit".to_owned(),
        Capacity::Blocks(blocks) => format!("a drive of {blocks} blocks"),
        Capacity::PercentOfWorkingSet(percent) => format!("a drive of {percent} % of them"),
    };
    let title = format!("{name}: {} different blocks, {drive}", trace.unique_blocks());
    let best = trace.block_refs() - u64::from(trace.unique_blocks());
    let unlimited = super::report::percent(best, trace.block_refs());
    let mut picture = Picture { title, unlimited, pool_alone: Vec::new(), curves: Vec::new() };
    for admission in super::kinds(options) {
        let (mut points, mut alone) = (Vec::new(), Vec::new());
        for percent in PERCENTS {
            let capacity = Capacity::PercentOfWorkingSet(percent).blocks(trace.unique_blocks());
            let pool = Simulation::new(trace, capacity, policy, options.touch);
            let outcome = super::replay(trace, pool, &chosen(*admission));
            points.push((percent, 100.0 * outcome.hit_rate()));
            alone.push((percent, 100.0 * outcome.pool_alone.hit_rate()));
        }
        picture.curves.push((*admission, points));
        picture.pool_alone = alone;
    }
    let mut text = String::new();
    // The reasons of the drawing library borrow the text that is drawn into.
    plot(&mut text, &picture).map_err(|error| anyhow!("no picture: {error}"))?;
    std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

fn color(admission: AdmissionKind) -> RGBColor {
    match admission {
        AdmissionKind::All => RGBColor(220, 50, 32),
        AdmissionKind::SecondTouch => RGBColor(0, 90, 181),
        AdmissionKind::Frequency => RGBColor(20, 140, 70),
    }
}

fn plot(text: &mut String, picture: &Picture) -> Result<(), Box<dyn std::error::Error>> {
    let Picture { title, unlimited, pool_alone, curves } = picture;
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let highest = (unlimited * 1.1).clamp(1.0, 100.0);
    let (first, last) = (PERCENTS[0], PERCENTS[PERCENTS.len() - 1]);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(
            (first..last).log_scale().with_key_points(PERCENTS.to_vec()),
            0.0..highest,
        )?;
    chart
        .configure_mesh()
        .x_desc("room of the pool, % of the trace's different blocks")
        .y_desc("hits, % of all blocks")
        .x_label_formatter(&|percent| format!("{percent}"))
        .y_label_formatter(&|percent| format!("{percent:.0}"))
        .light_line_style(TRANSPARENT)
        .draw()?;
    let corners = [(last, 0.0), (first, 0.0)];
    let below: Points = pool_alone.iter().copied().chain(corners).collect();
    chart
        .draw_series([Polygon::new(below, GRAY.mix(0.25))])?
        .label("pool")
        .legend(|(x, y)| Rectangle::new([(x, y - 5), (x + 20, y + 5)], GRAY.mix(0.25).filled()));
    chart
        .draw_series(LineSeries::new([(first, *unlimited), (last, *unlimited)], GRAY))?
        .label("pool without limit")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], GRAY));
    for (admission, points) in curves {
        let style = color(*admission).stroke_width(2);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style).point_size(3))?
            .label(format!("pool and drive, {admission}"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.9))
        .border_style(GRAY)
        .draw()?;
    area.present()?;
    Ok(())
}
