//! How progress is shown on a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// Returns a bar of files that are inspected.
pub(crate) fn inspecting(files: usize) -> ProgressBar {
    let bar = ProgressBar::new(files as u64);
    bar.with_style(style("{pos} of {len} files inspected {wide_bar}"))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Returns the style of a bar of bytes that are sent.
pub(crate) fn bytes_style() -> ProgressStyle {
    style("{bytes} of {total_bytes} sent {wide_bar}")
}
