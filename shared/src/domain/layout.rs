//! Layouts: how symbol servers name files. A layout maps the ids and names of a module to the
//! possible paths of its DIFs.
//!
//! Sources: Breakpad's and `llvm-symbolizer`'s build-id directories (*native*), Microsoft's
//! "SymStore" and "SSQP Key Conventions" documents, elfutils' `debuginfod(8)`, and the *unified*
//! layout of `symsorter`.

use serde::{Deserialize, Serialize};

use super::{CodeId, CompanionId, DebugId, FileType, ObjectId, ObjectType};

/// The layout of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SourceLayout {
    /// The formulas.
    #[serde(rename = "type")]
    pub formulae: Formulae,
    /// The case of the whole path.
    pub casing: Casing,
}

/// The formulas of a layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Formulae {
    /// The paths that the debuggers of each platform use.
    #[default]
    Native,
    /// Microsoft's symbol server.
    Symstore,
    /// Microsoft's symbol server, with two tiers of directories.
    #[serde(rename = "symstore_index2")]
    SymstoreIndex2,
    /// A server for Microsoft's clients: the paths are those of `symstore`, in two
    /// tiers if the server says so. A `file.ptr` may refer to a missing file.
    Symsrv,
    /// Microsoft's simple symbol query protocol.
    Ssqp,
    /// The debuginfod server of elfutils.
    Debuginfod,
    /// The output of `symsorter`.
    Unified,
    /// One file per code id: `name/ID/symbols`.
    SlashSymbols,
}

/// The case of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Casing {
    /// Unchanged.
    #[default]
    Default,
    /// ASCII letters in lower case.
    Lowercase,
    /// ASCII letters in upper case.
    Uppercase,
}

/// The file that a server stores in place of a file that it does not have.
const POINTER: &str = "file.ptr";

/// The extension of source bundles.
const SOURCE_BUNDLE: &str = ".src.zip";

/// The maximum length of the path of a source file, in bytes.
const MAX_SOURCE_PATH_BYTES: usize = 4096;

/// The maximum length of a file name in a path, in bytes.
const MAX_NAME_BYTES: usize = 255;

impl ObjectType {
    /// Returns the types of DIFs that may serve a module of this type, in the order in which they
    /// are tried.
    pub const fn file_types(self) -> &'static [FileType] {
        use FileType::*;
        match self {
            ObjectType::Macho => &[MachCode, Breakpad, MachDebug, Pdb, ElfDebug, SourceBundle],
            ObjectType::Pe => &[Pe, Breakpad, MachDebug, Pdb, ElfDebug, SourceBundle],
            ObjectType::Elf => &[ElfCode, Breakpad, MachDebug, Pdb, ElfDebug, SourceBundle],
            ObjectType::Wasm => &[WasmCode, WasmDebug, SourceBundle],
            ObjectType::PeDotnet => &[PortablePdb, Pdb, SourceBundle],
            ObjectType::Unknown => &[
                Pdb,
                MachDebug,
                ElfDebug,
                Pe,
                MachCode,
                ElfCode,
                WasmCode,
                WasmDebug,
                Breakpad,
                PortablePdb,
                SourceBundle,
            ],
        }
    }
}

impl SourceLayout {
    /// Returns whether the layout has files of this type.
    pub fn has(&self, file_type: FileType) -> bool {
        self.formulae == Formulae::Unified || !file_type.is_auxiliary()
    }

    /// Returns the possible paths of a module's DIF of this type, likeliest first; none if the
    /// module lacks an input of the formula. No path has an empty segment or one that leads
    /// upwards.
    pub fn paths(&self, file_type: FileType, module: &ObjectId) -> Vec<String> {
        if self.formulae == Formulae::SlashSymbols {
            return self.slash_symbols(module);
        }
        if file_type == FileType::SourceBundle {
            return self.source_bundles(module);
        }
        let Some(path) = self.path(file_type, module) else {
            return Vec::new();
        };
        let Some(path) = self.cased(path) else {
            return Vec::new();
        };
        let mut paths = vec![path];
        if matches!(
            file_type,
            FileType::Pdb | FileType::Pe | FileType::PortablePdb
        ) && let Some((folder, file)) = paths[0].rsplit_once('/')
        {
            let mut letters = file.chars();
            letters.next_back();
            let compressed = format!("{folder}/{}_", letters.as_str());
            let pointer = format!("{folder}/{POINTER}");
            paths.push(compressed);
            paths.extend((self.formulae == Formulae::Symsrv).then_some(pointer));
        }
        paths
    }

