//! Mozilla's symbolication API, version 5 (`POST /symbolicate/v5`): the Firefox Profiler and
//! scripts send modules and offsets in them, and receive functions, files and lines.
//!
//! A body is `{"jobs": [JOB, …]}` or a single job. A job has modules (`memoryMap`), and stacks of
//! frames, each with the index of its module, or -1, and the offset in it. All jobs become one
//! [`Request`], so that they are looked up together. Offsets are looked up as they are: the clients
//! have adjusted return addresses.
//!
//! What a body must fulfil, and the texts of errors, are those of Eliot, Mozilla's server, except
//! for these:
//!
//! - the name of a module may have any characters but control characters and slashes: the Profiler
//!   sends ten modules at a time, and one like `[vdso]` would cost all of them their names;
//! - what is an internal error of Eliot, such as `jobs` without a list, is an error of the client;
//! - [`JobFrame::module`] is the name that was sent, not that of the program of a PDB;
//! - a module that failed is also in [`JobResult::module_errors`], as in samply's implementation.
//!
//! ```
//! use symdepot::api::mozilla::parse_jobs;
//! use symdepot::api::symbolicator::AddrMode;
//!
//! let jobs = parse_jobs(br#"{
//!     "memoryMap": [["app.pdb", "C7D4C24F1FB854084C4C44205044422E1"]],
//!     "stacks": [[[0, 4096]]]
//! }"#)?;
//! assert_eq!(jobs.request().stacktraces[0].frames[0].addr_mode, AddrMode::Rel(0));
//! # Ok::<(), symdepot::api::mozilla::JobsError>(())
//! ```

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use thiserror::Error;

use super::limits;
use super::symbolicator::{
    AddrMode, Completed, CompletedFrame, CompletedStacktrace, Frame, FrameStatus, Hex, JsonObject,
    Module, ModuleStatus, Options, Request, RequestError, Stacktrace, without_byte_order_mark,
};
use crate::domain::ObjectType;

/// The web pages that may read answers. The local stack lets anyone enter who reaches it, as every
/// page that a browser on the same machine shows does. So the only one is that of the Profiler.
const PAGES: [&str; 1] = ["https://profiler.firefox.com"];

/// The origins of web pages on this machine, without their ports: a Profiler that its developer
/// runs. A program that serves such pages could ask without a browser; files that it only passes on
/// could not (`docs/security.md`, "The local stack").
const LOCAL_PAGES: [&str; 2] = ["http://localhost", "http://127.0.0.1"];

/// What a frame with the index -1 is relative to: a module that no request has.
const NO_MODULE: AddrMode = AddrMode::Rel(usize::MAX);

/// The offset -1, at which no module has a function.
const NO_OFFSET: Hex = Hex(u64::MAX);

/// The name of the module of a frame without one.
const UNKNOWN_MODULE: &str = "<unknown>";

/// Why a module failed, if there is no advice about it.
const NO_DETAIL: &str = "no debug information was found";

/// Returns whether the web page of this origin may read answers.
pub fn is_allowed_page(origin: &str) -> bool {
    let is_local = |page: &str| {
        let rest = origin.strip_prefix(page);
        rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port))
    };
    PAGES.contains(&origin) || LOCAL_PAGES.into_iter().any(is_local)
}

fn is_port(text: &str) -> bool {
    // `parse` accepts a plus sign, which is not a digit.
    !text.starts_with('+') && text.parse::<u16>().is_ok()
}

/// The jobs of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct SymbolicationJobs {
    request: Request,
    /// The debug id of each module of the request, as it was sent.
    ids: Vec<String>,
    /// The number of frames.
    frames: usize,
    jobs: Vec<PartsOfJob>,
}

/// What of the request belongs to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PartsOfJob {
    modules: Range<usize>,
    stacks: Range<usize>,
}

/// Why jobs are refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JobsError {
    /// The body is not JSON.
    #[error("Payload is not valid JSON")]
    Syntax,
    /// The jobs are not in a list.
    #[error("jobs must be a list")]
    NoList,
    /// There are too many jobs.
    #[error(
        "please limit number of jobs in a single request to <= {}",
        limits::JOBS
    )]
    TooMany,
    /// A job is not valid.
    #[error("job {job} {problem}")]
    Job {
        /// Its index.
        job: usize,
        /// What is wrong with it. It does not quote the request.
        problem: String,
    },
    /// The jobs exceed a limit of all requests.
    #[error(transparent)]
    TooLarge(#[from] RequestError),
}

/// The body of an error response of this protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct TitledError {
    /// The problem.
    pub title: String,
}

/// The answer to jobs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct JobResults<'a> {
    /// The results, in the order of the jobs.
    pub results: Vec<JobResult<'a>>,
}

