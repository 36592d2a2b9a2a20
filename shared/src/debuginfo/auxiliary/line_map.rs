//! Line maps: from lines of the C++ that Unity's IL2CPP generated to lines of the C# it came from.
//!
//! A line map is JSON: an object of C++ files, each an object of C# files, each an object from
//! lines of C++, as text, to lines of C#. Under the key `__debug-id__` is the debug id of the debug
//! file that the map belongs to. Lookups give the same answers as `symbolic_il2cpp::LineMapping`,
//! which the tests compare with. That type holds the whole file as a tree of values first, which
//! takes many times its size in memory; this reader holds twelve bytes per line.

use std::fmt;

use foldhash::{HashMap, HashMapExt};
use indexmap::IndexSet;
use memchr::memmem;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::limits::{MAX_MAP_BYTES, check_size};
use crate::domain::DebugId;

/// The key of the debug id.
const DEBUG_ID: &str = "__debug-id__";

/// What is wrong with a file if nothing else is known.
const INVALID: &str = "it is not valid JSON";

/// The maximum distance of a line to the mapped line before it whose answer it gets.
const MAX_DISTANCE: u32 = 50;

/// The maximum number of lines.
const MAX_LINES: usize = 16 << 20;

/// The maximum number of C++ files, and of C# files in them. Each takes about a hundred bytes of
/// memory in addition to its name.
const MAX_FILES: usize = 1 << 20;

/// A line map.
#[derive(Debug, Default)]
pub(in crate::debuginfo) struct LineMap {
    debug_id: Option<DebugId>,
    /// The C# files.
    sources: IndexSet<String, foldhash::fast::RandomState>,
    /// By C++ file: the mapped lines, in order.
    files: HashMap<String, Vec<MappedLine>>,
}

#[derive(Clone, Copy, Debug)]
struct MappedLine {
    generated: u32,
    source: SourceLine,
}

/// A line of C#.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::debuginfo) struct SourceLine {
    /// The number of the file: see [`LineMap::file`].
    pub(in crate::debuginfo) file: u32,
    pub(in crate::debuginfo) line: u32,
}

impl LineMap {
    /// Reads a line map.
    ///
    /// # Errors
    ///
    /// The reason why it is not one. It does not quote the file.
    pub(in crate::debuginfo) fn read(json: &[u8]) -> Result<Self, String> {
        check_size(json, MAX_MAP_BYTES, "line map")?;
        Self::read_within(json, (MAX_LINES, MAX_FILES))
    }

    /// Reads a line map of at most this many lines and files.
    fn read_within(json: &[u8], (lines, files): (usize, usize)) -> Result<Self, String> {
        let mut reader = LineMapReader {
            map: LineMap {
                files: HashMap::new(),
                ..LineMap::default()
            },
            lines_left: lines,
            files_left: files,
            problem: INVALID,
        };
        let mut parser = serde_json::Deserializer::from_slice(json);
        let read = AllFiles(&mut reader).deserialize(&mut parser);
        read.and_then(|()| parser.end()).map_err(|error| {
            let is_valid = reader.problem == INVALID && error.is_data();
            if is_valid && memmem::find(json, b"\"mappings\"").is_some() {
                return "a source map, which is not read: stack traces of JavaScript are not symbolicated".to_owned();
            }
            let problem = if is_valid { "it is not an object of C++ files, each an object of C# files" } else { reader.problem };
            let line = error.line();
            format!("JSON that is not a line map: {problem}, at line {line}")
        })?;
        if reader.map.files.is_empty() && reader.map.debug_id.is_none() {
            return Err("JSON that is not a line map: it maps no line".to_owned());
        }
        Ok(reader.map)
    }

    /// Returns the debug id of the debug file that it belongs to, if the map contains it.
    pub(in crate::debuginfo) fn debug_id(&self) -> Option<DebugId> {
        self.debug_id
    }

    /// Returns the C# line for a C++ line. A line without an answer of its own gets that of the
    /// last line before it that has one, unless that is too far away.
    pub(in crate::debuginfo) fn find(&self, path: &str, line: u32) -> Option<SourceLine> {
        let lines = self.files.get(path)?;
        let after = lines.partition_point(|mapped| mapped.generated <= line);
        let mapped = lines.get(after.checked_sub(1)?)?;
        (line - mapped.generated <= MAX_DISTANCE).then_some(mapped.source)
    }

