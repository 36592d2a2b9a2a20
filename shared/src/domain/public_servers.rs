//! Public symbol servers that `SOURCES` may list by name.
//!
//! None is searched unless the operator lists it: a query tells the server which modules crashed.
//!
//! Sources of the addresses: the built-in repositories in Sentry's documentation ("Symbol
//! Servers"), and the list of public servers on elfutils' page about debuginfod
//! (<https://sourceware.org/elfutils/Debuginfod.html>).

use serde_json::{Value, json};

use super::{FileType, Formulae};

/// A public symbol server.
struct PublicServer {
    name: &'static str,
    url: &'static str,
    layout: Formulae,
    filetypes: &'static [FileType],
    path_patterns: &'static [&'static str],
    /// Whether it serves only requests with the checksum of the file.
    requires_checksum: bool,
    /// The user agent that it requires.
    user_agent: Option<&'static str>,
}

const WINDOWS: &[FileType] = &[FileType::Pe, FileType::Pdb];
/// The files of debuginfod servers. They also have single source files.
const ELF: &[FileType] = &[
    FileType::ElfCode,
    FileType::ElfDebug,
    FileType::SourceBundle,
];

const fn symstore(name: &'static str, url: &'static str) -> PublicServer {
    PublicServer {
        name,
        url,
        layout: Formulae::Symstore,
        filetypes: WINDOWS,
        path_patterns: &[],
        requires_checksum: false,
        user_agent: None,
    }
}

const fn debuginfod(name: &'static str, url: &'static str) -> PublicServer {
    PublicServer {
        layout: Formulae::Debuginfod,
        filetypes: ELF,
        ..symstore(name, url)
    }
}

const SERVERS: [PublicServer; 17] = [
    symstore("amd", "https://download.amd.com/dir/bin/"),
    debuginfod("arch", "https://debuginfod.archlinux.org/buildid/"),
    symstore("autodesk", "http://symbols.autodesk.com/"),
    symstore(
        "chromium",
        "https://chromium-browser-symsrv.commondatastorage.googleapis.com/",
    ),
    symstore("citrix", "http://ctxsym.citrix.com/symbols/"),
    debuginfod("debian", "https://debuginfod.debian.net/buildid/"),
    PublicServer {
        layout: Formulae::Native,
        filetypes: &[FileType::Pdb, FileType::Breakpad, FileType::SourceBundle],
        path_patterns: &[
            "*electron*",
            "*ffmpeg*",
            "*libEGL*",
            "*libGLESv2*",
            "*node*",
            "*slack*",
            "*vk_swiftshader*",
        ],
        ..symstore("electron", "https://symbols.electronjs.org/")
    },
    debuginfod("elfutils", "https://debuginfod.elfutils.org/buildid/"),
    debuginfod("fedora", "https://debuginfod.fedoraproject.org/buildid/"),
    PublicServer {
        user_agent: Some("curl/7.72.0"),
        ..symstore(
            "intel",
            "https://software.intel.com/sites/downloads/symbols/",
        )
    },
    PublicServer {
        filetypes: &[FileType::Pe, FileType::Pdb, FileType::PortablePdb],
        ..symstore("microsoft", "https://msdl.microsoft.com/download/symbols/")
    },
    // Breakpad files have paths in the native layout only. The paths of PE and PDB are the same in
    // both.
    PublicServer {
        layout: Formulae::Native,
        filetypes: &[FileType::Pe, FileType::Pdb, FileType::Breakpad],
        ..symstore("mozilla", "https://symbols.mozilla.org/")
    },
    PublicServer {
        filetypes: &[FileType::PortablePdb],
        requires_checksum: true,
        ..symstore("nuget", "https://symbols.nuget.org/download/symbols/")
    },
    symstore("nvidia", "https://driver-symbols.nvidia.com/"),
    debuginfod("opensuse", "https://debuginfod.opensuse.org/buildid/"),
    debuginfod("ubuntu", "https://debuginfod.ubuntu.com/buildid/"),
    symstore("unity", "http://symbolserver.unity3d.com/"),
];

/// Returns the definition of the public server with this name; `None` if no server has it.
pub(super) fn named(name: &str) -> Option<Value> {
    let server = SERVERS.iter().find(|server| server.name == name)?;
    let mut definition = json!({
        "type": "http",
        "id": server.name,
        "url": server.url,
        "layout": {"type": server.layout},
        "filters": {
            "filetypes": server.filetypes,
            "path_patterns": server.path_patterns,
            "requires_checksum": server.requires_checksum,
        },
        "is_public": true,
    });
    if let Some(agent) = server.user_agent {
        definition["headers"] = json!({"user-agent": agent});
    }
    Some(definition)
}

/// Returns the names of all public servers, in alphabetical order.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    SERVERS.iter().map(|server| server.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{ConfiguredSource, HttpSource, ObjectId, ObjectType};

    fn source(name: &str) -> HttpSource {
        let ConfiguredSource(source) = serde_json::from_value(json!(name)).expect(name);
        source
    }

    #[test]
    fn every_name_is_a_valid_public_source_and_in_the_documentation() {
        let documents = include_str!("../../../docs/settings.md");
        assert!(names().is_sorted());
        for name in names() {
            let source = source(name);
            source.check_limits().expect(name);
            assert!(source.is_public && !source.is_private, "{name}");
            assert!(documents.contains(&format!("`{name}`")), "{name}");
            assert!(documents.contains(source.url.as_str()), "{name}");
        }
        let unknown = serde_json::from_value::<ConfiguredSource>(json!("unheard-of"));
        let problem = unknown.unwrap_err().to_string();
        assert!(problem.contains("expected one of amd, arch"), "{problem}");
    }

    fn located(name: &str, module: &ObjectId) -> Vec<String> {
        let locations = source(name).locations(module).into_iter();
        locations
            .map(|(_, location)| location.to_string())
            .collect()
    }

    #[test]
    fn modules_are_searched_at_the_paths_that_each_server_documents() {
        let elf = ObjectId {
            code_id: Some(crate::domain::CodeId::new("aabbcc".into())),
            object_type: ObjectType::Elf,
            ..ObjectId::default()
        };
        assert_eq!(
            located("ubuntu", &elf),
            [
                "https://debuginfod.ubuntu.com/buildid/aabbcc/executable",
                "https://debuginfod.ubuntu.com/buildid/aabbcc/debuginfo"
            ]
        );
        let file = source("ubuntu").source_file(&elf, "/src/a.c").unwrap();
        assert_eq!(
            file.as_str(),
            "https://debuginfod.ubuntu.com/buildid/aabbcc/source/src/a.c"
        );
        assert_eq!(located("microsoft", &elf), [""; 0]);
        let firefox = ObjectId {
            debug_id: "44E4EC8C-2F41-492B-9369-D6B9A059577C-2".parse().ok(),
            debug_file: Some("xul.pdb".to_owned()),
            object_type: ObjectType::Pe,
            ..ObjectId::default()
        };
        assert_eq!(
            located("mozilla", &firefox)[0],
            "https://symbols.mozilla.org/xul.pdb/44E4EC8C2F41492B9369D6B9A059577C2/xul.sym"
        );
    }
}
