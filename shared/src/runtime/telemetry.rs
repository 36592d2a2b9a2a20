//! The log: one JSON object per line on standard output, where Lambda collects it.

use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;

/// The crates that a bare level applies to. The others (the Lambda runtime, hyper, the AWS SDK) log
/// bodies of requests and credentials below `info`.
const OURS: [&str; 4] = ["symdepot", "symbolicate", "derive", "prune"];

/// Starts logging with `filter`. An invalid filter is replaced by `info`, with a warning.
pub(super) fn init(filter: &str) {
    let parsed = targets(filter);
    let problem = parsed.as_ref().err().map(ToString::to_string);
    let targets = parsed.unwrap_or_else(|_| Targets::new().with_default(tracing::Level::INFO));
    let json = fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false);
    let subscriber = tracing_subscriber::registry().with(json).with(targets);
    // A process that runs functions in itself may have set a subscriber already.
    if tracing::subscriber::set_global_default(subscriber).is_ok()
        && let Some(problem) = problem
    {
        tracing::warn!(
            problem,
            filter,
            "LOG is not a valid filter, logging at info"
        );
    }
}

/// Logs the place of each panic in this process instead of printing its message, which may quote
/// what a client sent.
pub fn log_places_of_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        tracing::error!(place, "panicked");
    }));
}

/// Parses a filter. A bare level applies to our own crates; other crates log at `info` at most,
/// unless the filter names them, as in `info,hyper=trace`.
fn targets(filter: &str) -> Result<Targets, ParseError> {
    let parsed = filter.parse::<Targets>()?;
    let level = parsed.default_level().unwrap_or(LevelFilter::OFF);
    if level <= LevelFilter::INFO {
        return Ok(parsed);
    }
    let named: Vec<(String, LevelFilter)> = parsed
        .iter()
        .map(|(target, level)| (target.to_owned(), level))
        .collect();
    Ok(Targets::new()
        .with_default(LevelFilter::INFO)
        .with_targets(OURS.map(|target| (target, level)))
        .with_targets(named))
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use tracing::Level;

    use super::super::logged::logged;
    use super::*;
    use crate::flows::parsing::parsed;

    /// What a crash file contains.
    const SECRET: &str = "the memory of a process";

    #[derive(Debug, thiserror::Error)]
    #[error("never")]
    struct Never;

    #[test]
    fn a_panic_is_logged_with_its_place_and_without_what_it_quotes() {
        // The standard library quotes a string that is cut within a character.
        let text = format!("\u{e9}{SECRET}");
        let cut = || text[1..].len();
        let message = catch_unwind(cut).unwrap_err();
        let message = message.downcast_ref::<String>().unwrap();
        assert!(message.contains(SECRET), "{message}");

        // The hook belongs to the whole process. The log is that of this thread.
        let before = std::panic::take_hook();
        log_places_of_panics();
        let (mut failed, mut uncaught) = (Ok(0), Ok(0));
        let logged = logged(|| {
            failed = parsed("report", || Ok::<_, Never>(cut()));
            uncaught = catch_unwind(cut);
        });
        std::panic::set_hook(before);
        assert_eq!(failed, Err("the parser cannot read this report".to_owned()));
        assert!(uncaught.is_err());
        assert!(!logged.contains(SECRET), "{logged}");
        let of_panics = |line: &&str| line.contains(r#""message":"panicked""#);
        let places = logged.lines().filter(of_panics);
        let places: Vec<&str> = places.filter(|line| line.contains(".rs:")).collect();
        assert_eq!(places.len(), 2, "{logged}");
    }

    /// F21.
    #[test]
    fn request_bodies_are_not_logged_at_any_level() {
        for level in ["trace", "debug"] {
            let targets = targets(level).unwrap();
            assert!(targets.would_enable("symdepot::flows::build", &Level::DEBUG));
            assert!(targets.would_enable("symbolicate::handler", &Level::DEBUG));
            for target in [
                "lambda_runtime::layers::api_response",
                "hyper::proto::h1::io",
                "aws_smithy_runtime::client::orchestrator",
                "a_crate_that_is_added_later",
            ] {
                assert!(targets.would_enable(target, &Level::INFO), "{target}");
                assert!(!targets.would_enable(target, &Level::DEBUG), "{target}");
            }
        }
    }

    #[test]
    fn a_crate_that_is_named_has_its_own_level() {
        let targets = targets("debug,hyper=trace,symdepot::cache=warn").unwrap();
        assert!(targets.would_enable("hyper::proto", &Level::TRACE));
        assert!(!targets.would_enable("lambda_runtime", &Level::DEBUG));
        assert!(targets.would_enable("symdepot::flows", &Level::DEBUG));
        assert!(!targets.would_enable("symdepot::cache", &Level::INFO));
    }
}
