//! `POST /uploads`: which of a client's files the service needs, and how the client sends them.
//!
//! Nothing is stored here. The state of a file is that of its upload item, which the event of the
//! finished upload writes; the progress of a file in parts is what the bucket says. So a client
//! that was interrupted, or another one with the same file, continues where the first one stopped.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};

use super::http_service::{CALLS_IN_FLIGHT, HttpService};
use super::{Error, Invocation};
use crate::api::uploads::{
    BYTES_IN_PARTS, FileToUpload, PART_BYTES, PartToSend, RequestedFile, RequestedFileState,
    SIGNATURE_SECONDS, SIGNED_PARTS, Transfer, UploadsAnswer, UploadsRequest,
};
use crate::cache::{Item, ItemKey, Stored, UploadState};
use crate::domain::{InvalidUploadKey, Location, Scope, upload_key};
use crate::ports::{Consistency, Fault, UploadInParts, UploadPart};

/// For how long a signature is valid.
const SIGNATURE_LIFETIME: Duration = Duration::from_secs(SIGNATURE_SECONDS);

/// A file of a request, checked.
struct CheckedFile {
    key: Location,
    size: Option<u64>,
    parts: Vec<UploadPart>,
}

/// What is known about a file of a request.
enum FileProgress {
    /// Its state. No parts of it have to be signed.
    Decided(RequestedFileState),
    /// It is sent in parts, of which these are not stored.
    InParts {
        upload: UploadInParts,
        lacking: Vec<UploadPart>,
    },
}

impl HttpService {
    /// Returns the state of each file of a request, and how to send those that the service does not
    /// have.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if a file cannot have a key or its parts are wrong; [`Error::Fault`] if a
    /// store fails.
    pub async fn request_uploads(
        &self,
        invocation: &Invocation,
        scope: &Scope,
        request: &UploadsRequest,
    ) -> Result<UploadsAnswer, Error> {
        let files = request.files.iter().enumerate();
        let files = files.map(|(at, file)| {
            checked(invocation, scope, file).map_err(|detail| Error::Invalid {
                detail: format!("files[{at}]: {detail}"),
            })
        });
        let files: Vec<CheckedFile> = files.collect::<Result<_, _>>()?;
        let keys: Vec<Location> = files.iter().map(|file| file.key.clone()).collect();
        // A request may name a file twice.
        let files = files.into_iter().map(|file| (file.key.clone(), file));
        let files: BTreeMap<Location, CheckedFile> = files.collect();
        let items: Vec<ItemKey> = files.keys().map(ItemKey::upload).collect();
        let items = self.records.load(&items, Consistency::Strong).await?;
        let progress = files.into_iter().zip(items);
        let progress = progress.map(|((key, file), item)| async move {
            let progress = match state_of(item.as_ref()) {
                Some(state) => FileProgress::Decided(state),
                None => self.progress_of(file).await?,
            };
            Ok::<_, Fault>((key, progress))
        });
        let progress: Vec<_> = progress.collect();
        let progress = stream::iter(progress).buffer_unordered(CALLS_IN_FLIGHT);
        let progress: BTreeMap<Location, FileProgress> = progress.try_collect().await?;
        let states = self.signed(progress).await?;
        let file = |key: Location| {
            let state = states.get(&key)?.clone();
            let key = key.as_str().to_owned();
            Some(RequestedFile { key, state })
        };
        Ok(UploadsAnswer {
            files: keys.into_iter().filter_map(file).collect(),
        })
    }

    /// Returns what is known about a file whose event was not received. Joins the parts of a large
    /// file if all of them are stored.
    async fn progress_of(&self, file: CheckedFile) -> Result<FileProgress, Fault> {
        let decided = |state| Ok(FileProgress::Decided(state));
        let CheckedFile { key, size, parts } = file;
        let Some(size) = size else {
            return decided(RequestedFileState::Absent);
        };
        let limit = self.settings.dif_max_bytes;
        if size == 0 || size > limit {
            let reason =
                format!("it has {size} bytes, and files have 1 to {limit} bytes (DIF_MAX_BYTES)");
            return decided(RequestedFileState::Ignored { reason });
        }
        if parts.is_empty() {
            let signed = self.uploads.sign_create(&key, size, SIGNATURE_LIFETIME);
            return decided(RequestedFileState::Upload(Transfer::Put(signed.await?)));
        }
        let upload = self.uploads.begin_parts(&key).await?;
        let lacking = parts
            .iter()
            .filter(|part| !upload.stored.contains_key(*part));
        let lacking: Vec<UploadPart> = lacking.cloned().collect();
        if lacking.is_empty() {
            self.uploads.join_parts(&upload, &parts).await?;
            // Its event is on its way, also if another client was faster.
            return decided(RequestedFileState::Pending);
        }
        Ok(FileProgress::InParts { upload, lacking })
    }