/// The result of a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct JobResult<'a> {
    /// The frames of each stack, as many as were sent.
    pub stacks: Vec<Vec<JobFrame<'a>>>,
    /// Whether debug information was found, by name and debug id of the module, separated by a
    /// slash; `null` if no frame lies in it.
    pub found_modules: BTreeMap<String, Option<bool>>,
    /// Why there is none for a module, by the same key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub module_errors: BTreeMap<String, Vec<FailedModule<'a>>>,
}

/// A frame of an answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct JobFrame<'a> {
    /// The index in its stack.
    pub frame: usize,
    /// The name of the module, as it was sent; `<unknown>` without one.
    pub module: &'a str,
    /// The offset that was sent, in hexadecimal digits.
    pub module_offset: String,
    /// The function that was really called, and the line in it.
    #[serde(flatten)]
    pub function: FunctionInFile<'a>,
    /// The offset from the start of the function, in hexadecimal digits; zero if the start is not
    /// known, because the Profiler shows no function without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function_offset: Option<String>,
    /// The functions that are inlined at the offset, the innermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inlines: Vec<FunctionInFile<'a>>,
}

/// A function, and the place in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct FunctionInFile<'a> {
    /// The name of the function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<&'a str>,
    /// The path of the source file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<&'a str>,
    /// The line in the source file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// Why a module has no debug information.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct FailedModule<'a> {
    /// The status.
    pub name: ModuleStatus,
    /// The reason and the next step, for people.
    pub message: &'a str,
}

/// The fields of a body with several jobs. Values are kept as texts: what they have to be is
/// checked one by one, and a list of them takes 16 bytes per value.
#[derive(Deserialize)]
struct SeveralJobs<'a> {
    #[serde(borrow, default)]
    jobs: Option<&'a RawValue>,
}

/// The fields of a job.
#[derive(Deserialize)]
struct SentJob<'a> {
    #[serde(borrow, default, rename = "memoryMap")]
    memory_map: Option<&'a RawValue>,
    #[serde(borrow, default)]
    stacks: Option<&'a RawValue>,
}

/// Parses a body.
///
/// The caller must limit the length of the body to [`limits::BODY_BYTES`].
///
/// # Errors
///
/// The jobs are not valid, or exceed [`limits`].
pub fn parse_jobs(body: &[u8]) -> Result<SymbolicationJobs, JobsError> {
    let body = without_byte_order_mark(body);
    let body: &RawValue = serde_json::from_slice(body).map_err(|_| JobsError::Syntax)?;
    let several = fields::<SeveralJobs<'_>>(body).and_then(|several| several.jobs);
    let sent = match several {
        Some(jobs) => list(jobs).ok_or(JobsError::NoList)?,
        None => vec![body],
    };
    if sent.len() > limits::JOBS {
        return Err(JobsError::TooMany);
    }
    let options = Options {
        apply_source_context: false,
        ..Options::default()
    };
    let mut jobs = SymbolicationJobs {
        request: Request {
            options,
            ..Request::default()
        },
        ids: Vec::new(),
        frames: 0,
        jobs: Vec::new(),
    };
    for job in sent {
        jobs.add(job)?;
    }
    Ok(jobs)
}

impl JobsError {
    fn invalid(job: usize, what: &str, problem: &str) -> Self {
        let problem = format!("has invalid {what}: {problem}");
        Self::Job { job, problem }
    }
}

impl SymbolicationJobs {
    /// Returns the request that looks all jobs up.
    pub fn request(&self) -> &Request {
        &self.request
    }

    fn add(&mut self, json: &RawValue) -> Result<(), JobsError> {
        let job = self.jobs.len();
        let invalid = |problem: &str| {
            let problem = problem.to_owned();
            JobsError::Job { job, problem }
        };
        let sent: SentJob<'_> = fields(json).ok_or_else(|| invalid("is invalid"))?;
        let stacks = sent.stacks;
        let stacks = stacks.ok_or_else(|| invalid("is invalid: no stacks specified"))?;
        let modules = sent.memory_map;
        let modules = modules.ok_or_else(|| invalid("is invalid: no memoryMap specified"))?;
        let (first_module, first_stack) =
            (self.request.modules.len(), self.request.stacktraces.len());
        self.add_modules(job, modules)?;
        let modules = first_module..self.request.modules.len();
        self.add_stacks(job, stacks, &modules)?;
        let stacks = first_stack..self.request.stacktraces.len();
        self.jobs.push(PartsOfJob { modules, stacks });
        Ok(())
    }

