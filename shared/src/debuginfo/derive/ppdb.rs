//! PPDB caches: the functions and lines of .NET modules.

use std::io::{self, BufWriter, Write};

use symbolic::debuginfo::Object;
use symbolic::ppdb::{PortablePdb, PortablePdbCacheConverter};

use super::kind::{Derive, EncodedCache, OtherFiles};
use crate::cache::Kind;
use crate::debuginfo::blob::{AlignedBytes, Contents, FrameEncoder};
use crate::debuginfo::failure::{Failure, chain, malformed, unsupported};

const BUFFER_BYTES: usize = 64 << 10;

/// Derives PPDB caches from portable PDBs, and from PEs that embed one.
pub(super) struct Ppdb;

impl Derive for Ppdb {
    const KIND: Kind = Kind::PpdbCache;

    /// Encodes a whole blob: PPDB caches are small.
    fn encode<'d>(
        object: &Object<'d>,
        _: &OtherFiles<'_, 'd>,
        _: usize,
        contents: &Contents,
    ) -> Result<EncodedCache, Failure> {
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, FrameEncoder::new()?);
        write(object, &mut out)?;
        let encoder = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(EncodedCache::complete(encoder.finish(contents)?))
    }
}

fn write(object: &Object<'_>, out: &mut impl Write) -> Result<(), Failure> {
    match object {
        Object::PortablePdb(object) => convert(object.portable_pdb(), out),
        Object::Pe(pe) => {
            let embedded = pe
                .embedded_ppdb()
                .map_err(|error| malformed(chain(&error)))?;
            let embedded = embedded
                .ok_or_else(|| unsupported("the file does not embed a portable PDB".to_owned()))?;
            let mut bytes = AlignedBytes::zeroed(embedded.get_size() as u64)
                .map_err(|_| Failure::OutOfMemory)?;
            embedded
                .decompress_to(bytes.as_mut_slice())
                .map_err(|error| malformed(chain(&error)))?;
            let ppdb =
                PortablePdb::parse(bytes.as_slice()).map_err(|error| malformed(chain(&error)))?;
            convert(&ppdb, out)
        }
        _ => Err(unsupported(format!(
            "a PPDB cache cannot be derived from a file of type {}",
            object.file_format()
        ))),
    }
}

fn convert(ppdb: &PortablePdb<'_>, out: &mut impl Write) -> Result<(), Failure> {
    let mut converter = PortablePdbCacheConverter::new();
    converter
        .process_portable_pdb(ppdb)
        .map_err(|error| malformed(chain(&error)))?;
    Ok(converter.serialize(out)?)
}
