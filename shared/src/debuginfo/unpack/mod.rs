//! Unpacks containers in one pass into a room of bounded size. Magic numbers tell the formats.
//!
//! The formats are gzip (also with several members), zstd, zlib, zip and cabinets with one file. A
//! file in a zip archive may itself be compressed. A file that is not in a container is not copied.
//!
//! Of a broken stream, or one that does not fit, the beginning of its file is kept. It is enough
//! for the ids, so that the failure is reported on the right module.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use symbolic::debuginfo::{Archive, FileFormat};

use super::auxiliary;
use super::coff::is_coff_object;
use super::layout::{DifBytes, Layout, Member, MemberPlace};
use crate::domain::{Cause, DebugId, Missing, Written, WrittenFile};

/// A place for unpacked bytes.
pub trait Room {
    /// Writes bytes at an offset, which is at most the end of what was written before.
    fn put(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
}

impl Room for Vec<u8> {
    fn put(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let end = start + bytes.len();
        if self.len() < end {
            self.resize(end, 0);
        }
        self.get_mut(start..end)
            .ok_or(io::ErrorKind::InvalidInput)?
            .copy_from_slice(bytes);
        Ok(())
    }
}

/// The size of a room, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomLimit {
    /// The bytes that can be written now.
    pub bytes: u64,
    /// The bytes that could be written if the room were empty. Errors report this limit.
    pub budget: u64,
}

/// The maximum number of files in an archive. An archive with more is more likely an attack.
const MAX_FILES: usize = 10_000;

/// The bytes that are kept of an incomplete file.
const HEAD_BYTES: u64 = 1 << 20;

/// The largest window of a zstd stream: 128 MiB, the default of the `zstd` command.
const ZSTD_WINDOW_LOG: u32 = 27;

/// The maximum number of ignored members that a layout lists.
const MAX_IGNORED: usize = 100;

/// The bytes that are enough to recognize every format. A tar archive has its magic number at byte
/// 257.
const MAGIC_BYTES: usize = 512;

/// The first bytes of a fat Mach-O file with 64-bit offsets: `FAT_MAGIC_64` of `mach-o/fat.h`.
const FAT_MAGIC_64: [u8; 4] = [0xca, 0xfe, 0xba, 0xbf];

/// Finds the files in a DIF and unpacks those that are in a container.
///
/// If the DIF has holes, only the beginning of a stream is unpacked, and an archive is ignored.
/// Fails only if writing to the room fails.
pub fn unpack(
    dif: &[u8],
    written: &Written,
    room: &mut dyn Room,
    limit: RoomLimit,
) -> io::Result<Layout> {
    let mut unpacker = Unpacker {
        room,
        limit,
        work: 0,
        layout: Layout {
            partial: *written == Written::InPart,
            ..Layout::default()
        },
    };
    let Written::Together(files) = written else {
        unpacker.open(dif, MemberPlace::Whole, None)?;
        return Ok(unpacker.layout);
    };
    for WrittenFile { offset, length, id } in files {
        let place = MemberPlace::Within {
            offset: *offset,
            length: *length,
        };
        let written = DifBytes::complete(dif, &[]);
        unpacker.open(written.member(place).unwrap_or_default(), place, *id)?;
    }
    Ok(unpacker.layout)
}

