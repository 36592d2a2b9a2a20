//! The bytes of a PDB, as the crate `pdb` reads them: in streams, which consist of pages.
//!
//! The crate copies each stream that it opens, and what it returns cannot move to another thread.
//! So each worker opens the file itself, and the workers share the copies of large streams.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use pdb_addr2line::pdb::{PDB, Source, SourceSlice, SourceView};

/// A PDB that one worker has opened.
pub(super) type Pdb<'s> = PDB<'s, PdbBytes<'s>>;

/// The minimum size of a stream that workers share, in bytes. A smaller stream is copied by each
/// worker that reads it.
const SHARED_BYTES: usize = 64 << 10;

/// The pages of a stream: their offsets in the file, and their sizes.
type Pages = Box<[(u64, usize)]>;

/// Copies of the streams that are in use, by their pages.
#[derive(Debug, Default)]
pub(super) struct SharedStreams(Mutex<HashMap<Pages, Weak<Vec<u8>>>>);

/// The bytes of a PDB.
#[derive(Clone, Copy, Debug)]
pub(super) struct PdbBytes<'s> {
    pub(super) file: &'s [u8],
    pub(super) shared: &'s SharedStreams,
}

impl PdbBytes<'_> {
    fn copy(&self, pages: &[SourceSlice], length: usize) -> io::Result<Arc<Vec<u8>>> {
        let mut stream = Vec::with_capacity(length);
        for page in pages {
            let bytes = usize::try_from(page.offset).ok().and_then(|start| {
                let end = start.checked_add(page.size)?;
                self.file.get(start..end)
            });
            stream.extend_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        }
        Ok(Arc::new(stream))
    }
}

impl<'s> Source<'s> for PdbBytes<'s> {
    fn view(&mut self, pages: &[SourceSlice]) -> io::Result<Box<dyn SourceView<'s>>> {
        // A page belongs to one stream. Malformed files list pages repeatedly, which would take any
        // amount of memory.
        let length = pages
            .iter()
            .map(|page| page.size)
            .try_fold(0, usize::checked_add);
        let length = length.filter(|length| *length <= self.file.len());
        let length = length.ok_or(io::ErrorKind::UnexpectedEof)?;
        if length < SHARED_BYTES {
            return Ok(Box::new(View(self.copy(pages, length)?)));
        }
        let key: Pages = pages.iter().map(|page| (page.offset, page.size)).collect();
        let mut known = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = known.get(&key).and_then(Weak::upgrade) {
            return Ok(Box::new(View(stream)));
        }
        let stream = self.copy(pages, length)?;
        known.insert(key, Arc::downgrade(&stream));
        Ok(Box::new(View(stream)))
    }
}

#[derive(Debug)]
struct View(Arc<Vec<u8>>);

impl SourceView<'_> for View {
    fn as_slice(&self) -> &[u8] {
        &self.0
    }
}