    /// Returns the possible paths of a file that completes a module of ELF, likeliest first: the
    /// shared file of `dwz`, which has a build id of its own, or the package with the module's
    /// split units.
    ///
    /// No server gives a package a path of its own, except in directories of build ids. LLDB
    /// requests the package of a program as its debug file from debuginfod.
    pub fn companion_paths(&self, id: &CompanionId, module: &ObjectId) -> Vec<String> {
        let of_code_id = |code_id: Option<&CodeId>| ObjectId {
            code_id: code_id.cloned(),
            object_type: ObjectType::Elf,
            ..ObjectId::default()
        };
        match id {
            CompanionId::Shared(id) => self.paths(FileType::ElfDebug, &of_code_id(Some(id))),
            CompanionId::Unit(_) => {
                let module = of_code_id(module.code_id.as_ref());
                match self.formulae {
                    Formulae::Debuginfod => self.paths(FileType::ElfDebug, &module),
                    Formulae::Native => {
                        let id = module.code_id.as_ref().and_then(split_id);
                        let paths = id
                            .into_iter()
                            .flat_map(|id| [format!("{id}.dwp"), format!("{id}.debug.dwp")]);
                        paths.filter_map(|path| self.cased(path)).collect()
                    }
                    _ => Vec::new(),
                }
            }
            CompanionId::SymbolMap(id) => {
                let module = ObjectId {
                    debug_id: Some(*id),
                    ..ObjectId::default()
                };
                self.paths(FileType::BcSymbolMap, &module)
            }
        }
    }

    /// Returns the path of a source file of a module; `None` if the layout has no source files, or
    /// `source` is not an absolute path. Dots and repeated slashes in it are resolved as debuginfod
    /// resolves them, so that one file has one path.
    pub fn source_file(&self, module: &ObjectId, source: &str) -> Option<String> {
        let has_sources = self.formulae == Formulae::Debuginfod
            && matches!(module.object_type, ObjectType::Elf | ObjectType::Unknown);
        let is_sound = source.starts_with('/')
            && source.len() <= MAX_SOURCE_PATH_BYTES
            && !source.contains(char::is_control);
        if !has_sources || !is_sound {
            return None;
        }
        let mut segments = Vec::new();
        for segment in source.split('/') {
            match segment {
                "" | "." => {}
                ".." => {
                    segments.pop();
                }
                segment => segments.push(segment),
            }
        }
        let code_id = module.code_id.as_ref()?;
        self.cased(format!("{code_id}/source/{}", segments.join("/")))
    }

    /// Returns the paths with the code id in upper case and in lower case. They do not depend on
    /// the type of the file.
    fn slash_symbols(&self, module: &ObjectId) -> Vec<String> {
        let (Some(name), Some(id)) = (name(module.code_file.as_deref()), &module.code_id) else {
            return Vec::new();
        };
        let upper = id.as_str().to_ascii_uppercase();
        let ids = [upper.as_str(), id.as_str()];
        let mut paths: Vec<String> = ids
            .iter()
            .filter_map(|id| self.cased(format!("{name}/{id}/symbols")))
            .collect();
        paths.dedup();
        paths
    }

    /// Returns the paths of source bundles. Sentry's tools store them beside the debug file.
    fn source_bundles(&self, module: &ObjectId) -> Vec<String> {
        let paths = match self.formulae {
            Formulae::Native => native_source_bundles(module),
            Formulae::Symstore
            | Formulae::Symsrv
            | Formulae::SymstoreIndex2
            | Formulae::Ssqp
            | Formulae::Unified => self
                .path(FileType::SourceBundle, module)
                .into_iter()
                .collect(),
            Formulae::Debuginfod | Formulae::SlashSymbols => Vec::new(),
        };
        let mut paths: Vec<String> = paths
            .into_iter()
            .filter_map(|path| self.cased(path))
            .collect();
        paths.dedup();
        paths
    }

    /// Returns a path in the case of the layout; `None` if a segment is empty or leads upwards.
    fn cased(&self, path: String) -> Option<String> {
        let odd = |segment: &str| matches!(segment, "" | "." | "..");
        let is_odd = path.split('/').any(odd);
        (!is_odd).then(|| match self.casing {
            Casing::Default => path,
            Casing::Lowercase => path.to_ascii_lowercase(),
            Casing::Uppercase => path.to_ascii_uppercase(),
        })
    }

