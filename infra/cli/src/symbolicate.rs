//! `symbolicate`: a report of any format becomes frames with names.

use std::path::Path;
use std::time::Duration;

use symdepot::api::crash::attachment::ATTACHMENT_BYTES;
use symdepot::api::limits::BODY_BYTES;
use symdepot::api::report::{
    CrashFileKind, CrashReport, REPORT_BYTES, ReportError, ReportFormat, ReportModule,
};
use symdepot::api::symbolicator::Completed;

use crate::arguments::{Format, SymbolicateArguments};
use crate::body::Body;
use crate::client::Client;
use crate::crash_file::CrashFile;
use crate::error::CliError;
use crate::files::Opened;
use crate::settings::Settings;
use crate::view::{self, View};
use crate::visible::visible;
use crate::waiting::Waiting;
use crate::{Exit, Output, crash_file, files, fix, given, unsupported};

/// The bytes from which the formats are recognised that are not held in memory.
const HEAD_BYTES: u64 = 4;

/// A crash report as it is sent.
enum Input {
    /// The service reads it.
    File(CrashFile),
    Report(Box<CrashReport>),
}

pub(crate) async fn run(
    settings: &Settings,
    arguments: &SymbolicateArguments,
) -> Result<Output, CliError> {
    let (input, text) = read(arguments)?;
    let client = Client::new(settings).await?;
    let wait = Duration::from_secs(arguments.wait);
    let ask = async || {
        let waiting = Waiting::new(&client, settings, wait);
        symbolicate(&client, &waiting, &arguments.file, &input).await
    };
    let mut symbolicated = ask().await?;
    if let (Some(folder), Some(answered)) = (&arguments.fix, &symbolicated)
        && fix::supply(&client, settings, folder, answered, wait).await?
    {
        symbolicated = ask().await?;
    }
    let format = arguments.format();
    let Some((report, completed)) = symbolicated else {
        return Ok(match format {
            Format::Json => Output::ended(view::pending_json(), Exit::Pending),
            Format::Human | Format::Text | Format::Markdown => Output::ended("", Exit::Pending),
        });
    };
    let output = shown(format, &text, &report, &completed);
    let may_fix = arguments.fix.is_none() && fix::could_help(&report, &completed);
    if may_fix && format != Format::Json {
        anstream::eprintln!(
            "`--fix FOLDER` uploads the files of missing modules from a folder, and asks again"
        );
    }
    Ok(output)
}

/// Reads a crash report, and returns it with its text. A minidump is read when it is sent, because
/// it may be larger than the memory; it has no text.
fn read(arguments: &SymbolicateArguments) -> Result<(Input, Vec<u8>), CliError> {
    let path = &arguments.file;
    let unreadable = |error| CliError::File {
        path: path.clone(),
        error,
    };
    let opened = files::open(path, "crash files", ATTACHMENT_BYTES)?;
    let head = opened.head(HEAD_BYTES).map_err(unreadable)?;
    if CrashFileKind::of(&head) == Some(CrashFileKind::Minidump) {
        note_useless_modules(arguments);
        return Ok((Input::File(CrashFile::Minidump(opened)), Vec::new()));
    }
    let bytes = read_text(path, &opened, &head)?;
    if CrashFileKind::of(&bytes).is_some() {
        note_useless_modules(arguments);
        return Ok((Input::File(CrashFile::apple(path, &bytes)?), bytes));
    }
    let text = CrashReport::in_utf_8(bytes);
    let report = complete(arguments, &text)?;
    for note in notes(&report) {
        anstream::eprintln!("{note}");
    }
    Ok((Input::Report(Box::new(report)), text))
}

/// Says that `--module` completes no file that the service reads itself.
fn note_useless_modules(arguments: &SymbolicateArguments) {
    if !arguments.modules.is_empty() {
        anstream::eprintln!(
            "--module has no effect: the service reads this file itself, with the modules in it"
        );
    }
}

