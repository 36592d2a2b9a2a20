//! Three symbol servers: one is slow, one is dead, and one lies.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use serde::Deserialize;
use symdepot::debuginfo::checksum;
use symdepot::domain::{Cause, FileType, HttpSource, Location, Missing};
use symdepot::flows::Server;
use symdepot::ports::{Concerns, FileQuery, IncomingDif, ListQuery, ServerFailure, SymbolServers};

use super::gate::{Call, Fate};
use super::ports::Ports;
use super::workload::{File, Offer, Readers, Symbols, object_id};

/// What the functions of files from servers have for a number.
pub(super) const SERIAL: usize = 900_000;

/// The name of a symbol server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Slow,
    Dead,
    Lying,
}

impl Name {
    const ALL: [Self; 3] = [Self::Slow, Self::Dead, Self::Lying];

    fn source(self) -> HttpSource {
        let name = format!("{self:?}").to_lowercase();
        let json = serde_json::json!({
            "type": "http",
            "id": name,
            "url": format!("http://{name}.test/"),
            "layout": {"type": "native"},
            "filters": {"filetypes": ["breakpad"]},
        });
        HttpSource::deserialize(json).unwrap_or_else(|error| panic!("{name}: {error}"))
    }
}

/// Returns the configured servers, in the order in which they are searched.
pub(super) fn sources() -> Vec<Server> {
    Name::ALL.map(|name| name.source().into()).into()
}

/// Returns the symbols that the slow server has for a module: every third one has none.
pub(super) fn symbols(module: usize) -> Option<Symbols> {
    (module % 3 != 2).then_some(Symbols {
        module,
        offer: if module.is_multiple_of(3) {
            Offer::Debug
        } else {
            Offer::Symbols
        },
        serial: SERIAL,
        kills: false,
        readers: Readers::All,
    })
}

/// Returns the module that is sought at each location.
pub(super) fn locations(modules: usize) -> BTreeMap<Location, usize> {
    let sources = Name::ALL.map(Name::source);
    let each = (0..modules).flat_map(|module| {
        let id = object_id(module);
        let locations = sources.iter().flat_map(move |source| source.locations(&id));
        locations.map(move |(_, location)| (location, module))
    });
    each.collect()
}

fn failure(cause: Cause, detail: &str, concerns: Concerns) -> ServerFailure {
    ServerFailure {
        missing: Missing::new(cause, detail),
        retry_after: None,
        concerns,
    }
}

fn not_found() -> ServerFailure {
    ServerFailure {
        missing: Missing::not_found(),
        retry_after: None,
        concerns: Concerns::Location,
    }
}

/// Returns what the lying server says: the symbols of another module, half of a file, something
/// else, or that it is busy.
fn lie(module: usize, number: u64) -> Result<(Bytes, u64), ServerFailure> {
    let other = Symbols {
        module: module + 1,
        offer: Offer::Debug,
        serial: SERIAL + 1,
        kills: false,
        readers: Readers::All,
    };
    let bytes = File::Single(other).bytes();
    let size = bytes.len() as u64;
    match number % 4 {
        0 => Ok((bytes, size)),
        1 => Ok((bytes.slice(..20), size)),
        2 => Ok((Bytes::from_static(b"<html>please log in</html>"), 26)),
        _ => Err(ServerFailure {
            retry_after: Some(Duration::from_secs(30)),
            ..failure(Cause::DownloadFailed, "429", Concerns::Server)
        }),
    }
}

#[async_trait]
impl SymbolServers for Ports {
    async fn get(&self, query: FileQuery<'_>) -> Result<IncomingDif, ServerFailure> {
        let FileQuery {
            source, location, ..
        } = query;
        let fate = self.pass(Call::Download).await;
        let Some(name) = Name::ALL
            .into_iter()
            .find(|name| name.source().id == source.id)
        else {
            return Err(not_found());
        };
        let time = match (name, fate) {
            (Name::Slow, Fate::Late(time)) => time,
            (Name::Dead, _) => Duration::from_secs(10),
            _ => Duration::from_millis(50),
        };
        self.respond_after(time).await;
        let module = self.module_at(location);
        let answer = match (name, module) {
            (Name::Dead, _) => Err(failure(
                Cause::DownloadFailed,
                "no connection",
                Concerns::Server,
            )),
            (Name::Slow, Some(module)) => {
                let bytes = symbols(module).map(|symbols| File::Single(symbols).bytes());
                let sized = bytes.map(|bytes| (bytes.clone(), bytes.len() as u64));
                sized.ok_or_else(not_found)
            }
            (Name::Lying, Some(module)) => lie(module, self.draw()),
            (_, None) => Err(not_found()),
        };
        let shown = match &answer {
            Ok((bytes, _)) => format!("{} bytes", bytes.len()),
            Err(failure) => failure.missing.detail.clone(),
        };
        self.note(&format!("{name:?} server {location} -> {shown}"));
        let (bytes, size) = answer?;
        let is_cut = (bytes.len() as u64) < size;
        let cut = is_cut.then(|| Err(failure(Cause::DownloadFailed, "cut", Concerns::Location)));
        let etag = format!("{:016x}", checksum(&bytes));
        Ok(IncomingDif {
            etag,
            size: Some(size),
            body: stream::iter([Ok(bytes)].into_iter().chain(cut)).boxed(),
        })
    }

    async fn list(&self, _: ListQuery<'_>) -> Result<Vec<(FileType, Location)>, ServerFailure> {
        Ok(Vec::new())
    }
}
