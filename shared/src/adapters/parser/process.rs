//! The [`Deriver`] that parses in child processes.

use std::any::Any;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::child::{NoAnswer, ParserProcess};
use super::death::explain;
use super::late::{ArrivalNotices, LatePart};
use super::limits::ParserLimits;
use super::transcoder::{PdbRange, ToolStarter, Transcoders};
use super::wire::{ChildLimits, Command, Reply, Start};
use crate::adapters::scratch::{Reservation, ScratchFile, ScratchSpace};
use crate::cache::{DeriveJob, Derived, Transcoding};
use crate::debuginfo::{Layout, MemberPlace};
use crate::domain::{Inspection, Missing, Written};
use crate::ports::{Deriver, Fault, FaultKind, ParseError, Parser, Scratch};

/// Parses each DIF in its own process.
#[derive(Clone, Debug)]
pub struct ProcessDeriver {
    executable: Arc<PathBuf>,
    limits: ParserLimits,
    scratch: ScratchSpace,
    transcoders: Transcoders,
}

impl ProcessDeriver {
    /// Returns a deriver that starts `executable` with [`super::wire::COMMAND`] as its first
    /// argument.
    pub fn new(
        executable: impl Into<PathBuf>,
        limits: ParserLimits,
        scratch: ScratchSpace,
    ) -> Self {
        Self {
            executable: Arc::new(executable.into()),
            limits,
            scratch,
            transcoders: Transcoders::default(),
        }
    }

    /// Sets the tools that transcode PDBs.
    pub fn with_transcoders(self, transcoders: Transcoders) -> Self {
        Self {
            transcoders,
            ..self
        }
    }
}

#[async_trait]
impl Deriver for ProcessDeriver {
    fn reserve(&self, size: u64) -> Result<Box<dyn Scratch>, ParseError> {
        Ok(Box::new(self.scratch.reserve(size)?))
    }

    async fn open(
        &self,
        dif: Box<dyn Scratch>,
        written: Written,
    ) -> Result<Box<dyn Parser>, ParseError> {
        Ok(Box::new(ProcessParser {
            written,
            ..self.session(dif)?
        }))
    }

    fn parses_while_arriving(&self) -> bool {
        true
    }

    async fn open_arriving(
        &self,
        dif: Box<dyn Scratch>,
        rest: Range<u64>,
    ) -> Result<(Box<dyn Parser>, Box<dyn Scratch>), ParseError> {
        let session = self.session(dif)?;
        let late = LatePart::of(&session.dif, rest);
        let arrivals = Some(late.arrivals());
        Ok((
            Box::new(ProcessParser {
                arrivals,
                ..session
            }),
            Box::new(late),
        ))
    }
}

impl ProcessDeriver {
    /// Returns a session about one complete file, which starts a process when it is first needed.
    fn session(&self, dif: Box<dyn Scratch>) -> Result<ProcessParser, Fault> {
        let dif: Box<dyn Any> = dif;
        let dif = dif.downcast::<ScratchFile>().map_err(|_| {
            Fault::new(
                FaultKind::Bug,
                "opening a DIF in the scratch space of another deriver",
            )
        })?;
        let unpacked = self.scratch.unnamed_file()?;
        Ok(ProcessParser {
            deriver: self.clone(),
            dif: *dif,
            written: Written::Whole,
            arrivals: None,
            unpacked,
            room: None,
            process: None,
            inspected: None,
            failed: None,
        })
    }
}

/// A session about one DIF.
#[derive(Debug)]
struct ProcessParser {
    deriver: ProcessDeriver,
    dif: ScratchFile,
    written: Written,
    /// Tells the processes what has arrived of the rest of the DIF.
    arrivals: Option<ArrivalNotices>,
    unpacked: File,
    /// The reservation for `unpacked`.
    room: Option<Reservation>,
    /// `None` while a command runs, so that abandoning the command also ends the process.
    process: Option<ParserProcess>,
    inspected: Option<Inspected>,
    /// Why this DIF cannot be parsed. Every later call returns it.
    failed: Option<Missing>,
}

#[derive(Debug)]
struct Inspected {
    inspection: Inspection,
    layout: serde_json::Value,
}

