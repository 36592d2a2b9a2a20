//! The ids and names of a module and its objects.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CodeId, CompanionId, DebugId, ObjectType};

/// The option by which a linker gives a program a build id, and that of Go's linker, as advice
/// names them.
pub const BUILD_ID_OPTION: &str =
    "-Wl,--build-id (Go: -ldflags=-B=gobuildid; before Go 1.22: -ldflags=-B=0x<new hex id>)";

/// The ids and names that a module of a crash is looked up by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObjectId {
    /// The debug id.
    pub debug_id: Option<DebugId>,
    /// The code id.
    pub code_id: Option<CodeId>,
    /// The name of the debug file, with its path.
    pub debug_file: Option<String>,
    /// The name of the code file, with its path.
    pub code_file: Option<String>,
    /// A checksum of the debug file, as the crash names it, for example `SHA256:…`. Some servers
    /// require it.
    pub debug_checksum: Option<String>,
    /// The type of the module.
    pub object_type: ObjectType,
}

impl ObjectId {
    /// Returns whether its names are those of the binaries into which Unity compiles C#.
    ///
    /// Source: Unity, "IL2CPP Overview" and the manual of each platform: `GameAssembly` (desktop),
    /// `libil2cpp` (Android), `UnityFramework` (iOS), `Il2CppUserAssembly` (consoles).
    pub fn may_be_of_unity(&self) -> bool {
        const NAMES: [&str; 3] = ["gameassembly", "il2cpp", "unityframework"];
        let names = self.code_file.iter().chain(&self.debug_file);
        let mut names = names.filter_map(|path| path.rsplit(['/', '\\']).next());
        names.any(|name| {
            let name = name.to_ascii_lowercase();
            NAMES.iter().any(|known| name.contains(known))
        })
    }
}

/// The id that a module's entries are filed under: its debug id, or else its code id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModuleId {
    /// By debug id.
    Debug(DebugId),
    /// By code id, if there is no debug id.
    Code(CodeId),
    /// By companion id, under which a file and its companion find each other. No crash refers to
    /// it, and no cache is built for it.
    Companion(CompanionId),
}

impl ModuleId {
    /// Returns the id to file under; `None` if there are no ids or only nil ids.
    pub fn of(debug_id: Option<DebugId>, code_id: Option<&CodeId>) -> Option<Self> {
        match (debug_id, code_id) {
            (Some(id), _) if !id.is_nil() => Some(Self::Debug(id)),
            (_, Some(id)) if !is_nil(id) => Some(Self::Code(id.clone())),
            _ => None,
        }
    }
}

impl ModuleId {
    /// Reads the text of an id, as it is displayed; `None` if it is not one.
    pub fn of_text(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("debug_id", id) => id.parse().ok().map(Self::Debug),
            ("code_id", id) => Some(Self::Code(CodeId::new(id.to_owned()))),
            ("companion", id) => CompanionId::of_text(id).map(Self::Companion),
            _ => None,
        }
    }
}

/// Returns whether a code id is nil: empty or all zeros.
fn is_nil(id: &CodeId) -> bool {
    id.as_str().bytes().all(|digit| digit == b'0')
}

impl fmt::Display for ModuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Debug(id) => write!(f, "debug_id:{id}"),
            Self::Code(id) => write!(f, "code_id:{id}"),
            Self::Companion(id) => write!(f, "companion:{id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_id_is_parsed_as_it_is_written() {
        let code = CodeId::new("f1c3bcc0".into());
        for id in [
            ModuleId::Debug("502fc0a5-1ec1-3e47-9998-684fa139dca7-a".parse().unwrap()),
            ModuleId::Code(code.clone()),
            ModuleId::Companion(CompanionId::unit(7)),
            ModuleId::Companion(CompanionId::Shared(code)),
            ModuleId::Companion(CompanionId::SymbolMap(
                "502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap(),
            )),
        ] {
            assert_eq!(ModuleId::of_text(&id.to_string()), Some(id));
        }
        for text in ["", "debug_id:x", "companion:x", "module:1", "{}"] {
            assert_eq!(ModuleId::of_text(text), None, "{text}");
        }
    }

    #[test]
    fn a_binary_of_unity_is_known_by_its_name() {
        let named = |code_file: &str, debug_file: &str| {
            let module = ObjectId {
                code_file: Some(code_file.to_owned()),
                debug_file: Some(debug_file.to_owned()),
                ..ObjectId::default()
            };
            module.may_be_of_unity()
        };
        assert!(named(r"C:\Game\GameAssembly.dll", "GameAssembly.pdb"));
        assert!(named("/data/app/lib/arm64/libil2cpp.so", "libil2cpp.so"));
        assert!(named(
            "/App/Frameworks/UnityFramework.framework/UnityFramework",
            ""
        ));
        assert!(!named("/usr/lib/libc.so.6", "libc.so.6.debug"));
        assert!(!named("/il2cpp/app", r"C:\UnityFramework\a.pdb"));
    }

    #[test]
    fn a_module_is_filed_under_its_debug_id_and_never_under_a_nil_id() {
        let debug: DebugId = "502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap();
        let code = CodeId::new("f1c3bcc0".into());
        assert_eq!(
            ModuleId::of(Some(debug), Some(&code)),
            Some(ModuleId::Debug(debug))
        );
        assert_eq!(
            ModuleId::of(Some(DebugId::nil()), Some(&code)),
            Some(ModuleId::Code(code))
        );
        assert_eq!(
            ModuleId::of(Some(DebugId::nil()), Some(&CodeId::new("0000".into()))),
            None
        );
        assert_eq!(ModuleId::of(None, None), None);
    }
}
