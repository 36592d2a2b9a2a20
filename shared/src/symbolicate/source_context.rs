//! Source context: the source lines around the line of a frame.
//!
//! A frame gets its line, up to [`CONTEXT_LINES`] lines before it, and as many after it. This
//! applies to all frames with a path and a line that lie in a module, also to those that the client
//! symbolicated itself.
//!
//! Context is an addition: when the response would exceed its limit, the remaining frames get none.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::candidates::add_candidate;
use super::text::escaped_bytes;
use super::{Plan, PlannedCacheId, Stats};
use crate::api::limits;
use crate::api::symbolicator::{
    CandidateReport, Completed, CompletedFrame, DownloadStatus, Frame, FrameOrder, FrameStatus,
};
use crate::debuginfo::FoundLines;
use crate::domain::{Candidate, Features, Kind};

/// The number of lines before and after the line of a frame.
pub const CONTEXT_LINES: u32 = 5;

/// The bytes of JSON of a line in a response, without its text.
const LINE_BYTES: usize = 3;

/// The bytes of JSON of the names of the fields.
const FIELD_BYTES: usize = 60;

/// A line of a source file that frames refer to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WantedLine {
    /// The cache of the module whose source file it is.
    pub planned: PlannedCacheId,
    /// The path of the file.
    pub path: Arc<str>,
    /// The number of the line, from one.
    pub line: u32,
}

/// What a lookup found out about the sources of the modules that a cache of a plan serves.
#[derive(Clone, Copy, Debug)]
pub struct SourceCodeOutcome<'a> {
    /// The cache.
    pub planned: PlannedCacheId,
    /// The features of the objects that have sources, if there are any.
    pub features: Option<&'a Features>,
    /// What was left out of the sources. Text for a user.
    pub lacks: Option<&'a str>,
    /// The DIFs that were considered, if the response lists them.
    pub candidates: &'a [Candidate],
}

impl WantedLine {
    /// Returns the wanted line of a frame; `None` if it is unknown, or the frame lies in no module.
    fn of(frame: &Frame, plan: &Plan) -> Option<Self> {
        let planned = plan.planned_for(plan.space.module_of(frame)?)?;
        Some(Self {
            planned,
            path: frame.abs_path.clone()?,
            line: frame.lineno.filter(|line| *line > 0)?,
        })
    }

    /// Returns the numbers of the line and of the lines around it.
    pub fn context(&self) -> RangeInclusive<u32> {
        let first = self.line.saturating_sub(CONTEXT_LINES).max(1);
        first..=self.line.saturating_add(CONTEXT_LINES)
    }
}

/// Returns the lines that the frames of a response refer to, each once. `plan` must be that of the
/// response.
pub fn wanted_lines(completed: &Completed, plan: &Plan) -> BTreeSet<WantedLine> {
    let frames = completed.stacktraces.iter();
    let frames = frames.flat_map(|stacktrace| &stacktrace.frames);
    frames
        .filter_map(|frame| WantedLine::of(&frame.frame, plan))
        .collect()
}

/// Returns the links to source files that SymCaches have, by SymCache and path. Links that a client
/// sent are left out.
pub fn links_of_names(
    completed: &Completed,
    plan: &Plan,
) -> HashMap<(PlannedCacheId, Arc<str>), String> {
    let frames = completed.stacktraces.iter();
    let frames = frames.flat_map(|stacktrace| &stacktrace.frames);
    let link = |frame: &CompletedFrame| {
        let WantedLine { planned, path, .. } = WantedLine::of(&frame.frame, plan)?;
        let is_found = frame.status == FrameStatus::Symbolicated
            && plan.cache(planned)?.kind == Kind::SymCache;
        let link = frame.frame.source_link.clone().filter(|_| is_found)?;
        Some(((planned, path), link))
    };
    frames.filter_map(link).collect()
}

