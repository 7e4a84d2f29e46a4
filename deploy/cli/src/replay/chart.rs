//! The share of hits by capacity, drawn for every policy and the optimum.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use kv_cache::evict::policy::PolicyKind;
use plotters::prelude::*;
use rackline_replay::{Capacity, Outcome, Touch, Trace};

use super::rule::Rule;
use crate::output::complain;

/// Where the curves are computed, in percent of the different blocks.
const PERCENTS: [f64; 13] =
    [0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 25.0, 35.0, 50.0, 75.0, 100.0];
const SIZE: (u32, u32) = (900, 540);

/// Hit rates of one rule, in percent, by capacity in percent.
struct Curve {
    rule: Rule,
    points: Vec<(f64, f64)>,
}

/// Replays `trace` at several capacities under every rule, and draws what came of it.
pub(super) fn draw(path: &Path, source: &Path, trace: &Trace, touch: Touch) -> Result<()> {
    let curves: Vec<_> =
        Rule::ALL.into_iter().filter_map(|rule| curve(trace, rule, touch)).collect();
    if curves.len() < Rule::ALL.len() {
        complain!(
            "rackline: there is no curve of the optimum: the trace has a name behind two different ones"
        );
    }
    let best = trace.block_refs() - u64::from(trace.unique_blocks());
    let unlimited = Outcome { hits: best, block_refs: trace.block_refs(), ..Outcome::default() };
    let unlimited = 100.0 * unlimited.hit_rate();
    let name = source.file_name().unwrap_or(source.as_os_str()).to_string_lossy();
    let title = format!("{name}: {} different blocks, {touch}", trace.unique_blocks());
    let mut text = String::new();
    // The reasons of the drawing library borrow the text that is drawn into.
    plot(&mut text, &title, &curves, unlimited).map_err(|error| anyhow!("no picture: {error}"))?;
    std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

fn curve(trace: &Trace, rule: Rule, touch: Touch) -> Option<Curve> {
    let point = |percent| {
        let capacity = Capacity::PercentOfWorkingSet(percent).blocks(trace.unique_blocks());
        Some((percent, 100.0 * super::replay(trace, capacity, rule, touch)?.hit_rate()))
    };
    Some(Curve { rule, points: PERCENTS.into_iter().map(point).collect::<Option<_>>()? })
}

fn color(rule: Rule) -> RGBColor {
    match rule {
        Rule::Policy(PolicyKind::Clock) => RGBColor(0, 90, 181),
        Rule::Policy(PolicyKind::Lru) => RGBColor(220, 50, 32),
        Rule::Policy(PolicyKind::S3Fifo) => RGBColor(20, 140, 70),
        Rule::Optimum => RGBColor(60, 60, 60),
    }
}

fn plot(
    text: &mut String,
    title: &str,
    curves: &[Curve],
    unlimited: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let highest = (unlimited * 1.1).clamp(1.0, 100.0);
    let (first, last) = (PERCENTS[0], PERCENTS[PERCENTS.len() - 1]);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(
            (first..last).log_scale().with_key_points(PERCENTS.to_vec()),
            0.0..highest,
        )?;
    chart
        .configure_mesh()
        .x_desc("room, % of the trace's different blocks")
        .y_desc("hits, % of all blocks")
        .x_label_formatter(&|percent| format!("{percent}"))
        .y_label_formatter(&|percent| format!("{percent:.0}"))
        .light_line_style(TRANSPARENT)
        .draw()?;
    let gray = RGBColor(120, 120, 120);
    chart
        .draw_series(LineSeries::new([(first, unlimited), (last, unlimited)], gray))?
        .label("without limit")
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], gray));
    for Curve { rule, points } in curves {
        let color = color(*rule);
        chart
            .draw_series(
                LineSeries::new(points.iter().copied(), color.stroke_width(2)).point_size(3),
            )?
            .label(rule.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.9))
        .border_style(gray)
        .draw()?;
    area.present()?;
    Ok(())
}
