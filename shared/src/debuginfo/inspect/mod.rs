//! Inspects the objects in a DIF: their ids, types and features.

mod build_id;
mod cut_short;
mod elf_record;
mod headers;
mod needless;
mod unwinding;

use goblin::elf::Elf;
use goblin::elf::header::{EI_CLASS, ELFCLASS64, EM_68K, EM_RISCV, EM_S390, EM_SPARC, EM_SPARCV9};
use symbolic::common::{Arch, CodeId, DebugId};
use symbolic::debuginfo::dwarf::Dwarf as _;
use symbolic::debuginfo::elf::ElfObject;
use symbolic::debuginfo::{Archive, FileFormat, Object, ObjectKind};

use self::cut_short::cut_short;
use self::headers::Headers;
pub use self::needless::{FileEnds, needless_ranges, units_range};
use super::arriving::Arriving;
use super::derive::dwarf;
use super::layout::{DifBytes, FoundAuxiliary, FoundObject, Layout, Member, MemberPlace};
use super::{auxiliary, kernel_module, panics, pe_symbols, unpack};
use crate::debuginfo::failure::chain;
use crate::domain::{
    AuxiliaryFile, AuxiliaryId, BUILD_ID_OPTION, CompanionId, Features, FileType, Inspection,
    Missing, ModuleId, ObjectMeta, VersionControl,
};

/// The ELF machine number of LoongArch.
const EM_LOONGARCH: u16 = 258;

/// The maximum number of ids under which the files of one DIF are listed as companions.
const MAX_COMPLETED: usize = 512;

/// The maximum number of objects in a DIF. An archive has no more files than this, and no fat file
/// has so many architectures.
const MAX_OBJECTS: usize = 10_000;

/// The limit of companion ids for all objects of one DIF together. Beyond it, an object keeps only
/// the ids of its shared file and package, not those of single units.
const MAX_NEEDED: usize = 2 * CompanionId::MAX_UNITS;

/// Lists the objects of a DIF, and completes its layout with them.
///
/// An object that cannot be parsed, or is truncated, is listed without features if its ids can be
/// read; deriving from it reports the reason. An object without ids is listed, and also noted as
/// ignored. For a DIF with holes, only ids are reported.
pub fn inspect(layout: &mut Layout, bytes: DifBytes<'_>) -> Inspection {
    let mut completes = Vec::new();
    for (number, member) in layout.members.clone().iter().enumerate() {
        completes.extend(inspect_member(layout, number, member, bytes));
    }
    mark_accompanied(layout);
    Inspection {
        completes: resolve_within_dif(layout, completes),
        objects: layout
            .objects
            .iter()
            .map(|found| found.meta.clone())
            .collect(),
        skipped: layout.ignored.clone(),
        auxiliary: layout.auxiliary.iter().map(AuxiliaryFile::from).collect(),
    }
}

/// Lists the objects of a member. Returns the ids under which programs in other files find it.
fn inspect_member(
    layout: &mut Layout,
    number: usize,
    member: &Member,
    bytes: DifBytes<'_>,
) -> Vec<CompanionId> {
    let data = bytes.member(member.place).unwrap_or_default();
    let format = Archive::peek(data);
    // Only the reader of ELF files knows what has not arrived. If the rest does not arrive, the
    // parent process ignores the result.
    let bytes = if format == FileFormat::Elf && member.place == MemberPlace::Whole {
        bytes
    } else {
        bytes.wait().unwrap_or(bytes)
    };
    if format == FileFormat::Unknown {
        if let Some(completes) = split_units_of_coff(member, data, layout.partial) {
            layout.split.push(number);
            return completes;
        }
        return find_auxiliary(layout, number, data).into_iter().collect();
    }
    // Relocatable objects cannot be linked if the DIF has holes.
    let linked = (!layout.partial)
        .then(|| panics::caught(|| kernel_module::linked(data)).unwrap_or_else(Err));
    let linked = match linked.transpose() {
        Ok(linked) => linked.flatten(),
        Err(reason) => {
            layout.ignore(&member.name, &reason);
            return Vec::new();
        }
    };
    let reader = ObjectReader {
        member,
        data: linked.as_deref().unwrap_or(data),
        partial: layout.partial,
        arriving: bytes.arriving,
    };
    let room = MAX_OBJECTS.saturating_sub(layout.objects.len());
    let objects = panics::caught(|| reader.objects(room))
        .unwrap_or_else(|panic| vec![reader.read_headers(0, panic)]);
    let mut all_completes = Vec::new();
    for (index, object) in objects.into_iter().enumerate() {
        match object {
            Ok(ReadObject {
                meta,
                fault,
                completes,
            }) => {
                all_completes.extend(completes);
                let object = FoundObject {
                    member: number,
                    index,
                    meta,
                    fault,
                };
                list_object(layout, &member.name, object);
            }
            Err(NotAnObject::SplitUnits(completes)) => {
                layout.split.push(number);
                all_completes.extend(completes);
            }
            Err(NotAnObject::Ignored(reason)) => layout.ignore(&member.name, &reason),
        }
    }
    all_completes
}

