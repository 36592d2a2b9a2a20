//! Reports in JSON: a header of one line, and the report.
//!
//! Addresses are given as an index of a module and an offset in it. The list of modules has gaps:
//! an entry without a size stands for addresses outside of all modules, and has the base zero.
//!
//! Sequences end at their limits while they are read, so that a report of few bytes per element
//! does not take a multiple of its size in memory. Frames that are marked as inlined are omitted:
//! each belongs to the next frame, whose address is looked up again.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use chrono::DateTime;
use serde::de::{self, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::parsed::{AppleReportError, ParsedReport, ThreadNames, last_exception, module};
use super::system::{OsVersion, architecture};
use crate::api::crash::CrashFacts;
use crate::api::limits;
use crate::api::symbolicator::{Frame, Hex, Module, Stacktrace, SystemInfo};

/// The maximum number of texts in a list, and of lists in a section.
const TEXTS: usize = 1_024;

/// The form of times in reports.
const TIME: &str = "%Y-%m-%d %H:%M:%S%.f %z";

/// The type of a module that stands for a gap.
const ABSENT: &str = "A";

/// The header.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ReportHeader {
    bug_type: Option<String>,
    os_version: Option<String>,
    timestamp: Option<String>,
}

/// The report.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Body {
    capture_time: Option<String>,
    cpu_type: Option<String>,
    model_code: Option<String>,
    os_version: OsTrain,
    exception: Exception,
    termination: Termination,
    asi: ReportParts,
    faulting_thread: Option<u64>,
    threads: Bounded<Thread, { limits::STACKTRACES }>,
    last_exception_backtrace: Bounded<ReportedFrame, { limits::FRAMES }>,
    used_images: Bounded<Image, { limits::MODULES }>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OsTrain {
    train: String,
    build: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Exception {
    #[serde(rename = "type")]
    name: Option<String>,
    signal: Option<String>,
    codes: Option<String>,
    subtype: Option<String>,
    message: Option<String>,
}

/// Why the system ended the process.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Termination {
    indicator: Option<String>,
    reasons: OneOrManyTexts,
    details: OneOrManyTexts,
}

/// OneOrManyTexts, such as the application-specific information of one library.
type OneOrManyTexts = Bounded<String, TEXTS>;

