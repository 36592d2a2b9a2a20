//! Crash reports as text: what sanitizers, debuggers, loggers and runtimes print.
//!
//! [`CrashReport::read`] recognises the format of a report and finds its modules and frames. It
//! becomes a [`Request`](super::symbolicator::Request), and the response to it becomes the same
//! text with names ([`CrashReport::text`]). Everything else in the text stays byte for byte.
//!
//! What is wrapped around the text, JSON of log collectors and escape sequences of terminals, is
//! taken off to read it. Names that a tool found when it wrote the text stay: such frames are in
//! the report, and are not looked up ([`ReportFrame::is_settled`]).
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
//! | AddressSanitizer and the others | `(BuildId: …)`, from clang 14 on | of the calls, also in frame 0. In a program that is not position independent, the offset equals the address, and the base is unknown. ThreadSanitizer prints the offset alone, so that only other lines tell such a program |
//! | Android tombstone | `(BuildId: …)` | of the calls |
//! | systemd-coredump, as text or from `journalctl -o json` | `with build-id …`, `build-id=…`, `COREDUMP_PACKAGE_JSON` | return addresses, except in frame 0 and after a signal handler |
//! | `backtrace_symbols` of glibc, `std::stacktrace` | none | return addresses, also in frame 0; of `std::stacktrace`, those of the calls |
//! | glog and Abseil | none | absolute return addresses, except that behind `PC:` and after a signal handler |
//! | Rust, `RUST_BACKTRACE=full` | none | absolute return addresses |
//! | gdb, `bt` | none | absolute return addresses, except in frame 0 and after a signal handler |
//! | hs_err of the JVM | none | offsets of return addresses, except in frame 0 |
//! | stack dumps of LLVM and Chromium | none | return addresses, also in frame 0 |
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
mod glog;
pub mod hostile;
mod hs_err;
mod journal;
mod lacks;
mod llvm;
mod maps;
mod markup;
mod model;
mod plain;
mod printed;
mod render;
mod repeated;
mod rust;
mod sanitizer;
mod systemd;

pub use crash_file::CrashFileKind;
pub use lacks::Lack;
pub use model::{
    CrashReport, GivenModule, OffsetsFrom, Place, ReportError, ReportFormat, ReportFrame,
    ReportModule, ReportStack,
};
pub use render::FrameName;

use std::cmp::Reverse;
use std::ops::Range;

use super::symbolicator::parse_request;
use collector::Collector;
use cursor::without_mark;
use plain::PlainText;

/// The maximum size of a report, in bytes. The caller enforces it.
pub const REPORT_BYTES: usize = 32 * 1024 * 1024;

/// A reader of one format.
type Reader = fn(&[u8], &mut Collector);

const READERS: [(ReportFormat, Reader); 10] = [
    (ReportFormat::Sanitizer, sanitizer::read),
    (ReportFormat::Android, android::read),
    (ReportFormat::Systemd, systemd::read),
    (ReportFormat::Gdb, gdb::read),
    (ReportFormat::HsErr, hs_err::read),
    (ReportFormat::Markup, markup::read),
    (ReportFormat::Llvm, llvm::read),
    (ReportFormat::Rust, rust::read),
    (ReportFormat::Glibc, glibc::read),
    (ReportFormat::Glog, glog::read),
];

/// The least number of frames of another format in a text that are worth a note.
const LEAST_FRAMES: usize = 2;

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
        let texts = PlainText::unwrapped(bytes);
        let mut found = read_all(bytes, &texts);
        let indexed = found.iter().enumerate();
        let best = indexed.max_by_key(|(index, (_, it))| (it.count(), Reverse(*index)));
        let best = best.map(|(index, _)| index);
        match (best, request) {
            (Some(best), _) => {
                let (format, mut collected) = found.remove(best);
                let others = others(collected.lines(), found);
                maps::complete(innermost(bytes, &texts), &mut collected);
                let report = collected.finish(format)?;
                Ok(Self { others, ..report })
            }
            // The lines of a log, and the entries of a journal, are JSON objects as well.
            (None, Some(Err(error))) if texts.is_empty() && !journal::is_entry(bytes) => {
                Err(ReportError::Request(error))
            }
            (None, _) if journal::lacks_messages(bytes) => Err(ReportError::WithoutMessage),
            (None, _) => Err(ReportError::Unknown),
        }
    }

    /// Returns the text of a report in UTF-8. Texts in UTF-16 with a byte order mark, as PowerShell
    /// writes them, are decoded; others are returned as they are.
    pub fn in_utf_8(bytes: Vec<u8>) -> Vec<u8> {
        plain::of_utf_16(&bytes).unwrap_or(bytes)
    }
}

/// Returns what is found in each format in which there are frames. `texts` is what is wrapped in
/// the report. Entries of the journal come first: they have the same frames as their messages, and
/// ids.
fn read_all(bytes: &[u8], texts: &[PlainText]) -> Vec<(ReportFormat, Collector)> {
    let mut of_journal = Collector::default();
    journal::read(bytes, &mut of_journal);
    let mut found = vec![(ReportFormat::Journal, of_journal)];
    for (format, read) in READERS {
        let mut collected = Collector::default();
        read(innermost(bytes, texts), &mut collected);
        for text in texts.iter().rev() {
            collected.relocate(0, text);
        }
        found.push((format, collected));
    }
    found.retain(|(_, collected)| collected.count() > 0);
    found
}

/// Returns the text of a report without what is wrapped around it.
fn innermost<'a>(bytes: &'a [u8], texts: &'a [PlainText]) -> &'a [u8] {
    texts.last().map_or(bytes, |text| text.bytes.as_slice())
}

/// Returns the formats of frames in other lines than these, with the numbers of their frames.
fn others(
    lines: &[Range<usize>],
    mut found: Vec<(ReportFormat, Collector)>,
) -> Vec<(ReportFormat, usize)> {
    found.sort_by_key(|(_, collected)| Reverse(collected.count()));
    let mut taken = lines.to_vec();
    let mut others = Vec::new();
    for (format, collected) in found {
        taken.sort_by_key(|line| line.start);
        let is_free = |line: &&Range<usize>| {
            let before = taken.partition_point(|it| it.start < line.end);
            let last = before.checked_sub(1).and_then(|last| taken.get(last));
            last.is_none_or(|last| last.end <= line.start)
        };
        let count = collected.lines().iter().filter(is_free).count();
        if count >= LEAST_FRAMES {
            others.push((format, count));
            taken.extend_from_slice(collected.lines());
        }
    }
    others
}

/// Returns whether a text begins like a JSON object. Markup begins with several braces.
fn is_json_object(bytes: &[u8]) -> bool {
    let bytes = without_mark(bytes).iter();
    let mut visible = bytes.filter(|byte| !byte.is_ascii_whitespace());
    visible.next() == Some(&b'{') && visible.next() == Some(&b'"')
}

#[cfg(test)]
mod tests;
