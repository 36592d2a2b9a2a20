//! Looks up frames in caches.
//!
//! A frame in inlined functions becomes several frames. The innermost function comes first; the
//! function that was really called comes last, and is the only one with the address of its start. A
//! frame that cannot be looked up is returned as it was sent.

use std::sync::Arc;

use foldhash::HashMap;
use symbolic::common::split_path;
use symbolic::ppdb::PortablePdbCache;
use symbolic::symcache::{File, SourceLocation};

use super::demangle::{KnownNames, Names};
use super::{LookupCache, ModuleOutcome, Plan, Stats, outcome};
use crate::api::symbolicator::{CompletedFrame, Frame, FrameStatus, FrameTrust, Module, Request};
use crate::debuginfo::SymCaches;
use crate::domain::{Language, interrupts_its_caller, is_trampoline, link_target};
use crate::symbolicate::address::{Address, Callee, Position, exact, situation};
use crate::symbolicate::text::{escaped_bytes, shown};

/// The most frames that one frame becomes. Compilers inline some dozen functions deep.
const LONGEST_CHAIN: usize = 256;

/// The most functions of a longer chain that are passed over to find the one that was really
/// called. A chain without an end is a cycle. The size of an answer limits how many chains are so
/// long.
const MAX_PASSED_OVER: usize = 1 << 14;

/// The fewest bytes of JSON of a frame in a response, without its texts.
const FIXED_BYTES: usize = 60;

/// Looks up the frames of a request in the caches that were found for it.
#[derive(Debug)]
pub(super) struct FrameLookup<'a> {
    request: &'a Request,
    plan: &'a Plan,
    outcomes: &'a [ModuleOutcome<'a>],
    names: Names<'a>,
    paths: Paths,
    pub(super) stats: Stats,
}

