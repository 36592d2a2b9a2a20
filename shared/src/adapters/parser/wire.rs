//! What the parser's two processes say to each other.
//!
//! Commands are lines of JSON on standard input. An answer on standard output is the length of a header (four bytes,
//! little-endian), the header as JSON, and as many bytes of payload as the header says. Both are the same build of the
//! same program, so there are no versions.

use std::io::{self, Write};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::cache::{DeriveJob, Kind};
use crate::domain::{Inspection, Missing, Written};

/// The number under which the child process finds the DIF.
pub const DIF_DESCRIPTOR: i32 = 3;

/// The number under which the child process finds the file for what is unpacked.
pub const UNPACKED_DESCRIPTOR: i32 = 4;

/// The argument that makes the program a parser.
pub const COMMAND: &str = "parse-dif";

/// What a process writes to standard error, before the number, when its sandbox refuses a system call.
pub const REFUSED_CALL: &str = "refused system call ";

/// The largest blob that is handed over, in bytes.
pub const MAX_BLOB_BYTES: u64 = 2 << 30;

/// The largest header of an answer: an inspection of an archive of as many objects as are read.
const MAX_HEADER_BYTES: u32 = 64 << 20;

/// The limits of the child process, given to it as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildLimits {
    /// Memory that it may allocate, in bytes.
    pub memory_bytes: u64,
    /// CPU time that one command may use, in seconds.
    pub cpu_seconds: u64,
    /// Scratch space for what is unpacked, at most, in bytes.
    pub scratch_bytes: u64,
    /// Whether it ends where there is no sandbox for it.
    pub needs_sandbox: bool,
}

/// What the child process is told to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// Unpack, and say what there is. Answered by [`Answer::Inspected`].
    Inspect {
        /// How the DIF lies in its file.
        written: Written,
        /// Room for what is unpacked, in bytes.
        room_bytes: u64,
        /// What that would be at most: the limit that is reported.
        budget_bytes: u64,
    },
    /// Take over from a process that died. Not answered.
    Resume {
        /// What that one had found.
        layout: serde_json::Value,
    },
    /// Derive. Answered by [`Answer::Derived`] or [`Answer::Missing`] for each job, in any order.
    Derive {
        /// The index of the object.
        object: usize,
        /// The jobs.
        jobs: Vec<DeriveJob>,
    },
}

/// What the child process answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Reply {
    /// What is in the DIF.
    Inspected {
        /// For the caller.
        inspection: Inspection,
        /// For a process that has to take over.
        layout: serde_json::Value,
        /// The bytes that were unpacked.
        unpacked_bytes: u64,
        /// Whether something did not fit.
        out_of_room: bool,
    },
    /// A blob; it is the payload.
    Derived {
        /// Which job.
        job: usize,
        /// Its kind.
        kind: Kind,
        /// Checksum of the blob.
        checksum: u64,
        /// What is not in it, for a human.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lacks: Option<String>,
    },
    /// Why there is no blob.
    Missing {
        /// Which job.
        job: usize,
        /// Why.
        missing: Missing,
    },
    /// A fault that the DIF has no part in.
    Failed {
        /// What happened.
        detail: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Header<A> {
    #[serde(flatten)]
    answer: A,
    payload_bytes: u64,
}

/// Writes an answer.
pub fn write_answer(out: &mut impl Write, answer: &Reply, payload: &[u8]) -> io::Result<()> {
    let header = serde_json::to_vec(&Header {
        answer,
        payload_bytes: payload.len() as u64,
    })?;
    let length = u32::try_from(header.len()).map_err(io::Error::other)?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(&header)?;
    out.write_all(payload)?;
    out.flush()
}

/// Reads an answer and its payload. What exceeds a limit is invalid data.
pub async fn read_answer(input: &mut (impl AsyncRead + Unpin)) -> io::Result<(Reply, Bytes)> {
    let length = input.read_u32_le().await?;
    if length > MAX_HEADER_BYTES {
        return Err(invalid(format!("a header of {length} bytes")));
    }
    let mut header = vec![0; length as usize];
    input.read_exact(&mut header).await?;
    let Header::<Reply> {
        answer,
        payload_bytes,
    } = serde_json::from_slice(&header)?;
    if payload_bytes > MAX_BLOB_BYTES {
        return Err(invalid(format!("a payload of {payload_bytes} bytes")));
    }
    let mut payload = vec![0; usize::try_from(payload_bytes).map_err(io::Error::other)?];
    input.read_exact(&mut payload).await?;
    Ok((answer, Bytes::from(payload)))
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_arrives_as_it_was_sent() {
        let mut pipe = Vec::new();
        let answer = Reply::Derived {
            job: 1,
            kind: Kind::CfiCache,
            checksum: u64::MAX,
            lacks: Some("a unit".to_owned()),
        };
        write_answer(&mut pipe, &answer, b"blob").unwrap();
        write_answer(
            &mut pipe,
            &Reply::Failed {
                detail: "x".to_owned(),
            },
            b"",
        )
        .unwrap();
        let mut pipe = pipe.as_slice();
        let (first, payload) = read_answer(&mut pipe).await.unwrap();
        assert!(matches!(
            first,
            Reply::Derived {
                job: 1,
                kind: Kind::CfiCache,
                checksum: u64::MAX,
                lacks: Some(lacks)
            } if lacks == "a unit"
        ));
        assert_eq!(payload, "blob");
        let (second, payload) = read_answer(&mut pipe).await.unwrap();
        assert!(matches!(second, Reply::Failed { detail } if detail == "x"));
        assert!(payload.is_empty());
        assert_eq!(
            read_answer(&mut pipe).await.unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }

    #[tokio::test]
    async fn lengths_are_not_believed() {
        let mut header = &u32::MAX.to_le_bytes()[..];
        assert_eq!(
            read_answer(&mut header).await.unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );

        let json = br#"{"answer":"failed","detail":"x","payload_bytes":9223372036854775807}"#;
        let mut pipe = (json.len() as u32).to_le_bytes().to_vec();
        pipe.extend(json);
        assert_eq!(
            read_answer(&mut pipe.as_slice()).await.unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
}
