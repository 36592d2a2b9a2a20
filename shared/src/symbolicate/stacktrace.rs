//! Which frames of a stack are shown, and in which order.

use super::adjust::Adjustment;
use super::frame::{FrameLookup, Position};
use crate::api::symbolicator::{
    CompletedFrame, CompletedStacktrace, Frame, FrameOrder, FrameStatus, FrameTrust, Stacktrace,
};

/// Looks up the frames of a stack trace.
///
/// Frames are worked on from the callee to the caller, whichever way they came: that is how they are counted.
pub(super) fn complete<'a>(
    stacktrace: &'a Stacktrace,
    lookup: &mut FrameLookup<'a>,
) -> CompletedStacktrace {
    let order = lookup.request().options.frame_order;
    lookup.stats.stacktraces += 1;

    let mut frames = Vec::with_capacity(stacktrace.frames.len());
    for (frame, position) in positions(stacktrace, order) {
        let before = frames.len();
        lookup.complete(frame, &position, &mut frames);
        if frames[before..].iter().any(is_a_guess) {
            frames.truncate(before);
            lookup.stats.dropped += 1;
        }
    }
    if ends_before_the_process_began(&frames) {
        frames.pop();
        lookup.stats.dropped += 1;
    }
    if order == FrameOrder::CallerFirst {
        frames.reverse();
    }

    let Stacktrace {
        thread_id,
        thread_name,
        is_requesting,
        registers,
        frames: _,
    } = stacktrace;
    CompletedStacktrace {
        thread_id: *thread_id,
        thread_name: thread_name.clone(),
        is_requesting: *is_requesting,
        registers: registers.clone(),
        frames,
    }
}

/// Returns the frames of a stack trace, from the callee to the caller, and where each is.
fn positions(
    stacktrace: &Stacktrace,
    order: FrameOrder,
) -> impl Iterator<Item = (&Frame, Position<'_>)> {
    let count = stacktrace.frames.len();
    let first = Position::first_of(stacktrace);
    (0..count).map(move |index| {
        let frame = &stacktrace.frames[counted(order, count, index)];
        (frame, Position { index, ..first })
    })
}

/// Returns the place of a frame, counted from the callee, by its index in a stack trace of so many frames; or the other way round.
pub(super) fn counted(order: FrameOrder, count: usize, index: usize) -> usize {
    match order {
        FrameOrder::CallerFirst => count.saturating_sub(index + 1),
        FrameOrder::CalleeFirst => index,
    }
}

impl<'a> Position<'a> {
    /// Returns the position of the callee.
    pub(super) fn first_of(stacktrace: &'a Stacktrace) -> Self {
        Self {
            index: 0,
            default_adjustment: Adjustment::default_of(&stacktrace.frames),
            registers: &stacktrace.registers,
        }
    }
}

/// Tells whether a frame was found by searching the stack, and nothing says that it is code.
fn is_a_guess(frame: &CompletedFrame) -> bool {
    frame.frame.trust == FrameTrust::Scan
        && matches!(
            frame.status,
            FrameStatus::MissingSymbol | FrameStatus::UnknownImage
        )
}

/// Tells whether the outermost frame is nowhere, and called by `_start`, which nobody calls: the walker did not stop.
fn ends_before_the_process_began(frames: &[CompletedFrame]) -> bool {
    match frames {
        [.., start, beyond] => {
            beyond.status == FrameStatus::UnknownImage
                && start.frame.function.as_deref() == Some("_start")
        }
        _ => false,
    }
}