/// The texts of each library.
type ReportParts = BTreeMap<String, OneOrManyTexts>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Thread {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    queue: Option<String>,
    #[serde(default)]
    triggered: bool,
    #[serde(default)]
    thread_state: Registers,
    #[serde(default)]
    frames: Bounded<ReportedFrame, { limits::FRAMES }>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReportedFrame {
    image_index: usize,
    image_offset: u64,
    #[serde(default)]
    symbol: Option<String>,
    #[serde(default)]
    source_file: Option<String>,
    #[serde(default)]
    source_line: Option<u32>,
    #[serde(default)]
    inline: bool,
}

#[derive(Deserialize)]
struct Image {
    #[serde(default)]
    base: u64,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    uuid: Uuid,
    #[serde(default)]
    source: String,
    #[serde(default)]
    path: String,
    #[serde(default)]
    name: String,
}

/// Reads a report.
pub(super) fn parse(file: &[u8]) -> Result<ParsedReport, AppleReportError> {
    let mut values = serde_json::Deserializer::from_slice(file).into_iter::<&RawValue>();
    let (first, second) = (values.next().transpose()?, values.next().transpose()?);
    let first = first.map_or("{}", RawValue::get);
    let header: ReportHeader = serde_json::from_str(first)?;
    // Tools that unpack reports drop the header.
    let body: Body = serde_json::from_str(second.map_or(first, RawValue::get))?;
    if body.threads.0.is_empty() {
        return Err(match header.bug_type {
            Some(bug_type) => AppleReportError::NotACrash(bug_type),
            None => AppleReportError::NoThreads,
        });
    }
    let facts = facts(&header, &body);
    let images = &body.used_images.0;
    let threads = (0..).zip(body.threads.0);
    let stacktraces = threads.map(|(number, thread)| Stacktrace {
        thread_id: Some(number),
        is_requesting: Some(thread.triggered || body.faulting_thread == Some(number)),
        thread_name: ThreadNames {
            name: thread.name.as_deref(),
            queue: thread.queue.as_deref(),
        }
        .shown(),
        registers: thread.thread_state.0,
        frames: frames(thread.frames.0, images),
    });
    let mut stacktraces: Vec<Stacktrace> = stacktraces.collect();
    let last = frames(body.last_exception_backtrace.0, images);
    stacktraces.extend(last_exception(last));
    Ok(ParsedReport {
        facts,
        stacktraces,
        modules: images.iter().filter_map(Image::module).collect(),
    })
}

fn facts(header: &ReportHeader, body: &Body) -> CrashFacts {
    let OsTrain { train, build } = &body.os_version;
    let os = match train.is_empty() {
        true => OsVersion::split(header.os_version.as_deref().unwrap_or_default()),
        false => OsVersion::split(&format!("{train} ({build})")),
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
fn details(body: &Body) -> Option<String> {
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
    joined(&mut body.asi.values().flat_map(|texts| &texts.0))
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

    fn shown(&self) -> &str {
        match self.path.is_empty() {
            true => &self.name,
            false => &self.path,
        }
    }
}

/// Returns the frames of a thread.
fn frames(frames: Vec<ReportedFrame>, images: &[Image]) -> Vec<Frame> {
    let called = frames.into_iter().filter(|frame| !frame.inline);
    let frame = |frame: ReportedFrame| {
        let image = images.get(frame.image_index);
        let base = image.map_or(0, |image| image.base);
        let package = image.map(Image::shown).filter(|name| !name.is_empty());
        Frame {
            instruction_addr: Hex(base.saturating_add(frame.image_offset)),
            package: package.map(Into::into),
            function: frame.symbol.map(Into::into),
            filename: frame.source_file.map(Into::into),
            lineno: frame.source_line,
            ..Frame::default()
        }
    };
    called.map(frame).collect()
}

/// A sequence of at most `N` elements. `null` is the empty sequence.
struct Bounded<T, const N: usize>(Vec<T>);

impl<T, const N: usize> Default for Bounded<T, N> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for Bounded<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements<T, const N: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for Elements<T, N> {
            type Value = Bounded<T, N>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {N} elements")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
                Ok(Bounded::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = from.next_element()? {
                    if elements.len() == N {
                        return Err(de::Error::invalid_length(N + 1, &self));
                    }
                    elements.push(element);
                }
                Ok(Bounded(elements))
            }
        }

        deserializer.deserialize_any(Elements(PhantomData))
    }
}

/// The registers of a thread. A register is an object with its value. A list of such objects, named
/// `x`, has the general registers of ARM.
#[derive(Default)]
struct Registers(BTreeMap<String, Hex>);

/// The value of a register, or values of numbered registers; empty for anything else.
struct Values(Vec<u64>);

#[derive(Deserialize)]
struct Register {
    /// Absent in what is not a register: the state of a translated program (`rosetta`).
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
                        let name = match is_numbered {
                            true => format!("{name}{number}"),
                            false => name.clone(),
                        };
                        registers.insert(name, Hex(value));
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
        struct OneOrMany;

        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Values;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a register, or a list of registers")
            }

            fn visit_map<A: MapAccess<'de>>(self, from: A) -> Result<Values, A::Error> {
                let register = Register::deserialize(de::value::MapAccessDeserializer::new(from))?;
                Ok(Values(register.value.into_iter().collect()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Values, A::Error> {
                let mut values = Vec::new();
                while values.len() <= limits::REGISTERS
                    && let Some(register) = from.next_element::<Register>()?
                {
                    values.extend(register.value);
                }
                while from.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Values(values))
            }

            // The flavor of the state, and whatever else is not a register.
            fn visit_str<E: de::Error>(self, _: &str) -> Result<Values, E> {
                Ok(Values(Vec::new()))
            }

            fn visit_u64<E: de::Error>(self, _: u64) -> Result<Values, E> {
                Ok(Values(Vec::new()))
            }

            fn visit_bool<E: de::Error>(self, _: bool) -> Result<Values, E> {
                Ok(Values(Vec::new()))
            }

            fn visit_unit<E: de::Error>(self) -> Result<Values, E> {
                Ok(Values(Vec::new()))
            }
        }

        deserializer.deserialize_any(OneOrMany)
    }
}
