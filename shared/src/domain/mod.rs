//! The domain types: debug information files (DIFs), the ids of modules, the sources of DIFs, and
//! the reasons why a DIF or cache is missing.
//!
//! Nothing here depends on a wire format, a store, or the clock.

mod access;
mod access_token;
mod auxiliary;
mod backoff;
mod candidate;
mod causes;
mod companion;
mod definition;
mod features;
mod file_type;
mod grants;
mod inspection;
mod isolated_name;
mod layout;
mod missing;
mod ms_symcache;
mod object_id;
mod origin;
mod percent;
mod public_servers;
mod response_format;
#[cfg(feature = "openapi")]
pub(crate) mod schema;
mod scope;
mod sequencer;
mod server;
mod signed_request;
mod source;
mod source_checks;
mod source_links;
mod time;
mod trace;
mod trampoline;
mod upload_key;
mod web_page;

pub use access::{Access, AwsRole, GcsCredentials, S3Access, S3Credentials, S3Keys};
pub use access_token::AccessToken;
pub use auxiliary::{AuxiliaryFile, AuxiliaryId};
pub use backoff::Backoff;
pub use candidate::{Candidate, Download};
pub use causes::chain;
pub use companion::CompanionId;
pub use definition::ConfiguredSource;
pub use features::{Features, Purpose, Quality, Rank, VersionControl};
pub use file_type::{FileType, FilteredType, ObjectType, UnusedType};
pub use grants::{GrantedScope, Grants, InvalidRight, Right};
pub use inspection::{Inspection, ObjectMeta, Written, WrittenFile};
pub use isolated_name::{IsolatedName, READABLE};
pub use layout::{Casing, Formulae, SourceLayout, two_tiers};
pub use missing::{Cause, Missing};
pub use ms_symcache::{FormatVersion, InvalidFormatVersion, MsSymCacheName};
pub use object_id::{ModuleId, ObjectId};
pub use origin::{InvalidOrigin, OriginPattern};
pub(crate) use percent::RESERVED;
pub use response_format::ResponseFormat;
pub use scope::{InvalidScope, Scope};
pub use sequencer::Sequencer;
pub use server::{Filters, HttpSource, InvalidSource, PathPatterns, WithoutEffect};
pub use signed_request::SignedPut;
pub use source::{DifRef, Location, SOURCE_LINK_ID, SourceKey};
pub use source_checks::check_headers;
pub use source_links::{AllowedLink, SourceLinks, link_target};
pub use symbolic::common::{Arch, CodeId, DebugId, Language};
pub use time::Timestamp;
pub use trace::{InvalidSpanContext, Sampler, SamplerError, SpanContext, SpanId, TraceId};
pub(crate) use trampoline::{interrupts_its_caller, is_trampoline};
pub use upload_key::{InvalidUploadKey, original_name, original_path, upload_key};
pub(crate) use web_page::is_web_page;
