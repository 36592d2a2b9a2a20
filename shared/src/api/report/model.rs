//! What a crash report says: its modules, its stack traces, and where in the text they are.

use std::ops::Range;

use thiserror::Error;

use crate::api::limits;
use crate::api::symbolicator::{AddrMode, Frame, Hex, Module, Request, RequestError, Stacktrace};
use crate::domain::{CodeId, DebugId, ObjectType};

/// The index that frames without a module refer to: a request cannot have that many modules.
const NO_MODULE: usize = limits::MODULES;

/// The load address that is sent for a module whose load address is unknown. Its frames are
/// relative to it, so that its value has no effect; zero would have one.
const STAND_IN_BASE: u64 = 0x1_0000_0000;

/// A format of crash reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReportFormat {
    /// The body of `/symbolicate`.
    Json,
    /// Address-, undefined behaviour-, thread- or memory sanitizer.
    Sanitizer,
    /// A tombstone of Android, as text.
    Android,
    /// The message of systemd-coredump, or `coredumpctl info`.
    Systemd,
    /// Messages of systemd-coredump, from `journalctl -o json`.
    Journal,
    /// `backtrace_symbols` of glibc.
    Glibc,
    /// The stack trace of glog or Abseil.
    Glog,
    /// A panic of Rust with `RUST_BACKTRACE=full`.
    Rust,
    /// `bt` of gdb.
    Gdb,
    /// The error log of the JVM.
    HsErr,
    /// The symbolizer markup of LLVM.
    Markup,
    /// The stack dump of a tool of LLVM, or of Chromium.
    Llvm,
    /// A minidump.
    Minidump,
    /// A crash report of one of Apple's systems.
    Apple,
}

impl ReportFormat {
    /// Returns the name of the format for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "JSON request",
            Self::Sanitizer => "sanitizer report",
            Self::Android => "Android tombstone",
            Self::Systemd => "systemd-coredump message",
            Self::Journal => "systemd-coredump journal entry",
            Self::Glibc => "glibc backtrace",
            Self::Glog => "stack trace of glog or Abseil",
            Self::Rust => "Rust backtrace",
            Self::Gdb => "gdb backtrace",
            Self::HsErr => "JVM error log",
            Self::Markup => "symbolizer markup",
            Self::Llvm => "LLVM stack dump",
            Self::Minidump => "minidump",
            Self::Apple => "Apple crash report",
        }
    }
}

/// Why a report cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReportError {
    /// No format has frames in the text.
    #[error(
        "no stack trace of a known format was found: expected a minidump, a crash report of Apple's systems, the JSON of /symbolicate, or the text of a sanitizer, Android tombstone, systemd-coredump, glibc backtrace_symbols, glog or Abseil, Rust panic (RUST_BACKTRACE=full), gdb bt, JVM hs_err, LLVM stack dump or symbolizer markup"
    )]
    Unknown,
    /// Entries of a journal whose messages were left out.
    #[error(
        "the journal entry has no message, because journalctl leaves out long fields: use `journalctl --all -o json`"
    )]
    WithoutMessage,
    /// A JSON object that is not a request.
    #[error("{}", described(.0))]
    Request(RequestError),
    /// The report has more than a request may have.
    #[error("the report has more than {limit} {what}: remove some of them")]
    TooLarge {
        /// What exceeds the limit.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

/// Returns an error in a request with its causes.
fn described(error: &RequestError) -> String {
    let causes = error.body().causes;
    let all = std::iter::once(error.to_string()).chain(causes);
    all.collect::<Vec<_>>().join(": ")
}

/// A crash report.
#[derive(Clone, Debug, PartialEq)]
pub struct CrashReport {
    /// The format.
    pub format: ReportFormat,
    /// The modules that the frames are in, and further ones that the report lists.
    pub modules: Vec<ReportModule>,
    /// The stack traces, in the order of the text.
    pub stacks: Vec<ReportStack>,
    /// The other formats of stack traces in the text, which were not read, with the number of their
    /// frames.
    pub others: Vec<(ReportFormat, usize)>,
    /// The request, if the report is one.
    pub(super) request: Option<Request>,
}

/// A module of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportModule {
    /// Its name as in the report, with its path if the report has it.
    pub name: String,
    /// The code id: for ELF files, the build id.
    pub code_id: Option<CodeId>,
    /// The debug id, if it was given.
    pub debug_id: Option<DebugId>,
    /// The type; ELF unless the name or the caller says otherwise.
    pub object_type: ObjectType,
    /// The load address.
    pub base: Option<u64>,
    /// The number of bytes from the load address that frames without a module are searched in.
    pub size: Option<u64>,
    /// The file name that the frames have for it, if that is the name of a symbolic link to it.
    pub link: Option<String>,
    /// What the offsets of its frames that have no addresses are relative to.
    pub offsets: OffsetsFrom,
}

