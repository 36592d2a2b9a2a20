//! What a test logs.

use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing::Level;

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
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_max_level(Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, log);
    let bytes = std::mem::take(&mut *lines.0.lock().unwrap());
    String::from_utf8(bytes).unwrap()
}
