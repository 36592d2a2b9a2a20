//! Advice: the reason why a response is incomplete, and what to do next. This is the only table of
//! causes, texts and next steps.
//!
//! `debug_detail` of a module and `GET /explain` contain it.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::utf8_percent_encode;
use serde::{Deserialize, Serialize};

use crate::domain::{
    BUILD_ID_OPTION, CodeId, DebugId, Features, FileType, Missing, ObjectId, ObjectType, RESERVED,
    Scope,
};

/// The reason why a response is incomplete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advice {
    /// No place that was searched has a file for the module.
    NotUploaded {
        /// The places, as texts.
        searched: Vec<String>,
        /// Whether the uploads are among them, or would be in another request.
        reads_uploads: bool,
    },
    /// The request excludes every source.
    NoSource,
    /// The module has no valid id.
    NoId {
        /// The type of the module.
        object_type: ObjectType,
    },
    /// The build id was sent as debug id.
    BuildIdAsDebugId {
        /// The debug id that was sent.
        debug_id: DebugId,
    },
    /// The code id does not have the length of a build id.
    CodeIdLength {
        /// The number of its hexadecimal digits.
        digits: usize,
    },
    /// The file that was found has symbols but no debug information.
    SymbolsOnly,
    /// The file that was found has neither symbols nor debug information.
    Stripped,
    /// A better file than the one that was used exists but cannot be read.
    Damaged {
        /// Its location.
        location: String,
        /// What is wrong with it.
        fault: String,
    },
    /// A better file than the one that was used could not be fetched, for a reason that may be over
    /// soon.
    Delayed {
        /// Why it could not be fetched.
        fault: String,
    },
    /// A module with frames with absolute addresses has the load address zero.
    ModuleAtZero,
    /// The upload is still being read.
    BeingRead,
    /// The upload belongs to a tenant.
    TenantsScope {
        /// The scope.
        scope: Scope,
    },
    /// The file has no build id.
    NoBuildId,
    /// Nothing can be derived from the object.
    Unreadable {
        /// What is wrong with it.
        fault: String,
    },
    /// A cache that the object is for cannot be derived from it.
    Unusable {
        /// The kind of the cache.
        kind: String,
        /// What is wrong with the object.
        fault: String,
    },
    /// Another upload has the same id, which is computed, and serves the module.
    SharedId {
        /// The location of the other upload.
        location: String,
        /// The kinds of the caches that are made of it.
        kinds: Vec<String>,
    },
}

impl Advice {
    /// The names of all causes in responses.
    pub const CAUSES: [&str; 16] = [
        "not_uploaded",
        "no_source",
        "no_id",
        "build_id_as_debug_id",
        "code_id_length",
        "symbols_only",
        "stripped",
        "damaged",
        "delayed",
        "module_at_zero",
        "being_read",
        "tenants_scope",
        "no_build_id",
        "unreadable",
        Self::UNUSABLE,
        Self::SHARED_ID,
    ];

    /// The name of [`Advice::Unusable`].
    const UNUSABLE: &str = "unusable";

    /// The name of [`Advice::SharedId`].
    const SHARED_ID: &str = "shared_id";