/// What offsets in a module are relative to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum OffsetsFrom {
    /// The start of the module.
    #[default]
    Start,
    /// The start of the module, or zero if that is a program that is not position independent: the
    /// text does not say which.
    StartOrZero,
    /// Zero: they are addresses, because the program is not position independent.
    Zero,
}

/// A stack trace of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportStack {
    /// The id of the thread.
    pub thread_id: Option<u64>,
    /// The frames, in the order of the text.
    pub frames: Vec<ReportFrame>,
}

/// A frame of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportFrame {
    /// The number that the text gives it. In a minidump, that of the frame before some were left
    /// out: the `original_index` of the response.
    pub number: Option<u64>,
    /// The address in the process, as in the text.
    pub address: Option<u64>,
    /// The address relative to the start of its module, or to what the module says of its offsets.
    pub offset: Option<u64>,
    /// The index of its module, if the text names it.
    pub module: Option<usize>,
    /// Whether the address is a return address: that of the instruction after the call.
    pub is_return: bool,
    /// The function that the text names.
    pub function: Option<String>,
    /// The offset of the address in this function, if the text says it.
    pub function_offset: Option<u64>,
    /// The path of the source file that the text names.
    pub path: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
    /// Whether nothing can be found for the frame beyond what the text says: its function was found
    /// when the text was written, or it is in no module. It is not looked up.
    pub is_settled: bool,
    /// Where to write the names that are found; `None` if the text has them, or is no text.
    pub place: Option<Place>,
}

impl ReportFrame {
    /// Returns whether the text names the function as well as it can be named.
    pub fn has_final_name(&self) -> bool {
        self.function.is_some() && (self.is_settled || self.path.is_some())
    }
}

/// The place of a frame in the bytes of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The bytes that the names replace; empty to insert them.
    pub name: Range<usize>,
    /// The line, or the lines if the frame has several, without the last terminator. It is repeated
    /// for each function that was inlined.
    pub line: Range<usize>,
    /// Whether the line is inside a JSON string.
    pub in_json: bool,
}

impl Place {
    /// Returns the place of a name in a line of text.
    pub fn in_text(name: Range<usize>, line: Range<usize>) -> Self {
        Self {
            name,
            line,
            in_json: false,
        }
    }
}

/// What a caller knows about a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenModule {
    /// The name, with or without its path.
    pub name: String,
    /// The code id.
    pub code_id: Option<CodeId>,
    /// The debug id.
    pub debug_id: Option<DebugId>,
    /// The type; as the report has it if `None`.
    pub object_type: Option<ObjectType>,
    /// The load address.
    pub base: Option<u64>,
    /// The size in memory.
    pub size: Option<u64>,
}

/// Returns the last segment of a path.
pub(super) fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// Returns whether a name is a path that says which file it is: it has a folder, and is not
/// relative to that of the process.
pub(super) fn is_full_path(name: &str) -> bool {
    name.contains(['/', '\\']) && !name.starts_with('.')
}

/// Returns whether a name is that of a program or library. Android and the kernel also name memory
/// that is no file of the file system (`[anon:…]`, `<anonymous:…>`, `/memfd:…`), and bytecode.
pub(super) fn is_file(name: &str) -> bool {
    const MEMORY: [&str; 6] = ["[", "<", "/memfd:", "/dev/", "linux-vdso", "linux-gate"];
    const BYTECODE: [&str; 3] = [".dex", ".vdex", ".jar"];
    let is_memory = MEMORY.iter().any(|beginning| name.starts_with(beginning));
    !is_memory && !BYTECODE.iter().any(|end| name.ends_with(end))
}

impl ReportModule {
    /// Changes where the module begins, but not where it ends.
    fn move_to(&mut self, base: u64) {
        if let (Some(before), Some(size)) = (self.base, self.size) {
            self.size = before.saturating_add(size).checked_sub(base);
        }
        self.base = Some(base);
    }

