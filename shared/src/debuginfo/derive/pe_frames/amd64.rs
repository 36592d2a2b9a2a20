//! Reads the unwind information of functions for x86-64.
//!
//! Behind the prologue of a function, the rules are those that `symbolic` writes (`symbolic_cfi`,
//! MIT), which is the oracle: tests compare all fixtures, also with random changes. `symbolic`
//! leaves out or misreads what is read here, too:
//!
//! - The rules within a prologue. The function that grows the stack is called there, and a stack
//!   overflow ends there.
//! - Chained information: a part of a function whose registers are saved later continues the
//!   prologue of the function, and does not precede it.
//! - A function whose information cannot be read costs its own rules, not the file.
//!
//! Epilogues are not described by the information, but by their instructions, which are not read.
//!
//! Source of the format: Microsoft, "x64 exception handling".

use std::fmt::Write as _;
use std::ops::Range;

use goblin::pe::exception::{ExceptionData, RuntimeFunction, StackFrameOffset, UnwindOperation};
use goblin::pe::section_table::SectionTable;
use symbolic::debuginfo::pe::PeObject;

use crate::debuginfo::slices::LineCollector;

/// The longest chain of unwind information that is followed. In a PE, the unwind information of a
/// function may refer to that of another, and so on: a few times in a valid file, endlessly in a
/// malformed one.
pub(in crate::debuginfo::derive) const MAX_UNWIND_CHAIN: usize = 256;

/// The number of bytes that a call pushes: the return address.
const RETURN_ADDRESS: i32 = 8;

/// The number of bytes that a trap pushes, without an error code.
const MACHINE_FRAME: i32 = 40;

/// The most lines of a function. Behind that many, the rules of the rest of its prologue are one
/// line. Compilers need one for each of eight registers, saved once, and two for the stack.
const MAX_LINES: usize = 24;

/// Reads functions. Reuses its buffers from one function to the next.
pub(super) struct Amd64Reader<'p> {
    bytes: &'p [u8],
    data: &'p ExceptionData<'p>,
    sections: &'p [SectionTable],
    /// The steps of the prologue, the last one first.
    steps: Vec<PrologueStep>,
    frame: Amd64Frame,
}

/// A step of a prologue.
struct PrologueStep {
    operation: UnwindOperation,
    /// The number of bytes of the function after which the step is done.
    done_at: u8,
    frame_register: &'static str,
    /// The number of bytes that the frame register is above the stack pointer when it is set.
    frame_offset: u32,
}

impl<'p> Amd64Reader<'p> {
    pub(super) fn new(pe: &'p PeObject<'_>, data: &'p ExceptionData<'p>) -> Self {
        Self {
            bytes: pe.data(),
            data,
            sections: pe.sections(),
            steps: Vec::new(),
            frame: Amd64Frame::default(),
        }
    }

    /// Returns the lines of a run of functions.
    pub(super) fn run(&mut self, functions: Range<usize>) -> Option<LineCollector> {
        let mut lines = LineCollector::default();
        for number in functions {
            let function = self.data.get_function(number).ok()?;
            let (begin, end) = (function.begin_address, function.end_address);
            let is_removed = (begin, end, function.unwind_info_address) == (0, 0, 0);
            if !is_removed && begin <= end && self.read_steps(function).is_some() {
                self.frame.add_lines(&self.steps, begin..end, &mut lines)?;
            }
        }
        Some(lines)
    }

    /// Returns the function whose unwind information a function has: it may refer to another
    /// function instead. Returns `None` if there is none. `goblin` follows these references, too,
    /// but does not end if they lead in a circle.
    fn with_information(&self, mut function: RuntimeFunction) -> Option<RuntimeFunction> {
        for _ in 0..MAX_UNWIND_CHAIN {
            let address = function.unwind_info_address;
            if address.is_multiple_of(2) {
                return Some(function);
            }
            let address = address - 1;
            let section = self.sections.iter().find_map(|section| {
                let offset = address.checked_sub(section.virtual_address)?;
                (offset < section.size_of_raw_data)
                    .then(|| section.pointer_to_raw_data.checked_add(offset))?
            });
            let at = usize::try_from(section?).ok()?;
            let (words, _) = self.bytes.get(at..)?.first_chunk::<12>()?.as_chunks::<4>();
            let [begin_address, end_address, unwind_info_address] = words else {
                return None;
            };
            function = RuntimeFunction {
                begin_address: u32::from_le_bytes(*begin_address),
                end_address: u32::from_le_bytes(*end_address),
                unwind_info_address: u32::from_le_bytes(*unwind_info_address),
            };
        }
        None
    }