/// Returns what is not looked up of a text, or may be looked up wrongly, for people.
fn notes(report: &CrashReport) -> Vec<String> {
    let other = |(other, frames): &(ReportFormat, usize)| {
        let other = other.name();
        format!(
            "the text also has {frames} frames of another format, which were not read ({other}): to read them, symbolicate that part of the text alone"
        )
    };
    let mut notes: Vec<String> = report.others.iter().map(other).collect();
    let uncertain = report.uncertain_programs();
    notes.extend(uncertain.into_iter().map(of_uncertain_program));
    if report.is_settled() {
        notes.push("all frames have their names already: there is nothing to look up".to_owned());
    }
    notes
}

/// Returns what to do if the offsets in a program are addresses, for people.
fn of_uncertain_program(program: &ReportModule) -> String {
    let name = visible(program.file_name());
    format!(
        "the report does not say whether {name} is position independent, and is read as if it was; if it is not (`readelf -hW` says EXEC), add --module {name}=BUILD-ID@ADDRESS with the address of its first LOAD segment, as `readelf -lW` prints it"
    )
}

/// Reads a report that is held in memory.
fn read_text(path: &Path, opened: &Opened, head: &[u8]) -> Result<Vec<u8>, CliError> {
    if let Some((what, instead)) = not_a_report(head) {
        return Err(CliError::OtherReport {
            path: path.to_owned(),
            what,
            instead,
        });
    }
    if opened.bytes > REPORT_BYTES as u64 {
        return Err(CliError::TooLarge {
            path: path.to_owned(),
            what: "reports: cut out the part with the report",
            limit: REPORT_BYTES as u64,
        });
    }
    let bytes = opened.head(REPORT_BYTES as u64);
    bytes.map_err(|error| CliError::File {
        path: path.to_owned(),
        error,
    })
}