    fn path(&self, file_type: FileType, module: &ObjectId) -> Option<String> {
        match self.formulae {
            Formulae::Native => native(file_type, module),
            Formulae::Symstore | Formulae::Symsrv => symstore(file_type, module, Spelling::AsGiven),
            Formulae::SymstoreIndex2 => two_tiers(&symstore(file_type, module, Spelling::AsGiven)?),
            Formulae::Ssqp => symstore(file_type, module, Spelling::Ssqp),
            Formulae::Debuginfod => debuginfod(file_type, module),
            Formulae::Unified => unified(file_type, module),
            Formulae::SlashSymbols => None,
        }
    }
}

/// Returns the path in a parent folder that is named by its first two characters, or only by the
/// first if the second is a slash or a dot, or missing.
pub fn two_tiers(path: &str) -> Option<String> {
    let mut letters = path.chars();
    let first = letters.next()?;
    let tier: String = match letters.next() {
        Some(second) if !matches!(second, '/' | '.') => [first, second].iter().collect(),
        _ => first.to_string(),
    };
    Some(format!("{tier}/{path}"))
}

/// Returns a path with another extension in place of the last one, if it has one.
fn with_extension(path: &str, extension: &str) -> String {
    let name_at = path.rfind('/').map_or(0, |slash| slash + 1);
    let end = path[name_at..]
        .rfind('.')
        .map_or(path.len(), |dot| name_at + dot);
    format!("{}{extension}", &path[..end])
}

/// Returns the paths of source bundles: beside the debug file, and beside a Breakpad file.
fn native_source_bundles(module: &ObjectId) -> Vec<String> {
    let replacing = |path: String| with_extension(&path, SOURCE_BUNDLE);
    let appended = |path: String| format!("{path}{SOURCE_BUNDLE}");
    let beside = match module.object_type {
        ObjectType::Pe => windows(FileType::Pdb, module, Spelling::AsGiven).map(replacing),
        ObjectType::PeDotnet => {
            windows(FileType::PortablePdb, module, Spelling::AsGiven).map(replacing)
        }
        ObjectType::Macho => split_uuid(module).map(appended),
        ObjectType::Elf | ObjectType::Wasm => {
            let id = module.code_id.as_ref();
            id.and_then(split_id).map(appended)
        }
        ObjectType::Unknown => None,
    };
    let breakpad = native(FileType::Breakpad, module);
    let breakpad = breakpad.map(|path| {
        let stem = path.strip_suffix(".sym").unwrap_or(&path);
        format!("{stem}{SOURCE_BUNDLE}")
    });
    beside.into_iter().chain(breakpad).collect()
}

/// Whether names and ids keep their case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spelling {
    AsGiven,
    Ssqp,
}

fn native(file_type: FileType, module: &ObjectId) -> Option<String> {
    match file_type {
        FileType::ElfCode | FileType::WasmCode => split_id(module.code_id.as_ref()?),
        FileType::ElfDebug | FileType::WasmDebug => {
            Some(format!("{}.debug", split_id(module.code_id.as_ref()?)?))
        }
        FileType::MachCode => Some(format!("{}.app", split_uuid(module)?)),
        FileType::MachDebug => split_uuid(module),
        FileType::Breakpad if module.object_type == ObjectType::Wasm => None,
        FileType::Breakpad => {
            let name = name(module.debug_file.as_deref())?;
            let id = module.debug_id?.breakpad().to_string();
            let stem = name.strip_suffix(".pdb").unwrap_or(name);
            Some(format!("{name}/{id}/{stem}.sym"))
        }
        FileType::Pdb | FileType::PortablePdb | FileType::Pe => {
            windows(file_type, module, Spelling::AsGiven)
        }
        FileType::SourceBundle
        | FileType::MsSymCache
        | FileType::UuidMap
        | FileType::BcSymbolMap
        | FileType::Il2Cpp => None,
    }
}

fn symstore(file_type: FileType, module: &ObjectId, spelling: Spelling) -> Option<String> {
    let code_file = || spelled(name(module.code_file.as_deref())?, spelling);
    match file_type {
        FileType::ElfCode => {
            let (name, id) = (code_file()?, module.code_id.as_ref()?);
            Some(format!("{name}/elf-buildid-{id}/{name}"))
        }
        FileType::ElfDebug => {
            let id = module.code_id.as_ref()?;
            Some(format!("_.debug/elf-buildid-sym-{id}/_.debug"))
        }
        FileType::MachCode => {
            let (name, uuid) = (code_file()?, mach_uuid(module)?);
            Some(format!("{name}/mach-uuid-{uuid}/{name}"))
        }
        FileType::MachDebug => {
            let uuid = mach_uuid(module)?;
            Some(format!("_.dwarf/mach-uuid-sym-{uuid}/_.dwarf"))
        }
        FileType::Pdb | FileType::PortablePdb | FileType::Pe => {
            windows(file_type, module, spelling)
        }
        FileType::SourceBundle if module.object_type == ObjectType::Pe => {
            let beside = windows(FileType::Pdb, module, spelling)?;
            Some(with_extension(&beside, SOURCE_BUNDLE))
        }
        FileType::WasmCode
        | FileType::WasmDebug
        | FileType::Breakpad
        | FileType::SourceBundle
        | FileType::MsSymCache
        | FileType::UuidMap
        | FileType::BcSymbolMap
        | FileType::Il2Cpp => None,
    }
}

