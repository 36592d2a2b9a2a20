//! The address space of a process: which module covers an address.
//!
//! A module extends to its start plus its size, inclusive. A module without a size extends to the
//! next module, and the last one to the end of memory.

use crate::api::symbolicator::{AddrMode, Frame, Module};

/// The modules of a request, by address.
#[derive(Clone, Debug, Default)]
pub(super) struct AddressSpace {
    /// By address; modules at the same address are in the order of the request.
    sorted: Vec<ModuleRange>,
    /// By the module's index in the request.
    sizes: Vec<Option<u64>>,
}

#[derive(Clone, Copy, Debug)]
struct ModuleRange {
    start: u64,
    /// The last address that counts as inside.
    end: u64,
    module: usize,
}

impl AddressSpace {
    pub(super) fn new(modules: &[Module]) -> Self {
        let mut order: Vec<usize> = (0..modules.len()).collect();
        order.sort_by_key(|&module| modules[module].image_addr);

        let mut sizes: Vec<Option<u64>> = modules.iter().map(|module| module.image_size).collect();
        for pair in order.windows(2) {
            let &[module, next] = pair else { continue };
            if sizes[module].unwrap_or_default() == 0 {
                sizes[module] = Some(modules[next].image_addr.0 - modules[module].image_addr.0);
            }
        }

        let image = |module: usize| {
            let start = modules[module].image_addr.0;
            let size = sizes[module].filter(|&size| size != 0);
            ModuleRange {
                start,
                end: size.map_or(u64::MAX, |size| start.saturating_add(size)),
                module,
            }
        };
        Self {
            sorted: order.into_iter().map(image).collect(),
            sizes,
        }
    }

    /// Returns the index in the request of the module that a frame lies in.
    pub(super) fn module_of(&self, frame: &Frame) -> Option<usize> {
        match frame.addr_mode {
            AddrMode::Rel(module) => (module < self.sizes.len()).then_some(module),
            AddrMode::Abs => {
                let address = frame.instruction_addr.0;
                let after = self.sorted.partition_point(|image| image.start <= address);
                let image = self.sorted[..after].last()?;
                (address <= image.end).then_some(image.module)
            }
        }
    }

    /// Returns the size of a module, as it was sent or as the next module limits it.
    pub(super) fn size_of(&self, module: usize) -> Option<u64> {
        self.sizes.get(module).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::symbolicator::Hex;

    fn space(modules: &[(u64, Option<u64>)]) -> AddressSpace {
        let module = |&(image_addr, image_size)| Module {
            image_addr: Hex(image_addr),
            image_size,
            ..Module::default()
        };
        AddressSpace::new(&modules.iter().map(module).collect::<Vec<_>>())
    }

    fn absolute(address: u64) -> Frame {
        Frame {
            instruction_addr: Hex(address),
            ..Frame::default()
        }
    }

    #[test]
    fn an_address_lies_in_the_last_module_that_begins_before_it() {
        let space = space(&[
            (0x3000, Some(0x100)),
            (0x1000, Some(0x1000)),
            (0x2800, None),
        ]);
        let check =
            |address, want| assert_eq!(space.module_of(&absolute(address)), want, "{address:#x}");
        check(0xfff, None);
        check(0x1000, Some(1));
        check(0x1fff, Some(1));
        check(0x2000, Some(1)); // the end is inclusive
        check(0x2001, None);
        check(0x27ff, None);
        check(0x2800, Some(2));
        check(0x2fff, Some(2));
        check(0x3000, Some(0)); // the start of the next module belongs to the next module
        check(0x3100, Some(0));
        check(0x3101, None);
        check(u64::MAX, None);
    }

    #[test]
    fn a_module_without_a_size_reaches_to_the_next_and_the_last_one_to_the_end() {
        let space = space(&[(0x5000, None), (0x1000, Some(0)), (0x2000, None)]);
        assert_eq!(
            [0, 1, 2].map(|module| space.size_of(module)),
            [None, Some(0x1000), Some(0x3000)]
        );
        assert_eq!(space.module_of(&absolute(0x4fff)), Some(2));
        assert_eq!(space.module_of(&absolute(u64::MAX)), Some(0));
    }

    #[test]
    fn a_size_beyond_the_end_of_memory_ends_there() {
        let space = space(&[(u64::MAX - 1, Some(u64::MAX))]);
        assert_eq!(space.module_of(&absolute(u64::MAX)), Some(0));
        assert_eq!(space.module_of(&absolute(u64::MAX - 2)), None);
    }

    #[test]
    fn a_relative_address_names_its_module_by_its_index_in_the_request() {
        let space = space(&[(0x3000, None), (0x1000, None)]);
        let check = |module, want| {
            let frame = Frame {
                addr_mode: AddrMode::Rel(module),
                ..absolute(0xffff_ffff)
            };
            assert_eq!(space.module_of(&frame), want);
        };
        check(0, Some(0));
        check(1, Some(1));
        check(2, None);
        check(usize::MAX, None);
    }

    #[test]
    fn without_modules_nothing_is_covered() {
        assert_eq!(space(&[]).module_of(&absolute(0)), None);
    }
}