#[async_trait]
impl Parser for ProcessParser {
    async fn inspect(&mut self) -> Result<Inspection, ParseError> {
        if let Some(missing) = &self.failed {
            return Err(ParseError::Missing(missing.clone()));
        }
        if let Some(inspected) = &self.inspected {
            return Ok(inspected.inspection.clone());
        }
        let inspected = self.ask_what_there_is().await;
        if inspected.is_err() {
            // The reservation was released, so the unpacked bytes must be removed as well. The file
            // has no name, so a failure here only wastes space.
            let _ = self.unpacked.set_len(0);
        }
        if let Err(ParseError::Missing(missing)) = &inspected {
            self.failed = Some(missing.clone());
        }
        inspected
    }

    async fn derive(
        &mut self,
        object: usize,
        jobs: &[DeriveJob],
    ) -> Result<Vec<Result<Derived, Missing>>, ParseError> {
        self.inspect().await?;
        let mut answers: Vec<Option<Result<Derived, Missing>>> = vec![None; jobs.len()];
        let unanswered = |answers: &[Option<Result<Derived, Missing>>]| -> Vec<usize> {
            (0..jobs.len())
                .filter(|job| answers.get(*job).is_some_and(Option::is_none))
                .collect()
        };
        // All jobs together; after a death, the remaining jobs one by one.
        let mut batch = unanswered(&answers);
        while !batch.is_empty() {
            let died = self
                .derive_batch(object, jobs, &batch, &mut answers)
                .await?;
            let left: Vec<usize> = unanswered(&answers);
            if let (Some(missing), Some(culprit)) =
                (died, batch.iter().find(|job| left.contains(job)))
                && batch.iter().filter(|job| left.contains(job)).count() == 1
                && let Some(answer) = answers.get_mut(*culprit)
            {
                *answer = Some(Err(missing));
            }
            batch = unanswered(&answers).into_iter().take(1).collect();
        }
        Ok(answers.into_iter().flatten().collect())
    }

    async fn transcode(
        &mut self,
        object: usize,
        transcoding: &Transcoding,
    ) -> Result<Result<Bytes, Missing>, ParseError> {
        self.inspect().await?;
        let layout = self
            .inspected
            .as_ref()
            .map(|inspected| inspected.layout.clone());
        let layout: Layout = serde_json::from_value(layout.unwrap_or_default())
            .map_err(|error| bug("reading the layout from a parser".to_owned()).caused_by(error))?;
        let part = layout
            .objects
            .get(object)
            .and_then(|found| layout.members.get(found.member));
        let part = part.ok_or_else(|| {
            bug(format!(
                "transcoding object {object}, which the DIF does not have"
            ))
        })?;
        let (file, range) = match part.place {
            MemberPlace::Whole => (self.dif.file(), 0..self.dif.written()),
            MemberPlace::Within { offset, length } => (self.dif.file(), offset..offset + length),
            MemberPlace::Unpacked { offset, length } => (&self.unpacked, offset..offset + length),
        };
        let ProcessDeriver {
            executable,
            limits,
            scratch,
            transcoders,
        } = &self.deriver;
        let starter = ToolStarter {
            executable,
            limits: *limits,
        };
        let pdb = PdbRange { file, range };
        transcoders.run(starter, scratch, pdb, transcoding).await
    }
}

impl ProcessParser {
    async fn ask_what_there_is(&mut self) -> Result<Inspection, ParseError> {
        let budget = self.deriver.scratch.budget().clone();
        let mut room = budget.reserve_rest();
        let all_there_could_be = budget.bytes().saturating_sub(self.dif.reserved());
        let command = Command::Inspect {
            written: self.written.clone(),
            room_bytes: room.bytes(),
            budget_bytes: budget.bytes(),
        };
        let mut process = self.start()?;
        let answer = match process.send(&command).await {
            Ok(()) => process.answer().await,
            Err(error) => Err(error),
        };
        let (inspection, layout, unpacked_bytes, out_of_room) = match answer {
            Ok((
                Reply::Inspected {
                    inspection,
                    layout,
                    unpacked_bytes,
                    out_of_room,
                },
                _,
            )) => (inspection, layout, unpacked_bytes, out_of_room),
            Ok((other, _)) => return Err(unexpected(other)),
            Err(error) => return Err(self.why(error)),
        };
        if out_of_room && room.bytes() < all_there_could_be {
            return Err(budget.contended(all_there_could_be, budget.used()).into());
        }
        room.shrink_to(unpacked_bytes);
        self.room = Some(room);
        self.process = Some(process);
        self.inspected = Some(Inspected {
            inspection: inspection.clone(),
            layout,
        });
        Ok(inspection)
    }

