//! The whole-blob format: one zstd frame, then a footer of fixed size. PPDB caches are written in
//! it; SymCaches and CFI caches of version 1, which are still read, were. Sliced blobs
//! ([`super::slices`]) end in the same footer.
//!
//! ```text
//! frame    zstd, no dictionary; decompresses to the raw cache: a SymCache, CFI cache or PPDB cache as `symbolic` writes it
//! footer   112 bytes; numbers little-endian
//!     0    8  magic "SYMDEPOT"
//!     8    2  format of this footer: 1
//!    10    1  kind: 1 CFI cache, 2 PPDB cache, 3 SymCache, 4 sources
//!    11    1  endianness of the raw cache: 1 little, 2 big
//!    12    4  architecture, as `symbolic` numbers it
//!    16    4  version of the kind's format
//!    20    4  converter
//!    24    1  rank: how well the DIF serves the kind
//!    25    1  type of the DIF, see `file_type_code`
//!    26    1  what the object offers: 1 debug information, 2 unwind information, 4 symbols, 8 sources
//!    27    1  how it is laid out: 0 whole, 1 sliced
//!    28    4  number of slices; 0 in a whole one
//!    32   48  debug id as text, padded with zeros; all zeros where the object has none
//!    80    8  raw length in bytes
//!    88    8  length of the frame in bytes
//!    96    8  xxh3-64 of the raw cache
//!   104    8  xxh3-64 of the 104 bytes before
//! ```
//!
//! A reader trusts only the record, which has the size and the checksum of the blob.

use std::io::{self, Write};
use std::panic::resume_unwind;
use std::thread::{self, JoinHandle};

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::pipe::{PipeWriter, pipe};
use crate::cache::{Converter, Kind, Ready, current_version};
use crate::debuginfo::limits::{MAX_RAW_BYTES, MAX_WHOLE_BYTES};
use crate::domain::{Arch, DebugId, Features, FileType};

/// This level is as fast as level 1 of `zstd`, and its blobs are a fifth smaller.
pub(super) const ZSTD_LEVEL: i32 = 3;

/// The initial capacity for compressed bytes. An allocation of this size comes from the system and
/// grows in place. A smaller buffer would leave holes in the heap of the converter. Bytes that are
/// not written to take no memory.
const FRAME_ROOM: usize = 8 << 20;

const MAGIC: [u8; 8] = *b"SYMDEPOT";
const FOOTER_FORMAT: u16 = 1;
pub(super) const FOOTER_BYTES: usize = 112;
const DEBUG_ID_BYTES: usize = 48;
const NATIVE_ENDIAN: u8 = if cfg!(target_endian = "little") { 1 } else { 2 };

/// The description of a cache in its footer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) kind: Kind,
    pub(super) version: u32,
    pub(super) converter: Converter,
    pub(super) arch: Arch,
    pub(super) debug_id: Option<DebugId>,
    pub(super) rank: u8,
    pub(super) file_type: FileType,
    /// Without the version control system, which is only in the record.
    pub(super) features: Features,
}

/// The reason why a blob does not match its record, or cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlobFault {
    /// Its size differs from the record.
    #[error("the blob has {found} bytes instead of {expected}")]
    Size {
        /// The size in the record.
        expected: u64,
        /// The actual size.
        found: u64,
    },
    /// Its checksum differs from the record.
    #[error("the checksum of the blob differs from its record")]
    Checksum,
    /// It does not end in a footer that this release can read.
    #[error("the blob does not end in a footer of this format: {0}")]
    Footer(&'static str),
    /// Its contents differ from the record.
    #[error("the {0} of the blob differs from its record")]
    Mismatch(&'static str),
    /// Its lengths exceed the limit or the available memory.
    #[error("the blob decompresses to {0} bytes, which is more than can be opened")]
    TooLarge(u64),
    /// It does not decompress to the bytes that the footer describes.
    #[error("the blob does not decompress: {0}")]
    Frame(String),
    /// The decompressed bytes are not a valid cache.
    #[error("the cache in the blob is not valid: {0}")]
    Cache(String),
}

/// Bytes at an address that is a multiple of eight.
///
/// `symbolic` aligns by address, not by offset. At another address it parses the same bytes without
/// an error, and lookups return wrong results.
#[derive(Debug)]
pub struct AlignedBytes {
    words: Vec<u64>,
    len: usize,
}

impl AlignedBytes {
    pub(super) fn zeroed(len: u64) -> Result<Self, BlobFault> {
        let too_large = || BlobFault::TooLarge(len);
        let len = usize::try_from(len)
            .ok()
            .filter(|&bytes| bytes as u64 <= MAX_RAW_BYTES)
            .ok_or_else(too_large)?;
        let mut words = Vec::new();
        words
            .try_reserve_exact(len.div_ceil(8))
            .map_err(|_| too_large())?;
        words.resize(len.div_ceil(8), 0);
        Ok(Self { words, len })
    }

    /// Copies bytes to an aligned address.
    pub(super) fn copied(bytes: &[u8]) -> Result<Self, BlobFault> {
        let mut aligned = Self::zeroed(bytes.len() as u64)?;
        aligned.as_mut_slice().copy_from_slice(bytes);
        Ok(aligned)
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words)
            .get(..self.len)
            .expect("the words have room for all bytes")
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.words)
            .get_mut(..self.len)
            .expect("the words have room for all bytes")
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }
}

