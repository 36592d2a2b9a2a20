//! Reads `.debug_info` as a stream of runs of whole units.
//!
//! Sources of the formats: DWARF 5, sections 7.5.1 (units) and 7.5.3 (abbreviations); the ELF
//! specification (gABI), "Compression Header"; for sections named `.zdebug_info`, the linker of GNU
//! binutils.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Cursor, Read};

use flate2::bufread::ZlibDecoder;
use symbolic::debuginfo::dwarf::{Dwarf, Endian};

use super::input;
use crate::debuginfo::arriving::{Arriving, ArrivingReader};
use crate::debuginfo::reader::ByteReader;

pub(super) const SECTION: &str = "debug_info";

/// The size of the longest initial length of a unit, in bytes.
const LONGEST_HEADER: usize = 12;

/// The size of the longest header of a compressed section, in bytes.
const LONGEST_COMPRESSION_HEADER: usize = 24;

/// The minimum number of bytes that are decompressed at a time.
const STEP: usize = 64 << 10;

/// The number of bytes for which memory is reserved at a time. A wrong length therefore takes no
/// more memory than there are bytes, and this.
const ROOM: usize = 1 << 20;

/// The ratio of the sizes of a run and of the smallest one. The first runs are small so that all
/// workers soon have one, and the last ones so that no worker waits long for another.
const SMALLEST: usize = 8;

/// The number of runs into which the rest of the section is divided at its end, at least.
const LAST_RUNS: usize = 4;

// Forms of attributes (DWARF 5, section 7.5.6; the first is a GNU extension). All but the last may
// refer to another unit or file; with `DW_FORM_indirect`, each entry gives the form itself.
const FORM_REF_ALT: u64 = 0x1f20;
const FORM_REF_ADDR: u64 = 0x10;
const FORM_INDIRECT: u64 = 0x16;
const FORM_REF_SUP4: u64 = 0x1c;
const FORM_REF_SUP8: u64 = 0x24;
const FORM_IMPLICIT_CONST: u64 = 0x21;

// Attributes of skeletons (DWARF 5, section 7.5.4; the others are GNU extensions).
const AT_DWO_NAME: u64 = 0x76;
const AT_GNU_DWO_NAME: u64 = 0x2130;
const AT_GNU_DWO_ID: u64 = 0x2131;

/// The units of an object, read as runs. No unit refers to another.
pub(super) struct Units<'d> {
    info: Info<'d>,
    little_endian: bool,
    /// The minimum size of a run between the first and the last ones, in bytes.
    run_bytes: usize,
    /// The most bytes that the next run may need to have.
    next_bytes: usize,
}

