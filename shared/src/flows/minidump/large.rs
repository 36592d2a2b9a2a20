//! Reads a minidump that a request refers to: a small or compressed one as a whole, a large one in
//! parts.
//!
//! Each round reads what the parts so far refer to (`crate::unwind::dump::needed`), in parallel.
//! The rounds are those of the format: the header, the streams, the records and names, the stacks.

use futures::stream::{self, StreamExt, TryStreamExt};

use super::DUMP_BYTES;
use crate::api::crash::attachment::ATTACHMENT_BYTES;
use crate::api::crash::form::is_compressed;
use crate::api::symbolicator::RequestError;
use crate::domain::ResponseFormat;
use crate::flows::attachments::{Attachment, AttachmentError};
use crate::flows::parsing::parsed;
use crate::ports::{Fault, FaultKind};
use crate::unwind::dump::{
    DumpBytes, DumpError, DumpParts, NeededRanges, READ_BYTES, READ_PARTS, WHOLE_BYTES, needed,
};

/// The maximum number of parts that are read at a time.
const PART_READS_IN_FLIGHT: usize = 32;

/// What a request calls the file.
const WHAT: &str = "the minidump";

/// The first read of a file that may be large: enough for the directory, and for the lists that
/// most writers put after it.
const FIRST_BYTES: u64 = 64 * 1024;

impl Attachment<'_> {
    /// Reads a minidump, as far as an answer of this format needs it. The inner error says what is
    /// wrong with the file.
    pub async fn minidump(
        &self,
        format: ResponseFormat,
    ) -> Result<Result<DumpBytes, String>, AttachmentError> {
        let is_small = self.length().is_some_and(|length| length <= WHOLE_BYTES);
        let first = if is_small { WHOLE_BYTES } else { FIRST_BYTES };
        let begin = self.begin(first, DUMP_BYTES as u64).await?;
        let is_whole = begin.bytes.len() as u64 == begin.length;
        if is_whole || begin.length <= WHOLE_BYTES || is_compressed(&begin.bytes) {
            return Ok(Ok(self.rest(begin, WHAT, DUMP_BYTES).await?.into()));
        }
        // Another host may state any length; the parts are mapped at their places.
        if begin.length > ATTACHMENT_BYTES {
            let limit = ATTACHMENT_BYTES as usize;
            return Err(RequestError::TooLong { what: WHAT, limit }.into());
        }
        let mut parts = DumpParts::of(begin.length);
        parts.add(begin.start, begin.bytes);
        loop {
            let mut mapped = parts.mapped().map_err(|error| {
                let context = "cannot map a minidump into memory";
                Fault::new(FaultKind::Transient, context).caused_by(error)
            })?;
            let NeededRanges {
                ranges,
                stacks_unread,
            } = match parsed("minidump", || needed(&mapped, format)) {
                Ok(needed) => needed,
                Err(message) => return Ok(Err(message)),
            };
            let missing = parts.missing(ranges);
            if missing.is_empty() {
                mapped.stacks_unread = stacks_unread;
                tracing::debug!(
                    bytes = mapped.length(),
                    read = parts.bytes_read(),
                    parts = parts.count(),
                    "minidump read in parts"
                );
                return Ok(Ok(mapped));
            }
            let bytes: u64 = missing.iter().map(|range| range.end - range.start).sum();
            let is_within = parts.bytes_read() + bytes <= READ_BYTES
                && parts.count() + missing.len() <= READ_PARTS;
            if !is_within {
                return Ok(Err(DumpError::Scattered.to_string()));
            }
            let reads = stream::iter(missing).map(|range| async move {
                let bytes = self.read(range.start, range.end).await?;
                Ok::<_, AttachmentError>((range.start, bytes))
            });
            let read: Vec<_> = reads
                .buffer_unordered(PART_READS_IN_FLIGHT)
                .try_collect()
                .await?;
            for (start, bytes) in read {
                parts.add(start, bytes);
            }
        }
    }
}
