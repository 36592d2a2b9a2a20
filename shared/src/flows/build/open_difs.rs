//! The DIFs whose parsers run, so that one fetch serves several kinds and modules.

use std::time::Duration;

use super::companions::Companion;
use crate::cache::{Dif, Kind};
use crate::domain::{DifRef, Inspection, Missing};
use crate::flows::dif_parser::DifParser;
use crate::ports::DifError;

/// A fetched DIF with its running parser.
#[derive(Debug)]
pub struct OpenDif {
    /// The location and etag of the DIF.
    pub dif: DifRef,
    /// The companions that were opened together with it, and the kind that each completes.
    pub companions: Vec<(DifRef, Kind)>,
    /// Why its companions were left out, if they may be used in another attempt.
    pub left_out: Option<LeftOutCompanions>,
    /// The companions that were left out because their bytes no longer exist.
    pub absent: Vec<DifRef>,
    /// The parser.
    pub parser: DifParser,
    /// The objects of the DIF.
    pub inspection: Inspection,
    /// How long fetching it took, until its parser was started.
    pub took: Duration,
}

/// Why the companions of a DIF were left out, although they may be used in another attempt.
#[derive(Clone, Debug)]
pub enum LeftOutCompanions {
    /// The parser of all of them was killed, perhaps from outside.
    Crashed(Missing),
    /// They could not be fetched again from their symbol server. It announces no changes, so the
    /// next probe fetches them.
    UntilNextProbe,
}

impl OpenDif {
    /// Returns a DIF whose parser is open, with the companions that were opened together with it.
    /// `took` is how long fetching them took.
    pub(super) async fn inspected(
        dif: &Dif,
        companions: &[Companion],
        mut parser: DifParser,
        took: Duration,
    ) -> Result<Self, DifError> {
        let inspection = parser.inspect().await?;
        let companions = companions
            .iter()
            .map(|companion| (companion.dif.file.clone(), companion.completes));
        Ok(Self {
            companions: companions.collect(),
            ..Self::alone(dif.file.clone(), parser, inspection, took)
        })
    }

    /// Returns a DIF whose parser is open without companions.
    pub(in crate::flows) fn alone(
        dif: DifRef,
        parser: DifParser,
        inspection: Inspection,
        took: Duration,
    ) -> Self {
        Self {
            dif,
            companions: Vec::new(),
            left_out: None,
            absent: Vec::new(),
            parser,
            inspection,
            took,
        }
    }

    /// Returns the files that a cache of a kind is made from.
    pub(super) fn inputs_of(&self, kind: Kind) -> Vec<DifRef> {
        let companions = self.companions.iter();
        let companions = companions.filter(|(_, completes)| *completes == kind);
        let companions = companions.map(|(companion, _)| companion);
        std::iter::once(&self.dif)
            .chain(companions)
            .cloned()
            .collect()
    }

    fn has_companions(&self, companions: &[Companion]) -> bool {
        let opened = self.companions.iter().map(|(companion, _)| companion);
        opened.eq(companions.iter().map(|companion| &companion.dif.file))
    }
}

/// The DIFs that are open. Each occupies scratch space.
#[derive(Debug, Default)]
pub struct OpenDifs(Vec<OpenDif>);

impl OpenDifs {
    /// Adds a DIF.
    pub(in crate::flows) fn add(&mut self, opened: OpenDif) {
        self.0.push(opened);
    }

    /// Returns a DIF, with whatever companions it was opened.
    pub(super) fn find(&self, dif: &DifRef) -> Option<&OpenDif> {
        self.0.iter().find(|open| open.dif == *dif)
    }

    /// Returns a DIF to derive from it, with whatever companions it was opened.
    pub(super) fn find_mut(&mut self, dif: &DifRef) -> Option<&mut OpenDif> {
        self.0.iter_mut().find(|open| open.dif == *dif)
    }

    /// Returns whether a DIF is open together with exactly these companions.
    pub(super) fn has(&self, dif: &DifRef, companions: &[Companion]) -> bool {
        let mut of_it = self.0.iter().filter(|open| open.dif == *dif);
        of_it.any(|open| open.has_companions(companions))
    }

    /// Returns whether a DIF is still being fetched while its parser reads it.
    pub(super) fn are_arriving(&self) -> bool {
        self.0.iter().any(|open| !open.parser.is_complete())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Closes all DIFs, which frees their scratch space.
    pub(super) fn close_all(&mut self) {
        self.0.clear();
    }
}
