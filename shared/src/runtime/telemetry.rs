//! The log: one JSON object per line on standard output, where Lambda collects it.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;

/// The crates that a bare level applies to. The others (the Lambda runtime, hyper, the AWS SDK) log
/// bodies of requests and credentials below `info`.
const OURS: [&str; 4] = ["symdepot", "symbolicate", "derive", "prune"];

/// The crates that read crash files. They log what is in these files at `warn` and above, such as a
/// line for each module. So they log nothing, whatever the filter is.
const CRASH_READERS: [&str; 5] = [
    "breakpad_symbols",
    "minidump",
    "minidump_common",
    "minidump_processor",
    "minidump_unwind",
];

/// Returns what is wrong with a filter without spaces, for people; `None` if nothing is.
///
/// The parser takes a word that is no level for a target. Without this check, a misspelled level
/// would silence everything.
pub(super) fn problem_of(filter: &str) -> Option<String> {
    let is_level_or_pair = |part: &&str| part.contains('=') || part.parse::<LevelFilter>().is_ok();
    if let Some(word) = filter.split(',').find(|part| !is_level_or_pair(part)) {
        return Some(format!(
            "{word:?} is neither a level (off, error, warn, info, debug, trace) nor target=level"
        ));
    }
    let parsed = filter.parse::<Targets>();
    parsed.err().map(|error| format!("{filter:?}: {error}"))
}

/// Starts logging with `filter`, which was checked with [`problem_of`].
pub(super) fn init(filter: &str) {
    let parsed = filter.parse::<Targets>();
    let parsed = parsed.unwrap_or_else(|_| Targets::new().with_default(LevelFilter::INFO));
    let targets = restricted(&parsed);
    let json = fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false);
    let subscriber = tracing_subscriber::registry().with(json).with(targets);
    // A process that runs functions in itself may have set a subscriber already.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Logs the place of each panic in this process instead of printing its message, which may quote
/// what a client sent.
pub fn log_places_of_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        tracing::error!(place, "panicked");
    }));
}

/// Restricts a filter. A bare level applies to our own crates; other crates log at `info` at most,
/// unless the filter names them, as in `info,hyper=trace`. Readers of crash files log nothing.
fn restricted(filter: &Targets) -> Targets {
    let level = filter.default_level().unwrap_or(LevelFilter::OFF);
    let named = filter
        .iter()
        .map(|(target, level)| (target.to_owned(), level));
    let named = named.filter(|(target, _)| !is_of_crash_reader(target));
    Targets::new()
        .with_default(level.min(LevelFilter::INFO))
        .with_targets(OURS.map(|target| (target, level)))
        .with_targets(named)
        .with_targets(CRASH_READERS.map(|target| (target, LevelFilter::OFF)))
}

/// Returns whether a target is a crate that reads crash files, or a module of one.
fn is_of_crash_reader(target: &str) -> bool {
    let name = target.split("::").next().unwrap_or_default();
    CRASH_READERS.contains(&name)
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use minidump::{Minidump, MinidumpModuleList};
    use tracing::Level;

    use super::*;
    use crate::flows::parsing::parsed;
    use crate::runtime::logged::{logged, logged_through};

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

    fn restricted_of(filter: &str) -> Targets {
        restricted(&filter.parse().unwrap())
    }

    /// A minidump of which each module is invalid, so that the crate that reads it warns of each.
    fn minidump_with_invalid_modules() -> Vec<u8> {
        const MODULES: u32 = 4;
        const MODULE_BYTES: usize = 108;
        let mut dump = include_bytes!("../../../tests/fixtures/minidump/crash.dmp").to_vec();
        let number = |dump: &[u8], at: usize| {
            u32::from_le_bytes(dump[at..at + 4].try_into().unwrap()) as usize
        };
        let (streams, directory) = (number(&dump, 8), number(&dump, 12));
        let mut entries = (0..streams).map(|stream| directory + 12 * stream);
        let entry = entries.find(|at| number(&dump, *at) == MODULES as usize);
        let list = number(&dump, entry.unwrap() + 8);
        for module in 0..number(&dump, list) {
            let size = list + 4 + module * MODULE_BYTES + 8;
            dump[size..size + 4].fill(0);
        }
        dump
    }

    #[test]
    fn nothing_of_a_minidump_is_logged_whatever_the_filter_is() {
        let dump = minidump_with_invalid_modules();
        let read = || {
            let dump = Minidump::read(dump.as_slice()).unwrap();
            let _ = dump.get_stream::<MinidumpModuleList>();
        };
        let unrestricted = logged(read);
        assert!(
            unrestricted.contains("bad module image size"),
            "{unrestricted}"
        );
        for filter in [
            "info",
            "trace",
            "warn,minidump=trace,minidump::minidump=trace",
        ] {
            assert_eq!(logged_through(restricted_of(filter), read), "", "{filter}");
            for reader in CRASH_READERS {
                let module = format!("{reader}::context");
                assert!(!restricted_of(filter).would_enable(&module, &Level::ERROR));
            }
        }
    }

    #[test]
    fn a_word_that_is_no_level_is_no_filter() {
        for filter in [
            "warn",
            "INFO",
            "off",
            "info,symdepot::flows=debug",
            "symdepot=debug",
        ] {
            assert_eq!(problem_of(filter), None, "{filter}");
        }
        for filter in ["warning", "inof", "loud", "info,hyper", "info,hyper=loud"] {
            assert!(problem_of(filter).is_some(), "{filter}");
        }
    }

    #[test]
    fn request_bodies_are_not_logged_at_any_level() {
        for level in ["trace", "debug"] {
            let targets = restricted_of(level);
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
        let targets = restricted_of("debug,hyper=trace,symdepot::cache=warn");
        assert!(targets.would_enable("hyper::proto", &Level::TRACE));
        assert!(!targets.would_enable("lambda_runtime", &Level::DEBUG));
        assert!(targets.would_enable("symdepot::flows", &Level::DEBUG));
        assert!(!targets.would_enable("symdepot::cache", &Level::INFO));
    }
}
