//! `upload`: sends the debug files that the service does not have.
//!
//! Files are inspected as the service does ([`mod@choose`]), compressed ([`pack`]), and sent four
//! at a time ([`send`]). What is there already is not sent; of a large file that was interrupted,
//! only the parts that are lacking. With `--wait`, the service is also asked what requests use of
//! them ([`usage`]).

mod choose;
mod pack;
mod send;
mod usage;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
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
use self::usage::FinalState;
use crate::arguments::UploadArguments;
use crate::body::Body;
use crate::client::{Client, Question};
use crate::error::CliError;
use crate::retry::Patience;
use crate::search::Other;
use crate::settings::Settings;
use crate::store::Sender;
use crate::visible::visible;
use crate::{Exit, Output, files, progress, search, view};

/// The number of files that are compressed and asked about together.
const GROUP: usize = 16;

/// The number of questions at a time about what requests use of a file.
const AT_A_TIME: usize = 8;

/// The pause between two questions for the states of files.
const PAUSE: Duration = Duration::from_millis(500);

/// After this time, every instance of the service sees a new upload; before, a warm one may know no
/// file for a module (docs/protocol.md). It has a second more than the service says.
const SEEN_AFTER: Duration = Duration::from_secs(3);

/// How long to wait until requests use files.
#[derive(Clone, Copy)]
struct UseWait {
    most: Duration,
    /// Whether a request has just found no files: instances may still remember that.
    were_missing: bool,
}

/// What became of a file.
struct Outcome {
    file: Chosen,
    key: String,
    fate: Fate,
}

enum Fate {
    /// It would be sent.
    Wanted,
    /// It would have been sent if the command had not failed before.
    Unsent,
    /// It was sent, as so many bytes.
    Sent(u64, FinalState),
    There(FinalState),
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
    let found = search::search(&arguments.paths)?;
    files::refuse_pipes(&found.files)?;
    let (chosen, skipped) = choose_all(&found.files);
    let client = Client::new(settings).await?;
    let uploader = Uploader::new(&client, settings)?;
    let (outcomes, failure) = if arguments.dry_run {
        (uploader.look_up(chosen).await?, None)
    } else {
        uploader.upload(chosen, wait_of(arguments)).await?
    };
    let report = Report {
        outcomes,
        skipped,
        others: found.others,
        named: arguments.paths.clone(),
        lists_all: arguments.verbose || arguments.dry_run,
    };
    let exit = match failure {
        Some(error) => crate::failed(&error),
        None => report.exit(arguments.wait),
    };
    Ok(if arguments.json {
        Output::ended(report.json(), exit)
    } else {
        Output::ended(report.text(), exit)
    })
}

