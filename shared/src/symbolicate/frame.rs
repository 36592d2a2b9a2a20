//! What frames the lookup of a frame makes.
//!
//! A frame that lies in inlined functions becomes several: the innermost comes first, the function that really was
//! called comes last, and alone says where it begins. A frame that cannot be looked up stays as it was.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::HashMap;
use symbolic::common::split_path;
use symbolic::ppdb::PortablePdbCache;
use symbolic::symcache::SourceLocation;

use super::adjust::{Adjustment, Situation, adjust};
use super::demangle::{KnownNames, Names};
use super::{LookupCache, ModuleOutcome, Plan, Stats, outcome, stacktrace};
use crate::api::symbolicator::{
    AddrMode, CompletedFrame, Frame, FrameStatus, Hex, Module, Request,
};
use crate::debuginfo::SymCaches;
use crate::domain::{Arch, Language};

/// The most frames that one frame becomes. Compilers inline some dozen functions deep; a chain that is longer goes in
/// a circle.
const LONGEST_CHAIN: usize = 256;

/// The longest name or path that is shown whole, in bytes.
const LONGEST_SHOWN: usize = 16 * 1024;

/// The least that a frame has in an answer beside its texts, in bytes of JSON.
const FIXED_BYTES: usize = 60;

/// Looks up the frames of a request, in the caches that were found for it.
#[derive(Debug)]
pub(super) struct FrameLookup<'a> {
    request: &'a Request,
    plan: &'a Plan,
    outcomes: &'a [ModuleOutcome<'a>],
    names: Names<'a>,
    paths: Paths,
    pub(super) stats: Stats,
}

/// Where a frame is in its stack trace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position<'a> {
    /// Its place, counted from the callee.
    pub(super) index: usize,
    pub(super) default_adjustment: Adjustment,
    pub(super) registers: &'a BTreeMap<String, Hex>,
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

    /// Looks up a frame, and adds what it becomes to `frames`: one at least.
    pub(super) fn complete(
        &mut self,
        frame: &'a Frame,
        position: &Position<'_>,
        frames: &mut Vec<CompletedFrame>,
    ) {
        let index = self.plan.space.module_of(frame);
        let module = index.and_then(|index| {
            self.request
                .modules
                .get(index)
                .map(|module| (index, module))
        });
        let before = frames.len();
        if self.stats.is_too_large() {
            return;
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
    }

    /// Adds a frame that will have so many bytes in the answer.
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
            .place_of(index)
            .and_then(|place| self.outcomes.get(place));
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
                let address = Address::of(frame, index, module, cache.arch(), &situation)
                    .ok_or(FrameStatus::MissingSymbol)?;
                self.add_chain(frame, module, &address, cache, position.index, frames)
            }
        }
    }

    /// Adds the functions that cover an address, the innermost first.
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
            && let Some(location) = chain.next()
        {
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
            length += 1;
        }
        if chain.peek().is_some() {
            self.stats.truncated += 1;
        }
        Ok(())
    }

    /// Returns the frame of one function: what is known of it, and of what was sent what still holds. Beside it, how many bytes of JSON
    /// its texts have.
    fn at(&mut self, location: &SourceLocation<'a, '_>, frame: &Frame) -> (Frame, usize) {
        let function = location.function();
        let path = location
            .file()
            .map(|file| file.full_path())
            .filter(|path| !path.is_empty());
        let file = match path {
            Some(path) => self.paths.shared(&path),
            None => FileName::new(frame.filename.clone(), frame.abs_path.clone()),
        };
        // What the debug information does not name: a name that was sent is that of another function.
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
            trust: frame.trust,
            ..Frame::default()
        };
        (located, bytes)
    }
}

/// How a source file is called, as it is shown.
#[derive(Clone, Debug)]
struct FileName {
    filename: Option<Arc<str>>,
    abs_path: Option<Arc<str>>,
    /// How many bytes of JSON both have in an answer.
    answer_bytes: usize,
}

impl FileName {
    fn new(filename: Option<Arc<str>>, abs_path: Option<Arc<str>>) -> Self {
        let texts = [&filename, &abs_path].into_iter().flatten();
        Self {
            answer_bytes: texts.map(|text| escaped_bytes(text)).sum(),
            filename,
            abs_path,
        }
    }
}

/// The names of a request's files by their paths, each in memory once.
#[derive(Debug, Default)]
struct Paths(HashMap<Arc<str>, FileName>);

