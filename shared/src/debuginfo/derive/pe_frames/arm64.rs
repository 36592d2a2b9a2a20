//! Reads the unwind information of functions for 64-bit Arm.
//!
//! A function has codes, one for each instruction of its prologue and of its epilogues, or a packed
//! form that stands for the usual ones. The rules apply from each of these instructions on.
//! `symbolic` reads neither the packed form nor epilogues, and its rules apply one instruction too
//! early, to registers whose names (`.x29`) the walker does not know.
//!
//! Source of the format: Microsoft, "ARM64 exception handling".

use std::fmt::Write as _;
use std::ops::Range;

use goblin::pe::exception::{
    ARM64_PDATA_CR_CHAINED, ARM64_PDATA_CR_CHAINED_WITH_PAC, ARM64_PDATA_CR_UNCHAINED_SAVED_LR,
    ARM64_PDATA_PACKED_UNWIND_FUNCTION, Arm64RuntimeFunction, Arm64UnwindCode, Arm64UnwindInfo,
    ExceptionData,
};
use goblin::pe::section_table::SectionTable;
use symbolic::debuginfo::pe::PeObject;

use crate::debuginfo::slices::LineCollector;

/// The most instructions of a prologue or an epilogue. Compilers write fewer than thirty.
const MAX_STEPS: usize = 128;

/// The most states of a function. Epilogues beyond are unwound as if they were its body.
const MAX_STATES: usize = 256;

/// The size of an instruction, in bytes.
const INSTRUCTION: u32 = 4;

/// The first register that functions preserve.
const FIRST_PRESERVED: u8 = 19;

/// The frame pointer, and the register with the return address: the last ones that matter.
const FRAME_POINTER: u8 = 29;
const RETURN_ADDRESS: u8 = 30;

/// The number of registers that matter.
const PRESERVED: usize = (RETURN_ADDRESS - FIRST_PRESERVED) as usize + 1;

/// What undoes an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UndoStep {
    /// The instruction only counts: it moves neither the stack pointer nor a register that matters.
    Nothing,
    /// It moved the stack pointer down.
    Allocate(i64),
    /// It made the frame pointer that much higher than the stack pointer.
    SetFrame(i64),
    /// It stored registers at an offset from the stack pointer, after moving that down.
    Save {
        registers: [Option<u8>; 2],
        offset: i64,
        moved: i64,
    },
}

/// Reads functions.
pub(super) struct Arm64Reader<'p> {
    data: &'p ExceptionData<'p>,
    sections: &'p [SectionTable],
}

/// How a function is unwound.
#[derive(Default)]
struct UnwoundFunction {
    size: u32,
    /// What undoes the instructions of the prologue, the last one first, and then those of the
    /// function that this one is a part of.
    body: Vec<UndoStep>,
    /// The number of the former.
    own: usize,
    epilogues: Vec<Epilogue>,
}

/// The end of a function, or one of several.
struct Epilogue {
    /// Its first instruction, in bytes from the start of the function.
    begin: u32,
    /// What its instructions undo, one after the other, and then what the function around this
    /// one did.
    steps: Vec<UndoStep>,
    /// The number of the former.
    own: usize,
}

impl<'p> Arm64Reader<'p> {
    pub(super) fn new(pe: &'p PeObject<'_>, data: &'p ExceptionData<'p>) -> Self {
        Self {
            data,
            sections: pe.sections(),
        }
    }

    /// Returns the lines of a run of functions.
    pub(super) fn run(&mut self, functions: Range<usize>) -> Option<LineCollector> {
        let mut lines = LineCollector::default();
        for number in functions {
            let function = self.data.get_function_arm64(number).ok()?;
            let begin = function.begin_address;
            // A function whose information cannot be read costs its own rules.
            if let Some(function) = self.read(function).filter(|_| begin > 0) {
                function.add_lines(begin, &mut lines)?;
            }
        }
        Some(lines)
    }

