//! Runs `eu-addr2line` and parses its output.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::BenchError;

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
    let failed = |source| BenchError::Tool {
        tool: "eu-addr2line".to_owned(),
        source,
    };
    let mut questions = tempfile::tempfile().map_err(failed)?;
    let text: String = addresses
        .iter()
        .map(|address| format!("{address:#x}\n"))
        .collect();
    questions.write_all(text.as_bytes()).map_err(failed)?;
    std::io::Seek::rewind(&mut questions).map_err(failed)?;
    let output = Command::new("eu-addr2line")
        .args(["-a", "-f", "-i", "-e"])
        .arg(debug)
        .stdin(questions)
        .stderr(Stdio::piped())
        .output()
        .map_err(failed)?;
    let said = parse(&String::from_utf8_lossy(&output.stdout));
    // The tool exits with 1 if it knows nothing about an address, but prints the others.
    let has_ended = matches!(output.status.code(), Some(0 | 1));
    if !has_ended || said.len() != addresses.len() {
        return Err(BenchError::Answer {
            what: "the output of eu-addr2line",
            found: format!(
                "{} results for {} addresses; {}",
                said.len(),
                addresses.len(),
                String::from_utf8_lossy(&output.stderr)
            ),
        });
    }
    Ok(said)
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
    fn a_line_of_zero_is_none() {
        assert_eq!(place_of("a.c:0:0"), None);
        assert_eq!(place_of("/x/a.c:12"), Some(("a.c".to_owned(), 12)));
        assert_eq!(place_of("/x/a.c:12:3"), Some(("a.c".to_owned(), 12)));
    }
}
