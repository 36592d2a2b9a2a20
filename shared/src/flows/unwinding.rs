//! Provides the unwind information and functions for stack walks, from the ready caches of modules,
//! slice by slice.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use async_trait::async_trait;

use super::HttpService;
use super::opening::{LoadedCache, Opening, ReadError, takes_two_rounds};
use crate::cache::{Kind, Ready};
use crate::ports::Fault;
use crate::symbolicate::ReadCounts;
use crate::unwind::{ModuleCfi, UnwindInfo};

/// The ready caches of a module.
#[derive(Clone, Debug, Default)]
pub struct ModuleCaches {
    /// The CFI cache.
    pub cfi: Option<Ready>,
    /// The SymCache.
    pub symbols: Option<Ready>,
}

/// The reader of one walk, which counts its reads.
#[derive(Debug)]
pub struct CfiReader<'a> {
    opening: Opening<'a>,
    modules: Vec<ModuleCaches>,
    /// The modules whose caches may still be made.
    undecided: BTreeSet<usize>,
    /// The caches that walks needed and that cannot be read, each with the index of its module.
    unreadable: Mutex<BTreeSet<(usize, Kind)>>,
    /// The first fault of the store. The walks since then have less than there is.
    fault: OnceLock<Fault>,
}

impl HttpService {
    /// Returns the unwind information of these modules, in the order of the minidump.
    pub fn unwinding(&self, modules: Vec<ModuleCaches>) -> CfiReader<'_> {
        CfiReader {
            opening: Opening::new(&*self.caches, &self.memory),
            modules,
            undecided: BTreeSet::new(),
            unreadable: Mutex::default(),
            fault: OnceLock::new(),
        }
    }
}

impl CfiReader<'_> {
    /// Sets the modules whose caches may still be made: a walk that needs them ends.
    #[must_use]
    pub(super) fn without(self, undecided: BTreeSet<usize>) -> Self {
        Self { undecided, ..self }
    }

    /// Returns the number of reads, of bytes read, and of hits of the memory so far.
    pub fn counts(&self) -> ReadCounts {
        self.opening.counts()
    }

    /// Returns the needed caches that are damaged or gone, each with the index of its module.
    ///
    /// # Errors
    ///
    /// The first fault of the store, after which no walk with this reader is to be used.
    pub(super) fn into_unreadable(self) -> Result<BTreeSet<(usize, Kind)>, Fault> {
        match self.fault.into_inner() {
            Some(fault) => Err(fault),
            None => Ok(self
                .unreadable
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Opens the parts of a cache that cover these addresses; `None` after a fault of the store, of
    /// which the first one is kept.
    async fn open(
        &self,
        kind: Kind,
        ready: &Ready,
        addresses: &[u64],
    ) -> Result<Option<LoadedCache>, ReadError> {
        let opened = self.opening.open(kind, ready, |_| addresses.to_vec()).await;
        let error = match opened {
            Ok(open) => return Ok(Some(open)),
            Err(error) => error,
        };
        let blob = &ready.blob.path;
        tracing::warn!(blob, %error, "cannot read a cache to unwind with");
        match error {
            ReadError::Fault(fault) => {
                let _ = self.fault.set(fault);
                Ok(None)
            }
            error => Err(error),
        }
    }

    /// Opens a cache of a module that the walk needs.
    async fn needed(
        &self,
        (module, kind): (usize, Kind),
        ready: &Ready,
        addresses: &[u64],
    ) -> Option<LoadedCache> {
        match self.open(kind, ready, addresses).await {
            Ok(open) => open,
            // The cache is sound.
            Err(ReadError::NoRoom) => None,
            Err(_) => {
                self.unreadable().insert((module, kind));
                None
            }
        }
    }

    fn unreadable(&self) -> MutexGuard<'_, BTreeSet<(usize, Kind)>> {
        self.unreadable
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl UnwindInfo for CfiReader<'_> {
    async fn cfi(&self, module: usize, addresses: &[u64]) -> Option<ModuleCfi> {
        let ready = self.modules.get(module)?.cfi.as_ref()?;
        let open = self
            .needed((module, Kind::CfiCache), ready, addresses)
            .await?;
        open.cfi()
    }

    async fn prepare_functions(&self, module: usize) {
        let symbols = self
            .modules
            .get(module)
            .and_then(|module| module.symbols.as_ref());
        if let Some(ready) = symbols.filter(|ready| takes_two_rounds(ready)) {
            // Few walks need it. One that does finds out whether it can be read.
            let _ = self.open(Kind::SymCache, ready, &[]).await;
        }
    }

    async fn is_in_function(&self, module: usize, address: u64) -> Option<bool> {
        let ready = self.modules.get(module)?.symbols.as_ref()?;
        let open = self
            .needed((module, Kind::SymCache), ready, &[address])
            .await?;
        let cache = open.sym_caches()?;
        Some(cache.lookup(address).next().is_some())
    }

    fn is_decided(&self, module: usize) -> bool {
        let is_readable = self.unreadable().iter().all(|(of, _)| *of != module);
        is_readable && !self.undecided.contains(&module)
    }
}
