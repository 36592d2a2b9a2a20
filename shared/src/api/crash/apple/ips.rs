//! Reports in JSON: a header of one line, and the report.
//!
//! Addresses are given as an index of a module and an offset in it. The list of modules has gaps:
//! an entry without a size stands for addresses outside of all modules, and has the base zero. So
//! does an entry that cannot be read, because the indexes count it.
//!
//! Sequences end at their limits while they are read, so that a report of few bytes per element
//! does not take a multiple of its size in memory. The limit of frames is that of all threads
//! together: their frames are read one thread after the other, when the modules are known. A value
//! of an unexpected form is left out (`lenient`). Frames that are marked as inlined are omitted:
//! each belongs to the next frame, whose address is looked up again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use chrono::DateTime;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::lenient::{self, Bounded, LenientObject, OneOrManyTexts};
use super::parsed::{
    APPLICATION_BACKTRACE, AppleReportError, LAST_EXCEPTION, ParsedReport, ReportCounts,
    ThreadNames, backtrace, module, of_thread,
};
use super::system::{OsVersion, architecture};
use super::text;
use crate::api::crash::CrashFacts;
use crate::api::limits;
use crate::api::symbolicator::{Frame, Hex, Module, Stacktrace, SystemInfo};

/// The form of times in reports.
const TIME: &str = "%Y-%m-%d %H:%M:%S%.f %z";

/// The type of a module that stands for a gap.
const ABSENT: &str = "A";

/// The type of reports about crashes.
const CRASH: &str = "309";

/// The header.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ReportHeader {
    #[serde(deserialize_with = "lenient::value")]
    bug_type: Option<String>,
    #[serde(deserialize_with = "lenient::value")]
    os_version: Option<String>,
    #[serde(deserialize_with = "lenient::value")]
    timestamp: Option<String>,
}

/// The report.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Body<'a> {
    #[serde(deserialize_with = "lenient::value")]
    capture_time: Option<String>,
    #[serde(deserialize_with = "lenient::value")]
    cpu_type: Option<String>,
    #[serde(deserialize_with = "lenient::value")]
    model_code: Option<String>,
    #[serde(deserialize_with = "os_train")]
    os_version: OsTrain,
    #[serde(deserialize_with = "lenient::object")]
    exception: Exception,
    #[serde(deserialize_with = "lenient::object")]
    termination: Termination,
    asi: NotedTexts,
    asi_backtraces: OneOrManyTexts,
    #[serde(deserialize_with = "lenient::value")]
    faulting_thread: Option<u64>,
    #[serde(borrow)]
    threads: Bounded<LenientObject<Thread<'a>>, { limits::STACKTRACES }>,
    #[serde(borrow)]
    last_exception_backtrace: Option<&'a RawValue>,
    used_images: Bounded<LenientObject<Image>, { limits::MODULES }>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OsTrain {
    #[serde(deserialize_with = "lenient::value")]
    train: String,
    #[serde(deserialize_with = "lenient::value")]
    build: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Exception {
    #[serde(rename = "type", deserialize_with = "lenient::value")]
    name: Option<String>,
    #[serde(deserialize_with = "lenient::value")]
    signal: Option<String>,
    #[serde(deserialize_with = "lenient::value")]
    codes: Option<String>,
    #[serde(deserialize_with = "lenient::value")]
    subtype: Option<String>,
    #[serde(deserialize_with = "lenient::value")]
    message: Option<String>,
}

/// Why the system ended the process.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Termination {
    #[serde(deserialize_with = "lenient::value")]
    indicator: Option<String>,
    reasons: OneOrManyTexts,
    details: OneOrManyTexts,
}

