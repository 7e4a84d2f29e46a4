//! When first tokens come, and what they wait for, as a picture.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use rackline_serving::Times;

use super::report::{Conditions, Part, Report};
use crate::bench::kill::in_title;

const SIZE: (u32, u32) = (980, 460);
/// Measured, simulated.
const COLORS: [RGBColor; 2] = [RGBColor(0, 90, 181), RGBColor(220, 50, 32)];

type Drawn = Result<(), Box<dyn std::error::Error>>;

pub(super) fn draw(path: &Path, report: &Report) -> Result<()> {
    let mut text = String::new();
    // The reasons of the drawing library borrow the text that is drawn into.
    plot(&mut text, report).map_err(|error| anyhow!("no picture: {error}"))?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn plot(text: &mut String, report: &Report) -> Drawn {
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let Conditions { trace, profile, killed, .. } = &report.conditions;
    let title = format!("{trace}: {profile}{}", in_title(*killed));
    let area = area.titled(&title, ("sans-serif", 19))?;
    let (left, right) = area.split_horizontally(SIZE.0 / 2);
    plot_first_tokens(&left, report)?;
    plot_stages(&right, report)?;
    area.present()?;
    Ok(())
}

fn color(name: &str) -> RGBColor {
    COLORS[usize::from(name == "simulated")]
}

/// The share of requests that have their first token, by the time since they arrived.
fn plot_first_tokens<B: DrawingBackend>(area: &DrawingArea<B, Shift>, report: &Report) -> Drawn
where
    B::ErrorType: 'static,
{
    let longest = report.parts().map(|(part, _)| part.summary.ttft.max_ms);
    let longest_s = longest.fold(0.001, f64::max) / 1000.0;
    let mut chart = ChartBuilder::on(area)
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..longest_s * 1.02, 0.0..100.0)?;
    chart
        .configure_mesh()
        .x_desc("since it arrived, s")
        .y_desc("requests with a first token, %")
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (part, name) in report.parts() {
        let color = color(name);
        chart
            .draw_series(LineSeries::new(shares(part), color.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.9))
        .border_style(RGBColor(120, 120, 120))
        .draw()?;
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a picture")]
fn shares(part: &Part) -> Vec<(f64, f64)> {
    let mut times_s: Vec<f64> = part.served.iter().map(|it| it.ttft_ns as f64 / 1e9).collect();
    times_s.sort_by(f64::total_cmp);
    let count = times_s.len() as f64;
    let share = |(number, time_s): (usize, f64)| (time_s, 100.0 * (number + 1) as f64 / count);
    std::iter::once((0.0, 0.0)).chain(times_s.into_iter().enumerate().map(share)).collect()
}

/// The mean of each stage.
fn plot_stages<B: DrawingBackend>(area: &DrawingArea<B, Shift>, report: &Report) -> Drawn
where
    B::ErrorType: 'static,
{
    // With real bytes a lookup waits for drives.
    let of = |part: &Part| -> Vec<(&'static str, f64)> {
        let all = part.summary.stages_ms.iter().copied();
        all.filter(|(name, _)| *name != Times::RESTORE).collect()
    };
    let names: Vec<_> = Times::TO_FIRST_TOKEN.iter().map(|(name, _)| *name).collect();
    let names: Vec<_> = names.into_iter().filter(|name| *name != Times::RESTORE).collect();
    let stages = names.len();
    let longest_ms = report.parts().flat_map(|(part, _)| of(part)).map(|it| it.1);
    let longest_ms = longest_ms.fold(0.001, f64::max);
    let place = |stage| place_of(stages, stage);
    let name_at = |at: &f64| {
        let at = (0..stages).find(|stage| (place(*stage) - at).abs() < 0.01);
        at.map_or("", |stage| names[stage]).to_owned()
    };
    let mut chart = ChartBuilder::on(area)
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(112)
        .build_cartesian_2d(0.0..longest_ms * 1.05, -0.6..place(0) + 0.6)?;
    chart
        .configure_mesh()
        .x_desc("mean, ms")
        .y_labels(stages)
        .y_label_formatter(&name_at)
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (number, (part, name)) in (0_u8..).zip(report.parts()) {
        let color = color(name);
        let bars = of(part).into_iter().enumerate().map(|(stage, (_, ms))| {
            let top = place(stage) + 0.36 - 0.36 * f64::from(number);
            Rectangle::new([(0.0, top - 0.32), (ms, top)], color.filled())
        });
        chart.draw_series(bars)?;
    }
    Ok(())
}

/// Where the bars of a stage are: the first on top.
#[expect(clippy::cast_precision_loss, reason = "ten stages")]
fn place_of(stages: usize, stage: usize) -> f64 {
    (stages - 1 - stage) as f64
}
