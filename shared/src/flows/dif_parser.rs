//! A parser of a DIF, which lets the rest of the DIF arrive while it works.

use std::fmt::{self, Debug};
use std::pin::pin;

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::cache::{DeriveJob, Derived, Transcoding};
use crate::domain::{Inspection, Missing};
use crate::ports::{DifError, Fault, ParseError, Parser};

/// A parser, and the rest of its DIF.
#[derive(Debug)]
pub struct DifParser {
    parser: Box<dyn Parser>,
    rest: Rest,
}

/// What has not arrived of a DIF when its parser starts.
enum Rest {
    Arrived,
    Arriving(BoxFuture<'static, Result<(), DifError>>),
    /// It does not arrive, for this reason.
    Failed(DifError),
}

impl DifParser {
    /// Returns a parser of a complete DIF.
    pub fn complete(parser: Box<dyn Parser>) -> Self {
        let rest = Rest::Arrived;
        Self { parser, rest }
    }

    /// Returns a parser that may wait for the rest of its DIF. The future writes that rest,
    /// whenever the parser is called. It is dropped with the parser.
    pub(super) fn arriving(
        parser: Box<dyn Parser>,
        rest: BoxFuture<'static, Result<(), DifError>>,
    ) -> Self {
        let rest = Rest::Arriving(rest);
        Self { parser, rest }
    }

    /// Returns whether the whole DIF has arrived.
    pub fn is_complete(&self) -> bool {
        matches!(self.rest, Rest::Arrived)
    }

    /// Returns the objects in the DIF.
    ///
    /// # Errors
    ///
    /// The errors of the parser, and those of reading the rest of the DIF. After one of the latter,
    /// every further call returns it again.
    pub async fn inspect(&mut self) -> Result<Inspection, DifError> {
        self.rest.beside(self.parser.inspect()).await
    }

    /// Derives the caches of one object. Returns one result per job, in order.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::inspect`].
    pub async fn derive(
        &mut self,
        object: usize,
        jobs: &[DeriveJob],
    ) -> Result<Vec<Result<Derived, Missing>>, DifError> {
        self.rest.beside(self.parser.derive(object, jobs)).await
    }

    /// Transcodes the PDB with this index into a Microsoft SymCache.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::inspect`].
    pub async fn transcode(
        &mut self,
        object: usize,
        transcoding: &Transcoding,
    ) -> Result<Result<Bytes, Missing>, DifError> {
        let transcoded = self.parser.transcode(object, transcoding);
        self.rest.beside(transcoded).await
    }
}

impl Rest {
    /// Waits for an answer of the parser. Meanwhile, the rest arrives.
    async fn beside<T>(
        &mut self,
        answer: impl Future<Output = Result<T, ParseError>>,
    ) -> Result<T, DifError> {
        let mut answer = pin!(answer);
        let arrived = match self {
            Self::Arrived => return answer.await.map_err(DifError::from),
            Self::Failed(error) => return Err(again(error)),
            Self::Arriving(rest) => tokio::select! {
                biased;
                answer = &mut answer => return answer.map_err(DifError::from),
                arrived = rest => arrived,
            },
        };
        match arrived {
            Ok(()) => {
                *self = Self::Arrived;
                answer.await.map_err(DifError::from)
            }
            Err(error) => {
                *self = Self::Failed(again(&error));
                Err(error)
            }
        }
    }
}

/// Returns an error that says the same to the caller.
fn again(error: &DifError) -> DifError {
    match error {
        DifError::Missing(missing) => DifError::Missing(missing.clone()),
        DifError::Changed => DifError::Changed,
        DifError::Fault(fault) => {
            let context = "reading the rest of a file, which has failed before";
            DifError::Fault(Fault::new(fault.kind(), context))
        }
    }
}

impl Debug for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Arrived => "Arrived",
            Self::Arriving(_) => "Arriving",
            Self::Failed(_) => "Failed",
        })
    }
}
