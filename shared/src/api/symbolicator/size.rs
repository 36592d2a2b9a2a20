//! The size of a response as JSON, and what is left out of one that is too large.
//!
//! While frames are symbolicated, their size is only estimated, from below, to end a hopeless
//! request early. The limit applies to all that is written, which is counted here.

use std::io::{self, Write};

use serde::Serialize;
use serde::ser::Error as _;
use serde_json::value::RawValue;

use super::{Completed, CompletedFrame, CompletedStacktrace, FrameOrder};

/// Writes a value as JSON; `None` if it has more than `limit` bytes.
///
/// # Errors
///
/// The value cannot be written as JSON.
pub fn json_within(
    value: &impl Serialize,
    limit: usize,
) -> Result<Option<Box<RawValue>>, serde_json::Error> {
    let mut written = LimitedJson {
        bytes: Vec::new(),
        limit,
    };
    match serde_json::to_writer(&mut written, value) {
        Ok(()) => {}
        Err(error) if error.is_io() => return Ok(None),
        Err(error) => return Err(error),
    }
    let text = String::from_utf8(written.bytes).map_err(serde_json::Error::custom)?;
    RawValue::from_string(text).map(Some)
}

/// JSON that is being written.
struct LimitedJson {
    bytes: Vec<u8>,
    limit: usize,
}

impl Write for LimitedJson {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the number of bytes of a value as JSON.
pub fn json_bytes(value: &impl Serialize) -> usize {
    let mut counted = CountedJson(0);
    // Counting does not fail. A value that cannot be written has no bytes after that point.
    let _ = serde_json::to_writer(&mut counted, value);
    counted.0
}

/// The number of bytes of JSON that is not kept.
struct CountedJson(usize);

impl Write for CountedJson {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The sizes of the frames of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadSize {
    /// Whether it is the thread that crashed.
    pub has_crashed: bool,
    /// The size of each frame, from the callee: its bytes in a response, or 1.
    pub frames: Vec<usize>,
}

impl ThreadSize {
    /// Returns the size of the frames after the first ones.
    fn beyond(&self, first: usize) -> usize {
        self.frames.iter().skip(first).sum()
    }
}

/// Returns how many frames each thread keeps, so that their size is less by `excess`: first the
/// longest of the threads that did not crash lose their outer frames, and then the one that
/// crashed.
pub fn frames_left(threads: &[ThreadSize], excess: usize) -> Vec<usize> {
    let (crashed, others): (Vec<&ThreadSize>, Vec<&ThreadSize>) =
        threads.iter().partition(|thread| thread.has_crashed);
    let of_others = longest_that_saves(&others, excess);
    let still = excess.saturating_sub(saved(&others, of_others));
    let of_crashed = longest_that_saves(&crashed, still);
    let left = threads.iter().map(|thread| {
        let longest = if thread.has_crashed {
            of_crashed
        } else {
            of_others
        };
        thread.frames.len().min(longest)
    });
    left.collect()
}

/// Returns by how much the size is less if none of these has more than `longest` frames.
fn saved(threads: &[&ThreadSize], longest: usize) -> usize {
    threads.iter().map(|thread| thread.beyond(longest)).sum()
}

/// Returns the number of frames to which these have to be shortened to save `excess`; 0 if that is
/// not enough.
fn longest_that_saves(threads: &[&ThreadSize], excess: usize) -> usize {
    let lengths = threads.iter().map(|thread| thread.frames.len());
    let (mut saves, mut end) = (0, lengths.max().unwrap_or_default() + 1);
    while saves + 1 < end {
        let middle = saves.midpoint(end);
        if saved(threads, middle) >= excess {
            saves = middle;
        } else {
            end = middle;
        }
    }
    saves
}

impl Completed {
    /// Leaves out source lines, those of the last frames first, until the response has `excess`
    /// bytes less. Returns how many bytes are still too many.
    pub fn leave_out_lines(&mut self, mut excess: usize) -> usize {
        let stacktraces = self.stacktraces.iter_mut().rev();
        for shown in stacktraces.flat_map(|stacktrace| stacktrace.frames.iter_mut().rev()) {
            if excess == 0 {
                break;
            }
            if shown.frame.context_line.is_none() {
                continue;
            }
            let before = json_bytes(shown);
            shown.frame.context_line = None;
            shown.frame.pre_context = Vec::new();
            shown.frame.post_context = Vec::new();
            excess = excess.saturating_sub(before - json_bytes(shown));
        }
        excess
    }

