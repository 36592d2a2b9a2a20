//! What a report lacks to look up its frames, and what to add to it.

use super::model::{CrashReport, OffsetsFrom, ReportFormat, ReportFrame, ReportModule, file_name};
use crate::domain::ObjectType;

/// The lowest address that the linkers of the usual platforms place programs at that are not
/// position independent (lld, x86-64).
const LOWEST_PROGRAM: u64 = 0x20_0000;

/// What a report lacks to look up the frames of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// An id.
    Id {
        /// The name of the module.
        module: String,
        /// Its type, which says what its id is.
        object_type: ObjectType,
    },
    /// The load address.
    Base {
        /// The name of the module.
        module: String,
    },
    /// Any module that covers the addresses of the frames.
    Modules,
}

/// What the frames of a module lack.
#[derive(Clone, Copy, Default)]
struct ModuleUse {
    is_used: bool,
    lacks_base: bool,
}

impl CrashReport {
    /// Returns what is missing to look up the frames, module by module. Memory that is no file,
    /// frames that cannot be looked up whatever is added, and frames that the text names as well as
    /// they can be named, lack nothing.
    pub fn lacks(&self) -> Vec<Lack> {
        if self.says_everything() {
            return Vec::new();
        }
        let frames = self.stacks.iter().flat_map(|stack| &stack.frames);
        let mut uses = vec![ModuleUse::default(); self.modules.len()];
        let (mut is_anywhere, mut is_nowhere) = (false, false);
        for frame in frames.filter(|frame| !frame.is_settled) {
            let located = self.located(frame);
            is_anywhere |= frame.module.is_some() || located.is_some();
            if frame.has_final_name() {
                continue;
            }
            match located {
                Some((module, _)) => note_use(&mut uses, module, false),
                None => {
                    is_nowhere |= is_outside(frame);
                    if let Some(module) = frame.module {
                        note_use(&mut uses, module, true);
                    }
                }
            }
        }
        let modules = self.modules.iter().zip(uses);
        let mut lacks: Vec<Lack> = modules
            .flat_map(|(module, it)| of_module(module, it))
            .collect();
        lacks.extend((is_nowhere && !is_anywhere).then_some(Lack::Modules));
        lacks
    }

    /// Returns of each module whether its files could say more than the text about a frame in it.
    /// They say nothing about frames that the text names as well as they can be named.
    pub fn needed_modules(&self) -> Vec<bool> {
        if self.says_everything() || self.format == ReportFormat::Apple {
            return vec![true; self.modules.len()];
        }
        let mut needed = vec![false; self.modules.len()];
        let frames = self.stacks.iter().flat_map(|stack| &stack.frames);
        for frame in frames.filter(|frame| lacks_names(frame)) {
            let located = self.located(frame).map(|(module, _)| module);
            let module = located.or(frame.module);
            if let Some(needed) = module.and_then(|module| needed.get_mut(module)) {
                *needed = true;
            }
        }
        needed
    }

    /// Returns the programs that may not be position independent, so that their offsets in the text
    /// would be addresses: all of them are large enough, and nothing in the text tells it.
    pub fn uncertain_programs(&self) -> Vec<&ReportModule> {
        let mut least: Vec<Option<u64>> = vec![None; self.modules.len()];
        let frames = self.stacks.iter().flat_map(|stack| &stack.frames);
        for frame in frames {
            let module = frame.module.and_then(|module| least.get_mut(module));
            if let (Some(least), Some(offset)) = (module, frame.offset) {
                *least = Some(least.map_or(offset, |least| least.min(offset)));
            }
        }
        let modules = self.modules.iter().zip(least).zip(self.needed_modules());
        let uncertain = modules.filter(|((module, least), is_needed)| {
            let may_be_program = module.offsets == OffsetsFrom::StartOrZero
                && module.base.is_none()
                && !module.file_name().contains(".so");
            *is_needed && may_be_program && least.is_some_and(|least| least >= LOWEST_PROGRAM)
        });
        uncertain.map(|((module, _), _)| module).collect()
    }
}

/// Returns whether the text does not name a frame as well as it can be named.
fn lacks_names(frame: &ReportFrame) -> bool {
    !frame.is_settled && !frame.has_final_name()
}

fn note_use(uses: &mut [ModuleUse], module: usize, lacks_base: bool) {
    if let Some(found) = uses.get_mut(module) {
        found.is_used = true;
        found.lacks_base |= lacks_base;
    }
}

/// Returns whether a frame has an address of which the text does not say where it is.
fn is_outside(frame: &ReportFrame) -> bool {
    frame.module.is_none() && frame.address.is_some_and(|address| address != 0)
}

fn of_module(module: &ReportModule, used: ModuleUse) -> Vec<Lack> {
    let mut lacks = Vec::new();
    if !module.is_file() {
        return lacks;
    }
    if used.is_used && !module.has_id() {
        lacks.push(Lack::Id {
            module: module.name.clone(),
            object_type: module.object_type,
        });
    }
    if used.lacks_base {
        lacks.push(Lack::Base {
            module: module.name.clone(),
        });
    }
    lacks
}