/// Encodes a raw cache in a separate thread while the cache is written. Callers need not hold the
/// raw and the compressed bytes at the same time, or wait for the compression.
pub(super) struct FrameEncoder {
    raw: PipeWriter,
    encoding: JoinHandle<io::Result<Encoded>>,
}

/// The result of the thread.
struct Encoded {
    frame: Vec<u8>,
    raw_hash: u64,
}

impl FrameEncoder {
    /// Begins a blob. Fails only if memory runs out.
    pub(super) fn new() -> io::Result<Self> {
        let (raw, received) = pipe();
        let mut encoder = zstd::Encoder::new(Vec::with_capacity(FRAME_ROOM), ZSTD_LEVEL)?;
        let encoding = thread::Builder::new().spawn(move || {
            let mut hash = Box::<Xxh3>::default();
            for batch in received {
                encoder.write_all(&batch)?;
                hash.update(&batch);
            }
            Ok(Encoded {
                frame: encoder.finish()?,
                raw_hash: hash.digest(),
            })
        })?;
        Ok(Self { raw, encoding })
    }

    /// Ends the blob.
    pub(super) fn finish(self, contents: &Contents) -> io::Result<Vec<u8>> {
        let raw_length = self.raw.length();
        drop(self.raw);
        let encoded = self
            .encoding
            .join()
            .unwrap_or_else(|panic| resume_unwind(panic))?;
        let mut blob = encoded.frame;
        let whole = Footer {
            slices: None,
            raw_length,
            length: blob.len() as u64,
            hash: encoded.raw_hash,
        };
        blob.extend_from_slice(&footer(contents, &whole));
        blob.shrink_to_fit();
        Ok(blob)
    }
}

impl Write for FrameEncoder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.raw.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.raw.flush()
    }
}

/// Verifies a blob against its record, and decompresses it.
pub(super) fn open(
    kind: Kind,
    ready: &Ready,
    blob: &[u8],
) -> Result<(Contents, AlignedBytes), BlobFault> {
    let found = blob.len() as u64;
    if found != ready.blob.bytes {
        return Err(BlobFault::Size {
            expected: ready.blob.bytes,
            found,
        });
    }
    if xxh3_64(blob) != ready.blob.checksum {
        return Err(BlobFault::Checksum);
    }
    let (contents, raw) = open_unchecked(blob)?;
    check(&contents, kind, ready)?;
    Ok((contents, raw))
}

/// Checks a footer against the record.
pub(super) fn check(contents: &Contents, kind: Kind, ready: &Ready) -> Result<(), BlobFault> {
    // The blob has no number for an architecture that `symbolic` does not name.
    let arch: Arch = ready.arch.parse().unwrap_or_default();
    let mismatch = [
        ("kind", contents.kind != kind),
        ("version", contents.version != ready.version),
        ("architecture", contents.arch != arch),
    ];
    match mismatch.into_iter().find(|(_, differs)| *differs) {
        Some((what, _)) => Err(BlobFault::Mismatch(what)),
        None => Ok(()),
    }
}