fn debuginfod(file_type: FileType, module: &ObjectId) -> Option<String> {
    let what = match file_type {
        FileType::ElfCode => "executable",
        FileType::ElfDebug => "debuginfo",
        _ => return None,
    };
    Some(format!("{}/{what}", module.code_id.as_ref()?))
}

fn unified(file_type: FileType, module: &ObjectId) -> Option<String> {
    let (id_of, what) = match file_type {
        FileType::Pe => (FileType::Pe, "executable"),
        FileType::MachCode | FileType::ElfCode | FileType::WasmCode => (file_type, "executable"),
        FileType::Pdb
        | FileType::PortablePdb
        | FileType::MachDebug
        | FileType::ElfDebug
        | FileType::WasmDebug => (file_type, "debuginfo"),
        FileType::Breakpad => (code_file_type(module.object_type)?, "breakpad"),
        FileType::SourceBundle => (code_file_type(module.object_type)?, "sourcebundle"),
        FileType::UuidMap => (file_type, "uuidmap"),
        FileType::BcSymbolMap => (file_type, "bcsymbolmap"),
        FileType::Il2Cpp => (code_file_type(module.object_type)?, "il2cpp"),
        FileType::MsSymCache => return None,
    };
    let id = match id_of {
        FileType::Pdb | FileType::Pe | FileType::PortablePdb => {
            module.debug_id?.breakpad().to_string().to_ascii_lowercase()
        }
        FileType::ElfCode | FileType::ElfDebug => module.code_id.as_ref()?.to_string(),
        _ => match &module.code_id {
            Some(id) => id.to_string(),
            None => module.debug_id?.uuid().simple().to_string(),
        },
    };
    let (head, rest) = id.split_at_checked(2)?;
    Some(format!("{head}/{rest}/{what}"))
}

/// Returns the type of the code file of a module.
fn code_file_type(object_type: ObjectType) -> Option<FileType> {
    match object_type {
        ObjectType::Elf => Some(FileType::ElfCode),
        ObjectType::Macho => Some(FileType::MachCode),
        ObjectType::Pe | ObjectType::PeDotnet => Some(FileType::Pe),
        ObjectType::Wasm => Some(FileType::WasmCode),
        ObjectType::Unknown => None,
    }
}

/// Returns the path of a PE, PDB or portable PDB file. Microsoft's layouts differ only in case.
fn windows(file_type: FileType, module: &ObjectId, spelling: Spelling) -> Option<String> {
    if file_type == FileType::Pe {
        let (name, id) = (
            spelled(name(module.code_file.as_deref())?, spelling)?,
            module.code_id.as_ref()?,
        );
        let id = match (spelling, id.as_str().split_at_checked(8)) {
            (Spelling::AsGiven, Some((time, size))) => {
                format!("{}{size}", time.to_ascii_uppercase())
            }
            _ => id.to_string(),
        };
        return Some(format!("{name}/{id}/{name}"));
    }
    let (name, id) = (
        spelled(name(module.debug_file.as_deref())?, spelling)?,
        module.debug_id?,
    );
    // A portable PDB has no age; servers use this value in its place.
    let is_portable =
        file_type == FileType::PortablePdb && module.object_type == ObjectType::PeDotnet;
    let id = if is_portable {
        DebugId::from_parts(id.uuid(), u32::MAX)
    } else {
        id
    };
    let id = match spelling {
        Spelling::AsGiven => id.breakpad().to_string(),
        Spelling::Ssqp => format!("{}{:X}", id.uuid().simple(), id.appendix()),
    };
    Some(format!("{name}/{id}/{name}"))
}

fn spelled(name: &str, spelling: Spelling) -> Option<String> {
    Some(match spelling {
        Spelling::AsGiven => name.to_owned(),
        Spelling::Ssqp => name.to_lowercase(),
    })
}

/// Returns the file name without folders, for Unix and Windows paths.
fn name(path: Option<&str>) -> Option<&str> {
    let name = path?.rsplit(['/', '\\']).next()?;
    let is_sound =
        !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.contains(char::is_control);
    is_sound.then_some(name)
}

