//! The log: one JSON object a line, on standard output, where Lambda collects it.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;

/// What writes whole requests at its finest levels, credentials included: `info` is the most that is
/// let through of it, whatever the filter says of everything.
const TALKATIVE: [&str; 7] = [
    "h2",
    "hyper",
    "hyper_util",
    "lambda_http",
    "lambda_runtime",
    "reqwest",
    "rustls",
];

/// Begins to log what `filter` lets through; a filter that cannot be read lets through `info` and says so.
pub(super) fn init(filter: &str) {
    let parsed = filter.parse::<Targets>();
    let problem = parsed.as_ref().err().map(ToString::to_string);
    let targets = parsed.unwrap_or_else(|_| Targets::new().with_default(tracing::Level::INFO));
    let targets = quieted(targets);
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

fn quieted(targets: Targets) -> Targets {
    let level = targets.default_level().unwrap_or(LevelFilter::OFF);
    let level = level.min(LevelFilter::INFO);
    targets.with_targets(TALKATIVE.map(|target| (target, level)))
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    /// F11.
    #[test]
    fn what_writes_whole_requests_is_never_let_through_in_full() {
        let targets = |filter: &str| quieted(filter.parse().unwrap());
        for target in ["hyper::proto::h1", "lambda_runtime", "reqwest::connect"] {
            assert!(
                !targets("trace").would_enable(target, &Level::DEBUG),
                "{target}"
            );
            assert!(
                targets("trace").would_enable(target, &Level::INFO),
                "{target}"
            );
            assert!(
                !targets("warn").would_enable(target, &Level::INFO),
                "{target}"
            );
        }
        assert!(targets("trace").would_enable("symdepot::flows", &Level::TRACE));
        assert!(targets("warn,symdepot=debug").would_enable("symdepot::flows", &Level::DEBUG));
    }
}