/// What libraries noted for the report: the texts of each, or texts alone.
#[derive(Default)]
struct NotedTexts(Vec<String>);

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Thread<'a> {
    #[serde(deserialize_with = "lenient::value")]
    name: Option<String>,
    #[serde(deserialize_with = "lenient::value")]
    queue: Option<String>,
    #[serde(deserialize_with = "lenient::value")]
    triggered: bool,
    #[serde(deserialize_with = "lenient::object")]
    thread_state: Registers,
    #[serde(borrow)]
    frames: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReportedFrame {
    #[serde(deserialize_with = "lenient::value")]
    image_index: Option<usize>,
    #[serde(deserialize_with = "lenient::value")]
    image_offset: Option<i128>,
    #[serde(deserialize_with = "lenient::value")]
    symbol: Option<String>,
    #[serde(deserialize_with = "lenient::value")]
    source_file: Option<String>,
    #[serde(deserialize_with = "lenient::value")]
    source_line: Option<u32>,
    #[serde(deserialize_with = "lenient::value")]
    inline: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Image {
    #[serde(deserialize_with = "lenient::value")]
    base: u64,
    #[serde(deserialize_with = "lenient::value")]
    size: u64,
    #[serde(deserialize_with = "lenient::value")]
    uuid: Uuid,
    #[serde(deserialize_with = "lenient::value")]
    source: String,
    #[serde(deserialize_with = "lenient::value")]
    path: String,
    #[serde(deserialize_with = "lenient::value")]
    name: String,
    /// The name that is shown, once in memory for all frames.
    #[serde(skip)]
    package: Option<Arc<str>>,
}

/// Reads a report.
pub(super) fn parse(file: &str) -> Result<ParsedReport, AppleReportError> {
    let mut values = serde_json::Deserializer::from_str(file).into_iter::<&RawValue>();
    let (first, second) = (values.next().transpose()?, values.next().transpose()?);
    let first = first.map_or("{}", RawValue::get);
    let header: ReportHeader = read(first)?;
    // Tools that unpack reports drop the header.
    let body: Body<'_> = read(second.map_or(first, RawValue::get))?;
    if body.threads.0.is_empty() {
        return Err(match header.bug_type {
            Some(bug_type) if bug_type != CRASH => AppleReportError::NotACrash(bug_type),
            _ => AppleReportError::NoThreads,
        });
    }
    let facts = facts(&header, &body);
    let images = body.used_images.0.into_iter();
    let images: Vec<Image> = images
        .map(|image| image.0.unwrap_or_default().with_package())
        .collect();
    let mut counts = ReportCounts::default();
    let mut stacktraces = Vec::with_capacity(body.threads.0.len());
    for (number, thread) in (0..).zip(body.threads.0) {
        counts.add_thread()?;
        let thread = thread.0.unwrap_or_default();
        stacktraces.push(Stacktrace {
            thread_id: Some(number),
            is_requesting: Some(thread.triggered || body.faulting_thread == Some(number)),
            thread_name: ThreadNames {
                name: thread.name.as_deref(),
                queue: thread.queue.as_deref(),
            }
            .shown(),
            registers: thread.thread_state.0,
            frames: of_thread(frames(thread.frames, &images, &mut counts)?),
        });
    }
    let last = frames(body.last_exception_backtrace, &images, &mut counts)?;
    if let Some(last) = backtrace(LAST_EXCEPTION, last) {
        counts.add_thread()?;
        stacktraces.push(last);
    }
    for (number, text) in (1..).zip(&body.asi_backtraces.0) {
        stacktraces.extend(noted_backtrace(number, text, &mut counts)?);
    }
    Ok(ParsedReport {
        facts,
        stacktraces,
        modules: images.iter().filter_map(Image::module).collect(),
    })
}

/// Reads a backtrace that is in the report as a text, with the lines that reports in text have.
/// Nothing is read of one with an invalid line.
fn noted_backtrace(
    number: u32,
    text: &str,
    counts: &mut ReportCounts,
) -> Result<Option<Stacktrace>, AppleReportError> {
    let text = format!("{APPLICATION_BACKTRACE} {number}:\n{}", text.trim_start());
    let report = match text::parse(&text, counts) {
        Err(error @ AppleReportError::TooMany { .. }) => return Err(error),
        report => report.ok(),
    };
    let mut backtraces = report.into_iter().flat_map(|report| report.stacktraces);
    Ok(backtraces.find(|stacktrace| stacktrace.thread_id.is_none()))
}

/// Reads one of the objects of a report.
fn read<'de, T: Deserialize<'de> + Default>(json: &'de str) -> Result<T, AppleReportError> {
    let object: LenientObject<T> = serde_json::from_str(json)?;
    Ok(object.0.unwrap_or_default())
}

fn facts(header: &ReportHeader, body: &Body<'_>) -> CrashFacts {
    let OsTrain { train, build } = &body.os_version;
    let os = match (train.as_str(), build.as_str()) {
        ("", _) => OsVersion::split(header.os_version.as_deref().unwrap_or_default()),
        (train, "") => OsVersion::split(train),
        (train, build) => OsVersion::split(&format!("{train} ({build})")),
    };
    let time = body.capture_time.as_ref().or(header.timestamp.as_ref());
    let time = time.and_then(|time| DateTime::parse_from_str(time, TIME).ok());
    CrashFacts {
        timestamp: time.and_then(|time| u64::try_from(time.timestamp()).ok()),
        system_info: Some(SystemInfo {
            os_name: os.name,
            os_version: os.version,
            os_build: os.build,
            cpu_arch: architecture(body.cpu_type.as_deref().unwrap_or_default()).to_owned(),
            device_model: body.model_code.clone().unwrap_or_default(),
        }),
        crashed: Some(true),
        crash_reason: body.exception.reason(),
        crash_details: details(body),
        assertion: None,
    }
}

/// Returns the most specific text about the crash: what libraries noted for the report, else what
/// the kernel said about the exception, else about the end of the process.
fn details(body: &Body<'_>) -> Option<String> {
    let Exception {
        codes,
        subtype,
        message,
        ..
    } = &body.exception;
    let Termination {
        indicator,
        reasons,
        details,
    } = &body.termination;
    let joined = |texts: &mut dyn Iterator<Item = &String>| -> Option<String> {
        let texts: Vec<&str> = texts
            .map(|text| text.trim_end())
            .filter(|text| !text.is_empty())
            .collect();
        (!texts.is_empty()).then(|| texts.join("\n"))
    };
    joined(&mut body.asi.0.iter())
        .or_else(|| message.clone())
        .or_else(|| subtype.clone())
        .or_else(|| joined(&mut reasons.0.iter().chain(&details.0)))
        .or_else(|| indicator.clone())
        .or_else(|| codes.clone())
}

impl Exception {
    /// Returns the reason as the text format has it: `EXC_CRASH (SIGABRT)`.
    fn reason(&self) -> Option<String> {
        match (&self.name, &self.signal) {
            (Some(name), Some(signal)) => Some(format!("{name} ({signal})")),
            (name, signal) => name.as_ref().or(signal.as_ref()).cloned(),
        }
    }
}

impl Image {
    /// Returns the module; `None` for a gap.
    fn module(&self) -> Option<Module> {
        if self.source == ABSENT || self.base == 0 {
            return None;
        }
        Some(module(self.uuid, self.shown(), self.base, self.size))
    }

    /// Sets the name that frames refer to.
    fn with_package(mut self) -> Self {
        let name = self.shown();
        let package: Option<Arc<str>> = (!name.is_empty()).then(|| Arc::from(name));
        self.package = package;
        self
    }

    fn shown(&self) -> &str {
        if self.path.is_empty() {
            &self.name
        } else {
            &self.path
        }
    }
}

impl ReportedFrame {
    /// Returns the frame, in one of these modules.
    fn in_images(self, images: &[Image]) -> Frame {
        let image = self.image_index.and_then(|index| images.get(index));
        Frame {
            instruction_addr: Hex(self.address(image)),
            package: image.and_then(|image| image.package.clone()),
            function: self.symbol.map(Into::into),
            filename: self.source_file.map(Into::into),
            lineno: self.source_line,
            ..Frame::default()
        }
    }

    /// Returns the address; zero if the report does not have it.
    fn address(&self, image: Option<&Image>) -> u64 {
        let Some(offset) = self.image_offset else {
            return 0;
        };
        let base = image.map_or(0, |image| image.base);
        let address = offset.saturating_add(base.into()).max(0);
        u64::try_from(address).unwrap_or(u64::MAX)
    }
}

/// Reads the frames of a thread. What is not a list has none.
fn frames(
    list: Option<&RawValue>,
    images: &[Image],
    counts: &mut ReportCounts,
) -> Result<Vec<Frame>, AppleReportError> {
    let list = list.map_or("", RawValue::get);
    if !list.starts_with('[') {
        return Ok(Vec::new());
    }
    let mut refused = None;
    let elements = FrameElements {
        images,
        counts,
        refused: &mut refused,
    };
    let frames = serde_json::Deserializer::from_str(list).deserialize_seq(elements);
    match refused {
        Some(error) => Err(error),
        None => Ok(frames?),
    }
}

/// Reads the frames in a list, and ends when the report has too many.
struct FrameElements<'a> {
    images: &'a [Image],
    counts: &'a mut ReportCounts,
    /// Why the list was not read to its end, which is not an error in its JSON.
    refused: &'a mut Option<AppleReportError>,
}

