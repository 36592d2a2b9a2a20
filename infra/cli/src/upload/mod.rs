//! `upload`: sends the debug files that the service does not have.
//!
//! Files are inspected as the service does ([`mod@choose`]), compressed ([`pack`]), and sent four
//! at a time ([`send`]). What is there already is not sent; of a large file that was interrupted,
//! only the parts that are lacking.

mod choose;
mod pack;
mod send;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use indicatif::{BinaryBytes, ProgressBar};
use reqwest::Method;
use serde_json::{Value, json};
use symdepot::api::uploads::{
    FILES, FileToUpload, RequestedFile, RequestedFileState, Transfer, UploadsAnswer, UploadsRequest,
};
use symdepot::domain::Scope;

use self::choose::{Chosen, choose};
use self::pack::Packed;
use self::send::send_all;
use crate::arguments::UploadArguments;
use crate::client::Client;
use crate::error::CliError;
use crate::files::Other;
use crate::settings::Settings;
use crate::store::Sender;
use crate::{Exit, Output, files, progress, view};

/// The number of files that are compressed and asked about together.
const GROUP: usize = 16;

/// The pause between two questions for the states of files.
const PAUSE: Duration = Duration::from_millis(500);

/// What became of a file.
struct Outcome {
    file: Chosen,
    key: String,
    fate: Fate,
}

enum Fate {
    /// It would be sent.
    Wanted,
    /// It was sent, as so many bytes.
    Sent(u64, FinalState),
    There(FinalState),
}

/// What the service says about a file that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FinalState {
    Pending,
    Applied,
    Ignored(String),
}

/// Uploads to one service.
struct Uploader<'a> {
    client: &'a Client,
    scope: Option<Scope>,
    sender: Sender,
}

pub(crate) async fn run(
    settings: &Settings,
    arguments: &UploadArguments,
) -> Result<Output, CliError> {
    let found = files::search(&arguments.paths)?;
    let (chosen, skipped) = choose_all(&found.files);
    let client = Client::new(settings).await?;
    let uploader = Uploader::new(&client, settings)?;
    let outcomes = match arguments.dry_run {
        true => uploader.look_up(chosen).await?,
        false => uploader.upload(chosen, wait_of(arguments)).await?,
    };
    let report = Report {
        outcomes,
        skipped,
        others: found.others,
        named: arguments.paths.clone(),
        lists_all: arguments.verbose || arguments.dry_run,
    };
    let exit = report.exit(arguments.wait);
    Ok(match arguments.json {
        true => Output::ended(report.json(), exit),
        false => Output::ended(report.text(), exit),
    })
}

/// Uploads these files, and waits until they are applied or ignored, at most for this time. Returns
/// what became of them, for people.
pub(crate) async fn upload_files(
    client: &Client,
    settings: &Settings,
    paths: &[PathBuf],
    wait: Duration,
) -> Result<String, CliError> {
    let (chosen, skipped) = choose_all(paths);
    let uploader = Uploader::new(client, settings)?;
    let report = Report {
        outcomes: uploader.upload(chosen, Some(wait)).await?,
        skipped,
        others: Vec::new(),
        named: Vec::new(),
        lists_all: true,
    };
    Ok(report.text())
}

