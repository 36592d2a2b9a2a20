//! Crash reports as text: what sanitizers, debuggers, loggers and runtimes print.
//!
//! [`CrashReport::read`] recognises the format of a report and finds its modules and frames. It
//! becomes a [`Request`](super::symbolicator::Request), and the response to it becomes the same
//! text with names ([`CrashReport::text`]). Everything else in the text stays byte for byte.
//!
//! What a report does not say is never guessed: a module without an id, or without a load address,
//! is in [`CrashReport::lacks`], and [`CrashReport::complete`] adds what the caller knows about it.
//!
//! Minidumps and Apple's crash reports are read by the service ([`CrashFileKind`]).
//!
//! The formats differ in what an address means, which decides the line that is shown for it:
//!
//! | Format | Ids | Addresses |
//! |---|---|---|
//! | JSON of `/symbolicate` | in it | as they are |
//! | AddressSanitizer and the others | `(BuildId: …)`, from clang 15 on | of the calls, also in frame 0. In a program that is not position independent, the offset equals the address, and the base is unknown |
//! | Android tombstone | `(BuildId: …)` | of the calls |
//! | systemd-coredump, as text or from `journalctl -o json` | `with build-id …`, `build-id=…`, `COREDUMP_PACKAGE_JSON` | return addresses, except in frame 0 and after a signal handler |
//! | `backtrace_symbols` of glibc | none | return addresses, also in frame 0 |
//! | Rust, `RUST_BACKTRACE=full` | none | absolute return addresses |
//! | gdb, `bt` | none | absolute return addresses, except in frame 0 and after a signal handler |
//! | hs_err of the JVM | none | offsets of return addresses, except in frame 0 |
//! | symbolizer markup of LLVM | `module` elements | `bt`: return addresses, unless marked `pc`; `pc`: exact, unless marked `ra` |
//!
//! ```
//! use symdepot::api::report::{CrashReport, ReportFormat};
//!
//! let text = b"    #1 0x55650980e7d8  (/srv/app+0x27d8) (BuildId: 60a0285889bf05c4)\n";
//! let report = CrashReport::read(text)?;
//! assert_eq!(report.format, ReportFormat::Sanitizer);
//! assert_eq!(report.modules[0].base, Some(0x55650980c000));
//! # Ok::<(), symdepot::api::report::ReportError>(())
//! ```

mod android;
mod collector;
mod crash_file;
mod cursor;
mod gdb;
mod glibc;
pub mod hostile;
mod hs_err;
mod journal;
mod maps;
mod markup;
mod model;
mod render;
mod rust;
mod sanitizer;
mod systemd;

pub use crash_file::CrashFileKind;
pub use model::{
    CrashReport, GivenModule, Lack, Place, ReportError, ReportFormat, ReportFrame, ReportModule,
    ReportStack,
};
pub use render::FrameName;

use super::symbolicator::parse_request;
use collector::Collector;

/// The maximum size of a report, in bytes. The caller enforces it.
pub const REPORT_BYTES: usize = 32 * 1024 * 1024;

/// A reader of one format.
type Reader = fn(&[u8], &mut Collector);

const READERS: [(ReportFormat, Reader); 9] = [
    (ReportFormat::Sanitizer, sanitizer::read),
    (ReportFormat::Android, android::read),
    (ReportFormat::Systemd, systemd::read),
    (ReportFormat::Journal, journal::read),
    (ReportFormat::Gdb, gdb::read),
    (ReportFormat::HsErr, hs_err::read),
    (ReportFormat::Markup, markup::read),
    (ReportFormat::Rust, rust::read),
    (ReportFormat::Glibc, glibc::read),
];

impl CrashReport {
    /// Reads a report of any format: the one in which the most frames are found. The report may be
    /// in the middle of other text, and each of its lines may follow a prefix of a log.
    ///
    /// The caller must limit the number of bytes to [`REPORT_BYTES`].
    ///
    /// # Errors
    ///
    /// [`ReportError::Unknown`] if no frame is found in any format,
    /// [`ReportError::WithoutMessage`] if the message of a journal entry was left out,
    /// [`ReportError::Request`] for a JSON object that is not a valid request, and
    /// [`ReportError::TooLarge`] if the report exceeds the [limits](super::limits) of a request.
    pub fn read(bytes: &[u8]) -> Result<Self, ReportError> {
        let request = is_json_object(bytes).then(|| parse_request(bytes));
        // Any JSON object is a valid request, but one without stack traces reports nothing.
        if let Some(Ok(request)) = &request
            && !request.stacktraces.is_empty()
        {
            return Ok(Self::of_request(request.clone()));
        }
        let mut best: Option<(ReportFormat, Collector)> = None;
        for (format, read) in READERS {
            let mut collected = Collector::default();
            read(bytes, &mut collected);
            let most = best.as_ref().map_or(0, |(_, best)| best.count());
            if collected.count() > most {
                best = Some((format, collected));
            }
        }
        match (best, request) {
            (Some((format, collected)), _) => collected.finish(format),
            // The entries of a journal are JSON objects as well.
            (None, Some(Err(error))) if !journal::is_entry(bytes) => {
                Err(ReportError::Request(error))
            }
            (None, _) if journal::lacks_messages(bytes) => Err(ReportError::WithoutMessage),
            (None, _) => Err(ReportError::Unknown),
        }
    }
}

/// Returns whether a text begins like a JSON object. Markup begins with several braces.
fn is_json_object(bytes: &[u8]) -> bool {
    let mut visible = bytes.iter().filter(|byte| !byte.is_ascii_whitespace());
    visible.next() == Some(&b'{') && visible.next() == Some(&b'"')
}

#[cfg(test)]
mod tests;
