//! Deriving: a DIF in scratch space, and a parser of it that may die without harm.

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;

use super::Fault;
use crate::cache::{DeriveJob, Derived, Transcoding};
use crate::domain::{Inspection, Missing, Written};

/// Gives room for DIFs, and parses them.
#[async_trait]
pub trait Deriver: Debug + Send + Sync {
    /// Reserves scratch space for a DIF of `size` bytes; [`ParseError::Missing`] where the budget does not allow it.
    fn reserve(&self, size: u64) -> Result<Box<dyn Scratch>, ParseError>;

    /// Begins to parse what was written to the scratch space. Objects of files that were written together find each other there.
    async fn open(
        &self,
        dif: Box<dyn Scratch>,
        written: Written,
    ) -> Result<Box<dyn Parser>, ParseError>;
}

/// Room for one DIF; given back when dropped.
#[async_trait]
pub trait Scratch: Debug + Send + Sync + std::any::Any {
    /// Writes bytes at an offset.
    async fn write_at(&mut self, offset: u64, bytes: Bytes) -> Result<(), Fault>;
}

/// Parses one DIF. Whatever the bytes do, the caller lives: the answer is a [`Missing`] that says what happened.
///
/// After an error the parser may be gone; then every further call answers the same.
#[async_trait]
pub trait Parser: Debug + Send {
    /// Returns the objects in the DIF.
    async fn inspect(&mut self) -> Result<Inspection, ParseError>;

    /// Derives the caches of one object: one answer a job, in order.
    async fn derive(
        &mut self,
        object: usize,
        jobs: &[DeriveJob],
    ) -> Result<Vec<Result<Derived, Missing>>, ParseError>;

    /// Has the PDB with this index transcoded into Microsoft's SymCache, whose bytes are opaque.
    async fn transcode(
        &mut self,
        object: usize,
        transcoding: &Transcoding,
    ) -> Result<Result<Bytes, Missing>, ParseError>;
}

/// Why there is no answer from a parser.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// For a reason in the DIF, which is worth remembering.
    #[error("{}", .0.detail)]
    Missing(Missing),
    /// For a fault of ours.
    #[error(transparent)]
    Store(#[from] Fault),
}
