//! Reads the unwind information of PE files for x86-64 into lines of Breakpad records, in parallel.
//!
//! The records are those that `symbolic` writes (`symbolic_cfi`, MIT), which is the oracle: tests
//! compare all fixtures, also with random changes. `symbolic` writes text, which then has to be
//! read again. What it refuses, and files for other machines, are left to it.
//!
//! Source of the format: Microsoft, "x64 exception handling".

use std::fmt::Write as _;
use std::ops::Range;

use goblin::pe::exception::{
    ExceptionData, RuntimeFunction, StackFrameOffset, UnwindCode, UnwindInfo, UnwindOperation,
};
use goblin::pe::section_table::SectionTable;
use symbolic::common::Arch;
use symbolic::debuginfo::pe::PeObject;

use crate::debuginfo::slices::{CfiLines, LineCollector};
use crate::debuginfo::workers::in_order;

/// The longest chain of unwind information that is followed. In a PE, the unwind information of a
/// function may refer to that of another, and so on: a few times in a valid file, endlessly in a
/// malformed one.
pub(super) const MAX_UNWIND_CHAIN: usize = 256;

/// The number of bytes that a call pushes: the return address.
const RETURN_ADDRESS: i32 = 8;

/// The number of bytes that a trap pushes, without an error code.
const MACHINE_FRAME: i32 = 40;

/// Returns the lines of all records of a file, whose functions are read in runs of a number of
/// functions. Returns `None` if `symbolic` has to read them.
pub(super) fn read(pe: &PeObject<'_>, run: usize, workers: usize) -> Option<CfiLines> {
    if pe.arch() == Arch::Arm64 {
        return None;
    }
    let mut all = LineCollector::default();
    let Some(data) = pe.exception_data() else {
        return Some(all.finish());
    };
    let functions = data.len();
    let begin = || UnwindReader::new(data, pe.sections());
    let read = in_order(functions.div_ceil(run), workers, begin, |reader, number| {
        let first = number * run;
        reader.run(first..functions.min(first + run))
    });
    read.into_iter().try_for_each(|lines| all.append(lines?))?;
    Some(all.finish())
}

/// Reads functions. Reuses its buffers from one function to the next.
struct UnwindReader<'p> {
    data: &'p ExceptionData<'p>,
    sections: &'p [SectionTable],
    codes: Vec<UnwindCode>,
    frame: UnwindFrame,
}

/// The frame of a function, as far as its codes are known: the inverse of its prologue.
#[derive(Default)]
struct UnwindFrame {
    /// The number of bytes on the stack. It may become negative: a register may be saved beyond
    /// the frame.
    size: i32,
    /// Whether a trap pushed the return address, not a call.
    is_machine_frame: bool,
    /// The rules for the frame, and for the registers.
    cfa: String,
    saved: String,
}

impl<'p> UnwindReader<'p> {
    fn new(data: &'p ExceptionData<'p>, sections: &'p [SectionTable]) -> Self {
        Self {
            data,
            sections,
            codes: Vec::new(),
            frame: UnwindFrame::default(),
        }
    }

    /// Returns the lines of a run of functions.
    fn run(&mut self, functions: Range<usize>) -> Option<LineCollector> {
        let mut lines = LineCollector::default();
        for number in functions {
            let function = self.data.get_function(number).ok()?;
            self.function(function, &mut lines)?;
        }
        Some(lines)
    }

    /// Adds the line of a function.
    fn function(&mut self, function: RuntimeFunction, all: &mut LineCollector) -> Option<()> {
        let (begin, end) = (function.begin_address, function.end_address);
        let is_removed = (begin, end, function.unwind_info_address) == (0, 0, 0);
        if is_removed || end < begin {
            return Some(());
        }
        self.frame.clear();
        let mut next = Some(function);
        for _ in 0..MAX_UNWIND_CHAIN {
            let Some(function) = next else { break };
            let info = self.data.get_unwind_info(function, self.sections).ok()?;
            self.codes.clear();
            for code in info.unwind_codes() {
                // As in `symbolic`, a function with a code that cannot be read is ignored.
                let Ok(code) = code else { return Some(()) };
                self.codes.push(code);
            }
            // The last instruction of the prologue comes first.
            for code in self.codes.iter().rev() {
                self.frame.apply(code, &info);
            }
            next = info.chained_info;
        }
        if next.is_some() {
            return None;
        }
        let rules = all.rules(self.frame.rules())?;
        all.begin(begin.into(), (end - begin).into(), rules)
    }
}

impl UnwindFrame {
    fn clear(&mut self) {
        self.size = RETURN_ADDRESS;
        self.is_machine_frame = false;
        self.cfa.clear();
        self.saved.clear();
    }

    /// Adds what an instruction of the prologue does.
    fn apply(&mut self, code: &UnwindCode, info: &UnwindInfo<'_>) {
        let frame_register = info.frame_register.name();
        let frame_offset = info.frame_register_offset;
        match code.operation {
            UnwindOperation::SaveNonVolatile(register, StackFrameOffset::RSP(offset)) => {
                let offset = self.size.wrapping_sub(offset.cast_signed());
                self.save(format_args!(" {}: .cfa {offset} - ^", register.name()));
            }
            UnwindOperation::SaveNonVolatile(register, StackFrameOffset::FP(offset)) => {
                let offset = offset.wrapping_sub(frame_offset).cast_signed();
                let name = register.name();
                self.save(format_args!(" {name}: {frame_register} {offset} + ^"));
            }
            UnwindOperation::PushNonVolatile(register) => {
                self.size = self.size.wrapping_add(8);
                let (name, size) = (register.name(), self.size);
                self.save(format_args!(" {name}: .cfa {size} - ^"));
            }
            UnwindOperation::Alloc(size) => {
                self.size = self.size.wrapping_add(size.cast_signed());
            }
            UnwindOperation::SetFPRegister => {
                let offset = self.size.wrapping_sub(frame_offset.cast_signed());
                // Writing to a string does not fail.
                let _ = write!(self.cfa, ".cfa: {frame_register} {offset} +");
            }
            UnwindOperation::PushMachineFrame(has_error_code) => {
                let stack = self.size.wrapping_add(16);
                self.size = self.size.wrapping_add(MACHINE_FRAME);
                let address = self.size;
                self.save(format_args!(
                    " $rsp: .cfa {stack} - ^ .ra: .cfa {address} - ^"
                ));
                self.is_machine_frame = address != 0;
                self.size = self.size.wrapping_add(if has_error_code { 8 } else { 0 });
            }
            // The others do not change the stack pointer.
            _ => {}
        }
    }

    fn save(&mut self, rule: std::fmt::Arguments<'_>) {
        let _ = self.saved.write_fmt(rule);
    }

    /// Returns the rules of the frame.
    fn rules(&mut self) -> &str {
        if self.cfa.is_empty() {
            let _ = write!(self.cfa, ".cfa: $rsp {} +", self.size);
        }
        if !self.is_machine_frame {
            self.saved.push_str(" .ra: .cfa 8 - ^");
        }
        self.cfa.push_str(&self.saved);
        &self.cfa
    }
}