/// Describes a file that is not a debug information file by its first bytes. The text quotes none
/// of them: callers may see it for files that they may not read.
pub(super) fn describe(data: &[u8]) -> String {
    let known = [
        (
            &b"PK\x03\x04"[..],
            "an archive inside another container, which is not read: upload it by itself",
        ),
        (
            b"MSCF",
            "a cabinet inside another container, which is not read: upload it by itself",
        ),
        (
            b"\xfd7zXZ\0",
            "compressed with xz, which is not read: use zstd or gzip",
        ),
        (
            b"BZh",
            "compressed with bzip2, which is not read: use zstd or gzip",
        ),
        (
            b"7z\xbc\xaf\x27\x1c",
            "a 7z archive, which is not read: use zip",
        ),
        (
            b"!<arch>\ndebian-binary",
            "a Debian package, which is not read: extract it (dpkg-deb -x) and upload its files",
        ),
        (
            b"!<arch>\n",
            "a static library, which is not read: upload what is linked from it",
        ),
        (
            &FAT_MAGIC_64,
            "a fat Mach-O file with 64-bit offsets, which is not read: make it with lipo without -fat64, or upload each architecture by itself",
        ),
    ];
    if data.is_empty() {
        return "empty file".to_owned();
    }
    if let Some((_, what)) = known.iter().find(|(magic, _)| data.starts_with(magic)) {
        return (*what).to_owned();
    }
    if data.get(257..).is_some_and(|at| at.starts_with(b"ustar")) {
        return "a tar archive, which is not read: use zip".to_owned();
    }
    if is_name_map(data) {
        return "a mapping file of R8 or ProGuard, which is not read: stack traces of Java and Kotlin are not symbolicated".to_owned();
    }
    if is_coff_object(data) {
        return "an object file of Windows (COFF), which is not linked: upload the PDB of what is linked from it".to_owned();
    }
    let text = data
        .get(..data.len().min(64))
        .expect("the end is within the data");
    let text = text.trim_ascii_start().to_ascii_lowercase();
    let what = match text.as_slice() {
        [b'<', b'h', b't', b'm', b'l', ..] | [b'<', b'!', b'd', b'o', b'c', ..] => "a web page",
        [b'<', ..] => "XML, or a web page",
        [b'{' | b'[', ..] => "JSON, or other text",
        [] => "white space",
        text if text
            .iter()
            .all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) =>
        {
            "text of another kind"
        }
        _ => "bytes of another kind",
    };
    format!("not a debug information file: it begins with {what}")
}

/// Returns whether a file begins like one that maps the names of Java classes to those that R8 or
/// ProGuard gave them: after comments, with a class, as in `com.example.Shop -> a.b:`.
fn is_name_map(data: &[u8]) -> bool {
    let head = data.get(..data.len().min(MAGIC_BYTES)).unwrap_or_default();
    let mut lines = head.split(|byte| *byte == b'\n');
    let first = lines.find(|line| !line.trim_ascii().is_empty() && !line.starts_with(b"#"));
    let Some(first) = first.and_then(|line| line.trim_ascii_end().strip_suffix(b":")) else {
        return head.starts_with(b"# compiler: R8");
    };
    let parts: Vec<&[u8]> = first.split(|byte| *byte == b' ').collect();
    let is_name = |part: &&[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_graphic);
    matches!(parts.as_slice(), [class, b"->", other] if is_name(class) && is_name(other))
}

/// Returns whether a member may be an object file of Windows with split units. Others are not
/// unpacked: archives of builds may have thousands.
fn may_have_split_units(name: &str, head: &[u8]) -> bool {
    let is_named_so = name.is_empty() || name.to_ascii_lowercase().contains(".dwo");
    is_named_so && is_coff_object(head)
}

/// A container, by its magic number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Container {
    Stream(MemberStream),
    Zip,
    Cabinet,
}

/// A compressed stream of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberStream {
    Gzip,
    Zstd,
    Zlib,
}

impl Container {
    fn of(data: &[u8]) -> Option<Self> {
        match data {
            [0x1f, 0x8b, ..] => Some(Self::Stream(MemberStream::Gzip)),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Stream(MemberStream::Zstd)),
            [0x78, 0x01 | 0x5e | 0x9c | 0xda, ..] => Some(Self::Stream(MemberStream::Zlib)),
            [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => Some(Self::Zip),
            [b'M', b'S', b'C', b'F', ..] => Some(Self::Cabinet),
            _ => None,
        }
    }
}

impl MemberStream {
    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip stream",
            Self::Zstd => "zstd stream",
            Self::Zlib => "zlib stream",
        }
    }

    fn reader<'a>(self, data: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Self::Gzip => Box::new(flate2::read::MultiGzDecoder::new(data)),
            Self::Zlib => Box::new(Zlib {
                data: BufReader::new(data),
                inflate: flate2::Decompress::new(true),
                ended: false,
            }),
            Self::Zstd => {
                let mut decoder = zstd::Decoder::new(data)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG)?;
                Box::new(decoder)
            }
        })
    }
}

struct Unpacker<'a> {
    room: &'a mut dyn Room,
    limit: RoomLimit,
    /// The number of bytes that were decompressed.
    work: u64,
    layout: Layout,
}