    fn add_modules(&mut self, job: usize, json: &RawValue) -> Result<(), JobsError> {
        let invalid = |problem: &str| JobsError::invalid(job, "modules", problem);
        let sent = list(json).ok_or_else(|| invalid("modules must be a list"))?;
        let count = self.request.modules.len() + sent.len();
        check_limit("modules", count, limits::MODULES)?;
        for (index, module) in sent.into_iter().enumerate() {
            let invalid = |problem: &str| invalid(&format!("module index {index} {problem}"));
            let [name, id] = pair(module)
                .ok_or_else(|| invalid("does not have a debug_filename and debug_id"))?;
            let name = text(name).filter(|name| is_file_name(name));
            let name = name.ok_or_else(|| invalid("has an invalid debug_filename"))?;
            let id = text(id).filter(|id| id.bytes().all(|digit| digit.is_ascii_hexdigit()));
            let id = id.ok_or_else(|| invalid("has an invalid debug_id"))?;
            self.request.modules.push(module_of(name, &id));
            self.ids.push(id);
        }
        Ok(())
    }

    fn add_stacks(
        &mut self,
        job: usize,
        json: &RawValue,
        modules: &Range<usize>,
    ) -> Result<(), JobsError> {
        let invalid = |problem: &str| JobsError::invalid(job, "stacks", problem);
        let sent = list(json).ok_or_else(|| invalid("stacks must be a list of lists"))?;
        if sent.is_empty() {
            return Err(invalid("no stacks specified"));
        }
        let count = self.request.stacktraces.len() + sent.len();
        check_limit("stack traces", count, limits::STACKTRACES)?;
        for (number, stack) in sent.into_iter().enumerate() {
            let stack =
                list(stack).ok_or_else(|| invalid(&format!("stack {number} is not a list")))?;
            self.frames += stack.len();
            check_limit("frames", self.frames, limits::FRAMES)?;
            let frames = stack.into_iter().enumerate().map(|(at, frame)| {
                let frame = frame_of(frame, modules);
                frame.map_err(|problem| invalid(&format!("stack {number} frame {at} {problem}")))
            });
            self.request.stacktraces.push(Stacktrace {
                frames: frames.collect::<Result<_, _>>()?,
                ..Stacktrace::default()
            });
        }
        Ok(())
    }

    /// Returns the answer, given the response to the request.
    pub fn results<'a>(&'a self, completed: &'a Completed) -> JobResults<'a> {
        let results = self.jobs.iter().map(|job| self.result(job, completed));
        JobResults {
            results: results.collect(),
        }
    }

    fn result<'a>(&'a self, job: &PartsOfJob, completed: &'a Completed) -> JobResult<'a> {
        let stacks = self.request.stacktraces.iter().zip(&completed.stacktraces);
        let stacks = stacks.skip(job.stacks.start).take(job.stacks.len());
        let stacks = stacks.map(|(sent, completed)| self.stack(sent, completed));
        let mut result = JobResult {
            stacks: stacks.collect(),
            found_modules: BTreeMap::new(),
            module_errors: BTreeMap::new(),
        };
        let modules = self.ids.iter().zip(&completed.modules);
        for (id, completed) in modules.skip(job.modules.start).take(job.modules.len()) {
            let name = completed.module.debug_file.as_deref();
            let key = format!("{}/{id}", name.unwrap_or_default());
            let is_found = match completed.debug_status {
                ModuleStatus::Unused => None,
                status => Some(status == ModuleStatus::Found),
            };
            if is_found == Some(false) {
                let message = completed.debug_detail.as_deref().unwrap_or(NO_DETAIL);
                let failed = FailedModule {
                    name: completed.debug_status,
                    message,
                };
                result.module_errors.insert(key.clone(), vec![failed]);
            }
            // A module may be listed twice, and used once.
            let found = result.found_modules.entry(key).or_default();
            *found = is_found.or(*found);
        }
        result
    }

