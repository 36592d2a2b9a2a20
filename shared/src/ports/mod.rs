//! The ports: traits for everything outside of the program that the flows use, and their errors.
//!
//! Each port is a trait because it has two real implementations, and because tests inject failures.
//! Conflicts are outcomes in the `Ok` type; errors say what the caller does next.

mod attachments;
mod blobs;
mod demangler;
mod deriver;
mod difs;
mod error;
mod queues;
mod records;
mod roles;
mod secrets;
mod servers;
mod settings;
mod uploads;

pub use attachments::{Attachments, RemoteFailure, RemoteFile, RemoteFiles, RemotePart};
pub use blobs::{BlobPage, BlobStore, BlobSummary, Created, MAX_DELETES, NotDeleted};
pub use demangler::Demangler;
pub use deriver::{Deriver, ParseError, Parser, Scratch};
pub use difs::{DifError, DifListing, DifPage, DifReader, DifStat, ListedDif};
pub use error::{Fault, FaultKind};
pub use queues::{
    Needs, QueueMessage, Queues, ReadMessage, Received, ReconcileMessage, RequestedModule,
};
pub use records::{Consistency, Cursor, Page, RecordStore, Removed, Replaced, Segment};
pub use roles::{AwsRoles, RoleError};
pub use secrets::{SecretError, SecretName, SecretService, Secrets};
pub use servers::{Concerns, FileQuery, IncomingDif, ListQuery, ServerFailure, SymbolServers};
pub use settings::{MAX_SETTING_BYTES, SettingAddress, SettingError, StoredSettings};
pub use uploads::{UploadGate, UploadInParts, UploadPart};
