//! The permissions that operations of S3 need.
//!
//! Source: Amazon S3 API reference, the section "Permissions" of each operation; Service
//! Authorization Reference, "Actions, resources, and condition keys for Amazon S3".

use http::{HeaderMap, Uri};
use percent_encoding::percent_decode_str;

use super::access::Asked;
use super::conditions::Context;

/// Returns what a request asks for, or nothing if each key of its body is judged alone
/// ([`deletion`]).
pub(crate) fn asked(
    operation: &str,
    bucket: Option<&str>,
    key: Option<&str>,
    uri: &Uri,
    headers: &HeaderMap,
) -> Vec<Asked> {
    let query = Query(uri.query().unwrap_or_default());
    let of_version = query.has("versionId");
    let (action, creates) = match operation {
        "ListBuckets" => return vec![Asked::new("s3:ListAllMyBuckets", "*")],
        "DeleteObjects" => return Vec::new(),
        "GetObject" | "HeadObject" if of_version => ("s3:GetObjectVersion", None),
        "GetObject" | "HeadObject" => ("s3:GetObject", None),
        "DeleteObject" if of_version => ("s3:DeleteObjectVersion", None),
        "PutObject" | "CompleteMultipartUpload" | "CopyObject" => ("s3:PutObject", Some("true")),
        "CreateMultipartUpload" | "UploadPart" | "UploadPartCopy" => {
            ("s3:PutObject", Some("false"))
        }
        "ListObjects" | "ListObjectsV2" | "HeadBucket" => ("s3:ListBucket", None),
        "ListObjectVersions" => ("s3:ListBucketVersions", None),
        "ListMultipartUploads" => ("s3:ListBucketMultipartUploads", None),
        "ListParts" => ("s3:ListMultipartUploadParts", None),
        _ => ("", None),
    };
    let action = match action {
        "" => format!("s3:{operation}"),
        known => known.to_owned(),
    };
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let mut context = Context::default();
    if let Some(creates) = creates {
        context = context
            .with("s3:ObjectCreationOperation", creates)
            .with_some("s3:if-none-match", header("if-none-match"))
            .with_some("s3:if-match", header("if-match"));
    }
    if action.starts_with("s3:ListBucket") {
        context = context
            .with_some("s3:prefix", query.get("prefix"))
            .with_some("s3:delimiter", query.get("delimiter"))
            .with_some("s3:max-keys", query.get("max-keys"));
    }
    let mut asked = vec![Asked {
        action,
        resource: arn(bucket.unwrap_or_default(), key),
        context,
    }];
    if let Some(source) = header("x-amz-copy-source") {
        asked.push(read_of_source(source));
    }
    // A condition on an ETag tells something about the object that is replaced.
    if creates == Some("true") && header("if-match").is_some() {
        asked.push(Asked::new(
            "s3:GetObject",
            arn(bucket.unwrap_or_default(), key),
        ));
    }
    asked
}

/// Returns what the deletion of one key of a batch asks for.
pub(crate) fn deletion(bucket: &str, key: &str, of_version: bool) -> Asked {
    let action = if of_version {
        "s3:DeleteObjectVersion"
    } else {
        "s3:DeleteObject"
    };
    Asked::new(action, arn(bucket, Some(key)))
}

/// Returns what the signer needs to learn that an object does not exist: without it, S3 answers
/// that access is denied.
pub(crate) fn absence(bucket: &str) -> Asked {
    Asked::new("s3:ListBucket", arn(bucket, None))
}

/// Returns the ARN of a bucket or of an object.
pub(crate) fn arn(bucket: &str, key: Option<&str>) -> String {
    match key {
        Some(key) => format!("arn:aws:s3:::{bucket}/{key}"),
        None => format!("arn:aws:s3:::{bucket}"),
    }
}

fn read_of_source(source: &str) -> Asked {
    let (path, version) = match source.split_once('?') {
        Some((path, _)) => (path, true),
        None => (source, false),
    };
    let path = percent_decode_str(path.trim_start_matches('/')).decode_utf8_lossy();
    let action = if version {
        "s3:GetObjectVersion"
    } else {
        "s3:GetObject"
    };
    Asked::new(action, format!("arn:aws:s3:::{path}"))
}

/// The query of a URL.
struct Query<'a>(&'a str);