/// The rest of a section, which was not yielded yet.
enum Info<'d> {
    Plain(&'d [u8]),
    Stream(SectionStream<'d>),
}

impl<'d> Units<'d> {
    /// Returns the units of an object in runs of about `run_bytes`. Returns `None` if a unit may
    /// refer to another according to the abbreviations, or if that cannot be determined.
    ///
    /// If the section is still `arriving`, runs are returned as they arrive. If `None` is returned,
    /// the caller must wait before it reads the section.
    pub(super) fn of(
        object: &(dyn Dwarf<'d> + Sync),
        abbreviations: &[u8],
        run_bytes: usize,
        arriving: Option<&'d dyn Arriving>,
    ) -> Option<Self> {
        let little_endian = object.endianity() == Endian::Little;
        if !stand_alone(abbreviations, little_endian)? {
            return None;
        }
        let section = input::raw_section(object, SECTION);
        let begin = section.as_ref().map_or(0, |section| section.offset);
        let raw = match section.map(|section| section.data) {
            Some(Cow::Borrowed(raw)) => raw,
            Some(Cow::Owned(_)) => return None,
            None => &[],
        };
        let info = match arriving {
            Some(arriving) => {
                let place = begin..begin.checked_add(raw.len() as u64)?;
                let section = ArrivingReader::of(arriving, place)?;
                Info::arriving(section, raw.len(), little_endian)
            }
            None => Info::of(raw, little_endian),
        };
        Some(Self::new(info.ok()?, little_endian, run_bytes))
    }

    fn new(info: Info<'d>, little_endian: bool, run_bytes: usize) -> Self {
        Self {
            info,
            little_endian,
            run_bytes,
            next_bytes: (run_bytes / SMALLEST).max(1),
        }
    }

    pub(super) fn endianity(&self) -> Endian {
        if self.little_endian {
            Endian::Little
        } else {
            Endian::Big
        }
    }

    /// Returns the end of the unit that begins at `start`. If the unit is cut short, that is the
    /// end of the section.
    fn end_of_unit(&mut self, start: usize) -> io::Result<usize> {
        let header = self.info.up_to(start.saturating_add(LONGEST_HEADER))?;
        let mut reader = ByteReader::new(header, self.little_endian);
        reader.at = start;
        let length = reader.initial_length();
        let end = length
            .and_then(|(length, _)| reader.at.checked_add(usize::try_from(length).ok()?))
            .unwrap_or(usize::MAX);
        Ok(end.min(self.info.up_to(end)?.len()))
    }
}

impl<'d> Units<'d> {
    /// Returns the most bytes that the next run may need to have so that the last runs are small.
    fn last_bytes(&self) -> usize {
        let smallest = (self.run_bytes / SMALLEST).max(1);
        smallest.max(self.info.left() / LAST_RUNS)
    }

    /// Returns the next run, or `None` after the last one. `buffer` is the buffer of an earlier
    /// run. It is reused for decompressed bytes, so that the system does not have to clear new
    /// memory for each run.
    pub(super) fn next_run(&mut self, buffer: Vec<u8>) -> Option<io::Result<Cow<'d, [u8]>>> {
        let needed = self.next_bytes.min(self.last_bytes());
        self.next_bytes = self.run_bytes.min(self.next_bytes.saturating_mul(2));
        let mut end = 0;
        while end < needed {
            let next = match self.end_of_unit(end) {
                Ok(next) => next,
                Err(error) => return Some(Err(error)),
            };
            if next == end {
                break;
            }
            end = next;
        }
        let run = self.info.take(end, buffer);
        (!run.is_empty()).then_some(Ok(run))
    }
}

/// The compressed data of a section, with the length that it has when it is decompressed.
pub(super) enum Compressed<'d> {
    Zlib { data: &'d [u8], length: u64 },
    Zstd { data: &'d [u8], length: u64 },
    Not,
}

impl<'d> Compressed<'d> {
    /// Reads the header of a section of units, if it has one. The first bytes show whether it has:
    /// the type in a compression header, read as the length of a unit, is shorter than any unit.
    pub(super) fn of(raw: &'d [u8], little_endian: bool) -> Self {
        const ZLIB: u64 = 1;
        const ZSTD: u64 = 2;
        const GNU_HEADER: usize = 12;
        if raw.starts_with(b"ZLIB") {
            // This length is big-endian in every file.
            let length = raw.get(4..GNU_HEADER).and_then(<[u8]>::first_chunk);
            let length = length.map_or(0, |length| u64::from_be_bytes(*length));
            let data = raw.get(GNU_HEADER..).unwrap_or_default();
            return Self::Zlib { data, length };
        }
        let mut reader = ByteReader::new(raw, little_endian);
        let kind = reader.unsigned(4);
        // In a 64-bit file, a reserved word, which is zero, comes before the length.
        let is_64_bit = reader.unsigned(4) == Some(0);
        let (header, length_at, size) = if is_64_bit { (24, 8, 8) } else { (12, 4, 4) };
        let data = raw.get(header..).unwrap_or_default();
        reader.at = length_at;
        let length = reader.unsigned(size).unwrap_or_default();
        match kind {
            Some(ZLIB) => Self::Zlib { data, length },
            Some(ZSTD) => Self::Zstd { data, length },
            _ => Self::Not,
        }
    }

    /// Returns the bytes after the header, or `None` if there is no header.
    fn data(&self) -> Option<&'d [u8]> {
        match self {
            Self::Zlib { data, .. } | Self::Zstd { data, .. } => Some(data),
            Self::Not => None,
        }
    }

    /// Decompresses all `data` of a section, of which this is the header. A section without one has
    /// `bytes` bytes.
    fn stream<'s>(
        &self,
        data: impl BufRead + Send + 's,
        bytes: usize,
    ) -> io::Result<SectionStream<'s>> {
        Ok(match self {
            Self::Zlib { length, .. } => SectionStream::of(ZlibDecoder::new(data), *length),
            Self::Zstd { length, .. } => {
                SectionStream::of(zstd::Decoder::with_buffer(data)?, *length)
            }
            Self::Not => SectionStream::of(data, bytes as u64),
        })
    }
}

