//! The layout of a DIF: the members of its container, and the objects in these members.

use std::io;

use serde::{Deserialize, Serialize};

use super::arriving::Arriving;
use crate::domain::{DebugId, FileType, Missing, ModuleId, ObjectMeta};

/// The most objects of a module whose source files are in one cache.
pub const MAX_SOURCE_OBJECTS: usize = 8;

/// The place of each member and object in a DIF. [`super::unpack()`] makes it, and
/// [`super::inspect()`] completes it.
///
/// Another process can derive caches from a layout, the DIF and the unpacked members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The members. A file without a container is its own only member.
    pub members: Vec<Member>,
    /// The objects, in the order of their indices.
    pub objects: Vec<FoundObject>,
    /// Indices of members that complete other objects and are not objects themselves: files with
    /// split units, and shared files without a build id.
    pub split: Vec<usize>,
    /// The auxiliary files.
    #[serde(default)]
    pub auxiliary: Vec<FoundAuxiliary>,
    /// The ignored files, each with the reason. Text for a user.
    pub ignored: Vec<String>,
    /// The number of bytes of the room that are used.
    pub unpacked_bytes: u64,
    /// Whether something did not fit into the room.
    pub out_of_room: bool,
    /// Whether the DIF has holes.
    pub partial: bool,
}

/// A file in a DIF.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name in the container, or empty if it has none.
    pub name: String,
    /// Where its bytes are.
    pub place: MemberPlace,
    /// The id of an auxiliary file, which is not part of its bytes or of its name here.
    pub id: Option<DebugId>,
    /// The reason why it is not complete.
    pub fault: Option<Missing>,
}

/// The place of the bytes of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberPlace {
    /// The whole DIF.
    Whole,
    /// A range of the DIF, which consists of several files.
    Within {
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
    /// A range of the unpacked bytes.
    Unpacked {
        /// The offset of the first byte, a multiple of [`MemberPlace::ALIGNMENT`].
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
}

/// One object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundObject {
    /// The index of its member, from zero.
    pub member: usize,
    /// Its index in that member, from zero.
    pub index: usize,
    /// Its ids, type and features.
    pub meta: ObjectMeta,
    /// The reason why nothing can be derived from it.
    pub fault: Option<Missing>,
}

/// One auxiliary file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundAuxiliary {
    /// The index of its member, from zero.
    pub member: usize,
    /// Its type.
    pub file_type: FileType,
    /// Its id, if it is known.
    pub id: Option<DebugId>,
    /// The id of the symbol map that a UUID map refers to.
    pub symbol_map: Option<DebugId>,
}

/// The bytes of a DIF and of the members that were unpacked from it.
#[derive(Clone, Copy, Debug)]
pub struct DifBytes<'a> {
    /// The DIF.
    pub dif: &'a [u8],
    /// The unpacked bytes.
    pub unpacked: &'a [u8],
    /// The part of the DIF that is still arriving. Until then, its place in `dif` has no valid
    /// bytes.
    pub arriving: Option<&'a dyn Arriving>,
}

impl Layout {
    /// Returns the ELF object with the symbols of an object that has debug information but no
    /// symbols.
    pub(super) fn symbols_of(&self, object: &FoundObject) -> Option<&FoundObject> {
        let FoundObject { meta, member, .. } = object;
        if meta.code_id.is_none() || !meta.features.lack_symbols(meta.file_type) {
            return None;
        }
        self.objects.iter().find(|other| {
            let is_alike = other.meta.file_type.is_elf() && other.meta.code_id == meta.code_id;
            is_alike
                && other.member != *member
                && other.meta.features.has_symbols
                && other.fault.is_none()
        })
    }

    /// Returns the other objects of the same module that have source files, up to
    /// [`MAX_SOURCE_OBJECTS`].
    pub(super) fn other_sources(&self, object: &FoundObject) -> impl Iterator<Item = &FoundObject> {
        let id_of =
            |object: &FoundObject| ModuleId::of(object.meta.debug_id, object.meta.code_id.as_ref());
        let id = id_of(object);
        let member = object.member;
        let is_beside = move |other: &&FoundObject| {
            other.member != member
                && other.meta.features.has_sources
                && other.fault.is_none()
                && id_of(other) == id
        };
        self.objects
            .iter()
            .filter(is_beside)
            .take(MAX_SOURCE_OBJECTS - 1)
    }

    /// Returns the first ELF object with a build id.
    pub(super) fn elf_with_build_id(&self, id: &str) -> Option<&FoundObject> {
        self.objects.iter().find(|found| {
            let code_id = found.meta.code_id.as_ref();
            found.meta.file_type.is_elf() && code_id.is_some_and(|code_id| code_id.as_str() == id)
        })
    }
}

impl MemberPlace {
    /// The alignment of unpacked files and of files that are written together, in bytes. The
    /// parsers of some formats need it.
    pub const ALIGNMENT: u64 = 16;
}

impl<'a> DifBytes<'a> {
    /// Returns bytes that have all arrived.
    pub fn complete(dif: &'a [u8], unpacked: &'a [u8]) -> Self {
        Self {
            dif,
            unpacked,
            arriving: None,
        }
    }

    /// Returns the bytes after all of them have arrived.
    pub(super) fn wait(self) -> io::Result<Self> {
        if let Some(arriving) = self.arriving {
            arriving.wait()?;
        }
        Ok(Self::complete(self.dif, self.unpacked))
    }

    /// Returns the bytes of a member, or `None` if they are missing.
    pub fn member(self, place: MemberPlace) -> Option<&'a [u8]> {
        let (bytes, offset, length) = match place {
            MemberPlace::Whole => return Some(self.dif),
            MemberPlace::Within { offset, length } => (self.dif, offset, length),
            MemberPlace::Unpacked { offset, length } => (self.unpacked, offset, length),
        };
        let start = usize::try_from(offset).ok()?;
        bytes.get(start..start.checked_add(usize::try_from(length).ok()?)?)
    }
}
