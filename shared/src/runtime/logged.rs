//! What a test logs.

use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns the lines that `log` writes in this thread at any level, as functions write them.
pub(super) fn logged(log: impl FnOnce()) -> String {
    logged_through(Targets::new().with_default(Level::TRACE), log)
}

/// Returns the lines of `log` that pass a filter.
pub(super) fn logged_through(filter: Targets, log: impl FnOnce()) -> String {
    let lines = Lines::default();
    let writer = lines.clone();
    let json = fmt::layer()
        .json()
        .flatten_event(true)
        .with_writer(move || writer.clone());
    let subscriber = tracing_subscriber::registry().with(json).with(filter);
    tracing::subscriber::with_default(subscriber, log);
    let bytes = std::mem::take(&mut *lines.0.lock().unwrap());
    String::from_utf8(bytes).unwrap()
}
