//! The addresses of frames: the module of each, and the address to look up in that module.

use std::collections::BTreeMap;

use symbolic::common::CpuFamily;

use super::adjust::{Adjustment, adjust};
use crate::api::symbolicator::{AddrMode, Frame, FrameOrder, Hex, Module, Request, Stacktrace};
use crate::domain::{Arch, ObjectType};
use crate::symbolicate::adjust::Situation;

/// What the frame before one, that of its callee, is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Callee {
    /// A function with a name, or none.
    #[default]
    Function,
    /// A trampoline: a signal interrupted the frame.
    Trampoline,
    /// It has no name, so it may be a trampoline.
    Nameless,
}

/// The position of a frame in its stack trace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position<'a> {
    /// The index, counted from the callee.
    pub(super) index: usize,
    /// What the frame before it is.
    pub(super) callee: Callee,
    pub(super) default_adjustment: Adjustment,
    pub(super) registers: &'a BTreeMap<String, Hex>,
}

/// Returns the addresses at which frames of a module are looked up, relative to its start. Most
/// frames of callers have two: only a lookup shows that one of them is a trampoline, or was
/// interrupted. `defaults` has the default adjustment of each stack trace.
pub(super) fn addresses(
    request: &Request,
    module: usize,
    frames: &[(usize, usize)],
    defaults: &[Adjustment],
    arch: Arch,
) -> Vec<u64> {
    let order = request.options.frame_order;
    let mut addresses = Vec::with_capacity(frames.len());
    for (number, at) in frames {
        let stacktrace = request.stacktraces.get(*number);
        let Some((stacktrace, default)) = stacktrace.zip(defaults.get(*number)) else {
            continue;
        };
        let position = Position {
            index: counted(order, stacktrace.frames.len(), *at),
            ..Position::first_of(stacktrace, *default)
        };
        let found = stacktrace.frames.get(*at).zip(request.modules.get(module));
        let Some((frame, of_module)) = found else {
            continue;
        };
        let situation = situation(request, frame, &position);
        let situations = [Some(situation), exact(&situation, frame)];
        let of_frame = situations
            .iter()
            .flatten()
            .filter_map(|situation| Address::of(frame, module, of_module, arch, situation));
        addresses.extend(of_frame.map(|address| address.relative));
    }
    addresses
}

pub(super) fn situation<'a>(
    request: &Request,
    frame: &Frame,
    position: &Position<'a>,
) -> Situation<'a> {
    let default = match position.callee {
        Callee::Trampoline => Adjustment::Aligned,
        Callee::Function | Callee::Nameless => position.default_adjustment,
    };
    Situation {
        adjustment: Adjustment::of(frame, default),
        is_topmost: position.index == 0,
        signal: request.signal,
        registers: position.registers,
    }
}

/// Returns the situation of a frame if it is at its own address, though it is not the topmost one;
/// `None` if the client says where it is.
pub(super) fn exact<'a>(situation: &Situation<'a>, frame: &Frame) -> Option<Situation<'a>> {
    let may_be = !situation.is_topmost && frame.adjust_instruction_addr.is_none();
    may_be.then_some(Situation {
        adjustment: Adjustment::Aligned,
        ..*situation
    })
}

/// An address in a module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    /// Relative to the start of the module.
    pub(super) relative: u64,
    /// The start of the module, which is added to addresses that are shown.
    base: u64,
    /// The mode of addresses that are shown.
    pub(super) mode: AddrMode,
}

impl Address {
    /// Returns the address of the instruction that a frame refers to; `None` if the module has no
    /// such address.
    pub(super) fn of(
        frame: &Frame,
        index: usize,
        module: &Module,
        arch: Arch,
        situation: &Situation<'_>,
    ) -> Option<Self> {
        let base = module.image_addr.0;
        let given = frame.instruction_addr.0;
        if base == 0 {
            // A module without a base address is addressed from its start. In WebAssembly, clients
            // send the addresses of calls.
            let is_wasm =
                module.object_type == ObjectType::Wasm || arch.cpu_family() == CpuFamily::Wasm32;
            let relative = if is_wasm {
                given
            } else {
                adjust(given, arch, situation).unwrap_or(given)
            };
            return matches!(frame.addr_mode, AddrMode::Rel(_)).then_some(Self {
                relative,
                base,
                mode: AddrMode::Rel(index),
            });
        }
        let absolute = match frame.addr_mode {
            AddrMode::Abs => given,
            AddrMode::Rel(_) => base.checked_add(given)?,
        };
        let relative = adjust(absolute, arch, situation)?.checked_sub(base)?;
        Some(Self {
            relative,
            base,
            mode: AddrMode::Abs,
        })
    }

    /// Returns an address of the module as it is shown.
    pub(super) fn shown(&self, relative: u64) -> Option<Hex> {
        self.base.checked_add(relative).map(Hex)
    }
}

/// Returns the frames of a stack trace, from the callee to the caller, with their positions.
pub(super) fn positions(
    stacktrace: &Stacktrace,
    order: FrameOrder,
) -> impl Iterator<Item = (&Frame, Position<'_>)> {
    let count = stacktrace.frames.len();
    let default = Adjustment::default_of(&stacktrace.frames);
    let first = Position::first_of(stacktrace, default);
    (0..count).map(move |index| {
        let frame = &stacktrace.frames[counted(order, count, index)];
        (frame, Position { index, ..first })
    })
}

/// Converts the index of a frame in a stack trace of `count` frames to its position counted from
/// the callee, or back.
pub(super) fn counted(order: FrameOrder, count: usize, index: usize) -> usize {
    match order {
        FrameOrder::CallerFirst => count.saturating_sub(index + 1),
        FrameOrder::CalleeFirst => index,
    }
}

impl<'a> Position<'a> {
    /// Returns the position of the callee, given the default adjustment of the stack trace.
    fn first_of(stacktrace: &'a Stacktrace, default_adjustment: Adjustment) -> Self {
        Self {
            index: 0,
            callee: Callee::Function,
            default_adjustment,
            registers: &stacktrace.registers,
        }
    }
}