/// What a file is that begins so, and what to do about it.
type OtherFile = (&'static [u8], &'static str, &'static str);

const COMPRESSED: [OtherFile; 4] = [
    (
        b"\x1f\x8b",
        "compressed with gzip",
        "decompress it first: `zcat FILE | symdepot symbolicate -`",
    ),
    (
        b"\x28\xb5\x2f\xfd",
        "compressed with zstd",
        "decompress it first: `zstdcat FILE | symdepot symbolicate -`",
    ),
    (
        b"\xfd7zX",
        "compressed with xz",
        "decompress it first: `xzcat FILE | symdepot symbolicate -`",
    ),
    (
        b"PK\x03\x04",
        "a ZIP archive",
        "extract the report first: `unzip -p FILE | symdepot symbolicate -`",
    ),
];

/// Returns what a file is that begins so, and what to do instead, if it is no report.
fn not_a_report(head: &[u8]) -> Option<(&'static str, &'static str)> {
    if head == b"\x7fELF" {
        return Some((
            "an ELF file",
            "of a core dump, symbolicate what `coredumpctl info` or `gdb -batch -ex bt -ex 'info proc mappings'` prints; of a debug file, use `symdepot check`",
        ));
    }
    // Every other byte of what is ASCII in UTF-16 is zero. With a byte order mark, it is read.
    match head {
        [1..=u8::MAX, 0, 1..=u8::MAX, 0] => {
            return Some((
                "a text in UTF-16 without a byte order mark",
                "convert it first: `iconv -f UTF-16LE -t UTF-8 FILE | symdepot symbolicate -`",
            ));
        }
        [0, 1..=u8::MAX, 0, 1..=u8::MAX] => {
            return Some((
                "a text in UTF-16 without a byte order mark",
                "convert it first: `iconv -f UTF-16BE -t UTF-8 FILE | symdepot symbolicate -`",
            ));
        }
        _ => {}
    }
    let compressed = COMPRESSED
        .iter()
        .find(|(magic, ..)| head.starts_with(magic));
    compressed.map(|(_, what, instead)| (*what, *instead))
}

/// Sends a report, and returns it with the response; `None` if the response is still pending after
/// the time to wait.
async fn symbolicate(
    client: &Client,
    waiting: &Waiting<'_>,
    path: &Path,
    input: &Input,
) -> Result<Option<(CrashReport, Completed)>, CliError> {
    match input {
        Input::File(file) => crash_file::symbolicate(client, waiting, path, file).await,
        Input::Report(report) => {
            let completed = waiting.completed("/symbolicate", body(report)?).await?;
            Ok(completed.map(|completed| (CrashReport::clone(report), completed)))
        }
    }
}

/// Reads a report that is a text, and completes it from the arguments and from this machine.
fn complete(arguments: &SymbolicateArguments, bytes: &[u8]) -> Result<CrashReport, CliError> {
    let report = CrashReport::read(bytes);
    let mut report = report.map_err(|error| unread(&arguments.file, bytes, error))?;
    for module in &arguments.modules {
        if !report.complete(&module.0) {
            let name = visible(&module.0.name);
            anstream::eprintln!("--module {name}: the report has this already, or no such module");
        }
    }
    if !arguments.no_local {
        for note in given::complete_from_this_machine(&mut report) {
            anstream::eprintln!("{}", visible(&note));
        }
    }
    Ok(report)
}

/// Returns the error for a text that is no report, which names its format if that is known.
fn unread(path: &Path, bytes: &[u8], error: ReportError) -> CliError {
    if bytes.is_empty() {
        return CliError::Unreadable {
            path: path.to_owned(),
            cause: "it is empty".to_owned(),
        };
    }
    let may_be_other = matches!(error, ReportError::Unknown | ReportError::Request(_));
    match may_be_other
        .then(|| unsupported::format_of(bytes))
        .flatten()
    {
        Some(found) => CliError::OtherReport {
            path: path.to_owned(),
            what: found.name,
            instead: found.instead,
        },
        None => CliError::Report {
            path: path.to_owned(),
            error,
        },
    }
}

/// Returns the body of the request for a report.
pub(crate) fn body(report: &CrashReport) -> Result<Body, CliError> {
    let mut request = report.request();
    request.options.apply_source_context = false;
    let body = serde_json::to_vec(&request).map_err(|error| CliError::Usage(error.to_string()))?;
    if body.len() > BODY_BYTES {
        let text = format!(
            "the request has {} bytes, more than {BODY_BYTES}: symbolicate a part of the report",
            body.len()
        );
        return Err(CliError::Usage(text));
    }
    Ok(Body::json(body))
}

/// Returns whether the report may be no text: the service reads it itself, or the messages of the
/// journal are numbers.
fn may_be_no_text(report: &CrashReport) -> bool {
    matches!(
        report.format,
        ReportFormat::Minidump | ReportFormat::Apple | ReportFormat::Journal
    )
}

/// Prints a symbolicated report.
pub(crate) fn shown(
    format: Format,
    bytes: &[u8],
    report: &CrashReport,
    completed: &Completed,
) -> Output {
    let lacks: Vec<String> = report.lacks().iter().map(ToString::to_string).collect();
    let names = report.names(completed);
    let view = View::of(report, &names, completed, &lacks);
    let is_whole = view.nameless() == 0 && lacks.is_empty();
    // What is no text has no frames to replace.
    let is_replaced = format == Format::Text && (!may_be_no_text(report) || report.has_places());
    // Nothing else says what lacks in the text of a report, and a table ends up elsewhere.
    if is_replaced || format == Format::Markdown {
        let nameless = view.nameless_line();
        for line in nameless.iter().chain(&lacks) {
            anstream::eprintln!("{}", visible(line));
        }
    }
    let text = match format {
        Format::Human => view.human().into(),
        Format::Markdown => view.markdown().into(),
        Format::Json => view.json().into(),
        Format::Text if is_replaced => report.text(bytes, completed),
        Format::Text => anstream::adapter::strip_str(&view.human())
            .to_string()
            .into(),
    };
    Output {
        text,
        exit: if is_whole {
            Exit::Done
        } else {
            Exit::Incomplete
        },
        is_styled: format == Format::Human,
    }
}
