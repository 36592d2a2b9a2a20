//! What an entry is and what may happen to it: records, leases, placeholders, and the one transition between them.
//!
//! S3 holds immutable blobs; one record for each thing that can be cached says what it is. Bytes are never trusted
//! without a record; a record is changed only by [`apply`], and stored only by compare-and-swap on its revision.
//!
//! The sequences, and the commit point of each:
//!
//! 1. **Look up**: read the record; [`decide()`] says whether to use, wait or ask; read the blob that it names.
//! 2. **Build**: take the lease; fetch, derive, load what was derived; create the blob; *publish*. The conditional write
//!    of the publish is the commit point: before it, the blob is an orphan that no reader can find.
//! 3. **Retire**: remove the record if its revision is unchanged (the commit point), then its blobs.
//!
//! After any failed or ambiguous write: read what is stored and ask whether the *effect* is there
//! ([`Change::has_effect`]); else apply again to what is stored; stop when [`apply`] refuses.

mod change;
mod copy;
mod decide;
mod derived;
mod health;
mod invariants;
mod item;
mod key;
mod kind;
mod losses;
mod record;
mod retention;
mod sweep;
mod token;
mod version;

pub use change::{Applied, Change, Refused, Seen, apply};
pub use copy::DifCopy;
pub use decide::{Capabilities, Decision, decide};
pub use derived::{DeriveJob, Derived, Transcoding};
pub use health::{CallOutcome, NotAdmitted, Permit, SourceHealth};
pub use invariants::violations;
pub use item::{
    Alias, Dif, Generation, Item, NoRoom, ObjectChunk, ObjectSet, Overflow, PendingRequest,
    Presence, RequestBody, Rollout, SCHEMA, SegmentProgress, SourceDefinition, Stored, SweepCursor,
    SweepLists, Upload, UploadProgress, UploadState, UploadedObject, Wanted,
};
pub use key::{ItemKey, ModuleKey, Sought, SweepItem};
pub use kind::Kind;
pub use losses::Losses;
pub use record::{
    BlobRef, BuildRequest, Entry, IndexRef, Lease, Placeholder, Probes, Queue, Ready, Suspect,
};
pub use retention::{LEASE_EXTENSION, LEASE_LENGTH, Policy};
pub use sweep::{
    Ages, Behind, Drained, Estimate, EvictionCut, KindTally, Manifest, Standing, Tally,
    entry_bytes, standing, wants_refresh,
};
pub use token::{Revision, Token};
pub use version::{Converter, current_version};
