//! What a stack walk reads: unwind information and functions of modules whose entries are ready, slice by slice.

use async_trait::async_trait;

use super::opening::{LoadedCache, Opening};
use super::symbolicate::Symbolicator;
use crate::cache::{Kind, Ready};
use crate::symbolicate::ReadCounts;
use crate::unwind::{ModuleCfi, UnwindInfo};

/// The caches of a module that can be used.
#[derive(Clone, Debug, Default)]
pub struct ModuleCaches {
    /// The CFI cache.
    pub cfi: Option<Ready>,
    /// The SymCache.
    pub symbols: Option<Ready>,
}

/// Reads for one walk, and counts it.
#[derive(Debug)]
pub struct CfiReader<'a> {
    opening: Opening<'a>,
    modules: Vec<ModuleCaches>,
}

impl Symbolicator {
    /// Returns what unwinds stacks in these modules, in the order of the minidump.
    pub fn unwinding(&self, modules: Vec<ModuleCaches>) -> CfiReader<'_> {
        CfiReader {
            opening: Opening::new(&*self.caches, &self.memory),
            modules,
        }
    }
}

impl CfiReader<'_> {
    /// Returns what was read so far, and what needed no read.
    pub fn counts(&self) -> ReadCounts {
        self.opening.counts()
    }

    /// Opens a cache, so far as it answers for these addresses. One that cannot be read is as good as none: a walk goes on without.
    async fn open(&self, kind: Kind, ready: &Ready, addresses: &[u64]) -> Option<LoadedCache> {
        let opened = self.opening.open(kind, ready, |_| addresses.to_vec()).await;
        opened
            .inspect_err(|error| {
                let blob = &ready.blob.path;
                tracing::warn!(blob, %error, "a walk goes on without a cache");
            })
            .ok()
    }
}

#[async_trait]
impl UnwindInfo for CfiReader<'_> {
    async fn cfi(&self, module: usize, addresses: &[u64]) -> Option<ModuleCfi> {
        let ready = self.modules.get(module)?.cfi.as_ref()?;
        let open = self.open(Kind::CfiCache, ready, addresses).await?;
        open.cfi()
    }

    async fn is_in_function(&self, module: usize, address: u64) -> Option<bool> {
        let ready = self.modules.get(module)?.symbols.as_ref()?;
        let open = self.open(Kind::SymCache, ready, &[address]).await?;
        let cache = open.sym_caches()?;
        Some(cache.lookup(address).next().is_some())
    }
}