/// Decompresses a blob that has no record yet.
pub(super) fn open_unchecked(blob: &[u8]) -> Result<(Contents, AlignedBytes), BlobFault> {
    let (contents, footer) = split_footer(blob)?;
    let frame = &blob[..blob.len() - FOOTER_BYTES];
    if footer.slices.is_some() {
        return Err(BlobFault::Footer("it is sliced"));
    }
    if footer.length != frame.len() as u64 {
        return Err(BlobFault::Footer("its length is not that of the frame"));
    }
    if footer.raw_length > MAX_WHOLE_BYTES {
        return Err(BlobFault::TooLarge(footer.raw_length));
    }
    let raw = decompress(frame, footer.raw_length)?;
    if xxh3_64(raw.as_slice()) != footer.hash {
        return Err(BlobFault::Frame(
            "the checksum of its bytes is wrong".to_owned(),
        ));
    }
    Ok((contents, raw))
}

/// Decompresses a frame of `length` bytes.
pub(super) fn decompress(frame: &[u8], length: u64) -> Result<AlignedBytes, BlobFault> {
    // If the frame has its own length, a wrong `length` is detected before memory is allocated.
    match zstd::zstd_safe::get_frame_content_size(frame) {
        Ok(Some(told)) if told != length => {
            return Err(BlobFault::Frame(format!(
                "it has {told} bytes instead of {length}"
            )));
        }
        Ok(_) => {}
        Err(_) => return Err(BlobFault::Frame("it is not a zstd frame".to_owned())),
    }
    let mut raw = AlignedBytes::zeroed(length)?;
    let fault = |error: io::Error| BlobFault::Frame(error.to_string());
    let mut decompressor = zstd::bulk::Decompressor::new().map_err(fault)?;
    let written = decompressor
        .decompress_to_buffer(frame, raw.as_mut_slice())
        .map_err(fault)?;
    if written as u64 != length {
        return Err(BlobFault::Frame(format!(
            "it has {written} bytes instead of {length}"
        )));
    }
    Ok(raw)
}

/// The description of the preceding bytes in a footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Footer {
    /// The number of slices; `None` if the blob is whole.
    pub(super) slices: Option<u32>,
    /// The length of the raw cache, or of all slices together, decompressed.
    pub(super) raw_length: u64,
    /// The length of the frame, or of the index.
    pub(super) length: u64,
    /// xxh3-64 of the raw cache, or of the index.
    pub(super) hash: u64,
}

/// Corrects the checksum of the footer at the end of these bytes.
#[cfg(any(test, feature = "testing"))]
pub(super) fn correct_footer(bytes: &mut [u8]) {
    let Some(at) = bytes.len().checked_sub(8) else {
        return;
    };
    let hash = xxh3_64(&bytes[(at + 8).saturating_sub(FOOTER_BYTES)..at]);
    bytes[at..].copy_from_slice(&hash.to_le_bytes());
}

/// Reads the footer at the end of these bytes.
pub(super) fn split_footer(bytes: &[u8]) -> Result<(Contents, Footer), BlobFault> {
    let split = bytes.len().checked_sub(FOOTER_BYTES);
    let split = split.ok_or(BlobFault::Footer("it is too short"))?;
    read_footer(&bytes[split..])
}

/// Writes a footer.
pub(super) fn footer(contents: &Contents, footer: &Footer) -> [u8; FOOTER_BYTES] {
    let Footer {
        slices,
        raw_length,
        length,
        hash,
    } = footer;
    let Contents {
        kind,
        version,
        converter,
        arch,
        debug_id,
        rank,
        file_type,
        features,
    } = contents;
    let mut id = debug_id
        .map(|id| id.to_string())
        .unwrap_or_default()
        .into_bytes();
    id.resize(DEBUG_ID_BYTES, 0);
    let mut footer = Vec::with_capacity(FOOTER_BYTES);
    footer.extend(MAGIC);
    footer.extend(FOOTER_FORMAT.to_le_bytes());
    footer.extend([kind_code(*kind), NATIVE_ENDIAN]);
    footer.extend((*arch as u32).to_le_bytes());
    footer.extend(version.to_le_bytes());
    footer.extend(converter.0.to_le_bytes());
    footer.extend([
        *rank,
        file_type_code(*file_type),
        features_code(features),
        u8::from(slices.is_some()),
    ]);
    footer.extend(slices.unwrap_or_default().to_le_bytes());
    footer.extend(id);
    footer.extend(raw_length.to_le_bytes());
    footer.extend(length.to_le_bytes());
    footer.extend(hash.to_le_bytes());
    footer.extend(xxh3_64(&footer).to_le_bytes());
    let mut bytes = [0; FOOTER_BYTES];
    bytes.copy_from_slice(&footer);
    bytes
}

