//! Writes the answer to a crash, within the limit of its size.

use axum::http::StatusCode;
use serde_json::Value;
use serde_json::value::RawValue;
use symdepot::api::crash::stackwalk::{self, StackwalkReport};
use symdepot::api::limits;
use symdepot::api::symbolicator::{Completed, FrameOrder, Response, json_bytes, json_within};
use symdepot::flows;
use symdepot::flows::symbolicate::Stats;

use crate::failure::Failure;

/// The answer to a crash.
pub(crate) enum CrashAnswer {
    /// To a request. Its client can send the threads in several requests, so no frames are left
    /// out.
    ToRequest(Response),
    /// To a crash file with frames in this order. Outer ones are left out of an answer that is too
    /// large.
    ToFile(Response, FrameOrder),
    /// To a minidump, in the schema of `minidump-stackwalk`. The same holds.
    Stackwalk(Value),
}

impl CrashAnswer {
    /// Returns the answer to a request.
    pub(crate) fn to_request(completed: Completed) -> Self {
        Self::ToRequest(Response::Completed(completed))
    }

    /// Returns the answer to a crash file, in the schema of `stackwalk` if there is one.
    pub(crate) fn to_file(
        completed: Completed,
        order: FrameOrder,
        stackwalk: Option<StackwalkReport>,
    ) -> Self {
        match stackwalk {
            Some(report) => Self::Stackwalk(report.completed(&completed)),
            None => Self::ToFile(Response::Completed(completed), order),
        }
    }

    /// Writes the answer, without some source lines or frames if it is too large. `stats` count the
    /// stack traces that are shorter.
    ///
    /// # Errors
    ///
    /// It is still too large.
    pub(crate) fn write(self, stats: &mut Stats) -> Result<Box<RawValue>, Failure> {
        self.write_within(limits::ANSWER_BYTES, stats)
    }

