//! Entry points for fuzzing. Each takes arbitrary bytes as the input of a caller, and panics if
//! they could do harm. The fuzz targets are in `tests/fuzz`.

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use minidump::UnifiedMemory;
use minidump::system_info::Cpu;

use super::dump::{Dump, DumpBytes, DumpFile, DumpParts, ReportHead, THREADS, needed, registers};
use super::{MAX_FRAMES, ModuleCfi, Stack, StackWalker, UnwindInfo, WalkEnd, pointed_at};
use crate::debuginfo::CfiRecords;
use crate::domain::ResponseFormat;

/// Stacks beyond this number are not walked, so that each input is fast.
const WALKED: usize = 16;

/// The unwind information of the modules: each has the same.
struct SameForAll(Option<CfiRecords>);

#[async_trait]
impl UnwindInfo for SameForAll {
    async fn cfi(&self, _: usize, _: &[u64]) -> Option<ModuleCfi> {
        let records = self.0.clone()?;
        Some(ModuleCfi(vec![(0..u64::MAX, records)]))
    }

    async fn is_in_function(&self, _: usize, address: u64) -> Option<bool> {
        self.0.as_ref().map(|_| address.is_multiple_of(2))
    }
}

/// Returns records that cover the first gibibytes of a module, as compilers write them for
/// functions with a frame pointer. The rest is judged by functions.
fn records(cpu: Cpu) -> Option<CfiRecords> {
    let text = match cpu {
        Cpu::X86 => {
            "STACK CFI INIT 0 7fffffff .cfa: $ebp 8 + .ra: .cfa 4 - ^ $ebp: .cfa 8 - ^\n\
             STACK WIN 4 0 1000 0 0 4 0 0 0 1 $T0 $ebp = $eip $T0 4 + ^ = $ebp $T0 ^ = $esp $T0 8 + =\n"
        }
        Cpu::X86_64 => {
            "STACK CFI INIT 0 7fffffff .cfa: $rbp 16 + .ra: .cfa 8 - ^ $rbp: .cfa 16 - ^\n"
        }
        Cpu::Arm => "STACK CFI INIT 0 7fffffff .cfa: r11 8 + .ra: .cfa 4 - ^ r11: .cfa 8 - ^\n",
        Cpu::Arm64 => "STACK CFI INIT 0 7fffffff .cfa: x29 16 + .ra: .cfa 8 - ^ x29: .cfa 16 - ^\n",
        _ => return None,
    };
    let records = CfiRecords::parse(text.as_bytes());
    Some(records.expect("the records are valid"))
}

/// Takes bytes as a minidump that is read in parts: the rounds end, and what was read once is not
/// read again.
fn check_parts(bytes: &[u8]) {
    let mut parts = DumpParts::of(bytes.len() as u64);
    // One round more than the format has levels: a round may find names to be longer.
    for _ in 0..8 {
        let Ok(mapped) = parts.mapped() else {
            return;
        };
        let Ok(needed) = needed(&mapped, ResponseFormat::Stackwalk) else {
            return;
        };
        let missing = parts.missing(needed.ranges);
        if missing.is_empty() {
            return;
        }
        for range in missing {
            let part = usize::try_from(range.start)
                .ok()
                .zip(usize::try_from(range.end).ok());
            let part = part.and_then(|(start, end)| bytes.get(start..end));
            let part = part.expect("a range lies outside of the file");
            parts.add(range.start, Bytes::copy_from_slice(part));
        }
    }
    panic!("the rounds do not end");
}

/// Takes bytes as a minidump, and walks its stacks without unwind information and with some.
pub fn dump(bytes: &[u8]) {
    let whole = DumpBytes::from(Bytes::copy_from_slice(bytes));
    let Ok(file) = DumpFile::open(&whole) else {
        return;
    };
    let Ok(dump) = Dump::read(&file) else {
        return;
    };
    check_parts(bytes);
    assert!(dump.threads.len() <= THREADS, "{}", dump.threads.len());
    let _ = dump.request_modules();
    if let Ok(mut report) = ReportHead::read(&whole, &file, &dump) {
        let _ = report.unloaded_at(0);
    }
    for info in [None, records(dump.system.cpu)].map(SameForAll) {
        walk(&dump, &info);
    }
}

fn walk(dump: &Dump<'_>, info: &SameForAll) {
    let walker = StackWalker::new(info, &dump.modules, &dump.system).within(dump);
    for thread in dump.threads.iter().take(WALKED) {
        let Some(context) = &thread.context else {
            continue;
        };
        let part = dump.stack(thread);
        let memory = part
            .as_ref()
            .map(|part| UnifiedMemory::Memory(&part.memory));
        let _ = registers(context);
        let stack = Stack { context, memory };
        let _ = pointed_at(&[stack], &dump.modules, &dump.system);
        // Nothing is read, so nothing is awaited.
        let walked = walker.walk(stack).now_or_never();
        let (frames, end) = walked.expect("the walk awaits nothing");
        assert!(frames.len() <= MAX_FRAMES, "{} frames", frames.len());
        assert_ne!(end, WalkEnd::Panicked, "the walker panicked");
    }
}