    /// Returns the path of a C# file.
    pub(in crate::debuginfo) fn file(&self, number: u32) -> &str {
        let file = self.sources.get_index(number as usize);
        file.map_or("", String::as_str)
    }
}

/// The state of reading.
struct LineMapReader {
    map: LineMap,
    lines_left: usize,
    files_left: usize,
    /// What is wrong if reading fails.
    problem: &'static str,
}

impl LineMapReader {
    fn fail<E: serde::de::Error>(&mut self, problem: &'static str) -> E {
        self.problem = problem;
        E::custom(problem)
    }

    /// Counts the name of a file.
    fn count_file<E: serde::de::Error>(&mut self) -> Result<(), E> {
        let left = self.files_left.checked_sub(1);
        self.files_left = left.ok_or_else(|| self.fail("it names too many files"))?;
        Ok(())
    }

    /// Counts a line.
    fn count_line<E: serde::de::Error>(&mut self) -> Result<(), E> {
        let left = self.lines_left.checked_sub(1);
        self.lines_left = left.ok_or_else(|| self.fail("it maps too many lines"))?;
        Ok(())
    }
}

/// Reads C++ files.
struct AllFiles<'r>(&'r mut LineMapReader);

/// Reads the C# files of one C++ file.
struct OneFile<'r> {
    reader: &'r mut LineMapReader,
    lines: &'r mut Vec<MappedLine>,
}

/// Reads the lines of one C# file.
struct OneSource<'r> {
    reader: &'r mut LineMapReader,
    lines: &'r mut Vec<MappedLine>,
    source: u32,
}

/// Reads the debug id.
struct OwnId<'r>(&'r mut LineMapReader);

/// Implements [`DeserializeSeed`] for a reader of JSON objects.
macro_rules! reads_object {
    ($($reader:ident),*) => {
        $(impl<'de> DeserializeSeed<'de> for $reader<'_> {
            type Value = ();

            fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
                json.deserialize_map(self)
            }
        })*
    };
}

reads_object! { AllFiles, OneFile, OneSource, OwnId }