    /// Leaves out outer frames, until the response has `excess` bytes less or no frames. `order` is
    /// that of the frames. Returns how many stack traces have fewer frames than before.
    pub fn leave_out_frames(&mut self, excess: usize, order: FrameOrder) -> usize {
        let calls: Vec<Vec<CallSize>> = self
            .stacktraces
            .iter()
            .map(|stacktrace| calls(&stacktrace.frames, order))
            .collect();
        let threads = self.stacktraces.iter().zip(&calls);
        let threads = threads.map(|(stacktrace, calls)| ThreadSize {
            has_crashed: stacktrace.is_requesting == Some(true),
            frames: calls.iter().map(|call| call.bytes).collect(),
        });
        let left = frames_left(&threads.collect::<Vec<_>>(), excess);
        let mut shortened = 0;
        for ((stacktrace, calls), left) in self.stacktraces.iter_mut().zip(&calls).zip(left) {
            let frames = calls.iter().take(left).map(|call| call.frames).sum();
            shortened += usize::from(frames < stacktrace.frames.len());
            stacktrace.keep_inner(frames, order);
        }
        shortened
    }
}

impl CompletedStacktrace {
    fn keep_inner(&mut self, count: usize, order: FrameOrder) {
        match order {
            FrameOrder::CalleeFirst => self.frames.truncate(count),
            FrameOrder::CallerFirst => drop(self.frames.drain(..self.frames.len() - count)),
        }
    }
}

/// A function with those that are inlined into it: a frame of the request.
struct CallSize {
    index: Option<usize>,
    /// The frames of the response.
    frames: usize,
    bytes: usize,
}

/// Returns the calls of a stack trace, from the callee.
fn calls(frames: &[CompletedFrame], order: FrameOrder) -> Vec<CallSize> {
    let mut calls: Vec<CallSize> = Vec::with_capacity(frames.len());
    for at in 0..frames.len() {
        let frame = match order {
            FrameOrder::CalleeFirst => &frames[at],
            FrameOrder::CallerFirst => &frames[frames.len() - 1 - at],
        };
        let (index, bytes) = (frame.original_index, json_bytes(frame));
        match calls.last_mut().filter(|call| call.index == index) {
            Some(call) => {
                call.frames += 1;
                call.bytes += bytes;
            }
            None => calls.push(CallSize {
                index,
                frames: 1,
                bytes,
            }),
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::symbolicator::{Frame, FrameStatus, Response};

    /// Returns a frame with source lines of a request's frame with this index.
    fn frame(index: usize) -> CompletedFrame {
        CompletedFrame {
            status: FrameStatus::Symbolicated,
            original_index: Some(index),
            frame: Frame {
                function: Some(format!("f{index}\n").into()),
                context_line: Some("x".repeat(1_000)),
                pre_context: vec!["\"".to_owned(); 5],
                ..Frame::default()
            },
        }
    }

    /// Returns a response with a thread for each number of frames, of which the first one crashed.
    fn completed(threads: &[usize]) -> Completed {
        let stacktraces = threads.iter().enumerate().map(|(at, frames)| {
            CompletedStacktrace {
                is_requesting: Some(at == 0),
                // Two functions for each frame of the request.
                frames: (0..2 * frames).map(|at| frame(at / 2)).collect(),
                ..CompletedStacktrace::default()
            }
        });
        Completed {
            stacktraces: stacktraces.collect(),
            ..Completed::default()
        }
    }

    fn lengths(completed: &Completed) -> Vec<usize> {
        let stacktraces = completed.stacktraces.iter();
        stacktraces
            .map(|stacktrace| stacktrace.frames.len())
            .collect()
    }

    #[test]
    fn a_value_is_written_if_its_json_has_exactly_the_limit_and_not_a_byte_more() {
        let response = Response::Completed(completed(&[3, 2]));
        let whole = serde_json::to_string(&response).unwrap();
        assert_eq!(json_bytes(&response), whole.len());
        let written = json_within(&response, whole.len()).unwrap().unwrap();
        assert_eq!(written.get(), whole);
        assert!(json_within(&response, whole.len() - 1).unwrap().is_none());
    }

    #[test]
    fn the_lines_of_the_last_frames_are_left_out_first_and_no_more_than_needed() {
        let whole = completed(&[2, 2]);
        let mut shorter = whole.clone();
        assert_eq!(shorter.leave_out_lines(1_001), 0);
        let with_lines = |completed: &Completed| {
            let frames = completed.stacktraces.iter().flat_map(|one| &one.frames);
            frames
                .map(|frame| frame.frame.context_line.is_some())
                .collect::<Vec<_>>()
        };
        let first_seven = [[true; 7].as_slice(), &[false]].concat();
        assert_eq!(with_lines(&shorter), first_seven);
        assert_eq!(lengths(&shorter), lengths(&whole));
        assert!(json_bytes(&shorter) + 1_001 <= json_bytes(&whole));
        // The rest is not of lines.
        let all = json_bytes(&whole);
        let mut none = whole;
        let rest = none.leave_out_lines(all);
        assert_eq!(rest, json_bytes(&none));
        assert_eq!(with_lines(&none), [false; 8]);
    }

    #[test]
    fn the_longest_threads_that_did_not_crash_lose_their_outer_calls_first() {
        let of_call = json_bytes(&frame(0)) * 2;
        for (calls, expected) in [
            (0, [4, 5, 1, 3]),
            (1, [4, 4, 1, 3]),
            (2, [4, 3, 1, 3]),
            // No two of them can both have a third one.
            (3, [4, 2, 1, 2]),
            (4, [4, 2, 1, 2]),
            (9, [4, 0, 0, 0]),
            (10, [3, 0, 0, 0]),
            (100, [0, 0, 0, 0]),
        ] {
            for order in [FrameOrder::CalleeFirst, FrameOrder::CallerFirst] {
                let mut shorter = completed(&[4, 5, 1, 3]);
                if order == FrameOrder::CallerFirst {
                    let stacktraces = shorter.stacktraces.iter_mut();
                    stacktraces.for_each(|stacktrace| stacktrace.frames.reverse());
                }
                let before = (lengths(&shorter), json_bytes(&shorter));
                let shortened = shorter.leave_out_frames(calls * of_call, order);
                assert_eq!(
                    lengths(&shorter),
                    expected.map(|calls| 2 * calls),
                    "{calls}"
                );
                let fewer = before.0.iter().zip(lengths(&shorter));
                let fewer = fewer.filter(|(before, after)| *before > after);
                assert_eq!(shortened, fewer.count(), "{calls}");
                if calls < 13 {
                    assert!(
                        json_bytes(&shorter) + calls * of_call <= before.1,
                        "{calls}"
                    );
                }
                let stacktraces = shorter.stacktraces.iter();
                let callees = stacktraces.filter_map(|stacktrace| match order {
                    FrameOrder::CalleeFirst => stacktrace.frames.first(),
                    FrameOrder::CallerFirst => stacktrace.frames.last(),
                });
                let mut indexes = callees.map(|callee| callee.original_index);
                assert!(indexes.all(|index| index == Some(0)), "{calls}");
            }
        }
    }
}