/// Lists an object of a member with this name.
fn list_object(layout: &mut Layout, name: &str, mut object: FoundObject) {
    let FoundObject { meta, fault, .. } = &mut object;
    meta.index = layout.objects.len();
    meta.fault.clone_from(fault);
    if ModuleId::of(meta.debug_id, meta.code_id.as_ref()).is_none() {
        let mut reason = without_ids(meta.file_type);
        if let Some(fault) = fault {
            reason = format!("{reason}; {}", fault.detail);
        }
        layout.ignore(name, &reason);
    }
    layout.objects.push(object);
}

/// Marks the objects that other files of the DIF complete: split units belong to the programs in
/// the same DIF. The output of `dwz` is an object of its own.
fn mark_accompanied(layout: &mut Layout) {
    let is_alone = layout.members.len() < 2;
    let is_split = !layout.split.is_empty();
    for FoundObject { meta, .. } in &mut layout.objects {
        let is_completed = match meta.file_type {
            FileType::Pe | FileType::WasmCode | FileType::WasmDebug => is_split,
            file_type => file_type.is_elf(),
        };
        meta.is_accompanied = !is_alone && is_completed;
    }
}

/// Returns why an object without ids is ignored, and how to get one with ids.
fn without_ids(file_type: FileType) -> String {
    let of_elf = format!(
        "link what it belongs to with {BUILD_ID_OPTION}; a linker script has to place .note.gnu.build-id behind the vector table"
    );
    let next_step = match file_type {
        FileType::MachCode | FileType::MachDebug => {
            "ld writes a UUID into what it links, unless -no_uuid is given: link the program without that option, and make the dSYM from the linked program"
        }
        FileType::ElfCode | FileType::ElfDebug => of_elf.as_str(),
        FileType::WasmCode | FileType::WasmDebug => {
            "link what it belongs to with --build-id (wasm-ld; with clang, -Wl,--build-id)"
        }
        FileType::Breakpad => {
            "make it from a program that has an id, because the one in its first line (MODULE) is zero"
        }
        _ => "make it from a program that has an id",
    };
    format!("it has neither a debug id nor a code id, by which it could be looked up: {next_step}")
}

/// Returns the ids of the split units in a complete object file of Windows.
fn split_units_of_coff(member: &Member, data: &[u8], is_partial: bool) -> Option<Vec<CompanionId>> {
    if is_partial || member.fault.is_some() {
        return None;
    }
    panics::caught(|| dwarf::split_units_of_coff(data)).ok()?
}

/// Lists a member that is not an object: as an auxiliary file, or as ignored. Returns the id under
/// which programs in other files find it.
fn find_auxiliary(layout: &mut Layout, number: usize, data: &[u8]) -> Option<CompanionId> {
    let member = layout.members.get(number)?.clone();
    let read = match (&member.fault, layout.partial) {
        (Some(fault), _) => Some(Err(fault.detail.clone())),
        // Nothing is read of an auxiliary file that is too large.
        (None, true) => None,
        (None, false) => auxiliary::read(&member, data),
    };
    match read.unwrap_or_else(|| Err(unpack::describe(data))) {
        Ok(file) => {
            let found = FoundAuxiliary {
                member: number,
                file_type: file.file_type,
                id: match file.id {
                    AuxiliaryId::Known(id) => Some(id),
                    AuxiliaryId::InName => None,
                },
                symbol_map: file.symbol_map,
            };
            let id = found
                .id
                .filter(|_| found.file_type == FileType::BcSymbolMap);
            layout.auxiliary.push(found);
            id.map(CompanionId::SymbolMap)
        }
        Err(reason) => {
            layout.ignore(&member.name, &reason);
            None
        }
    }
}

