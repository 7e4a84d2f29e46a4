//! A figure, drawn: what is kept of TBT and TPOT, a line for each policy.

use std::error::Error;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use rackline_simulate::{Figures, Series};

use super::Made;

const SIZE: (u32, u32) = (1100, 500);
/// Of the title and the names of the policies.
const TOP_HEIGHT: u32 = 62;
const NAME_WIDTH: i32 = 140;
/// Colours that people with any colour vision tell apart (M. Okabe, K. Ito).
const COLORS: [RGBColor; 8] = [
    RGBColor(0, 0, 0),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 158, 115),
    RGBColor(160, 140, 0),
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(204, 121, 167),
];

type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The picture, as SVG.
pub(super) fn draw(made: &Made<'_>) -> Result<String> {
    let mut text = String::new();
    // The reasons of the drawing library borrow the text that is drawn into.
    plot(&mut text, made).map_err(|error| anyhow!("no picture: {error}"))?;
    Ok(text)
}

fn plot(text: &mut String, made: &Made<'_>) -> Result<(), Box<dyn Error>> {
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let (top, rest) = area.split_vertically(TOP_HEIGHT);
    top.titled(&format!("{}: {}", made.figure, made.profile), ("sans-serif", 20))?;
    names(&top, made)?;
    let (left, right) = rest.split_horizontally(SIZE.0 / 2);
    panel(&left, "TBT kept, %", made, |it| it.tbt_attainment_percent)?;
    panel(&right, "TPOT kept, %", made, |it| it.tpot_attainment_percent)?;
    area.present()?;
    Ok(())
}

/// The names of the policies in a row, each beside its colour.
fn names(area: &Panel<'_>, made: &Made<'_>) -> Result<(), Box<dyn Error>> {
    let count = i32::try_from(made.series.len())?;
    let first = (i32::try_from(SIZE.0)? - count * NAME_WIDTH) / 2;
    for ((at, series), color) in (0..count).zip(&made.series).zip(COLORS) {
        let x = first + at * NAME_WIDTH;
        area.draw(&PathElement::new([(x, 48), (x + 24, 48)], color.stroke_width(3)))?;
        area.draw(&Text::new(series.policy, (x + 30, 42), ("sans-serif", 14)))?;
    }
    Ok(())
}

fn panel(
    area: &Panel<'_>,
    title: &str,
    made: &Made<'_>,
    value: fn(&Figures) -> f64,
) -> Result<(), Box<dyn Error>> {
    let places = || (0_i32..).take(made.points.len());
    let last = places().last().unwrap_or(0).max(1);
    let mut chart = ChartBuilder::on(area)
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(0..last, 0.0..105.0)?;
    let label = |at: &i32| {
        let found = places().zip(&made.points).find(|(place, _)| place == at);
        found.map_or_else(String::new, |(_, label)| label.clone())
    };
    chart
        .configure_mesh()
        .x_desc(made.axis)
        .y_desc(title)
        .x_labels(made.points.len())
        .x_label_formatter(&label)
        .y_label_formatter(&|percent| format!("{percent:.0}"))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (Series { figures, .. }, color) in made.series.iter().zip(COLORS) {
        let points = places().zip(figures.iter().map(value));
        chart.draw_series(LineSeries::new(points, color.stroke_width(2)).point_size(3))?;
    }
    Ok(())
}
