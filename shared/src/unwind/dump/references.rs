//! The streams that are only in a report in the schema of `minidump-stackwalk`, and the places that
//! they refer to.

use std::ops::Range;

use minidump::Endian;
use minidump::format::MINIDUMP_STREAM_TYPE as Stream;

use super::bounds::{TEXT_BYTES, number};

/// The streams of the report besides those of every answer, with the maximum size of each. A larger
/// one is left out of the report.
pub(super) const REPORT_STREAMS: [(u32, usize); 11] = [
    (Stream::UnloadedModuleListStream as u32, 12 + 24 * 4_096),
    (Stream::HandleDataStream as u32, 16 + 40 * 65_536),
    (Stream::MemoryInfoListStream as u32, 16 + 48 * 65_536),
    (Stream::LinuxMaps as u32, 4 << 20),
    (Stream::LinuxCpuInfo as u32, 1 << 20),
    (Stream::LinuxLsbRelease as u32, TEXT_BYTES),
    (Stream::LinuxProcStatus as u32, TEXT_BYTES),
    (Stream::MozLinuxLimits as u32, TEXT_BYTES),
    (Stream::MozMacosCrashInfoStream as u32, TEXT_BYTES),
    (Stream::MozMacosBootargsStream as u32, TEXT_BYTES),
    (Stream::MozSoftErrors as u32, TEXT_BYTES),
];

/// The most records of a crash in macOS: those that the format has place for.
const MAC_RECORDS: usize = 20;

/// Returns the range of this length from an offset on.
pub(super) fn range(start: u64, length: u64) -> Range<u64> {
    start..start.saturating_add(length)
}

/// Returns the places that a stream of the report refers to. `text` returns that of a text that
/// begins at an offset.
pub(super) fn references(
    kind: u32,
    stream: &[u8],
    endian: Endian,
    text: impl Fn(usize) -> Range<u64>,
) -> Vec<Range<u64>> {
    let field = |at| number(stream, at, endian).unwrap_or(0);
    let texts_at = |fields: &[usize]| {
        let elements = elements(stream, endian);
        let texts = elements.flat_map(|element| {
            fields
                .iter()
                .filter_map(move |at| number(element, *at, endian))
        });
        texts.filter(|start| *start != 0).map(&text).collect()
    };
    const UNLOADED: u32 = Stream::UnloadedModuleListStream as u32;
    const HANDLES: u32 = Stream::HandleDataStream as u32;
    const MAC_BOOT: u32 = Stream::MozMacosBootargsStream as u32;
    const MAC_CRASH: u32 = Stream::MozMacosCrashInfoStream as u32;
    match kind {
        UNLOADED => texts_at(&[20]),
        HANDLES => texts_at(&[8, 12]),
        MAC_BOOT => vec![text(field(4))],
        MAC_CRASH => {
            let records = (0..field(4).min(MAC_RECORDS)).map(|at| 12 + 8 * at);
            records
                .map(|at| range(field(at + 4) as u64, field(at) as u64))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the elements of a list whose header has its own size, that of an element, and their
/// number.
pub(super) fn elements(stream: &[u8], endian: Endian) -> impl Iterator<Item = &[u8]> {
    let field = |at| number(stream, at, endian).unwrap_or(0);
    let list = stream.get(field(0)..).unwrap_or_default();
    list.chunks_exact(field(4).max(1)).take(field(8))
}
