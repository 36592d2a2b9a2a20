//! Sends what transfers ask for of files, some at a time.

use futures::stream::{self, StreamExt, TryStreamExt};
use indicatif::ProgressBar;
use symdepot::api::uploads::Transfer;

use super::pack::Packed;
use crate::error::CliError;
use crate::store::{Piece, Sender};

/// The number of requests at a time.
const AT_A_TIME: usize = 4;

/// Returns what a transfer asks for of a file.
fn pieces<'a>(packed: &'a Packed, transfer: &'a Transfer) -> Vec<Piece<'a>> {
    let piece = |start: u64, bytes: u64, put| Piece {
        path: &packed.path,
        file: &packed.file,
        start,
        bytes,
        put,
        is_part: matches!(transfer, Transfer::Parts { .. }),
    };
    match transfer {
        Transfer::Put(put) => vec![piece(0, packed.bytes, put)],
        Transfer::Parts { part_bytes, parts } => {
            let parts = parts.iter().map(|part| {
                let start = u64::from(part.number.saturating_sub(1)) * part_bytes;
                let bytes = (*part_bytes).min(packed.bytes.saturating_sub(start));
                piece(start, bytes, &part.put)
            });
            parts.collect()
        }
    }
}

/// Sends what these transfers ask for of their files. Returns of each file whether something was
/// sent.
pub(super) async fn send_all(
    sender: &Sender,
    files: impl Iterator<Item = (&Packed, Option<&Transfer>)>,
    bar: &ProgressBar,
) -> Result<Vec<bool>, CliError> {
    let files = files.map(|(packed, transfer)| match transfer {
        Some(transfer) => pieces(packed, transfer),
        None => Vec::new(),
    });
    let files: Vec<Vec<Piece<'_>>> = files.collect();
    let was_sent = files.iter().map(|pieces| !pieces.is_empty()).collect();
    let pieces: Vec<Piece<'_>> = files.into_iter().flatten().collect();
    bar.inc_length(pieces.iter().map(|piece| piece.bytes).sum());
    let sends = stream::iter(pieces).map(|piece| async move { sender.send(&piece, bar).await });
    let mut sends = sends.buffer_unordered(AT_A_TIME);
    while let Some(()) = sends.try_next().await? {}
    Ok(was_sent)
}
