//! The protocol between the parser's parent process and its child process.
//!
//! Commands are lines of JSON on standard input. A reply on standard output is the length of a
//! header (four bytes, little-endian), the header as JSON, and as many bytes of payload as the
//! header says. Both processes run the same executable, so the protocol has no version.

use std::io::{self, Write};
use std::ops::Range;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::cache::{DeriveJob, Kind};
use crate::domain::{Inspection, Missing, Written};

/// The file descriptor of the DIF in the child process.
pub const DIF_DESCRIPTOR: i32 = 3;

/// The file descriptor of the file for unpacked members in the child process.
pub const UNPACKED_DESCRIPTOR: i32 = 4;

/// The file descriptor of the pipe for [`Start::arriving`] in the child process.
pub const ARRIVALS_DESCRIPTOR: i32 = 5;

/// The argument that makes the program a parser.
pub const COMMAND: &str = "parse-dif";

/// The text before the number that a process writes to standard error when its sandbox refuses a
/// system call.
pub const REFUSED_CALL: &str = "refused system call ";

/// The largest blob that is passed on, in bytes.
pub const MAX_BLOB_BYTES: u64 = 2 << 30;

/// The largest header of a reply: the inspection of an archive with the maximum number of objects.
const MAX_HEADER_BYTES: u32 = 64 << 20;

/// What the child process is started with, passed as an argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Its limits.
    pub limits: ChildLimits,
    /// The range of the DIF that is still being written, in order. For each piece, the offset of
    /// its end follows through the pipe [`ARRIVALS_DESCRIPTOR`], as eight bytes, little-endian.
    pub arriving: Option<Range<u64>>,
}

/// The limits of the child process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildLimits {
    /// Memory that it may allocate, in bytes.
    pub memory_bytes: u64,
    /// CPU time that one command may use, in seconds.
    pub cpu_seconds: u64,
    /// Scratch space for unpacked members, at most, in bytes.
    pub scratch_bytes: u64,
    /// Whether it exits where system calls cannot be filtered.
    pub needs_seccomp: bool,
}

/// A command to the child process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// Unpack and inspect the DIF. The reply is [`Reply::Inspected`].
    Inspect {
        /// How the DIF is stored in its file.
        written: Written,
        /// Room for unpacked members, in bytes.
        room_bytes: u64,
        /// The whole scratch budget, in bytes: the limit that is reported.
        budget_bytes: u64,
    },
    /// Take over from a process that died. There is no reply.
    Resume {
        /// The layout that the former process reported.
        layout: serde_json::Value,
    },
    /// Derive. The reply is [`Reply::Derived`] or [`Reply::Missing`] for each job, in any order.
    Derive {
        /// The index of the object.
        object: usize,
        /// The jobs.
        jobs: Vec<DeriveJob>,
    },
}

/// A reply of the child process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Reply {
    /// The contents of the DIF.
    Inspected {
        /// The inspection, for the caller.
        inspection: Inspection,
        /// The layout, for a process that takes over.
        layout: serde_json::Value,
        /// The number of bytes that were unpacked.
        unpacked_bytes: u64,
        /// Whether something did not fit into the room.
        out_of_room: bool,
    },
    /// A blob, which is the payload.
    Derived {
        /// The index of the job.
        job: usize,
        /// The kind of the blob.
        kind: Kind,
        /// The checksum of the blob.
        checksum: u64,
        /// What the blob lacks, as a text for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lacks: Option<String>,
    },
    /// Why there is no blob.
    Missing {
        /// The index of the job.
        job: usize,
        /// The reason.
        missing: Missing,
    },
    /// A failure that was not caused by the DIF.
    Failed {
        /// The description of the failure.
        detail: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Header<A> {
    #[serde(flatten)]
    answer: A,
    payload_bytes: u64,
}

/// Writes a reply.
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

/// Reads a reply and its payload. Exceeding a limit is an error of kind `InvalidData`.
pub async fn read_answer(input: &mut (impl AsyncRead + Unpin)) -> io::Result<(Reply, Bytes)> {
    let length = input.read_u32_le().await?;
    if length > MAX_HEADER_BYTES {
        return Err(invalid(format!(
            "a reply header of {length} bytes exceeds the limit of {MAX_HEADER_BYTES}"
        )));
    }
    let mut header = vec![0; length as usize];
    input.read_exact(&mut header).await?;
    let Header::<Reply> {
        answer,
        payload_bytes,
    } = serde_json::from_slice(&header)?;
    if payload_bytes > MAX_BLOB_BYTES {
        return Err(invalid(format!(
            "a reply payload of {payload_bytes} bytes exceeds the limit of {MAX_BLOB_BYTES}"
        )));
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
    async fn a_message_is_received_as_it_was_sent() {
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
    async fn replies_beyond_the_length_limits_are_rejected() {
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