impl Unpacker<'_> {
    /// Finds the files in one stored file. `id` is that of an auxiliary file.
    fn open(&mut self, dif: &[u8], place: MemberPlace, id: Option<DebugId>) -> io::Result<()> {
        match Container::of(dif) {
            None => self.layout.members.push(Member {
                name: String::new(),
                place,
                id,
                fault: None,
            }),
            Some(Container::Stream(stream)) => {
                let known = self.layout.members.len();
                self.stream("", stream, dif)?;
                let unpacked = self.layout.members.get_mut(known..).unwrap_or_default();
                unpacked.iter_mut().for_each(|member| member.id = id);
            }
            Some(Container::Zip | Container::Cabinet) if self.layout.partial => {
                self.ignore("", "an archive of which only parts were read");
            }
            Some(Container::Zip) => self.zip(dif)?,
            Some(Container::Cabinet) => self.cabinet(dif)?,
        }
        Ok(())
    }

    fn stream(&mut self, name: &str, stream: MemberStream, data: impl Read) -> io::Result<()> {
        match stream.reader(data) {
            Ok(mut reader) => self.file(name, stream.name(), &mut *reader, false),
            Err(error) => {
                self.ignore(name, &format!("the {} is broken: {error}", stream.name()));
                Ok(())
            }
        }
    }

    fn zip(&mut self, dif: &[u8]) -> io::Result<()> {
        let mut archive = match zip::ZipArchive::new(Cursor::new(dif)) {
            Ok(archive) if archive.len() > MAX_FILES => {
                let files = archive.len();
                self.ignore(
                    "",
                    &format!("the archive has {files} files, more than the limit of {MAX_FILES}"),
                );
                return Ok(());
            }
            Ok(archive) => archive,
            Err(error) => {
                self.ignore("", &format!("the zip archive is broken: {error}"));
                return Ok(());
            }
        };
        if archive.is_empty() {
            self.ignore("", "an archive without files");
        }
        for index in 0..archive.len() {
            let name = archive.name_for_index(index).unwrap_or_default().to_owned();
            if is_of_no_interest(&name) {
                continue;
            }
            match archive.by_index(index) {
                Ok(file) if file.is_dir() || file.is_symlink() => {}
                Ok(mut file) => self.file(&name, "zip archive", &mut file, true)?,
                Err(zip::result::ZipError::UnsupportedArchive(
                    zip::result::ZipError::PASSWORD_REQUIRED,
                )) => {
                    self.ignore(
                        &name,
                        "encrypted, which is not read: upload it without a password",
                    );
                }
                Err(error) => {
                    self.ignore(&name, &format!("cannot be read from the archive: {error}"));
                }
            }
        }
        Ok(())
    }

    fn cabinet(&mut self, dif: &[u8]) -> io::Result<()> {
        let mut cabinet = match cab::Cabinet::new(Cursor::new(dif)) {
            Ok(cabinet) => cabinet,
            Err(error) => {
                self.ignore("", &format!("the cabinet is broken: {error}"));
                return Ok(());
            }
        };
        let names: Vec<String> = cabinet
            .folder_entries()
            .flat_map(|folder| {
                folder
                    .file_entries()
                    .map(|file| file.name().to_owned())
                    .collect::<Vec<_>>()
            })
            .collect();
        let [name] = names.as_slice() else {
            self.ignore(
                "",
                &format!(
                    "a cabinet of {} files: only cabinets with one are read",
                    names.len()
                ),
            );
            return Ok(());
        };
        match cabinet.read_file(name) {
            Ok(mut file) => self.file(name, "cabinet", &mut file, true),
            Err(error) => {
                self.ignore(name, &format!("cannot be read from the cabinet: {error}"));
                Ok(())
            }
        }
    }

    /// Unpacks one file if it may be a debug information file.
    fn file(
        &mut self,
        name: &str,
        container: &str,
        reader: &mut dyn Read,
        may_be_compressed: bool,
    ) -> io::Result<()> {
        let mut head = Vec::with_capacity(MAGIC_BYTES);
        let read = reader.take(MAGIC_BYTES as u64).read_to_end(&mut head);
        if let (Some(Container::Stream(stream)), true) = (Container::of(&head), may_be_compressed) {
            return self.stream(name, stream, Cursor::new(head).chain(reader));
        }
        let is_auxiliary = auxiliary::may_be_auxiliary(name, &head);
        let may_be_read = is_auxiliary || may_have_split_units(name, &head);
        if Archive::peek(&head) == FileFormat::Unknown && !may_be_read {
            match read {
                Ok(_) if is_in_dsym(name) => {}
                Err(error) => self.ignore(name, &format!("the {container} is broken: {error}")),
                Ok(_) => self.ignore(name, &describe(&head)),
            }
            return Ok(());
        }
        match read {
            Ok(_) => self.copy(name, container, &mut Cursor::new(head).chain(reader)),
            Err(error) => self.copy(
                name,
                container,
                &mut Cursor::new(head).chain(Broken(Some(error))),
            ),
        }
    }

    fn copy(&mut self, name: &str, container: &str, reader: &mut dyn Read) -> io::Result<()> {
        let offset = self
            .layout
            .unpacked_bytes
            .next_multiple_of(MemberPlace::ALIGNMENT);
        let mut left = self.limit.bytes.saturating_sub(offset);
        if self.layout.partial || self.work / 2 > self.limit.bytes {
            left = left.min(HEAD_BYTES);
        }
        let mut buffer = vec![0; 128 << 10];
        let mut length = 0;
        let fault = loop {
            let read = match reader.read(&mut buffer) {
                Ok(0) => break None,
                Ok(read) => read as u64,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let reason = format!("the {container} is broken after {length} bytes: {error}");
                    break Some(Missing::malformed(reason));
                }
            };
            self.work += read;
            let fits = read.min(left - length);
            self.room.put(
                offset + length,
                buffer.get(..fits as usize).unwrap_or_default(),
            )?;
            length += fits;
            if fits < read {
                break Some(self.too_large());
            }
        };
        if fault.is_some() {
            length = length.min(HEAD_BYTES);
        }
        self.layout.unpacked_bytes = offset + length;
        self.layout.members.push(Member {
            name: name.to_owned(),
            place: MemberPlace::Unpacked { offset, length },
            id: None,
            fault,
        });
        Ok(())
    }

    fn too_large(&mut self) -> Missing {
        if self.layout.partial {
            return Missing::malformed("only a part of it was read");
        }
        self.layout.out_of_room = true;
        let limit = self.limit.budget;
        Missing::new(
            Cause::TooLarge { limit },
            format!("unpacked it does not fit into the {limit} bytes of scratch space"),
        )
    }

    fn ignore(&mut self, name: &str, reason: &str) {
        self.layout.ignore(name, reason);
    }
}

