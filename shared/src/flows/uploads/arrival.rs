//! An upload event on its way: what is known of it, and of the module files before it.

use std::time::Duration;

use super::filing::FiledModule;
use super::objects;
use super::order::order;
use crate::cache::{NoRoom, Token, Upload, UploadProgress, UploadState};
use crate::domain::{DifRef, Scope};
use crate::flows::update::KnownItem;
use crate::ports::DifStat;

/// An event that is being applied.
pub(super) struct Arrived<'a> {
    pub(super) key: &'a str,
    pub(super) sequencer: &'a str,
    pub(super) scope: &'a Scope,
    /// The bytes that are at the key now; of a removal, those that were.
    pub(super) dif: DifRef,
    /// How many messages went on with it so far.
    pub(super) hops: u32,
    /// The generation of the scope, as it was read when the event came.
    pub(super) generation: KnownItem,
}

/// The items that an event changes, as they were read when it came; by default they were not.
#[derive(Default)]
pub(super) struct Before {
    pub(super) upload: KnownItem,
    pub(super) generation: KnownItem,
}

/// The upload item with which an event began.
pub(super) struct Announced {
    pub(super) upload: Upload,
    /// The same, as it is stored.
    pub(super) stored: KnownItem,
}

/// What became of a module that a file was removed from.
pub(super) enum Revoked {
    /// It had no room for the file.
    LeftOut,
    /// It is to be built of what is left.
    Module(Box<ToBuild>),
    /// The file was a companion there: of these programs.
    Companion(Vec<FiledModule>),
}

/// Returns the item that announces the reading of a file. Until they are out of every answer, it
/// names the bytes that were here before: an event that comes again takes them back.
pub(super) fn announced(upload: &Upload, known: Option<&Upload>, hops: u32) -> Upload {
    let again = known.filter(|known| known.sequencer == upload.sequencer);
    let mut announced = Upload {
        crashes: again.map_or(0, |again| again.crashes).saturating_add(1),
        reconciled: again.map_or(0, |again| again.reconciled),
        ..upload.clone()
    };
    if let Some(named) = known.filter(|known| known.names_objects()) {
        let is_the_same = named.etag == upload.etag;
        // The bytes of a module that had no room are filed again, unless this only goes on.
        let is_filed = is_the_same && again.is_some() && (hops > 0 || named.no_room.is_none());
        announced.progress = match named.progress {
            UploadProgress::Filed if is_filed => UploadProgress::Filed,
            UploadProgress::Revoked if !is_the_same => UploadProgress::Revoked,
            _ => UploadProgress::Begun,
        };
        announced.etag.clone_from(&named.etag);
        announced.objects.clone_from(&named.objects);
        announced.object_set.clone_from(&named.object_set);
        announced.no_room.clone_from(&named.no_room);
        announced.passed_over.clone_from(&named.passed_over);
    }
    announced
}

pub(super) fn ignored(upload: &Upload, reason: String) -> Upload {
    Upload {
        state: UploadState::Ignored { reason },
        ..upload.clone()
    }
}

/// Says why an upload is not read any more, and what to do.
pub(super) fn given_up(attempts: u32, reason: &str) -> String {
    format!("after {attempts} attempts to read it: {reason}; upload it again to have it read again")
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

/// Returns the upload that is known.
pub(super) fn upload_in(known: &KnownItem) -> Option<&Upload> {
    match known {
        KnownItem::Before(Some(stored)) => stored.item.upload(),
        KnownItem::Before(None) | KnownItem::Nothing => None,
    }
}

/// Tells whether an item is about the same event and bytes.
pub(super) fn is_same(known: &Upload, upload: &Upload) -> bool {
    known.sequencer == upload.sequencer && known.etag == upload.etag
}

/// Tells whether an event came before, and was applied, or came behind a later one of its key.
pub(super) fn is_done_with(event: &UploadEvent, known: &Upload) -> bool {
    let order = order(&event.sequencer, &known.sequencer);
    order.is_lt() || (order.is_eq() && known.state != UploadState::Pending)
}

/// Tells whether nothing is left to do about an upload: its item is about these bytes, and says what became of them.
pub(super) fn is_about(known: &Upload, stat: &DifStat) -> bool {
    let is_done = matches!(
        known.state,
        UploadState::Applied | UploadState::Ignored { .. }
    );
    is_done && known.etag == stat.etag && known.no_room.is_none()
}

/// A tombstone stands this long: no event is older.
pub(super) const TOMBSTONE_LIFETIME: Duration = Duration::from_secs(15 * 24 * 3600);

/// A module whose entries are marked, and the ask that came with the marks.
pub(super) struct ToBuild {
    pub(super) module: FiledModule,
    pub(super) build_request: Token,
    /// Whether it has files to build from. Else the build notes that there is nothing.
    pub(super) has_files: bool,
}

/// An event of the uploads bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadEvent {
    /// The key, decoded.
    pub key: String,
    /// The order of the event among those of this key: hex digits, compared as padded numbers.
    pub sequencer: String,
    /// What happened.
    pub change: UploadChange,
    /// The bytes that were written, where the event tells.
    pub written: Option<DifStat>,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadChange {
    /// It was written.
    Created,
    /// It was removed.
    Removed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequencers_of_different_lengths_are_compared_as_if_padded() {
        assert!(order("0055", "0055aa").is_lt());
        assert!(order("0056", "0055AA").is_gt());
        assert!(order("00aa", "00AA00").is_eq());
        assert!(order("", "00").is_eq());
    }
}
