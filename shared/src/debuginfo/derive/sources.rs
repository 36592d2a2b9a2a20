//! Sources: the files in source bundles, and those that portable PDBs embed or link to.
//!
//! All objects of a module that have sources contribute to one cache. If several have the same
//! path, the first one wins. A file that cannot be used is left out, and the cache says how many
//! were: a bundle is not useless because one of its files is too large.

use std::borrow::Cow;
use std::collections::HashSet;

use symbolic::debuginfo::{Object, ObjectDebugSession, ParseObjectOptions};

use super::kind::{Derive, EncodedCache, OtherFiles};
use crate::cache::{Derived, Kind, ReleaseNumbers};
use crate::debuginfo::blob::Contents;
use crate::debuginfo::failure::{Failure, chain, malformed, unsupported};
use crate::debuginfo::limits::MAX_RAW_BYTES;
use crate::debuginfo::slices;
use crate::debuginfo::slices::{SourceCutter, SourceFile, address_of, compared};
use crate::domain::{Arch, Features, FileType, Purpose, Rank};

/// The largest source file, in bytes. Larger ones are left out.
pub(in crate::debuginfo) const MAX_FILE_BYTES: usize = 64 << 20;

/// The most files of a module, over all objects. The others are left out.
const MAX_FILES: usize = 1 << 20;

/// The longest path, in bytes. Files with a longer one are left out.
const MAX_PATH_BYTES: usize = 4096;

/// The files that are left out, by reason.
#[derive(Debug, Default)]
struct LeftOut {
    files: usize,
    /// The first one, and its reason.
    first: Option<(String, String)>,
}

/// The path of a file, and the number of the object that has it.
struct ListedPath {
    address: u32,
    object: usize,
    path: String,
}

/// Derives sources.
pub(super) struct SourceText;

impl Derive for SourceText {
    const KIND: Kind = Kind::SourceCode;

    /// Encodes the source files of an object and of the objects beside it.
    fn encode<'d>(
        object: &Object<'d>,
        other: &OtherFiles<'_, 'd>,
        _: usize,
        contents: &Contents,
    ) -> Result<EncodedCache, Failure> {
        encode(object, other, contents)
    }
}

fn encode<'d>(
    object: &Object<'d>,
    other: &OtherFiles<'_, 'd>,
    contents: &Contents,
) -> Result<EncodedCache, Failure> {
    let mut sessions: Vec<ObjectDebugSession<'d>> = vec![session(object.data())?];
    // An object beside it that cannot be read has an entry in the inspection that says so.
    sessions.extend(other.sources.iter().flat_map(|data| session(data)));
    let mut left_out = LeftOut::default();
    let files = list(&sessions, &mut left_out)?;
    let mut bytes = 0_u64;
    let files = files.into_iter().filter_map(|file| {
        let read = read(&sessions, &file).and_then(|read| {
            bytes += read.as_ref().map_or(0, |file| file.text.len() as u64);
            match bytes {
                ..=MAX_RAW_BYTES => Ok(read),
                _ => Err(format!(
                    "there is more text than the limit of {MAX_RAW_BYTES} bytes"
                )),
            }
        });
        read.unwrap_or_else(|reason| {
            left_out.add(file.path, reason);
            None
        })
    });
    let blob = slices::encode_cuts(SourceCutter::new(files), contents)?;
    Ok(EncodedCache {
        blob,
        lacks: left_out.describe(),
    })
}

/// Encodes a source file that was not in any object. Its lines are found under this path.
///
/// # Errors
///
/// [`Failure`] if the lines cannot be encoded.
pub fn encode_source_file(
    path: &str,
    text: &str,
    numbers: &ReleaseNumbers,
) -> Result<Derived, Failure> {
    let features = Features {
        has_sources: true,
        ..Features::default()
    };
    let contents = Contents {
        kind: Kind::SourceCode,
        version: numbers.sources,
        converter: numbers.converter,
        arch: Arch::Unknown,
        debug_id: None,
        rank: Rank::of(&features, Purpose::SourceCode).as_u8(),
        file_type: FileType::SourceBundle,
        features,
    };
    let file = SourceFile {
        path: path.to_owned(),
        text: text.to_owned(),
        link: None,
    };
    let blob = slices::encode_cuts(SourceCutter::new(std::iter::once(file)), &contents)?;
    Ok(Derived {
        kind: Kind::SourceCode,
        checksum: slices::checksum(&blob),
        blob: blob.into(),
        lacks: None,
    })
}

