//! Modules, as they are sent and as they come back.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use super::{CandidateReport, Hex};
use crate::domain::{CodeId, DebugId, Features, ObjectId, ObjectType};

/// A module of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// What kind of module it is.
    #[serde(rename = "type", deserialize_with = "object_type")]
    pub object_type: ObjectType,
    /// Identity of the code file.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "code_id"
    )]
    pub code_id: Option<CodeId>,
    /// Name of the code file, path included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_file: Option<Arc<str>>,
    /// Identity of the debug file.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "debug_id"
    )]
    pub debug_id: Option<DebugId>,
    /// Name of the debug file, path included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debug_file: Option<String>,
    /// Checksum of the debug file, as symbol servers of .NET packages want it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debug_checksum: Option<String>,
    /// Where it is mapped; zero where it has no place in the address space of the process.
    #[serde(default)]
    pub image_addr: Hex,
    /// Its size in memory; without it, it reaches to the next module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_size: Option<u64>,
}

impl Module {
    /// Returns the type with this name; what nobody knows is of unknown type.
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

/// A module, and what was found for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompletedModule {
    /// What came of looking for its debug information.
    pub debug_status: ModuleStatus,
    /// What came of looking for its unwind information, if anybody wanted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwind_status: Option<ModuleStatus>,
    /// What exactly is wrong with its debug information, for a human, where there is more to say than that it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debug_detail: Option<String>,
    /// What was found offers this.
    pub features: Features,
    /// Its architecture; unknown until a cache for it was read.
    pub arch: String,
    /// The module, as it was sent.
    #[serde(flatten)]
    pub module: Module,
    /// The DIFs considered for it, if the request asked for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<CandidateReport>,
}

/// What came of looking for what a module needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModuleStatus {
    /// It is here.
    Found,
    /// No frame lies in the module.
    Unused,
    /// No source has it.
    Missing,
    /// It cannot be read.
    Malformed,
    /// A source failed, or refused to hand it out.
    FetchingFailed,
    /// A source took too long.
    Timeout,
    /// It is of a kind that does not serve.
    Unsupported,
    /// Something else.
    Other,
}

impl Module {
    /// Returns what the module is looked up by.
    pub fn object_id(&self) -> ObjectId {
        ObjectId {
            debug_id: self.debug_id,
            code_id: self.code_id.clone(),
            debug_file: self.debug_file.clone(),
            code_file: self.code_file.as_deref().map(str::to_owned),
            object_type: self.object_type,
        }
    }
}

/// Reads a type of module; any text that is none is an unknown one.
fn object_type<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectType, D::Error> {
    Ok(Module::type_named(&Cow::<str>::deserialize(deserializer)?))
}

/// Reads a code id; one without any digits is none.
fn code_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<CodeId>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.map(CodeId::new).filter(|id| !id.is_nil()))
}

/// Reads a debug id; one that cannot be read is none.
fn debug_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DebugId>, D::Error> {
    let text = Option::<Cow<str>>::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.parse().ok()))
}