    /// Reads how a function is unwound. Returns `None` if that cannot be read.
    fn read(&self, function: Arm64RuntimeFunction) -> Option<UnwoundFunction> {
        if function.is_packed() {
            return Some(UnwoundFunction::packed(function));
        }
        let info = self.data.get_unwind_info_arm64(function, self.sections);
        UnwoundFunction::full(&info?.ok()?)
    }
}

impl UnwoundFunction {
    /// Reads codes.
    fn full(info: &Arm64UnwindInfo<'_>) -> Option<Self> {
        let mut function = Self {
            size: info.header.function_length(),
            ..Self::default()
        };
        (function.body, function.own) = steps(info, 0)?;
        if info.header.epilog_in_header() {
            let count = match info.extension {
                Some(extension) => extension.epilog_count(),
                None => info.header.epilog_count(),
            };
            let (steps, own) = steps(info, count)?;
            function.add_last_epilogue(steps, own);
        }
        for scope in info.epilog_scopes().into_iter().flatten() {
            let scope = scope.ok()?;
            let states = function.epilogues.iter().map(|epilogue| epilogue.own);
            if states.sum::<usize>() > MAX_STATES {
                break;
            }
            let (steps, own) = steps(info, scope.start_index())?;
            function.epilogues.push(Epilogue {
                begin: scope.start_offset_words(),
                steps,
                own,
            });
        }
        function.epilogues.sort_by_key(|epilogue| epilogue.begin);
        Some(function)
    }

    /// Returns what the packed form stands for.
    fn packed(function: Arm64RuntimeFunction) -> Self {
        let (integers, is_chained) = (function.reg_i(), is_chained(function));
        let saves_return_address = function.cr() == ARM64_PDATA_CR_UNCHAINED_SAVED_LR;
        let vectors = match function.reg_f() {
            0 => 0,
            count => count + 1,
        };
        let integer_bytes = 8 * (integers + u32::from(saves_return_address));
        let homed_bytes = if function.h() { 64 } else { 0 };
        let saved_bytes = (integer_bytes + 8 * vectors + homed_bytes).next_multiple_of(16);
        let saved_bytes = i64::from(saved_bytes);
        let local_bytes = i64::from(function.frame_size()) - saved_bytes;
        // In the order in which they run. The first that saves registers moves the stack pointer.
        let mut prologue = Vec::new();
        if function.cr() == ARM64_PDATA_CR_CHAINED_WITH_PAC {
            prologue.push(UndoStep::Nothing);
        }
        let mut unmoved = saved_bytes;
        let mut save = |registers: [Option<u8>; 2], offset: i64| {
            let moved = std::mem::take(&mut unmoved);
            prologue.push(UndoStep::Save {
                registers,
                offset: if moved > 0 { 0 } else { offset },
                moved,
            });
        };
        let register = |number: u32| u8::try_from(u32::from(FIRST_PRESERVED) + number).ok();
        for number in (0..integers).step_by(2) {
            let second = match (number + 1 < integers, saves_return_address) {
                (true, _) => register(number + 1),
                (false, true) => Some(RETURN_ADDRESS),
                (false, false) => None,
            };
            save([register(number), second], i64::from(8 * number));
        }
        if saves_return_address && integers.is_multiple_of(2) {
            save([Some(RETURN_ADDRESS), None], i64::from(8 * integers));
        }
        for number in (0..vectors).step_by(2) {
            save([None, None], i64::from(integer_bytes + 8 * number));
        }
        let homes = if function.h() { 4 } else { 0 };
        for _ in 0..homes {
            save([None, None], 0);
        }
        // What an epilogue does not undo.
        let before_homes = prologue.len() - homes;
        let pair = [Some(FRAME_POINTER), Some(RETURN_ADDRESS)];
        match (is_chained, local_bytes) {
            (true, ..=512) => prologue.push(UndoStep::Save {
                registers: pair,
                offset: 0,
                moved: local_bytes,
            }),
            (_, local_bytes) => {
                let first = local_bytes.min(4080);
                let both = [first, local_bytes - first].into_iter();
                prologue.extend(both.filter(|bytes| *bytes > 0).map(UndoStep::Allocate));
                if is_chained {
                    prologue.push(UndoStep::Save {
                        registers: pair,
                        offset: 0,
                        moved: 0,
                    });
                }
            }
        }
        let mut epilogue = prologue.clone();
        epilogue.drain(before_homes..before_homes + homes);
        epilogue.reverse();
        if is_chained {
            prologue.push(UndoStep::SetFrame(0));
        }
        prologue.reverse();
        let is_whole = function.flag() == ARM64_PDATA_PACKED_UNWIND_FUNCTION;
        let mut packed = Self {
            size: function.function_length(),
            own: if is_whole { prologue.len() } else { 0 },
            body: prologue,
            epilogues: Vec::new(),
        };
        if is_whole {
            let own = epilogue.len();
            packed.add_last_epilogue(epilogue, own);
        }
        packed
    }

