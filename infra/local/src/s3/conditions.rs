//! Conditional requests: pure decisions based on the stored ETag.
//!
//! Source: Amazon S3 User Guide, "Conditional requests"; RFC 9110 §13 for the precedence of read
//! conditions.

use s3s::dto::{ETagCondition, Timestamp};
use s3s::{S3Result, s3_error};

/// The conditions of a write.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteConditions {
    /// `If-Match`.
    pub(crate) if_match: Option<ETagCondition>,
    /// `If-None-Match`; S3 accepts only `*` here.
    pub(crate) if_none_match: Option<ETagCondition>,
}

impl WriteConditions {
    /// Checks whether a write may replace an object with this ETag; `None` if there is no object.
    pub(crate) fn check(&self, stored: Option<&str>) -> S3Result<()> {
        match &self.if_none_match {
            None => {}
            Some(ETagCondition::Any) if stored.is_none() => {}
            Some(ETagCondition::Any) => {
                return Err(s3_error!(
                    PreconditionFailed,
                    "an object with this key exists already (If-None-Match: *)"
                ));
            }
            Some(ETagCondition::ETag(_)) => {
                return Err(s3_error!(
                    NotImplemented,
                    "If-None-Match of a write must be *"
                ));
            }
        }
        match (&self.if_match, stored) {
            (None, _) => Ok(()),
            (Some(_), None) => Err(s3_error!(
                NoSuchKey,
                "no object with this key exists (If-Match)"
            )),
            (Some(condition), Some(etag)) if matches(condition, etag) => Ok(()),
            (Some(_), Some(_)) => Err(s3_error!(
                PreconditionFailed,
                "the object with this key has a different ETag (If-Match)"
            )),
        }
    }
}

/// The conditions of a read, or of the source of a copy.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadConditions {
    /// `If-Match`.
    pub(crate) if_match: Option<ETagCondition>,
    /// `If-None-Match`.
    pub(crate) if_none_match: Option<ETagCondition>,
    /// `If-Modified-Since`.
    pub(crate) if_modified_since: Option<Timestamp>,
    /// `If-Unmodified-Since`.
    pub(crate) if_unmodified_since: Option<Timestamp>,
}

impl ReadConditions {
    /// Checks whether an object with this ETag and modification time may be read. `modified` has
    /// whole seconds, as headers do.
    pub(crate) fn check(&self, etag: &str, modified: &Timestamp) -> S3Result<()> {
        let failed = || {
            s3_error!(
                PreconditionFailed,
                "at least one of the preconditions does not hold"
            )
        };
        match (&self.if_match, &self.if_unmodified_since) {
            (Some(condition), _) if !matches(condition, etag) => return Err(failed()),
            (None, Some(since)) if modified > since => return Err(failed()),
            _ => {}
        }
        let unchanged = match (&self.if_none_match, &self.if_modified_since) {
            (Some(condition), _) => matches(condition, etag),
            (None, Some(since)) => modified <= since,
            (None, None) => false,
        };
        if unchanged {
            Err(s3_error!(NotModified, "not modified"))
        } else {
            Ok(())
        }
    }

    /// Same as [`ReadConditions::check`] for the source of a copy, which has no "not modified".
    pub(crate) fn check_source(&self, etag: &str, modified: &Timestamp) -> S3Result<()> {
        self.check(etag, modified).map_err(|_| {
            s3_error!(
                PreconditionFailed,
                "a precondition of the copy's source does not hold"
            )
        })
    }
}

fn matches(condition: &ETagCondition, etag: &str) -> bool {
    match condition {
        ETagCondition::Any => true,
        ETagCondition::ETag(wanted) => wanted.value() == etag,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use s3s::dto::ETag;

    use super::*;

    fn tag(value: &str) -> Option<ETagCondition> {
        Some(ETagCondition::ETag(ETag::Strong(value.to_owned())))
    }

    fn code(result: S3Result<()>) -> String {
        result.map_or_else(
            |error| error.code().as_str().to_owned(),
            |()| "ok".to_owned(),
        )
    }

    #[test]
    fn a_conditional_write_depends_on_the_stored_object() {
        let any = Some(ETagCondition::Any);
        for (if_match, if_none_match, stored, expected) in [
            (None, None, None, "ok"),
            (None, None, Some("a"), "ok"),
            (None, any.clone(), None, "ok"),
            (None, any.clone(), Some("a"), "PreconditionFailed"),
            (None, tag("a"), Some("b"), "NotImplemented"),
            (tag("a"), None, Some("a"), "ok"),
            (tag("a"), None, Some("b"), "PreconditionFailed"),
            (tag("a"), None, None, "NoSuchKey"),
            (any.clone(), None, Some("a"), "ok"),
            (any, None, None, "NoSuchKey"),
        ] {
            let conditions = WriteConditions {
                if_match,
                if_none_match,
            };
            assert_eq!(
                code(conditions.check(stored)),
                expected,
                "{conditions:?} {stored:?}"
            );
        }
    }

    #[test]
    fn etags_come_before_times_in_a_read() {
        let at = |seconds| Some(Timestamp::from(UNIX_EPOCH + Duration::from_secs(seconds)));
        let modified = at(100).unwrap();
        for (if_match, if_none_match, since, until, expected) in [
            (tag("a"), None, None, at(1), "ok"),
            (tag("b"), None, None, at(200), "PreconditionFailed"),
            (None, None, None, at(99), "PreconditionFailed"),
            (None, None, None, at(100), "ok"),
            (None, tag("a"), at(1), None, "NotModified"),
            (None, tag("b"), at(200), None, "ok"),
            (None, None, at(100), None, "NotModified"),
            (None, None, at(99), None, "ok"),
        ] {
            let conditions = ReadConditions {
                if_match,
                if_none_match,
                if_modified_since: since,
                if_unmodified_since: until,
            };
            assert_eq!(
                code(conditions.check("a", &modified)),
                expected,
                "{conditions:?}"
            );
        }
    }
}