/// Returns the files that a request could use, and the others, with the reason.
fn choose_all(paths: &[PathBuf]) -> (Vec<Chosen>, Vec<(PathBuf, String)>) {
    let bar = progress::inspecting(paths.len());
    let (mut chosen, mut skipped) = (Vec::new(), Vec::new());
    for path in paths {
        match choose(path) {
            Ok(file) => chosen.push(file),
            Err(reason) => skipped.push((path.clone(), reason)),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    (chosen, skipped)
}

fn wait_of(arguments: &UploadArguments) -> Option<Duration> {
    arguments
        .wait
        .then(|| Duration::from_secs(arguments.wait_seconds))
}

impl<'a> Uploader<'a> {
    fn new(client: &'a Client, settings: &Settings) -> Result<Self, CliError> {
        Ok(Self {
            client,
            scope: settings.scope.clone(),
            sender: Sender::new()?,
        })
    }

    /// Asks the service for the states of files, in the order of the request.
    async fn ask(&self, files: Vec<FileToUpload>) -> Result<Vec<RequestedFile>, CliError> {
        let mut answered = Vec::new();
        for batch in files.chunks(FILES) {
            let request = UploadsRequest {
                scope: self.scope.clone(),
                files: batch.to_vec(),
            };
            let body =
                serde_json::to_vec(&request).map_err(|error| CliError::Usage(error.to_string()))?;
            let answer = self
                .client
                .json::<UploadsAnswer>(Method::POST, "/uploads", &[], body);
            answered.extend(answer.await?.files);
        }
        Ok(answered)
    }

    /// Returns the state of each file, and sends nothing.
    async fn look_up(&self, chosen: Vec<Chosen>) -> Result<Vec<Outcome>, CliError> {
        let files = chosen.iter().map(Chosen::to_look_up).collect();
        let answered = self.ask(files).await?;
        let outcomes = chosen.into_iter().zip(answered).map(|(file, answered)| {
            let RequestedFile { key, state } = answered;
            let fate = final_state(state).map_or(Fate::Wanted, Fate::There);
            Outcome { file, key, fate }
        });
        Ok(outcomes.collect())
    }

    /// Sends the files that the service does not have. Waits until they are applied or ignored, at
    /// most for this time.
    async fn upload(
        &self,
        chosen: Vec<Chosen>,
        wait: Option<Duration>,
    ) -> Result<Vec<Outcome>, CliError> {
        let mut outcomes = self.look_up(chosen).await?;
        let wanted = outcomes.iter_mut();
        let mut wanted: Vec<&mut Outcome> = wanted
            .filter(|outcome| matches!(outcome.fate, Fate::Wanted))
            .collect();
        let bar = ProgressBar::new(0).with_style(progress::bytes_style());
        for group in wanted.chunks_mut(GROUP) {
            self.send_group(group, &bar).await?;
        }
        bar.finish_and_clear();
        if let Some(wait) = wait {
            self.wait_for(&mut outcomes, wait).await?;
        }
        Ok(outcomes)
    }

    /// Compresses and sends some files.
    async fn send_group(
        &self,
        group: &mut [&mut Outcome],
        bar: &ProgressBar,
    ) -> Result<(), CliError> {
        let paths = group.iter().map(|outcome| outcome.file.path.clone());
        let packed = pack::all(paths.collect()).await?;
        let describe = |packed: &[Packed], group: &[&mut Outcome]| -> Vec<FileToUpload> {
            let files = group.iter().zip(packed);
            let files = files.map(|(outcome, packed)| FileToUpload {
                size: Some(packed.bytes),
                parts: packed.parts.clone(),
                ..outcome.file.to_look_up()
            });
            files.collect()
        };
        let mut answered = self.ask(describe(&packed, group)).await?;
        let transfers = answered.iter().map(|file| file.state.transfer());
        let sending = send_all(&self.sender, packed.iter().zip(transfers), bar);
        let mut was_sent = sending.await?;
        // Parts are joined when the service is asked again, which may first want further ones. A
        // file whose event has not arrived yet looks like one that was not sent.
        loop {
            answered = self.ask(describe(&packed, group)).await?;
            let parts = answered.iter().map(|file| {
                let transfer = file.state.transfer();
                transfer.filter(|transfer| matches!(transfer, Transfer::Parts { .. }))
            });
            let sent = send_all(&self.sender, packed.iter().zip(parts), bar).await?;
            if !sent.contains(&true) {
                break;
            }
            for (was_sent, sent) in was_sent.iter_mut().zip(sent) {
                *was_sent |= sent;
            }
        }
        for (at, (packed, file)) in packed.iter().zip(answered).enumerate() {
            let state = final_state(file.state).unwrap_or(FinalState::Pending);
            group[at].fate = match was_sent[at] {
                true => Fate::Sent(packed.bytes, state),
                false => Fate::There(state),
            };
        }
        Ok(())
    }

    async fn wait_for(&self, outcomes: &mut [Outcome], wait: Duration) -> Result<(), CliError> {
        let began = Instant::now();
        loop {
            let pending = outcomes.iter_mut();
            let mut pending: Vec<&mut Outcome> =
                pending.filter(|outcome| outcome.is_pending()).collect();
            if pending.is_empty() || began.elapsed() > wait {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
            let files = pending.iter().map(|outcome| outcome.file.to_look_up());
            let answered = self.ask(files.collect()).await?;
            for (outcome, answered) in pending.iter_mut().zip(answered) {
                if let Some(state) = final_state(answered.state) {
                    outcome.set_state(state);
                }
            }
        }
    }
}

/// Returns the state of a file that the service has.
fn final_state(state: RequestedFileState) -> Option<FinalState> {
    match state {
        RequestedFileState::Absent | RequestedFileState::Upload(_) => None,
        RequestedFileState::Pending => Some(FinalState::Pending),
        RequestedFileState::Applied => Some(FinalState::Applied),
        RequestedFileState::Ignored { reason } => Some(FinalState::Ignored(reason)),
    }
}

impl Outcome {
    fn state(&self) -> Option<&FinalState> {
        match &self.fate {
            Fate::Wanted => None,
            Fate::Sent(_, state) | Fate::There(state) => Some(state),
        }
    }

    fn set_state(&mut self, new: FinalState) {
        match &mut self.fate {
            Fate::Wanted => {}
            Fate::Sent(_, state) | Fate::There(state) => *state = new,
        }
    }

    fn is_pending(&self) -> bool {
        self.state() == Some(&FinalState::Pending)
    }

    /// Returns what became of the file, as a line.
    fn line(&self) -> String {
        let path = view::visible(&self.file.path.display().to_string());
        let mut line = format!("{:10} {path}", self.verb());
        let whole = BinaryBytes(self.file.bytes);
        match self.fate {
            Fate::Wanted => {
                let _ = write!(line, "  {whole}");
            }
            Fate::Sent(bytes, _) => {
                let _ = write!(line, "  {whole}, sent as {}", BinaryBytes(bytes));
            }
            Fate::There(_) => {}
        }
        match self.state() {
            Some(FinalState::Ignored(reason)) => {
                let _ = write!(line, ": {}", view::visible(reason));
            }
            Some(FinalState::Pending) => line.push_str("  is being processed"),
            Some(FinalState::Applied) => line.push_str("  in use"),
            None => {}
        }
        let _ = writeln!(line, "  {}", view::visible(&self.key));
        line
    }

    /// Returns what became of the file, in one word.
    fn verb(&self) -> &'static str {
        match (&self.fate, self.state()) {
            (_, Some(FinalState::Ignored(_))) => "ignored",
            (Fate::Wanted, _) => "would send",
            (Fate::Sent(..), _) => "sent",
            (Fate::There(_), _) => "there",
        }
    }
}

/// What an upload did.
struct Report {
    outcomes: Vec<Outcome>,
    /// Files that no request could use, with the reason.
    skipped: Vec<(PathBuf, String)>,
    /// What else is in folders.
    others: Vec<Other>,
    /// The paths that the command was given. Those of files are listed also if they were skipped.
    named: Vec<PathBuf>,
    /// Whether to list each file that was not sent.
    lists_all: bool,
}

impl Report {
    fn exit(&self, waited: bool) -> Exit {
        let is_ignored = |outcome: &Outcome| outcome.verb() == "ignored";
        if self.outcomes.iter().any(is_ignored)
            || !self.skipped.is_empty()
            || self.outcomes.is_empty()
        {
            Exit::Incomplete
        } else if waited && self.outcomes.iter().any(Outcome::is_pending) {
            Exit::Pending
        } else {
            Exit::Done
        }
    }

    fn text(&self) -> String {
        let mut text: String = self.outcomes.iter().map(Outcome::line).collect();
        let (listed, hidden): (Vec<_>, Vec<_>) = self
            .skipped
            .iter()
            .partition(|(path, _)| self.lists_all || self.named.contains(path));
        for (path, reason) in listed {
            let path = view::visible(&path.display().to_string());
            let _ = writeln!(text, "{:10} {path}: {}", "skipped", view::visible(reason));
        }
        for Other { path, reason } in self.others.iter().filter(|_| self.lists_all) {
            let path = view::visible(&path.display().to_string());
            let _ = writeln!(text, "{:10} {path}: {reason}", "passed");
        }
        text.push_str(&self.summary());
        if !hidden.is_empty() {
            text.push_str("--verbose lists the skipped files with the reasons\n");
        }
        text
    }

    /// Returns the numbers of files, as a line.
    fn summary(&self) -> String {
        let count = |verb: &str| {
            let outcomes = self.outcomes.iter();
            outcomes.filter(|outcome| outcome.verb() == verb).count()
        };
        let sent = self.outcomes.iter().map(|outcome| match outcome.fate {
            Fate::Sent(bytes, _) => bytes,
            Fate::Wanted | Fate::There(_) => 0,
        });
        let wanted = match count("would send") {
            0 => String::new(),
            wanted => format!("would send {wanted}, "),
        };
        format!(
            "{wanted}sent {} ({}), there {}, ignored {}, skipped {}, {} other files passed over\n",
            count("sent"),
            BinaryBytes(sent.sum()),
            count("there"),
            count("ignored"),
            self.skipped.len(),
            self.others.len()
        )
    }

    fn json(&self) -> String {
        let file = |outcome: &Outcome| -> Value {
            let (state, reason) = match outcome.state() {
                None => ("absent", None),
                Some(FinalState::Pending) => ("pending", None),
                Some(FinalState::Applied) => ("applied", None),
                Some(FinalState::Ignored(reason)) => ("ignored", Some(reason)),
            };
            let sent_bytes = match outcome.fate {
                Fate::Sent(bytes, _) => Some(bytes),
                Fate::Wanted | Fate::There(_) => None,
            };
            json!({
                "path": outcome.file.path, "key": outcome.key, "ids": outcome.file.ids,
                "bytes": outcome.file.bytes, "sent_bytes": sent_bytes, "state": state, "reason": reason,
            })
        };
        let skipped = |(path, reason): &(PathBuf, String)| json!({"path": path, "reason": reason});
        let other = |Other { path, reason }: &Other| json!({"path": path, "reason": reason});
        let others = self.others.iter().filter(|_| self.lists_all);
        let others: Vec<Value> = others.map(other).collect();
        view::json(&json!({
            "schema": view::SCHEMA,
            "files": self.outcomes.iter().map(file).collect::<Vec<_>>(),
            "skipped": self.skipped.iter().map(skipped).collect::<Vec<_>>(),
            "passed_over": self.others.len(),
            "others": others,
        }))
    }
}
