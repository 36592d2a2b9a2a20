//! `upload`: sends the debug files that the service does not have.
//!
//! Files are inspected as the service does ([`mod@choose`]), compressed ([`pack`]), and sent four
//! at a time ([`send`]). Existing files are not sent; of a large file that was interrupted, only
//! the parts that are lacking. With `--wait`, the service is also asked what requests use of them
//! ([`usage`]). The [`report`] lists the [`outcome`] for each file.

mod choose;
mod outcome;
mod pack;
mod report;
mod send;
mod usage;

use std::path::PathBuf;
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use indicatif::ProgressBar;
use reqwest::Method;
use symdepot::api::uploads::{
    FILES, FileToUpload, RequestedFile, RequestedFileState, Transfer, UploadsAnswer, UploadsRequest,
};
use symdepot::domain::Scope;

use self::choose::{Chosen, choose};
use self::outcome::{Fate, Outcome, service_state};
use self::pack::Packed;
use self::report::Report;
use self::send::send_all;
use self::usage::ServiceState;
use crate::arguments::UploadArguments;
use crate::body::Body;
use crate::client::{Client, JsonRequest};
use crate::error::CliError;
use crate::retry::WaitLimit;
use crate::settings::Settings;
use crate::store::Sender;
use crate::{Output, files, progress, search};

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

