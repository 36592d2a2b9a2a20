//! Source files that are looked up one by one: on servers of the debuginfod layout, and behind the
//! links in debug information. Each is an entry of its own.
//!
//! A file is downloaded into memory, within limits of its size and of the time. It must be text in
//! UTF-8. Nothing in it is interpreted, so no parser is started for it. No copy of it is kept: the
//! entry has all of its lines.

use std::time::Duration;

use super::builder::Build;
use super::kind_build::Target;
use super::lease::HeldLease;
use super::made::{Made, MadeOutcome, NotMade, Origin};
use super::search::{Search, unknown_source};
use super::search_failures::{RequestedLocation, SearchFailures};
use crate::cache::{CallOutcome, Derived, Kind, ReleaseNumbers, Seen, ServerSearch};
use crate::debuginfo::{Failure, encode_source_file};
use crate::domain::{
    Candidate, Cause, DifRef, Download, Features, FileType, HttpSource, Location, Missing, Purpose,
    Rank, is_web_page,
};
use crate::flows::download::{ServerCalls, of_the_file};
use crate::flows::permits;
use crate::flows::update::KnownItem;
use crate::ports::{Fault, ServerFailure};

/// The maximum size of a source file, in bytes. Few files of any program are larger.
const MAX_FILE_BYTES: usize = 16 << 20;

/// The time limit for the download of a source file. A request waits for it.
const FILE_TIME: Duration = Duration::from_secs(30);

/// A source file that was downloaded and encoded.
struct EncodedFile {
    file: DifRef,
    bytes: u64,
    took: Duration,
    derived: Derived,
}

impl Build<'_> {
    /// Makes the entry of a source file. `health` is that of its source as it was read. Returns one
    /// result per lease.
    pub(super) async fn make_source_file(
        &self,
        sought: &ServerSearch,
        held: &[HeldLease],
        health: KnownItem,
    ) -> Result<Vec<Made>, NotMade> {
        let key = &self.module.source;
        let Some(source) = self.builder.source_of(self.invocation, self.module).await? else {
            let search = Search {
                failures: SearchFailures::of_all_files(unknown_source(key)),
                ..Search::default()
            };
            return Ok(held.iter().map(|_| missing(&search, None)).collect());
        };
        let making = async {
            let mut outcome = CallOutcome::default();
            let making = self.download_source_file(&source, sought, held, &mut outcome);
            (making.await, outcome)
        };
        let most = self.builder.settings.source_max_permits;
        match permits::with(self.writer(), key, most, health, Box::pin(making)).await? {
            Ok(made) => made.map_err(NotMade::from),
            Err(refused) => Err(NotMade::NotAdmitted(refused)),
        }
    }

    /// Makes the entry of a source file under these leases, and ends them. Returns the outcome of
    /// the call for the health of the source.
    pub(super) async fn settle_source_file(
        &self,
        source: &HttpSource,
        sought: &ServerSearch,
        held: &[HeldLease],
    ) -> Result<CallOutcome, Fault> {
        let mut outcome = CallOutcome::default();
        let making = self.download_source_file(source, sought, held, &mut outcome);
        let made = match making.await {
            Ok(made) => made,
            Err(error) => {
                self.release_after_error(held).await;
                return Err(error);
            }
        };
        let mut failed = None;
        for (lease, made) in held.iter().zip(made) {
            if let Err(error) = self.finish(lease, made).await {
                self.release_after_error(std::slice::from_ref(lease)).await;
                failed = Some(error);
            }
        }
        failed.map_or(Ok(outcome), Err)
    }

    /// Downloads a source file, and stores its lines. Records the outcome of the call. Returns one
    /// result per lease.
    async fn download_source_file(
        &self,
        source: &HttpSource,
        sought: &ServerSearch,
        held: &[HeldLease],
        outcome: &mut CallOutcome,
    ) -> Result<Vec<Made>, Fault> {
        let mut search = Search::default();
        let mut encoded = None;
        if let Some((_, location)) = sought.locations.first() {
            let began = self.invocation.elapsed();
            let _span = self.invocation.span("fetch");
            let downloaded = self.download_text(source, location).await;
            let took = self.invocation.elapsed() - began;
            match downloaded.and_then(|text| text.encoded(location, self.numbers(), took)) {
                Ok(file) => {
                    search.calls.answered();
                    encoded = Some(file);
                }
                Err(mut failure) => {
                    source.explain_settings(&mut failure.missing);
                    let requested = RequestedLocation {
                        location,
                        file_type: None,
                        took,
                    };
                    search.note(self, requested, failure);
                }
            }
        }
        outcome.clone_from(&search.calls);
        let mut made = Vec::with_capacity(held.len());
        for lease in held {
            made.push(match &encoded {
                Some(file) => self.store_source_file(lease, file).await?,
                None => {
                    let settings = &self.builder.settings;
                    let retry_after = search.retry_after(source, &[Kind::SourceCode], settings);
                    missing(&search, retry_after)
                }
            });
        }
        Ok(made)
    }

    async fn download_text(
        &self,
        source: &HttpSource,
        location: &Location,
    ) -> Result<DownloadedText, ServerFailure> {
        let server = ServerCalls {
            servers: &*self.builder.servers,
            key: &self.module.source,
            source,
            checksum: None,
        };
        let time = FILE_TIME.min(self.time_for_call());
        let read = server.read(location, MAX_FILE_BYTES, time);
        let (etag, bytes) = read.await?;
        Ok(DownloadedText { etag, bytes })
    }

    /// Stores the lines of a file, and returns the entry's state.
    async fn store_source_file(
        &self,
        lease: &HeldLease,
        encoded: &EncodedFile,
    ) -> Result<Made, Fault> {
        let features = Features {
            has_sources: true,
            ..Features::default()
        };
        let target = Target {
            lease,
            version: self.numbers().version(lease.kind),
        };
        let origin = Origin {
            made_from: vec![encoded.file.clone()],
            rank: Rank::of(&features, Purpose::SourceCode),
            features: features.clone(),
            arch: String::new(),
            file_type: FileType::SourceBundle,
        };
        let ready = self.store(target, origin, encoded.derived.clone()).await?;
        let candidate = Candidate {
            source: self.module.source.clone(),
            location: encoded.file.location.clone(),
            download: Download::Ok { features },
            size: Some(encoded.bytes),
            duration_ms: u64::try_from(encoded.took.as_millis()).ok(),
            fault: None,
        };
        Ok(Made {
            outcome: MadeOutcome::Ready(Box::new(ready)),
            seen: Seen {
                considered: vec![encoded.file.clone()],
                candidates: vec![candidate],
                ..Seen::default()
            },
        })
    }
}

