//! The state of an upload event while it is applied, and the pure decisions about it.

use std::cmp::Ordering;
use std::time::Duration;

use super::filing::FiledModule;
use super::objects;
use crate::cache::{Converter, NoRoom, Upload, UploadProgress, UploadState};
use crate::domain::Sequencer;
use crate::flows::update::KnownItem;
use crate::ports::DifStat;

/// The items that an event changes, as they were read at the beginning; by default they were not
/// read.
#[derive(Default)]
pub(super) struct LoadedItems {
    pub(super) upload: KnownItem,
    pub(super) generation: KnownItem,
}

/// The upload item as the event wrote it last.
pub(super) struct WrittenUpload {
    pub(super) upload: Upload,
    /// The stored form of this item.
    pub(super) stored: KnownItem,
}

/// The result of removing a file from a module.
pub(super) enum Revoked {
    /// The module had reached its limit of files, so the file was not filed there.
    LeftOut,
    /// The module has to be built from the files that are left.
    Module(Box<ToBuild>),
    /// The file was a companion of these programs.
    Companion(Vec<FiledModule>),
}

/// Returns the item for the beginning of a creation. As long as the former bytes may be served, the
/// item names them, so that a repeated event withdraws them.
pub(super) fn pending_creation(upload: &Upload, known: Option<&Upload>, hops: u32) -> Upload {
    let again = known.filter(|known| known.sequencer == upload.sequencer);
    let mut pending = Upload {
        attempts: again.map_or(0, |again| again.attempts).saturating_add(1),
        reconciled: again.map_or(0, |again| again.reconciled),
        ..upload.clone()
    };
    if let Some(named) = known.filter(|known| known.names_objects()) {
        let is_the_same = named.etag == upload.etag;
        // An upload that a module had no room for is filed again, unless this only continues it.
        let is_filed = is_the_same && again.is_some() && (hops > 0 || named.no_room.is_none());
        pending.progress = match named.progress {
            UploadProgress::Filed if is_filed => UploadProgress::Filed,
            UploadProgress::Revoked if !is_the_same => UploadProgress::Revoked,
            _ => UploadProgress::Begun,
        };
        pending.etag.clone_from(&named.etag);
        pending.objects.clone_from(&named.objects);
        pending.object_set.clone_from(&named.object_set);
        pending.no_room.clone_from(&named.no_room);
        pending.passed_over.clone_from(&named.passed_over);
    }
    pending
}

/// Returns the item for the beginning of a removal: it names what was filed, so that a repeated
/// event withdraws it. `nothing` is the item of a key that never had a file.
pub(super) fn pending_removal(
    event: &UploadEvent,
    known: Option<&Upload>,
    nothing: &Upload,
) -> Upload {
    let again = known.filter(|known| known.sequencer == event.sequencer);
    let known = known.unwrap_or(nothing);
    Upload {
        sequencer: event.sequencer.clone(),
        state: UploadState::Pending,
        progress: match known.progress {
            UploadProgress::Revoked => UploadProgress::Revoked,
            UploadProgress::Begun | UploadProgress::Filed => UploadProgress::Begun,
        },
        attempts: 0,
        reconciled: again.map_or(0, |again| again.reconciled),
        at: nothing.at,
        expires_at: None,
        ..known.clone()
    }
}

pub(super) fn ignored(upload: &Upload, reason: String) -> Upload {
    Upload {
        state: UploadState::Ignored { reason },
        ..upload.clone()
    }
}

/// Returns why an upload is given up, and what to do.
pub(super) fn given_up(attempts: u32, reason: &str) -> String {
    format!(
        "gave up after {attempts} attempts to read it: {reason}; to retry, remove it from the uploads bucket and upload it again"
    )
}

/// Returns the modules of an upload that have no room for it.
pub(super) fn no_room(without: &[FiledModule], with_room: usize) -> Option<NoRoom> {
    let names = without.iter().map(|module| module.key.id.clone());
    (!without.is_empty()).then(|| NoRoom {
        modules: objects::count(without.len()),
        of: objects::count(without.len() + with_room),
        named: names.take(NoRoom::MAX_NAMED).collect(),
    })
}

/// Returns the upload in a known item.
pub(super) fn upload_in(known: &KnownItem) -> Option<&Upload> {
    match known {
        KnownItem::Read(Some(stored)) => stored.item.upload(),
        KnownItem::Read(None) | KnownItem::Unread => None,
    }
}

/// Returns whether two items describe the same event and bytes.
pub(super) fn is_same(known: &Upload, upload: &Upload) -> bool {
    known.sequencer == upload.sequencer && known.etag == upload.etag
}

/// Returns whether nothing is left to do for an event: it was already applied, or a later event of
/// its key was received.
pub(super) fn is_outdated(event: &UploadEvent, known: &Upload) -> bool {
    match event.sequencer.cmp(&known.sequencer) {
        Ordering::Less => true,
        Ordering::Equal => known.state != UploadState::Pending,
        Ordering::Greater => false,
    }
}

/// Returns whether nothing is left to do for an upload: its item describes these bytes and has a
/// final state.
pub(super) fn is_settled(known: &Upload, stat: &DifStat, converter: Converter) -> bool {
    let is_done = matches!(
        known.state,
        UploadState::Applied | UploadState::Ignored { .. }
    );
    is_done && known.etag == stat.etag && known.no_room.is_none() && !known.is_outdated(converter)
}

/// How long a tombstone is kept. No event is delivered later than that.
pub(super) const TOMBSTONE_LIFETIME: Duration = Duration::from_secs(15 * 24 * 3600);

/// A module whose entries are marked dirty.
pub(super) struct ToBuild {
    pub(super) module: FiledModule,
    /// Whether it has files to build from. If not, the build records that there is none.
    pub(super) has_files: bool,
}

/// An event of the uploads bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadEvent {
    /// The decoded key.
    pub key: String,
    /// The sequencer.
    pub sequencer: Sequencer,
    /// The change.
    pub change: UploadChange,
    /// The bytes that were written, if the event names them.
    pub written: Option<DifStat>,
}

/// A change to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadChange {
    /// It was written.
    Created,
    /// It was removed.
    Removed,
}
