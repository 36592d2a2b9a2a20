//! Permissions: no function can write to a bucket whose events invoke it.

use crate::project::read;

const TEMPLATE: &str = "infra/template.yaml";

/// Returns the name of the resource that starts at this line of `Resources`.
fn resource(line: &str) -> Option<&str> {
    let name = line.strip_prefix("  ")?.strip_suffix(':')?;
    name.chars().all(char::is_alphanumeric).then_some(name)
}

#[test]
fn no_function_writes_to_the_bucket_that_sends_events() {
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
    let mut writing = 0;
    for statement in text.split("- Effect: Allow").skip(1) {
        // A statement ends at a line with less indentation.
        let lines = statement.lines().skip(1);
        let indent = |line: &str| line.len() - line.trim_start().len();
        let own: Vec<&str> = lines.take_while(|line| indent(line) >= 14).collect();
        let own = own.join("\n");
        if own.contains("s3:Put") || own.contains("s3:Delete") {
            writing += 1;
            assert!(
                !own.contains("UploadsBucket"),
                "{TEMPLATE}: a function that writes to a bucket with events can cause an endless loop:\n{own}"
            );
        }
    }
    assert_eq!(
        writing, 4,
        "{TEMPLATE}: number of statements that permit writing to a bucket"
    );
}
