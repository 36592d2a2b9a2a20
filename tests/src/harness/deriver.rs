//! A deriver that counts its calls, and delays or fails them on request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use symdepot::adapters::parser::InProcessDeriver;
use symdepot::cache::{DeriveJob, Derived, Transcoding};
use symdepot::domain::{Cause, Inspection, Missing, Written};
use symdepot::ports::{Deriver, Fault, FaultKind, ParseError, Parser, Scratch};

/// The counters and injected faults of a deriver. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Derivations {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    opened: AtomicU64,
    derived: AtomicU64,
    transcoded: AtomicU64,
    takes: Mutex<Duration>,
    failures: AtomicU64,
    kills: AtomicU64,
    deaths: AtomicU64,
}

impl Derivations {
    /// Returns how many DIFs were opened.
    pub fn opened(&self) -> u64 {
        self.state.opened.load(Ordering::Relaxed)
    }

    /// Returns how many derivations of caches were attempted.
    pub fn derived(&self) -> u64 {
        self.state.derived.load(Ordering::Relaxed)
    }

    /// Returns how many transcodings of PDBs were attempted.
    pub fn transcoded(&self) -> u64 {
        self.state.transcoded.load(Ordering::Relaxed)
    }

    /// Makes every later derivation take this long.
    pub fn take(&self, time: Duration) {
        *self
            .state
            .takes
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = time;
    }

    /// Makes the next derivations fail with a transient fault.
    pub fn fail_next(&self, count: u64) {
        self.state.failures.store(count, Ordering::Relaxed);
    }

    /// Makes the next derivations kill the parser, or the transcoder fail.
    pub fn kill_next(&self, count: u64) {
        self.state.kills.store(count, Ordering::Relaxed);
    }

    /// Makes the next parsers be killed when they inspect a DIF.
    pub fn kill_next_readers(&self, count: u64) {
        self.state.deaths.store(count, Ordering::Relaxed);
    }

    fn takes(&self) -> Duration {
        *self
            .state
            .takes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn fails(&self) -> bool {
        one_of(&self.state.failures)
    }

    fn is_killed(&self) -> bool {
        one_of(&self.state.kills)
    }

    fn kills_reader(&self) -> bool {
        one_of(&self.state.deaths)
    }
}

/// Decrements a counter; returns `false` if it was zero.
fn one_of(left: &AtomicU64) -> bool {
    let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
    left.fetch_update(set, fetch, |left| left.checked_sub(1))
        .is_ok()
}

/// The in-process deriver with counters and injected faults.
#[derive(Debug)]
pub(super) struct ObservedDeriver {
    pub(super) inner: InProcessDeriver,
    pub(super) derivations: Derivations,
}

#[async_trait]
impl Deriver for ObservedDeriver {
    fn reserve(&self, size: u64) -> Result<Box<dyn Scratch>, ParseError> {
        self.inner.reserve(size)
    }

    async fn open(
        &self,
        dif: Box<dyn Scratch>,
        written: Written,
    ) -> Result<Box<dyn Parser>, ParseError> {
        self.derivations
            .state
            .opened
            .fetch_add(1, Ordering::Relaxed);
        let inner = self.inner.open(dif, written).await?;
        Ok(Box::new(ObservedParser {
            inner,
            derivations: self.derivations.clone(),
        }))
    }
}

#[derive(Debug)]
struct ObservedParser {
    inner: Box<dyn Parser>,
    derivations: Derivations,
}

#[async_trait]
impl Parser for ObservedParser {
    async fn inspect(&mut self) -> Result<Inspection, ParseError> {
        if self.derivations.kills_reader() {
            let killed = Missing::new(Cause::Crashed, "the parser was killed, on purpose");
            return Err(ParseError::Missing(killed));
        }
        self.inner.inspect().await
    }

    async fn derive(
        &mut self,
        object: usize,
        jobs: &[DeriveJob],
    ) -> Result<Vec<Result<Derived, Missing>>, ParseError> {
        self.derivations
            .state
            .derived
            .fetch_add(jobs.len() as u64, Ordering::Relaxed);
        // The clock is paused: this advances only the time of the world.
        tokio::time::sleep(self.derivations.takes()).await;
        if self.derivations.fails() {
            return Err(
                Fault::new(FaultKind::Transient, "starting a parser, an injected fault").into(),
            );
        }
        if self.derivations.is_killed() {
            let killed = Missing::new(Cause::Crashed, "its parser was killed, on purpose");
            return Err(ParseError::Missing(killed));
        }
        self.inner.derive(object, jobs).await
    }

    /// Simulates a transcoder whose output contains the name and the id of the PDB.
    async fn transcode(
        &mut self,
        _: usize,
        Transcoding {
            pdb,
            debug_id,
            version,
        }: &Transcoding,
    ) -> Result<Result<Bytes, Missing>, ParseError> {
        let transcoded = &self.derivations.state.transcoded;
        transcoded.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(self.derivations.takes()).await;
        if self.derivations.is_killed() {
            return Ok(Err(Missing::malformed("its transcoder failed, on purpose")));
        }
        Ok(Ok(format!("version {version} of {pdb} {debug_id}").into()))
    }
}
