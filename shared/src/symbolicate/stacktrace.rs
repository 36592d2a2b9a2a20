//! Decides which frames of a stack are shown, and in which order.

use super::frame::FrameLookup;
use crate::api::symbolicator::{
    CompletedFrame, CompletedStacktrace, FrameOrder, FrameStatus, FrameTrust, Stacktrace,
};
use crate::symbolicate::address::{Callee, Position, positions};

/// Looks up the frames of a stack trace.
///
/// Frames are processed from the callee to the caller, in whichever order they were sent, because
/// positions are counted from the callee.
pub(super) fn complete<'a>(
    stacktrace: &'a Stacktrace,
    lookup: &mut FrameLookup<'a>,
) -> CompletedStacktrace {
    let order = lookup.request().options.frame_order;
    lookup.stats.stacktraces += 1;

    let mut frames = Vec::with_capacity(stacktrace.frames.len());
    let mut callee = Callee::default();
    for (frame, position) in positions(stacktrace, order) {
        let before = frames.len();
        let position = Position { callee, ..position };
        callee = lookup.complete(frame, &position, &mut frames);
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

/// Returns whether a frame was found by scanning the stack and nothing confirms that it is code.
fn is_a_guess(frame: &CompletedFrame) -> bool {
    frame.frame.trust == FrameTrust::Scan
        && matches!(
            frame.status,
            FrameStatus::MissingSymbol | FrameStatus::UnknownImage
        )
}

/// Returns whether the outermost frame is in no module and follows `_start`, which has no caller:
/// the walker went too far.
fn ends_before_the_process_began(frames: &[CompletedFrame]) -> bool {
    match frames {
        [.., start, beyond] => {
            beyond.status == FrameStatus::UnknownImage
                && start.frame.function.as_deref() == Some("_start")
        }
        _ => false,
    }
}
