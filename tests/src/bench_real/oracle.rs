//! Runs `eu-addr2line` and `llvm-symbolizer`, and parses their output.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::BenchError;

/// The names of `llvm-symbolizer` on Debian.
const LLVM_SYMBOLIZER: [&str; 2] = ["llvm-symbolizer", "llvm-symbolizer-19"];

/// The output of the tool for one address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Its frames, innermost first.
    pub frames: Vec<Frame>,
}

/// One frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The function, as its linkage name; `None` if the tool knows none.
    pub function: Option<String>,
    /// The base name of the file, and the line; `None` if the tool knows none.
    pub line: Option<(String, u64)>,
}

/// Runs `eu-addr2line -a -f -i` for addresses in a file.
///
/// # Errors
/// It cannot be run, or its output has an unexpected form.
pub fn ask(debug: &Path, addresses: &[u64]) -> Result<Vec<Said>, BenchError> {
    let mut command = Command::new("eu-addr2line");
    command.args(["-a", "-f", "-i", "-e"]).arg(debug);
    // The tool exits with 1 if it knows nothing about an address, but prints the others.
    let output = answered("eu-addr2line", &mut command, addresses, &[0, 1])?;
    all_of("the output of eu-addr2line", parse(&output), addresses)
}

/// Runs `llvm-symbolizer` for addresses in a file.
///
/// # Errors
/// It is not installed or cannot be run, or its output has an unexpected form.
pub fn ask_llvm(debug: &Path, addresses: &[u64]) -> Result<Vec<Said>, BenchError> {
    let is_installed = |tool: &&&str| {
        let mut tried = Command::new(tool);
        tried.arg("--version").stdout(Stdio::null());
        tried.status().is_ok_and(|status| status.success())
    };
    let tool = LLVM_SYMBOLIZER.iter().find(is_installed);
    let tool = tool.ok_or(BenchError::MissingTool {
        tool: "llvm-symbolizer",
        package: "llvm",
    })?;
    let mut command = Command::new(tool);
    command
        .args(["--inlines", "--no-demangle", "--output-style=JSON", "--obj"])
        .arg(debug);
    let output = answered(tool, &mut command, addresses, &[0])?;
    let said: Result<Vec<Said>, _> = output.lines().map(parse_json).collect();
    let said = said.map_err(|error| BenchError::Answer {
        what: "the output of llvm-symbolizer",
        found: error.to_string(),
    })?;
    all_of("the output of llvm-symbolizer", said, addresses)
}