impl<'de> Visitor<'de> for FrameElements<'_> {
    type Value = Vec<Frame>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of frames")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        let mut frames = Vec::new();
        while let Some(frame) = from.next_element::<LenientObject<ReportedFrame>>()? {
            if let Err(error) = self.counts.add_frame() {
                let ended = de::Error::custom(&error);
                *self.refused = Some(error);
                return Err(ended);
            }
            let called = frame.0.filter(|frame| !frame.inline);
            frames.extend(called.map(|frame| frame.in_images(self.images)));
        }
        Ok(frames)
    }
}

/// Reads the version of a system, which may also be a single text.
fn os_train<'de, D: Deserializer<'de>>(deserializer: D) -> Result<OsTrain, D::Error> {
    let raw = <&RawValue>::deserialize(deserializer)?.get();
    let train = serde_json::from_str(raw).map(|train| OsTrain {
        train,
        build: String::new(),
    });
    Ok(train
        .or_else(|_| serde_json::from_str(raw))
        .unwrap_or_default())
}

impl<'de> Deserialize<'de> for NotedTexts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        type OfLibraries = BTreeMap<String, OneOrManyTexts>;

        let raw = <&RawValue>::deserialize(deserializer)?.get();
        if !raw.starts_with('{') {
            let texts: OneOrManyTexts = serde_json::from_str(raw).map_err(de::Error::custom)?;
            return Ok(Self(texts.0));
        }
        let libraries: OfLibraries = serde_json::from_str(raw).map_err(de::Error::custom)?;
        let texts = libraries.into_values().flat_map(|texts| texts.0);
        Ok(Self(texts.collect()))
    }
}