/// Returns the files that the frames of a response refer to, each once, with their caches: first
/// those of the threads that crashed, and of the topmost frames. `order` is that of the frames.
pub fn wanted_files(
    completed: &Completed,
    plan: &Plan,
    order: FrameOrder,
) -> Vec<(PlannedCacheId, Arc<str>)> {
    let mut importance: BTreeMap<(PlannedCacheId, Arc<str>), (bool, usize)> = BTreeMap::new();
    for stacktrace in &completed.stacktraces {
        let is_other = stacktrace.is_requesting != Some(true);
        let count = stacktrace.frames.len();
        for (at, frame) in stacktrace.frames.iter().enumerate() {
            let Some(WantedLine { planned, path, .. }) = WantedLine::of(&frame.frame, plan) else {
                continue;
            };
            let depth = match order {
                FrameOrder::CalleeFirst => at,
                FrameOrder::CallerFirst => count - at,
            };
            let known = importance.entry((planned, path));
            let known = known.or_insert((is_other, depth));
            *known = (is_other, depth).min(*known);
        }
    }
    let mut files: Vec<_> = importance.into_iter().collect();
    files.sort_by_key(|(_, importance)| *importance);
    files.into_iter().map(|(file, _)| file).collect()
}

/// Adds the source lines that were found to the frames of a response.
pub fn add_source_context(
    completed: &mut Completed,
    plan: &Plan,
    found: &HashMap<WantedLine, FoundLines>,
    stats: &mut Stats,
) {
    let stacktraces = completed.stacktraces.iter_mut();
    for frame in stacktraces.flat_map(|stacktrace| &mut stacktrace.frames) {
        let frame = &mut frame.frame;
        let Some(wanted) = WantedLine::of(frame, plan) else {
            continue;
        };
        let Some(found) = found.get(&wanted) else {
            continue;
        };
        let bytes = bytes_in_answer(found);
        if stats.answer_bytes + bytes > limits::ANSWER_BYTES {
            return;
        }
        stats.answer_bytes += bytes;
        add_lines(frame, wanted.line, found);
    }
}

fn add_lines(frame: &mut Frame, line: u32, found: &FoundLines) {
    if let Some(link) = &found.link {
        frame.source_link = Some(link.clone());
    }
    let at = |numbers: &dyn Fn(u32) -> bool| -> Vec<String> {
        let lines = found.lines.iter().filter(|(number, _)| numbers(*number));
        lines.map(|(_, text)| text.clone()).collect()
    };
    // A line beyond the end of the file belongs to another version of the file.
    if let Some(text) = at(&|number| number == line).pop() {
        frame.context_line = Some(text);
        frame.pre_context = at(&|number| number < line);
        frame.post_context = at(&|number| number > line);
    }
}

/// Returns the bytes of JSON that lines take in a response.
fn bytes_in_answer(found: &FoundLines) -> usize {
    let lines = found.lines.iter().map(|(_, text)| text);
    let lines = lines.map(|text| escaped_bytes(text) + LINE_BYTES);
    let link = found.link.as_deref().map_or(0, escaped_bytes);
    FIELD_BYTES + link + lines.sum::<usize>()
}

/// Adds to the modules of a response what is known about their sources: features, candidates, and
/// what was left out.
pub fn add_source_code(completed: &mut Completed, plan: &Plan, sources: &[SourceCodeOutcome<'_>]) {
    for outcome in sources {
        let cache = plan.cache(outcome.planned);
        for module in cache.map_or(&[][..], |cache| &cache.modules) {
            let Some(module) = completed.modules.get_mut(*module) else {
                continue;
            };
            if let Some(features) = outcome.features {
                module.features.merge(features);
            }
            if module.debug_detail.is_none() {
                module.debug_detail = outcome.lacks.map(str::to_owned);
            }
            for candidate in outcome.candidates.iter().map(CandidateReport::from) {
                add_candidate(&mut module.candidates, candidate, merge_features);
            }
        }
    }
}

/// Merges the features of a candidate with those that are known of it.
fn merge_features(known: &mut CandidateReport, candidate: CandidateReport) {
    match (&mut known.download, candidate.download) {
        (DownloadStatus::Ok { features: known }, DownloadStatus::Ok { features }) => {
            known.merge(&features);
        }
        (known, found @ DownloadStatus::Ok { .. }) => *known = found,
        (_, _) => {}
    }
}
