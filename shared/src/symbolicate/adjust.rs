//! Determines which instruction the address of a frame refers to.
//!
//! The topmost frame of a stack contains its own instruction address. The frames of its callers
//! contain return addresses, which point to the instruction *after* the call: often another line,
//! sometimes another function. For callers, the instruction before the address is therefore looked
//! up. What a signal interrupted, and the trampoline that its handler returns to, are at their own
//! addresses (`domain::trampoline`).
//!
//! A trampoline without debug information has no name. The signal may have interrupted the first
//! instruction of a function. If the frame before has no name, and the cache has no function before
//! the address, the address itself is looked up. Behind a callee with a name it is not: the call
//! may be the last instruction of a function that the cache does not know, as of a stripped
//! library. Words that were found by scanning the stack are often pointers to functions, and are
//! always looked up as return addresses.
//!
//! Folklore: after a signal for a bad instruction or a bad access, some kernels leave a program
//! counter that differs from the address that the client recorded for the topmost frame. That
//! address then came from unwinding and is a return address. The rule and the alignment of
//! instructions come from [`InstructionInfo`].

use std::collections::BTreeMap;

use symbolic::common::{CpuFamily, InstructionInfo};

use crate::api::symbolicator::{Frame, Hex};
use crate::domain::Arch;

/// An upper bound of the distance to the previous instruction on every architecture (two words on
/// MIPS).
const LARGEST_STEP: u64 = 16;

/// The instruction to look up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Adjustment {
    /// The instruction before the address.
    Previous,
    /// The instruction at the address.
    Aligned,
    /// Decided by the heuristic.
    Auto,
}

/// The properties of a frame that the decision depends on, in addition to its address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation<'a> {
    pub(super) adjustment: Adjustment,
    /// Whether the frame is the topmost one of its stack.
    pub(super) is_topmost: bool,
    pub(super) signal: Option<u32>,
    pub(super) registers: &'a BTreeMap<String, Hex>,
}

impl Adjustment {
    /// Returns the adjustment of the frames of a stack that do not specify one.
    pub(super) fn default_of(frames: &[Frame]) -> Self {
        // A client that sets it for one frame does so deliberately, and left the others as return
        // addresses.
        if frames
            .iter()
            .any(|frame| frame.adjust_instruction_addr.is_some())
        {
            Adjustment::Previous
        } else {
            Adjustment::Auto
        }
    }

    /// Returns the adjustment of a frame.
    pub(super) fn of(frame: &Frame, default: Self) -> Self {
        match frame.adjust_instruction_addr {
            Some(true) => Adjustment::Previous,
            Some(false) => Adjustment::Aligned,
            None => default,
        }
    }
}

/// Returns the address of the instruction to look up; `None` if there is no instruction before the
/// address.
pub(super) fn adjust(address: u64, arch: Arch, situation: &Situation<'_>) -> Option<u64> {
    let mut info = InstructionInfo::new(with_its_step(arch), address);
    let previous = match situation.adjustment {
        Adjustment::Previous => true,
        Adjustment::Aligned => false,
        Adjustment::Auto => {
            let register = arch
                .cpu_family()
                .ip_register_name()
                .filter(|_| situation.is_topmost);
            let register = register.and_then(|name| situation.registers.get(name));
            info.is_crashing_frame(situation.is_topmost)
                .signal(situation.signal)
                .ip_register_value(register.map(|value| value.0))
                .should_adjust_caller()
        }
    };
    let is_mips = matches!(arch.cpu_family(), CpuFamily::Mips32 | CpuFamily::Mips64);
    if !previous {
        // Instructions of two bytes are aligned to two.
        let aligned = if is_mips {
            address & !1
        } else {
            info.aligned_address()
        };
        return Some(aligned);
    }
    if address < LARGEST_STEP {
        return None;
    }
    // MIPS16 and microMIPS: an odd address stands for an instruction at the even address below it.
    // Before a return address are a call and the instruction in its delay slot, each of two or four
    // bytes.
    let is_odd = !address.is_multiple_of(2);
    Some(if is_mips && is_odd {
        (address & !1) - 4
    } else {
        info.previous_address()
    })
}

/// Returns an architecture for which `InstructionInfo` uses the right length of instructions.
///
/// It assumes eight bytes on 64-bit PowerPC, where instructions have four as well (Power ISA, book
/// I, section 1.6), and four bytes in WebAssembly, where they have one or more (core specification,
/// section 5.4).
fn with_its_step(arch: Arch) -> Arch {
    match arch {
        Arch::Ppc64 => Arch::Ppc,
        Arch::Wasm32 => Arch::Unknown,
        arch => arch,
    }
}

#[cfg(test)]
mod tests {
    use Adjustment::{Aligned, Auto, Previous};

    use super::*;