/// Returns what a tool prints for addresses, which it reads as lines.
fn answered(
    tool: &str,
    command: &mut Command,
    addresses: &[u64],
    codes: &[i32],
) -> Result<String, BenchError> {
    let failed = |source| BenchError::Tool {
        tool: tool.to_owned(),
        source,
    };
    let mut questions = tempfile::tempfile().map_err(failed)?;
    let text: String = addresses
        .iter()
        .map(|address| format!("{address:#x}\n"))
        .collect();
    questions.write_all(text.as_bytes()).map_err(failed)?;
    std::io::Seek::rewind(&mut questions).map_err(failed)?;
    command.stdin(questions).stderr(Stdio::piped());
    let output = command.output().map_err(failed)?;
    if !output
        .status
        .code()
        .is_some_and(|code| codes.contains(&code))
    {
        return Err(BenchError::ToolFailed {
            command: format!("{command:?}"),
            status: output.status,
            said: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            hint: "",
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the results, if there is one for each address.
fn all_of(what: &'static str, said: Vec<Said>, addresses: &[u64]) -> Result<Vec<Said>, BenchError> {
    if said.len() != addresses.len() {
        let found = format!("{} results for {} addresses", said.len(), addresses.len());
        return Err(BenchError::Answer { what, found });
    }
    Ok(said)
}

/// Parses a line of the output of `llvm-symbolizer`: the frames at one address.
fn parse_json(line: &str) -> Result<Said, serde_json::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Answer {
        #[serde(default)]
        symbol: Vec<Symbol>,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Symbol {
        function_name: String,
        file_name: String,
        line: u64,
    }

    let answer: Answer = serde_json::from_str(line)?;
    // An address without a function is an empty frame.
    let frames = answer.symbol.into_iter().map(|symbol| Frame {
        function: Some(symbol.function_name).filter(|name| !name.is_empty()),
        line: (symbol.line > 0).then(|| (base_name(&symbol.file_name).to_owned(), symbol.line)),
    });
    Ok(Said {
        frames: frames.collect(),
    })
}

/// Parses the output: a line with the address, then two lines for each frame: the function and the
/// place.
fn parse(text: &str) -> Vec<Said> {
    let mut all: Vec<Said> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") && line[2..].bytes().all(|digit| digit.is_ascii_hexdigit()) {
            all.push(Said::default());
            continue;
        }
        let place = lines.next().unwrap_or_default();
        if let Some(said) = all.last_mut() {
            said.frames.push(Frame {
                function: function(line),
                line: place_of(place),
            });
        }
    }
    all
}

/// `name`, or `name inlined at file:line:column in caller`.
fn function(line: &str) -> Option<String> {
    let name = line.split(" inlined at ").next().unwrap_or_default().trim();
    (!matches!(name, "" | "??" | "(null)")).then(|| name.to_owned())
}

/// `file:line:column`, or `file:line`, because a column of zero is omitted.
fn place_of(place: &str) -> Option<(String, u64)> {
    let place = place.split(" (").next().unwrap_or_default();
    let number = |text: &str| text.parse::<u64>().ok();
    let (rest, last) = place.rsplit_once(':')?;
    let last = number(last)?;
    let (file, line) = match rest
        .rsplit_once(':')
        .and_then(|(file, line)| Some((file, number(line)?)))
    {
        Some((file, line)) => (file, line),
        None => (rest, last),
    };
    (file != "??" && line > 0).then(|| (base_name(file).to_owned(), line))
}

/// Returns the last component of a path.
pub fn base_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_frames() {
        let said = parse(
            "0x00000000004cbbc6\n_ZN1aD4Ev inlined at /usr/include/b.h:1524:7 in _Z1cv.cold\n/usr/include/b.h:1070:6\n_Z1cv\n./src/c.cc:688\n\
             0x1437d18\n_fini\n??:0\n0x10\n??\n??:0\n",
        );
        let frame = |function: Option<&str>, line: Option<(&str, u64)>| Frame {
            function: function.map(str::to_owned),
            line: line.map(|(file, line)| (file.to_owned(), line)),
        };
        assert_eq!(
            said[0].frames,
            [
                frame(Some("_ZN1aD4Ev"), Some(("b.h", 1070))),
                frame(Some("_Z1cv"), Some(("c.cc", 688)))
            ]
        );
        assert_eq!(said[1].frames, [frame(Some("_fini"), None)]);
        assert_eq!(said[2].frames, [frame(None, None)]);
    }

    #[test]
    fn a_line_of_llvm_symbolizer_has_the_frames_of_an_address() {
        let said = parse_json(
            r#"{"Address":"0x1218","ModuleName":"lto","Symbol":[{"Column":0,"FileName":"/build/app/till.cpp","FunctionName":"count","Line":28},{"Column":3,"FileName":"","FunctionName":"_start","Line":0}]}"#,
        );
        let frame = |function: &str, line: Option<(&str, u64)>| Frame {
            function: Some(function.to_owned()),
            line: line.map(|(file, line)| (file.to_owned(), line)),
        };
        assert_eq!(
            said.unwrap().frames,
            [
                frame("count", Some(("till.cpp", 28))),
                frame("_start", None)
            ]
        );
        let nothing = r#"{"Address":"0x10","ModuleName":"lto","Symbol":[{"FileName":"","FunctionName":"","Line":0}]}"#;
        assert_eq!(parse_json(nothing).unwrap().frames, [Frame::default()]);
        let nothing = r#"{"Address":"0x10","ModuleName":"lto","Symbol":[]}"#;
        assert_eq!(parse_json(nothing).unwrap().frames, []);
    }

    #[test]
    fn a_line_of_zero_is_none() {
        assert_eq!(place_of("a.c:0:0"), None);
        assert_eq!(place_of("/x/a.c:12"), Some(("a.c".to_owned(), 12)));
        assert_eq!(place_of("/x/a.c:12:3"), Some(("a.c".to_owned(), 12)));
    }
}