    /// Returns a module of a request.
    pub(super) fn of(module: &Module) -> Self {
        Self {
            name: module.code_file.as_deref().unwrap_or_default().to_owned(),
            code_id: module.code_id.clone(),
            debug_id: module.debug_id,
            object_type: module.object_type,
            base: Some(module.image_addr.0),
            size: module.image_size,
            ..Self::default()
        }
    }

    /// Returns the name without its path.
    pub fn file_name(&self) -> &str {
        file_name(&self.name)
    }

    /// Returns the offset of an address in the module; `None` if the address is outside of it, or
    /// if that is not known.
    fn covered(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.base?)?;
        (offset < self.size?).then_some(offset)
    }

    pub(super) fn has_id(&self) -> bool {
        self.code_id.is_some() || self.debug_id.is_some()
    }

    /// Returns whether the module may be a program or library, which has a debug file.
    pub(super) fn is_file(&self) -> bool {
        self.has_id() || is_file(&self.name)
    }

    fn is_named(&self, name: &str) -> bool {
        if is_full_path(name) && is_full_path(&self.name) {
            self.name == name
        } else {
            let name = file_name(name);
            self.file_name() == name || self.link.as_deref() == Some(name)
        }
    }

    /// Returns an offset that the text has without an address, relative to the start of the module;
    /// `None` if that is not known. A load address tells the offsets in a program that is not
    /// position independent, which are beyond it, from those in other programs.
    fn offset_from_start(&self, offset: u64) -> Option<u64> {
        let without_base = self.base.and_then(|base| offset.checked_sub(base));
        match self.offsets {
            OffsetsFrom::Start => Some(offset),
            OffsetsFrom::StartOrZero => without_base.or(Some(offset)),
            OffsetsFrom::Zero => without_base,
        }
    }
}

impl CrashReport {
    /// Returns a report that is a request.
    pub(super) fn of_request(request: Request) -> Self {
        let frame = |frame: &Frame| ReportFrame {
            address: matches!(frame.addr_mode, AddrMode::Abs).then_some(frame.instruction_addr.0),
            offset: matches!(frame.addr_mode, AddrMode::Rel(_)).then_some(frame.instruction_addr.0),
            module: match frame.addr_mode {
                AddrMode::Rel(module) => Some(module).filter(|it| *it < request.modules.len()),
                AddrMode::Abs => None,
            },
            function: frame.function.as_deref().map(str::to_owned),
            ..ReportFrame::default()
        };
        let stack = |stack: &Stacktrace| ReportStack {
            thread_id: stack.thread_id,
            frames: stack.frames.iter().map(frame).collect(),
        };
        Self {
            format: ReportFormat::Json,
            modules: request.modules.iter().map(ReportModule::of).collect(),
            stacks: request.stacktraces.iter().map(stack).collect(),
            others: Vec::new(),
            request: Some(request),
        }
    }

    /// Returns the request for the report. Its stack traces, frames and modules have the indexes of
    /// the report's.
    pub fn request(&self) -> Request {
        if let Some(request) = &self.request {
            return request.clone();
        }
        let module = |module: &ReportModule| Module {
            object_type: module.object_type,
            code_id: module.code_id.clone(),
            debug_id: module.debug_id,
            code_file: Some(module.name.as_str().into()),
            image_addr: Hex(module
                .base
                .filter(|base| *base != 0)
                .unwrap_or(STAND_IN_BASE)),
            image_size: module.size,
            ..Module::default()
        };
        let stacktrace = |stack: &ReportStack| Stacktrace {
            thread_id: stack.thread_id,
            frames: (0..)
                .zip(&stack.frames)
                .map(|(index, frame)| self.frame(frame, index == 0))
                .collect(),
            ..Stacktrace::default()
        };
        Request {
            stacktraces: self.stacks.iter().map(stacktrace).collect(),
            modules: self.modules.iter().map(module).collect(),
            ..Request::default()
        }
    }

