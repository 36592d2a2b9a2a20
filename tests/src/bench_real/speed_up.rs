//! The speed-up of deriving over the number of cores, as a table and as a plot.

use std::path::Path;

use plotters::prelude::{
    ChartBuilder, Circle, Color, DashedLineSeries, IntoDrawingArea, IntoFont, LineSeries,
    SVGBackend,
};

use super::parser_process::{self, Cores};
use super::report::{Report, Row};
use super::{BenchError, percentile, say};
use crate::bench_plots::plot::{COLOURS, Failed, GREY, LEGEND_HEIGHT, SIZE, names};
use crate::stack::Binaries;

/// A program, and the speed-up with one core, two cores and so on.
#[derive(Clone, Debug)]
pub struct SpeedUp {
    name: String,
    factors: Vec<f64>,
}

impl SpeedUp {
    /// Derives the caches of a file with each number of cores that the machine has.
    ///
    /// # Errors
    /// The parser fails.
    pub async fn of(
        binaries: &Binaries,
        (name, path): (&str, &Path),
        runs: usize,
        report: &mut Report,
    ) -> Result<Self, BenchError> {
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        say("speed-up", &format!("{name} on one to {available} cores"));
        let mut seconds = Vec::new();
        for count in 1..=available {
            let _cores = Cores::first(count)?;
            let mut times = Vec::new();
            for _ in 0..runs.max(1) {
                times.push(
                    parser_process::run(binaries, path)
                        .await?
                        .took
                        .as_secs_f64(),
                );
            }
            seconds.push(percentile(&times, 50));
        }
        let one = seconds.first().copied().unwrap_or_default();
        let speed_up = Self {
            name: name.to_owned(),
            factors: seconds.iter().map(|seconds| one / seconds).collect(),
        };
        let group = "Speed-up of deriving, relative to one core";
        for (count, factor) in (2..).zip(&speed_up.factors[1..]) {
            let what = format!("{name}, {count} cores");
            report.add(group, Row::new(what, format!("{factor:.2} ×")));
        }
        let limit = Row::new(
            format!("{name}, limit"),
            format!("{:.1} ×", speed_up.limit()),
        );
        report.add(group, limit);
        Ok(speed_up)
    }

    /// Returns the speed-up that no number of cores exceeds, by Amdahl's law: the share of the work
    /// that one core does alone is computed from the time with all cores.
    fn limit(&self) -> f64 {
        let cores = self.factors.len() as f64;
        let factor = self.factors.last().copied().unwrap_or(1.0);
        match self.factors.len() {
            ..2 => 1.0,
            _ => (cores - 1.0) / (cores / factor - 1.0).max(0.001),
        }
    }
}

/// Draws the speed-ups, and the ideal one as a dashed line, and writes the file.
///
/// # Errors
/// [`BenchError`] if the file cannot be written.
pub fn write(path: &Path, programs: &[SpeedUp]) -> Result<(), BenchError> {
    let mut svg = String::new();
    draw(&mut svg, programs).map_err(|error| BenchError::Answer {
        what: "a plot",
        found: error.to_string(),
    })?;
    std::fs::write(path, svg).map_err(BenchError::file(path))
}

fn draw(svg: &mut String, programs: &[SpeedUp]) -> Result<(), Failed> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let (legend, plot) = root.split_vertically(LEGEND_HEIGHT);
    let most = programs.iter().map(|program| program.factors.len()).max();
    let cores = most.unwrap_or(1).max(2) as f64;
    let text = |size: u32| ("sans-serif", size).into_font().color(&GREY);
    let mut chart = ChartBuilder::on(&plot)
        .margin(8)
        .margin_right(28)
        .x_label_area_size(44)
        .y_label_area_size(86)
        .build_cartesian_2d(1.0..cores, 0.8..cores + 0.2)?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .light_line_style(GREY.mix(0.0))
        .bold_line_style(GREY.mix(0.3))
        .axis_style(GREY)
        .label_style(text(16))
        .axis_desc_style(text(17))
        .x_desc("cores")
        .y_desc("speed-up, relative to one core")
        .x_labels(cores as usize)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.1}"))
        .draw()?;
    let ideal = [(1.0, 1.0), (cores, cores)];
    chart.draw_series(DashedLineSeries::new(ideal, 6, 6, GREY.stroke_width(1)))?;
    for (program, colour) in programs.iter().zip(COLOURS.iter().cycle()) {
        let factors = program.factors.iter();
        let points = (1..)
            .zip(factors)
            .map(|(count, factor)| (f64::from(count), *factor));
        let points: Vec<(f64, f64)> = points.collect();
        chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
        let dots = points
            .into_iter()
            .map(|point| Circle::new(point, 3, colour.filled()));
        chart.draw_series(dots)?;
    }
    drop(chart);
    let titles = programs
        .iter()
        .map(|program| format!("{} (limit {:.1})", program.name, program.limit()));
    names(&legend, &titles.collect::<Vec<_>>(), &text(17))?;
    root.present()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_from_the_share_that_one_core_does_alone() {
        let limit = |factors: &[f64]| {
            let factors = factors.to_vec();
            let name = String::new();
            SpeedUp { name, factors }.limit()
        };
        // A tenth alone: 1 / (0.1 + 0.9 / 2) with two cores.
        assert!((limit(&[1.0, 1.0 / 0.55]) - 10.0).abs() < 1e-9);
        // The same with three cores.
        assert!((limit(&[1.0, 1.8, 2.5]) - 10.0).abs() < 1e-9);
        assert_eq!(limit(&[1.0]), 1.0);
        assert!(limit(&[1.0, 2.0]) > 100.0);
    }
}
