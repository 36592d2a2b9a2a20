//! Collects what a reader finds, within the limits of a request.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::cursor::TextLine;
use super::model::{
    CrashReport, OffsetsFrom, ReportError, ReportFormat, ReportFrame, ReportModule, ReportStack,
    file_name, is_full_path,
};
use super::plain::PlainText;
use crate::api::limits;
use crate::domain::{CodeId, ObjectType, interrupts_its_caller};

/// The number of digits of the id of a Mach-O file.
const UUID_DIGITS: usize = 32;

/// What a reader has found.
#[derive(Debug, Default)]
pub(super) struct Collector {
    modules: Vec<ReportModule>,
    /// The indexes of the modules of the current process, by the names and ids that they had first.
    numbers: HashMap<(String, String), usize>,
    stacks: Vec<ReportStack>,
    /// The line of each frame.
    lines: Vec<Range<usize>>,
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
        // The id of a Mach-O file is that of its debug file, too.
        let debug_id = code_id
            .as_ref()
            .filter(|_| object_type == ObjectType::Macho)
            .and_then(|id| id.as_str().parse().ok());
        let index = self.add(ReportModule {
            name: name.to_owned(),
            code_id,
            debug_id,
            object_type,
            ..ReportModule::default()
        })?;
        self.numbers.insert(key, index);
        Some(index)
    }

    /// Adds a module for another load of a file, with the id that one of these modules, which are
    /// of the same file, has. Returns its index.
    pub(super) fn another_load(&mut self, path: &str, others: &[usize]) -> Option<usize> {
        let mut others = others.iter().filter_map(|other| self.modules.get(*other));
        let any = others.clone().next();
        let known = others.find(|other| other.has_id()).or(any);
        let module = ReportModule {
            name: path.to_owned(),
            code_id: known.and_then(|known| known.code_id.clone()),
            debug_id: known.and_then(|known| known.debug_id),
            object_type: known.map_or_else(|| type_of(path), |known| known.object_type),
            ..ReportModule::default()
        };
        self.add(module)
    }

    fn add(&mut self, module: ReportModule) -> Option<usize> {
        if self.modules.len() >= limits::MODULES {
            self.exceeded = Some(("modules", limits::MODULES));
            return None;
        }
        self.modules.push(module);
        Some(self.modules.len() - 1)
    }

    /// Notes where a module begins, unless that is known.
    pub(super) fn set_base(&mut self, module: usize, base: u64) {
        if let Some(module) = self.modules.get_mut(module) {
            module.base.get_or_insert(base);
        }
    }

    /// Extends a module to an address.
    pub(super) fn extend_to(&mut self, module: usize, end: u64) {
        if let Some(module) = self.modules.get_mut(module) {
            let size = end.saturating_sub(module.base.unwrap_or(end));
            module.size = Some(module.size.unwrap_or_default().max(size));
        }
    }

    /// Notes that the offsets in a module may be addresses.
    pub(super) fn may_have_addresses(&mut self, module: usize) {
        if let Some(module) = self.modules.get_mut(module) {
            module.offsets = module.offsets.max(OffsetsFrom::StartOrZero);
        }
    }

    /// Notes that the offsets in the modules with these names are addresses, if they may be ones.
    pub(super) fn offsets_are_addresses(&mut self, names: &HashSet<&str>) {
        let uncertain = |module: &&mut ReportModule| {
            module.offsets == OffsetsFrom::StartOrZero && names.contains(module.name.as_str())
        };
        for module in self.modules.iter_mut().filter(uncertain) {
            module.offsets = OffsetsFrom::Zero;
        }
    }

    /// Begins a stack trace.
    pub(super) fn start_stack(&mut self, thread_id: Option<u64>) {
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
        let is_behind = |last: u64| number < last || number == last && !may_repeat;
        if self.stacks.is_empty() || self.last.is_some_and(is_behind) {
            self.start_stack(None);
        }
        self.last = Some(number);
    }

    /// Adds the frame in a line to the current stack trace.
    pub(super) fn frame(&mut self, line: TextLine<'_>, frame: ReportFrame) {
        if self.stacks.is_empty() {
            self.start_stack(None);
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

    /// Returns whether the last frame is the one that a signal handler returns to, or is injected,
    /// so that the next one was interrupted.
    pub(super) fn is_after_trampoline(&self) -> bool {
        let last = self.stacks.last().and_then(|stack| stack.frames.last());
        last.is_some_and(|frame| {
            let address = frame.address.unwrap_or_default();
            let function = frame.function.as_deref();
            function.is_some_and(|function| interrupts_its_caller(function, address))
        })
    }

    /// Begins another process, whose modules have nothing to do with those before.
    pub(super) fn new_process(&mut self) {
        self.numbers.clear();
        self.start_stack(None);
    }

    /// Sets the id of a module of the current process that is named by its path or by its file
    /// name, unless it has one.
    pub(super) fn identify(&mut self, name: &str, id: &str) {
        let id = Some(CodeId::new(id.to_owned())).filter(|id| !id.is_nil());
        let path = name.contains('/').then_some(name);
        for name in path.into_iter().chain([file_name(name)]) {
            // A module whose id is known already is not found without it.
            let found = self.numbers.get(&(name.to_owned(), String::new()));
            let module = found.and_then(|index| self.modules.get_mut(*index));
            if let Some(module) = module.filter(|module| module.code_id.is_none()) {
                module.code_id = id.clone();
            }
        }
    }

    /// Changes the places of all frames since the one with this number, which were found in a plain
    /// text, to those in the report.
    pub(super) fn relocate(&mut self, first: usize, text: &PlainText) {
        // From the last one: a report may have many entries, each with few frames.
        let stacks = self.stacks.iter_mut().rev();
        let frames = stacks.flat_map(|stack| stack.frames.iter_mut().rev());
        for frame in frames.take(self.count.saturating_sub(first)) {
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

    /// Returns the addresses of frames in modules whose load addresses are not known, each with the
    /// index of its module.
    pub(super) fn without_base(&self) -> Vec<(usize, u64)> {
        let lacks_base = |module: usize| {
            let module = self.modules.get(module);
            module.is_some_and(|module| module.base.is_none())
        };
        let frames = self.stacks.iter().flat_map(|stack| &stack.frames);
        let in_modules = frames.filter_map(|frame| Some((frame.module?, frame.address?)));
        in_modules
            .filter(|(module, _)| lacks_base(*module))
            .collect()
    }

    /// Sets the modules of the frames without one that are looked up to what `choose` returns for
    /// their addresses and for where their lines begin.
    pub(super) fn choose_modules(&mut self, choose: impl Fn(u64, usize) -> Option<usize>) {
        let frames = self.stacks.iter_mut().flat_map(|stack| &mut stack.frames);
        for (frame, line) in frames.zip(&self.lines) {
            if frame.module.is_none() && !frame.is_settled {
                let address = frame.address;
                frame.module = address.and_then(|address| choose(address, line.start));
            }
        }
    }

    /// Returns the load address of a module, if it is known.
    pub(super) fn base(&self, module: usize) -> Option<u64> {
        self.modules.get(module)?.base
    }

    /// Returns the name of a module.
    pub(super) fn name(&self, module: usize) -> Option<&str> {
        let module = self.modules.get(module)?;
        Some(&module.name)
    }

    /// Returns the indexes of the modules by their names, of those with the same name the last one
    /// first. If the path of a module is not known, its name is that of its file.
    pub(super) fn by_name(&self) -> HashMap<String, Vec<usize>> {
        let mut indexes: HashMap<String, Vec<usize>> = HashMap::new();
        for (index, module) in self.modules.iter().enumerate().rev() {
            indexes.entry(module.name.clone()).or_default().push(index);
        }
        indexes
    }

    /// Returns the modules whose path is not known, and those whose load address would tell what
    /// their offsets are, with their file names.
    pub(super) fn unlocated(&self) -> Vec<(usize, String)> {
        let is_unlocated = |module: &ReportModule| {
            let lacks_base = module.base.is_none() && module.offsets != OffsetsFrom::Start;
            lacks_base || !is_full_path(&module.name)
        };
        let modules = self.modules.iter().enumerate();
        let unlocated = modules.filter(|(_, module)| is_unlocated(module));
        unlocated
            .map(|(index, module)| (index, module.file_name().to_owned()))
            .collect()
    }

    /// Notes which file a module is, unless its path is known, and where the file begins, if the
    /// offsets in it may be addresses.
    pub(super) fn locate(&mut self, module: usize, path: &str, base: Option<u64>) {
        let Some(module) = self.modules.get_mut(module) else {
            return;
        };
        if !is_full_path(&module.name) {
            let name = std::mem::replace(&mut module.name, path.to_owned());
            let link = file_name(&name);
            module.link = (link != file_name(path)).then(|| link.to_owned());
        }
        if module.offsets != OffsetsFrom::Start {
            module.base = module.base.or(base);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::report::model::Place;

    const LINE: TextLine<'_> = TextLine {
        text: "",
        start: 0,
        next: 1,
    };

    fn ids(out: Collector) -> Vec<Option<String>> {
        let modules = out.finish(ReportFormat::Systemd).unwrap().modules;
        let ids = modules.into_iter().map(|module| module.code_id);
        ids.map(|id| id.map(|id| id.to_string())).collect()
    }

    #[test]
    fn an_id_is_that_of_the_module_with_this_path_or_this_file_name() {
        let mut out = Collector::default();
        let (first, second) = ("11".repeat(20), "22".repeat(20));
        out.module("app", None);
        out.new_process();
        for name in ["app", "/lib/a.so", "/lib/b.so", "lib", "b.so"] {
            out.module(name, None);
        }
        out.module("known", Some(&second));
        out.identify("/usr/bin/app", &first);
        out.identify("app", &second);
        out.identify("a.so", &second);
        out.identify("/lib/b.so", &first);
        out.identify("known", &first);
        out.identify("lib", "");
        out.identify("lib", &second);
        let (first, second) = (Some(first), Some(second));
        let of_process = [&first, &None, &first, &second, &first, &second];
        let expected = [&None].into_iter().chain(of_process);
        assert_eq!(ids(out), expected.cloned().collect::<Vec<_>>());
    }

    #[test]
    fn another_load_of_a_file_has_its_id() {
        let mut out = Collector::default();
        let id = "11".repeat(20);
        let without = out.module("/lib/a.so", None).unwrap();
        let with = out.module("/lib/a.so", Some(&id)).unwrap();
        assert_eq!(out.another_load("/lib/a.so", &[without, with]), Some(2));
        assert_eq!(out.another_load("/lib/b.so", &[]), Some(3));
        assert_eq!(ids(out), [None, Some(id.clone()), Some(id), None]);
    }

    #[test]
    fn the_largest_number_is_followed_by_another_stack_trace() {
        let mut out = Collector::default();
        for number in [7, u64::MAX, u64::MAX, 0, 0] {
            out.number(number, false);
            out.frame(LINE, ReportFrame::default());
        }
        let stacks = out.finish(ReportFormat::Gdb).unwrap().stacks;
        let frames: Vec<usize> = stacks.iter().map(|stack| stack.frames.len()).collect();
        assert_eq!(frames, [2, 1, 1, 1]);
        let mut out = Collector::default();
        for number in [u64::MAX, u64::MAX] {
            out.number(number, true);
            out.frame(LINE, ReportFrame::default());
        }
        assert_eq!(out.finish(ReportFormat::Markup).unwrap().stacks.len(), 1);
    }

    #[test]
    fn the_frames_since_one_of_them_get_other_places() {
        let texts = PlainText::unwrapped(b"{\"log\": \"name\\n\"}");
        let mut out = Collector::default();
        let place = Place::in_text(0..4, 0..4);
        for thread in [1, 2, 3] {
            out.start_stack(Some(thread));
            for _ in 0..2 {
                let place = Some(place.clone());
                let frame = ReportFrame {
                    place,
                    ..ReportFrame::default()
                };
                out.frame(LINE, frame);
            }
        }
        // The last stack trace is empty.
        out.new_process();
        out.relocate(3, &texts[0]);
        let stacks = out.finish(ReportFormat::Journal).unwrap().stacks;
        let frames = stacks.iter().flat_map(|stack| &stack.frames);
        let starts = frames.map(|frame| frame.place.as_ref().unwrap().name.start);
        assert_eq!(starts.collect::<Vec<_>>(), [0, 0, 0, 9, 9, 9]);
    }
}
