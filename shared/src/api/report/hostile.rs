//! The entry point for fuzzing: takes arbitrary bytes as a report, and panics if they could do
//! harm. The fuzz target is in `tests/fuzz`.

use super::crash_file::CrashFileKind;
use super::model::CrashReport;
use crate::api::limits;
use crate::api::symbolicator::{
    Completed, CompletedFrame, CompletedStacktrace, Frame, FrameStatus,
};

/// Takes bytes as a report, also as one of Apple's, and writes its text without names and with
/// them.
pub fn report(bytes: &[u8]) {
    let report = match CrashFileKind::of(bytes) {
        Some(CrashFileKind::Apple) => CrashReport::of_apple(bytes).ok(),
        Some(CrashFileKind::Minidump) => None,
        None => CrashReport::read(bytes).ok(),
    };
    let Some(report) = report else {
        return;
    };
    let unnamed = report.text(bytes, &Completed::default());
    assert!(unnamed == bytes, "a text changed without a name");
    let request = report.request();
    let frames: usize = request.stacktraces.iter().map(|it| it.frames.len()).sum();
    assert!(frames <= limits::FRAMES && request.modules.len() <= limits::MODULES);
    let name = |index| CompletedFrame {
        status: FrameStatus::Symbolicated,
        original_index: Some(index),
        frame: Frame {
            function: Some("f".into()),
            ..Frame::default()
        },
    };
    let stacktraces = request.stacktraces.iter().map(|stack| CompletedStacktrace {
        frames: (0..stack.frames.len()).map(name).collect(),
        ..CompletedStacktrace::default()
    });
    let completed = Completed {
        stacktraces: stacktraces.collect(),
        ..Completed::default()
    };
    let named = report.text(bytes, &completed);
    let stacks = report.stacks.iter();
    let places = stacks
        .flat_map(|stack| &stack.frames)
        .filter_map(|it| it.place.as_ref());
    let (mut kept, mut count) = (bytes.len(), 0);
    for place in places {
        kept -= place.name.len();
        count += 1;
    }
    assert!(
        named.len() >= kept + count,
        "a name was not written to its place"
    );
}
