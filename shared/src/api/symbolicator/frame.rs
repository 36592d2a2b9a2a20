//! Frames, in requests and in responses.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::value::RawValue;

use super::Hex;
use crate::domain::Language;

/// A frame of a stack trace. Texts that several frames share are stored once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Frame {
    /// The platform of this frame, if it differs from that of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Arc<str>>,
    /// What `instruction_addr` is relative to.
    #[serde(default, skip_serializing_if = "AddrMode::is_abs")]
    pub addr_mode: AddrMode,
    /// The address: that of the instruction in the topmost frame, the return address in its
    /// callers. In .NET, the offset in IL.
    pub instruction_addr: Hex,
    /// Whether to look up the instruction before the address. Without it, a heuristic decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adjust_instruction_addr: Option<bool>,
    /// The row of the function in the `MethodDef` table of a .NET module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function_id: Option<Hex>,
    /// The code file of the module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<Arc<str>>,
    /// The language of the function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schemars(with = "Option<crate::domain::schema::LanguageName>")
    )]
    pub lang: Option<Language>,
    /// The name of the function in the symbol table, mangled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symbol: Option<Arc<str>>,
    /// Where the function begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sym_addr: Option<Hex>,
    /// The name of the function for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<Arc<str>>,
    /// The name of the source file, without its folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filename: Option<Arc<str>>,
    /// The path of the source file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abs_path: Option<Arc<str>>,
    /// The line in the source file; zero if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineno: Option<u32>,
    /// The source lines before the line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pre_context: Vec<String>,
    /// The source line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_line: Option<String>,
    /// The source lines after the line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub post_context: Vec<String>,
    /// The URL of the source file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_link: Option<String>,
    /// Whether the frame belongs to the application.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_app: Option<bool>,
    /// The variables of the function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vars: Option<Variables>,
    /// How the stack walker found the frame.
    #[serde(default, skip_serializing_if = "FrameTrust::is_none")]
    pub trust: FrameTrust,
}

/// The variables of a function: a JSON object that is passed on as the text that was sent. Parsed,
/// it would take a hundred times the memory.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct Variables(Arc<RawValue>);

impl PartialEq for Variables {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

impl<'de> Deserialize<'de> for Variables {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Box::<RawValue>::deserialize(deserializer)?;
        if value.get().starts_with('{') {
            Ok(Self(value.into()))
        } else {
            Err(de::Error::custom("expected an object of variables"))
        }
    }
}

/// A frame of a response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct CompletedFrame {
    /// The status.
    pub status: FrameStatus,
    /// The index of the corresponding frame in the request, counted from the callee, if there is
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original_index: Option<usize>,
    /// The frame.
    #[serde(flatten)]
    pub frame: Frame,
}

/// The result of looking up a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FrameStatus {
    /// A function covers its address.
    Symbolicated,
    /// No function of the module covers its address.
    MissingSymbol,
    /// No module covers its address.
    UnknownImage,
    /// Its module has no debug information.
    Missing,
    /// The debug information of its module cannot be parsed.
    Malformed,
}

/// What an address is relative to.
///
/// ```
/// use symdepot::api::symbolicator::AddrMode;
///
/// assert_eq!("rel:3".parse(), Ok(AddrMode::Rel(3)));
/// assert_eq!(AddrMode::Rel(3).to_string(), "rel:3");
/// assert!("rel:-1".parse::<AddrMode>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AddrMode {
    /// Nothing: the address is absolute.
    #[default]
    Abs,
    /// The start of the module with this index in the request's modules.
    Rel(usize),
}

/// A text that is not an [`AddrMode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected \"abs\", or \"rel:\" followed by the index of a module")]
pub struct InvalidAddrMode;

/// How a stack walker found a frame, the least trusted first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum FrameTrust {
    /// Unknown.
    #[default]
    None,
    /// By searching the stack for possible return addresses.
    Scan,
    /// By searching the stack with the help of unwind information.
    CfiScan,
    /// By the frame pointer.
    Fp,
    /// By unwind information.
    Cfi,
    /// By the client.
    PreWalked,
    /// From the registers.
    Context,
}

impl AddrMode {
    fn is_abs(&self) -> bool {
        matches!(self, AddrMode::Abs)
    }
}

impl fmt::Display for AddrMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddrMode::Abs => f.write_str("abs"),
            AddrMode::Rel(index) => write!(f, "rel:{index}"),
        }
    }
}

impl FromStr for AddrMode {
    type Err = InvalidAddrMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "abs" {
            return Ok(AddrMode::Abs);
        }
        let index = text.strip_prefix("rel:").ok_or(InvalidAddrMode)?;
        if !index.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(InvalidAddrMode);
        }
        index
            .parse()
            .map(AddrMode::Rel)
            .map_err(|_| InvalidAddrMode)
    }
}

impl Serialize for AddrMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AddrMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl FrameTrust {
    fn is_none(&self) -> bool {
        matches!(self, FrameTrust::None)
    }
}
