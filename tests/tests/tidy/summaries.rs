//! The lines that functions log at the end of each invocation: code and documents have the same
//! fields.

use symdepot::runtime::{MessageSummary, RequestSummary, RunSummary};

use crate::project::read;

#[test]
fn every_field_of_a_line_has_a_row_in_the_documents_and_every_row_a_field() {
    let operations = read("docs/operations.md").unwrap();
    for (message, fields) in [
        (RequestSummary::MESSAGE, RequestSummary::FIELDS),
        (MessageSummary::MESSAGE, MessageSummary::FIELDS),
        (RunSummary::MESSAGE, RunSummary::FIELDS),
    ] {
        let heading = operations
            .lines()
            .find(|line| line.starts_with("### ") && line.contains(&format!("`{message}`")));
        let heading = heading.unwrap_or_else(|| panic!("docs/operations.md: no `{message}`"));
        let (_, section) = operations.split_once(heading).unwrap();
        let section = section.split("\n#").next().unwrap_or_default();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        let explained: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
        assert_eq!(
            fields, explained,
            "shared/src/runtime/summary.rs (left) and docs/operations.md (right): `{message}`"
        );
    }
}
