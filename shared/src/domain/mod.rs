//! The domain types: debug information files (DIFs), the ids of modules, the sources of DIFs, and
//! the reasons why a DIF or cache is missing.
//!
//! Nothing here depends on a wire format, a store, or the clock.

mod access;
mod candidate;
mod companion;
mod definition;
mod features;
mod file_type;
mod inspection;
mod isolated_name;
mod layout;
mod missing;
mod ms_symcache;
mod object_id;
mod public_servers;
mod scope;
mod sequencer;
mod server;
mod source;
mod time;

pub use access::{Access, AwsRole, GcsCredentials, S3Access, S3Credentials, S3Keys};
pub use candidate::{Candidate, Download};
pub use companion::CompanionId;
pub use definition::ConfiguredSource;
pub use features::{Features, Purpose, Quality, Rank};
pub use file_type::{AuxiliaryType, FileType, FilteredType, ObjectType};
pub use inspection::{Inspection, ObjectMeta, Written};
pub use isolated_name::{IsolatedName, READABLE};
pub use layout::{Casing, Formulae, SourceLayout, two_tiers};
pub use missing::{Cause, Missing};
pub use ms_symcache::{FormatVersion, InvalidFormatVersion, MsSymCacheName};
pub use object_id::{ModuleId, ObjectId};
pub use scope::{InvalidScope, Scope};
pub use sequencer::Sequencer;
pub use server::{Filters, HttpSource, InvalidSource, PathPatterns, WithoutEffect};
pub use source::{DifRef, Location, SourceKey};
pub use symbolic::common::{Arch, CodeId, DebugId, Language};
pub use time::Timestamp;
