//! `symbolicate`: a report of any format becomes frames with names.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use symdepot::api::limits::BODY_BYTES;
use symdepot::api::report::{CrashFileKind, CrashReport, REPORT_BYTES};
use symdepot::api::symbolicator::Completed;

use crate::arguments::{Format, SymbolicateArguments};
use crate::body::Body;
use crate::client::Client;
use crate::crash_file::FILE_BYTES;
use crate::error::CliError;
use crate::settings::Settings;
use crate::view::{self, View};
use crate::waiting::Waiting;
use crate::{Exit, Output, crash_file, files, fix, given};

/// A crash report as it is sent.
enum Input {
    /// The service reads it.
    File(CrashFileKind, Bytes),
    Report(CrashReport),
}

pub(crate) async fn run(
    settings: &Settings,
    arguments: &SymbolicateArguments,
) -> Result<Output, CliError> {
    let bytes = files::read(&arguments.file, "crash files", FILE_BYTES as u64)?;
    let bytes = Bytes::from(bytes);
    let input = match CrashFileKind::of(&bytes) {
        Some(kind) => Input::File(kind, bytes.clone()),
        None => Input::Report(complete(arguments, &bytes)?),
    };
    let client = Client::new(settings).await?;
    let wait = Duration::from_secs(arguments.wait);
    let ask = async || {
        let waiting = Waiting::new(&client, settings, wait);
        symbolicate(&client, &waiting, &arguments.file, &input).await
    };
    let mut symbolicated = ask().await?;
    if let (Some(folder), Some((_, completed))) = (&arguments.fix, &symbolicated)
        && fix::supply(&client, settings, folder, completed, wait).await?
    {
        symbolicated = ask().await?;
    }
    Ok(match symbolicated {
        Some((report, completed)) => shown(arguments.format(), &bytes, &report, &completed),
        None => Output::ended("", Exit::Pending),
    })
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
        Input::File(kind, bytes) => {
            crash_file::symbolicate(client, waiting, path, (*kind, bytes.clone())).await
        }
        Input::Report(report) => {
            let completed = waiting.completed("/symbolicate", body(report)?).await?;
            Ok(completed.map(|completed| (report.clone(), completed)))
        }
    }
}

/// Reads a report that is a text, and completes it from the arguments and from this machine.
fn complete(arguments: &SymbolicateArguments, bytes: &[u8]) -> Result<CrashReport, CliError> {
    let mut report = read(&arguments.file, bytes)?;
    for module in &arguments.modules {
        if !report.complete(&module.0) {
            let name = &module.0.name;
            anstream::eprintln!("--module {name}: the report has this already, or no such module");
        }
    }
    if !arguments.no_local {
        for note in given::complete_from_this_machine(&mut report) {
            anstream::eprintln!("{}", view::visible(&note));
        }
    }
    Ok(report)
}

/// Reads a report that is a text.
fn read(path: &Path, bytes: &[u8]) -> Result<CrashReport, CliError> {
    if bytes.len() > REPORT_BYTES {
        return Err(CliError::TooLarge {
            path: path.to_owned(),
            what: "reports",
            limit: REPORT_BYTES as u64,
        });
    }
    if bytes.starts_with(b"\x7fELF") {
        return Err(CliError::OtherReport {
            path: path.to_owned(),
            what: "an ELF file",
            instead: "of a core dump, symbolicate what `coredumpctl info` or `gdb -batch -ex bt -ex 'info proc mappings'` prints; of a debug file, use `symdepot check`",
        });
    }
    CrashReport::read(bytes).map_err(|error| CliError::Report {
        path: path.to_owned(),
        error,
    })
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
    let text = match format {
        Format::Human => view.human().into(),
        Format::Markdown => view.markdown().into(),
        Format::Json => view.json().into(),
        // A crash file that is no text has no frames to replace.
        Format::Text if CrashFileKind::of(bytes).is_some() && !report.has_places() => {
            anstream::adapter::strip_str(&view.human())
                .to_string()
                .into()
        }
        Format::Text => {
            for lack in &lacks {
                anstream::eprintln!("{}", view::visible(lack));
            }
            report.text(bytes, completed)
        }
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
