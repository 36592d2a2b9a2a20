//! Entry points for fuzzing. Each takes arbitrary bytes as the input of a caller, and panics if
//! they could do harm. The fuzz targets are in `tests/fuzz`.

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use minidump::UnifiedMemory;

use super::dump::{Dump, DumpBytes, DumpFile, DumpParts, ReportHead, THREADS, needed, registers};
use super::{MAX_FRAMES, ModuleCfi, Stack, StackWalker, UnwindInfo, WalkEnd, pointed_at};
use crate::domain::ResponseFormat;

/// Stacks beyond this number are not walked, so that each input is fast.
const WALKED: usize = 16;

/// No unwind information for any module.
struct NoUnwindInfo;

#[async_trait]
impl UnwindInfo for NoUnwindInfo {
    async fn cfi(&self, _: usize, _: &[u64]) -> Option<ModuleCfi> {
        None
    }

    async fn is_in_function(&self, _: usize, _: u64) -> Option<bool> {
        None
    }
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

/// Takes bytes as a minidump, and walks its stacks without unwind information.
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
    let walker = StackWalker::new(&NoUnwindInfo, &dump.modules, &dump.system);
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