    /// Returns a frame for each that was sent.
    fn stack<'a>(
        &'a self,
        sent: &'a Stacktrace,
        completed: &'a CompletedStacktrace,
    ) -> Vec<JobFrame<'a>> {
        // A function and those that are inlined into it, by the index of their frame.
        let mut chains: Vec<&[CompletedFrame]> = vec![&[]; sent.frames.len()];
        let by_index =
            |one: &CompletedFrame, next: &CompletedFrame| one.original_index == next.original_index;
        for chain in completed.frames.chunk_by(by_index) {
            let index = chain.first().and_then(|frame| frame.original_index);
            if let Some(of_frame) = index.and_then(|index| chains.get_mut(index)) {
                *of_frame = chain;
            }
        }
        let frames = sent.frames.iter().zip(chains).enumerate();
        let frames = frames.map(|(index, (sent, chain))| self.frame(index, sent, chain));
        frames.collect()
    }

    fn frame<'a>(
        &'a self,
        index: usize,
        sent: &'a Frame,
        chain: &'a [CompletedFrame],
    ) -> JobFrame<'a> {
        let module = match sent.addr_mode {
            AddrMode::Rel(module) => self.request.modules.get(module),
            AddrMode::Abs => None,
        };
        let module = module.and_then(|module| module.debug_file.as_deref());
        let offset = sent.instruction_addr;
        let is_found = |frame: &&CompletedFrame| frame.status == FrameStatus::Symbolicated;
        let called = chain.last().filter(is_found);
        let function = called.map(|called| FunctionInFile::of(&called.frame));
        let function = function.unwrap_or_default();
        let start = called.and_then(|called| called.frame.sym_addr);
        let from_start = start.and_then(|start| offset.0.checked_sub(start.0));
        let from_start = from_start.unwrap_or_default();
        let inlined = chain.iter().take(chain.len().saturating_sub(1));
        JobFrame {
            frame: index,
            module: module
                .filter(|name| !name.is_empty())
                .unwrap_or(UNKNOWN_MODULE),
            module_offset: match offset {
                NO_OFFSET => "-0x1".to_owned(),
                Hex(offset) => format!("{offset:#x}"),
            },
            function,
            function_offset: function.function.map(|_| format!("{from_start:#x}")),
            inlines: inlined
                .map(|inlined| FunctionInFile::of(&inlined.frame))
                .collect(),
        }
    }
}

impl<'a> FunctionInFile<'a> {
    fn of(frame: &'a Frame) -> Self {
        let file = frame.abs_path.as_deref().or(frame.filename.as_deref());
        let file = file.filter(|file| !file.is_empty());
        Self {
            function: frame.function.as_deref(),
            file,
            // A line without a file means nothing.
            line: file.and(frame.lineno).filter(|line| *line != 0),
        }
    }
}

/// Compresses an answer for its way to the client.
///
/// # Errors
///
/// There are none while the memory suffices.
pub fn gzip(body: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(body)?;
    encoder.finish()
}

/// Returns the module with this name and debug id. Of a module of unknown type, every type of file
/// is searched; the name of a PDB says which.
fn module_of(name: String, id: &str) -> Module {
    let extension = Path::new(&name).extension();
    let is_pdb = extension.is_some_and(|extension| extension.eq_ignore_ascii_case("pdb"));
    let object_type = if is_pdb {
        ObjectType::Pe
    } else {
        ObjectType::Unknown
    };
    Module {
        object_type,
        debug_id: id.parse().ok(),
        debug_file: Some(name),
        ..Module::default()
    }
}

/// Returns the frame at an index of `modules` and an offset; otherwise what is wrong with it.
fn frame_of(json: &RawValue, modules: &Range<usize>) -> Result<Frame, &'static str> {
    let [index, offset] = pair(json).ok_or("is not a list of two items")?;
    let index = integer(index).ok_or("has an invalid module_index")?;
    let addr_mode = match usize::try_from(index) {
        Ok(index) if index < modules.len() => AddrMode::Rel(modules.start + index),
        Err(_) if index == -1 => NO_MODULE,
        _ => return Err("has a module_index that isn't in modules"),
    };
    let offset = integer(offset).filter(|offset| *offset >= -1);
    let offset = offset.ok_or("has an invalid module_offset")?;
    Ok(Frame {
        addr_mode,
        instruction_addr: u64::try_from(offset).map_or(NO_OFFSET, Hex),
        adjust_instruction_addr: Some(false),
        ..Frame::default()
    })
}

fn check_limit(what: &'static str, count: usize, limit: usize) -> Result<(), RequestError> {
    if count > limit {
        return Err(RequestError::TooLarge { what, limit });
    }
    Ok(())
}

fn is_file_name(name: &str) -> bool {
    let mut characters = name.chars();
    !characters.any(|one| one.is_control() || matches!(one, '/' | '\\'))
}

/// Reads the fields of an object.
fn fields<'a, T: Deserialize<'a>>(json: &'a RawValue) -> Option<T> {
    let object: JsonObject<T> = serde_json::from_str(json.get()).ok()?;
    Some(object.0)
}

fn list(json: &RawValue) -> Option<Vec<&RawValue>> {
    serde_json::from_str(json.get()).ok()
}

/// Reads a list of two.
fn pair(json: &RawValue) -> Option<[&RawValue; 2]> {
    serde_json::from_str(json.get()).ok()
}

fn text(json: &RawValue) -> Option<String> {
    serde_json::from_str(json.get()).ok()
}

fn integer(json: &RawValue) -> Option<i64> {
    serde_json::from_str(json.get()).ok()
}

#[cfg(test)]
mod tests;
