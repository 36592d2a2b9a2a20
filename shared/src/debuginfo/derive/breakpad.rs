//! Breakpad files whose records are not in the order in which `symbolic` reads them.
//!
//! Source of the format: Breakpad's `docs/symbol_files.md`. It says where records usually are; the
//! reader of Breakpad itself accepts them in any order.

use memchr::memmem;

/// Returns a Breakpad file with all its `FILE` records behind its header. Returns `None` if they
/// are there already, or if memory does not suffice.
///
/// `symbolic` ignores the others, and takes those behind a `FUNC` record for broken lines.
pub(super) fn in_order(symbols: &[u8]) -> Option<Vec<u8>> {
    const HEADER: [&[u8]; 3] = [b"MODULE ", b"INFO ", b"FILE "];
    let is_of_header = |line: &&[u8]| HEADER.iter().any(|kind| line.starts_with(kind));
    let header = lines(symbols).take_while(is_of_header);
    let (header, rest) = symbols.split_at_checked(header.map(<[u8]>::len).sum())?;
    memmem::find(rest, b"\nFILE ")?;

    let mut ordered = Vec::new();
    // The last line may have no end.
    ordered.try_reserve_exact(symbols.len() + 1).ok()?;
    ordered.extend_from_slice(header);
    let is_file = |line: &&[u8]| line.starts_with(b"FILE ");
    for file in lines(rest).filter(is_file) {
        ordered.extend_from_slice(file);
    }
    if ordered.last() != Some(&b'\n') {
        ordered.push(b'\n');
    }
    for line in lines(rest).filter(|line| !is_file(line)) {
        ordered.extend_from_slice(line);
    }
    Some(ordered)
}

/// Returns the lines of a file, with their ends.
fn lines(symbols: &[u8]) -> impl Iterator<Item = &[u8]> {
    symbols.split_inclusive(|byte| *byte == b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_records_are_placed_behind_the_header() {
        let ordered = |symbols: &str| {
            let ordered = in_order(symbols.as_bytes())?;
            Some(String::from_utf8(ordered).unwrap())
        };
        let header = "MODULE Linux x86_64 1 a\nINFO CODE_ID 1\nFILE 0 a.c\n";
        let function = "FUNC 10 10 0 f\n10 10 1 1\n";
        assert_eq!(ordered(&format!("{header}{function}")), None);
        assert_eq!(ordered(header), None);
        let late = format!("{header}FUNC 10 10 0 f\nFILE 1 b.c\n10 10 1 1\nFILE 2 c.c");
        let expected = format!("{header}FILE 1 b.c\nFILE 2 c.c\n{function}");
        assert_eq!(ordered(&late).as_deref(), Some(expected.as_str()));
        // Nothing but these has to be in a place.
        let public = format!("{header}PUBLIC 30 0 p\nFILE 1 b.c\n{function}");
        let expected = format!("{header}FILE 1 b.c\nPUBLIC 30 0 p\n{function}");
        assert_eq!(ordered(&public).as_deref(), Some(expected.as_str()));
    }
}
