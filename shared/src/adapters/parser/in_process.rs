//! A [`Deriver`] for tests of flows: parses in memory in this process, without resource limits.

use std::any::Any;

use async_trait::async_trait;
use bytes::Bytes;

use crate::adapters::scratch::{Budget, Extents, Reservation};
use crate::cache::{DeriveJob, Derived, Transcoding};
use crate::debuginfo::{self, DifBytes, Failure, Layout, RoomLimit};
use crate::domain::{Cause, Inspection, Missing, Written};
use crate::ports::{Deriver, Fault, FaultKind, ParseError, Parser, Scratch};

/// Parses in this process, in memory.
#[derive(Clone, Debug)]
pub struct InProcessDeriver {
    budget: Budget,
}

impl InProcessDeriver {
    /// Returns a deriver with a byte budget for DIFs and what is unpacked from them.
    pub fn new(scratch_bytes: u64) -> Self {
        Self {
            budget: Budget::new(scratch_bytes),
        }
    }

    /// Returns the budget.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }
}

#[async_trait]
impl Deriver for InProcessDeriver {
    fn reserve(&self, size: u64) -> Result<Box<dyn Scratch>, ParseError> {
        let reservation = self.budget.reserve(size)?;
        Ok(Box::new(MemoryScratch {
            bytes: Vec::new(),
            written: Extents::default(),
            reservation,
        }))
    }

    async fn open(
        &self,
        dif: Box<dyn Scratch>,
        written: Written,
    ) -> Result<Box<dyn Parser>, ParseError> {
        let dif: Box<dyn Any> = dif;
        let dif = dif.downcast::<MemoryScratch>().map_err(|_| {
            Fault::new(
                FaultKind::Bug,
                "opening a DIF in the scratch space of another deriver",
            )
        })?;
        Ok(Box::new(InProcessParser {
            budget: self.budget.clone(),
            dif: *dif,
            written,
            inspected: None,
        }))
    }
}

#[derive(Debug)]
struct MemoryScratch {
    bytes: Vec<u8>,
    written: Extents,
    reservation: Reservation,
}

#[async_trait]
impl Scratch for MemoryScratch {
    async fn write_at(&mut self, offset: u64, bytes: Bytes) -> Result<(), Fault> {
        self.written
            .add(offset, bytes.len() as u64, self.reservation.bytes())?;
        debuginfo::Room::put(&mut self.bytes, offset, &bytes)
            .map_err(|error| Fault::new(FaultKind::Bug, "writing to memory").caused_by(error))
    }
}

#[derive(Debug)]
struct InProcessParser {
    budget: Budget,
    dif: MemoryScratch,
    written: Written,
    inspected: Option<InspectedInProcess>,
}

#[derive(Debug)]
struct InspectedInProcess {
    inspection: Inspection,
    layout: Layout,
    unpacked: Vec<u8>,
    _room: Reservation,
}

impl InProcessParser {
    fn inspected(&mut self) -> Result<&InspectedInProcess, ParseError> {
        if self.inspected.is_none() {
            let mut room = self.budget.reserve_rest();
            let limit = RoomLimit {
                bytes: room.bytes(),
                budget: self.budget.bytes(),
            };
            let mut unpacked = Vec::new();
            let dif = &self.dif.bytes;
            let layout =
                debuginfo::caught(|| debuginfo::unpack(dif, &self.written, &mut unpacked, limit));
            let mut layout = layout
                .map_err(|panic| ParseError::Missing(Missing::malformed(panic)))?
                .map_err(|error| {
                    Fault::new(FaultKind::Bug, "writing to memory").caused_by(error)
                })?;
            let all_there_could_be = self
                .budget
                .bytes()
                .saturating_sub(self.dif.reservation.bytes());
            if layout.out_of_room && limit.bytes < all_there_could_be {
                let used = self.budget.used();
                return Err(self.budget.contended(all_there_could_be, used).into());
            }
            room.shrink_to(layout.unpacked_bytes);
            let inspection = debuginfo::inspect(&mut layout, DifBytes::complete(dif, &unpacked));
            self.inspected = Some(InspectedInProcess {
                inspection,
                layout,
                unpacked,
                _room: room,
            });
        }
        self.inspected
            .as_ref()
            .ok_or_else(|| Fault::new(FaultKind::Bug, "inspecting a DIF in memory").into())
    }
}

#[async_trait]
impl Parser for InProcessParser {
    async fn inspect(&mut self) -> Result<Inspection, ParseError> {
        self.inspected()
            .map(|inspected| inspected.inspection.clone())
    }

    async fn derive(
        &mut self,
        object: usize,
        jobs: &[DeriveJob],
    ) -> Result<Vec<Result<Derived, Missing>>, ParseError> {
        self.inspected()?;
        let memory = self.budget.bytes();
        let Some(inspected) = &self.inspected else {
            return Ok(Vec::new());
        };
        let bytes = DifBytes::complete(&self.dif.bytes, &inspected.unpacked);
        let derive = |job: &DeriveJob| {
            debuginfo::derive(&inspected.layout, bytes, object, *job, 1).map_err(|failure| {
                match failure {
                    Failure::Missing(missing) => missing,
                    Failure::OutOfMemory => super::death::out_of_memory(memory),
                }
            })
        };
        Ok(jobs.iter().map(derive).collect())
    }

    async fn transcode(
        &mut self,
        _: usize,
        transcoding: &Transcoding,
    ) -> Result<Result<Bytes, Missing>, ParseError> {
        let detail = format!(
            "no transcoder of version {} is configured",
            transcoding.version
        );
        Ok(Err(Missing::new(Cause::Unsupported, detail)))
    }
}
