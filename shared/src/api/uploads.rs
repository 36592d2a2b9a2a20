//! `POST /uploads`: which files the service needs, and how to send them.
//!
//! A client describes its files, sends those that the response asks for, and asks again for their
//! state. A large file is sent in parts; asked again, the service joins them.

use serde::{Deserialize, Serialize};

use super::caller::ScopeError;
use super::symbolicator::{RequestError, objects, parse_body};
use crate::domain::{Scope, SignedPut};

/// The maximum number of files in a request.
pub const FILES: usize = 1_000;

/// The maximum size of a file, in bytes, unless the operator sets another one (`DIF_MAX_BYTES`).
pub const FILE_BYTES: u64 = 8 << 30;

/// The size from which a file is sent in parts, in bytes.
pub const BYTES_IN_PARTS: u64 = 256 * 1024 * 1024;

/// The size of each part but the last, in bytes.
pub const PART_BYTES: u64 = 64 * 1024 * 1024;

/// The maximum number of parts that a response signs. A file with more parts is asked about
/// repeatedly.
pub const SIGNED_PARTS: usize = 256;

/// The time for which a signed request is valid, in seconds.
pub const SIGNATURE_SECONDS: u64 = 15 * 60;

/// The files that a client has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UploadsRequest {
    /// The scope that they are for; without it, the scope in the query or the path, or else that of
    /// a credential with a single scope, or else the global one. A misspelled field would send them
    /// to another scope, so unknown fields are errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// The files.
    #[serde(deserialize_with = "objects")]
    #[cfg_attr(feature = "openapi", schemars(length(max = FILES)))]
    pub files: Vec<FileToUpload>,
}

impl UploadsRequest {
    /// Returns the scope that the query or the body names.
    ///
    /// # Errors
    ///
    /// [`ScopeError::QueryAndBody`] if they name different ones.
    pub fn named_scope(&self, in_query: Option<Scope>) -> Result<Option<Scope>, ScopeError> {
        match (in_query, self.scope.clone()) {
            (Some(query), Some(body)) if query != body => {
                Err(ScopeError::QueryAndBody { query, body })
            }
            (in_query, in_body) => Ok(in_query.or(in_body)),
        }
    }
}

/// A file that a client has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FileToUpload {
    /// Its name, without a folder. That of a SymCache of Microsoft's protocol is its path.
    #[cfg_attr(
        feature = "openapi",
        schemars(
            length(min = 1, max = 512),
            regex(pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")
        )
    )]
    pub name: String,
    /// The number of bytes that the client sends. The file may be compressed. Without it, the
    /// response only says whether the service has the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The SHA-256 of each part of [`PART_BYTES`] in hex, for a file of [`BYTES_IN_PARTS`] or more.
    /// By it, the parts that an earlier attempt has sent are recognised.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "openapi",
        schemars(inner(regex(pattern = "^[0-9a-fA-F]{64}$")))
    )]
    pub parts: Vec<String>,
    /// The SHA-256 of the file in hex, before compression. Without it, the file is new each time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(extend("pattern" = "^[0-9a-fA-F]{64}$")))]
    pub sha256: Option<String>,
    /// The debug ids or code ids of its objects. The first one is part of its key: 1 to 128 digits
    /// and dashes. Only a SymCache of Microsoft's protocol needs none.
    #[serde(default)]
    pub ids: Vec<String>,
}

/// The response: for each file, in the order of the request, its key and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct UploadsAnswer {
    /// The files.
    pub files: Vec<RequestedFile>,
}

/// A file of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct RequestedFile {
    /// Its key in the uploads bucket.
    pub key: String,
    /// Its state.
    #[serde(flatten)]
    pub state: RequestedFileState,
}

/// The state of a file of a request.
///
/// A file that was sent stays `upload` until its event is received, a moment later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum RequestedFileState {
    /// The service does not have it, and the request does not say how large it is.
    Absent,
    /// The service does not have it: send it.
    Upload(Transfer),
    /// The service has it, and is processing it.
    Pending,
    /// Requests use it.
    Applied,
    /// No request will use it.
    Ignored {
        /// Why.
        reason: String,
    },
}

