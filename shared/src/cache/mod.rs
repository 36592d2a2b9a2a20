//! Cache entries: their records, leases and placeholders, and the one function that changes them.
//! Also all other items of the table ([`Item`]), and the names of what is stored: the keys of items
//! and the paths of blobs ([`ItemKey`]).
//!
//! S3 holds immutable blobs. One record per cached item describes the blob that belongs to it. A
//! reader never trusts bytes without a record. A record changes only through [`apply`], and is
//! stored only by compare-and-swap on its revision.
//!
//! There are three sequences. Those that write have one commit point:
//!
//! 1. **Look up**: read the records. [`decide()`] says whether the reader uses the blob of one
//!    record, waits, or requests a build; [`select()`] compares several records. Then read the blob
//!    that the selected record names.
//! 2. **Build**: take the lease, fetch the DIF, derive the cache, load the derived cache, create
//!    the blob, and *publish*. The conditional write of the publish is the commit point. Before it,
//!    the blob is an orphan that no reader can find.
//! 3. **Retire**: remove the record if its revision is unchanged, then remove its blobs. Removing
//!    the record is the commit point.
//!
//! After a failed or ambiguous write, the caller reads the stored entry and checks whether it shows
//! the *effect* of the change ([`Change::has_effect`]). If it does not, the caller applies the
//! change again to the stored entry, until [`apply`] refuses the change.

mod change;
mod copy;
mod decide;
mod derived;
mod dif;
mod health;
mod invariants;
mod issued_token;
mod item;
mod key;
mod losses;
mod policy;
mod presence;
mod record;
mod request;
mod select;
mod sweep;
mod token;
mod upload;
mod version;

pub use crate::domain::{Converter, Kind, Queue, UploadState};
pub use change::{Applied, Change, Refused, Seen, apply};
pub use copy::DifCopy;
pub use decide::{Capabilities, Decision, decide};
pub use derived::{DeriveJob, Derived, Transcoding};
pub use dif::Dif;
pub use health::{CallOutcome, NotAdmitted, OpenCircuit, Permit, SourceHealth};
pub use invariants::violations;
pub use issued_token::IssuedToken;
pub use item::{Alias, Item, SCHEMA, Stored};
pub use key::{ItemKey, ModuleKey, ModuleRef, ServerSearch, SweepItem};
pub use losses::Losses;
pub use policy::{LEASE_EXTENSION, LEASE_LENGTH, Policy};
pub use presence::{Generation, Presence};
pub use record::{
    BlobRef, BuildRequest, Entry, IndexRef, Lease, Placeholder, Probes, Ready, Suspect,
};
pub use request::{
    PendingRequest, RequestBody, RequestStage, SourceDefinition, StoredAnswer, Wanted,
};
pub use select::{
    BuildState, Criteria, PlaceRecord, PlaceState, PlaceToBuild, Preference, SelectedState,
    Selection, UnreadableBlobs, select,
};
pub use sweep::{
    Ages, Drained, Estimate, EvictionCut, KindTally, OutdatedEntry, OutdatedList, Rollout,
    RolloutState, SegmentProgress, SweepCursor, SweepLists, Tally, entry_bytes, rollout_state,
    wants_refresh,
};
pub use token::{Revision, Token};
pub use upload::{
    NoRoom, ObjectChunk, ObjectSet, Overflow, Upload, UploadProgress, UploadedObject,
};
pub use version::{ReleaseNumbers, current_version};