/// A zlib stream. A truncated one is an error, which the reader of `flate2` takes for the end.
struct Zlib<R> {
    data: BufReader<R>,
    inflate: flate2::Decompress,
    ended: bool,
}

impl<R: Read> Read for Zlib<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while !self.ended && !out.is_empty() {
            let input = self.data.fill_buf()?;
            let at_end = input.is_empty();
            let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self
                .inflate
                .decompress(input, out, flate2::FlushDecompress::None)?;
            self.data
                .consume((self.inflate.total_in() - before_in) as usize);
            let written = (self.inflate.total_out() - before_out) as usize;
            self.ended = status == flate2::Status::StreamEnd;
            if written > 0 {
                return Ok(written);
            }
            if at_end && !self.ended {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(0)
    }
}

/// A reader that returns an error that occurred earlier.
struct Broken(Option<io::Error>);

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

impl Layout {
    /// Notes an ignored member. Beyond the limit, only notes that there were more.
    pub(super) fn ignore(&mut self, name: &str, reason: &str) {
        match self.ignored.len() {
            ..MAX_IGNORED if name.is_empty() => self.ignored.push(reason.to_owned()),
            ..MAX_IGNORED => self.ignored.push(format!("{name}: {reason}")),
            MAX_IGNORED => self.ignored.push("and more".to_owned()),
            _ => {}
        }
    }
}

/// Returns whether a member is of a kind that archives usually have beside debug information files.
fn is_of_no_interest(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or_default();
    let in_shadow = name.split('/').any(|folder| folder == "__MACOSX");
    file.is_empty()
        || in_shadow
        || file == "Info.plist"
        || file == ".DS_Store"
        || file.starts_with("._")
}