    /// Returns the states of files, and signs the parts that they lack. A response has a limited
    /// number of signatures. The files get them in the order of their keys, because a client sends
    /// large files one after the other.
    async fn signed(
        &self,
        files: BTreeMap<Location, FileProgress>,
    ) -> Result<BTreeMap<Location, RequestedFileState>, Fault> {
        let mut signatures_left = SIGNED_PARTS;
        let mut states = BTreeMap::new();
        for (key, progress) in files {
            let state = match progress {
                FileProgress::Decided(state) => state,
                FileProgress::InParts { upload, lacking } => {
                    let mut parts = Vec::new();
                    for part in lacking.iter().take(signatures_left) {
                        let put = self.uploads.sign_part(&upload, part, SIGNATURE_LIFETIME);
                        parts.push(PartToSend {
                            number: part.number,
                            put: put.await?,
                        });
                    }
                    signatures_left -= parts.len();
                    RequestedFileState::Upload(Transfer::Parts {
                        part_bytes: PART_BYTES,
                        parts,
                    })
                }
            };
            states.insert(key, state);
        }
        Ok(states)
    }
}

/// Returns a file with its key and its parts; fails with what is wrong with it.
fn checked(
    invocation: &Invocation,
    scope: &Scope,
    file: &FileToUpload,
) -> Result<CheckedFile, String> {
    let drawn = || {
        let digest = [invocation.uuid(), invocation.uuid()];
        digest.map(|half| half.simple().to_string()).concat()
    };
    let digest = file.sha256.clone().unwrap_or_else(drawn);
    let id = file.ids.first().map_or("", String::as_str);
    let key = upload_key(scope, &file.name, id, &digest);
    let key = key.map_err(|error| match error {
        InvalidUploadKey::Id if file.ids.is_empty() => {
            "`ids` is missing: give a debug id or code id of an object in the file".to_owned()
        }
        error => error.to_string(),
    });
    Ok(CheckedFile {
        key: key?,
        size: file.size,
        parts: parts_of(file)?,
    })
}

/// Returns the parts of a large file; none for another one.
fn parts_of(file: &FileToUpload) -> Result<Vec<UploadPart>, String> {
    let Some(size) = file.size.filter(|size| *size >= BYTES_IN_PARTS) else {
        return if file.parts.is_empty() {
            Ok(Vec::new())
        } else {
            Err(format!(
                "only files of {BYTES_IN_PARTS} bytes or more have parts"
            ))
        };
    };
    let wanted = size.div_ceil(PART_BYTES);
    if file.parts.len() as u64 != wanted {
        return Err(format!(
            "a file of {BYTES_IN_PARTS} bytes or more is sent in parts of {PART_BYTES} bytes: give the SHA-256 of each of its {wanted} parts"
        ));
    }
    let parts = (1..).zip(&file.parts).map(|(number, digest)| {
        let start = u64::from(number - 1) * PART_BYTES;
        let sha256 = digest_of(digest);
        Ok(UploadPart {
            number,
            bytes: PART_BYTES.min(size - start),
            sha256: sha256.ok_or_else(|| InvalidUploadKey::Digest.to_string())?,
        })
    });
    parts.collect()
}

fn digest_of(hex: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    hex::decode_to_slice(hex, &mut digest).ok()?;
    Some(digest)
}

/// Returns the state of a file whose event was received; `None` if it must be sent.
fn state_of(item: Option<&Stored>) -> Option<RequestedFileState> {
    match &item?.item {
        Item::Upload(upload) => match &upload.state {
            UploadState::Pending => Some(RequestedFileState::Pending),
            UploadState::Applied => Some(RequestedFileState::Applied),
            UploadState::Ignored { reason } => Some(RequestedFileState::Ignored {
                reason: reason.clone(),
            }),
            UploadState::Gone => None,
        },
        // A newer release wrote it, so it knows the file.
        _ => Some(RequestedFileState::Pending),
    }
}