/// A file of which the service may want something.
struct Unfinished<'o> {
    outcome: &'o mut Outcome,
    packed: Packed,
    /// Whether something of it was sent.
    was_sent: bool,
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
        None => report.exit(arguments.wait.is_some()),
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
    arguments.wait.map(|seconds| UseWait {
        most: Duration::from_secs(seconds.unwrap_or(arguments.wait_seconds)),
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
    async fn states(
        &self,
        files: Vec<FileToUpload>,
        limit: &WaitLimit,
    ) -> Result<Vec<RequestedFile>, CliError> {
        let mut answered = Vec::new();
        for batch in files.chunks(FILES) {
            let body = serde_json::to_vec(&UploadsRequest {
                scope: self.scope.clone(),
                files: batch.to_vec(),
            });
            let body = body.map_err(|error| CliError::Usage(error.to_string()))?;
            let request = JsonRequest {
                method: Method::POST,
                path: "/uploads",
                query: &[],
                body: Body::json(body),
            };
            let answer = self.client.request_json::<UploadsAnswer>(&request, limit);
            answered.extend(answer.await?.files);
        }
        Ok(answered)
    }

    /// Returns the state of each file, and sends nothing.
    async fn look_up(&self, chosen: Vec<Chosen>) -> Result<Vec<Outcome>, CliError> {
        let files = chosen.iter().map(Chosen::to_look_up).collect();
        let answered = self.states(files, &WaitLimit::usual()).await?;
        let outcomes = chosen.into_iter().zip(answered).map(|(file, answered)| {
            let RequestedFile { key, state } = answered;
            let fate = service_state(state).map_or(Fate::Wanted, Fate::Present);
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
        let looked_up = self.look_up(chosen).await;
        let mut outcomes = looked_up.map_err(CliError::of_upload)?;
        let failure = self.send_wanted(&mut outcomes, wait).await.err();
        let failure = failure.map(CliError::of_upload);
        let mut unsent = 0;
        for outcome in &mut outcomes {
            if matches!(outcome.fate, Fate::Wanted) {
                outcome.fate = Fate::Unsent;
                unsent += 1;
            }
        }
        if unsent > 0 && failure.is_none() {
            anstream::eprintln!(
                "the service did not say how to send {unsent} of the files: run the same command again"
            );
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

    /// Compresses and sends some files. A file that could not be sent stays wanted.
    async fn send_group(
        &self,
        group: &mut [&mut Outcome],
        bar: &ProgressBar,
    ) -> Result<(), CliError> {
        let paths = group.iter().map(|outcome| outcome.file.path.clone());
        let packed = pack::all(paths.collect()).await?;
        let unfinished = group.iter_mut().zip(packed);
        let unfinished = unfinished.map(|(outcome, packed)| Unfinished {
            outcome,
            packed,
            was_sent: false,
        });
        let mut unfinished: Vec<Unfinished<'_>> = unfinished.collect();
        // Parts are joined when the service is asked again, which may first want further ones.
        while !unfinished.is_empty() {
            let files = unfinished.iter().map(Unfinished::described).collect();
            let answered = self.states(files, &WaitLimit::usual()).await?;
            let transfers = unfinished.iter().zip(&answered);
            let transfers = transfers.map(|(file, answered)| file.transfer(&answered.state));
            let packed = unfinished.iter().map(|file| &file.packed);
            let sent = send_all(&self.sender, packed.zip(transfers), bar).await?;
            let (before, has_sent) = (unfinished.len(), sent.contains(&true));
            let mut further = Vec::new();
            for ((mut file, answered), sent) in unfinished.into_iter().zip(answered).zip(sent) {
                if file.advance(answered.state, sent) {
                    further.push(file);
                }
            }
            unfinished = further;
            // Otherwise, the next answer would be the same.
            if !has_sent && unfinished.len() == before {
                break;
            }
        }
        Ok(())
    }

    /// Waits until requests use the files, or will not, at most for this time.
    async fn wait_for(&self, outcomes: &mut [Outcome], wait: UseWait) -> Result<(), CliError> {
        let limit = WaitLimit::of(wait.most);
        let mut may_be_unseen = wait.were_missing || outcomes.iter().any(Outcome::was_sent);
        loop {
            self.judge(outcomes).await?;
            let pending = outcomes.iter_mut();
            let mut pending: Vec<&mut Outcome> =
                pending.filter(|outcome| outcome.is_pending()).collect();
            if pending.is_empty() {
                may_be_unseen &= outcomes.iter().any(Outcome::may_be_used);
                break;
            }
            if limit.left().is_zero() {
                may_be_unseen = wait.were_missing;
                break;
            }
            may_be_unseen = true;
            tokio::time::sleep(PAUSE).await;
            let files = pending.iter().map(|outcome| outcome.file.to_look_up());
            let answered = self.states(files.collect(), &limit).await?;
            for (outcome, answered) in pending.iter_mut().zip(answered) {
                if let Some(state) = service_state(answered.state) {
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
        let applied = applied.filter(|outcome| outcome.state() == Some(&ServiceState::Applied));
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

impl Unfinished<'_> {
    /// Describes the file as it is sent.
    fn described(&self) -> FileToUpload {
        FileToUpload {
            size: Some(self.packed.bytes),
            parts: self.packed.parts.clone(),
            ..self.outcome.file.to_look_up()
        }
    }

    /// Returns what to send of the file. A file that was sent in one request is not sent again: the
    /// service may not have received its event yet.
    fn transfer<'s>(&self, state: &'s RequestedFileState) -> Option<&'s Transfer> {
        state.transfer().filter(|_| !self.outcome.was_sent())
    }

    /// Records what the service answered, and whether something was sent then. Returns whether to
    /// ask again.
    ///
    /// A file whose parts the service has joined is pending, and is not asked about again: until
    /// its event arrives, the service would want all of its parts once more.
    fn advance(&mut self, answered: RequestedFileState, sent: bool) -> bool {
        let was_complete = self.outcome.was_sent();
        let is_complete = sent && matches!(answered, RequestedFileState::Upload(Transfer::Put(_)));
        self.was_sent |= sent;
        let bytes = self.packed.bytes;
        let (fate, asks_again) = match service_state(answered) {
            Some(state) if self.was_sent => (Fate::Sent(bytes, state), false),
            Some(state) => (Fate::Present(state), false),
            // The next question may fail.
            None if is_complete => (Fate::Sent(bytes, ServiceState::Pending), true),
            None => return !was_complete,
        };
        self.outcome.fate = fate;
        asks_again
    }
}
