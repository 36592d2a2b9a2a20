//! What a walk asks for, and how it ends.

use std::ops::Range;
use std::panic::resume_unwind;

use async_trait::async_trait;

use crate::debuginfo::CfiRecords;

/// The maximum number of frames of a stack in the result.
pub const MAX_FRAMES: usize = 256;

/// The maximum number of reads on demand in all walks of the stacks of one minidump.
pub const MAX_LATER: usize = 512;

/// A source of unwind information for a walk. Modules are identified by their index in the
/// minidump's list; addresses are relative to them.
#[async_trait]
pub trait UnwindInfo: Send + Sync {
    /// Returns the unwind information of a module, at least for these addresses; `None` if the
    /// module has none, or if it is not available.
    async fn cfi(&self, module: usize, addresses: &[u64]) -> Option<ModuleCfi>;

    /// Reads what every lookup of functions of a module begins with, so that a later one needs one
    /// round of reads.
    async fn prepare_functions(&self, _module: usize) {}

    /// Returns whether an address is in a function; `None` if that is unknown.
    async fn is_in_function(&self, module: usize, address: u64) -> Option<bool>;

    /// Returns whether the unwind information of a module is known, and which functions it has. If
    /// it is not, or no longer after a read, a walk that needs it ends.
    fn is_decided(&self, _module: usize) -> bool {
        true
    }
}

/// Unwind information of a module, or parts of it, each with the address range that it covers.
#[derive(Clone, Debug, Default)]
pub struct ModuleCfi(pub Vec<(Range<u64>, CfiRecords)>);

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkEnd {
    /// The walker found no further caller.
    Complete,
    /// There are [`MAX_FRAMES`] frames, or the stack continues in more than
    /// [`MAX_REGIONS`](super::MAX_REGIONS) regions of memory.
    Cut,
    /// The walk needs what is not decided yet about the module with this index. Its frames are not
    /// to be used.
    Undecided(usize),
    /// The walker panicked. The frames before are valid.
    Panicked,
}

/// Ends the current walk. The walker has no other way to end before the stack does: a chain of
/// frame pointers needs nothing from outside.
pub(super) fn end_walk(end: WalkEnd) -> ! {
    resume_unwind(Box::new(end))
}