impl From<&FoundAuxiliary> for AuxiliaryFile {
    fn from(found: &FoundAuxiliary) -> Self {
        Self {
            file_type: found.file_type,
            id: found.id.map_or(AuxiliaryId::InName, AuxiliaryId::Known),
            symbol_map: found.symbol_map,
        }
    }
}

/// Removes the companion ids that objects of a DIF find in the same DIF, so that these companions
/// are not searched for elsewhere. Split units belong to one program; the output of `dwz` is shared
/// by several, and a symbol map may be. Returns the ids that programs in other files may need.
fn resolve_within_dif(layout: &mut Layout, mut completes: Vec<CompanionId>) -> Vec<CompanionId> {
    completes.sort_unstable();
    completes.dedup();
    let is_here = |id: &CompanionId| completes.binary_search(id).is_ok();
    let (mut has_program, mut needed) = (false, 0);
    for FoundObject { meta, .. } in &mut layout.objects {
        let needs = meta.needs.len();
        meta.needs.retain(|id| !is_here(id));
        has_program |= meta.needs.len() < needs;
        if needed > MAX_NEEDED {
            // The first two ids are those of the shared file and the package.
            meta.needs.truncate(2);
        }
        needed += meta.needs.len();
    }
    if has_program {
        let is_of_one = |id: &CompanionId| matches!(id, CompanionId::Unit(_));
        completes.retain(|id| !is_of_one(id));
    }
    completes.truncate(MAX_COMPLETED);
    let is_useless = layout.objects.is_empty() && completes.is_empty();
    if is_useless && !layout.split.is_empty() {
        layout.ignore(
            "",
            "split DWARF without the id of a unit, by which its program could be found",
        );
    }
    completes
}

type Readout = Result<ReadObject, NotAnObject>;

struct ReadObject {
    meta: ObjectMeta,
    /// The reason why nothing can be derived from the object.
    fault: Option<Missing>,
    /// The ids under which programs in other files find it as a companion.
    completes: Vec<CompanionId>,
}

/// A file that is not listed as an object.
enum NotAnObject {
    /// Split DWARF units of a program in another file, or a shared file without a build id.
    SplitUnits(Vec<CompanionId>),
    /// An ignored file, with the reason.
    Ignored(String),
}

struct ObjectReader<'a> {
    member: &'a Member,
    data: &'a [u8],
    partial: bool,
    arriving: Option<&'a dyn Arriving>,
}

