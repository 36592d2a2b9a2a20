//! What is where in a DIF: the files in its container, and the objects in those.

use serde::{Deserialize, Serialize};

use crate::domain::{Missing, ObjectMeta};

/// What is where in a DIF. Made by [`super::unpack()`], completed by [`super::inspect()`].
///
/// With it, the DIF and the unpacked members, another process can derive as well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The files.
    pub members: Vec<Member>,
    /// The objects, in the order of their indices.
    pub objects: Vec<FoundObject>,
    /// Files with split units, which belong to the other objects, counted as parts.
    pub split: Vec<usize>,
    /// What was passed over, and why: for a human.
    pub ignored: Vec<String>,
    /// How many bytes of the room are taken.
    pub unpacked_bytes: u64,
    /// Whether something did not fit into the room.
    pub out_of_room: bool,
    /// Whether the DIF has holes.
    pub partial: bool,
}

/// One file in a DIF.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name in the container; empty where it has none.
    pub name: String,
    /// Where its bytes are.
    pub place: MemberPlace,
    /// Why it is not there as a whole.
    pub fault: Option<Missing>,
}

/// Where the bytes of a file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberPlace {
    /// They are the DIF itself.
    Whole,
    /// They are among several that were written together.
    Within {
        /// The offset of the first one.
        offset: u64,
        /// Their number.
        length: u64,
    },
    /// They are among what was unpacked.
    Unpacked {
        /// The offset of the first one, a multiple of [`MemberPlace::ALIGNMENT`].
        offset: u64,
        /// Their number.
        length: u64,
    },
}

/// One object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundObject {
    /// The file that it is in, counted from zero.
    pub member: usize,
    /// Its place in that file, counted from zero.
    pub index: usize,
    /// What it is.
    pub meta: ObjectMeta,
    /// Why nothing can be derived from it.
    pub fault: Option<Missing>,
}

/// The bytes of a DIF, and what was unpacked from it.
#[derive(Clone, Copy, Debug)]
pub struct DifBytes<'a> {
    /// The DIF.
    pub dif: &'a [u8],
    /// What was unpacked.
    pub unpacked: &'a [u8],
}

impl Layout {
    /// Returns another ELF file with the symbols of an object that has debug information and no
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

    /// Returns the first ELF object with a build id.
    pub(super) fn elf_with_build_id(&self, id: &str) -> Option<&FoundObject> {
        self.objects.iter().find(|found| {
            let code_id = found.meta.code_id.as_ref();
            found.meta.file_type.is_elf() && code_id.is_some_and(|code_id| code_id.as_str() == id)
        })
    }
}

impl MemberPlace {
    /// Unpacked files, and those that are written together, begin at multiples of this: parsers of
    /// some formats need it.
    pub const ALIGNMENT: u64 = 16;
}

impl<'a> DifBytes<'a> {
    /// Returns the bytes of a file; `None` where they are not there.
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
