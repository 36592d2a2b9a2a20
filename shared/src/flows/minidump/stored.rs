//! The stored form of a minidump whose walks wait for builds: one line of JSON with the other parts
//! of its form and the places of what was read of the file, then these parts, compressed.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::api::crash::form::{CrashFields, decompressed};
use crate::flows::Error;
use crate::ports::{Fault, FaultKind};
use crate::unwind::dump::{DUMP_BYTES, DumpBytes};

/// The level of the compression. The file is read once, if at all.
const ZSTD_LEVEL: i32 = 1;

/// A minidump, with the other parts of its form.
#[derive(Debug)]
pub struct MinidumpForm {
    /// The file.
    pub file: DumpBytes,
    /// How it is symbolicated.
    pub fields: CrashFields,
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct StoredHead {
    #[serde(flatten)]
    fields: CrashFields,
    /// What was read of a larger file; the whole file if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parts: Option<StoredParts>,
}

#[derive(Serialize, Deserialize)]
struct StoredParts {
    /// The length of the file.
    length: u64,
    /// The places of the parts in it.
    places: Vec<Range<u64>>,
    stacks_unread: usize,
}

/// Returns the stored form of a minidump.
pub(super) fn encode(file: &DumpBytes, fields: &CrashFields) -> Result<Vec<u8>, Error> {
    let failed = |error| Fault::new(FaultKind::Bug, "cannot encode a minidump").caused_by(error);
    let places: Vec<Range<u64>> = file
        .parts()
        .map(|(place, _)| place.start as u64..place.end as u64)
        .collect();
    let length = file.length() as u64;
    let is_whole = matches!(&*places, [place] if *place == (0..length));
    let head = StoredHead {
        fields: fields.clone(),
        parts: (!is_whole).then_some(StoredParts {
            length,
            places,
            stacks_unread: file.stacks_unread,
        }),
    };
    let mut body = serde_json::to_vec(&head)
        .map_err(std::io::Error::other)
        .map_err(failed)?;
    body.push(b'\n');
    let parts: Vec<&[u8]> = file.parts().map(|(_, part)| part).collect();
    let compressed = match *parts {
        [whole] => zstd::bulk::compress(whole, ZSTD_LEVEL),
        _ => zstd::bulk::compress(&parts.concat(), ZSTD_LEVEL),
    };
    body.extend_from_slice(&compressed.map_err(failed)?);
    Ok(body)
}

/// Reads the stored form of a minidump.
///
/// # Errors
///
/// [`Error::Fault`] if it is damaged.
pub fn decode_dump(body: &[u8]) -> Result<MinidumpForm, Error> {
    let damaged = || Fault::new(FaultKind::Corrupt, "a stored minidump is damaged");
    let mut parts = body.splitn(2, |byte| *byte == b'\n');
    let (head, file) = (parts.next().unwrap_or_default(), parts.next());
    let head = serde_json::from_slice(head).map_err(|error| damaged().caused_by(error))?;
    let StoredHead { fields, parts } = head;
    let file = decompressed("the file", file.ok_or_else(damaged)?, DUMP_BYTES);
    let file = Bytes::from(
        file.map_err(|error| damaged().caused_by(error))?
            .into_owned(),
    );
    let file = match parts {
        None => file.into(),
        Some(parts) => in_parts(file, &parts)
            .ok_or_else(damaged)?
            .map_err(|error| damaged().caused_by(error))?,
    };
    Ok(MinidumpForm { file, fields })
}

/// Returns a file of which parts are stored, one after the other; `None` if they are not these.
fn in_parts(mut stored: Bytes, parts: &StoredParts) -> Option<std::io::Result<DumpBytes>> {
    let mut read = BTreeMap::new();
    for place in &parts.places {
        let length = usize::try_from(place.end.checked_sub(place.start)?).ok()?;
        if length > stored.len() {
            return None;
        }
        read.insert(place.start, stored.split_to(length));
    }
    let file = DumpBytes::of_parts(parts.length, &read);
    Some(file.map(|mut file| {
        file.stacks_unread = parts.stacks_unread;
        file
    }))
}
