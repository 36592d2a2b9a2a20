//! The descriptors of functions on 64-bit PowerPC with version 1 of its ABI, as on big-endian
//! systems.
//!
//! The symbol of a function has the address of its descriptor, which is in the section `.opd`, and
//! the size of the function. The first eight bytes of a descriptor are the address of the function.
//!
//! Source: 64-bit PowerPC ELF Application Binary Interface Supplement 1.9, "Function Descriptors"
//! and "Symbol Values".

use goblin::elf::sym::{STT_FUNC, STT_GNU_IFUNC, Sym};

/// The name of the section with the descriptors.
pub(super) const SECTION: &[u8] = b".opd";

/// The section with the descriptors of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptors<'d> {
    /// Its number.
    pub(super) section: usize,
    pub(super) address: u64,
    /// Its contents; empty if the file does not contain them. Files with debug information alone do
    /// not, and in object files, they are not yet known.
    pub(super) bytes: &'d [u8],
    pub(super) is_little_endian: bool,
}

impl Descriptors<'_> {
    /// Returns the symbol of a function with the address of that function instead of its
    /// descriptor, or `None` if it has no descriptor.
    pub(super) fn resolved(&self, symbol: Sym) -> Option<Sym> {
        let is_function = matches!(symbol.st_type(), STT_FUNC | STT_GNU_IFUNC);
        if !is_function || symbol.st_shndx != self.section {
            return None;
        }
        let at = usize::try_from(symbol.st_value.checked_sub(self.address)?).ok()?;
        let entry = *self.bytes.get(at..)?.first_chunk::<8>()?;
        let st_value = if self.is_little_endian {
            u64::from_le_bytes(entry)
        } else {
            u64::from_be_bytes(entry)
        };
        Some(Sym { st_value, ..symbol })
    }
}

/// Returns whether a name is that of a stub that GNU ld made for calls of a function elsewhere.
pub(super) fn is_stub(name: &[u8]) -> bool {
    const MARK: &[u8] = b".plt_call.";
    name.windows(MARK.len()).any(|part| part == MARK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_symbol_of_a_descriptor_gets_the_address_of_its_function() {
        let bytes: Vec<u8> = (0..32).collect();
        let descriptors = Descriptors {
            section: 3,
            address: 0x1000,
            bytes: &bytes,
            is_little_endian: false,
        };
        let symbol = |st_value| Sym {
            st_info: STT_FUNC,
            st_shndx: 3,
            st_value,
            st_size: 24,
            ..Sym::default()
        };
        let resolved = |symbol| {
            let found = descriptors.resolved(symbol);
            found.map(|found| (found.st_value, found.st_size))
        };
        let found = Some((0x0809_0a0b_0c0d_0e0f, 24));
        assert_eq!(resolved(symbol(0x1008)), found);
        for outside in [0, 0xfff, 0x1019, 0x1020, u64::MAX] {
            assert_eq!(resolved(symbol(outside)), None, "{outside:#x}");
        }
        let elsewhere = Sym {
            st_shndx: 4,
            ..symbol(0x1008)
        };
        assert_eq!(resolved(elsewhere), None);
        let data = Sym {
            st_info: 1,
            ..symbol(0x1008)
        };
        assert_eq!(resolved(data), None);
        let without_contents = Descriptors {
            bytes: &[],
            ..descriptors
        };
        assert!(without_contents.resolved(symbol(0x1008)).is_none());
    }

    #[test]
    fn stubs_have_the_name_of_the_function_that_they_call() {
        assert!(is_stub(b"0000004b.plt_call.strlen@@GLIBC_2.3"));
        assert!(!is_stub(b"plt_call"));
    }
}