impl std::fmt::Display for Lack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Id {
                module,
                object_type,
            } => {
                let name = file_name(module);
                let id = match object_type {
                    ObjectType::Macho => "UUID (`dwarfdump --uuid`)",
                    ObjectType::Pe | ObjectType::PeDotnet => {
                        "DEBUG-ID (that of its PDB, which `symdepot check` prints)"
                    }
                    _ => "BUILD-ID",
                };
                write!(f, "the report has no id of {module}; add --module {name}={id}")
            }
            Self::Base { module } => {
                let name = file_name(module);
                write!(
                    f,
                    "the report has no load address of {module}; add --module {name}=BUILD-ID@ADDRESS (for a program that is not position independent: the address of its first LOAD segment, as `readelf -lW` prints it)"
                )
            }
            Self::Modules => f.write_str(
                "the report has absolute addresses and does not say what is loaded where; add --module NAME=BUILD-ID@ADDRESS, or append /proc/<pid>/maps of the process to the report",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::report::tests::read;

    #[test]
    fn the_load_addresses_are_lacking_only_if_no_frame_is_located() {
        let maps = "1000-2000 r-xp 00000000 fe:00 1 /srv/app\n";
        let frames = "#0  0x1010 in ?? ()\n#1  0x9010 in ?? ()\n";
        assert_eq!(read(frames).lacks(), [Lack::Modules]);
        let id = |module: &str| Lack::Id {
            module: module.to_owned(),
            object_type: ObjectType::Elf,
        };
        assert_eq!(read(&format!("{frames}{maps}")).lacks(), [id("/srv/app")]);
    }

    #[test]
    fn frames_that_the_text_names_with_their_lines_lack_nothing() {
        let named = "#0  f (a=1) at a.c:2\n#1  0x1010 in main () at a.c:3\n";
        let maps = "1000-2000 r-xp 00000000 fe:00 1 /srv/app\n";
        assert_eq!(read(named).lacks(), []);
        assert_eq!(read(&format!("{named}{maps}")).lacks(), []);
        let unnamed = format!("{named}#2  0x1020 in ?? ()\n");
        assert_eq!(read(&unnamed).lacks(), [Lack::Modules]);
        // The address is in no module, but that of a named frame is.
        let elsewhere = format!("{named}#2  0x9020 in ?? ()\n{maps}");
        assert_eq!(read(&elsewhere).lacks(), []);
        let without_line = format!("{named}#2  0x1020 in g ()\n{maps}");
        let id = Lack::Id {
            module: "/srv/app".to_owned(),
            object_type: ObjectType::Elf,
        };
        assert_eq!(read(&without_line).lacks(), [id]);
    }

    #[test]
    fn the_files_of_a_module_are_needed_only_for_what_the_text_does_not_say() {
        let text = "#0  0x1010 in ?? ()\n#1  0x5010 in g () at a.c:3\n#2  0x6010 in h ()\n\
                    1000-2000 r-xp 00000000 fe:00 1 /srv/app\n\
                    5000-5800 r-xp 00000000 fe:00 1 /srv/a.so\n\
                    6000-6800 r-xp 00000000 fe:00 1 /srv/b.so\n";
        assert_eq!(read(text).needed_modules(), [true, false, true]);
        let request = r#"{"stacktraces": [{"frames": [{"instruction_addr": 1}]}], "modules": [{"type": "elf", "image_addr": 1}]}"#;
        assert_eq!(read(request).needed_modules(), [true]);
    }

    #[test]
    fn what_is_no_file_lacks_nothing() {
        let systemd =
            "#0  0x0000000000000010 n/a (n/a + 0x0)\n#1  0x0000000000001010 n/a (app + 0x10)\n";
        let report = read(systemd);
        assert_eq!(report.modules.len(), 1);
        let lacks = report.lacks();
        assert_eq!(lacks.len(), 1);
        assert!(lacks[0].to_string().contains("--module app=BUILD-ID"));
        assert!(read("#00 pc 0x10  <unknown>\n").lacks().is_empty());
    }

    #[test]
    fn the_advice_names_the_id_of_the_type() {
        let advice = |name: &str| {
            let report = read(&format!("#0 0x104  ({name}+0x100)\n"));
            report.lacks()[0].to_string()
        };
        let of_pe = advice("C:\\app\\w64.exe");
        assert!(of_pe.contains("w64.exe=DEBUG-ID"), "{of_pe}");
        let of_macho = advice("libm.dylib");
        assert!(of_macho.contains("dwarfdump --uuid"), "{of_macho}");
        let of_elf = advice("/srv/app");
        assert!(of_elf.ends_with("--module app=BUILD-ID"), "{of_elf}");
    }
}
