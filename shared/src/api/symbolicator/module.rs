//! Modules, in requests and in responses.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use super::{CandidateReport, Hex};
use crate::domain::{CodeId, DebugId, Features, ObjectId, ObjectType};

/// A module of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Module {
    /// The type of the module.
    #[serde(rename = "type", deserialize_with = "object_type")]
    #[cfg_attr(
        feature = "openapi",
        schemars(schema_with = "crate::api::schema::module_type")
    )]
    pub object_type: ObjectType,
    /// The code id.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "code_id"
    )]
    #[cfg_attr(
        feature = "openapi",
        schemars(schema_with = "crate::api::schema::module_code_id")
    )]
    pub code_id: Option<CodeId>,
    /// The name of the code file, with its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_file: Option<Arc<str>>,
    /// The debug id.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "debug_id"
    )]
    #[cfg_attr(
        feature = "openapi",
        schemars(schema_with = "crate::api::schema::module_debug_id")
    )]
    pub debug_id: Option<DebugId>,
    /// The name of the debug file, with its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debug_file: Option<String>,
    /// The checksum of the debug file, in the form that symbol servers of .NET packages expect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debug_checksum: Option<String>,
    /// The load address; zero if the module has no place in the address space of the process.
    #[serde(default)]
    pub image_addr: Hex,
    /// The size in memory. Without it, the module extends to the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_size: Option<u64>,
}

impl Module {
    /// Returns the type with this name; `Unknown` for unknown names.
    pub fn type_named(name: &str) -> ObjectType {
        match name {
            "elf" => ObjectType::Elf,
            "macho" => ObjectType::Macho,
            "pe" => ObjectType::Pe,
            "pe_dotnet" => ObjectType::PeDotnet,
            "wasm" => ObjectType::Wasm,
            _ => ObjectType::Unknown,
        }
    }
}

/// A module, with the results for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct CompletedModule {
    /// The status of its debug information.
    pub debug_status: ModuleStatus,
    /// The status of its unwind information, if it was needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwind_status: Option<ModuleStatus>,
    /// What is wrong with its debug information, for people, if there is more to say than that it
    /// is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debug_detail: Option<String>,
    /// The features of the file that was found.
    pub features: Features,
    /// The architecture; unknown until a cache for the module was read.
    pub arch: String,
    /// The module, as it was sent.
    #[serde(flatten)]
    pub module: Module,
    /// The DIFs that were considered for it, if the request asked for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<CandidateReport>,
}

/// The status of a module's debug or unwind information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ModuleStatus {
    /// It was found.
    Found,
    /// No frame lies in the module.
    Unused,
    /// No source has it.
    Missing,
    /// The DIF cannot be parsed.
    Malformed,
    /// A source failed or denied access.
    FetchingFailed,
    /// A source took too long.
    Timeout,
    /// The DIF is of a kind that cannot be used.
    Unsupported,
    /// Any other failure.
    Other,
}

impl Module {
    /// Returns the ids and names that the module is looked up by.
    pub fn object_id(&self) -> ObjectId {
        ObjectId {
            debug_checksum: self.debug_checksum.clone(),
            debug_id: self.debug_id,
            code_id: self.code_id.clone(),
            debug_file: self.debug_file.clone(),
            code_file: self.code_file.as_deref().map(str::to_owned),
            object_type: self.object_type,
        }
    }
}

/// Parses a type of module. Unknown texts are of unknown type.
fn object_type<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectType, D::Error> {
    Ok(Module::type_named(&Cow::<str>::deserialize(deserializer)?))
}

/// Parses a code id; `None` if it has no digits.
fn code_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<CodeId>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.map(CodeId::new).filter(|id| !id.is_nil()))
}

/// Parses a debug id; `None` if it is invalid.
fn debug_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DebugId>, D::Error> {
    let text = Option::<Cow<str>>::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.parse().ok()))
}
