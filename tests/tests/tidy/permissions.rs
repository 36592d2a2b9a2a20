//! What the functions may do: nothing that they write causes an event that they are invoked by.

use crate::project::read;

const TEMPLATE: &str = "infra/template.yaml";

/// Returns the resource that a line at the left edge of `Resources` begins.
fn resource(line: &str) -> Option<&str> {
    let name = line.strip_prefix("  ")?.strip_suffix(':')?;
    name.chars().all(char::is_alphanumeric).then_some(name)
}

#[test]
fn the_bucket_of_the_caches_announces_nothing_and_nobody_writes_to_that_of_the_uploads() {
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
        // A statement ends where less indented text begins.
        let lines = statement.lines().skip(1);
        let indent = |line: &str| line.len() - line.trim_start().len();
        let own: Vec<&str> = lines.take_while(|line| indent(line) >= 14).collect();
        let own = own.join("\n");
        if own.contains("s3:Put") || own.contains("s3:Delete") {
            writing += 1;
            assert!(
                !own.contains("UploadsBucket"),
                "{TEMPLATE}: who writes where events come from may go round in a circle:\n{own}"
            );
        }
    }
    assert_eq!(
        writing, 3,
        "{TEMPLATE}: statements that let somebody write to a bucket"
    );
}
