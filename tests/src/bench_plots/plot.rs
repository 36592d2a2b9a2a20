//! Plots as SVG files, without a background, with colours for light and dark pages. The same
//! numbers give the same file.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::{
    ChartBuilder, Circle, Color, DrawingArea, DrawingAreaErrorKind, IntoDrawingArea, IntoFont,
    IntoLogRange, LineSeries, PathElement, RGBColor, SVGBackend, Text, TextStyle,
};

use super::measure::RANGES;
use crate::bench_real::BenchError;

pub(crate) const SIZE: (u32, u32) = (820, 480);
pub(crate) const LEGEND_HEIGHT: u32 = 30;
pub(crate) const GREY: RGBColor = RGBColor(125, 133, 144);
/// Each has a contrast of at least three with white and black.
pub(crate) const COLOURS: [RGBColor; 6] = [
    RGBColor(59, 130, 246),
    RGBColor(217, 115, 13),
    RGBColor(42, 157, 92),
    RGBColor(163, 113, 247),
    RGBColor(229, 72, 77),
    RGBColor(13, 150, 160),
];

/// One program's line: bytes by maximum number of ranges in a slice, as in [`RANGES`]; the last
/// value is that of a single frame.
#[derive(Clone, Debug)]
pub struct Line {
    /// The program.
    pub name: String,
    /// The bytes.
    pub bytes: Vec<u64>,
    /// The worst-case bytes, which are drawn fainter.
    pub worst: Option<Vec<u64>>,
}

/// Draws lines over the number of ranges in a slice, with logarithmic axes, and writes the file.
///
/// # Errors
/// [`BenchError`] if the file cannot be written.
pub fn write(path: &Path, what: &str, lines: &[Line], current: usize) -> Result<(), BenchError> {
    let mut svg = String::new();
    draw(&mut svg, what, lines, current).map_err(|error| BenchError::Answer {
        what: "a plot",
        found: error.to_string(),
    })?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(BenchError::file(folder))?;
    }
    std::fs::write(path, svg).map_err(BenchError::file(path))
}

pub(crate) type Failed = DrawingAreaErrorKind<std::io::Error>;

fn draw(svg: &mut String, what: &str, lines: &[Line], current: usize) -> Result<(), Failed> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let (legend, plot) = root.split_vertically(LEGEND_HEIGHT);
    let all = || {
        let worst = lines.iter().filter_map(|line| line.worst.as_ref());
        let usual = lines.iter().map(|line| &line.bytes);
        usual.chain(worst).flatten().copied()
    };
    let least = all().min().unwrap_or(1).max(1) as f64;
    let most = all().max().unwrap_or(1).max(2) as f64;
    let last = position(None);
    let text = |size: u32| ("sans-serif", size).into_font().color(&GREY);
    let mut chart = ChartBuilder::on(&plot)
        .margin(8)
        .margin_right(28)
        .x_label_area_size(44)
        .y_label_area_size(86)
        .build_cartesian_2d(0.0..last, (least * 0.7..most * 1.4).log_scale())?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .light_line_style(GREY.mix(0.0))
        .bold_line_style(GREY.mix(0.3))
        .axis_style(GREY)
        .label_style(text(16))
        .axis_desc_style(text(17))
        .x_desc("maximum number of ranges in a slice")
        .y_desc(what)
        .x_labels(RANGES.len() + 1)
        .x_label_formatter(&|x| label(*x))
        .y_label_formatter(&|y| level(*y as u64))
        .draw()?;

    let now = position(Some(current));
    let dashes = [(now, least * 0.7), (now, most * 1.4)];
    chart.draw_series([PathElement::new(dashes, GREY.stroke_width(2))])?;
    let said = "the current choice".to_owned();
    chart.draw_series([Text::new(said, (now + 0.08, most * 1.3), text(16))])?;

    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let points = |bytes: &[u64]| -> Vec<(f64, f64)> {
            let at = RANGES.iter().map(|ranges| position(Some(*ranges)));
            let at = at.chain([last]);
            at.zip(bytes.iter().map(|bytes| *bytes as f64)).collect()
        };
        if let Some(worst) = &line.worst {
            chart.draw_series(LineSeries::new(points(worst), colour.mix(0.45)))?;
        }
        let points = points(&line.bytes);
        chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
        let dots = points
            .into_iter()
            .map(|point| Circle::new(point, 3, colour.filled()));
        chart.draw_series(dots)?;
    }
    drop(chart);
    let titles: Vec<String> = lines.iter().map(|line| line.name.clone()).collect();
    names(&legend, &titles, &text(17))?;
    root.present()
}

/// Draws the legend.
pub(crate) fn names(
    legend: &DrawingArea<SVGBackend<'_>, Shift>,
    lines: &[String],
    style: &TextStyle<'_>,
) -> Result<(), Failed> {
    let mut left = 94;
    for (name, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let stroke = [(left, 16), (left + 22, 16)];
        legend.draw(&PathElement::new(stroke, colour.stroke_width(2)))?;
        legend.draw(&Circle::new((left + 11, 16), 3, colour.filled()))?;
        legend.draw(&Text::new(name.clone(), (left + 28, 9), style.clone()))?;
        left += 28 + 9 * i32::try_from(name.len()).unwrap_or(0) + 22;
    }
    Ok(())
}

/// Returns the position on the axis of a number of ranges: each step doubles it; the single frame
/// is one step after the last.
fn position(ranges: Option<usize>) -> f64 {
    match ranges {
        Some(ranges) => (ranges as f64 / RANGES[0] as f64).log2(),
        None => RANGES.len() as f64,
    }
}

fn label(position: f64) -> String {
    let at = RANGES.get(position.round() as usize);
    at.map_or_else(|| "whole".to_owned(), |ranges| thousands(*ranges))
}

/// Formats a number of bytes as an axis label if it starts with 1, 2 or 5; more labels would
/// overlap.
fn level(bytes: u64) -> String {
    let first = bytes / 10_u64.pow(bytes.checked_ilog10().unwrap_or(0));
    match bytes {
        _ if ![1, 2, 5].contains(&first) => String::new(),
        0..=999_999 => format!("{} kB", bytes / 1000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}

/// Formats a number with thousands separators.
pub fn thousands(number: usize) -> String {
    match (number / 1000, number % 1000) {
        (0, rest) => rest.to_string(),
        (more, rest) => format!("{},{rest:03}", thousands(more)),
    }
}