impl RequestedFileState {
    /// Returns how to send the file, if the service wants it.
    pub fn transfer(&self) -> Option<&Transfer> {
        match self {
            Self::Upload(transfer) => Some(transfer),
            Self::Absent | Self::Pending | Self::Applied | Self::Ignored { .. } => None,
        }
    }
}

/// How to send a file. The signatures are valid for fifteen minutes; ask again for new ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Transfer {
    /// In one request. A response of 412 says that the file is there already.
    Put(SignedPut),
    /// In parts, in any order and several at a time. After the last one, ask again.
    Parts {
        /// The size of each part but the last, in bytes.
        part_bytes: u64,
        /// The parts that are not there yet; of many, the first ones.
        parts: Vec<PartToSend>,
    },
}

/// A part of a file to send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct PartToSend {
    /// Its number, from 1. It begins at the byte `(number - 1) * part_bytes` of the file.
    pub number: u32,
    /// The request.
    pub put: SignedPut,
}

/// Parses the body of `/uploads`.
///
/// # Errors
///
/// [`RequestError`] if it is not JSON, if it has another shape, or if it names too many files.
pub fn parse_uploads(body: &[u8]) -> Result<UploadsRequest, RequestError> {
    let request: UploadsRequest = parse_body(body)?;
    if request.files.len() > FILES {
        return Err(RequestError::TooLarge {
            what: "files",
            limit: FILES,
        });
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_to_send_and_one_that_is_there_have_readable_json() {
        let put = SignedPut {
            url: "https://bucket.test/key?signature".to_owned(),
            headers: [("if-none-match".to_owned(), "*".to_owned())].into(),
        };
        let file = |state| RequestedFile {
            key: "global/a/ab/01".to_owned(),
            state,
        };
        let parts = vec![PartToSend {
            number: 2,
            put: put.clone(),
        }];
        let answer = UploadsAnswer {
            files: vec![
                file(RequestedFileState::Upload(Transfer::Put(put))),
                file(RequestedFileState::Upload(Transfer::Parts {
                    part_bytes: PART_BYTES,
                    parts,
                })),
                file(RequestedFileState::Applied),
                file(RequestedFileState::Ignored {
                    reason: "too large".to_owned(),
                }),
            ],
        };
        insta::assert_json_snapshot!(answer, @r#"
        {
          "files": [
            {
              "key": "global/a/ab/01",
              "state": "upload",
              "put": {
                "url": "https://bucket.test/key?signature",
                "headers": {
                  "if-none-match": "*"
                }
              }
            },
            {
              "key": "global/a/ab/01",
              "state": "upload",
              "parts": {
                "part_bytes": 67108864,
                "parts": [
                  {
                    "number": 2,
                    "put": {
                      "url": "https://bucket.test/key?signature",
                      "headers": {
                        "if-none-match": "*"
                      }
                    }
                  }
                ]
              }
            },
            {
              "key": "global/a/ab/01",
              "state": "applied"
            },
            {
              "key": "global/a/ab/01",
              "state": "ignored",
              "reason": "too large"
            }
          ]
        }
        "#);
        let json = serde_json::to_string(&answer).unwrap();
        assert_eq!(
            serde_json::from_str::<UploadsAnswer>(&json).unwrap(),
            answer
        );
    }

    #[test]
    fn a_request_for_uploads_that_is_wrong_is_refused_with_the_field() {
        let refused = |json: &str| {
            let error = parse_uploads(json.as_bytes()).unwrap_err();
            (error.status(), error.body().causes.join(": "))
        };
        assert_eq!(refused("{").0, 400);
        let (status, cause) = refused(r#"{"scoop": "acme", "files": []}"#);
        assert_eq!(status, 422);
        assert!(cause.contains("scoop"), "{cause}");
        let (status, cause) = refused(r#"{"files": [{"name": 1}]}"#);
        assert_eq!(status, 422);
        assert!(cause.starts_with("files[0].name: invalid type"), "{cause}");
        let file = r#"{"name": "a", "size": 1}"#;
        let many = format!("{{\"files\": [{}]}}", vec![file; FILES + 1].join(","));
        assert_eq!(refused(&many).0, 413);
    }
}
