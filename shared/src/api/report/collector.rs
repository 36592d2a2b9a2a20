//! Collects what a reader finds, within the limits of a request.

use std::collections::HashMap;
use std::ops::Range;

use super::cursor::TextLine;
use super::model::{
    CrashReport, ReportError, ReportFormat, ReportFrame, ReportModule, ReportStack, file_name,
};
use super::plain::PlainText;
use crate::api::limits;
use crate::domain::{CodeId, ObjectType, is_trampoline};

/// The number of digits of the id of a Mach-O file.
const UUID_DIGITS: usize = 32;

/// What a reader has found.
#[derive(Debug, Default)]
pub(super) struct Collector {
    modules: Vec<ReportModule>,
    /// By name and id.
    numbers: HashMap<(String, String), usize>,
    stacks: Vec<ReportStack>,
    /// The line of each frame.
    lines: Vec<Range<usize>>,
    /// The index of the first module of the current process.
    first: usize,
    /// The number of the last frame in its stack trace.
    last: Option<u64>,
    count: usize,
    exceeded: Option<(&'static str, usize)>,
}

impl Collector {
    /// Returns the number of frames.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the lines of the frames, in the order of these.
    pub(super) fn lines(&self) -> &[Range<usize>] {
        &self.lines
    }

    /// Returns the index of a module, by its name and its id. Its name tells its type.
    pub(super) fn module(&mut self, name: &str, id: Option<&str>) -> Option<usize> {
        self.module_of_type(name, id, type_of(name))
    }

    /// Returns the index of a module of this type.
    pub(super) fn module_of_type(
        &mut self,
        name: &str,
        id: Option<&str>,
        object_type: ObjectType,
    ) -> Option<usize> {
        let id = id.map(|id| match object_type {
            // Sanitizers also print bytes that follow the UUID.
            ObjectType::Macho => id.get(..UUID_DIGITS).unwrap_or(id),
            _ => id,
        });
        let code_id = id
            .map(|id| CodeId::new(id.to_owned()))
            .filter(|id| !id.is_nil());
        let key = (
            name.to_owned(),
            code_id.as_ref().map(CodeId::to_string).unwrap_or_default(),
        );
        if let Some(index) = self.numbers.get(&key) {
            return Some(*index);
        }
        if self.modules.len() >= limits::MODULES {
            self.exceeded = Some(("modules", limits::MODULES));
            return None;
        }
        self.numbers.insert(key, self.modules.len());
        // The id of a Mach-O file is that of its debug file, too.
        let debug_id = code_id
            .as_ref()
            .filter(|_| object_type == ObjectType::Macho)
            .and_then(|id| id.as_str().parse().ok());
        self.modules.push(ReportModule {
            name: name.to_owned(),
            code_id,
            debug_id,
            object_type,
            ..ReportModule::default()
        });
        Some(self.modules.len() - 1)
    }

    /// Notes where a module begins, unless that is known.
    pub(super) fn begins(&mut self, module: usize, base: u64) {
        if let Some(module) = self.modules.get_mut(module) {
            module.base.get_or_insert(base);
        }
    }

    /// Extends a module to an address.
    pub(super) fn extends(&mut self, module: usize, end: u64) {
        if let Some(module) = self.modules.get_mut(module) {
            let size = end.saturating_sub(module.base.unwrap_or(end));
            module.size = Some(module.size.unwrap_or_default().max(size));
        }
    }

    /// Begins a stack trace.
    pub(super) fn begin(&mut self, thread_id: Option<u64>) {
        self.last = None;
        if self
            .stacks
            .last()
            .is_some_and(|stack| stack.frames.is_empty())
        {
            self.stacks.pop();
        }
        if self.stacks.len() >= limits::STACKTRACES {
            self.exceeded = Some(("stack traces", limits::STACKTRACES));
            return;
        }
        self.stacks.push(ReportStack {
            thread_id,
            ..ReportStack::default()
        });
    }

    /// Notes the number of a frame. A number that is not larger than the last one begins another
    /// stack trace, unless numbers may repeat.
    pub(super) fn number(&mut self, number: u64, may_repeat: bool) {
        let least = self.last.map_or(0, |last| last + u64::from(!may_repeat));
        if self.stacks.is_empty() || number < least {
            self.begin(None);
        }
        self.last = Some(number);
    }