/// Uploads these files, which a request has just not found, and waits until requests use them, at
/// most for this time. Returns what became of them, for people.
pub(crate) async fn upload_files(
    client: &Client,
    settings: &Settings,
    paths: &[PathBuf],
    wait: Duration,
) -> Result<String, CliError> {
    let (chosen, skipped) = choose_all(paths);
    let uploader = Uploader::new(client, settings)?;
    let wait = UseWait {
        most: wait,
        were_missing: true,
    };
    let (outcomes, failure) = uploader.upload(chosen, Some(wait)).await?;
    let report = Report {
        outcomes,
        skipped,
        others: Vec::new(),
        named: Vec::new(),
        lists_all: true,
    };
    match failure {
        Some(error) => {
            anstream::eprint!("{}", report.text());
            Err(error)
        }
        None => Ok(report.text()),
    }
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

fn wait_of(arguments: &UploadArguments) -> Option<UseWait> {
    arguments.wait.then(|| UseWait {
        most: Duration::from_secs(arguments.wait_seconds),
        were_missing: false,
    })
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
    async fn ask(
        &self,
        files: Vec<FileToUpload>,
        patience: &Patience,
    ) -> Result<Vec<RequestedFile>, CliError> {
        let mut answered = Vec::new();
        for batch in files.chunks(FILES) {
            let request = UploadsRequest {
                scope: self.scope.clone(),
                files: batch.to_vec(),
            };
            let body =
                serde_json::to_vec(&request).map_err(|error| CliError::Usage(error.to_string()))?;
            let question = Question {
                method: Method::POST,
                path: "/uploads",
                query: &[],
                body: Body::json(body),
            };
            let answer = self.client.ask::<UploadsAnswer>(&question, patience);
            answered.extend(answer.await?.files);
        }
        Ok(answered)
    }

    /// Returns the state of each file, and sends nothing.
    async fn look_up(&self, chosen: Vec<Chosen>) -> Result<Vec<Outcome>, CliError> {
        let files = chosen.iter().map(Chosen::to_look_up).collect();
        let answered = self.ask(files, &Patience::usual()).await?;
        let outcomes = chosen.into_iter().zip(answered).map(|(file, answered)| {
            let RequestedFile { key, state } = answered;
            let fate = final_state(state).map_or(Fate::Wanted, Fate::There);
            Outcome { file, key, fate }
        });
        Ok(outcomes.collect())
    }

    /// Sends the files that the service does not have. With `wait`, returns when requests use all
    /// files, or the time is over. On failure, returns the error with what became of each file
    /// before.
    async fn upload(
        &self,
        chosen: Vec<Chosen>,
        wait: Option<UseWait>,
    ) -> Result<(Vec<Outcome>, Option<CliError>), CliError> {
        let mut outcomes = self.look_up(chosen).await?;
        let failure = self.send_wanted(&mut outcomes, wait).await.err();
        for outcome in &mut outcomes {
            if matches!(outcome.fate, Fate::Wanted) {
                outcome.fate = Fate::Unsent;
            }
        }
        Ok((outcomes, failure))
    }

    /// Sends the files that the service wants. With `wait`, waits for all files.
    async fn send_wanted(
        &self,
        outcomes: &mut [Outcome],
        wait: Option<UseWait>,
    ) -> Result<(), CliError> {
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
            self.wait_for(outcomes, wait).await?;
        }
        Ok(())
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
        let patience = Patience::usual;
        let mut answered = self.ask(describe(&packed, group), &patience()).await?;
        let transfers = answered.iter().map(|file| file.state.transfer());
        let sending = send_all(&self.sender, packed.iter().zip(transfers), bar);
        let mut was_sent = sending.await?;
        // The next question may fail.
        for (at, packed) in packed.iter().enumerate() {
            if was_sent[at] && packed.parts.is_empty() {
                group[at].fate = Fate::Sent(packed.bytes, FinalState::Pending);
            }
        }
        // Parts are joined when the service is asked again, which may first want further ones. A
        // file whose event has not arrived yet looks like one that was not sent.
        loop {
            answered = self.ask(describe(&packed, group), &patience()).await?;
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
            group[at].fate = if was_sent[at] {
                Fate::Sent(packed.bytes, state)
            } else {
                Fate::There(state)
            };
        }
        Ok(())
    }

    /// Waits until requests use the files, or will not, at most for this time.
    async fn wait_for(&self, outcomes: &mut [Outcome], wait: UseWait) -> Result<(), CliError> {
        let patience = Patience::of(wait.most);
        let mut may_be_unseen = wait.were_missing || outcomes.iter().any(Outcome::was_sent);
        loop {
            self.judge(outcomes).await?;
            let pending = outcomes.iter_mut();
            let mut pending: Vec<&mut Outcome> =
                pending.filter(|outcome| outcome.is_pending()).collect();
            if pending.is_empty() {
                may_be_unseen &= outcomes.iter().any(Outcome::is_used);
                break;
            }
            if patience.left().is_zero() {
                may_be_unseen = wait.were_missing;
                break;
            }
            may_be_unseen = true;
            tokio::time::sleep(PAUSE).await;
            let files = pending.iter().map(|outcome| outcome.file.to_look_up());
            let answered = self.ask(files.collect(), &patience).await?;
            for (outcome, answered) in pending.iter_mut().zip(answered) {
                if let Some(state) = final_state(answered.state) {
                    outcome.set_state(state);
                }
            }
        }
        if may_be_unseen {
            tokio::time::sleep(SEEN_AFTER).await;
        }
        Ok(())
    }

    /// Asks what requests use of the files that are applied.
    async fn judge(&self, outcomes: &mut [Outcome]) -> Result<(), CliError> {
        let applied = outcomes.iter_mut();
        let applied = applied.filter(|outcome| outcome.state() == Some(&FinalState::Applied));
        let applied: Vec<&mut Outcome> = applied.collect();
        let asked = stream::iter(applied).map(|outcome| async move {
            let state = usage::of(self.client, &outcome.key).await?;
            outcome.set_state(state);
            Ok::<_, CliError>(())
        });
        let mut asked = asked.buffer_unordered(AT_A_TIME);
        while let Some(()) = asked.try_next().await? {}
        Ok(())
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
            Fate::Wanted | Fate::Unsent => None,
            Fate::Sent(_, state) | Fate::There(state) => Some(state),
        }
    }

    fn set_state(&mut self, new: FinalState) {
        match &mut self.fate {
            Fate::Wanted | Fate::Unsent => {}
            Fate::Sent(_, state) | Fate::There(state) => *state = new,
        }
    }

    fn was_sent(&self) -> bool {
        matches!(self.fate, Fate::Sent(..))
    }

    fn is_pending(&self) -> bool {
        self.state() == Some(&FinalState::Pending)
    }

    /// Returns whether requests use the file, or another upload of the same program.
    fn is_used(&self) -> bool {
        matches!(
            self.state(),
            Some(FinalState::InUse | FinalState::InPart(_) | FinalState::NotNeeded(_))
        )
    }

    /// Returns whether requests do not use all that is in the file, although they should.
    fn is_incomplete(&self) -> bool {
        matches!(
            self.state(),
            Some(FinalState::InPart(_) | FinalState::Unused(_) | FinalState::Ignored(_))
        )
    }

    /// Returns what became of the file, as a line.
    fn line(&self) -> String {
        let path = visible(&self.file.path.display().to_string());
        let mut line = format!("{:10} {path}", self.verb());
        let whole = BinaryBytes(self.file.bytes);
        match self.fate {
            Fate::Wanted | Fate::Unsent => {
                let _ = write!(line, "  {whole}");
            }
            Fate::Sent(bytes, _) => {
                let _ = write!(line, "  {whole}, sent as {}", BinaryBytes(bytes));
            }
            Fate::There(_) => {}
        }
        match self.state() {
            Some(FinalState::Ignored(reason) | FinalState::Unused(reason)) => {
                let _ = write!(line, ": {}", visible(reason));
            }
            Some(FinalState::InPart(reason)) => {
                let _ = write!(line, "  in use in part: {}", visible(reason));
            }
            Some(FinalState::NotNeeded(other)) => {
                let other = visible(other);
                let _ = write!(line, "  not needed, {other} of the same program is in use");
            }
            Some(FinalState::Pending) => line.push_str("  is being processed"),
            Some(FinalState::Applied) => line.push_str("  applied"),
            Some(FinalState::InUse) => line.push_str("  in use"),
            None => {}
        }
        let _ = writeln!(line, "  {}", visible(&self.key));
        line
    }

    /// Returns what became of the file, in one word.
    fn verb(&self) -> &'static str {
        match (&self.fate, self.state()) {
            (_, Some(FinalState::Ignored(_))) => "ignored",
            (_, Some(FinalState::Unused(_))) => "unused",
            (Fate::Wanted, _) => "would send",
            (Fate::Unsent, _) => "not sent",
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
        if self.outcomes.iter().any(Outcome::is_incomplete)
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
            let path = visible(&path.display().to_string());
            let _ = writeln!(text, "{:10} {path}: {}", "skipped", visible(reason));
        }
        for Other { path, reason } in self.others.iter().filter(|_| self.lists_all) {
            let path = visible(&path.display().to_string());
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
            Fate::Wanted | Fate::Unsent | Fate::There(_) => 0,
        });
        let if_any = |verb: &str| match count(verb) {
            0 => String::new(),
            number => format!("{verb} {number}, "),
        };
        let wanted = if_any("would send") + &if_any("not sent");
        let unused = if_any("unused");
        format!(
            "{wanted}sent {} ({}), there {}, ignored {}, {unused}skipped {}, {} other files passed over\n",
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
                Some(FinalState::Applied | FinalState::InUse | FinalState::NotNeeded(_)) => {
                    ("applied", None)
                }
                Some(FinalState::InPart(reason)) => ("in_part", Some(reason)),
                Some(FinalState::Unused(reason)) => ("unused", Some(reason)),
                Some(FinalState::Ignored(reason)) => ("ignored", Some(reason)),
            };
            let sent_bytes = match outcome.fate {
                Fate::Sent(bytes, _) => Some(bytes),
                Fate::Wanted | Fate::Unsent | Fate::There(_) => None,
            };
            json!({
                "path": outcome.file.path.to_string_lossy(), "key": outcome.key, "ids": outcome.file.ids,
                "bytes": outcome.file.bytes, "sent_bytes": sent_bytes, "state": state, "reason": reason,
            })
        };
        // A path may be no text.
        let skipped = |(path, reason): &(PathBuf, String)| json!({"path": path.to_string_lossy(), "reason": reason});
        let other = |Other { path, reason }: &Other| json!({"path": path.to_string_lossy(), "reason": reason});
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
