//! Attachments: crash files that a request refers to instead of sending them.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use url::Url;
use uuid::Uuid;

use crate::api::symbolicator::{RequestError, parse_body};

/// The maximum size of an attachment, in bytes: that of one `PutObject` request of S3.
pub const ATTACHMENT_BYTES: u64 = 5 * 1024 * 1024 * 1024;

/// The maximum length of a storage URL, and of a token, in bytes.
pub const STORAGE_URL_BYTES: usize = 4 * 1024;

/// The scheme of the URLs of our own attachments.
const SCHEME: &str = "attachment";

/// The body of `POST /attachments`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct AttachmentRequest {
    /// The exact size of the file, in bytes.
    #[cfg_attr(feature = "openapi", schemars(range(min = 1, max = ATTACHMENT_BYTES)))]
    pub bytes: u64,
}

/// The response of `POST /attachments`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct AttachmentOffer {
    /// How requests refer to the file.
    pub storage_url: String,
    /// The request that stores the file.
    pub upload: UploadRequest,
}

/// A request that stores a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct UploadRequest {
    /// The method.
    pub method: String,
    /// The URL.
    pub url: String,
    /// The headers that it must have.
    pub headers: BTreeMap<String, String>,
    /// The time within which it must begin, in seconds.
    pub expires_in: u64,
}

impl AttachmentRequest {
    /// Parses the body of a request.
    ///
    /// # Errors
    ///
    /// [`RequestError::Syntax`] if it is not JSON, and [`RequestError::Schema`] if it is JSON of
    /// another shape, or the size is zero or exceeds [`ATTACHMENT_BYTES`].
    pub fn parse(body: &[u8]) -> Result<Self, RequestError> {
        let request: Self = parse_body(body)?;
        match request.bytes {
            1..=ATTACHMENT_BYTES => Ok(request),
            bytes => Err(RequestError::Schema {
                path: "bytes".to_owned(),
                cause: format!("is {bytes}, but must be from 1 to {ATTACHMENT_BYTES}"),
            }),
        }
    }
}

/// The id of an attachment in our bucket. It contains the size, so that no request is needed to
/// learn it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachmentId {
    /// A random id.
    pub uuid: Uuid,
    /// The size of the file, in bytes.
    pub bytes: u64,
}

impl fmt::Display for AttachmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.uuid, self.bytes)
    }
}

impl AttachmentId {
    fn parse(text: &str) -> Option<Self> {
        let (uuid, bytes) = text.split_once('/')?;
        let id = Self {
            uuid: uuid.parse().ok()?,
            bytes: bytes.parse().ok()?,
        };
        // Only the form in which it is written is an id.
        (id.to_string() == text && id.bytes <= ATTACHMENT_BYTES).then_some(id)
    }
}

/// The place of a crash file, as a request names it.
#[derive(Clone, PartialEq, Eq)]
pub enum StorageUrl {
    /// In our bucket.
    Own(AttachmentId),
    /// On another host.
    Remote(Url),
}

/// Paths and queries may be secret.
impl fmt::Debug for StorageUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(id) => f.debug_tuple("Own").field(id).finish(),
            Self::Remote(url) => f.debug_tuple("Remote").field(&url.host_str()).finish(),
        }
    }
}

impl fmt::Display for StorageUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(id) => write!(f, "{SCHEME}:{id}"),
            Self::Remote(url) => write!(f, "{url}"),
        }
    }
}

impl StorageUrl {
    /// Parses a storage URL: that of an attachment, or the address of a file at one of the hosts
    /// that the operator allows. Each of these is a name or an address, with the port unless it is
    /// that of the scheme. The scheme is https, unless the host is listed as `http://…`.
    ///
    /// # Errors
    ///
    /// [`RequestError::StorageUrl`] if it is neither.
    pub fn parse(text: &str, hosts: &[String]) -> Result<Self, RequestError> {
        let invalid = |cause: String| RequestError::StorageUrl { cause };
        let neither = || {
            invalid(format!(
                "use the storage_url that POST /attachments returned ({SCHEME}:…), or an address \
                 at a host in ATTACHMENT_HOSTS"
            ))
        };
        if text.len() > STORAGE_URL_BYTES {
            return Err(invalid(format!(
                "it has more than {STORAGE_URL_BYTES} bytes"
            )));
        }
        let url = Url::parse(text.trim()).map_err(|_| neither())?;
        if url.scheme() == SCHEME {
            return AttachmentId::parse(url.path())
                .filter(|_| url.query().is_none() && url.fragment().is_none())
                .map(Self::Own)
                .ok_or_else(neither);
        }
        if !matches!(url.scheme(), "https" | "http") {
            return Err(neither());
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(invalid("put the credentials into storage_token".to_owned()));
        }
        if hosts.iter().any(|allowed| is_at(&url, allowed)) {
            Ok(Self::Remote(url))
        } else {
            let origin = url.origin().ascii_serialization();
            Err(invalid(format!("{origin} is not in ATTACHMENT_HOSTS")))
        }
    }
}

