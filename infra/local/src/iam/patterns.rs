//! Wildcards of policies: `*` is any text, `?` is any one character.

/// Returns whether `text` matches `pattern` as a whole.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut of_text) = (0, 0);
    // Where to continue if the text that the last `*` stands for has to be longer.
    let mut last_star: Option<(usize, usize)> = None;
    while of_text < text.len() {
        match pattern.get(at) {
            Some('*') => {
                last_star = Some((at, of_text));
                at += 1;
            }
            Some(one) if *one == '?' || *one == text[of_text] => {
                at += 1;
                of_text += 1;
            }
            _ => match last_star {
                Some((star, until)) => {
                    last_star = Some((star, until + 1));
                    at = star + 1;
                    of_text = until + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|one| *one == '*')
}

/// Returns whether an ARN matches a pattern: part by part, so that a `*` in the account does not
/// reach the resource. `*` alone matches every ARN.
pub(super) fn matches_arn(pattern: &str, arn: &str) -> bool {
    if pattern == "*" {
        return true;
    }
    let parts = |text| str::splitn(text, PARTS_OF_AN_ARN, ':');
    parts(pattern).count() == parts(arn).count()
        && parts(pattern)
            .zip(parts(arn))
            .all(|(pattern, part)| matches(pattern, part))
}

/// Returns whether a text is an ARN or a pattern of one.
pub(super) fn is_arn(text: &str) -> bool {
    text == "*"
        || (text.starts_with("arn:")
            && text.splitn(PARTS_OF_AN_ARN, ':').count() == PARTS_OF_AN_ARN)
}

/// `arn:partition:service:region:account:resource`; the resource may have colons.
const PARTS_OF_AN_ARN: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_text_and_a_question_mark_one_character() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("a*", "a", true),
            ("a*", "abc", true),
            ("a*", "ca", false),
            ("*c", "abc", true),
            ("a*c", "abcbc", true),
            ("a*c*d", "accd", true),
            ("a*c*d", "acd!", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a.c", "abc", false),
            ("é?", "éü", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_star_does_not_leave_its_part_of_an_arn() {
        for (pattern, arn, expected) in [
            ("*", "arn:aws:s3:::b/k", true),
            ("arn:aws:s3:::b/*", "arn:aws:s3:::b/k/l", true),
            ("arn:aws:s3:::b/*", "arn:aws:s3:::b", false),
            ("arn:aws:s3:::b", "arn:aws:s3:::b/k", false),
            (
                "arn:aws:s3:::b/derived/*",
                "arn:aws:s3:::b/requests/k",
                false,
            ),
            ("arn:aws:sqs:*:1:q", "arn:aws:sqs:eu-central-1:1:q", true),
            ("arn:aws:sqs:*:q", "arn:aws:sqs:eu-central-1:1:q", false),
            ("arn:aws:*:::b", "arn:aws:sqs:r:1:b", false),
            (
                "arn:aws:logs:r:1:log-group:*",
                "arn:aws:logs:r:1:log-group:a:b",
                true,
            ),
        ] {
            assert_eq!(matches_arn(pattern, arn), expected, "{pattern} {arn}");
        }
        assert!(is_arn("*") && is_arn("arn:aws:s3:::b") && !is_arn("b") && !is_arn("arn:aws:s3:b"));
    }
}