impl ObjectReader<'_> {
    /// Reads all objects. Reads none if there are more than `most`.
    fn objects(&self, most: usize) -> Vec<Readout> {
        if is_component(self.data) {
            let reason = "a WebAssembly component, which is not read: upload the core module that it is made of";
            return vec![Err(NotAnObject::Ignored(reason.to_owned()))];
        }
        let archive = match Archive::parse(self.data) {
            Ok(archive) => archive,
            Err(error) => return vec![self.read_headers(0, self.unreadable(&error))],
        };
        let count = archive.object_count();
        if count > most {
            let limit =
                format!("with its {count} objects there are more than the limit of {MAX_OBJECTS}");
            return vec![Err(NotAnObject::Ignored(limit))];
        }
        (0..count)
            .map(|index| {
                // A panic on one architecture does not affect the others.
                panics::caught(|| self.object(&archive, index))
                    .unwrap_or_else(|panic| self.read_headers(index, panic))
            })
            .collect()
    }

    fn object(&self, archive: &Archive<'_>, index: usize) -> Readout {
        match archive.object_by_index(index) {
            Ok(Some(object)) => self.read_object(&object, index),
            Ok(None) => Err(NotAnObject::Ignored(
                "it has fewer objects than its header says".to_owned(),
            )),
            Err(error) => self.read_headers(index, self.unreadable(&error)),
        }
    }

    fn read_object(&self, object: &Object<'_>, index: usize) -> Readout {
        match object {
            Object::Elf(elf) if dwarf::is_companion(elf) => {
                return Err(NotAnObject::SplitUnits(dwarf::completes(elf)));
            }
            Object::Wasm(wasm) if dwarf::is_split_wasm(wasm) => {
                return Err(NotAnObject::SplitUnits(dwarf::split_units(
                    wasm,
                    wasm.data(),
                )));
            }
            _ => {}
        }
        let file_type = file_type(object).map_err(NotAnObject::Ignored)?;
        let fault = self.fault();
        if self.partial && !ids_are_certain(object) {
            return self.read_headers(
                index,
                "its ids are not certain, because only parts of the file were read".to_owned(),
            );
        }
        let (needs, completes) = match object {
            Object::Elf(elf) if fault.is_none() => {
                (dwarf::needs(elf, self.arriving), dwarf::completes(elf))
            }
            Object::Pe(pe) if fault.is_none() => (dwarf::needed_units(pe, None), Vec::new()),
            Object::Wasm(wasm) if fault.is_none() => (dwarf::needed_units(wasm, None), Vec::new()),
            _ => Default::default(),
        };
        let (code_id, debug_id) = ids(object);
        let meta = ObjectMeta {
            index,
            debug_id: Some(debug_id).filter(|id| !id.is_nil()),
            code_id: code_id.filter(|id| ModuleId::of(None, Some(id)).is_some()),
            file_type,
            arch: arch(object).to_owned(),
            features: if fault.is_none() {
                features(object)
            } else {
                Features::default()
            },
            is_accompanied: false,
            needs,
            hides_names: fault.is_none() && hides_names(object),
            fault: None,
        };
        Ok(ReadObject {
            meta,
            fault,
            completes,
        })
    }

    fn read_headers(&self, index: usize, reason: String) -> Readout {
        match panics::caught(|| headers::read(self.data, index)) {
            Ok(Some(Headers {
                debug_id,
                code_id,
                arch,
                file_type,
            })) => {
                let features = Features::default();
                let meta = ObjectMeta {
                    index,
                    debug_id,
                    code_id,
                    file_type,
                    arch: arch.name().to_owned(),
                    features,
                    is_accompanied: false,
                    needs: Vec::new(),
                    hides_names: false,
                    fault: None,
                };
                Ok(ReadObject {
                    meta,
                    fault: self.fault().or_else(|| Some(Missing::malformed(reason))),
                    completes: Vec::new(),
                })
            }
            Ok(None) | Err(_) => Err(NotAnObject::Ignored(
                self.fault().map_or(reason, |fault| fault.detail),
            )),
        }
    }

    fn fault(&self) -> Option<Missing> {
        let holes = || {
            self.partial
                .then(|| Missing::malformed("only parts of the file were read"))
        };
        let cut = || cut_short(self.data).map(Missing::malformed);
        self.member.fault.clone().or_else(holes).or_else(cut)
    }

    fn unreadable(&self, error: &dyn std::error::Error) -> String {
        format!(
            "cannot be read as {}: {}",
            Archive::peek(self.data),
            chain(error)
        )
    }
}

/// Returns whether a WebAssembly file is a component, which contains modules (WebAssembly Component
/// Model, "Binary Format": the layer in its preamble is 1; that of a module is 0).
fn is_component(data: &[u8]) -> bool {
    data.starts_with(b"\0asm") && data.get(6..8) == Some(&[1, 0])
}

/// Returns the code id and the debug id of an object.
fn ids(object: &Object<'_>) -> (Option<CodeId>, DebugId) {
    match object {
        Object::Elf(elf) => build_id::ids(elf),
        _ => (object.code_id(), object.debug_id()),
    }
}

/// Returns whether a symbol map is needed to read the names of an object.
fn hides_names(object: &Object<'_>) -> bool {
    matches!(object, Object::MachO(mach) if mach.requires_symbolmap())
}