    /// Adds an epilogue that ends the function with a return.
    fn add_last_epilogue(&mut self, steps: Vec<UndoStep>, own: usize) {
        let instructions = u32::try_from(own + 1).unwrap_or(u32::MAX);
        let bytes = instructions.saturating_mul(INSTRUCTION);
        if let Some(begin) = self.size.checked_sub(bytes) {
            self.epilogues.push(Epilogue { begin, steps, own });
        }
    }

    /// Adds the lines of the function, which begins at an address.
    fn add_lines(&self, begin: u32, all: &mut LineCollector) -> Option<()> {
        let mut last: Option<Arm64Frame> = None;
        for (offset, frame) in self.frames() {
            let changes = frame.changes(last.as_ref());
            if !changes.is_empty() {
                let rules = all.rules(changes.trim_start())?;
                match last {
                    None => all.begin(begin.into(), self.size.into(), rules)?,
                    Some(_) => all.add(u64::from(begin) + u64::from(offset), rules)?,
                }
            }
            last = Some(frame);
        }
        Some(())
    }

    /// Returns the frame from each offset on at which it changes, in the order of the offsets.
    fn frames(&self) -> Vec<(u32, Arm64Frame)> {
        let mut frames = Vec::new();
        let mut add = |offset: u32, steps: &[UndoStep]| {
            let follows = frames.last().is_none_or(|(last, _)| *last < offset);
            if follows && offset < self.size && frames.len() < MAX_STATES {
                frames.push((offset, Arm64Frame::undoing(steps)));
            }
        };
        let mut offset = 0;
        for done in 0..=self.own {
            add(offset, &self.body[self.own - done..]);
            offset += INSTRUCTION;
        }
        for epilogue in &self.epilogues {
            let mut offset = epilogue.begin;
            for done in 0..=epilogue.own {
                add(offset, &epilogue.steps[done..]);
                offset = offset.saturating_add(INSTRUCTION);
            }
            // Behind the return.
            add(offset, &self.body);
        }
        frames
    }
}

/// Returns whether a function with packed information has a frame pointer.
fn is_chained(function: Arm64RuntimeFunction) -> bool {
    matches!(
        function.cr(),
        ARM64_PDATA_CR_CHAINED | ARM64_PDATA_CR_CHAINED_WITH_PAC
    )
}

/// Reads the codes from an index on, in the order in which they undo instructions. Returns them,
/// and the number of those that are not of the function around this one.
fn steps(info: &Arm64UnwindInfo<'_>, index: u32) -> Option<(Vec<UndoStep>, usize)> {
    let mut steps = Vec::new();
    let mut own = None;
    // The number of pairs that follow the next pair that is read.
    let mut next_pairs = 0;
    for code in info.unwind_codes(u16::try_from(index).ok()?).ok()? {
        let code = code.ok()?.code;
        if steps.len() >= MAX_STEPS {
            return None;
        }
        let step = match code {
            Arm64UnwindCode::End => break,
            Arm64UnwindCode::EndC => {
                own = own.or(Some(steps.len()));
                continue;
            }
            Arm64UnwindCode::SaveNext => {
                next_pairs += 1;
                continue;
            }
            _ => step(code)?,
        };
        for number in (1..=std::mem::take(&mut next_pairs)).rev() {
            steps.push(next_pair(step, number)?);
        }
        steps.push(step);
    }
    let own = own.unwrap_or(steps.len());
    Some((steps, own))
}

