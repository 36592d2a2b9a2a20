//! Searching a symbol server: what it has of a module.
//!
//! The locations are tried in their order, until what was found serves every kind as well as anything could. A server that
//! fails is not asked for more: the next location would meet the same. What was fetched stays open for deriving.

use std::time::Duration;

use super::super::{Invocation, definitions, fetch};
use super::{Builder, OpenDif};
use crate::cache::{Dif, Kind, ModuleKey, Sought};
use crate::domain::{
    Candidate, Cause, DifRef, Download, Features, HttpSource, Location, Missing, ObjectMeta,
    Quality, Rank,
};
use crate::ports::{DifError, ParseError, ServerFailure};

/// What came of a search.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// What was found.
    pub(super) difs: Vec<Dif>,
    /// The locations that had nothing that serves, and why.
    pub(super) tried: Vec<Candidate>,
    /// Why nothing was found, where there is more to say than that.
    pub(super) failure: Option<Missing>,
    /// How long the source wants to be left alone.
    pub(super) retry_after: Option<Duration>,
}

impl Builder {
    /// Searches a symbol server for what serves these kinds.
    pub(super) async fn search(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        sought: &Sought,
        kinds: &[Kind],
        open: &mut Vec<OpenDif>,
    ) -> Result<Search, DifError> {
        let mut search = Search::default();
        let Some(source) = self.source(invocation, module).await? else {
            let detail = format!("{} is not configured any more", module.source.id());
            search.failure = Some(Missing::new(Cause::NotFound, detail));
            return Ok(search);
        };
        for (file_type, location) in &sought.locations {
            if kinds.iter().all(|kind| search.serves_well(*kind)) {
                break;
            }
            if !kinds
                .iter()
                .any(|kind| Kind::derived_from(*file_type).contains(kind))
            {
                continue;
            }
            let began = invocation.elapsed();
            let fetched = self.fetch_from_server(&source, location, open).await?;
            let took = invocation.elapsed() - began;
            let found = fetched.and_then(|(dif, size)| filed(module, sought, open, dif, size));
            match found {
                Ok(dif) => search.difs.push(dif),
                Err(failure) => {
                    let is_over = search.note(module, location, failure, took);
                    if is_over {
                        break;
                    }
                }
            }
        }
        if search.difs.is_empty() && search.failure.is_none() && source.is_public {
            search.retry_after = Some(self.settings.retry_public_misses_after);
        }
        Ok(search)
    }

    /// Returns the definition of a module's symbol server; `None` for the uploads, and for one that is gone.
    async fn source(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
    ) -> Result<Option<HttpSource>, DifError> {
        let key = &module.source;
        match &self.settings.request_sources {
            Some(secret) if key.is_defined() => {
                Ok(definitions::kept(&*self.records, invocation, secret, key).await?)
            }
            _ => Ok(self.settings.source(key).cloned()),
        }
    }

    /// Fetches once more what a search found, and had to close for want of room.
    pub(super) async fn open_again(
        &self,
        invocation: &Invocation,
        module: &ModuleKey,
        dif: &DifRef,
        open: &mut Vec<OpenDif>,
    ) -> Result<(), DifError> {
        let Some(source) = self.source(invocation, module).await? else {
            return Err(DifError::Missing(Missing::not_found()));
        };
        match self.fetch_from_server(&source, &dif.location, open).await? {
            Ok((now, _)) if now != *dif => Err(DifError::Changed),
            Ok(_) => Ok(()),
            Err(failure) => Err(DifError::Missing(failure.missing)),
        }
    }

