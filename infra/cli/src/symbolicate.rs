//! `symbolicate`: a report of any format becomes frames with names.

use std::path::Path;
use std::time::Duration;

use indicatif::ProgressBar;
use reqwest::Method;
use symdepot::api::limits::BODY_BYTES;
use symdepot::api::report::{CrashReport, REPORT_BYTES};
use symdepot::api::symbolicator::{Completed, Request, Response};
use tokio::time::Instant;

use crate::arguments::{Format, SymbolicateArguments};
use crate::client::Client;
use crate::error::CliError;
use crate::settings::Settings;
use crate::view::{self, View};
use crate::{Exit, Output, files, given};

/// The longest time for which one request waits; the service waits no longer.
const ROUND: Duration = Duration::from_secs(25);

pub(crate) async fn run(
    settings: &Settings,
    arguments: &SymbolicateArguments,
) -> Result<Output, CliError> {
    let path = &arguments.file;
    let bytes = files::read(path, "reports", REPORT_BYTES as u64)?;
    refuse_other_reports(path, &bytes)?;
    let report = CrashReport::read(&bytes);
    let mut report = report.map_err(|error| CliError::Report {
        path: path.clone(),
        error,
    })?;
    for module in &arguments.modules {
        if !report.complete(&module.0) {
            let name = &module.0.name;
            anstream::eprintln!("--module {name}: the report has this already, or no such module");
        }
    }
    let mut notes = Vec::new();
    if !arguments.no_local {
        notes = given::complete_from_this_machine(&mut report);
    }
    for note in &notes {
        anstream::eprintln!("{}", view::visible(note));
    }
    let client = Client::new(settings).await?;
    let wait = Duration::from_secs(arguments.wait);
    let Some(completed) = completed(&client, settings, report.request(), wait).await? else {
        return Ok(Output::ended("", Exit::Pending));
    };
    let lacks: Vec<String> = report.lacks().iter().map(ToString::to_string).collect();
    let names = report.names(&completed);
    let view = View::of(&report, &names, &completed, &lacks);
    let is_whole = view.nameless() == 0 && lacks.is_empty();
    let format = arguments.format();
    let text = match format {
        Format::Human => view.human().into(),
        Format::Markdown => view.markdown().into(),
        Format::Json => view.json().into(),
        Format::Text => {
            for lack in &lacks {
                anstream::eprintln!("{}", view::visible(lack));
            }
            report.text(&bytes, &completed)
        }
    };
    Ok(Output {
        text,
        exit: if is_whole {
            Exit::Done
        } else {
            Exit::Incomplete
        },
        is_styled: format == Format::Human,
    })
}

/// Refuses reports that have a route of their own in the service.
fn refuse_other_reports(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    let other = |what, instead| {
        Err(CliError::OtherReport {
            path: path.to_owned(),
            what,
            instead,
        })
    };
    if bytes.starts_with(b"MDMP") {
        return other(
            "a minidump",
            "print its stack traces with minidump-stackwalk --json, or send it with curl if the service has a route for minidumps",
        );
    }
    if bytes.starts_with(b"\x7fELF") {
        return other(
            "an ELF file",
            "of a core dump, symbolicate what `coredumpctl info` or `gdb -batch -ex bt -ex 'info proc mappings'` prints; of a debug file, use `symdepot check`",
        );
    }
    Ok(())
}

/// Returns the response to a request; `None` if it is still pending after the time to wait.
async fn completed(
    client: &Client,
    settings: &Settings,
    mut request: Request,
    wait: Duration,
) -> Result<Option<Completed>, CliError> {
    request.options.apply_source_context = false;
    let body = serde_json::to_vec(&request).map_err(|error| CliError::Usage(error.to_string()))?;
    if body.len() > BODY_BYTES {
        let text = format!(
            "the request has {} bytes, more than {BODY_BYTES}: symbolicate a part of the report",
            body.len()
        );
        return Err(CliError::Usage(text));
    }
    let scope = settings
        .scope
        .as_ref()
        .map(|scope| scope.as_str().to_owned());
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(100));
    bar.set_message("symbolicating");
    let end = Instant::now() + wait;
    let timeout = round(end);
    let mut query = vec![("timeout", timeout.as_str())];
    query.extend(scope.as_deref().map(|scope| ("scope", scope)));
    let mut answer = client
        .json(Method::POST, "/symbolicate", &query, body)
        .await?;
    loop {
        match answer {
            Response::Completed(completed) => {
                bar.finish_and_clear();
                return Ok(Some(completed));
            }
            Response::Pending { request_id, .. } => {
                if Instant::now() >= end {
                    bar.finish_and_clear();
                    anstream::eprintln!(
                        "the service is still preparing modules: run the same command again, or wait longer with --wait"
                    );
                    return Ok(None);
                }
                bar.set_message("the service prepares modules");
                let path = format!("/requests/{request_id}");
                let timeout = round(end);
                let query = [("timeout", timeout.as_str())];
                answer = client.json(Method::GET, &path, &query, Vec::new()).await?;
            }
            Response::Failed { message } => return Err(failed(settings, message)),
            Response::Timeout => return Err(failed(settings, "it took too long".to_owned())),
            Response::InternalError => {
                return Err(failed(settings, "an internal error".to_owned()));
            }
        }
    }
}

/// Returns the seconds for which the next request waits.
fn round(end: Instant) -> String {
    let left = end.saturating_duration_since(Instant::now());
    left.min(ROUND).as_secs().to_string()
}

fn failed(settings: &Settings, cause: String) -> CliError {
    CliError::Answer {
        url: settings.address().to_owned(),
        cause,
    }
}