fn split_id(id: &CodeId) -> Option<String> {
    let (head, rest) = id
        .as_str()
        .split_at_checked(2)
        .filter(|(_, rest)| !rest.is_empty())?;
    Some(format!("{head}/{rest}"))
}

/// Returns the UUID of a Mach-O file as five groups of four digits and one of twelve.
fn split_uuid(module: &ObjectId) -> Option<String> {
    let uuid = mach_uuid(module)?.to_ascii_uppercase();
    let (groups, rest) = uuid.split_at_checked(20)?;
    let mut path = String::with_capacity(37);
    for (index, digit) in groups.chars().enumerate() {
        if index > 0 && index % 4 == 0 {
            path.push('/');
        }
        path.push(digit);
    }
    path.push('/');
    path.push_str(rest);
    Some(path)
}

/// Returns the UUID of a Mach-O file in lower case: the code id, or else that of the debug id. A
/// module whose code id is no UUID is not a Mach-O file.
fn mach_uuid(module: &ObjectId) -> Option<String> {
    let uuid = match &module.code_id {
        Some(id) => uuid::Uuid::try_parse(id.as_str()).ok()?,
        None => module.debug_id?.uuid(),
    };
    Some(uuid.simple().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(object_type: ObjectType) -> ObjectId {
        let (debug_id, code_id, name) = match object_type {
            ObjectType::Elf => (
                "c0bcc3f1-9827-fe65-3058-404b2831d9e6",
                "f1c3bcc0279865fe3058404b2831d9e64135386c",
                "/usr/lib/libm-2.23.so",
            ),
            ObjectType::Macho => (
                "36deb0b8-7e4a-4ea9-8c6f-4d5f3e6a7b8c",
                "36deb0b87e4a4ea98c6f4d5f3e6a7b8c",
                "/System/CoreFoundation",
            ),
            ObjectType::Wasm => (
                "bda18fd8-5d42-f19a-7ba9-c33a5fbe0f5a",
                "bda18fd85d42f19a7ba9c33a5fbe0f5a11223344",
                "app.wasm",
            ),
            ObjectType::Pe | ObjectType::PeDotnet | ObjectType::Unknown => (
                "3249d99d-0c40-4931-8610-f4e4fb0b6936-1a",
                "5ab38077a9000",
                "C:\\Games\\Crash.exe",
            ),
        };
        let is_windows = name.contains('\\');
        ObjectId {
            debug_checksum: None,
            debug_id: Some(debug_id.parse().unwrap()),
            code_id: Some(CodeId::new(code_id.to_owned())),
            debug_file: Some(
                if is_windows {
                    "C:\\Games\\Crash.pdb"
                } else {
                    name
                }
                .to_owned(),
            ),
            code_file: Some(name.to_owned()),
            object_type,
        }
    }

    fn paths(formulae: Formulae, file_type: FileType, object_type: ObjectType) -> Vec<String> {
        let layout = SourceLayout {
            formulae,
            casing: Casing::Default,
        };
        layout.paths(file_type, &module(object_type))
    }

    /// One vector for each formula, derived by hand from its documentation.
    #[test]
    fn each_layout_names_each_type_of_file_as_documented() {
        use FileType::*;
        use Formulae::*;
        let elf = |formulae, file_type| paths(formulae, file_type, ObjectType::Elf);
        assert_eq!(
            elf(Native, ElfCode),
            ["f1/c3bcc0279865fe3058404b2831d9e64135386c"]
        );
        assert_eq!(
            elf(Native, ElfDebug),
            ["f1/c3bcc0279865fe3058404b2831d9e64135386c.debug"]
        );
        assert_eq!(
            elf(Native, Breakpad),
            ["libm-2.23.so/C0BCC3F19827FE653058404B2831D9E60/libm-2.23.so.sym"]
        );
        assert_eq!(
            elf(Symstore, ElfCode),
            ["libm-2.23.so/elf-buildid-f1c3bcc0279865fe3058404b2831d9e64135386c/libm-2.23.so"]
        );
        assert_eq!(
            elf(Ssqp, ElfDebug),
            ["_.debug/elf-buildid-sym-f1c3bcc0279865fe3058404b2831d9e64135386c/_.debug"]
        );
        assert_eq!(
            elf(SymstoreIndex2, ElfDebug),
            ["_/_.debug/elf-buildid-sym-f1c3bcc0279865fe3058404b2831d9e64135386c/_.debug"]
        );
        assert_eq!(
            elf(Debuginfod, ElfDebug),
            ["f1c3bcc0279865fe3058404b2831d9e64135386c/debuginfo"]
        );
        assert_eq!(
            elf(Debuginfod, ElfCode),
            ["f1c3bcc0279865fe3058404b2831d9e64135386c/executable"]
        );
        assert_eq!(
            elf(Unified, ElfDebug),
            ["f1/c3bcc0279865fe3058404b2831d9e64135386c/debuginfo"]
        );
        assert_eq!(
            elf(Unified, Breakpad),
            ["f1/c3bcc0279865fe3058404b2831d9e64135386c/breakpad"]
        );

        let macho = |formulae, file_type| paths(formulae, file_type, ObjectType::Macho);
        assert_eq!(
            macho(Native, MachDebug),
            ["36DE/B0B8/7E4A/4EA9/8C6F/4D5F3E6A7B8C"]
        );
        assert_eq!(
            macho(Native, MachCode),
            ["36DE/B0B8/7E4A/4EA9/8C6F/4D5F3E6A7B8C.app"]
        );
        assert_eq!(
            macho(Symstore, MachDebug),
            ["_.dwarf/mach-uuid-sym-36deb0b87e4a4ea98c6f4d5f3e6a7b8c/_.dwarf"]
        );
        assert_eq!(
            macho(Ssqp, MachCode),
            ["corefoundation/mach-uuid-36deb0b87e4a4ea98c6f4d5f3e6a7b8c/corefoundation"]
        );
        assert_eq!(
            macho(Unified, MachCode),
            ["36/deb0b87e4a4ea98c6f4d5f3e6a7b8c/executable"]
        );
        for (file_type, what) in [
            (UuidMap, "uuidmap"),
            (BcSymbolMap, "bcsymbolmap"),
            (Il2Cpp, "il2cpp"),
        ] {
            let path = format!("36/deb0b87e4a4ea98c6f4d5f3e6a7b8c/{what}");
            assert_eq!(macho(Unified, file_type), [path]);
            for formulae in [Native, Symstore, SymstoreIndex2, Symsrv, Ssqp, Debuginfod] {
                assert_eq!(macho(formulae, file_type), [""; 0]);
            }
            let has = |formulae| {
                let layout = SourceLayout {
                    formulae,
                    ..SourceLayout::default()
                };
                layout.has(file_type)
            };
            assert!(has(Unified) && !has(SlashSymbols) && !has(Native));
        }

        let pe = |formulae, file_type| paths(formulae, file_type, ObjectType::Pe);
        assert_eq!(
            pe(Native, Pdb),
            [
                "Crash.pdb/3249D99D0C4049318610F4E4FB0B69361a/Crash.pdb",
                "Crash.pdb/3249D99D0C4049318610F4E4FB0B69361a/Crash.pd_"
            ]
        );
        assert_eq!(
            pe(Symstore, Pe),
            [
                "Crash.exe/5AB38077a9000/Crash.exe",
                "Crash.exe/5AB38077a9000/Crash.ex_"
            ]
        );
        assert_eq!(
            pe(Symsrv, Pe),
            [
                "Crash.exe/5AB38077a9000/Crash.exe",
                "Crash.exe/5AB38077a9000/Crash.ex_",
                "Crash.exe/5AB38077a9000/file.ptr"
            ]
        );
        assert_eq!(elf(Symsrv, ElfCode), elf(Symstore, ElfCode));
        assert_eq!(
            pe(SymstoreIndex2, Pe)[0],
            "Cr/Crash.exe/5AB38077a9000/Crash.exe"
        );
        assert_eq!(
            pe(Ssqp, Pdb)[0],
            "crash.pdb/3249d99d0c4049318610f4e4fb0b69361A/crash.pdb"
        );
        assert_eq!(pe(Ssqp, Pe)[0], "crash.exe/5ab38077a9000/crash.exe");
        assert_eq!(
            pe(Native, Breakpad),
            ["Crash.pdb/3249D99D0C4049318610F4E4FB0B69361a/Crash.sym"]
        );
        assert_eq!(
            pe(Unified, Pdb)[0],
            "32/49d99d0c4049318610f4e4fb0b69361a/debuginfo"
        );
        assert_eq!(
            paths(Native, PortablePdb, ObjectType::PeDotnet),
            [
                "Crash.pdb/3249D99D0C4049318610F4E4FB0B6936ffffffff/Crash.pdb",
                "Crash.pdb/3249D99D0C4049318610F4E4FB0B6936ffffffff/Crash.pd_"
            ]
        );

        let wasm = |formulae, file_type| paths(formulae, file_type, ObjectType::Wasm);
        assert_eq!(
            wasm(Native, WasmDebug),
            ["bd/a18fd85d42f19a7ba9c33a5fbe0f5a11223344.debug"]
        );
        assert_eq!(
            wasm(Unified, WasmCode),
            ["bd/a18fd85d42f19a7ba9c33a5fbe0f5a11223344/executable"]
        );
        for nothing in [
            wasm(Symstore, WasmCode),
            wasm(Native, Breakpad),
            elf(Symstore, Breakpad),
            macho(Debuginfod, MachDebug),
        ] {
            assert!(nothing.is_empty(), "{nothing:?}");
        }
    }

    /// A vector for each layout, type of module and type of file. Each line has these three, and
    /// the paths. The lines were made by another implementation of the documented formulas, not by
    /// this code.
    #[test]
    fn each_layout_names_each_type_of_file_as_another_implementation_does() {
        let mut known = std::collections::BTreeSet::new();
        for line in include_str!("layout_vectors.txt").lines() {
            let mut words = line.split(' ');
            let mut word = || serde_json::Value::from(words.next().unwrap());
            let (layout, object_type, file_type) = (word(), word(), word());
            let formulae: Formulae = serde_json::from_value(layout).unwrap();
            let object_type: ObjectType = serde_json::from_value(object_type).unwrap();
            let file_type: FileType = serde_json::from_value(file_type).unwrap();
            let expected: Vec<&str> = words.collect();
            assert_eq!(paths(formulae, file_type, object_type), expected, "{line}");
            known.insert(format!("{formulae:?} {file_type:?}"));
        }
        // All layouts, and all types of files that a module of their own type may have.
        assert_eq!(known.len(), 8 * 11, "{known:?}");
    }

    /// By hand from the paths that Sentry's tools write, which append `.src.zip`.
    #[test]
    fn source_bundles_are_beside_the_debug_file_in_each_layout() {
        use Formulae::*;
        let bundles = |formulae, object_type| paths(formulae, FileType::SourceBundle, object_type);
        assert_eq!(
            bundles(Native, ObjectType::Elf),
            [
                "f1/c3bcc0279865fe3058404b2831d9e64135386c.src.zip",
                "libm-2.23.so/C0BCC3F19827FE653058404B2831D9E60/libm-2.23.so.src.zip"
            ]
        );
        assert_eq!(
            bundles(Native, ObjectType::Macho),
            [
                "36DE/B0B8/7E4A/4EA9/8C6F/4D5F3E6A7B8C.src.zip",
                "CoreFoundation/36DEB0B87E4A4EA98C6F4D5F3E6A7B8C0/CoreFoundation.src.zip"
            ]
        );
        // Both paths are the same for a PDB.
        assert_eq!(
            bundles(Native, ObjectType::Pe),
            ["Crash.pdb/3249D99D0C4049318610F4E4FB0B69361a/Crash.src.zip"]
        );
        assert_eq!(
            bundles(Native, ObjectType::PeDotnet),
            [
                "Crash.pdb/3249D99D0C4049318610F4E4FB0B6936ffffffff/Crash.src.zip",
                "Crash.pdb/3249D99D0C4049318610F4E4FB0B69361a/Crash.src.zip"
            ]
        );
        assert_eq!(
            bundles(Native, ObjectType::Wasm),
            ["bd/a18fd85d42f19a7ba9c33a5fbe0f5a11223344.src.zip"]
        );
        assert_eq!(
            bundles(Symstore, ObjectType::Pe),
            ["Crash.pdb/3249D99D0C4049318610F4E4FB0B69361a/Crash.src.zip"]
        );
        assert_eq!(
            bundles(SymstoreIndex2, ObjectType::Pe),
            ["Cr/Crash.pdb/3249D99D0C4049318610F4E4FB0B69361a/Crash.src.zip"]
        );
        assert_eq!(
            bundles(Ssqp, ObjectType::Pe),
            ["crash.pdb/3249d99d0c4049318610f4e4fb0b69361A/crash.src.zip"]
        );
        assert_eq!(
            bundles(Unified, ObjectType::Elf),
            ["f1/c3bcc0279865fe3058404b2831d9e64135386c/sourcebundle"]
        );
        assert_eq!(
            bundles(Unified, ObjectType::Pe),
            ["32/49d99d0c4049318610f4e4fb0b69361a/sourcebundle"]
        );
        for (formulae, object_type) in [
            (Debuginfod, ObjectType::Elf),
            (Symstore, ObjectType::Elf),
            (Symstore, ObjectType::PeDotnet),
            (Unified, ObjectType::Unknown),
        ] {
            let none = bundles(formulae, object_type);
            assert!(none.is_empty(), "{none:?}");
        }
    }

    #[test]
    fn casing_applies_to_the_whole_path() {
        let paths = |casing| {
            SourceLayout {
                formulae: Formulae::Native,
                casing,
            }
            .paths(FileType::MachCode, &module(ObjectType::Macho))
        };
        assert_eq!(
            paths(Casing::Lowercase),
            ["36de/b0b8/7e4a/4ea9/8c6f/4d5f3e6a7b8c.app"]
        );
        assert_eq!(
            paths(Casing::Uppercase),
            ["36DE/B0B8/7E4A/4EA9/8C6F/4D5F3E6A7B8C.APP"]
        );
    }

    #[test]
    fn no_name_leads_to_a_path_outside_of_the_source() {
        for name in [
            "..",
            "a/..",
            "a\\..",
            ".",
            "",
            "a/",
            "a\nb",
            &"x".repeat(256),
        ] {
            for object_type in [ObjectType::Elf, ObjectType::Pe] {
                let odd = ObjectId {
                    code_file: Some(name.to_owned()),
                    debug_file: Some(name.to_owned()),
                    ..module(object_type)
                };
                for formulae in [Formulae::Native, Formulae::Symstore, Formulae::Ssqp] {
                    let layout = SourceLayout {
                        formulae,
                        casing: Casing::Default,
                    };
                    for file_type in [FileType::Pdb, FileType::Pe, FileType::Breakpad] {
                        let paths = layout.paths(file_type, &odd);
                        assert!(paths.is_empty(), "{name:?} {formulae:?}: {paths:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn slash_symbols_depend_on_the_name_and_the_code_id_alone() {
        let layout: SourceLayout = serde_json::from_str(r#"{"type": "slashsymbols"}"#).unwrap();
        let module = module(ObjectType::Elf);
        for file_type in [FileType::ElfCode, FileType::Breakpad] {
            let paths = layout.paths(file_type, &module);
            let [upper, lower] = paths.as_slice() else {
                panic!("{paths:?}")
            };
            assert!(upper.ends_with("/symbols") && lower.ends_with("/symbols"));
            assert_ne!(upper, lower);
            assert_eq!(upper.to_ascii_lowercase(), lower.to_ascii_lowercase());
        }
        let nameless = ObjectId {
            code_file: None,
            ..module
        };
        assert_eq!(layout.paths(FileType::ElfCode, &nameless), [""; 0]);
    }

    #[test]
    fn companions_are_at_paths_of_build_ids() {
        let module = ObjectId {
            code_id: Some(CodeId::new("0123456789abcdef".to_owned())),
            ..ObjectId::default()
        };
        let paths = |formulae, id: &CompanionId| {
            let layout = SourceLayout {
                formulae,
                casing: Casing::Default,
            };
            layout.companion_paths(id, &module)
        };
        let shared = CompanionId::Shared(CodeId::new("fedc98".to_owned()));
        let unit = CompanionId::unit(7);
        for (formulae, of_shared, of_package) in [
            (
                Formulae::Native,
                &["fe/dc98.debug"][..],
                &["01/23456789abcdef.dwp", "01/23456789abcdef.debug.dwp"][..],
            ),
            (
                Formulae::Debuginfod,
                &["fedc98/debuginfo"],
                &["0123456789abcdef/debuginfo"],
            ),
            (Formulae::Unified, &["fe/dc98/debuginfo"], &[]),
            (
                Formulae::Symstore,
                &["_.debug/elf-buildid-sym-fedc98/_.debug"],
                &[],
            ),
            (
                Formulae::Ssqp,
                &["_.debug/elf-buildid-sym-fedc98/_.debug"],
                &[],
            ),
            (Formulae::SlashSymbols, &[], &[]),
        ] {
            assert_eq!(paths(formulae, &shared), of_shared, "{formulae:?}");
            assert_eq!(paths(formulae, &unit), of_package, "{formulae:?}");
        }
        let without_id = SourceLayout::default();
        let paths = without_id.companion_paths(&unit, &ObjectId::default());
        assert_eq!(paths, [""; 0]);
    }

    #[test]
    fn a_layout_is_written_as_symbolicator_writes_it() {
        let layout: SourceLayout =
            serde_json::from_str(r#"{"type": "symstore_index2", "casing": "lowercase"}"#).unwrap();
        assert_eq!(
            layout,
            SourceLayout {
                formulae: Formulae::SymstoreIndex2,
                casing: Casing::Lowercase
            }
        );
        assert_eq!(
            serde_json::from_str::<SourceLayout>("{}").unwrap(),
            SourceLayout::default()
        );
        assert!(serde_json::from_str::<SourceLayout>(r#"{"type": "natve"}"#).is_err());
    }
}
