//! The time to the first token by load, for each system, as a picture.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use rackline_serving::{Spread, System};

use super::report::{Conditions, Report};
use crate::bench::kill::in_title;

const SIZE: (u32, u32) = (980, 440);

type Drawn = Result<(), Box<dyn std::error::Error>>;

pub(super) fn draw(path: &Path, report: &Report) -> Result<()> {
    let mut text = String::new();
    // The reasons of the drawing library borrow the text that is drawn into.
    plot(&mut text, report).map_err(|error| anyhow!("no picture: {error}"))?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

const fn color(system: System) -> RGBColor {
    match system {
        System::RacklineDrives => RGBColor(90, 170, 230),
        System::Direct => RGBColor(220, 50, 32),
        System::HostCache => RGBColor(20, 140, 70),
        System::Store => RGBColor(150, 90, 180),
        // Rackline.
        _ => RGBColor(0, 90, 181),
    }
}

fn plot(text: &mut String, report: &Report) -> Drawn {
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let Conditions { trace, profile, killed, .. } = &report.conditions;
    let title = format!("{trace}, simulated: {profile}{}", in_title(*killed));
    let area = area.titled(&title, ("sans-serif", 19))?;
    let (left, right) = area.split_horizontally(SIZE.0 / 2);
    plot_by_load(&left, report, "first token, mean, s", |it| it.mean_ms)?;
    plot_by_load(&right, report, "first token, 99 of 100 within, s", |it| it.p99_ms)?;
    area.present()?;
    Ok(())
}

fn plot_by_load<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    report: &Report,
    name: &str,
    of: fn(&Spread) -> f64,
) -> Drawn
where
    B::ErrorType: 'static,
{
    let times = || report.points.iter().map(|point| of(&point.summary.ttft) / 1000.0);
    let (least, most) = (times().fold(f64::MAX, f64::min), times().fold(0.0, f64::max));
    let loads = || report.points.iter().map(|point| point.rate);
    let (first, last) = (loads().fold(f64::MAX, f64::min), loads().fold(0.0, f64::max));
    let mut chart = ChartBuilder::on(area)
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(58)
        .build_cartesian_2d(
        (first * 0.95)..(last * 1.05),
        (least.max(0.000_1) * 0.8..most.max(0.001) * 1.25).log_scale(),
    )?;
    chart
        .configure_mesh()
        .x_desc("requests a second")
        .y_desc(name)
        // Steps of a logarithmic axis are sums: 0.30000000000000004.
        .y_label_formatter(&|seconds| format!("{}", (seconds * 1000.0).round() / 1000.0))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (system, points) in report.curves() {
        let color = color(system);
        let line = points.iter().map(|point| (point.rate, of(&point.summary.ttft) / 1000.0));
        chart
            .draw_series(LineSeries::new(line, color.stroke_width(2)).point_size(3))?
            .label(system.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.9))
        .border_style(RGBColor(120, 120, 120))
        .draw()?;
    Ok(())
}