fn read_footer(footer: &[u8]) -> Result<(Contents, Footer), BlobFault> {
    let fault = |what| move || BlobFault::Footer(what);
    let u32_at = |at: usize| {
        footer
            .get(at..at + 4)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u32::from_le_bytes)
    };
    let u64_at = |at: usize| {
        footer
            .get(at..at + 8)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u64::from_le_bytes)
    };
    let byte_at = |at: usize| footer.get(at).copied();
    let cut = fault("it is too short");

    if footer.get(..8) != Some(&MAGIC) {
        return Err(BlobFault::Footer("its magic number is missing"));
    }
    if footer.get(8..10) != Some(&FOOTER_FORMAT.to_le_bytes()) {
        return Err(BlobFault::Footer("its format is unknown"));
    }
    let checked = footer.get(..FOOTER_BYTES - 8).ok_or_else(cut)?;
    if u64_at(104) != Some(xxh3_64(checked)) {
        return Err(BlobFault::Footer("its checksum is wrong"));
    }
    if byte_at(11) != Some(NATIVE_ENDIAN) {
        return Err(BlobFault::Footer(
            "the cache was made on a machine of the other endianness",
        ));
    }
    let slices = match (byte_at(27), u32_at(28)) {
        (Some(0), Some(0)) => None,
        (Some(1), slices) => slices,
        _ => return Err(BlobFault::Footer("its layout is unknown")),
    };
    let id = footer.get(32..32 + DEBUG_ID_BYTES).ok_or_else(cut)?;
    let id = std::str::from_utf8(id).map_err(|_| BlobFault::Footer("the debug id is not text"))?;
    let debug_id = match id.trim_end_matches('\0') {
        "" => None,
        text => Some(
            text.parse()
                .map_err(|_| BlobFault::Footer("the debug id is invalid"))?,
        ),
    };
    let contents = Contents {
        kind: byte_at(10)
            .and_then(kind_of)
            .ok_or_else(fault("its kind is unknown"))?,
        version: u32_at(16).ok_or_else(cut)?,
        converter: Converter(u32_at(20).ok_or_else(cut)?),
        arch: Arch::from_u32(u32_at(12).ok_or_else(cut)?),
        debug_id,
        rank: byte_at(24).ok_or_else(cut)?,
        file_type: byte_at(25)
            .and_then(file_type_of)
            .ok_or_else(fault("its type of DIF is unknown"))?,
        features: features_of(byte_at(26).ok_or_else(cut)?),
    };
    let footer = Footer {
        slices,
        raw_length: u64_at(80).ok_or_else(cut)?,
        length: u64_at(88).ok_or_else(cut)?,
        hash: u64_at(96).ok_or_else(cut)?,
    };
    Ok((contents, footer))
}

const fn kind_code(kind: Kind) -> u8 {
    match kind {
        // Unused: such a blob has no footer.
        Kind::MsSymCache(_) => 0,
        Kind::CfiCache => 1,
        Kind::PpdbCache => 2,
        Kind::SymCache => 3,
        Kind::SourceCode => 4,
    }
}

fn kind_of(code: u8) -> Option<Kind> {
    Kind::DERIVED
        .into_iter()
        .find(|kind| kind_code(*kind) == code)
}

const FILE_TYPES: [FileType; 11] = [
    FileType::Pe,
    FileType::Pdb,
    FileType::PortablePdb,
    FileType::MachDebug,
    FileType::MachCode,
    FileType::ElfDebug,
    FileType::ElfCode,
    FileType::WasmDebug,
    FileType::WasmCode,
    FileType::Breakpad,
    FileType::SourceBundle,
];

const fn file_type_code(file_type: FileType) -> u8 {
    match file_type {
        FileType::Pe => 1,
        FileType::Pdb => 2,
        FileType::PortablePdb => 3,
        FileType::MachDebug => 4,
        FileType::MachCode => 5,
        FileType::ElfDebug => 6,
        FileType::ElfCode => 7,
        FileType::WasmDebug => 8,
        FileType::WasmCode => 9,
        FileType::Breakpad => 10,
        FileType::SourceBundle => 11,
        // Unused: nothing is derived from such a file.
        FileType::MsSymCache | FileType::UuidMap | FileType::BcSymbolMap | FileType::Il2Cpp => 0,
    }
}

fn file_type_of(code: u8) -> Option<FileType> {
    FILE_TYPES
        .into_iter()
        .find(|file_type| file_type_code(*file_type) == code)
}