    /// Returns the name of the cause.
    pub fn cause(&self) -> &'static str {
        match self {
            Self::NotUploaded { .. } => "not_uploaded",
            Self::NoSource => "no_source",
            Self::NoId { .. } => "no_id",
            Self::BuildIdAsDebugId { .. } => "build_id_as_debug_id",
            Self::CodeIdLength { .. } => "code_id_length",
            Self::SymbolsOnly => "symbols_only",
            Self::Stripped => "stripped",
            Self::Damaged { .. } => "damaged",
            Self::Delayed { .. } => "delayed",
            Self::ModuleAtZero => "module_at_zero",
            Self::BeingRead => "being_read",
            Self::TenantsScope { .. } => "tenants_scope",
            Self::NoBuildId => "no_build_id",
            Self::Unreadable { .. } => "unreadable",
            Self::Unusable { .. } => Self::UNUSABLE,
            Self::SharedId { .. } => Self::SHARED_ID,
        }
    }

    /// Returns the description of the cause.
    pub fn detail(&self) -> String {
        match self {
            Self::NotUploaded { searched, .. } => {
                format!("no file for this module was found in {}", searched.join(", "))
            }
            Self::NoSource => "the `sources` of the request leave nothing to search".to_owned(),
            Self::NoId { .. } => {
                "this module has no valid debug_id or code_id, so there is nothing to search for".to_owned()
            }
            Self::BuildIdAsDebugId { debug_id } => {
                format!("no file has the debug_id {debug_id}, which looks like a build id")
            }
            Self::CodeIdLength { digits } => {
                format!("no file has the code_id of this module: it has {digits} digits, but a build id has 40, 32 or 16")
            }
            Self::SymbolsOnly => {
                "the file that was found has symbols but no debug information: functions have no files and lines, and static functions may have no name".to_owned()
            }
            Self::Stripped => {
                "the file that was found is stripped: it has neither symbols nor debug information".to_owned()
            }
            Self::Damaged { location, fault } => {
                let fault = reason_of(fault);
                format!("another file for this module cannot be read: {location}: {fault}")
            }
            Self::Delayed { fault } => {
                let fault = reason_of(fault);
                format!("another file for this module, which may have more, could not be fetched: {fault}")
            }
            Self::ModuleAtZero => {
                "its image_addr is 0, so absolute addresses are not looked up in it".to_owned()
            }
            Self::BeingRead => "the upload is still being read".to_owned(),
            Self::TenantsScope { scope } => {
                let encoded = utf8_percent_encode(scope.as_str(), RESERVED);
                format!("the upload belongs to the scope {scope}: only requests with ?scope={encoded} read it")
            }
            Self::NoBuildId => {
                "it has no build id: its debug_id is computed from the first 4,096 bytes of its code, and it cannot be found by a code_id".to_owned()
            }
            Self::Unreadable { fault } => {
                format!("nothing can be derived from it: {}", reason_of(fault))
            }
            Self::Unusable { kind, fault } => {
                let fault = reason_of(fault);
                format!("no {kind} can be derived from it: {fault}")
            }
            Self::SharedId { location, kinds } => {
                let kinds = kinds.join(", ");
                format!("requests use {location} instead of it ({kinds}): it has no build id, and its debug_id, which is computed from the first 4,096 bytes of its code, is the same")
            }
        }
    }

    /// Returns what to do about it.
    pub fn next_step(&self) -> Cow<'static, str> {
        let next_step = match self {
            Self::NotUploaded {
                reads_uploads: false,
                ..
            } => {
                "add \"uploads\" to the `sources` of the request, or omit `sources` to search all of them: without that, no upload is read; then send the request again"
            }
            Self::NotUploaded { .. } => {
                "upload its debug file, or use the scope that it was uploaded to; GET /explain?key=… shows whether an upload was read, and by which ids it is found; then send the request again"
            }
            Self::NoSource => "omit `sources` to search all of them",
            Self::NoId {
                object_type: ObjectType::Macho,
            } => {
                "send its UUID (`dwarfdump --uuid`) as debug_id; if the program has no UUID, link it without -no_uuid, and make its dSYM from the linked program"
            }
            Self::NoId {
                object_type: ObjectType::Wasm,
            } => {
                "send its build id as code_id; if the program has none, link it with --build-id (wasm-ld; with clang, -Wl,--build-id)"
            }
            Self::NoId {
                object_type: ObjectType::Pe | ObjectType::PeDotnet,
            } => {
                "send the debug_id of its PDB, or its time stamp and size as code_id; `symdepot check` prints the ids of both files"
            }
            Self::NoId { .. } => {
                return format!(
                    "send the build id (`readelf -n`) as code_id, or the debug_id of a Mach-O file or PDB; if the program has no build id, link it with {BUILD_ID_OPTION}"
                )
                .into();
            }
            Self::BuildIdAsDebugId { .. } => {
                "send the build id as code_id, and omit debug_id: a debug_id has the bytes in another order"
            }
            Self::CodeIdLength { .. } => "send the complete build id, as `readelf -n` prints it",
            Self::SymbolsOnly | Self::Stripped => {
                "also upload its debug file: the program before `strip`, or the output of `objcopy --only-keep-debug`, dsymutil or the linker (PDB)"
            }
            Self::Damaged { fault, .. }
            | Self::Unreadable { fault }
            | Self::Unusable { fault, .. }
                if fault.ends_with(Missing::REPORT) =>
            {
                Missing::REPORT
            }
            Self::Damaged { .. } | Self::Unreadable { .. } | Self::Unusable { .. } => {
                "compare it with the file that your build produced, and upload that one"
            }
            Self::Delayed { .. } => {
                "send the request again after a minute, and once more after that: the first one causes another attempt"
            }
            Self::ModuleAtZero => {
                "send its load address as image_addr, or send addresses relative to its start with \"addr_mode\": \"rel:N\", where N is its index in `modules`"
            }
            Self::BeingRead => {
                "try again in a few seconds, before you send requests for its modules"
            }
            Self::TenantsScope { .. } => {
                "send requests with this scope, or copy the file to global/…, which all requests read"
            }
            Self::NoBuildId => {
                return format!(
                    "link it with {BUILD_ID_OPTION}, and upload it again; a linker script has to place .note.gnu.build-id behind the vector table"
                )
                .into();
            }
            Self::SharedId { .. } => {
                return format!(
                    "link each version with {BUILD_ID_OPTION}, and upload it again; a linker script has to place .note.gnu.build-id behind the vector table; or remove the other upload"
                )
                .into();
            }
        };
        next_step.into()
    }

    /// Returns why no file was found for a module: a problem with its ids, or else that no searched
    /// place has one. `reads_uploads` says whether an upload can change that.
    pub fn of_absent(module: &ObjectId, searched: Vec<String>, reads_uploads: bool) -> Self {
        let is_elf = module.object_type == ObjectType::Elf;
        let may_be_elf = is_elf || module.object_type == ObjectType::Unknown;
        match (module.debug_id, &module.code_id) {
            (None, None) => Self::NoId {
                object_type: module.object_type,
            },
            (Some(debug_id), code_id)
                if may_be_elf
                    && (is_longer_than_of_elf(debug_id, is_elf)
                        || code_id
                            .as_ref()
                            .is_some_and(|id| is_unswapped(debug_id, id))) =>
            {
                Self::BuildIdAsDebugId { debug_id }
            }
            (None, Some(code_id)) if is_elf && !matches!(code_id.as_str().len(), 16 | 32 | 40) => {
                let digits = code_id.as_str().len();
                Self::CodeIdLength { digits }
            }
            _ if searched.is_empty() => Self::NoSource,
            _ => Self::NotUploaded {
                searched,
                reads_uploads,
            },
        }
    }

    /// Returns what a file that was found lacks for names and lines; `None` if it lacks nothing.
    pub fn of_features(features: &Features) -> Option<Self> {
        match (features.has_debug_info, features.has_symbols) {
            (true, _) => None,
            (false, true) => Some(Self::SymbolsOnly),
            (false, false) => Some(Self::Stripped),
        }
    }

    /// Returns what an object of an upload lacks; `None` if it lacks nothing.
    pub fn of_object(
        file_type: FileType,
        features: &Features,
        code_id: Option<&CodeId>,
        fault: Option<&Missing>,
    ) -> Option<Self> {
        if let Some(fault) = fault {
            let fault = fault.detail.clone();
            return Some(Self::Unreadable { fault });
        }
        let lack = match file_type {
            FileType::SourceBundle => None,
            _ if file_type.is_auxiliary() => None,
            _ => Self::of_features(features),
        };
        match lack {
            // A build id would not give it names.
            Some(Self::Stripped) => lack,
            _ if file_type.is_elf() && code_id.is_none() => Some(Self::NoBuildId),
            _ => lack,
        }
    }
}