impl<'de> Visitor<'de> for AllFiles<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of C++ files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut files: A) -> Result<(), A::Error> {
        let Self(reader) = self;
        while let Some(file) = files.next_key::<String>()? {
            reader.count_file()?;
            if file == DEBUG_ID {
                files.next_value_seed(OwnId(reader))?;
                continue;
            }
            let mut lines = Vec::new();
            let lines_of_file = OneFile {
                reader,
                lines: &mut lines,
            };
            files.next_value_seed(lines_of_file)?;
            if !lines.is_empty() {
                lines.sort_by_key(|mapped| mapped.generated);
                lines.shrink_to_fit();
                reader.map.files.insert(file, lines);
            }
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for OneFile<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of C# files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut sources: A) -> Result<(), A::Error> {
        let Self { reader, lines } = self;
        while let Some(source) = sources.next_key::<String>()? {
            reader.count_file()?;
            let (source, _) = reader.map.sources.insert_full(source);
            let lines_of_source = OneSource {
                reader,
                lines,
                source: u32::try_from(source).unwrap_or(u32::MAX),
            };
            sources.next_value_seed(lines_of_source)?;
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for OneSource<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of lines")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut numbers: A) -> Result<(), A::Error> {
        let Self {
            reader,
            lines,
            source,
        } = self;
        while let Some(generated) = numbers.next_key::<String>()? {
            reader.count_line()?;
            let Ok(generated) = generated.parse() else {
                return Err(reader.fail("a line of C++ is not a number"));
            };
            reader.problem = "a line of C# is not a number";
            let line = numbers.next_value()?;
            reader.problem = INVALID;
            lines.push(MappedLine {
                generated,
                source: SourceLine { file: source, line },
            });
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for OwnId<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a debug id")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut ids: A) -> Result<(), A::Error> {
        let Self(reader) = self;
        while let Some(id) = ids.next_key::<String>()? {
            reader.count_file()?;
            let Ok(id) = id.parse::<DebugId>() else {
                reader.problem = "its debug id cannot be read";
                return Err(A::Error::custom(reader.problem));
            };
            reader.map.debug_id = Some(id).filter(|id| !id.is_nil());
            ids.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use symbolic::il2cpp::LineMapping;

    use super::*;

    #[test]
    fn lookups_give_the_answers_of_symbolic() {
        let json = r#"{
            "/il2cpp/a.cpp": {
                "Assets/B.cs": {"10": 3, "12": 4, "400": 9},
                "Assets/A.cs": {"11": 7, "5": 1, "90": 2}
            },
            "/il2cpp/empty.cpp": {},
            "/il2cpp/b.cpp": {"Assets/A.cs": {"4294967295": 4294967295, "0": 0}},
            "__debug-id__": {"2d10c42f-591d-3265-b147-78ba0868073f-a": {}}
        }"#;
        let oracle = LineMapping::parse(json.as_bytes()).unwrap();
        let map = LineMap::read(json.as_bytes()).unwrap();
        let id = "2d10c42f-591d-3265-b147-78ba0868073f-a".parse().unwrap();
        assert_eq!(map.debug_id(), Some(id));
        let mut found = 0;
        for path in [
            "/il2cpp/a.cpp",
            "/il2cpp/b.cpp",
            "/il2cpp/empty.cpp",
            "/c",
            DEBUG_ID,
        ] {
            for line in (0..500).chain([u32::MAX - 51, u32::MAX - 1, u32::MAX]) {
                let answer = map.find(path, line);
                let answer = answer.map(|at| (map.file(at.file), at.line));
                assert_eq!(answer, oracle.lookup(path, line), "{path}:{line}");
                found += usize::from(answer.is_some());
            }
        }
        assert!(found > 200, "{found}");
    }

    #[test]
    fn a_hostile_line_map_is_refused_with_a_reason() {
        let problem = |json: &[u8]| LineMap::read(json).unwrap_err();
        let endless = "{\"a\":".repeat(1 << 20);
        let deep = format!(
            "{{\"__debug-id__\": {{\"{:032x}\": {}",
            1,
            "[".repeat(1 << 20)
        );
        for (json, expected) in [
            (endless.as_bytes(), "a line of C++ is not a number"),
            (deep.as_bytes(), "not valid JSON"),
            (b"{\"a\": {\"b\": {\"1\": 2}}", "not valid JSON"),
            (b"{} {}", "not valid JSON"),
            (b"{}", "it maps no line"),
            (b"{\"\xff\": {}}", "not valid JSON"),
            (b"{\"frames\": [1]}", "it is not an object of C++ files"),
            (b"[1]", "it is not an object of C++ files"),
            (
                b"{\"version\": 3, \"sources\": [\"secret\"], \"mappings\": \"AAAA\"}",
                "a source map",
            ),
            (
                b"{\"a\": {\"b\": {\"x\": 2}}}",
                "a line of C++ is not a number",
            ),
            (b"{\"a\": {\"b\": {\"4294967296\": 2}}}", "a line of C++"),
            (
                b"{\"a\": {\"b\": {\"1\": -2}}}",
                "a line of C# is not a number",
            ),
            (
                b"{\"a\": {\"b\": {\"1\": {}}}}",
                "a line of C# is not a number",
            ),
            (
                b"{\"__debug-id__\": {\"secret\": {}}}",
                "its debug id cannot be read",
            ),
        ] {
            let problem = problem(json);
            assert!(problem.contains(expected), "{problem}");
            assert!(!problem.contains("secret"), "{problem}");
        }
    }

    #[test]
    fn the_numbers_of_files_and_lines_are_limited() {
        let json = r#"{"a": {"b": {"1": 1, "2": 2}}, "c": {"b": {"3": 3}}}"#;
        let read = |limits| LineMap::read_within(json.as_bytes(), limits);
        assert!(read((3, 4)).is_ok());
        let problem = read((3, 3)).unwrap_err();
        assert!(problem.contains("too many files"), "{problem}");
        let problem = read((2, 4)).unwrap_err();
        assert!(problem.contains("too many lines"), "{problem}");
    }
}
