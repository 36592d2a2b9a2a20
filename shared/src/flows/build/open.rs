//! Opens a DIF of a module, alone or together with its companions, from wherever each of them is:
//! the uploads, the copy of a file from a symbol server, or the server.

use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use super::builder::Build;
use super::companions::Companion;
use super::open_difs::{LeftOutCompanions, OpenDif, OpenDifs};
use super::search::{Downloads, Fetched};
use crate::cache::{Dif, DifCopy};
use crate::domain::{Cause, DifRef, Missing, Written, WrittenFile};
use crate::flows::dif_parser::DifParser;
use crate::flows::download::{FetchError, ServerCalls};
use crate::flows::{copies, fetch};
use crate::ports::{DifError, DifStat, Fault, Scratch};

/// The maximum number of companions that are checked for changes at a time.
const CHECKS_IN_FLIGHT: usize = 32;

impl Build<'_> {
    /// Opens a DIF together with its companions, or alone if they cannot be fetched or read.
    /// Uploaded companions whose bytes no longer exist are left out. If a symbol server failed, or
    /// the parser was killed, perhaps from outside, another attempt follows later.
    pub(super) async fn open_afresh(
        &self,
        dif: &Dif,
        companions: &[Companion],
    ) -> Result<OpenDif, DifError> {
        let _span = self.invocation.span("fetch");
        let (mut companions, mut absent) = (companions.to_vec(), Vec::new());
        let mut left_out = None;
        if !companions.is_empty() {
            let mut opened = self.open_together(dif, &companions).await;
            if opened.as_ref().is_err_and(is_of_absent_file) {
                absent = self.leave_out_absent(&mut companions).await?;
                if !absent.is_empty() && !companions.is_empty() {
                    opened = self.open_together(dif, &companions).await;
                }
            }
            match opened {
                Ok(opened) => return Ok(OpenDif { absent, ..opened }),
                Err(DifError::Fault(fault)) => return Err(fault.into()),
                Err(DifError::Missing(missing)) if missing.cause == Cause::Crashed => {
                    left_out = Some(LeftOutCompanions::Crashed(missing));
                }
                // It would be the same next time.
                Err(DifError::Missing(missing)) if missing.cause.belongs_to_the_converter() => {}
                Err(DifError::Missing(_) | DifError::Changed) => {
                    let mut modules = companions.iter().map(|companion| &companion.dif.module);
                    let is_of_server = modules.any(|module| !module.source.is_uploads());
                    left_out = is_of_server.then_some(LeftOutCompanions::UntilNextProbe);
                }
            }
        }
        let opened = if dif.module.source.is_uploads() {
            self.open_upload(dif).await?
        } else {
            self.open_found(dif).await?
        };
        Ok(OpenDif {
            left_out,
            absent,
            ..opened
        })
    }

    /// Removes the uploaded companions whose bytes no longer exist from the list, and their items
    /// unless the event of the change has yet to be processed. That event leads to another build.
    async fn leave_out_absent(
        &self,
        companions: &mut Vec<Companion>,
    ) -> Result<Vec<DifRef>, DifError> {
        let build = *self;
        let uploaded = companions.iter().map(|companion| &companion.dif);
        let uploaded = uploaded.filter(|dif| dif.module.source.is_uploads());
        let checks = uploaded.map(|dif| {
            let file = dif.file.clone();
            async move { Ok::<_, Fault>(build.is_absent(&file).await?.then_some(file)) }.boxed()
        });
        let checks: Vec<BoxFuture<'_, _>> = checks.collect();
        let checked = stream::iter(checks).buffered(CHECKS_IN_FLIGHT);
        let checked: Vec<Option<DifRef>> = checked.try_collect().await?;
        let absent: Vec<DifRef> = checked.into_iter().flatten().collect();
        for companion in companions.iter() {
            if absent.contains(&companion.dif.file) {
                for filed in companion.filed() {
                    self.forget_if_stale(&filed).await?;
                }
            }
        }
        companions.retain(|companion| !absent.contains(&companion.dif.file));
        Ok(absent)
    }

    /// Returns whether an upload no longer exists, or has other bytes.
    async fn is_absent(&self, file: &DifRef) -> Result<bool, Fault> {
        match self.builder.uploads.stat(&file.location).await {
            Ok(stat) => Ok(stat.etag != file.etag),
            Err(DifError::Fault(fault)) => Err(fault),
            Err(error) => Ok(is_of_absent_file(&error)),
        }
    }

    async fn open_upload(&self, dif: &Dif) -> Result<OpenDif, DifError> {
        let (builder, began) = (self.builder, self.invocation.elapsed());
        let max_bytes = builder.settings.dif_max_bytes;
        let (uploads, deriver) = (&builder.uploads, &*builder.deriver);
        let stat = DifStat {
            etag: dif.file.etag.clone(),
            size: dif.size,
        };
        let location = &dif.file.location;
        let parser = fetch::fetch(uploads, deriver, location, &stat, max_bytes).await?;
        let took = self.invocation.elapsed() - began;
        self.invocation.note(|notes| notes.file_bytes += stat.size);
        OpenDif::inspected(dif, &[], parser, took).await
    }

    /// Opens a DIF that a search found: from its copy, or else by fetching it again.
    async fn open_found(&self, dif: &Dif) -> Result<OpenDif, DifError> {
        if let Some(opened) = self.open_copy(dif).await? {
            return Ok(opened);
        }
        let source = self.builder.source_of(self.invocation, self.module).await?;
        let Some(source) = source else {
            return Err(DifError::Missing(Missing::not_found()));
        };
        let mut downloads = Downloads {
            build: *self,
            module: self.module,
            source: &source,
            checksum: self.module.sought().and_then(|sought| sought.checksum),
            time: Build::time_for_call,
            open_difs: &mut OpenDifs::default(),
        };
        match downloads.fetch_and_open(&dif.file.location).await {
            Ok((fetched, _)) if fetched.dif != dif.file => Err(DifError::Changed),
            Ok((Fetched { chunks, .. }, opened)) => {
                if let Some(chunks) = chunks {
                    copies::keep(self.writer(), dif, chunks).await;
                }
                Ok(opened)
            }
            Err(FetchError::Server(failure)) => Err(DifError::Missing(failure.missing)),
            Err(FetchError::Parse(error)) => Err(error.into()),
        }
    }

    /// Opens the copy of a DIF, if there is one.
    async fn open_copy(&self, dif: &Dif) -> Result<Option<OpenDif>, DifError> {
        let Some(copy) = self.copy_of(dif).await? else {
            return Ok(None);
        };
        let (builder, began) = (self.builder, self.invocation.elapsed());
        let scratch =
            copies::read(self.writer(), &*builder.caches, &*builder.deriver, &copy).await?;
        let Some(scratch) = scratch else {
            return Ok(None);
        };
        let took = self.invocation.elapsed() - began;
        let parser = builder.deriver.open(scratch, Written::Whole).await?;
        let parser = DifParser::complete(parser);
        Ok(Some(OpenDif::inspected(dif, &[], parser, took).await?))
    }

    async fn open_together(
        &self,
        dif: &Dif,
        companions: &[Companion],
    ) -> Result<OpenDif, DifError> {
        let began = self.invocation.elapsed();
        let companion_difs = companions.iter().map(|companion| &companion.dif);
        let difs: Vec<&Dif> = std::iter::once(dif).chain(companion_difs).collect();
        let parser = self.fetch_together(&difs).await?;
        let took = self.invocation.elapsed() - began;
        OpenDif::inspected(dif, companions, parser, took).await
    }

    /// Fetches DIFs that complete each other, and starts one parser of all of them. The limits of
    /// a DIF apply to all of them together.
    async fn fetch_together(&self, difs: &[&Dif]) -> Result<DifParser, DifError> {
        let builder = self.builder;
        let max_bytes = builder.settings.dif_max_bytes;
        let (files, mut scratch) = fetch::room_for(&*builder.deriver, difs, max_bytes)?;
        let (uploaded, found): (Vec<_>, Vec<_>) = difs
            .iter()
            .copied()
            .zip(&files)
            .partition(|(dif, _)| dif.module.source.is_uploads());
        fetch::read_all(&*builder.uploads, &uploaded, &mut *scratch).await?;
        for (dif, place) in found {
            let copy = self.copy_of(dif).await?;
            if let Some(copy) = copy {
                let place = (&mut *scratch, place.offset);
                if copies::read_into(self.writer(), &*builder.caches, &copy, place).await? {
                    continue;
                }
            }
            self.refetch_into((&mut *scratch, place), dif).await?;
        }
        let written = Written::Together(files);
        let parser = builder.deriver.open(scratch, written).await?;
        Ok(DifParser::complete(parser))
    }

    /// Fetches a DIF that a search found again, to its place in scratch space.
    async fn refetch_into(
        &self,
        place: (&mut dyn Scratch, &WrittenFile),
        dif: &Dif,
    ) -> Result<(), DifError> {
        let builder = self.builder;
        let source = builder.source_of(self.invocation, &dif.module).await?;
        let Some(source) = source else {
            return Err(DifError::Missing(Missing::not_found()));
        };
        let server = ServerCalls {
            servers: &*builder.servers,
            key: &dif.module.source,
            source: &source,
            checksum: None,
        };
        let time = self.time_for_call();
        match server.fetch_again(&dif.file.location, place, time).await {
            Ok(Some(stat)) if stat.etag == dif.file.etag => Ok(()),
            Ok(_) => Err(DifError::Changed),
            Err(FetchError::Server(failure)) => Err(DifError::Missing(failure.missing)),
            Err(FetchError::Parse(error)) => Err(error.into()),
        }
    }

    async fn copy_of(&self, dif: &Dif) -> Result<Option<DifCopy>, Fault> {
        let key = dif.module.copy(&dif.file.location);
        let copy: Option<DifCopy> = self.builder.records.one(key).await?;
        Ok(copy.filter(|copy| copy.dif.file == dif.file))
    }
}

/// Returns whether a file cannot be read because it was removed or overwritten.
fn is_of_absent_file(error: &DifError) -> bool {
    match error {
        DifError::Missing(missing) => missing.cause == Cause::NotFound,
        DifError::Changed => true,
        DifError::Fault(_) => false,
    }
}