/// The registers of a thread. A register is an object with its value. A list of such objects, named
/// `x`, has the general registers of ARM.
#[derive(Default)]
struct Registers(BTreeMap<String, Hex>);

/// The value of a register, or values of numbered registers, without those that cannot be read;
/// empty for anything else.
struct Values(Vec<Option<u64>>);

#[derive(Default, Deserialize)]
#[serde(default)]
struct Register {
    /// Absent in what is not a register: the state of a translated program (`rosetta`).
    #[serde(deserialize_with = "lenient::value")]
    value: Option<u64>,
}

impl<'de> Deserialize<'de> for Registers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ByName;

        impl<'de> Visitor<'de> for ByName {
            type Value = Registers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {} registers", limits::REGISTERS)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Registers, A::Error> {
                let mut registers = BTreeMap::new();
                while let Some((name, Values(values))) = from.next_entry::<String, Values>()? {
                    if registers.len() + values.len() > limits::REGISTERS {
                        return Err(de::Error::invalid_length(limits::REGISTERS + 1, &self));
                    }
                    let is_numbered = name == "x";
                    for (number, value) in values.into_iter().enumerate() {
                        let name = if is_numbered {
                            format!("{name}{number}")
                        } else {
                            name.clone()
                        };
                        registers.extend(value.map(|value| (name, Hex(value))));
                    }
                }
                Ok(Registers(registers))
            }
        }

        deserializer.deserialize_map(ByName)
    }
}

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        type Numbered = Bounded<LenientObject<Register>, { limits::REGISTERS }>;

        let raw = <&RawValue>::deserialize(deserializer)?.get();
        let one: LenientObject<Register> = serde_json::from_str(raw).map_err(de::Error::custom)?;
        let many: Numbered = serde_json::from_str(raw).map_err(de::Error::custom)?;
        let registers = one.0.into_iter().map(|register| register.value);
        let numbered = many.0.into_iter().map(|register| register.0?.value);
        Ok(Self(registers.chain(numbered).collect()))
    }
}
