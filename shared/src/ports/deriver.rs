//! Deriving: scratch space for a DIF, and an isolated parser of the DIF.

use std::fmt::Debug;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;

use super::{DifError, Fault, FaultKind};
use crate::cache::{DeriveJob, Derived, Transcoding};
use crate::domain::{Inspection, Missing, Written};

/// Provides scratch space for DIFs, and parses them.
#[async_trait]
pub trait Deriver: Debug + Send + Sync {
    /// Reserves scratch space for a DIF of `size` bytes; [`ParseError::Missing`] if the whole
    /// budget is smaller, and [`ParseError::Fault`] if other DIFs occupy too much of it.
    fn reserve(&self, size: u64) -> Result<Box<dyn Scratch>, ParseError>;

    /// Starts a parser of the DIF in the scratch space. Objects of files that were written together
    /// can complete each other.
    async fn open(
        &self,
        dif: Box<dyn Scratch>,
        written: Written,
    ) -> Result<Box<dyn Parser>, ParseError>;

    /// Returns whether [`Self::open_arriving`] is supported.
    fn parses_while_arriving(&self) -> bool {
        false
    }

    /// Starts a parser of a DIF while `rest` of it is missing: its `.debug_info`, or a part of
    /// that. Everything else has been written. Also returns the means to write the rest, in order;
    /// the parser waits for it where it needs it.
    async fn open_arriving(
        &self,
        _dif: Box<dyn Scratch>,
        _rest: Range<u64>,
    ) -> Result<(Box<dyn Parser>, Box<dyn Scratch>), ParseError> {
        let context = "parsing a DIF before it is complete, which is not supported";
        Err(Fault::new(FaultKind::Bug, context).into())
    }
}

/// Scratch space for one DIF, which is freed when dropped.
#[async_trait]
pub trait Scratch: Debug + Send + Sync + std::any::Any {
    /// Writes bytes at an offset.
    async fn write_at(&mut self, offset: u64, bytes: Bytes) -> Result<(), Fault>;
}

/// Parses one DIF. No input can crash the caller: a failure is a [`Missing`] that says what
/// happened.
///
/// After an error the parser may no longer run. If so, every further call returns the same error.
#[async_trait]
pub trait Parser: Debug + Send {
    /// Returns the objects in the DIF.
    async fn inspect(&mut self) -> Result<Inspection, ParseError>;

    /// Derives the caches of one object. Returns one result per job, in order.
    async fn derive(
        &mut self,
        object: usize,
        jobs: &[DeriveJob],
    ) -> Result<Vec<Result<Derived, Missing>>, ParseError>;

    /// Transcodes the PDB with this index into a Microsoft SymCache, whose bytes are opaque.
    async fn transcode(
        &mut self,
        object: usize,
        transcoding: &Transcoding,
    ) -> Result<Result<Bytes, Missing>, ParseError>;
}

/// Why a parser returned no result.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// The reason is in the DIF, and may be cached.
    #[error("{}", .0.detail)]
    Missing(Missing),
    /// An operation failed, which says nothing about the DIF.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl From<ParseError> for DifError {
    fn from(error: ParseError) -> Self {
        match error {
            ParseError::Missing(missing) => Self::Missing(missing),
            ParseError::Fault(fault) => Self::Fault(fault),
        }
    }
}