/// Returns whether a member is of a kind that dSYM folders have beside the debug file, as in
/// `App.dSYM/Contents/Resources/Relocations/aarch64/App.yml`.
fn is_in_dsym(name: &str) -> bool {
    let within = name.split_once(".dSYM/Contents/Resources/");
    let folder = within.and_then(|(_, path)| path.split_once('/'));
    folder.is_some_and(|(folder, _)| folder != "DWARF")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// The beginning of a tar archive in the format of POSIX.
    fn tar() -> Vec<u8> {
        let mut tar = vec![0; 1024];
        tar[..5].copy_from_slice(b"a.sym");
        tar[257..262].copy_from_slice(b"ustar");
        tar
    }

    #[test]
    fn a_tar_archive_and_a_windows_object_file_are_reported_as_such() {
        assert!(describe(&tar()).starts_with("a tar archive"));
        let mut object = vec![0; 60];
        object[..4].copy_from_slice(&[0x64, 0x86, 3, 0]);
        assert!(describe(&object).starts_with("an object file of Windows"));
        // A text that begins with a machine number is not an object file.
        assert!(describe(b"L\x01").starts_with("not a debug information file"));
        object[16] = 0xf0;
        assert!(describe(&object).starts_with("not a debug information file"));
    }

    #[test]
    fn a_fat_file_with_64_bit_offsets_is_reported_as_such() {
        // `struct fat_header` and the CPU type of `struct fat_arch_64`, in `mach-o/fat.h`.
        let reason = describe(&[0xca, 0xfe, 0xba, 0xbf, 0, 0, 0, 1, 1, 0, 0, 0x0c]);
        assert!(reason.starts_with("a fat Mach-O file with 64-bit"));
        assert!(reason.contains("lipo without -fat64"), "{reason}");
    }

    #[test]
    fn packages_and_maps_of_names_are_reported_as_such() {
        let package =
            describe(b"!<arch>\ndebian-binary   1700000000  0     0     100644  4         `\n");
        assert!(package.starts_with("a Debian package"), "{package}");
        assert!(describe(b"!<arch>\n/               0").starts_with("a static library"));
        for map in [
            &b"# compiler: R8\n# compiler_version: 8.5.35\n# min_api: 24\n"[..],
            b"com.example.Shop -> a.b:\n    int price -> a\n",
            b"# comment\r\ncom.example.Shop$1 -> a.b$1:\r\n    int price -> a\r\n",
        ] {
            let reason = describe(map);
            assert!(reason.starts_with("a mapping file of R8"), "{reason}");
        }
        for other in [&b"a -> b\n"[..], b"see a -> b:\n", b" -> b:\n", b"\n\n"] {
            let reason = describe(other);
            assert!(
                reason.starts_with("not a debug information file"),
                "{reason}"
            );
        }
    }

    #[test]
    fn what_a_dsym_has_beside_its_debug_file_is_not_reported() {
        let resources = "Fat.dSYM/Contents/Resources";
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for name in [
            "Relocations/aarch64/Fat.yml",
            "Python/Fat.py",
            "DWARF/notes",
            "notes",
        ] {
            let options = zip::write::SimpleFileOptions::default();
            zip.start_file(format!("out/{resources}/{name}"), options)
                .unwrap();
            zip.write_all(b"---\ntriple: arm64-apple-darwin\n").unwrap();
        }
        let archive = zip.finish().unwrap().into_inner();
        let mut room = Vec::new();
        let limit = RoomLimit {
            bytes: 1 << 20,
            budget: 1 << 20,
        };
        let layout = unpack(&archive, &Written::Whole, &mut room, limit).unwrap();
        assert_eq!(layout.members, []);
        let ignored = layout
            .ignored
            .iter()
            .map(|text| text.split(':').next().unwrap());
        let others = ["DWARF/notes", "notes"].map(|name| format!("out/{resources}/{name}"));
        assert_eq!(ignored.collect::<Vec<_>>(), others);
    }

    #[test]
    fn of_object_files_of_windows_in_archives_those_with_split_units_are_unpacked() {
        let mut object = vec![0; 60];
        object[..4].copy_from_slice(&[0x64, 0x86, 3, 0]);
        for (name, expected) in [
            ("out/shop.dwo", true),
            ("shop.DWO", true),
            ("shop.dwo.gz", true),
            ("", true),
            ("shop.obj", false),
        ] {
            assert_eq!(may_have_split_units(name, &object), expected, "{name}");
            assert!(!may_have_split_units(name, b"text"), "{name}");
        }
    }

    #[test]
    fn a_tar_archive_in_a_stream_is_reported_as_such() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&tar()).unwrap();
        let mut room = Vec::new();
        let limit = RoomLimit {
            bytes: 1 << 20,
            budget: 1 << 20,
        };
        let layout = unpack(&gzip.finish().unwrap(), &Written::Whole, &mut room, limit).unwrap();
        assert_eq!(layout.members, []);
        assert!(layout.ignored[0].starts_with("a tar archive"), "{layout:?}");
    }
}