impl Paths {
    /// Returns the name of a file.
    fn shared(&mut self, path: &str) -> FileName {
        if let Some(known) = self.0.get(path) {
            return known.clone();
        }
        let abs_path: Arc<str> = shown(path).into();
        let filename = shown(split_path(path).1).into();
        let name = FileName::new(Some(filename), Some(Arc::clone(&abs_path)));
        self.0.insert(abs_path, name.clone());
        name
    }
}

/// Returns a name or a path as it is shown: what is too long is cut, and says so.
pub(super) fn shown(text: &str) -> Cow<'_, str> {
    if text.len() <= LONGEST_SHOWN {
        return text.into();
    }
    let cut = text.floor_char_boundary(LONGEST_SHOWN);
    let (kept, bytes) = (text.get(..cut).unwrap_or_default(), text.len());
    format!("{kept}… (cut: {bytes} bytes)").into()
}

/// Returns how many bytes of JSON a frame has in an answer, or fewer.
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

/// Returns how many bytes a text has as a string of JSON, without its quotes.
pub(super) fn escaped_bytes(text: &str) -> usize {
    let is_escaped = |byte: u8| (byte < 0x20) | (byte == b'"') | (byte == b'\\');
    // Nearly no text has any. Without branches, many bytes are looked at at once.
    if !text.bytes().fold(false, |any, byte| any | is_escaped(byte)) {
        return text.len();
    }
    let further = text.bytes().map(|byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 1,
        0..0x20 => "u0000".len(),
        _ => 0,
    });
    text.len() + further.sum::<usize>()
}

/// Returns the addresses that frames of a module are looked up at, counted from its start.
pub(super) fn addresses(
    request: &Request,
    module: usize,
    frames: &[(usize, usize)],
    arch: Arch,
) -> Vec<u64> {
    let order = request.options.frame_order;
    let mut addresses = Vec::with_capacity(frames.len());
    let mut last: Option<(usize, Position<'_>)> = None;
    for (number, at) in frames {
        let Some(stacktrace) = request.stacktraces.get(*number) else {
            continue;
        };
        let of_it = match last {
            Some((known, position)) if known == *number => position,
            _ => Position::first_of(stacktrace),
        };
        last = Some((*number, of_it));
        let position = Position {
            index: stacktrace::counted(order, stacktrace.frames.len(), *at),
            ..of_it
        };
        let found = stacktrace.frames.get(*at).zip(request.modules.get(module));
        let address = found.and_then(|(frame, of_module)| {
            let situation = situation(request, frame, &position);
            Address::of(frame, module, of_module, arch, &situation)
        });
        addresses.extend(address.map(|address| address.relative));
    }
    addresses
}

fn situation<'a>(request: &Request, frame: &Frame, position: &Position<'a>) -> Situation<'a> {
    Situation {
        adjustment: Adjustment::of(frame, position.default_adjustment),
        is_topmost: position.index == 0,
        signal: request.signal,
        registers: position.registers,
    }
}

/// An address in a module.
#[derive(Clone, Copy, Debug)]
struct Address {
    /// Counted from the start of the module.
    relative: u64,
    /// Where the module starts, as far as addresses that are shown are concerned.
    base: u64,
    /// How addresses are shown.
    mode: AddrMode,
}

impl Address {
    /// Returns the address of the instruction that a frame means; `None` where there is no such address in the module.
    fn of(
        frame: &Frame,
        index: usize,
        module: &Module,
        arch: Arch,
        situation: &Situation<'_>,
    ) -> Option<Self> {
        let base = module.image_addr.0;
        let given = frame.instruction_addr.0;
        if base == 0 {
            // A module without a place is addressed from its start, by clients that know where instructions are.
            return matches!(frame.addr_mode, AddrMode::Rel(_)).then_some(Self {
                relative: given,
                base,
                mode: AddrMode::Rel(index),
            });
        }
        let absolute = match frame.addr_mode {
            AddrMode::Abs => given,
            AddrMode::Rel(_) => base.checked_add(given)?,
        };
        let relative = adjust(absolute, arch, situation)?.checked_sub(base)?;
        Some(Self {
            relative,
            base,
            mode: AddrMode::Abs,
        })
    }

    /// Returns an address of the module as it is shown.
    fn shown(&self, relative: u64) -> Option<Hex> {
        self.base.checked_add(relative).map(Hex)
    }
}

/// Returns where the function of a location begins; `None` for one that covers the address only in part of a cache.
fn entry_point(location: &SourceLocation<'_, '_>) -> Option<u64> {
    let entry = location.function().entry_pc();
    (entry != u32::MAX).then_some(u64::from(entry))
}

/// Returns the frame of a .NET method: what was sent, with the line.
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