impl Query<'_> {
    fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.0.split('&');
        pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
    }

    fn has(&self, name: &str) -> bool {
        self.pairs().any(|(other, _)| other == name)
    }

    fn get(&self, name: &str) -> Option<String> {
        let (_, value) = self.pairs().find(|(other, _)| *other == name)?;
        let value = value.replace('+', " ");
        Some(percent_decode_str(&value).decode_utf8_lossy().into_owned())
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn of(operation: &str, path: &str, headers: &[(&'static str, &'static str)]) -> Vec<String> {
        let uri: Uri = path.parse().unwrap();
        let path = uri.path().trim_start_matches('/');
        let (bucket, key) = match path.split_once('/') {
            Some((bucket, key)) => (Some(bucket), Some(key)),
            None => ((!path.is_empty()).then_some(path), None),
        };
        let headers = headers.iter().map(|(name, value)| {
            let name = http::HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        let asked = asked(operation, bucket, key, &uri, &headers.collect());
        let shown = asked
            .iter()
            .map(|one| format!("{} {}", one.action, &one.resource));
        shown
            .map(|text| text.replace("arn:aws:s3:::", ""))
            .collect()
    }

    #[test]
    fn each_operation_needs_the_documented_permissions() {
        for (operation, path, expected) in [
            ("ListBuckets", "/", "s3:ListAllMyBuckets *"),
            ("HeadBucket", "/b", "s3:ListBucket b"),
            ("ListObjectsV2", "/b?list-type=2", "s3:ListBucket b"),
            ("GetObject", "/b/k/l", "s3:GetObject b/k/l"),
            ("HeadObject", "/b/k", "s3:GetObject b/k"),
            ("GetObject", "/b/k?versionId=1", "s3:GetObjectVersion b/k"),
            (
                "GetObjectTagging",
                "/b/k?tagging",
                "s3:GetObjectTagging b/k",
            ),
            ("PutObject", "/b/k", "s3:PutObject b/k"),
            ("CreateMultipartUpload", "/b/k?uploads", "s3:PutObject b/k"),
            (
                "UploadPart",
                "/b/k?uploadId=1&partNumber=1",
                "s3:PutObject b/k",
            ),
            (
                "CompleteMultipartUpload",
                "/b/k?uploadId=1",
                "s3:PutObject b/k",
            ),
            (
                "AbortMultipartUpload",
                "/b/k?uploadId=1",
                "s3:AbortMultipartUpload b/k",
            ),
            (
                "ListParts",
                "/b/k?uploadId=1",
                "s3:ListMultipartUploadParts b/k",
            ),
            (
                "ListMultipartUploads",
                "/b?uploads",
                "s3:ListBucketMultipartUploads b",
            ),
            ("DeleteObject", "/b/k", "s3:DeleteObject b/k"),
            (
                "DeleteObject",
                "/b/k?versionId=1",
                "s3:DeleteObjectVersion b/k",
            ),
            ("CreateBucket", "/b", "s3:CreateBucket b"),
            ("PutBucketPolicy", "/b?policy", "s3:PutBucketPolicy b"),
        ] {
            assert_eq!(of(operation, path, &[]), [expected], "{operation} {path}");
        }
        assert!(of("DeleteObjects", "/b?delete", &[]).is_empty());
        assert_eq!(
            deletion("b", "k", false),
            Asked::new("s3:DeleteObject", "arn:aws:s3:::b/k")
        );
        assert_eq!(
            of("CopyObject", "/b/k", &[("x-amz-copy-source", "/a/x%20y")]),
            ["s3:PutObject b/k", "s3:GetObject a/x y"]
        );
        assert_eq!(
            of(
                "UploadPartCopy",
                "/b/k?uploadId=1",
                &[("x-amz-copy-source", "a/x?versionId=3")]
            ),
            ["s3:PutObject b/k", "s3:GetObjectVersion a/x"]
        );
        assert_eq!(
            of("PutObject", "/b/k", &[("if-match", "\"a\"")]),
            ["s3:PutObject b/k", "s3:GetObject b/k"]
        );
    }

    #[test]
    fn the_condition_keys_of_a_request_are_those_of_its_operation() {
        let uri: Uri = "/b?list-type=2&prefix=a%2Fb+c".parse().unwrap();
        let list = asked("ListObjectsV2", Some("b"), None, &uri, &HeaderMap::new());
        assert_eq!(
            list[0].context,
            Context::default().with("s3:prefix", "a/b c")
        );
        let mut headers = HeaderMap::new();
        headers.insert("if-none-match", HeaderValue::from_static("*"));
        let created = |operation| {
            let uri = Uri::from_static("/b/k");
            asked(operation, Some("b"), Some("k"), &uri, &headers)[0]
                .context
                .clone()
        };
        let whole = Context::default()
            .with("s3:if-none-match", "*")
            .with("s3:ObjectCreationOperation", "true");
        assert_eq!(created("PutObject"), whole);
        assert_eq!(created("CompleteMultipartUpload"), whole);
        assert_eq!(
            created("UploadPart"),
            whole.with("s3:ObjectCreationOperation", "false")
        );
        assert_eq!(created("GetObject"), Context::default());
    }
}