/// Returns what undoes the save of a pair that is a number of pairs behind another one. Its
/// registers and their place follow.
fn next_pair(first: UndoStep, number: u8) -> Option<UndoStep> {
    let UndoStep::Save {
        registers: [a, b],
        offset,
        ..
    } = first
    else {
        return None;
    };
    let register = |register: Option<u8>| {
        let register = register.map(|register| register.saturating_add(2 * number));
        register.filter(|register| *register <= RETURN_ADDRESS)
    };
    Some(UndoStep::Save {
        registers: [register(a), register(b)],
        offset: offset + 16 * i64::from(number),
        moved: 0,
    })
}

/// Returns what a code undoes.
fn step(code: Arm64UnwindCode) -> Option<UndoStep> {
    let save = |registers: [Option<u8>; 2], offset: u32| UndoStep::Save {
        registers,
        offset: offset.into(),
        moved: 0,
    };
    let save_and_move = |registers: [Option<u8>; 2], bytes: u32| UndoStep::Save {
        registers,
        offset: 0,
        moved: bytes.into(),
    };
    let pair = |first: u8| [Some(first), Some(first.saturating_add(1))];
    let step = match code {
        Arm64UnwindCode::AllocSmall { size_bytes }
        | Arm64UnwindCode::AllocMedium { size_bytes }
        | Arm64UnwindCode::AllocLarge { size_bytes } => UndoStep::Allocate(size_bytes.into()),
        Arm64UnwindCode::SetFp => UndoStep::SetFrame(0),
        Arm64UnwindCode::AddFp { offset_bytes, .. } => UndoStep::SetFrame(offset_bytes.into()),
        Arm64UnwindCode::SaveR19R20Preindexed { offset_bytes } => {
            save_and_move(pair(FIRST_PRESERVED), offset_bytes)
        }
        Arm64UnwindCode::SaveFpLr { offset_bytes } => save(pair(FRAME_POINTER), offset_bytes),
        Arm64UnwindCode::SaveFpLrPreindexed { offset_bytes } => {
            save_and_move(pair(FRAME_POINTER), offset_bytes)
        }
        Arm64UnwindCode::SaveRegPair {
            first_reg,
            offset_bytes,
        } => save(pair(first_reg), offset_bytes),
        Arm64UnwindCode::SaveRegPairPreindexed {
            first_reg,
            offset_bytes,
        } => save_and_move(pair(first_reg), offset_bytes),
        Arm64UnwindCode::SaveReg { reg, offset_bytes } => save([Some(reg), None], offset_bytes),
        Arm64UnwindCode::SaveRegPreindexed { reg, offset_bytes } => {
            save_and_move([Some(reg), None], offset_bytes)
        }
        Arm64UnwindCode::SaveLrPair {
            first_reg,
            offset_bytes,
        } => save([Some(first_reg), Some(RETURN_ADDRESS)], offset_bytes),
        Arm64UnwindCode::SaveFRegPair { offset_bytes, .. }
        | Arm64UnwindCode::SaveFReg { offset_bytes, .. } => save([None, None], offset_bytes),
        Arm64UnwindCode::SaveFRegPairPreindexed { offset_bytes, .. }
        | Arm64UnwindCode::SaveFRegPreindexed { offset_bytes, .. } => {
            save_and_move([None, None], offset_bytes)
        }
        Arm64UnwindCode::SaveAnyReg {
            kind,
            pair: is_pair,
            preindexed,
            reg,
            offset_bytes,
        } => {
            let registers = match (kind, is_pair) {
                (0, true) => pair(reg),
                (0, false) => [Some(reg), None],
                _ => [None, None],
            };
            if preindexed {
                save_and_move(registers, offset_bytes)
            } else {
                save(registers, offset_bytes)
            }
        }
        Arm64UnwindCode::Nop | Arm64UnwindCode::PacSignLr => UndoStep::Nothing,
        // Vectors of unknown length, and frames of the system.
        _ => return None,
    };
    Some(step)
}

