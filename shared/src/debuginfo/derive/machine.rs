//! What the unwind information of a file depends on, besides its entries: the machine, where
//! code begins, and which rules are read.

use std::fmt::Write as _;

use gimli::{Encoding, EndianSlice, Expression, Operation, Register, RunTimeEndian, Vendor};
use goblin::pe::section_table::IMAGE_SCN_CNT_CODE;
use symbolic::common::CpuFamily;
use symbolic::debuginfo::elf::ElfObject;
use symbolic::debuginfo::macho::MachObject;
use symbolic::debuginfo::pe::PeObject;

use super::registers::{AMD64, ARM64, INTEL32};
use crate::debuginfo::image;

/// The bytes of a section with unwind information.
pub(super) type FrameBytes<'i> = EndianSlice<'i, RunTimeEndian>;

/// The most operations of an expression that is read.
const MAX_OPERATIONS: usize = 8;

/// Which rules are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rules {
    All,
    /// Those that `symbolic` reads, to compare with it.
    #[cfg(test)]
    OfSymbolic,
}

/// What the entries of an object have in common.
#[derive(Clone, Copy)]
pub(super) struct Machine {
    pub(super) registers: &'static [&'static str],
    /// Whether a function is entered with its return address in a register.
    pub(super) has_link_register: bool,
    pub(super) load_address: u64,
    /// No function that is in the program begins before it.
    pub(super) first_code: u64,
    pub(super) rules: Rules,
}

impl Machine {
    /// Returns what the entries of a file have in common, and whose rules they may have. Returns
    /// `None` if `symbolic` has to read them.
    pub(super) fn of(elf: &ElfObject<'_>, rules: Rules) -> Option<(Self, Vendor)> {
        let family = elf.arch().cpu_family();
        let (registers, has_link_register) = match family {
            CpuFamily::Amd64 => (AMD64, false),
            CpuFamily::Intel32 => (INTEL32, false),
            CpuFamily::Arm64 => (ARM64, true),
            _ => return None,
        };
        let first_code = || image::first_code_of_elf(elf.data());
        let (first_code, vendor) = match (rules, family) {
            #[cfg(test)]
            (Rules::OfSymbolic, _) => (0, Vendor::Default),
            (Rules::All, CpuFamily::Arm64) => (first_code(), Vendor::AArch64),
            (Rules::All, _) => (first_code(), Vendor::Default),
        };
        let load_address = image::elf_load_address(elf);
        let machine = Self {
            registers,
            has_link_register,
            load_address,
            first_code: first_code.max(load_address),
            rules,
        };
        Some((machine, vendor))
    }

    /// Returns what the entries of a program for 32-bit x86 in a PE file have in common.
    pub(super) fn of_x86(pe: &PeObject<'_>, rules: Rules) -> Self {
        let load_address = pe.load_address();
        let sections = pe.sections().iter();
        let code = sections.filter(|section| section.characteristics & IMAGE_SCN_CNT_CODE != 0);
        let first_code = code.map(|section| section.virtual_address).min();
        Self {
            registers: INTEL32,
            has_link_register: false,
            load_address,
            first_code: load_address.saturating_add(first_code.unwrap_or_default().into()),
            rules,
        }
    }

    /// Returns what the entries of a Mach-O file have in common, and whose rules they may have.
    /// Returns `None` if `symbolic` has to read them.
    pub(super) fn of_mach(mach: &MachObject<'_>, rules: Rules) -> Option<(Self, Vendor)> {
        let (registers, has_link_register, vendor) = match mach.arch().cpu_family() {
            CpuFamily::Amd64 => (AMD64, false, Vendor::Default),
            CpuFamily::Arm64 => (ARM64, true, Vendor::AArch64),
            _ => return None,
        };
        let load_address = mach.load_address();
        let machine = Self {
            registers,
            has_link_register,
            load_address,
            first_code: load_address,
            rules,
        };
        Some((machine, vendor))
    }

    /// Returns an expression in postfix notation, if it is the value of a register, to which
    /// offsets are added and from which values are loaded.
    pub(super) fn postfix(
        &self,
        expression: Expression<FrameBytes<'_>>,
        encoding: Encoding,
    ) -> Option<String> {
        if self.rules != Rules::All {
            return None;
        }
        let mut operations = expression.operations(encoding);
        let mut text = String::new();
        for _ in 0..MAX_OPERATIONS {
            let Some(operation) = operations.next().ok()? else {
                return Some(text).filter(|text| !text.is_empty());
            };
            // Writing to a string does not fail.
            let _ = match operation {
                Operation::RegisterOffset {
                    register, offset, ..
                } if text.is_empty() => write!(text, "{} {offset} +", self.name(register)?),
                Operation::PlusConstant { value } if !text.is_empty() => write!(text, " {value} +"),
                Operation::Deref {
                    size, space: false, ..
                } if !text.is_empty() && size == encoding.address_size => write!(text, " ^"),
                _ => return None,
            };
        }
        None
    }

    /// Returns the name of a register in a record.
    pub(super) fn name(&self, Register(number): Register) -> Option<&'static str> {
        self.registers.get(usize::from(number)).copied()
    }
}