    /// Reads the steps of a function. Returns `None` if one cannot be read.
    fn read_steps(&mut self, function: RuntimeFunction) -> Option<()> {
        self.steps.clear();
        let mut next = Some(function);
        for number in 0..MAX_UNWIND_CHAIN {
            let Some(function) = next else { break };
            let function = self.with_information(function)?;
            let info = self.data.get_unwind_info(function, self.sections).ok()?;
            for code in info.unwind_codes() {
                let code = code.ok()?;
                if let UnwindOperation::Epilog { .. } = code.operation {
                    continue;
                }
                // A part of a function is entered when the prologue of the function is done.
                let is_own = number == 0;
                let done_at = code.code_offset.min(info.size_of_prolog);
                self.steps.push(PrologueStep {
                    operation: code.operation,
                    done_at: if is_own { done_at } else { 0 },
                    frame_register: info.frame_register.name(),
                    frame_offset: info.frame_register_offset,
                });
            }
            next = info.chained_info;
        }
        next.is_none().then_some(())
    }
}

/// The frame of a function, as far as the steps of its prologue are done.
#[derive(Default)]
struct Amd64Frame {
    /// The number of bytes on the stack. It may become negative: a register may be saved beyond
    /// the frame.
    size: i32,
    /// The frame register, and its distance to the address of the frame.
    base: Option<(&'static str, i32)>,
    /// Whether a trap pushed the return address, not a call.
    is_machine_frame: bool,
    /// The rules for registers that are not in a line yet.
    saved: String,
    /// The rules that need the frame register, until it is set.
    saved_later: String,
    /// The rule for the address of the frame in the last line.
    last_cfa: Option<(&'static str, i32)>,
    text: String,
}

impl Amd64Frame {
    fn clear(&mut self) {
        self.size = RETURN_ADDRESS;
        self.base = None;
        self.is_machine_frame = false;
        self.saved.clear();
        self.saved_later.clear();
        self.last_cfa = None;
    }

    /// Adds the lines of a function with these steps, the last one first.
    fn add_lines(
        &mut self,
        steps: &[PrologueStep],
        function: Range<u32>,
        all: &mut LineCollector,
    ) -> Option<()> {
        self.clear();
        let (mut at, mut lines) = (0, 0);
        for step in steps.iter().rev() {
            if u32::from(step.done_at) >= function.end - function.start {
                break;
            }
            if step.done_at > at && lines + 1 < MAX_LINES {
                lines += usize::from(self.add_line(&function, at, all)?);
                at = step.done_at;
            }
            self.apply(step);
        }
        self.finish();
        self.add_line(&function, at, all)?;
        Some(())
    }

    /// Does a step.
    fn apply(&mut self, step: &PrologueStep) {
        let (frame_register, frame_offset) = (step.frame_register, step.frame_offset);
        match step.operation {
            UnwindOperation::SaveNonVolatile(register, StackFrameOffset::RSP(offset)) => {
                let offset = self.size.wrapping_sub(offset.cast_signed());
                self.save(format_args!(" {}: .cfa {offset} - ^", register.name()));
            }
            UnwindOperation::SaveNonVolatile(register, StackFrameOffset::FP(offset)) => {
                let offset = offset.wrapping_sub(frame_offset).cast_signed();
                let name = register.name();
                let rules = match self.base {
                    Some(_) => &mut self.saved,
                    None => &mut self.saved_later,
                };
                // Writing to a string does not fail.
                let _ = write!(rules, " {name}: {frame_register} {offset} + ^");
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
                self.base = Some((frame_register, offset));
                self.finish();
            }
            UnwindOperation::PushMachineFrame(has_error_code) => {
                let stack = self.size.wrapping_add(16);
                self.size = self.size.wrapping_add(MACHINE_FRAME);
                let address = self.size;
                self.save(format_args!(
                    " $rsp: .cfa {stack} - ^ .ra: .cfa {address} - ^"
                ));
                self.is_machine_frame = true;
                self.size = self.size.wrapping_add(if has_error_code { 8 } else { 0 });
            }
            // The others do not change the stack pointer.
            _ => {}
        }
    }

    fn save(&mut self, rule: std::fmt::Arguments<'_>) {
        let _ = self.saved.write_fmt(rule);
    }

    /// Ends the wait for the frame register.
    fn finish(&mut self) {
        self.saved.push_str(&self.saved_later);
        self.saved_later.clear();
    }

    /// Adds the line with the rules that apply from an offset in the function on, as far as they
    /// are not those of its last line. Returns whether there is one.
    fn add_line(&mut self, function: &Range<u32>, at: u8, all: &mut LineCollector) -> Option<bool> {
        let cfa = self.base.unwrap_or(("$rsp", self.size));
        let is_first = self.last_cfa.is_none();
        self.text.clear();
        if self.last_cfa != Some(cfa) {
            let (register, offset) = cfa;
            let _ = write!(self.text, ".cfa: {register} {offset} +");
            self.last_cfa = Some(cfa);
        }
        self.text.push_str(&self.saved);
        self.saved.clear();
        if is_first && !self.is_machine_frame {
            self.text.push_str(" .ra: .cfa 8 - ^");
        }
        let text = self.text.trim_start();
        if text.is_empty() {
            return Some(false);
        }
        let rules = all.rules(text)?;
        let begin = u64::from(function.start);
        if is_first {
            all.begin(begin, (function.end - function.start).into(), rules)?;
        } else {
            all.add(begin + u64::from(at), rules)?;
        }
        Some(true)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use goblin::pe::exception::Register;
    use proptest::prelude::*;
    use symbolic::debuginfo::{Archive, Object};

    use super::*;
    use crate::debuginfo::derive::cfi::write_records;
    use crate::debuginfo::derive::pe_frames::read;
    use crate::debuginfo::panics::caught;
    use crate::debuginfo::slices::CfiSource;
    use crate::debuginfo::tests::{debug_files, fixture, text};

    /// The rules of each record behind the prologue of its function, by register. A record is
    /// identified by its first address and its size.
    type Bodies = BTreeMap<(String, String), BTreeMap<String, String>>;

    /// Returns the rules behind the prologues in the text of records. Leaves out records in which a
    /// register has two rules at once.
    fn bodies(text: &str) -> Bodies {
        let mut bodies = Bodies::new();
        let mut current = None;
        for line in text.lines() {
            let line = line.strip_prefix("STACK CFI ").unwrap();
            let (is_first, rules) = match line.strip_prefix("INIT ") {
                Some(line) => {
                    let mut words = line.splitn(3, ' ');
                    let (begin, size) = (words.next().unwrap(), words.next().unwrap());
                    current = Some((begin.to_owned(), size.to_owned()));
                    (true, words.next().unwrap())
                }
                None => (false, line.split_once(' ').unwrap().1),
            };
            let record = bodies.entry(current.clone().unwrap()).or_default();
            assert_eq!(record.is_empty(), is_first, "{line}");
            let mut register = String::new();
            for word in rules.split(' ') {
                match word.strip_suffix(':') {
                    Some(name) => {
                        register = name.to_owned();
                        record.insert(register.clone(), String::new());
                    }
                    None => {
                        let rule = record.get_mut(&register).unwrap();
                        rule.push(' ');
                        rule.push_str(word);
                    }
                }
            }
        }
        bodies
    }

    /// Returns the first addresses of functions that `symbolic` reads wrongly: their information
    /// continues that of others, they set a frame register twice or after they used it, or they end
    /// before their prologue.
    fn misread(pe: &PeObject<'_>) -> BTreeSet<String> {
        let Some(data) = pe.exception_data() else {
            return BTreeSet::new();
        };
        let functions = data.functions().map_while(Result::ok);
        functions
            .filter(|function| {
                let Ok(info) = data.get_unwind_info(*function, pe.sections()) else {
                    return true;
                };
                let mut codes = info.unwind_codes().map_while(Result::ok);
                let size = function.end_address.wrapping_sub(function.begin_address);
                let mut bases = 0;
                let is_misread = codes.any(|code| {
                    bases += usize::from(code.operation == UnwindOperation::SetFPRegister);
                    let needs_base = matches!(
                        code.operation,
                        UnwindOperation::SaveNonVolatile(_, StackFrameOffset::FP(_))
                    );
                    // The last step comes first.
                    let is_early = bases > 0 && needs_base;
                    let ends_early = u32::from(code.code_offset.min(info.size_of_prolog)) >= size;
                    is_early || ends_early
                });
                info.chained_info.is_some() || bases > 1 || is_misread
            })
            .map(|function| format!("{:x}", function.begin_address))
            .collect()
    }

    /// Compares the rules behind prologues with the oracle. Returns the number of records and of
    /// lines that were compared, or `None` if `symbolic` does not read the file.
    fn compared(object: &Object<'_>, run: usize, workers: usize) -> Option<(usize, usize)> {
        let Object::Pe(pe) = object else {
            panic!("not a PE")
        };
        // The crate that reads PE files may panic, and so may `symbolic`: they add without checking
        // the sum.
        let lines = caught(|| read(pe, run, workers)).ok()??;
        let oracle = caught(|| CfiSource::of(|out| write_records(object, out)));
        let Ok(Ok(oracle)) = oracle else { return None };
        let text = CfiSource::Lines(lines).text();
        let misread = caught(|| misread(pe)).ok()?;
        let [mut found, mut expected] = [&text, &oracle.text()].map(|text| bodies(text));
        for bodies in [&mut found, &mut expected] {
            bodies.retain(|(begin, _), _| !misread.contains(begin));
        }
        assert_eq!(found, expected, "{run} {workers}");
        Some((found.len(), text.lines().count()))
    }

    #[test]
    fn behind_each_prologue_the_rules_are_those_that_symbolic_writes() {
        let (mut records, mut lines) = (0, 0);
        let files = debug_files().into_iter();
        let files = files.map(|entry| text(&entry, "file").unwrap().to_owned());
        for file in files.chain(["unwinding/windows-x64.exe".to_owned()]) {
            let dif = fixture(&file);
            for object in Archive::parse(&dif).unwrap().objects() {
                let object = object.unwrap();
                if !matches!(object, Object::Pe(_)) {
                    continue;
                }
                for (run, workers) in [(1, 3), (7, 2), (2048, 1)] {
                    let compared = compared(&object, run, workers).unwrap();
                    records += compared.0;
                    lines += compared.1;
                }
            }
        }
        assert!(records > 30 && lines > 3 * records, "{records} {lines}");
    }

    /// Returns the lines of the function of a program that begins at an address.
    fn lines_of(program: &str, begin: u64) -> Vec<String> {
        let dif = fixture(program);
        let Object::Pe(pe) = Object::parse(&dif).unwrap() else {
            panic!("not a PE")
        };
        let text = CfiSource::Lines(read(&pe, 2048, 1).unwrap()).text();
        let first = format!("STACK CFI INIT {begin:x} ");
        let lines = text.lines().skip_while(|line| !line.starts_with(&first));
        let rest = |line: &&str| !line.starts_with("STACK CFI INIT");
        let mut lines = lines.map(str::to_owned);
        let mut found = vec![lines.next().unwrap()];
        found.extend(lines.take_while(|line| rest(&line.as_str())));
        found
    }

    #[test]
    fn a_prologue_has_a_line_for_each_step_that_moves_the_frame() {
        // Pushes three registers, of which one becomes the frame register.
        assert_eq!(
            lines_of("unwinding/windows-x64.exe", 0x11c0),
            [
                "STACK CFI INIT 11c0 47 .cfa: $rsp 8 + .ra: .cfa 8 - ^",
                "STACK CFI 11c1 .cfa: $rsp 16 + $rbp: .cfa 16 - ^",
                "STACK CFI 11c2 .cfa: $rsp 24 + $rsi: .cfa 24 - ^",
                "STACK CFI 11c3 .cfa: $rsp 32 + $rdi: .cfa 32 - ^",
                "STACK CFI 11c6 .cfa: $rbp 32 +",
            ]
        );
    }

    #[test]
    fn a_part_of_a_function_begins_with_the_frame_of_the_function() {
        assert_eq!(
            lines_of("unwinding/windows-x64.exe", 0x1422),
            [
                "STACK CFI INIT 1422 1c .cfa: $rsp 80 + $rdi: .cfa 16 - ^ .ra: .cfa 8 - ^",
                "STACK CFI 1427 $rsi: .cfa 32 - ^",
                "STACK CFI 142c $rbx: .cfa 40 - ^",
            ]
        );
        // Its own part, too, continues it.
        assert_eq!(
            lines_of("unwinding/windows-x64.exe", 0x143e),
            [
                "STACK CFI INIT 143e 18 .cfa: $rsp 80 + $rdi: .cfa 16 - ^ $rsi: .cfa 32 - ^ \
                 $rbx: .cfa 40 - ^ .ra: .cfa 8 - ^",
                "STACK CFI 1443 $r12: .cfa 24 - ^",
            ]
        );
    }

    /// Returns the text of a program whose first function has the unwind information at an address.
    fn text_with(information: impl FnOnce(u32) -> u32) -> String {
        let mut dif = fixture("unwinding/windows-x64.exe");
        let Object::Pe(pe) = Object::parse(&dif).unwrap() else {
            panic!("not a PE")
        };
        let functions = pe.section(".pdata").unwrap();
        let (address, at) = (functions.virtual_address, functions.pointer_to_raw_data);
        let place = at as usize + 8..at as usize + 12;
        dif[place].copy_from_slice(&information(address).to_le_bytes());
        let Object::Pe(pe) = Object::parse(&dif).unwrap() else {
            panic!("not a PE")
        };
        CfiSource::Lines(read(&pe, 2048, 1).unwrap()).text()
    }

    #[test]
    fn a_function_may_have_the_unwind_information_of_another() {
        // The lowest bit says so. The second function pushes one register, and grows the stack.
        let text = text_with(|functions| functions + 12 + 1);
        let of_first: Vec<&str> = text.lines().take(3).collect();
        assert_eq!(
            of_first,
            [
                "STACK CFI INIT 1020 e7 .cfa: $rsp 8 + .ra: .cfa 8 - ^",
                "STACK CFI 1021 .cfa: $rsp 16 + $rsi: .cfa 16 - ^",
                "STACK CFI 102e .cfa: $rsp 9056 +",
            ]
        );
    }

    #[test]
    fn unwind_information_that_cannot_be_read_costs_its_function_only() {
        let all = text_with(|functions| functions + 12 + 1);
        let others = all.lines().skip(3).collect::<Vec<_>>();
        let unreadable: [fn(u32) -> u32; 3] = [
            // It refers to itself.
            |functions| functions + 1,
            // It lies outside of the file.
            |_| 0x7000_0000,
            |_| 0x7000_0001,
        ];
        for information in unreadable {
            let text = text_with(information);
            assert_eq!(text.lines().collect::<Vec<_>>(), others);
        }
    }

    /// Returns these steps, each with the offset behind it, as a reader keeps them.
    fn steps(steps: &[(UnwindOperation, u8)]) -> Vec<PrologueStep> {
        let step = |(operation, done_at): &(UnwindOperation, u8)| PrologueStep {
            operation: *operation,
            done_at: *done_at,
            frame_register: "$rbp",
            frame_offset: 0,
        };
        steps.iter().rev().map(step).collect()
    }

    #[test]
    fn a_prologue_with_many_steps_ends_in_one_line() {
        let pushes: Vec<_> = (1..=100)
            .map(|at| (UnwindOperation::PushNonVolatile(Register(3)), at))
            .collect();
        let mut frame = Amd64Frame::default();
        let mut lines = LineCollector::default();
        frame.add_lines(&steps(&pushes), 0x1000..0x1080, &mut lines);
        let text = CfiSource::Lines(lines.finish()).text();
        assert_eq!(text.lines().count(), MAX_LINES);
        let last = text.lines().last().unwrap();
        assert!(
            last.starts_with("STACK CFI 1017 .cfa: $rsp 808 + "),
            "{last}"
        );
        assert!(last.ends_with(" $rbx: .cfa 808 - ^"), "{last}");
    }

    #[test]
    fn a_prologue_longer_than_its_function_ends_with_it() {
        let pushes = [1, 2, 16, 17].map(|at| (UnwindOperation::PushNonVolatile(Register(3)), at));
        let mut frame = Amd64Frame::default();
        let mut lines = LineCollector::default();
        frame.add_lines(&steps(&pushes), 0x1000..0x1010, &mut lines);
        let text = CfiSource::Lines(lines.finish()).text();
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(
            text.ends_with("STACK CFI 1002 .cfa: $rsp 24 + $rbx: .cfa 24 - ^\n"),
            "{text}"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn mutated_functions_are_read_as_symbolic_reads_them(
            changes in proptest::collection::vec((any::<bool>(), 0.0..1.0, any::<u8>()), 1..12),
        ) {
            let mut dif = fixture("pe/x64/crash.exe");
            // The functions, and how to unwind them.
            let [functions, unwinding] = [".pdata", ".rdata"].map(|name| {
                let Object::Pe(pe) = Object::parse(&dif).unwrap() else { panic!() };
                let section = pe.section(name).unwrap();
                let (begin, size) = (section.pointer_to_raw_data, section.size_of_raw_data);
                begin as usize..(begin + size) as usize
            });
            for (is_function, at, byte) in changes {
                let place = if is_function { &functions } else { &unwinding };
                let at = place.start + (at * place.len() as f64) as usize;
                dif[at] = byte;
            }
            compared(&Object::parse(&dif).unwrap(), 3, 2);
        }
    }
}
