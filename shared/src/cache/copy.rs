//! Copies of DIFs from symbol servers. With a copy, a DIF need not be fetched twice, and caches can
//! still be derived after the server has removed the file.
//!
//! A copy is stored in blobs called *chunks*. Each chunk holds the same number of bytes of the DIF;
//! the last one holds the rest. The item names all chunks, and is written after them. Each
//! derivation counts as a use of the copy. The pruner retires copies that are unused for too long,
//! and evicts the least recently used ones first while the copies exceed their byte budget.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Dif, ItemKey, Token};
use crate::domain::Timestamp;

/// A copy of a DIF from a symbol server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DifCopy {
    /// The DIF.
    pub dif: Dif,
    /// The unique token in the paths of its chunks.
    pub token: Token,
    /// The bytes of the DIF in each chunk except the last.
    #[serde(rename = "part_bytes")]
    pub chunk_bytes: u64,
    /// The total size of the chunks in bytes.
    pub bytes: u64,
    /// When it was made or last derived from.
    pub last_used_at: Timestamp,
}

impl DifCopy {
    /// Returns the key of its item.
    pub fn key(&self) -> ItemKey {
        self.dif.module.copy(&self.dif.file.location)
    }

    /// Returns for each chunk its offset in the DIF, its length there, and the path of its blob.
    pub fn chunks(&self) -> impl Iterator<Item = (u64, u64, String)> {
        let key = self.key();
        let (size, chunk_bytes) = (self.dif.size, self.chunk_bytes.max(1));
        (0..size.div_ceil(chunk_bytes)).map(move |number| {
            let offset = number * chunk_bytes;
            let length = chunk_bytes.min(size - offset);
            (offset, length, key.chunk(&self.token, number))
        })
    }

    /// Returns whether a blob is one of its chunks.
    pub fn names(&self, path: &str) -> bool {
        self.chunks().any(|(_, _, chunk)| chunk == path)
    }

    /// Returns whether it has been unused for at least `max_unused`.
    pub fn is_unused(&self, now: Timestamp, max_unused: Duration) -> bool {
        now.since(self.last_used_at) >= max_unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::ModuleKey;
    use crate::domain::{DifRef, FileType, Location, ModuleId, Scope};

    fn copy(size: u64, chunk_bytes: u64) -> DifCopy {
        let id = ModuleId::Debug("502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap());
        DifCopy {
            dif: Dif::new(
                ModuleKey::uploads(Scope::Global, &id),
                DifRef {
                    location: Location::new("http://symbols.test/a"),
                    etag: "1".to_owned(),
                },
                size,
                FileType::ElfDebug,
            ),
            token: Token::from_random(7),
            chunk_bytes,
            bytes: size / 2,
            last_used_at: Timestamp::from_secs(1000),
        }
    }

    #[test]
    fn the_chunks_cover_the_file_once_and_name_the_copy() {
        for (size, lengths) in [
            (0, vec![]),
            (1, vec![1]),
            (10, vec![10]),
            (11, vec![10, 1]),
            (25, vec![10, 10, 5]),
        ] {
            let copy = copy(size, 10);
            let chunks: Vec<_> = copy.chunks().collect();
            let found: Vec<u64> = chunks.iter().map(|(_, length, _)| *length).collect();
            assert_eq!(found, lengths, "{size}");
            let mut end = 0;
            for (offset, length, path) in chunks {
                assert_eq!(offset, end);
                end += length;
                assert_eq!(ItemKey::of_blob(&path), Some(copy.key()));
                assert!(copy.names(&path));
            }
            assert_eq!(end, size);
        }
        let (this, mut other) = (copy(25, 10), copy(25, 10));
        other.token = Token::from_random(8);
        assert!(other.chunks().all(|(_, _, path)| !this.names(&path)));
    }

    #[test]
    fn the_unused_time_of_a_copy_counts_from_its_last_use() {
        let copy = copy(1, 1);
        let week = Duration::from_secs(7 * 24 * 3600);
        let after = |seconds| Timestamp::from_secs(1000 + seconds);
        assert!(!copy.is_unused(after(week.as_secs() - 1), week));
        assert!(copy.is_unused(after(week.as_secs()), week));
    }
}
