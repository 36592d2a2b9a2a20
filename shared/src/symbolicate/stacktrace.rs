//! Which frames of a stack are shown, and in which order.

use super::adjust::Adjustment;
use super::frame::{Lookup, Position};
use crate::api::symbolicator::{
    CompletedFrame, CompletedStacktrace, FrameOrder, FrameStatus, FrameTrust, Stacktrace,
};

/// Looks up the frames of a stack trace.
///
/// Frames are worked on from the callee to the caller, whichever way they came: that is how they are counted.
pub(super) fn complete<'a>(
    stacktrace: &'a Stacktrace,
    lookup: &mut Lookup<'a>,
) -> CompletedStacktrace {
    let caller_first = lookup.request().options.frame_order == FrameOrder::CallerFirst;
    let default_adjustment = Adjustment::default_of(&stacktrace.frames);
    let count = stacktrace.frames.len();
    lookup.stats.stacktraces += 1;

    let mut frames = Vec::with_capacity(count);
    for index in 0..count {
        let frame = &stacktrace.frames[if caller_first {
            count - 1 - index
        } else {
            index
        }];
        let position = Position {
            index,
            default_adjustment,
            registers: &stacktrace.registers,
        };
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
    if caller_first {
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