/// Returns the result for a file that was not found.
fn missing(search: &Search, retry_after: Option<Duration>) -> Made {
    let failure = search.failures.of(Kind::SourceCode).cloned();
    Made {
        outcome: MadeOutcome::Missing(failure.unwrap_or_else(Missing::not_found)),
        seen: Seen {
            candidates: search.tried.clone(),
            retry_after,
            ..Seen::default()
        },
    }
}

/// A downloaded file.
struct DownloadedText {
    etag: String,
    bytes: Vec<u8>,
}

impl DownloadedText {
    /// Encodes the lines of the file. `took` is how long its download took.
    fn encoded(
        self,
        location: &Location,
        numbers: &ReleaseNumbers,
        took: Duration,
    ) -> Result<EncodedFile, ServerFailure> {
        let Self { etag, bytes } = self;
        let text = std::str::from_utf8(&bytes).ok();
        let Some(text) = text.filter(|text| !text.contains('\0')) else {
            let detail = "it is not text in UTF-8";
            return Err(of_the_file(Missing::malformed(detail)));
        };
        if is_web_page(&bytes) && !is_page_name(&location.file_name()) {
            let detail = "the server sent a web page instead of the file, probably one to log in";
            let missing = Missing::new(Cause::PermissionDenied, detail);
            return Err(of_the_file(missing));
        }
        let derived = encode_source_file(location.as_str(), text, numbers);
        let derived = derived.map_err(|failure| {
            of_the_file(match failure {
                Failure::Missing(missing) => missing,
                Failure::OutOfMemory => Missing::malformed("there is too little memory for it"),
            })
        })?;
        Ok(EncodedFile {
            file: DifRef {
                location: location.clone(),
                etag,
            },
            bytes: bytes.len() as u64,
            took,
            derived,
        })
    }
}

/// Returns whether a file of this name may contain a web page.
fn is_page_name(name: &str) -> bool {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    let pages = ["html", "htm", "xhtml", "cshtml", "vbhtml", "aspx", "php"];
    pages
        .iter()
        .any(|page| page.eq_ignore_ascii_case(extension))
}
