//! PPDB caches: functions and lines of .NET modules.

use std::io::Write;

use symbolic::debuginfo::Object;
use symbolic::ppdb::{PortablePdb, PortablePdbCache, PortablePdbCacheConverter};

use super::blob::{AlignedBytes, BlobFault, Contents};
use super::build::{Derive, Failure, malformed, unsupported};
use super::inspect::chain;
use super::lookup::OpenCache;
use crate::cache::Kind;

/// Derives PPDB caches: from portable PDBs, and from PEs that have one inside.
pub(super) struct Ppdb;

impl Derive for Ppdb {
    const KIND: Kind = Kind::PpdbCache;

    fn write(object: &Object<'_>, out: &mut (impl Write + Send)) -> Result<(), Failure> {
        match object {
            Object::PortablePdb(object) => convert(object.portable_pdb(), out),
            Object::Pe(pe) => {
                let embedded = pe
                    .embedded_ppdb()
                    .map_err(|error| malformed(chain(&error)))?;
                let embedded = embedded
                    .ok_or_else(|| unsupported("there is no portable PDB in it".to_owned()))?;
                let mut bytes = AlignedBytes::zeroed(embedded.get_size() as u64)
                    .map_err(|_| Failure::OutOfMemory)?;
                embedded
                    .decompress_to(bytes.as_mut_slice())
                    .map_err(|error| malformed(chain(&error)))?;
                let ppdb = PortablePdb::parse(bytes.as_slice())
                    .map_err(|error| malformed(chain(&error)))?;
                convert(&ppdb, out)
            }
            _ => Err(unsupported(format!(
                "a PPDB cache is not derived from a file of type {}",
                object.file_format()
            ))),
        }
    }

    fn validate(raw: &[u8], _: &Contents) -> Result<(), String> {
        PortablePdbCache::parse(raw)
            .map(drop)
            .map_err(|error| chain(&error))
    }

    fn try_out(blob: &[u8]) -> Result<(), BlobFault> {
        const FUNCTIONS: u32 = 256;
        let open = OpenCache::open_blob(blob)?;
        if let Some(cache) = open.ppdb_cache() {
            for function in 1..=FUNCTIONS {
                cache.lookup(function, 0);
            }
        }
        Ok(())
    }
}

fn convert(ppdb: &PortablePdb<'_>, out: &mut impl Write) -> Result<(), Failure> {
    let mut converter = PortablePdbCacheConverter::new();
    converter
        .process_portable_pdb(ppdb)
        .map_err(|error| malformed(chain(&error)))?;
    Ok(converter.serialize(out)?)
}