fn features(object: &Object<'_>) -> Features {
    // Of a PE file that names a PDB, a part may have DWARF nevertheless: the runtime of MinGW. It
    // is worth as much as symbols, so that the PDB is searched for, and preferred.
    let leaves_it_to_pdb = matches!(object, Object::Pe(pe) if pe_symbols::names_pdb(pe));
    let has_debug_info = match object {
        Object::MachO(mach) => dwarf::has_units(mach),
        Object::Pe(pe) => dwarf::has_units(pe),
        _ => object.has_debug_info(),
    };
    Features {
        has_debug_info: has_debug_info && !leaves_it_to_pdb,
        has_unwind_info: unwinding::has_unwind_info(object),
        has_symbols: match object {
            Object::Pe(pe) => has_debug_info && leaves_it_to_pdb || pe_symbols::has_functions(pe),
            _ => object.has_symbols(),
        },
        has_sources: object.has_sources(),
        srcsrv_vcs: match object {
            Object::Pdb(pdb) => pdb
                .debug_session()
                .ok()
                .and_then(|session| session.srcsrv_vcs_name())
                .map(|name| VersionControl::of_name(&name)),
            _ => None,
        },
    }
}

fn file_type(object: &Object<'_>) -> Result<FileType, String> {
    let is_debug = object.kind() == ObjectKind::Debug;
    Ok(match object {
        Object::Elf(elf) => elf_type(elf)?,
        Object::MachO(_) if is_debug => FileType::MachDebug,
        Object::MachO(_) => FileType::MachCode,
        Object::Wasm(_) if is_debug => FileType::WasmDebug,
        Object::Wasm(_) => FileType::WasmCode,
        Object::Pe(_) => FileType::Pe,
        Object::Pdb(_) => FileType::Pdb,
        Object::PortablePdb(_) => FileType::PortablePdb,
        Object::Breakpad(_) => FileType::Breakpad,
        Object::SourceBundle(_) => FileType::SourceBundle,
    })
}

/// Returns the name of the architecture, including machines that `symbolic` does not name. Source:
/// the ELF specification (gABI), "ELF Header", and its registry of machines.
fn arch(object: &Object<'_>) -> &'static str {
    let header = match object {
        Object::Elf(elf) if elf.arch() == Arch::Unknown => Elf::parse_header(elf.data()).ok(),
        _ => None,
    };
    let Some(header) = header else {
        return object.arch().name();
    };
    let is_64_bit = header.e_ident.get(EI_CLASS) == Some(&ELFCLASS64);
    match header.e_machine {
        EM_RISCV if is_64_bit => "riscv64",
        EM_RISCV => "riscv32",
        EM_S390 if is_64_bit => "s390x",
        EM_S390 => "s390",
        EM_LOONGARCH if is_64_bit => "loongarch64",
        EM_LOONGARCH => "loongarch32",
        EM_SPARCV9 => "sparc64",
        EM_SPARC => "sparc",
        EM_68K => "m68k",
        _ => object.arch().name(),
    }
}

/// Returns the file type of an ELF object. `symbolic` takes every executable without an interpreter
/// for a debug companion, which is wrong for static executables. Program code distinguishes the
/// two.
fn elf_type(elf: &ElfObject<'_>) -> Result<FileType, String> {
    match elf.kind() {
        ObjectKind::Dump => Err("a core dump, which has no debug information".to_owned()),
        // The output of `dwz` for several programs has no code.
        ObjectKind::Relocatable if elf.raw_section("text").is_none() => Ok(FileType::ElfDebug),
        ObjectKind::Relocatable => Err(
            "an object file that is not linked, which is not read: upload what is linked from it"
                .to_owned(),
        ),
        _ if elf.raw_section("text").is_some() => Ok(FileType::ElfCode),
        ObjectKind::Debug => Ok(FileType::ElfDebug),
        _ if elf.has_debug_info() => Ok(FileType::ElfDebug),
        _ => Ok(FileType::ElfCode),
    }
}

/// Returns whether the ids cannot have been changed by holes in the file.
fn ids_are_certain(object: &Object<'_>) -> bool {
    match object {
        // Without a build id, `symbolic` hashes program code, which may be in a hole.
        Object::Elf(elf) => elf.code_id().is_some(),
        // The age is in another stream than the rest of the id.
        Object::Pdb(pdb) => pdb.debug_id().appendix() != 0,
        _ => true,
    }
}