    /// Adds the frame in a line to the current stack trace.
    pub(super) fn frame(&mut self, line: TextLine<'_>, frame: ReportFrame) {
        if self.stacks.is_empty() {
            self.begin(None);
        }
        if self.count >= limits::FRAMES {
            self.exceeded = Some(("frames", limits::FRAMES));
        } else if let Some(stack) = self.stacks.last_mut() {
            stack.frames.push(frame);
            self.lines.push(line.range());
            self.count += 1;
        }
    }

    /// Returns the last frame of the current stack trace.
    pub(super) fn last_frame(&mut self) -> Option<&mut ReportFrame> {
        self.stacks.last_mut()?.frames.last_mut()
    }

    /// Returns whether the last frame is the one that a signal handler returns to, so that a signal
    /// interrupted the next one.
    pub(super) fn is_after_trampoline(&self) -> bool {
        let last = self.stacks.last().and_then(|stack| stack.frames.last());
        let function = last.and_then(|frame| frame.function.as_deref());
        function.is_some_and(is_trampoline)
    }

    /// Returns whether the current stack trace has no frames yet.
    pub(super) fn is_at_top(&self) -> bool {
        self.stacks
            .last()
            .is_none_or(|stack| stack.frames.is_empty())
    }

    /// Begins another process, whose modules have nothing to do with those before.
    pub(super) fn new_process(&mut self) {
        self.numbers.clear();
        self.first = self.modules.len();
        self.begin(None);
    }

    /// Sets the id of a module of the current process that is named by its path or by its file
    /// name, unless it has one.
    pub(super) fn identify(&mut self, name: &str, id: &str) {
        let id = CodeId::new(id.to_owned());
        let of_process = self.modules.iter_mut().skip(self.first);
        let named = of_process.filter(|module| {
            if module.name.contains('/') {
                module.name == name
            } else {
                module.name == file_name(name)
            }
        });
        for module in named.filter(|module| module.code_id.is_none()) {
            module.code_id = Some(id.clone()).filter(|id| !id.is_nil());
        }
    }

    /// Changes the places of all frames since the one with this number, which were found in a plain
    /// text, to those in the report.
    pub(super) fn relocate(&mut self, first: usize, text: &PlainText) {
        let frames = self.stacks.iter_mut().flat_map(|stack| &mut stack.frames);
        for frame in frames.skip(first) {
            frame.place = frame.place.take().and_then(|place| text.place(&place));
        }
        for line in self.lines.iter_mut().skip(first) {
            *line = text.range(line);
        }
    }

    /// Returns the addresses of frames without a module that are looked up, in order.
    pub(super) fn addresses(&self) -> Vec<u64> {
        let frames = self.stacks.iter().flat_map(|stack| &stack.frames);
        let without_module = frames.filter(|frame| frame.module.is_none() && !frame.is_settled);
        let mut addresses: Vec<u64> = without_module.filter_map(|it| it.address).collect();
        addresses.sort_unstable();
        addresses
    }

    /// Returns the index of the module whose file has this name and whose path is not known.
    pub(super) fn without_path(&self, name: &str) -> Option<usize> {
        self.modules.iter().position(|module| module.name == name)
    }

    /// Sets the path of a module.
    pub(super) fn set_path(&mut self, module: usize, path: &str) {
        if let Some(module) = self.modules.get_mut(module) {
            path.clone_into(&mut module.name);
        }
    }

    /// Returns the report.
    pub(super) fn finish(mut self, format: ReportFormat) -> Result<CrashReport, ReportError> {
        if let Some((what, limit)) = self.exceeded {
            return Err(ReportError::TooLarge { what, limit });
        }
        self.stacks.retain(|stack| !stack.frames.is_empty());
        Ok(CrashReport {
            format,
            modules: self.modules,
            stacks: self.stacks,
            others: Vec::new(),
            request: None,
        })
    }
}

/// Returns the type that the name of a module says; else that of Linux.
fn type_of(name: &str) -> ObjectType {
    let name = file_name(name);
    let ends_with = |end: &str| {
        let at = name.len().checked_sub(end.len());
        at.and_then(|at| name.get(at..))
            .is_some_and(|it| it.eq_ignore_ascii_case(end))
    };
    if ends_with(".dll") || ends_with(".exe") {
        ObjectType::Pe
    } else if ends_with(".dylib") {
        ObjectType::Macho
    } else {
        ObjectType::Elf
    }
}