/// Returns whether an address is at a host of the operator's list.
fn is_at(url: &Url, allowed: &str) -> bool {
    let allowed = if allowed.contains("://") {
        Url::parse(allowed)
    } else {
        Url::parse(&format!("https://{allowed}"))
    };
    allowed.is_ok_and(|allowed| allowed.origin() == url.origin())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "attachment:0b6f1d3c-6a7e-4c53-9d0e-2f2f1a1b1c1d/209715200";

    fn hosts() -> Vec<String> {
        [
            "files.example.com",
            "10.0.0.5:8443",
            "http://objectstore:8888",
        ]
        .map(str::to_owned)
        .into()
    }

    #[test]
    fn an_attachment_and_an_address_of_an_allowed_host_are_storage_urls() {
        let own = StorageUrl::parse(OWN, &[]).unwrap();
        let StorageUrl::Own(id) = &own else {
            panic!("{own:?}");
        };
        assert_eq!(id.bytes, 209_715_200);
        assert_eq!(own.to_string(), OWN);
        for address in [
            "https://files.example.com/a?b=c",
            "https://FILES.example.com:443/a",
            "https://10.0.0.5:8443/a",
            "http://objectstore:8888/v1/objects/attachments/a",
        ] {
            let parsed = StorageUrl::parse(address, &hosts()).unwrap();
            assert!(matches!(parsed, StorageUrl::Remote(_)), "{address}");
        }
    }

    #[test]
    fn nothing_else_is_a_storage_url() {
        for hostile in [
            "",
            "a",
            "file:///etc/passwd",
            "file://files.example.com/etc/passwd",
            "ftp://files.example.com/a",
            "s3://symdepot-uploads-000000000000/global/a",
            "https://symdepot-caches-000000000000.s3.eu-central-1.amazonaws.com/requests/a",
            "http://169.254.169.254/latest/meta-data/",
            "https://169.254.169.254/latest/meta-data/",
            "https://[fd00:ec2::254]/latest/meta-data/",
            "https://2852039166/latest/meta-data/",
            "http://127.0.0.1:9001/2018-06-01/runtime/invocation/next",
            "https://localhost/a",
            "https://10.0.0.5/a",
            "http://files.example.com/a",
            "http://files.example.com:443/a",
            "https://objectstore:8888/a",
            "http://objectstore/a",
            "https://files.example.com:8443/a",
            "https://files.example.com.evil.test/a",
            "https://evil.test/files.example.com",
            "https://files.example.com@evil.test/a",
            "https://u:p@files.example.com/a",
            "https://evil.test#@files.example.com/",
            "https://evil.test\\@files.example.com/",
            "attachment:",
            "attachment://0b6f1d3c-6a7e-4c53-9d0e-2f2f1a1b1c1d/1",
            "attachment:../requests/0b6f1d3c-6a7e-4c53-9d0e-2f2f1a1b1c1d/1",
            "attachment:0b6f1d3c-6a7e-4c53-9d0e-2f2f1a1b1c1d",
            "attachment:0b6f1d3c-6a7e-4c53-9d0e-2f2f1a1b1c1d/01",
            "attachment:0b6f1d3c-6a7e-4c53-9d0e-2f2f1a1b1c1d/1/../../x",
            "attachment:0b6f1d3c-6a7e-4c53-9d0e-2f2f1a1b1c1d/1?x",
            "attachment:0b6f1d3c-6a7e-4c53-9d0e-2f2f1a1b1c1d/1#x",
            "attachment:0b6f1d3c-6a7e-4c53-9d0e-2f2f1a1b1c1d/18446744073709551615",
        ] {
            let error = StorageUrl::parse(hostile, &hosts()).unwrap_err();
            assert_eq!(error.status(), 400, "{hostile}");
        }
        let long = format!(
            "https://files.example.com/{}",
            "a".repeat(STORAGE_URL_BYTES)
        );
        assert!(StorageUrl::parse(&long, &hosts()).is_err());
    }

    #[test]
    fn an_attachment_has_a_size_within_the_limit() {
        let parse = |body: &str| AttachmentRequest::parse(body.as_bytes());
        assert_eq!(parse(r#"{"bytes": 1, "name": "x"}"#).unwrap().bytes, 1);
        assert!(parse(r#"{"bytes": 5368709120}"#).is_ok());
        assert_eq!(parse("").unwrap_err().status(), 400);
        for body in [
            "{}",
            "[1]",
            r#"{"bytes": 0}"#,
            r#"{"bytes": -1}"#,
            r#"{"bytes": "1"}"#,
            r#"{"bytes": 5368709121}"#,
        ] {
            assert_eq!(parse(body).unwrap_err().status(), 422, "{body}");
        }
    }
}
