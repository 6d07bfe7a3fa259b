//! Plots as SVG.

use super::Report;
use crate::config::Load;
use crate::summary::Summary;
use crate::summary::stats::Sample;
use plotters::coord::Shift;
use plotters::prelude::SeriesLabelPosition::{LowerRight, UpperLeft};
use plotters::prelude::*;
use std::fmt::Display;
use std::io;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A name and points in order of x.
type Curve = (String, Vec<(f64, f64)>);

const SIZE: (u32, u32) = (960, 640);
const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(127, 127, 127),
];

/// Name and content of each plot that there is something to draw for.
pub(super) fn plots(report: &Report) -> Vec<(&'static str, io::Result<String>)> {
    let loads = &report.loads;
    let mut plots = Vec::new();
    if loads.iter().any(|summary| summary.requests.complete > 0) {
        plots.push(("latency_cdf.svg", draw(|area| latencies(area, loads))));
        plots.push(("throughput.svg", draw(|area| throughput(area, loads))));
        if loads.len() > 1 {
            plots.push(("sweep.svg", draw(|area| sweep(area, loads))));
        }
    }
    plots
}

fn draw(what: impl FnOnce(&Area<'_>) -> Result<(), String>) -> io::Result<String> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(io::Error::other)?;
    what(&area).map_err(io::Error::other)?;
    area.present().map_err(io::Error::other)?;
    drop(area);
    Ok(svg)
}

/// One chart a latency, a curve a load.
fn latencies(area: &Area<'_>, loads: &[Summary]) -> Result<(), String> {
    let names = ["TTFT", "ITL", "TPOT", "E2E"];
    for (name, area) in names.iter().zip(area.split_evenly((2, 2))) {
        let curves: Vec<Curve> = loads
            .iter()
            .map(|summary| {
                let of_name = summary
                    .samples
                    .latencies
                    .iter()
                    .find(|(known, _)| known == name);
                let samples = of_name.map(|(_, samples)| samples.as_slice());
                (summary.load.label(), cdf(samples.unwrap_or_default()))
            })
            .collect();
        let caption = format!("{name}, share of all below");
        chart(&area, &caption, "ms", &curves, LowerRight)?;
    }
    Ok(())
}

/// Points of a cumulative distribution at most.
const CDF_POINTS: usize = 400;

/// Steps: between two values the share of all below does not grow.
fn cdf(samples: &[Sample]) -> Vec<(f64, f64)> {
    let total: f64 = samples.iter().map(|sample| f64::from(sample.weight)).sum();
    let step = total / CDF_POINTS as f64;
    let (mut below, mut drawn) = (0.0, 0.0);
    let mut points = Vec::new();
    for (place, sample) in samples.iter().enumerate() {
        below += f64::from(sample.weight);
        if below - drawn >= step || place + 1 == samples.len() {
            let value = f64::from(sample.value);
            points.extend([(value, drawn / total), (value, below / total)]);
            drawn = below;
        }
    }
    points
}

fn throughput(area: &Area<'_>, loads: &[Summary]) -> Result<(), String> {
    let curves: Vec<Curve> = loads
        .iter()
        .map(|summary| {
            let samples = &summary.samples;
            (summary.load.label(), samples.tokens.points(samples.begun))
        })
        .collect();
    chart(area, "output tokens/s over time", "s", &curves, LowerRight)
}

fn sweep(area: &Area<'_>, loads: &[Summary]) -> Result<(), String> {
    let x = |summary: &Summary| match summary.load {
        Load::Closed { concurrency } => concurrency as f64,
        Load::Open { rate, .. } => rate,
    };
    let unit = match loads.first().map(|summary| summary.load) {
        Some(Load::Open { .. }) => "requests/s",
        _ => "concurrency",
    };
    let curve = |name: &str, y: &dyn Fn(&Summary) -> Option<f64>| -> Curve {
        let points = loads
            .iter()
            .filter_map(|summary| Some((x(summary), y(summary)?)));
        let mut points: Vec<(f64, f64)> = points.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (name.to_owned(), points)
    };
    let (upper, lower) = area.split_vertically(SIZE.1 / 2);
    let tokens = curve("output tokens/s", &|s| {
        Some(s.throughput.output_tokens_per_s)
    });
    // Both grow with the load.
    chart(&upper, "throughput", unit, &[tokens], UpperLeft)?;
    let latencies = [
        curve("TTFT p50", &|s| s.ttft_ms.p50),
        curve("TTFT p99", &|s| s.ttft_ms.p99),
        curve("ITL p50", &|s| s.itl_ms.p50),
        curve("ITL p99", &|s| s.itl_ms.p99),
    ];
    chart(&lower, "latency in ms", unit, &latencies, UpperLeft)
}

fn chart(
    area: &Area<'_>,
    caption: &str,
    x_name: &str,
    curves: &[Curve],
    legend: SeriesLabelPosition,
) -> Result<(), String> {
    let points = || curves.iter().flat_map(|(_, points)| points);
    let top = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(0.0, f64::max).max(1e-6);
    let (right, top) = (top(|point| point.0), top(|point| point.1));
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 18))
        .margin(8)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..right * 1.02, 0.0..top * 1.05)
        .map_err(words)?;
    chart
        .configure_mesh()
        .x_desc(x_name)
        .light_line_style(WHITE)
        .draw()
        .map_err(words)?;
    for ((name, points), colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        if points.is_empty() {
            continue;
        }
        chart
            .draw_series(LineSeries::new(
                points.iter().copied(),
                colour.stroke_width(2),
            ))
            .map_err(words)?
            .label(name)
            .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(legend)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(words)
}

fn words(error: impl Display) -> String {
    error.to_string()
}
