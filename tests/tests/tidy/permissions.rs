//! Permissions: no function can write to a bucket whose events invoke it. Only `symbolicate`
//! creates uploads for clients, and nothing but the API invokes it.

use crate::project::read;

const TEMPLATE: &str = "infra/template.yaml";

/// Returns the name of the resource that starts at this line of `Resources`.
fn resource(line: &str) -> Option<&str> {
    let name = line.strip_prefix("  ")?.strip_suffix(':')?;
    name.chars().all(char::is_alphanumeric).then_some(name)
}

#[test]
fn no_function_writes_to_a_bucket_whose_events_invoke_it() {
    let text = read(TEMPLATE).unwrap();
    let (mut inside, mut announcing) = ("", Vec::new());
    for line in text.lines() {
        inside = resource(line).unwrap_or(inside);
        if line.trim() == "NotificationConfiguration:" {
            announcing.push(inside);
        }
    }
    assert_eq!(
        announcing,
        ["UploadsBucket"],
        "{TEMPLATE}: buckets that send events"
    );
    let mut writing = Vec::new();
    let (_, function) = text.split_once("\n  SymbolicateFunction:").unwrap();
    let (_, events) = function.split_once("      Events:\n").unwrap();
    let (events, _) = events.split_once("\n\n").unwrap();
    assert_eq!(
        events.matches("Type: ").count(),
        events.matches("Type: HttpApi").count(),
        "{TEMPLATE}: symbolicate creates uploads, so only the API may invoke it"
    );
    let (mut inside, mut lines) = ("", text.lines().peekable());
    while let Some(line) = lines.next() {
        inside = resource(line).unwrap_or(inside);
        if line.trim() != "- Effect: Allow" {
            continue;
        }
        // A statement ends at a line with less indentation.
        let indent = |line: &str| line.len() - line.trim_start().len();
        let mut own = Vec::new();
        while let Some(of_statement) = lines.next_if(|line| indent(line) >= 16) {
            own.push(of_statement);
        }
        let own = own.join("\n");
        if own.contains("s3:Put") || own.contains("s3:Delete") {
            writing.push(inside);
            assert!(
                inside == "SymbolicateRole" || !own.contains("UploadsBucket"),
                "{TEMPLATE}: a function that writes to a bucket with events can cause an endless loop:\n{own}"
            );
        }
    }
    assert_eq!(
        writing,
        [
            "SymbolicateRole",
            "SymbolicateRole",
            "SymbolicateRole",
            "DeriveRole",
            "PruneRole"
        ],
        "{TEMPLATE}: statements that permit writing to a bucket"
    );
}
