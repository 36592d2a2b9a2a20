//! Parts of a program that runs a stack: the log, and the life of the stack until a signal ends it.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::stack::{Options, Running, Stack};

/// Runs a stack until a signal ends it. Calls `announce` when it is ready.
///
/// Files that the stack and its functions write are accessible only to this user from now on.
///
/// # Errors
/// Returns why the stack cannot start, for people.
pub fn run(options: Options, announce: impl FnOnce(&Running)) -> Result<(), String> {
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the async runtime: {error}"))?
        .block_on(serve(options, announce))
}

async fn serve(options: Options, announce: impl FnOnce(&Running)) -> Result<(), String> {
    // Signal handlers are installed before the start, so that a signal during the start is not
    // lost.
    let cannot_listen =
        |error: std::io::Error| format!("cannot install the signal handlers: {error}");
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot_listen)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot_listen)?;
    let mut hang_up = signal(SignalKind::hangup()).map_err(cannot_listen)?;

    let running = Stack::start(options)
        .await
        .map_err(|error| error.to_string())?;
    announce(&running);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
    }
    running.stop().await;
    Ok(())
}

/// Returns the variables of this process, which have the same effect on the functions as an edit of
/// the template. Empty ones, and those that are not UTF-8, have none.
pub fn variables() -> BTreeMap<String, String> {
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
        (!value.is_empty()).then_some((name, value))
    });
    variables.collect()
}

/// Crates that log each client error and each lost compare-and-swap, with the directive that
/// silences them: in normal operation these events look like faults of the stack.
const NOISY_CRATES: [(&str, &str); 2] = [
    ("s3s", "s3s::ops=off"),
    ("dynoxide", "dynoxide::server=error"),
];

/// Logs events to standard error. The variable `LOG` chooses the level; without it, it is `level`.
///
/// # Errors
///
/// If `LOG` is invalid. The functions would not start with it, either.
pub fn init_logging(level: &str) -> Result<(), String> {
    let requested = std::env::var("LOG").unwrap_or_default();
    let requested = if requested.is_empty() {
        level
    } else {
        &requested
    };
    let filter = filter_of(requested).ok_or_else(|| {
        format!(
            "LOG: {requested:?} is neither a level (off, error, warn, info, debug, trace) nor a list of target=level"
        )
    })?;
    let colours = std::io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}

/// Returns the filter that a value of `LOG` means; `None` if it is invalid. A word that is no level
/// is invalid: `EnvFilter` takes it for the name of a crate, and would silence all others. The
/// functions that this stack runs may have the same rule, which this crate may not use.
fn filter_of(log: &str) -> Option<EnvFilter> {
    let is_level_or_pair =
        |part: &str| part.contains('=') || part.trim().parse::<LevelFilter>().is_ok();
    let is_valid = log.split(',').all(is_level_or_pair);
    is_valid
        .then(|| EnvFilter::try_new(directives(log)).ok())
        .flatten()
}

/// A level applies to the stack and its functions. Below `info`, the crates that they use log
/// request bodies and credentials, so they do so only if they are named, as in `info,hyper=trace`.
/// The same applies to [`NOISY_CRATES`].
fn directives(log: &str) -> String {
    let quiet = NOISY_CRATES.iter().filter(|(name, _)| !log.contains(name));
    let quiet = quiet.map(|(_, directive)| (*directive).to_owned());
    let directives = log
        .split(',')
        .map(|part| match part.trim().parse::<LevelFilter>() {
            Ok(level) if level > LevelFilter::INFO => {
                format!("info,local_stack={level},function={level}")
            }
            _ => part.trim().to_owned(),
        });
    directives.chain(quiet).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plain level does not reach crates that log request bodies (docs/security.md, F21).
    #[test]
    fn a_log_level_does_not_apply_to_crates_that_log_bodies() {
        for (log, expected) in [
            ("trace", "info,local_stack=trace,function=trace"),
            (
                "debug,hyper=trace",
                "info,local_stack=debug,function=debug,hyper=trace",
            ),
            ("warn", "warn"),
            ("info, local_stack::s3=debug", "info,local_stack::s3=debug"),
        ] {
            let quiet = "s3s::ops=off,dynoxide::server=error";
            assert_eq!(directives(log), format!("{expected},{quiet}"));
        }
    }

    #[test]
    fn a_word_that_is_no_level_is_no_filter() {
        for log in ["warn", "info,s3s=info", "info, local_stack::s3=debug"] {
            assert!(filter_of(log).is_some(), "{log}");
        }
        for log in ["warning", "loud", "info,hyper"] {
            assert!(filter_of(log).is_none(), "{log}");
        }
    }

    #[test]
    fn responses_to_clients_are_logged_only_if_their_crate_is_named() {
        let directives = directives("info,s3s=debug");
        assert_eq!(directives, "info,s3s=debug,dynoxide::server=error");
    }
}
