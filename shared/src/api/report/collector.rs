//! Collects what a reader finds, within the limits of a request.

use std::collections::HashMap;

use super::model::{
    CrashReport, Place, ReportError, ReportFormat, ReportFrame, ReportModule, ReportStack,
    file_name,
};
use crate::api::limits;
use crate::domain::{CodeId, ObjectType};

/// What a reader has found.
#[derive(Debug, Default)]
pub(super) struct Collector {
    modules: Vec<ReportModule>,
    /// By name and id.
    numbers: HashMap<(String, String), usize>,
    stacks: Vec<ReportStack>,
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

    /// Returns the index of a module, by its name and its id.
    pub(super) fn module(&mut self, name: &str, id: Option<&str>) -> Option<usize> {
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
        self.modules.push(ReportModule {
            name: name.to_owned(),
            code_id,
            object_type: type_of(name),
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

    /// Adds a frame to the current stack trace.
    pub(super) fn frame(&mut self, frame: ReportFrame) {
        if self.stacks.is_empty() {
            self.begin(None);
        }
        if self.count >= limits::FRAMES {
            self.exceeded = Some(("frames", limits::FRAMES));
        } else if let Some(stack) = self.stacks.last_mut() {
            stack.frames.push(frame);
            self.count += 1;
        }
    }

    /// Returns the last frame of the current stack trace.
    pub(super) fn last_frame(&mut self) -> Option<&mut ReportFrame> {
        self.stacks.last_mut()?.frames.last_mut()
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
        let named = of_process.filter(|module| match module.name.contains('/') {
            true => module.name == name,
            false => module.name == file_name(name),
        });
        for module in named.filter(|module| module.code_id.is_none()) {
            module.code_id = Some(id.clone()).filter(|id| !id.is_nil());
        }
    }

    /// Changes the place of every frame since the one with this number.
    pub(super) fn relocate(&mut self, first: usize, change: impl Fn(&mut Place)) {
        let frames = self.stacks.iter_mut().flat_map(|stack| &mut stack.frames);
        frames
            .skip(first)
            .filter_map(|frame| frame.place.as_mut())
            .for_each(change);
    }

    /// Returns the addresses of frames without a module, in order.
    pub(super) fn addresses(&self) -> Vec<u64> {
        let frames = self.stacks.iter().flat_map(|stack| &stack.frames);
        let without_module = frames.filter(|frame| frame.module.is_none());
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