    const SIGILL: u32 = 4;
    const SIGABRT: u32 = 6;
    const SIGBUS: u32 = 10;
    const SIGSEGV: u32 = 11;

    fn adjusted(address: u64, arch: Arch, adjustment: Adjustment, topmost: bool) -> Option<u64> {
        let registers = BTreeMap::new();
        adjust(
            address,
            arch,
            &Situation {
                adjustment,
                is_topmost: topmost,
                signal: None,
                registers: &registers,
            },
        )
    }

    #[test]
    fn each_architecture_has_its_own_instruction_before() {
        // address, architecture, aligned, previous
        let check = |address, arch, aligned, previous| {
            assert_eq!(
                adjusted(address, arch, Aligned, false),
                Some(aligned),
                "{arch:?} aligned"
            );
            assert_eq!(
                adjusted(address, arch, Previous, true),
                Some(previous),
                "{arch:?} previous"
            );
            assert_eq!(
                adjusted(address, arch, Auto, false),
                Some(previous),
                "{arch:?} caller"
            );
            assert_eq!(
                adjusted(address, arch, Auto, true),
                Some(aligned),
                "{arch:?} topmost"
            );
        };
        check(0x1003, Arch::X86, 0x1003, 0x1002);
        check(0x1003, Arch::Amd64, 0x1003, 0x1002);
        check(0x1003, Arch::Unknown, 0x1003, 0x1002);
        check(0x1003, Arch::ArmV7, 0x1002, 0x1000); // the lowest bit marks Thumb
        check(0x1007, Arch::Arm64, 0x1004, 0x1000);
        check(0x1007, Arch::Arm64_32, 0x1004, 0x1000);
        check(0x1007, Arch::Ppc, 0x1004, 0x1000);
        check(0x1007, Arch::Ppc64, 0x1004, 0x1000);
        check(0x1007, Arch::Wasm32, 0x1007, 0x1006);
        check(0x1008, Arch::Mips, 0x1008, 0x1000); // over the delay slot
        check(0x1008, Arch::Mips64, 0x1008, 0x1000);
        check(0x100a, Arch::Mips, 0x100a, 0x1000); // MIPS16 and microMIPS, without the lowest bit
        check(0x100b, Arch::Mips, 0x100a, 0x1006); // the lowest bit marks MIPS16 and microMIPS
    }

    #[test]
    fn a_topmost_frame_that_differs_from_the_program_counter_is_a_return_address() {
        let check = |signal, register: &str, value, topmost, want| {
            let registers = BTreeMap::from([(register.to_owned(), Hex(value))]);
            let situation = Situation {
                adjustment: Auto,
                is_topmost: topmost,
                signal,
                registers: &registers,
            };
            assert_eq!(
                adjust(0x2000, Arch::Amd64, &situation),
                Some(want),
                "{signal:?} {register} {value:#x}"
            );
        };
        check(Some(SIGSEGV), "rip", 0x2000, true, 0x2000);
        check(Some(SIGSEGV), "rip", 0x3000, true, 0x1fff);
        check(Some(SIGILL), "rip", 0x3000, true, 0x1fff);
        check(Some(SIGBUS), "rip", 0x3000, true, 0x1fff);
        check(Some(SIGABRT), "rip", 0x3000, true, 0x2000);
        check(None, "rip", 0x3000, true, 0x2000);
        check(Some(SIGSEGV), "eip", 0x3000, true, 0x2000); // of another architecture
        check(Some(SIGSEGV), "rip", 0x2000, false, 0x1fff); // a caller has a return address
    }

    #[test]
    fn a_field_of_a_frame_overrides_that_of_its_stack() {
        let frame = |adjust_instruction_addr| Frame {
            adjust_instruction_addr,
            ..Frame::default()
        };
        let check = |frames: &[Option<bool>], want: &[Adjustment]| {
            let frames: Vec<_> = frames.iter().copied().map(frame).collect();
            let default = Adjustment::default_of(&frames);
            let got: Vec<_> = frames
                .iter()
                .map(|frame| Adjustment::of(frame, default))
                .collect();
            assert_eq!(got, want);
        };
        check(&[None, None], &[Auto, Auto]);
        check(&[Some(true), None], &[Previous, Previous]);
        check(&[Some(false), None], &[Aligned, Previous]);
        check(&[None, Some(false)], &[Previous, Aligned]);
    }

    #[test]
    fn an_address_at_the_start_of_memory_has_no_previous_instruction() {
        for arch in [Arch::Amd64, Arch::Mips, Arch::Ppc64, Arch::Unknown] {
            for address in 0..LARGEST_STEP {
                assert_eq!(adjusted(address, arch, Previous, false), None);
                assert!(adjusted(address, arch, Aligned, false).is_some());
            }
            assert!(adjusted(LARGEST_STEP, arch, Previous, false).is_some());
        }
    }
}
