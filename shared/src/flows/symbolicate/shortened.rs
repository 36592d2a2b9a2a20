//! Which frames of a crash file are symbolicated if a response with all of them would be too large.
//!
//! The client of a request can send its threads in several requests, but not those of a file. So
//! outer frames are left out: first those of threads that did not crash, the longest ones first.

use crate::api::symbolicator::{FrameOrder, Request, Stacktrace, ThreadSize, frames_left};

/// Returns a request with at most this number of frames.
pub(super) fn shortened(request: &Request, most: usize) -> Request {
    let lengths = lengths_within(&request.stacktraces, most);
    let stacktraces = request.stacktraces.iter().zip(lengths);
    let stacktraces = stacktraces.map(|(stacktrace, left)| {
        let all = &stacktrace.frames;
        let inner = match request.options.frame_order {
            FrameOrder::CalleeFirst => &all[..left],
            FrameOrder::CallerFirst => &all[all.len() - left..],
        };
        Stacktrace {
            thread_name: stacktrace.thread_name.clone(),
            registers: stacktrace.registers.clone(),
            frames: inner.to_vec(),
            ..*stacktrace
        }
    });
    Request {
        platform: request.platform.clone(),
        sources: request.sources.clone(),
        stacktraces: stacktraces.collect(),
        modules: request.modules.clone(),
        scraping: request.scraping.clone(),
        ..*request
    }
}

/// Returns how many stack traces have fewer frames than before.
pub(super) fn count_shortened(before: &Request, after: &Request) -> usize {
    let pairs = before.stacktraces.iter().zip(&after.stacktraces);
    pairs
        .filter(|(before, after)| after.frames.len() < before.frames.len())
        .count()
}

/// Returns how many frames each stack trace keeps.
fn lengths_within(stacktraces: &[Stacktrace], most: usize) -> Vec<usize> {
    let threads = stacktraces.iter().map(|stacktrace| ThreadSize {
        has_crashed: stacktrace.is_requesting == Some(true),
        // Only their number counts.
        frames: vec![1; stacktrace.frames.len()],
    });
    let threads: Vec<ThreadSize> = threads.collect();
    let frames: usize = threads.iter().map(|thread| thread.frames.len()).sum();
    frames_left(&threads, frames.saturating_sub(most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::symbolicator::{Frame, Hex};

    fn request(stacktraces: &[(Option<bool>, u64)]) -> Request {
        let stacktraces = stacktraces.iter().map(|(is_requesting, frames)| {
            let frame = |number| Frame {
                instruction_addr: Hex(number),
                ..Frame::default()
            };
            Stacktrace {
                is_requesting: *is_requesting,
                frames: (1..=*frames).map(frame).collect(),
                ..Stacktrace::default()
            }
        });
        Request {
            stacktraces: stacktraces.collect(),
            ..Request::default()
        }
    }

    fn addresses(request: &Request) -> Vec<Vec<u64>> {
        let stacktraces = request.stacktraces.iter();
        stacktraces
            .map(|one| one.frames.iter().map(|frame| frame.instruction_addr.0))
            .map(Iterator::collect)
            .collect()
    }

    #[test]
    fn the_longest_stacks_of_threads_that_did_not_crash_lose_their_outer_frames() {
        let threads = [
            (Some(false), 5),
            (Some(true), 4),
            (None, 1),
            (Some(false), 3),
        ];
        let all = request(&threads);
        for (most, expected) in [
            (13, [5, 4, 1, 3]),
            (12, [4, 4, 1, 3]),
            (11, [3, 4, 1, 3]),
            // No two of them can both have a third one.
            (10, [2, 4, 1, 2]),
            (9, [2, 4, 1, 2]),
            (7, [1, 4, 1, 1]),
            (4, [0, 4, 0, 0]),
            (3, [0, 3, 0, 0]),
            (0, [0, 0, 0, 0]),
        ] {
            let some = shortened(&all, most);
            let expected = expected.map(|count| (1..=count).collect::<Vec<u64>>());
            assert_eq!(addresses(&some), expected, "{most}");
            let counts = [5, 4, 1, 3].into_iter().zip(&expected);
            let fewer = counts.filter(|(before, after)| after.len() < *before);
            assert_eq!(count_shortened(&all, &some), fewer.count(), "{most}");
        }
    }

    #[test]
    fn the_outer_frames_are_the_first_ones_if_the_callers_come_first() {
        let mut all = request(&[(None, 3), (None, 2)]);
        all.options.frame_order = FrameOrder::CallerFirst;
        assert_eq!(addresses(&shortened(&all, 3)), [vec![3], vec![2]]);
    }
}