/// Returns a section of units, decompressed if it is compressed.
pub(super) fn decompressed(raw: &[u8], little_endian: bool) -> io::Result<Vec<u8>> {
    let mut info = Info::of(raw, little_endian)?;
    Ok(info.up_to(usize::MAX)?.to_vec())
}

impl<'d> Info<'d> {
    /// Opens a section that may be compressed.
    fn of(raw: &'d [u8], little_endian: bool) -> io::Result<Self> {
        let compressed = Compressed::of(raw, little_endian);
        Ok(match compressed.data() {
            Some(data) => Self::Stream(compressed.stream(data, raw.len())?),
            None => Self::Plain(raw),
        })
    }

    /// Opens a section of `bytes` bytes that is still arriving.
    fn arriving(
        mut section: ArrivingReader<'d>,
        bytes: usize,
        little_endian: bool,
    ) -> io::Result<Self> {
        let mut head = [0; LONGEST_COMPRESSION_HEADER];
        section.read_exact(&mut head)?;
        let compressed = Compressed::of(&head, little_endian);
        let data = compressed.data().unwrap_or(&head).to_vec();
        let data = Cursor::new(data).chain(BufReader::with_capacity(STEP, section));
        Ok(Self::Stream(compressed.stream(data, bytes)?))
    }

    /// Returns the number of bytes that are left, of a compressed section according to its header.
    fn left(&self) -> usize {
        match self {
            Self::Plain(rest) => rest.len(),
            Self::Stream(stream) => {
                let left = usize::try_from(stream.left).unwrap_or(usize::MAX);
                left.saturating_add(stream.filled)
            }
        }
    }

    /// Returns at least `bytes` bytes, or all that are left.
    fn up_to(&mut self, bytes: usize) -> io::Result<&[u8]> {
        match self {
            Self::Plain(rest) => Ok(rest),
            Self::Stream(stream) => stream.up_to(bytes),
        }
    }

    /// Takes the bytes up to `end`. Bytes after it that are already decompressed move to `buffer`.
    fn take(&mut self, end: usize, buffer: Vec<u8>) -> Cow<'d, [u8]> {
        match self {
            Self::Plain(rest) => {
                let (taken, left) = rest.split_at(end);
                *rest = left;
                Cow::Borrowed(taken)
            }
            Self::Stream(stream) => Cow::Owned(stream.take(end, buffer)),
        }
    }
}

/// A section that is decompressed, or arrives, as it is read.
struct SectionStream<'d> {
    info: Box<dyn Read + Send + 'd>,
    /// Bytes that were decompressed and not taken yet, then room for more. The room is initialised,
    /// so that the decompressor writes into it directly.
    buffer: Vec<u8>,
    /// The number of bytes in `buffer` before the room.
    filled: usize,
    /// The number of bytes that are left according to the header.
    left: u64,
    at_end: bool,
}

impl<'d> SectionStream<'d> {
    fn of(info: impl Read + Send + 'd, length: u64) -> Self {
        Self {
            info: Box::new(info),
            buffer: Vec::new(),
            filled: 0,
            left: length,
            at_end: false,
        }
    }

    fn up_to(&mut self, bytes: usize) -> io::Result<&[u8]> {
        while self.filled < bytes && !self.at_end {
            let step = (bytes - self.filled).clamp(STEP, ROOM);
            let end = self.filled + step;
            if self.buffer.len() < end {
                self.buffer.resize(end, 0);
            }
            let room = self.buffer.get_mut(self.filled..end).unwrap_or_default();
            let read = self.info.read(room)?;
            self.filled += read;
            self.at_end = read == 0;
            let left = self.left.checked_sub(read as u64);
            self.left = left
                .filter(|left| !self.at_end || *left == 0)
                .ok_or_else(|| {
                    let problem = "the size of the section differs from the size in its header";
                    io::Error::new(io::ErrorKind::InvalidData, problem)
                })?;
        }
        Ok(self.buffer.get(..self.filled).unwrap_or_default())
    }

