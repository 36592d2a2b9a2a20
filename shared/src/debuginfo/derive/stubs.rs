//! The frames of the stubs in a procedure linkage table, as GNU ld describes them.
//!
//! A stub pushes a number and jumps. One expression for all stubs compares the lowest bits of the
//! address of the instruction: `$rsp + 8 + ((($rip & 15) >= 11) << 3)`. Records have no such
//! comparison, so each stub gets rules of its own.

use gimli::{Operation, OperationIter, Reader, Register};

/// The names of the registers with the address of the instruction.
const COUNTERS: [&str; 2] = ["$rip", "$eip"];

/// The stubs that an expression is about.
#[derive(Clone, Copy)]
pub(super) struct Stubs {
    stack_pointer: &'static str,
    /// The offset of the frame before the push, and the bytes that it pushes.
    offset: i64,
    pushed: i64,
    /// The number of bytes of a stub behind which it has pushed.
    pushed_at: u64,
}

impl Stubs {
    /// The size of a stub.
    const BYTES: u64 = 16;

    /// Returns the stubs that an expression is about, if it is about stubs.
    pub(super) fn of<R: Reader>(
        mut operations: OperationIter<R>,
        name: impl Fn(Register) -> Option<&'static str>,
    ) -> Option<Self> {
        let mut next = || operations.next().ok().flatten();
        let register = |operation: Operation<R>| match operation {
            Operation::RegisterOffset {
                register, offset, ..
            } => Some((name(register)?, offset)),
            _ => None,
        };
        let constant = |operation: Operation<R>| match operation {
            Operation::UnsignedConstant { value } => Some(value),
            _ => None,
        };
        let (stack_pointer, offset) = register(next()?)?;
        let (counter, 0) = register(next()?)? else {
            return None;
        };
        let mask = constant(next()?)?;
        let is_masked = matches!(next()?, Operation::And) && mask == Self::BYTES - 1;
        let pushed_at = constant(next()?)?;
        let is_compared = matches!(next()?, Operation::Ge) && pushed_at < Self::BYTES;
        let shift = constant(next()?)?;
        let is_shifted = matches!(next()?, Operation::Shl) && matches!(shift, 2 | 3);
        let is_added = matches!(next()?, Operation::Plus) && next().is_none();
        let is_about_stubs =
            COUNTERS.contains(&counter) && is_masked && is_compared && is_shifted && is_added;
        is_about_stubs.then_some(Self {
            stack_pointer,
            offset,
            pushed: 1 << shift,
            pushed_at,
        })
    }

    /// Returns the rule for the frame at an instruction: a register and an offset.
    pub(super) fn at(self, address: u64) -> (&'static str, i64) {
        let has_pushed = address % Self::BYTES >= self.pushed_at;
        let pushed = if has_pushed { self.pushed } else { 0 };
        (self.stack_pointer, self.offset + pushed)
    }

    /// Returns the offsets behind an address at which the rule changes, and the rule there.
    pub(super) fn changes(
        self,
        address: u64,
        bytes: u64,
    ) -> impl Iterator<Item = (u64, (&'static str, i64))> {
        let next = move |offset: &u64| {
            let within = address.wrapping_add(*offset) % Self::BYTES;
            let step = if within < self.pushed_at {
                self.pushed_at - within
            } else {
                Self::BYTES - within
            };
            offset.checked_add(step).filter(|next| *next < bytes)
        };
        let offsets = std::iter::successors(next(&0), next);
        offsets.map(move |offset| (offset, self.at(address.wrapping_add(offset))))
    }
}