/// Returns what is wrong with a file, without the next step that the fault of the parser names.
fn reason_of(fault: &str) -> &str {
    let reason = fault.strip_suffix(Missing::REPORT);
    reason.map_or(fault, |reason| reason.trim_end_matches("; "))
}

/// Returns whether a debug id has more than the 32 digits of an ELF file's. That of a PDB ends with
/// an age, which is a small number.
fn is_longer_than_of_elf(debug_id: DebugId, is_elf: bool) -> bool {
    const LARGEST_AGE: u32 = 0xffff;
    let most = if is_elf { 0 } else { LARGEST_AGE };
    debug_id.appendix() > most
}

/// Returns whether a debug id has the bytes of a build id in their original order. In a correct
/// debug id, the bytes of the first three fields are swapped. Ids of 32 digits belong to other
/// formats, which swap nothing.
fn is_unswapped(debug_id: DebugId, code_id: &CodeId) -> bool {
    let digits = debug_id.uuid().simple().to_string();
    let rest = code_id.as_str().strip_prefix(&digits);
    rest.is_some_and(|rest| !rest.is_empty())
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.detail(), self.next_step())
    }
}

/// Advice as responses have it: texts, so that a client can show causes that it does not know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenAdvice {
    /// The name of the cause.
    pub cause: String,
    /// The description of the cause.
    pub detail: String,
    /// What to do about it.
    pub next_step: String,
}