    /// Takes the bytes up to `end`. The bytes after it move to another buffer, whose contents are
    /// not needed.
    fn take(&mut self, end: usize, mut buffer: Vec<u8>) -> Vec<u8> {
        let rest = self.buffer.get(end..self.filled).unwrap_or_default();
        if buffer.len() < rest.len() {
            buffer.resize(rest.len(), 0);
        }
        buffer[..rest.len()].copy_from_slice(rest);
        self.filled = rest.len();
        let mut run = std::mem::replace(&mut self.buffer, buffer);
        run.truncate(end);
        run
    }
}

/// Returns whether no unit can refer to another, according to the abbreviations. Returns `None` if
/// they cannot be read.
fn stand_alone(abbreviations: &[u8], little_endian: bool) -> Option<bool> {
    let refers = |_, form| {
        matches!(
            form,
            FORM_REF_ADDR | FORM_REF_ALT | FORM_REF_SUP4 | FORM_REF_SUP8 | FORM_INDIRECT
        )
    };
    Some(!any_attribute(abbreviations, little_endian, refers)?)
}

/// Returns whether a unit may be a skeleton, according to the abbreviations.
pub(super) fn may_be_skeletons(abbreviations: &[u8], little_endian: bool) -> bool {
    let is_of_skeleton =
        |attribute, _| matches!(attribute, AT_DWO_NAME | AT_GNU_DWO_NAME | AT_GNU_DWO_ID);
    any_attribute(abbreviations, little_endian, is_of_skeleton).unwrap_or(true)
}