    /// Fetches a file from a server, and leaves it open. Where there is no room for another one beside those that are open,
    /// these are closed.
    async fn fetch_from_server(
        &self,
        source: &HttpSource,
        location: &Location,
        open: &mut Vec<OpenDif>,
    ) -> Result<Result<(DifRef, u64), ServerFailure>, DifError> {
        let settings = &self.settings;
        loop {
            let fetched = fetch::fetch_from_server(
                &*self.servers,
                &*self.deriver,
                source,
                location,
                settings.dif_max_bytes,
                settings.scratch_bytes / 2,
            )
            .await;
            let (stat, mut parser) = match fetched {
                Ok(fetched) => fetched,
                Err(fetch::FromServer::Server(failure)) => return Ok(Err(failure)),
                Err(fetch::FromServer::Parse(ParseError::Missing(missing))) => {
                    return Ok(Err(of_the_file(missing)));
                }
                Err(fetch::FromServer::Parse(ParseError::Store(_))) if !open.is_empty() => {
                    open.clear();
                    continue;
                }
                Err(fetch::FromServer::Parse(ParseError::Store(error))) => return Err(error.into()),
            };
            let dif = DifRef {
                location: location.clone(),
                etag: stat.etag,
            };
            return match parser.inspect().await {
                Ok(inspection) => {
                    open.push(OpenDif {
                        dif: dif.clone(),
                        parser,
                        inspection,
                    });
                    Ok(Ok((dif, stat.size)))
                }
                Err(ParseError::Missing(missing)) => Ok(Err(of_the_file(missing))),
                Err(ParseError::Store(error)) => Err(error.into()),
            };
        }
    }
}

impl Search {
    /// Tells whether nothing could serve a kind better than what was found.
    fn serves_well(&self, kind: Kind) -> bool {
        self.difs.iter().any(|dif| {
            Kind::derived_from(dif.file_type).contains(&kind)
                && Rank::of(&dif.features, kind.purpose()).quality() == Quality::Preferred
        })
    }

    /// Notes what came of a location that has nothing; returns whether it is no use to ask for more.
    fn note(
        &mut self,
        module: &ModuleKey,
        location: &Location,
        failure: ServerFailure,
        took: Duration,
    ) -> bool {
        let ServerFailure {
            missing,
            retry_after,
        } = failure;
        self.tried.push(Candidate {
            source: module.source.clone(),
            location: location.clone(),
            download: Download::failed(&missing),
            size: None,
            duration_ms: u64::try_from(took.as_millis()).ok(),
        });
        let is_the_servers = matches!(missing.cause, Cause::DownloadFailed | Cause::Timeout);
        if missing.cause != Cause::NotFound && (is_the_servers || self.failure.is_none()) {
            self.failure = Some(missing);
        }
        self.retry_after = self.retry_after.max(retry_after);
        is_the_servers
    }
}

/// Returns the DIF for what was fetched, if it is of this module: a server may hand out anything.
fn filed(
    module: &ModuleKey,
    sought: &Sought,
    open: &[OpenDif],
    dif: DifRef,
    size: u64,
) -> Result<Dif, ServerFailure> {
    let fetched = open.iter().find(|open| open.dif == dif);
    let inspection = fetched.map(|open| &open.inspection);
    let objects = inspection.map_or(&[][..], |inspection| &inspection.objects);
    let mut ours = objects.iter().filter(|object| is_sought(object, sought));
    let Some(first) = ours.next() else {
        let what = match (
            objects,
            inspection.and_then(|inspection| inspection.ignored.first()),
        ) {
            ([], Some(reason)) => reason.clone(),
            ([], None) => "there is no object in it".to_owned(),
            _ => "it belongs to another module".to_owned(),
        };
        return Err(of_the_file(Missing::malformed(format!(
            "{}: {what}",
            dif.location
        ))));
    };
    let mut features: Features = first.features.clone();
    ours.for_each(|object| features.merge(&object.features));
    Ok(Dif {
        module: module.clone(),
        dif,
        sequencer: String::new(),
        size,
        file_type: first.file_type,
        features,
        refused: None,
    })
}

/// Tells whether an object is of the module that is sought. Ages differ: a debug file may have been written once more.
pub(super) fn is_sought(object: &ObjectMeta, sought: &Sought) -> bool {
    let debug_ids = object.debug_id.zip(sought.debug_id);
    let code_ids = object.code_id.as_ref().zip(sought.code_id.as_ref());
    debug_ids.is_some_and(|(a, b)| !a.is_nil() && a.uuid() == b.uuid())
        || code_ids.is_some_and(|(a, b)| a == b)
}

fn of_the_file(missing: Missing) -> ServerFailure {
    ServerFailure {
        missing,
        retry_after: None,
    }
}
