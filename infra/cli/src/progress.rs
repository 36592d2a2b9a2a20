//! How progress is shown on a terminal.

use indicatif::ProgressStyle;

/// Returns the style of a bar.
pub(crate) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Returns the style of a bar of bytes that are sent.
pub(crate) fn bytes_style() -> ProgressStyle {
    style("{bytes} of {total_bytes} sent {wide_bar}")
}