/// Returns whether an abbreviation has an attribute, with its form, for which `is_it` holds.
/// Returns `None` if the abbreviations before it cannot be read.
fn any_attribute(
    abbreviations: &[u8],
    little_endian: bool,
    is_it: impl Fn(u64, u64) -> bool,
) -> Option<bool> {
    let mut reader = ByteReader::new(abbreviations, little_endian);
    while reader.at < abbreviations.len() {
        if reader.leb128()? == 0 {
            continue; // the end of one unit's abbreviations
        }
        reader.leb128()?; // tag
        reader.byte()?; // whether there are children
        loop {
            let (attribute, form) = (reader.leb128()?, reader.leb128()?);
            if is_it(attribute, form) {
                return Some(true);
            }
            if form == FORM_IMPLICIT_CONST {
                reader.leb128()?;
            }
            if (attribute, form) == (0, 0) {
                break;
            }
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    impl<'d> Iterator for Units<'d> {
        type Item = io::Result<Cow<'d, [u8]>>;

        fn next(&mut self) -> Option<Self::Item> {
            self.next_run(Vec::new())
        }
    }

    impl<'d> Units<'d> {
        /// Returns the units in these bytes, one per run.
        pub(in super::super) fn of_section(info: &'d [u8]) -> Self {
            Self::new(Info::Plain(info), true, 1)
        }
    }

    /// Returns one abbreviation, with a name and an attribute of this form.
    fn abbreviations(form: &[u8]) -> Vec<u8> {
        [&[1, 0x2e, 0, 3, 8, 0x31][..], form, &[0, 0, 0]].concat()
    }

    #[test]
    fn units_stand_alone_unless_a_form_refers_to_another() {
        let number = |form: u64| match form {
            0..0x80 => vec![form as u8],
            _ => vec![form as u8 & 0x7f | 0x80, (form >> 7) as u8],
        };
        for form in [
            FORM_REF_ADDR,
            FORM_REF_ALT,
            FORM_REF_SUP4,
            FORM_REF_SUP8,
            FORM_INDIRECT,
        ] {
            let table = abbreviations(&number(form));
            assert_eq!(stand_alone(&table, true), Some(false), "{form:#x}");
        }
        const REF4: u8 = 0x13;
        let alone = abbreviations(&[REF4]);
        assert_eq!(stand_alone(&alone, true), Some(true));
        // A constant in the table is not a form, even if it has the value of one.
        let constant = abbreviations(&[FORM_IMPLICIT_CONST as u8, FORM_REF_ADDR as u8]);
        assert_eq!(stand_alone(&constant, true), Some(true));
        assert_eq!(
            stand_alone(&[alone.clone(), constant].concat(), true),
            Some(true)
        );
        assert_eq!(stand_alone(&[], true), Some(true));
        for length in 1..alone.len() - 1 {
            assert_eq!(stand_alone(&alone[..length], true), None, "{length}");
        }
    }

    #[test]
    fn the_first_and_the_last_runs_are_small() {
        const UNIT: usize = 100;
        const UNITS: usize = 20_000;
        const RUN: usize = 80_000;
        let mut unit = [0; UNIT];
        unit[0] = (UNIT - 4) as u8;
        let section = unit.repeat(UNITS);
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), Default::default());
        io::Write::write_all(&mut zlib, &section).unwrap();
        let mut header = vec![0; 24];
        header[0] = 1;
        header[8..16].copy_from_slice(&(section.len() as u64).to_le_bytes());
        let compressed = [header, zlib.finish().unwrap()].concat();
        let sizes_of = |raw: &[u8]| {
            let mut units = Units::new(Info::of(raw, true).unwrap(), true, RUN);
            let runs = iter::from_fn(|| units.next_run(Vec::new()));
            runs.map(|run| run.unwrap().len()).collect::<Vec<_>>()
        };
        let sizes = sizes_of(&section);
        assert_eq!(sizes, sizes_of(&compressed));
        assert_eq!(sizes.iter().sum::<usize>(), UNIT * UNITS);
        assert_eq!(sizes[..5], [10_000, 20_000, 40_000, RUN, RUN]);
        assert_eq!(sizes.iter().max(), Some(&RUN));
        assert!(sizes.last() <= Some(&(RUN / SMALLEST)), "{sizes:?}");
        assert!(
            sizes.iter().rev().take(LAST_RUNS).all(|size| *size < RUN),
            "{sizes:?}"
        );
    }

    #[test]
    fn the_attributes_of_skeletons_are_recognized() {
        const STRX: u8 = 0x1a;
        let plain = abbreviations(&[STRX]);
        assert!(!may_be_skeletons(&plain, true) && !may_be_skeletons(&[], true));
        for name in [&[0x76][..], &[0xb0, 0x42], &[0xb1, 0x42]] {
            let skeleton = [&[1, 0x4a, 0][..], name, &[STRX, 0, 0]].concat();
            assert!(may_be_skeletons(&[&plain[..], &skeleton].concat(), true));
        }
        // What cannot be read may be anything.
        assert!(may_be_skeletons(&plain[..3], true));
    }

    #[test]
    fn a_section_is_read_with_every_compression() {
        let plain: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), Default::default());
        io::Write::write_all(&mut zlib, &plain).unwrap();
        let zlib = zlib.finish().unwrap();
        let zstd = zstd::bulk::compress(&plain, 1).unwrap();
        let with_header = |header: &[u8], data: &[u8]| [header, data].concat();
        let gabi = |kind: u8, length: usize| {
            let mut header = vec![0; length];
            header[0] = kind;
            let size = (plain.len() as u32).to_le_bytes();
            header[length / 3..][..4].copy_from_slice(&size);
            header
        };
        for raw in [
            plain.clone(),
            with_header(b"ZLIB\0\0\0\0\0\x0c\x35\0", &zlib),
            with_header(&gabi(1, 24), &zlib),
            with_header(&gabi(1, 12), &zlib),
            with_header(&gabi(2, 24), &zstd),
        ] {
            let mut info = Info::of(&raw, true).unwrap();
            assert!(
                info.up_to(plain.len()).unwrap() == plain,
                "{:?}",
                &raw[..12]
            );
            let taken = [1000, plain.len() - 1000].map(|end| info.take(end, Vec::new()));
            assert!(taken.concat() == plain, "{:?}", &raw[..12]);
            assert!(info.up_to(1).unwrap().is_empty());
        }
        // The header claims one byte too many, or one too few.
        for claimed in [plain.len() as u32 + 1, plain.len() as u32 - 1] {
            let mut raw = with_header(&gabi(1, 24), &zlib);
            raw[8..12].copy_from_slice(&claimed.to_le_bytes());
            let mut info = Info::of(&raw, true).unwrap();
            let error = info.up_to(usize::MAX).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}
