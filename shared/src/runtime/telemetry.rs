//! The log: one JSON object a line, on standard output, where Lambda collects it.

use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;

/// Begins to log what `filter` lets through; a filter that cannot be read lets through `info` and says so.
pub(super) fn init(filter: &str) {
    let parsed = filter.parse::<Targets>();
    let problem = parsed.as_ref().err().map(ToString::to_string);
    let targets = parsed.unwrap_or_else(|_| Targets::new().with_default(tracing::Level::INFO));
    let json = fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false);
    let subscriber = tracing_subscriber::registry().with(json).with(targets);
    // Whoever runs functions inside a process of their own may have set a subscriber already.
    if tracing::subscriber::set_global_default(subscriber).is_ok()
        && let Some(problem) = problem
    {
        tracing::warn!(problem, filter, "LOG is not a filter");
    }
}
