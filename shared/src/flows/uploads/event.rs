//! An upload event, the items that it changes, and the pure decisions about it.

use std::cmp::Ordering;

use super::filing::ServedModule;
use super::objects;
use crate::cache::{Converter, NoRoom, Upload, UploadProgress, UploadState};
use crate::domain::{Cause, Sequencer};
use crate::flows::update::KnownItem;
use crate::ports::{DifError, DifStat};

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

/// The items that an event changes, as they were read at the beginning.
pub(super) struct LoadedItems {
    pub(super) upload: KnownItem,
    /// The generation of the scope; unread if the key has no scope.
    pub(super) generation: KnownItem,
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
            UploadProgress::Withdrawn if !is_the_same => UploadProgress::Withdrawn,
            _ => UploadProgress::Begun,
        };
        pending.etag.clone_from(&named.etag);
        pending.objects.clone_from(&named.objects);
        pending.object_set.clone_from(&named.object_set);
        pending.no_room.clone_from(&named.no_room);
        pending.skipped.clone_from(&named.skipped);
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
            UploadProgress::Withdrawn => UploadProgress::Withdrawn,
            UploadProgress::Begun | UploadProgress::Filed => UploadProgress::Begun,
        },
        attempts: 0,
        reconciled: again.map_or(0, |again| again.reconciled),
        at: nothing.at,
        expires_at: None,
        ..known.clone()
    }
}

/// Returns the item for the beginning of a reconciliation: pending, as if its last event was
/// delivered again.
pub(super) fn pending_again(known: &Upload, hops: u32) -> Upload {
    let is_first_hop = hops == 0;
    Upload {
        state: UploadState::Pending,
        reconciled: known.reconciled.saturating_add(u32::from(is_first_hop)),
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
pub(super) fn no_room(without: &[ServedModule], with_room: usize) -> Option<NoRoom> {
    let names = without.iter().map(|module| module.key().id.clone());
    (!without.is_empty()).then(|| NoRoom {
        modules: objects::count(without.len()),
        of: objects::count(without.len() + with_room),
        named: names.take(NoRoom::MAX_NAMED).collect(),
    })
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

/// Returns the change of a key that is not applied completely, because its event was lost or did
/// not end; `None` if nothing is left to do. `stat` describes the file at the key.
pub(super) fn missed_change(
    known: Option<&Upload>,
    stat: &Result<DifStat, DifError>,
    converter: Converter,
) -> Option<UploadChange> {
    match stat {
        Ok(stat) => {
            let is_processed = known.is_some_and(|known| is_processed(known, stat, converter));
            (!is_processed).then_some(UploadChange::Created)
        }
        Err(DifError::Changed) => Some(UploadChange::Created),
        Err(DifError::Missing(missing)) if missing.cause == Cause::NotFound => {
            let may_be_filed = known.is_some_and(|known| known.state != UploadState::Gone);
            may_be_filed.then_some(UploadChange::Removed)
        }
        // The file exists, but cannot be read now.
        Err(_) => None,
    }
}

/// Returns whether nothing is left to do for an upload: its item describes these bytes and has a
/// final state.
fn is_processed(known: &Upload, stat: &DifStat, converter: Converter) -> bool {
    let is_final = matches!(
        known.state,
        UploadState::Applied | UploadState::Ignored { .. }
    );
    is_final
        && known.etag == stat.etag
        && known.no_room.is_none()
        && !known.was_ignored_by_older(converter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Timestamp;

    #[test]
    fn messages_that_continue_a_reconciliation_do_not_change_the_item() {
        let known = Upload::pending("global/a", Timestamp::from_secs(0));
        assert_eq!(pending_again(&known, 0).reconciled, 1);
        assert_eq!(pending_again(&known, 1), known);
    }
}
