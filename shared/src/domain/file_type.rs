//! Types of DIFs, and types of modules.

use serde::{Deserialize, Serialize};

/// The type of a DIF.
///
/// The order is the order of preference among otherwise equal DIFs: what a debugger would open
/// first comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FileType {
    /// A Windows executable or library.
    Pe,
    /// A Windows debug file.
    Pdb,
    /// A .NET debug file.
    #[serde(rename = "portablepdb")]
    PortablePdb,
    /// A Mach-O debug file (dSYM).
    MachDebug,
    /// A Mach-O executable or library.
    MachCode,
    /// An ELF debug file.
    ElfDebug,
    /// An ELF executable or library.
    ElfCode,
    /// A WebAssembly debug file.
    WasmDebug,
    /// A WebAssembly module.
    WasmCode,
    /// A Breakpad symbol file.
    Breakpad,
    /// An archive of source files.
    #[serde(rename = "sourcebundle")]
    SourceBundle,
    /// Microsoft's SymCache of a PDB.
    #[serde(rename = "ms_symcache")]
    MsSymCache,
    /// A property list that names the symbol map of a Mach-O file.
    #[serde(rename = "uuidmap")]
    UuidMap,
    /// A symbol map: the names that a Mach-O file hides.
    #[serde(rename = "bcsymbolmap")]
    BcSymbolMap,
    /// A line map: the lines of C# from which Unity generated C++.
    #[serde(rename = "il2cpp")]
    Il2Cpp,
}

impl FileType {
    /// Returns whether files of this type are ELF files.
    pub fn is_elf(self) -> bool {
        matches!(self, Self::ElfCode | Self::ElfDebug)
    }

    /// Returns whether files of this type are auxiliary: they complete the SymCache of another
    /// file, and nothing is derived from them alone.
    pub fn is_auxiliary(self) -> bool {
        matches!(self, Self::UuidMap | Self::BcSymbolMap | Self::Il2Cpp)
    }
}

/// A type of files that are never requested, and that Symbolicator's clients may filter by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum UnusedType {
    /// A mapping of obfuscated Java names.
    ProGuard,
}

/// A type of files in a filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "expected the type of a file")]
pub enum FilteredType {
    /// A type of DIFs.
    Dif(FileType),
    /// Another type, of which no file is searched.
    Unused(UnusedType),
    /// A type that this release does not know, so that no file has it. The operator's list may not
    /// have it, and requests may: newer clients know more types.
    #[cfg_attr(feature = "openapi", schemars(skip))]
    Unknown(String),
}

impl FilteredType {
    /// The types that this release knows, for messages.
    pub const KNOWN: &str = "`pe`, `pdb`, `portablepdb`, `mach_debug`, `mach_code`, `elf_debug`, \
                             `elf_code`, `wasm_debug`, `wasm_code`, `breakpad`, `sourcebundle`, \
                             `ms_symcache`, `uuidmap`, `bcsymbolmap`, `il2cpp`, `proguard`";
}

/// The type of a module in a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ObjectType {
    /// Linux, Android, BSD, consoles.
    Elf,
    /// macOS, iOS.
    Macho,
    /// Windows.
    Pe,
    /// .NET.
    PeDotnet,
    /// WebAssembly.
    Wasm,
    /// Anything else.
    #[default]
    Unknown,
}