    /// Derives some of the jobs; returns why the process died, if it did.
    async fn derive_batch(
        &mut self,
        object: usize,
        jobs: &[DeriveJob],
        batch: &[usize],
        answers: &mut [Option<Result<Derived, Missing>>],
    ) -> Result<Option<Missing>, ParseError> {
        let batch_jobs = batch
            .iter()
            .filter_map(|job| jobs.get(*job))
            .copied()
            .collect();
        let command = Command::Derive {
            object,
            jobs: batch_jobs,
        };
        let mut process = match self.process.take() {
            Some(process) => process,
            None => match self.resume().await? {
                Ok(process) => process,
                Err(missing) => return Ok(Some(missing)),
            },
        };
        let mut sent = process.send(&command).await;
        for _ in batch {
            let answer = match sent {
                Ok(()) => process.answer().await,
                Err(error) => Err(error),
            };
            sent = Ok(());
            let (job, answer) = match answer {
                Ok((
                    Reply::Derived {
                        job,
                        kind,
                        checksum,
                        lacks,
                    },
                    blob,
                )) => {
                    let derived = Derived {
                        kind,
                        blob,
                        checksum,
                        lacks,
                    };
                    (job, Ok(derived))
                }
                Ok((Reply::Missing { job, missing }, _)) => (job, Err(missing)),
                Ok((other, _)) => return Err(unexpected(other)),
                Err(error) => match self.why(error) {
                    ParseError::Missing(missing) => return Ok(Some(missing)),
                    error @ ParseError::Fault(_) => return Err(error),
                },
            };
            let slot = batch.get(job).and_then(|job| answers.get_mut(*job));
            *slot.ok_or_else(|| {
                bug(format!(
                    "the parser process replied to the unknown job {job}"
                ))
            })? = Some(answer);
        }
        self.process = Some(process);
        Ok(None)
    }

    /// Starts a process that takes over from one that died.
    async fn resume(&mut self) -> Result<Result<ParserProcess, Missing>, ParseError> {
        let layout = self
            .inspected
            .as_ref()
            .map(|inspected| inspected.layout.clone())
            .unwrap_or_default();
        let mut process = self.start()?;
        match process.send(&Command::Resume { layout }).await {
            Ok(()) => Ok(Ok(process)),
            Err(error) => match self.why(error) {
                ParseError::Missing(missing) => Ok(Err(missing)),
                error @ ParseError::Fault(_) => Err(error),
            },
        }
    }

    fn start(&self) -> Result<ParserProcess, Fault> {
        let ParserLimits {
            memory_bytes,
            cpu_seconds,
            needs_seccomp,
        } = self.deriver.limits;
        let scratch_bytes = self.deriver.scratch.budget().bytes();
        let limits = ChildLimits {
            memory_bytes,
            cpu_seconds,
            needs_seccomp,
            scratch_bytes,
        };
        let executable = &*self.deriver.executable;
        let start = || {
            let files = (self.dif.file(), &self.unpacked);
            let (arriving, pipe) = match self.arrivals.as_ref().map(ArrivalNotices::pipe) {
                Some(pipe) => pipe?.unzip(),
                None => (None, None),
            };
            ParserProcess::start(executable, &Start { limits, arriving }, files, pipe)
        };
        start().map_err(|error| {
            let kind = match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => FaultKind::Bug,
                _ => FaultKind::Transient,
            };
            Fault::new(
                kind,
                format!("starting the parser {}", executable.display()),
            )
            .caused_by(error)
        })
    }

    fn why(&self, error: NoAnswer) -> ParseError {
        match error {
            NoAnswer::Died(death) => explain(
                death.status,
                &death.last_words,
                self.deriver.limits,
                self.deriver.scratch.budget().bytes(),
            ),
            NoAnswer::Broken(error) => bug("communicating with a parser process".to_owned())
                .caused_by(error)
                .into(),
        }
    }
}

fn unexpected(answer: Reply) -> ParseError {
    match answer {
        Reply::Failed { detail } => Fault::new(
            FaultKind::Transient,
            format!("the parser process reported: {detail}"),
        ),
        _ => bug("the parser process sent an unexpected reply".to_owned()),
    }
    .into()
}

fn bug(context: String) -> Fault {
    Fault::new(FaultKind::Bug, context)
}
