//! Recursive loops: how often each function was invoked in one chain of events.
//!
//! A trace header has the field `Lineage`, which Lambda extends with each invocation. A function
//! passes the header on with its calls of AWS, SQS keeps it with a message, and the invocation for
//! that message continues the chain. After [`LIMIT`] invocations of one function in a chain, Lambda
//! ends the chain (AWS Lambda developer guide, "Use Lambda recursive loop detection to prevent
//! infinite loops"; AWS Compute Blog, "Detecting and stopping recursive loops in AWS Lambda
//! functions", which gives the number).
//!
//! The format of the field is not documented. In headers of AWS it is
//! `Lineage=<invocations>:<function>:<earlier invocations of it>`, with `|` between functions.

use md5::{Digest, Md5};

/// How often a function is invoked in one chain.
pub(super) const LIMIT: u64 = 16;

const FIELD: &str = "Lineage=";

/// An invocation that continues a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// The trace header that the function receives.
    pub(super) header: String,
    /// Which invocation of the function in the chain it is; 1 is the first.
    pub(super) number: u64,
}

/// Returns the next invocation of a function in the chain of a trace header.
pub(super) fn next(header: &str, function_arn: &str) -> Link {
    let own = id(function_arn);
    let mut functions = functions(header);
    let earlier = match functions.iter_mut().find(|(id, _)| *id == own) {
        Some((_, earlier)) => {
            *earlier = earlier.saturating_add(1);
            *earlier
        }
        None => {
            functions.push((own, 0));
            0
        }
    };
    let invocations = functions.iter().fold(0_u64, |sum, (_, earlier)| {
        sum.saturating_add(*earlier).saturating_add(1)
    });
    let functions: Vec<String> = functions
        .iter()
        .map(|(id, earlier)| format!("{id}:{earlier}"))
        .collect();
    let lineage = format!("{FIELD}{invocations}:{}", functions.join("|"));
    let mut fields: Vec<&str> = header
        .split(';')
        .filter(|field| !is_lineage(field))
        .collect();
    fields.push(&lineage);
    Link {
        header: fields.join(";"),
        number: earlier.saturating_add(1),
    }
}

/// Returns the functions of a chain and how often each was invoked before its last invocation.
fn functions(header: &str) -> Vec<(String, u64)> {
    let lineage = header.split(';').find(|field| is_lineage(field));
    let lineage = lineage.and_then(|field| field.trim().strip_prefix(FIELD));
    let parts = lineage.unwrap_or_default().split('|');
    // The number of all invocations, which begins the field, is not needed.
    let read = |part: &str| {
        let (named, earlier) = part.rsplit_once(':')?;
        let id = named.rsplit(':').next()?;
        Some((id.to_owned(), earlier.parse().ok()?))
    };
    parts.filter_map(read).collect()
}

fn is_lineage(field: &str) -> bool {
    field.trim().starts_with(FIELD)
}

/// Returns the id of a function in the field.
fn id(function_arn: &str) -> String {
    hex::encode(&Md5::digest(function_arn)[..4])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "Root=1-6aba3a9c-0ad723aa6f28be0c1799046b;Sampled=0";

    #[test]
    fn a_header_counts_the_invocations_of_each_function_of_its_chain() {
        // printf a | md5sum; printf b | md5sum
        let (a, b) = ("0cc175b9", "92eb5ffe");
        let first = next(ROOT, "a");
        assert_eq!(first.header, format!("{ROOT};Lineage=1:{a}:0"));
        let second = next(&first.header, "b");
        assert_eq!(second.header, format!("{ROOT};Lineage=2:{a}:0|{b}:0"));
        let third = next(&second.header, "b");
        assert_eq!(third.header, format!("{ROOT};Lineage=3:{a}:0|{b}:1"));
        let numbers = [first, second, third].map(|link| link.number);
        assert_eq!(numbers, [1, 1, 2]);
    }

    #[test]
    fn the_sixteenth_invocation_has_the_header_that_aws_gives_it() {
        let mut header = ROOT.to_owned();
        for number in 1..=16 {
            let link = next(&header, "a");
            assert_eq!(link.number, number);
            header = link.header;
        }
        assert_eq!(header, format!("{ROOT};Lineage=16:0cc175b9:15"));
    }

    #[test]
    fn a_field_that_cannot_be_read_begins_a_new_chain() {
        for field in ["Lineage=", "Lineage=x", "Lineage=1:0cc175b9:many"] {
            let link = next(&format!("{ROOT};{field}"), "a");
            assert_eq!(link.number, 1, "{field}");
            assert_eq!(link.header, format!("{ROOT};Lineage=1:0cc175b9:0"));
        }
    }
}