impl<'a> FrameLookup<'a> {
    pub(super) fn new(
        request: &'a Request,
        plan: &'a Plan,
        outcomes: &'a [ModuleOutcome<'a>],
        names: KnownNames<'a>,
    ) -> Self {
        Self {
            request,
            plan,
            outcomes,
            names: Names::new(names),
            paths: Paths::default(),
            stats: Stats::default(),
        }
    }

    pub(super) fn request(&self) -> &'a Request {
        self.request
    }

    pub(super) fn into_parts(self) -> (Stats, KnownNames<'a>) {
        (self.stats, self.names.into_known())
    }

    /// Looks up a frame, and adds the resulting frames, at least one, to `frames`. Returns what it
    /// is to the next one, that of the caller.
    pub(super) fn complete(
        &mut self,
        frame: &'a Frame,
        position: &Position<'_>,
        frames: &mut Vec<CompletedFrame>,
    ) -> Callee {
        let index = self.plan.space.module_of(frame);
        let module = index.and_then(|index| {
            self.request
                .modules
                .get(index)
                .map(|module| (index, module))
        });
        let before = frames.len();
        if self.stats.is_too_large() {
            return Callee::default();
        }
        let found = match module {
            None => Err(FrameStatus::UnknownImage),
            Some((index, module)) => self.look_up(frame, index, module, position, frames),
        };
        let status = match found {
            Ok(()) => FrameStatus::Symbolicated,
            Err(status) => {
                let mut failed = frame.clone();
                if let Some((_, module)) = module {
                    failed.package.clone_from(&module.code_file);
                }
                self.names.complete(frame, &mut failed);
                let bytes = bytes_in_answer(&failed);
                let failed = CompletedFrame {
                    status,
                    original_index: Some(position.index),
                    frame: failed,
                };
                self.add(failed, bytes, frames);
                status
            }
        };
        self.stats.frames.count(status);
        self.stats.inlined += (frames.len() - before).saturating_sub(1);
        // The name may also be one that was sent.
        let outermost = frames[before..].last();
        match outermost.and_then(|found| found.frame.function.as_deref()) {
            Some(name) if interrupts_its_caller(name, frame.instruction_addr.0) => {
                Callee::Trampoline
            }
            Some(_) => Callee::Function,
            None => Callee::Nameless,
        }
    }

    /// Adds a frame that will have this many bytes in the response.
    fn add(&mut self, frame: CompletedFrame, bytes: usize, frames: &mut Vec<CompletedFrame>) {
        self.stats.answer_bytes += bytes;
        frames.push(frame);
    }

    fn look_up(
        &mut self,
        frame: &Frame,
        index: usize,
        module: &Module,
        position: &Position<'_>,
        frames: &mut Vec<CompletedFrame>,
    ) -> Result<(), FrameStatus> {
        let outcome = self
            .plan
            .planned_for(index)
            .and_then(|planned| self.outcomes.get(planned.index()));
        match outcome {
            None | Some(ModuleOutcome::Failed { .. }) => Err(FrameStatus::Missing),
            Some(ModuleOutcome::Missing { missing, .. }) => {
                Err(outcome::frame_status(missing.cause))
            }
            Some(ModuleOutcome::Found {
                cache: LookupCache::Ppdb(cache),
                ..
            }) => {
                let frame = in_method(frame, module, cache).ok_or(FrameStatus::MissingSymbol)?;
                let bytes = bytes_in_answer(&frame);
                let found = CompletedFrame {
                    status: FrameStatus::Symbolicated,
                    original_index: Some(position.index),
                    frame,
                };
                self.add(found, bytes, frames);
                Ok(())
            }
            Some(ModuleOutcome::Found {
                cache: LookupCache::Sym(cache),
                ..
            }) => {
                let situation = situation(self.request, frame, position);
                let arch = cache.arch();
                let exact = exact(&situation, frame);
                let exact = exact.and_then(|at| Address::of(frame, index, module, arch, &at));
                let before = Address::of(frame, index, module, arch, &situation);
                // A nameless function may be one that a signal handler returns to.
                let may_be_interrupted = || {
                    let was_scanned = matches!(frame.trust, FrameTrust::Scan | FrameTrust::CfiScan);
                    let is_call = before.is_some_and(|at| is_in_function(cache, at.relative));
                    position.callee == Callee::Nameless && !was_scanned && !is_call
                };
                let address = exact
                    .filter(|Address { relative, .. }| {
                        begins_trampoline(cache, *relative)
                            || may_be_interrupted() && begins_function(cache, *relative)
                    })
                    .or(before)
                    .ok_or(FrameStatus::MissingSymbol)?;
                self.add_chain(frame, module, &address, cache, position.index, frames)
            }
        }
    }

    /// Adds the functions that cover an address, the innermost first. Of too many, those in the
    /// middle are left out.
    fn add_chain(
        &mut self,
        frame: &Frame,
        module: &Module,
        address: &Address,
        cache: &'a SymCaches<'a>,
        original_index: usize,
        frames: &mut Vec<CompletedFrame>,
    ) -> Result<(), FrameStatus> {
        let mut chain = cache.lookup(address.relative).peekable();
        chain.peek().ok_or(FrameStatus::MissingSymbol)?;
        let package = module.code_file.as_deref();
        let package_bytes = package.map_or(0, escaped_bytes);
        let mut length = 0;
        while length < LONGEST_CHAIN
            && !self.stats.is_too_large()
            && let Some(mut location) = chain.next()
        {
            length += 1;
            if length == LONGEST_CHAIN
                && let Some(outermost) = chain.by_ref().take(MAX_PASSED_OVER).last()
            {
                location = outermost;
                self.stats.truncated += 1;
            }
            let (mut located, bytes) = self.at(&location, frame);
            located.package.clone_from(&module.code_file);
            located.addr_mode = address.mode;
            located.instruction_addr = address
                .shown(address.relative)
                .unwrap_or(frame.instruction_addr);
            if chain.peek().is_none() {
                located.sym_addr = entry_point(&location).and_then(|entry| address.shown(entry));
            }
            let found = CompletedFrame {
                status: FrameStatus::Symbolicated,
                original_index: Some(original_index),
                frame: located,
            };
            self.add(found, FIXED_BYTES + package_bytes + bytes, frames);
        }
        Ok(())
    }

    /// Returns the frame of one function, and the bytes of JSON of its texts. Fields that the cache
    /// does not determine are those that were sent.
    fn at(&mut self, location: &SourceLocation<'a, '_>, frame: &Frame) -> (Frame, usize) {
        let function = location.function();
        let file = location.file();
        let path = file.as_ref().map(File::full_path);
        let file = match (file, path.filter(|path| !path.is_empty())) {
            (Some(file), Some(path)) => self.paths.shared(&path, &file),
            _ => FileName::new(frame.filename.clone(), frame.abs_path.clone()),
        };
        // If the debug information has no name, a name that was sent belongs to another function.
        let is_named = !function.name().is_empty();
        let name = is_named.then(|| self.names.of(function.name(), function.language()));
        let bytes = file.answer_bytes + name.map_or(0, |name| name.answer_bytes);
        let located = Frame {
            platform: frame.platform.clone(),
            adjust_instruction_addr: frame.adjust_instruction_addr,
            function_id: frame.function_id,
            lang: known(function.language()),
            symbol: name.map(|name| Arc::clone(&name.symbol)),
            function: name.map(|name| Arc::clone(&name.function)),
            filename: file.filename,
            abs_path: file.abs_path,
            lineno: Some(location.line()),
            source_link: file.link.as_deref().map(str::to_owned),
            trust: frame.trust,
            ..Frame::default()
        };
        (located, bytes)
    }
}