    fn write_within(mut self, limit: usize, stats: &mut Stats) -> Result<Box<RawValue>, Failure> {
        if let Some(written) = self.json(limit)? {
            return Ok(written);
        }
        let bytes = self.bytes();
        if let Some(shortened) = self.shorten(bytes.saturating_sub(limit)) {
            // Those that were shortened before are among the longest, which are shortened again.
            stats.shortened = stats.shortened.max(shortened);
            if let Some(written) = self.json(limit)? {
                return Ok(written);
            }
        }
        let frames = stats.frames.total();
        match self {
            Self::ToRequest(_) => Err(flows::Error::TooLarge { bytes, frames }.into()),
            // What is left besides frames: the modules, and a frame of each thread.
            Self::ToFile(..) | Self::Stackwalk(_) => Err(Failure::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!(
                    "the response has more than {limit} bytes even without most frames: the file names too many modules or threads"
                ),
            )),
        }
    }

    fn json(&self, limit: usize) -> Result<Option<Box<RawValue>>, Failure> {
        let written = match self {
            Self::ToRequest(response) | Self::ToFile(response, _) => json_within(response, limit),
            Self::Stackwalk(report) => json_within(report, limit),
        };
        written.map_err(Failure::internal)
    }

    fn bytes(&self) -> usize {
        match self {
            Self::ToRequest(response) | Self::ToFile(response, _) => json_bytes(response),
            Self::Stackwalk(report) => json_bytes(report),
        }
    }

    /// Leaves out what may be left out, until the answer has `excess` bytes less. Returns how many
    /// stack traces are shorter; `None` if the answer is known to be still too large.
    fn shorten(&mut self, excess: usize) -> Option<usize> {
        match self {
            Self::ToRequest(Response::Completed(completed)) => {
                (completed.leave_out_lines(excess) == 0).then_some(0)
            }
            Self::ToFile(Response::Completed(completed), order) => {
                Some(match completed.leave_out_lines(excess) {
                    0 => 0,
                    excess => completed.leave_out_frames(excess, *order),
                })
            }
            Self::ToRequest(_) | Self::ToFile(..) => None,
            Self::Stackwalk(report) => Some(stackwalk::leave_out_frames(report, excess)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use symdepot::api::symbolicator::{
        CompletedFrame, CompletedStacktrace, Frame, FrameStatus, Hex,
    };

    use super::*;

    /// Returns a crash with this many frames in a thread that crashed and in another one.
    fn completed(frames: usize) -> Completed {
        let frame = |index| CompletedFrame {
            status: FrameStatus::Missing,
            original_index: Some(index),
            frame: Frame {
                instruction_addr: Hex(0x1000),
                context_line: Some("x".repeat(100)),
                ..Frame::default()
            },
        };
        let stacktraces = [true, false].map(|has_crashed| CompletedStacktrace {
            is_requesting: Some(has_crashed),
            frames: (0..frames).map(frame).collect(),
            ..CompletedStacktrace::default()
        });
        Completed {
            stacktraces: stacktraces.into(),
            ..Completed::default()
        }
    }

    fn written(answer: CrashAnswer, limit: usize) -> (Result<Value, u16>, usize) {
        let mut stats = Stats::default();
        let written = answer.write_within(limit, &mut stats);
        let json = match written {
            Ok(written) => {
                assert!(written.get().len() <= limit);
                Ok(serde_json::from_str(written.get()).unwrap())
            }
            Err(failure) => Err(failure.status().as_u16()),
        };
        (json, stats.shortened)
    }

    fn frames(thread: &Value) -> usize {
        thread["frames"].as_array().unwrap().len()
    }

    #[test]
    fn an_answer_to_a_request_loses_source_lines_but_no_frames() {
        let limit = json_bytes(&Response::Completed(completed(100))) / 2 + 1_000;
        let (answer, shortened) = written(CrashAnswer::to_request(completed(100)), limit);
        let answer = answer.unwrap();
        assert_eq!(frames(&answer["stacktraces"][0]), 100);
        let first = &answer["stacktraces"][0]["frames"][0];
        assert!(first["context_line"].is_string());
        assert_eq!(
            answer["stacktraces"][1]["frames"][99].get("context_line"),
            None
        );
        assert_eq!(shortened, 0);
        let (refused, _) = written(CrashAnswer::to_request(completed(100)), 1_000);
        assert_eq!(refused, Err(413));
    }

    #[test]
    fn an_answer_to_a_file_loses_outer_frames_of_the_thread_that_did_not_crash() {
        let answer = || CrashAnswer::to_file(completed(100), FrameOrder::CalleeFirst, None);
        let (shorter, shortened) = written(answer(), 10_000);
        let shorter = shorter.unwrap();
        assert_eq!(frames(&shorter["stacktraces"][0]), 100);
        assert!((1..100).contains(&frames(&shorter["stacktraces"][1])));
        assert_eq!(shortened, 1);
        assert_eq!(written(answer(), 10).0, Err(413));
    }

    #[test]
    fn a_report_of_stackwalk_loses_the_same_frames_and_says_how_many_are_left() {
        let threads = |frames: usize| {
            let frames = vec![json!({"offset": "0x1000", "line": null}); frames];
            json!({"frame_count": frames.len(), "frames": frames})
        };
        let mut crashing = threads(50);
        crashing["threads_index"] = 1.into();
        let report = json!({"threads": [threads(80), threads(50)], "crashing_thread": crashing});
        let bytes = json_bytes(&report);
        let (shorter, shortened) = written(CrashAnswer::Stackwalk(report.clone()), bytes - 2_000);
        let shorter = shorter.unwrap();
        assert_eq!(shortened, 1);
        let of_other = frames(&shorter["threads"][0]);
        assert!((1..80).contains(&of_other), "{of_other}");
        assert_eq!(shorter["threads"][0]["frame_count"], of_other);
        assert_eq!(frames(&shorter["crashing_thread"]), 50);

        let (shorter, shortened) = written(CrashAnswer::Stackwalk(report), 1_000);
        let shorter = shorter.unwrap();
        assert_eq!(shortened, 2);
        assert_eq!(shorter["threads"][0]["frame_count"], 0);
        let of_crashed = frames(&shorter["crashing_thread"]);
        assert!((1..50).contains(&of_crashed), "{of_crashed}");
        for thread in [&shorter["crashing_thread"], &shorter["threads"][1]] {
            assert_eq!(thread["frame_count"], of_crashed);
            assert_eq!(frames(thread), of_crashed);
        }
    }
}