/// Opens an object to read its sources.
fn session(data: &[u8]) -> Result<ObjectDebugSession<'_>, Failure> {
    let mut options = ParseObjectOptions::default();
    options.max_decompressed_embedded_source_size = Some(MAX_FILE_BYTES);
    let object =
        Object::parse_with_opts(data, options).map_err(|error| malformed(chain(&error)))?;
    if !matches!(object, Object::SourceBundle(_) | Object::PortablePdb(_)) {
        return Err(unsupported(format!(
            "a file of type {} has no source files",
            object.file_format()
        )));
    }
    object
        .debug_session()
        .map_err(|error| malformed(chain(&error)))
}

/// Lists the files of all objects in the order of their addresses, each path once.
fn list(
    sessions: &[ObjectDebugSession<'_>],
    left_out: &mut LeftOut,
) -> Result<Vec<ListedPath>, Failure> {
    let (mut files, mut known) = (Vec::new(), HashSet::new());
    for (object, session) in sessions.iter().enumerate() {
        for file in session.files() {
            let path = file
                .map_err(|error| malformed(chain(&error)))?
                .abs_path_str();
            if path.is_empty() || !known.insert(compared(&path).into_owned()) {
                continue;
            }
            if path.len() > MAX_PATH_BYTES {
                let limit = format!("its path is longer than {MAX_PATH_BYTES} bytes");
                left_out.add(path, limit);
                continue;
            }
            if files.len() == MAX_FILES {
                left_out.add(path, format!("there are more than {MAX_FILES} files"));
                continue;
            }
            files.push(ListedPath {
                address: address_of(&path),
                object,
                path,
            });
        }
    }
    files.sort_by(|a, b| (a.address, &a.path).cmp(&(b.address, &b.path)));
    Ok(files)
}

/// Reads a file; `None` if the object has neither its text nor a link. Portable PDBs list all files
/// of a module, whether they embed them or not.
///
/// # Errors
///
/// The reason why the file cannot be read.
fn read(
    sessions: &[ObjectDebugSession<'_>],
    file: &ListedPath,
) -> Result<Option<SourceFile>, String> {
    let Some(session) = sessions.get(file.object) else {
        return Ok(None);
    };
    let source = session.source_by_path(&file.path);
    let Some(source) = source.map_err(|error| chain(&error))? else {
        return Ok(None);
    };
    let link = source.url().filter(|url| is_web_address(url));
    let link = link.map(str::to_owned);
    let text = source.into_contents();
    let is_known = text.is_some() || link.is_some();
    Ok(is_known.then(|| SourceFile {
        path: file.path.clone(),
        text: text.map(Cow::into_owned).unwrap_or_default(),
        link,
    }))
}

/// Returns whether a link can be followed by a web client. Links to paths of a build machine
/// cannot.
fn is_web_address(link: &str) -> bool {
    let begins = |scheme: &str| {
        let head = link.get(..scheme.len());
        head.is_some_and(|head| head.eq_ignore_ascii_case(scheme))
    };
    begins("https://") || begins("http://")
}

impl LeftOut {
    fn add(&mut self, path: String, reason: String) {
        self.files += 1;
        self.first.get_or_insert((path, reason));
    }

    /// Describes the files for a user; `None` if there are none.
    fn describe(&self) -> Option<String> {
        let (path, reason) = self.first.as_ref()?;
        let path: String = path.chars().take(200).collect();
        Some(match self.files {
            1 => format!("the source file {path} is left out: {reason}"),
            files => {
                format!("{files} source files are left out; the first one is {path}: {reason}")
            }
        })
    }
}