impl WrittenAdvice {
    /// Returns whether it says that requests do not use what an object of an upload is for.
    pub fn is_about_use(&self) -> bool {
        [Advice::UNUSABLE, Advice::SHARED_ID].contains(&self.cause.as_str())
    }
}

impl From<Advice> for WrittenAdvice {
    fn from(advice: Advice) -> Self {
        Self {
            cause: advice.cause().to_owned(),
            detail: advice.detail(),
            next_step: advice.next_step().into_owned(),
        }
    }
}

impl fmt::Display for WrittenAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.detail, self.next_step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The build id of the sample, as `readelf -n` prints it.
    const BUILD_ID: &str = "ac456ebc7f4825f4367208b89f51ad48a1b2c3d4";

    fn one_of_each() -> Vec<Advice> {
        let searched = vec![
            "the uploads of acme (no upload was processed there yet)".to_owned(),
            "the uploads of global".to_owned(),
            "microsoft".to_owned(),
        ];
        let fault = "the file is cut short: it has 3000 of 6944 bytes, upload it again".to_owned();
        vec![
            Advice::NotUploaded {
                searched,
                reads_uploads: true,
            },
            Advice::NoSource,
            Advice::NoId {
                object_type: ObjectType::Elf,
            },
            Advice::BuildIdAsDebugId {
                debug_id: BUILD_ID.parse().unwrap(),
            },
            Advice::CodeIdLength { digits: 39 },
            Advice::SymbolsOnly,
            Advice::Stripped,
            Advice::Damaged {
                location: "global/app.debug".to_owned(),
                fault: fault.clone(),
            },
            Advice::Delayed {
                fault: "the server responded with 503".to_owned(),
            },
            Advice::ModuleAtZero,
            Advice::BeingRead,
            Advice::TenantsScope {
                scope: "symbols".parse().unwrap(),
            },
            Advice::NoBuildId,
            Advice::Unreadable {
                fault: fault.clone(),
            },
            Advice::Unusable {
                kind: "symcache".to_owned(),
                fault,
            },
            Advice::SharedId {
                location: "global/1.0/firmware.elf".to_owned(),
                kinds: vec!["cficache".to_owned(), "symcache".to_owned()],
            },
        ]
    }

    #[test]
    fn the_table_of_causes_texts_and_next_steps() {
        let table = one_of_each();
        let causes: Vec<&str> = table.iter().map(Advice::cause).collect();
        assert_eq!(causes, Advice::CAUSES);
        let written: Vec<_> = table.into_iter().map(WrittenAdvice::from).collect();
        insta::assert_json_snapshot!(written);
    }

    fn elf(debug_id: Option<&str>, code_id: Option<&str>) -> ObjectId {
        ObjectId {
            debug_id: debug_id.map(|id| id.parse().unwrap()),
            code_id: code_id.map(|id| CodeId::new(id.into())),
            object_type: ObjectType::Elf,
            ..ObjectId::default()
        }
    }

    #[test]
    fn impossible_ids_are_distinguished_from_those_of_absent_files() {
        let debug_id = "bc6e45ac-487f-f425-3672-08b89f51ad48";
        let swapped = Some(debug_id);
        let searched = || vec!["the uploads of global".to_owned()];
        let cause = |module: &ObjectId| Advice::of_absent(module, searched(), true).cause();
        for (module, expected) in [
            (elf(None, None), "no_id"),
            (elf(Some(BUILD_ID), None), "build_id_as_debug_id"),
            (
                elf(Some(&BUILD_ID[..32]), Some(BUILD_ID)),
                "build_id_as_debug_id",
            ),
            (elf(None, Some(&BUILD_ID[..39])), "code_id_length"),
            (elf(swapped, Some(BUILD_ID)), "not_uploaded"),
            (elf(swapped, None), "not_uploaded"),
            (elf(None, Some(BUILD_ID)), "not_uploaded"),
            (elf(None, Some(&BUILD_ID[..16])), "not_uploaded"),
        ] {
            assert_eq!(cause(&module), expected, "{module:?}");
        }
        let pdb = |age: &str| ObjectId {
            object_type: ObjectType::Unknown,
            ..elf(Some(&format!("{}-{age}", debug_id)), None)
        };
        assert_eq!(cause(&pdb("a")), "not_uploaded");
        assert_eq!(cause(&pdb("9f51ad48")), "build_id_as_debug_id");
        let nowhere = Advice::of_absent(&elf(swapped, None), Vec::new(), false);
        assert_eq!(nowhere.cause(), "no_source");
    }

    #[test]
    fn a_scope_is_advised_as_it_is_written_in_a_query() {
        let detail = |scope: &str| {
            let scope = scope.parse().unwrap();
            Advice::TenantsScope { scope }.detail()
        };
        assert!(detail("a+b c").ends_with("?scope=a%2Bb%20c read it"));
        assert!(detail("acme-1.x_y~").ends_with("?scope=acme-1.x_y~ read it"));
    }

    #[test]
    fn an_upload_is_advised_only_where_the_request_reads_uploads() {
        let module = elf(Some("bc6e45ac-487f-f425-3672-08b89f51ad48"), None);
        let next_step = |reads_uploads| {
            let searched = vec!["microsoft".to_owned()];
            Advice::of_absent(&module, searched, reads_uploads).next_step()
        };
        assert!(next_step(true).starts_with("upload its debug file"));
        let without = next_step(false);
        assert!(!without.contains("upload its"), "{without}");
        assert!(without.contains("add \"uploads\" to"), "{without}");
    }

    #[test]
    fn a_mach_o_module_without_an_id_is_not_advised_to_have_a_build_id() {
        let module = ObjectId {
            object_type: ObjectType::Macho,
            ..ObjectId::default()
        };
        let advice = Advice::of_absent(&module, Vec::new(), false);
        assert_eq!(advice.cause(), "no_id");
        assert!(advice.next_step().contains("-no_uuid"), "{advice}");
        assert!(!advice.next_step().contains("build"), "{advice}");
    }

    #[test]
    fn a_pe_module_without_an_id_is_advised_to_have_the_id_of_its_pdb() {
        let advice = Advice::NoId {
            object_type: ObjectType::Pe,
        };
        assert!(advice.next_step().contains("PDB"), "{advice}");
        assert!(!advice.next_step().contains("readelf"), "{advice}");
    }

    #[test]
    fn a_build_id_is_advised_with_the_option_of_each_linker() {
        let wasm = Advice::NoId {
            object_type: ObjectType::Wasm,
        };
        assert!(wasm.next_step().contains("wasm-ld"), "{wasm}");
        for advice in one_of_each() {
            let next_step = advice.next_step();
            if next_step.contains("link it with") || next_step.contains("link each") {
                assert!(next_step.contains("-Wl,--build-id"), "{advice}");
                assert!(next_step.contains("gobuildid"), "{advice}");
            }
        }
        let placed = Advice::NoBuildId.next_step();
        assert!(placed.contains("behind the vector table"), "{placed}");
    }

    #[test]
    fn a_fault_of_the_parser_is_to_be_reported_and_no_other_file_is_to_be_uploaded() {
        let reason = "the parser panicked at pdb2-0.10.1/src/lib.rs:1:2: index out of bounds";
        let fault = format!("{reason}; {}", Missing::REPORT);
        let advice = Advice::Unreadable { fault };
        assert_eq!(
            advice.to_string(),
            format!(
                "nothing can be derived from it: {reason}; {}",
                Missing::REPORT
            )
        );
    }

    #[test]
    fn an_object_reports_what_it_lacks() {
        let code_id = CodeId::new(BUILD_ID.into());
        let features = |has_debug_info, has_symbols| Features {
            has_debug_info,
            has_symbols,
            ..Features::default()
        };
        let cause = |file_type, features: Features, code_id, fault: Option<Missing>| {
            let advice = Advice::of_object(file_type, &features, code_id, fault.as_ref());
            advice.map(|advice| advice.cause())
        };
        let (id, elf) = (Some(&code_id), FileType::ElfCode);
        assert_eq!(cause(elf, features(true, true), id, None), None);
        assert_eq!(
            cause(elf, features(false, true), id, None),
            Some("symbols_only")
        );
        assert_eq!(
            cause(elf, features(false, false), id, None),
            Some("stripped")
        );
        assert_eq!(
            cause(elf, features(true, true), None, None),
            Some("no_build_id")
        );
        assert_eq!(
            cause(elf, features(false, false), None, None),
            Some("stripped"),
            "a build id would not give it names"
        );
        let fault = Missing::malformed("the file is cut short");
        assert_eq!(
            cause(elf, features(false, false), id, Some(fault)),
            Some("unreadable")
        );
        assert_eq!(
            cause(FileType::SourceBundle, Features::default(), None, None),
            None
        );
    }
}