fn features_code(features: &Features) -> u8 {
    let Features {
        has_debug_info,
        has_unwind_info,
        has_symbols,
        has_sources,
        srcsrv_vcs: _,
    } = features;
    u8::from(*has_debug_info)
        | u8::from(*has_unwind_info) << 1
        | u8::from(*has_symbols) << 2
        | u8::from(*has_sources) << 3
}

fn features_of(code: u8) -> Features {
    Features {
        has_debug_info: code & 1 != 0,
        has_unwind_info: code & 2 != 0,
        has_symbols: code & 4 != 0,
        has_sources: code & 8 != 0,
        srcsrv_vcs: None,
    }
}

/// Returns the contents of a blob that is not derived from a DIF.
pub(in crate::debuginfo) fn unfiled(kind: Kind, arch: Arch, debug_id: Option<DebugId>) -> Contents {
    Contents {
        kind,
        version: current_version(kind),
        converter: Converter::CURRENT,
        arch,
        debug_id,
        rank: 0,
        file_type: FileType::Breakpad,
        features: Features::default(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cache::BlobRef;
    use crate::domain::{Purpose, Rank, Timestamp};

    fn contents() -> Contents {
        Contents {
            kind: Kind::SymCache,
            version: 1,
            converter: Converter(1),
            arch: Arch::Amd64,
            debug_id: Some("502fc0a5-1ec1-3e47-9998-684fa139dca7-1f".parse().unwrap()),
            rank: 1,
            file_type: FileType::Breakpad,
            features: Features {
                has_symbols: true,
                has_sources: true,
                ..Features::default()
            },
        }
    }

    fn encode(contents: &Contents, raw: &[u8]) -> Vec<u8> {
        let mut encoder = FrameEncoder::new().unwrap();
        for batch in raw.chunks(1000) {
            encoder.write_all(batch).unwrap();
        }
        encoder.finish(contents).unwrap()
    }

    fn ready(contents: &Contents, blob: &[u8]) -> Ready {
        let rank = Rank::of(&contents.features, Purpose::Debug);
        Ready {
            version: contents.version,
            blob: BlobRef {
                path: "derived/symcache/v1/x".to_owned(),
                bytes: blob.len() as u64,
                checksum: xxh3_64(blob),
                index: None,
            },
            quality: rank.quality(),
            rank,
            features: contents.features.clone(),
            arch: contents.arch.name().to_owned(),
            file_type: contents.file_type,
            made_from: Vec::new(),
            lacks: None,
            derived_at: Timestamp::from_secs(0),
            converter: contents.converter,
        }
    }

    fn raw() -> Vec<u8> {
        (0..10_001u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 28) as u8)
            .collect()
    }

    #[test]
    fn a_blob_opens_to_what_was_encoded_at_an_aligned_address() {
        for length in [0, 1, 7, 8, 9, 10_001] {
            let raw = raw()[..length].to_vec();
            let blob = encode(&contents(), &raw);
            let (found, opened) = open(Kind::SymCache, &ready(&contents(), &blob), &blob).unwrap();
            assert_eq!(found, contents());
            assert_eq!(opened.as_slice(), raw);
            assert_eq!(opened.as_slice().as_ptr() as usize % 8, 0);
            assert!(opened.memory_bytes() >= length && opened.memory_bytes() < length + 8);
        }
    }

    #[test]
    fn the_footer_has_the_documented_layout() {
        let blob = encode(&contents(), b"abc");
        let footer = &blob[blob.len() - 112..];
        assert_eq!(&footer[..8], b"SYMDEPOT");
        assert_eq!(footer[8..12], [1, 0, 3, 1]);
        assert_eq!(footer[16..24], [1, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(footer[24..32], [1, 10, 4 | 8, 0, 0, 0, 0, 0]);
        assert_eq!(
            &footer[32..80],
            b"502fc0a5-1ec1-3e47-9998-684fa139dca7-1f\0\0\0\0\0\0\0\0\0"
        );
        assert_eq!(footer[80..88], 3u64.to_le_bytes());
        assert_eq!(footer[88..96], (blob.len() as u64 - 112).to_le_bytes());
    }

    #[test]
    fn every_type_of_dif_has_a_distinct_code() {
        for file_type in FILE_TYPES {
            assert_eq!(file_type_of(file_type_code(file_type)), Some(file_type));
        }
        assert_eq!(file_type_of(0), None);
        assert!((0..=u8::MAX).filter_map(file_type_of).count() == FILE_TYPES.len());
    }

    #[test]
    fn a_blob_that_contradicts_its_record_is_refused() {
        let blob = encode(&contents(), &raw());
        let good = ready(&contents(), &blob);
        let fault = |kind, ready: &Ready, blob: &[u8]| open(kind, ready, blob).unwrap_err();
        assert_eq!(
            fault(Kind::CfiCache, &good, &blob),
            BlobFault::Mismatch("kind")
        );
        let newer = Ready {
            version: 2,
            ..good.clone()
        };
        assert_eq!(
            fault(Kind::SymCache, &newer, &blob),
            BlobFault::Mismatch("version")
        );
        let other = Ready {
            arch: "x86".to_owned(),
            ..good.clone()
        };
        assert_eq!(
            fault(Kind::SymCache, &other, &blob),
            BlobFault::Mismatch("architecture")
        );
        assert!(matches!(
            fault(Kind::SymCache, &good, &blob[1..]),
            BlobFault::Size { .. }
        ));
        let of_another_module = encode(
            &Contents {
                debug_id: None,
                ..contents()
            },
            &raw(),
        );
        let same_size = Ready {
            blob: BlobRef {
                bytes: of_another_module.len() as u64,
                ..good.blob.clone()
            },
            ..good
        };
        assert_eq!(
            fault(Kind::SymCache, &same_size, &of_another_module),
            BlobFault::Checksum
        );
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_anything_is_allocated() {
        let mut blob = encode(&contents(), &raw());
        let footer = blob.len() - 112;
        blob[footer + 80..footer + 88].copy_from_slice(&u64::MAX.to_le_bytes());
        let hash = xxh3_64(&blob[footer..footer + 104]);
        blob[footer + 104..].copy_from_slice(&hash.to_le_bytes());
        assert_eq!(
            open_unchecked(&blob).unwrap_err(),
            BlobFault::TooLarge(u64::MAX)
        );
    }

    /// The blob is small, because a frame of zeroes is small.
    #[test]
    fn a_whole_blob_is_bounded_when_written_and_when_read() {
        let encoded = |length: u64| {
            let mut encoder = FrameEncoder::new().unwrap();
            io::copy(&mut io::Read::take(io::repeat(0), length), &mut encoder)?;
            encoder.finish(&contents())
        };
        let error = encoded(MAX_WHOLE_BYTES + 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        let blob = encoded(MAX_WHOLE_BYTES).unwrap();
        assert!(open_unchecked(&blob).is_ok());
        let (_, mut whole) = split_footer(&blob).unwrap();
        whole.raw_length += 1;
        let frame = &blob[..blob.len() - FOOTER_BYTES];
        let bad = [frame, &footer(&contents(), &whole)].concat();
        let fault = open_unchecked(&bad).unwrap_err();
        assert!(matches!(fault, BlobFault::TooLarge(length) if length == MAX_WHOLE_BYTES + 1));
    }

    proptest! {
        #[test]
        fn every_flipped_bit_is_detected_and_none_panics(at in 0usize..10_000, bit in 0u8..8) {
            let blob = encode(&contents(), &raw());
            let good = ready(&contents(), &blob);
            let mut bad = blob.clone();
            let at = at % bad.len();
            bad[at] ^= 1 << bit;
            prop_assert_eq!(open(Kind::SymCache, &good, &bad).unwrap_err(), BlobFault::Checksum);
            // The same holds if the record was made from the changed blob: a flipped bit is
            // detected, or changes nothing.
            if let Ok((found, opened)) = open(Kind::SymCache, &ready(&contents(), &bad), &bad) {
                prop_assert_eq!(found, contents());
                prop_assert_eq!(opened.as_slice(), &raw()[..]);
            }
        }

        #[test]
        fn a_truncated_blob_is_refused(length in 0usize..10_000) {
            let blob = encode(&contents(), &raw());
            let bad = &blob[..length % blob.len()];
            prop_assert!(open(Kind::SymCache, &ready(&contents(), bad), bad).is_err());
        }

        #[test]
        fn garbage_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(open_unchecked(&bytes).is_err());
        }

        #[test]
        fn garbage_under_a_sound_footer_is_refused(frame in proptest::collection::vec(any::<u8>(), 0..400), raw_length in 0u64..1 << 20) {
            let mut blob = frame.clone();
            let whole = Footer { slices: None, raw_length, length: frame.len() as u64, hash: 7 };
            blob.extend(footer(&contents(), &whole));
            prop_assert!(open_unchecked(&blob).is_err());
        }
    }
}
