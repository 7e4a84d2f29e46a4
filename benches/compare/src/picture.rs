//! The picture: put and get speeds over the sizes of a block, one line a contender.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::contender::Contender;
use crate::rounds::{Results, Round, median};

const SIZE: (u32, u32) = (1100, 820);

/// What is drawn of a round.
type Figure = fn(&Round) -> f64;

/// Draws four charts: put and get, singly and in batches.
pub(crate) fn draw(path: &Path, results: &Results) -> Result<()> {
    let drawn = drawn(path, results);
    drawn.with_context(|| format!("cannot draw {}", path.display()))
}

fn drawn(path: &Path, results: &Results) -> Result<()> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let batches: Vec<u32> = {
        let mut batches: Vec<_> = results.cases().iter().map(|case| case.batch).collect();
        batches.sort_unstable();
        batches.dedup();
        batches
    };
    let areas = root.split_evenly((2, batches.len()));
    let rows: [(&str, Figure); 2] =
        [("put", |round| round.put_gb_per_s), ("get", |round| round.get_gb_per_s)];
    let charts = rows.iter().flat_map(|row| batches.iter().map(move |batch| (row, *batch)));
    for (area, ((name, figure), batch)) in areas.iter().zip(charts) {
        let how = if batch == 1 { "one by one".to_owned() } else { format!("{batch} a call") };
        chart(area, results, &format!("{name}, {how}: GB/s"), batch, figure)?;
    }
    root.present().map_err(failed)
}

fn chart(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    results: &Results,
    title: &str,
    batch: u32,
    figure: &Figure,
) -> Result<()> {
    let cases: Vec<_> = results.cases().into_iter().filter(|case| case.batch == batch).collect();
    let points = |contender: Contender| -> Vec<(f64, f64)> {
        let point = |case: &crate::rounds::Case| {
            let rounds = results.of(contender, *case)?;
            Some((f64::from(case.block_bytes) / 1024.0, median(rounds.iter().map(figure))))
        };
        cases.iter().filter_map(point).collect()
    };
    let kib = |case: Option<&crate::rounds::Case>| {
        case.map_or(1.0, |case| f64::from(case.block_bytes) / 1024.0)
    };
    let lines: Vec<_> = results.contenders().into_iter().map(|one| (one, points(one))).collect();
    let top = lines.iter().flat_map(|(_, points)| points).map(|point| point.1);
    let top = top.fold(0.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(40)
        .build_cartesian_2d((kib(cases.first())..kib(cases.last())).log_scale(), 0.0..top)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_desc("size of a block, KiB")
        .x_label_formatter(&|kib| format!("{kib:.0}"))
        .draw()
        .map_err(failed)?;
    for (contender, points) in lines {
        let color = color(contender);
        let width = if contender == Contender::Rackline { 3 } else { 1 };
        let series = LineSeries::new(points, color.stroke_width(width)).point_size(3);
        chart
            .draw_series(series)
            .map_err(failed)?
            .label(contender.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(failed)
}

fn color(contender: Contender) -> RGBColor {
    match contender {
        Contender::Memcpy => RGBColor(140, 140, 140),
        Contender::Stream => RGBColor(70, 70, 70),
        Contender::Rackline => RGBColor(200, 40, 40),
        Contender::Lmdb => RGBColor(40, 110, 190),
        Contender::Redis => RGBColor(220, 140, 20),
        Contender::Mooncake => RGBColor(50, 150, 70),
        Contender::LmCache => RGBColor(150, 90, 170),
    }
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}