    /// Returns a frame of the request. Return addresses are not marked as such, except that of the
    /// first frame, so that the service may see that a signal interrupted one of them.
    fn frame(&self, frame: &ReportFrame, is_first: bool) -> Frame {
        let may_be_found = |module: usize| {
            let module = self.modules.get(module);
            !frame.is_settled && module.is_some_and(ReportModule::is_file)
        };
        let located = self.located(frame);
        let (addr_mode, address) = match located.filter(|(module, _)| may_be_found(*module)) {
            Some((module, offset)) => (AddrMode::Rel(module), offset),
            None => (AddrMode::Rel(NO_MODULE), frame.address.unwrap_or_default()),
        };
        Frame {
            addr_mode,
            instruction_addr: Hex(address),
            adjust_instruction_addr: (is_first || !frame.is_return).then_some(frame.is_return),
            function: frame.function.as_deref().map(Into::into),
            ..Frame::default()
        }
    }

    /// Returns whether nothing can be added to the report: its modules are those of a request, or
    /// of a response.
    pub(super) fn says_everything(&self) -> bool {
        self.request.is_some() || self.format == ReportFormat::Minidump
    }

    /// Returns whether the report is a text into which names can be written.
    pub fn has_places(&self) -> bool {
        let mut frames = self.stacks.iter().flat_map(|stack| &stack.frames);
        frames.any(|frame| frame.place.is_some())
    }

    /// Returns whether the report itself names a frame as well as it can be named: what the
    /// response lacks is then no lack of the report. Apple's systems name the functions of their
    /// libraries.
    pub fn is_named(&self, frame: &ReportFrame) -> bool {
        let is_of_format = matches!(self.format, ReportFormat::Apple | ReportFormat::Json);
        frame.function.is_some() && (is_of_format || frame.has_final_name())
    }

    /// Returns whether the text names all frames, so that there is nothing to look up.
    pub fn is_settled(&self) -> bool {
        let frames = self.stacks.iter().flat_map(|stack| &stack.frames);
        let mut frames = frames.peekable();
        frames.peek().is_some() && frames.all(|it| it.is_settled && it.function.is_some())
    }

    /// Returns the module of a frame and the address relative to its start; `None` if one of them
    /// is not known.
    pub fn located(&self, frame: &ReportFrame) -> Option<(usize, u64)> {
        let Some(index) = frame.module else {
            let address = frame.address?;
            let mut covering = self.modules.iter().enumerate();
            return covering.find_map(|(index, it)| Some((index, it.covered(address)?)));
        };
        let module = self.modules.get(index)?;
        let offset = match (frame.offset, frame.address) {
            (Some(offset), Some(_)) => offset,
            (Some(offset), None) => module.offset_from_start(offset)?,
            (None, address) => address?.checked_sub(module.base?)?,
        };
        Some((index, offset))
    }

    /// Adds what a caller knows about a module and the report does not say. Returns whether this
    /// changed the report. A module that the report does not name is added if its load address is
    /// given. A report that is a request, or a crash file, is never changed.
    pub fn complete(&mut self, given: &GivenModule) -> bool {
        if self.says_everything() {
            return false;
        }
        let mut changed = false;
        let mut is_named = false;
        let named = self.modules.iter().filter(|it| it.is_named(&given.name));
        let is_one = named.count() == 1;
        for module in &mut self.modules {
            if !module.is_named(&given.name) {
                continue;
            }
            is_named = true;
            let before = module.clone();
            if !module.has_id() {
                module.code_id.clone_from(&given.code_id);
                module.debug_id = given.debug_id;
                module.object_type = given.object_type.unwrap_or(module.object_type);
            }
            // Of several modules with this name, the report knows better.
            match given.base.filter(|_| is_one) {
                Some(base) => module.move_to(base),
                None => module.base = module.base.or(given.base),
            }
            module.size = module.size.or(given.size);
            changed |= *module != before;
        }
        if !is_named && given.base.is_some() {
            let rest = given.base.map(|base| u64::MAX - base);
            self.modules.push(ReportModule {
                name: given.name.clone(),
                code_id: given.code_id.clone(),
                debug_id: given.debug_id,
                object_type: given.object_type.unwrap_or(ObjectType::Elf),
                base: given.base,
                size: given.size.or(rest),
                ..ReportModule::default()
            });
            // The module that begins closest to an address is searched first.
            if self
                .stacks
                .iter()
                .flat_map(|it| &it.frames)
                .all(|it| it.module.is_none())
            {
                self.modules.sort_by_key(|it| std::cmp::Reverse(it.base));
            }
            changed = true;
        }
        changed
    }
}