/// The name of a source file, as it is shown.
#[derive(Clone, Debug)]
struct FileName {
    filename: Option<Arc<str>>,
    abs_path: Option<Arc<str>>,
    /// Where the file can be downloaded, if the debug information says so.
    link: Option<Arc<str>>,
    /// The bytes of all as JSON in a response.
    answer_bytes: usize,
}

impl FileName {
    fn new(filename: Option<Arc<str>>, abs_path: Option<Arc<str>>) -> Self {
        let texts = [&filename, &abs_path].into_iter().flatten();
        Self {
            answer_bytes: texts.map(|text| escaped_bytes(text)).sum(),
            filename,
            abs_path,
            link: None,
        }
    }

    /// Adds the path of the file on its source server, if it is an address.
    fn linked_to(mut self, on_server: Option<String>) -> Self {
        if let Some(link) = on_server.filter(|link| link_target(link).is_some()) {
            self.answer_bytes += escaped_bytes(&link);
            self.link = Some(link.into());
        }
        self
    }
}

/// The names of a request's files by their paths, each stored once.
#[derive(Debug, Default)]
struct Paths(HashMap<Arc<str>, FileName>);

impl Paths {
    /// Returns the name of a file with this path.
    fn shared(&mut self, path: &str, file: &File<'_>) -> FileName {
        if let Some(known) = self.0.get(path) {
            return known.clone();
        }
        let abs_path: Arc<str> = shown(path).into();
        let filename = shown(split_path(path).1).into();
        let name = FileName::new(Some(filename), Some(Arc::clone(&abs_path)));
        let name = name.linked_to(file.full_srcsrv_path());
        self.0.insert(abs_path, name.clone());
        name
    }
}

/// Returns the bytes of JSON of a frame in a response, or a lower bound of them.
fn bytes_in_answer(frame: &Frame) -> usize {
    let texts = [
        &frame.package,
        &frame.symbol,
        &frame.function,
        &frame.filename,
        &frame.abs_path,
    ];
    let texts = texts.into_iter().flatten();
    FIXED_BYTES + texts.map(|text| escaped_bytes(text)).sum::<usize>()
}

/// Returns the start of the function of a location; `None` if the cache has only part of the
/// function.
fn entry_point(location: &SourceLocation<'_, '_>) -> Option<u64> {
    let entry = location.function().entry_pc();
    (entry != u32::MAX).then_some(u64::from(entry))
}

/// Returns whether a trampoline begins at an address.
fn begins_trampoline(cache: &SymCaches<'_>, address: u64) -> bool {
    let location = cache.lookup(address).next();
    location.is_some_and(|location| {
        entry_point(&location) == Some(address) && is_trampoline(location.function().name())
    })
}

fn is_in_function(cache: &SymCaches<'_>, address: u64) -> bool {
    cache.lookup(address).next().is_some()
}

/// Returns whether a function begins at an address, also with inlined calls.
fn begins_function(cache: &SymCaches<'_>, address: u64) -> bool {
    let called = cache.lookup(address).take(LONGEST_CHAIN).last();
    called.is_some_and(|called| entry_point(&called) == Some(address))
}

/// Returns the frame of a .NET method: the frame that was sent, with the line.
fn in_method(frame: &Frame, module: &Module, cache: &PortablePdbCache<'_>) -> Option<Frame> {
    let row = u32::try_from(frame.function_id?.0).ok()?;
    let offset = u32::try_from(frame.instruction_addr.0).ok()?;
    let line = cache.lookup(row, offset)?;
    Some(Frame {
        package: module.code_file.clone(),
        lang: known(line.file_lang),
        filename: Some(split_path(line.file_name).1.into()),
        abs_path: Some(line.file_name.into()),
        lineno: Some(line.line),
        ..frame.clone()
    })
}

fn known(language: Language) -> Option<Language> {
    (language != Language::Unknown).then_some(language)
}