/// The register that addresses are relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    StackPointer,
    FramePointer,
}

impl Base {
    fn name(self) -> &'static str {
        match self {
            Self::StackPointer => "sp",
            Self::FramePointer => "x29",
        }
    }
}

/// An address on the stack.
type StackPlace = (Base, i64);

/// Where a frame has what its caller needs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Arm64Frame {
    /// The stack pointer of the caller.
    cfa: StackPlace,
    /// The registers of the caller that are saved, from [`FIRST_PRESERVED`] on.
    saved: [Option<StackPlace>; PRESERVED],
}

impl Arm64Frame {
    /// Returns the frame after which these steps lead to the caller.
    fn undoing(steps: &[UndoStep]) -> Self {
        let (mut base, mut top) = (Base::StackPointer, 0_i64);
        let mut saved = [None; PRESERVED];
        for step in steps {
            match *step {
                UndoStep::Nothing => {}
                UndoStep::Allocate(bytes) => top = top.saturating_add(bytes),
                UndoStep::SetFrame(above) => (base, top) = (Base::FramePointer, -above),
                UndoStep::Save {
                    registers,
                    offset,
                    moved,
                } => {
                    let registers = registers.into_iter().enumerate();
                    for (number, register) in registers {
                        let index = register.and_then(|it| it.checked_sub(FIRST_PRESERVED));
                        let index = index.map(usize::from);
                        if let Some(place) = index.and_then(|index| saved.get_mut(index)) {
                            let at = top.saturating_add(offset) + 8 * number as i64;
                            *place = Some((base, at));
                        }
                    }
                    top = top.saturating_add(moved);
                }
            }
        }
        Self {
            cfa: (base, top),
            saved,
        }
    }

    /// Returns the rules that are not those of the frame before it in its function.
    fn changes(&self, before: Option<&Self>) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let (base, top) = self.cfa;
        if before.is_none_or(|before| before.cfa != self.cfa) {
            let _ = write!(text, ".cfa: {} {top} +", base.name());
        }
        for (index, register) in (FIRST_PRESERVED..=RETURN_ADDRESS).enumerate() {
            let place = self.relative_to_cfa(index);
            let known = before.map(|before| before.relative_to_cfa(index));
            if known == Some(place) {
                continue;
            }
            let is_return_address = register == RETURN_ADDRESS;
            if known.is_none() && place.is_none() && !is_return_address {
                continue;
            }
            let _ = if is_return_address {
                write!(text, " .ra: ")
            } else {
                write!(text, " x{register}: ")
            };
            let _ = match place {
                Some(SavedAt::Cfa(offset)) => write!(text, ".cfa {offset} + ^"),
                Some(SavedAt::Other(base, offset)) => write!(text, "{} {offset} + ^", base.name()),
                None => write!(text, "x{register}"),
            };
        }
        text
    }

    /// Returns where a register is saved, relative to the frame if possible: such a place is the
    /// same for each instruction.
    fn relative_to_cfa(&self, index: usize) -> Option<SavedAt> {
        let (base, offset) = self.saved[index]?;
        Some(if base == self.cfa.0 {
            SavedAt::Cfa(offset.saturating_sub(self.cfa.1))
        } else {
            SavedAt::Other(base, offset)
        })
    }
}

/// Where a register is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SavedAt {
    /// At an offset from the frame.
    Cfa(i64),
    /// At an offset from a register.
    Other(Base, i64),
}
