//! The log: one JSON object a line, on standard output, where Lambda collects it.

use tracing_subscriber::EnvFilter;

/// Begins to log what `filter` lets through; a filter that cannot be read lets through `info` and says so.
pub(super) fn init(filter: &str) {
    let (parsed, problem) = match EnvFilter::try_new(filter) {
        Ok(parsed) => (parsed, None),
        Err(problem) => (EnvFilter::new("info"), Some(problem)),
    };
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false)
        .with_env_filter(parsed)
        .finish();
    // Whoever runs functions inside a process of their own may have set a subscriber already.
    if tracing::subscriber::set_global_default(subscriber).is_ok()
        && let Some(problem) = problem
    {
        tracing::warn!(%problem, filter, "LOG is not a filter");
    }
}
