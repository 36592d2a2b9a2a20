//! Symbol servers: one is slow, one is dead, and one lies. A fourth one may be configured while the
//! fleet runs, function by function.

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

/// The same number, as their names have it.
pub(super) const SERIAL_TEXT: &str = "900000";

/// The body of a response that takes longer than this is too slow.
const SLOWEST: Duration = Duration::from_secs(60);

/// The name of a symbol server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Slow,
    Dead,
    Lying,
    /// It is configured later.
    Added,
}

impl Name {
    const ALL: [Self; 4] = [Self::Slow, Self::Dead, Self::Lying, Self::Added];

    /// Returns the id of the source.
    fn id(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::Dead => "dead",
            Self::Lying => "lying",
            Self::Added => ADDED,
        }
    }

    fn source(self) -> HttpSource {
        let name = self.id();
        let json = serde_json::json!({
            "type": "http",
            "id": name,
            "url": format!("http://{name}.test/"),
            "layout": {"type": "native"},
            "filters": {"filetypes": ["breakpad"]},
        });
        HttpSource::deserialize(json).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Returns the symbols that the server has for a module.
    fn symbols(self, module: usize) -> Option<Symbols> {
        let (has_it, offer) = match (self, module % 3) {
            (Self::Slow, 0) | (Self::Added, 2) => (true, Offer::Debug),
            (Self::Slow, 1) => (true, Offer::Symbols),
            _ => (false, Offer::Symbols),
        };
        has_it.then_some(Symbols {
            module,
            offer,
            serial: SERIAL,
            kills: false,
            readers: Readers::All,
        })
    }
}

/// The id of the server that is configured later.
pub(super) const ADDED: &str = "added";

/// Returns the configured servers, in the order in which they are searched.
pub(super) fn sources(with_added: bool) -> Vec<Server> {
    let names = Name::ALL.into_iter();
    let names = names.filter(|name| with_added || *name != Name::Added);
    names.map(|name| name.source().into()).collect()
}

/// Returns the number of servers that are configured in the end.
pub(super) fn count(has_servers: bool, with_added: bool) -> usize {
    match (has_servers, with_added) {
        (false, _) => 0,
        (true, false) => Name::ALL.len() - 1,
        (true, true) => Name::ALL.len(),
    }
}

/// Returns the symbols that one of the servers has for a module: of every third one, only the
/// server that is configured later has some.
pub(super) fn symbols(module: usize, with_added: bool) -> Option<Symbols> {
    let of_slow = Name::Slow.symbols(module);
    of_slow.or_else(|| Name::Added.symbols(module).filter(|_| with_added))
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
        let Some(name) = Name::ALL.into_iter().find(|name| name.id() == source.id) else {
            return Err(not_found());
        };
        let time = match (name, fate) {
            (Name::Slow, Fate::Late(time)) => time,
            (Name::Dead, _) => Duration::from_secs(10),
            _ => Duration::from_millis(50),
        };
        // Some responses begin at once, and their bodies are too slow.
        let is_slow_body = name == Name::Slow && time > SLOWEST;
        let (until_head, until_body) = if is_slow_body {
            (Duration::from_secs(1), time)
        } else {
            (time, Duration::ZERO)
        };
        self.respond_after(until_head).await;
        let module = self.module_at(location);
        let answer = match (name, module) {
            (Name::Dead, _) => Err(failure(
                Cause::DownloadFailed,
                "no connection",
                Concerns::Server,
            )),
            (Name::Slow | Name::Added, Some(module)) => {
                let bytes = name
                    .symbols(module)
                    .map(|symbols| File::Single(symbols).bytes());
                let sized = bytes.map(|bytes| (bytes.clone(), bytes.len() as u64));
                sized.ok_or_else(not_found)
            }
            (Name::Lying, Some(module)) => lie(module, self.draw()),
            (_, None) => Err(not_found()),
        };
        self.note(|| {
            let shown = match &answer {
                Ok((bytes, _)) => format!("{} bytes", bytes.len()),
                Err(failure) => failure.missing.detail.clone(),
            };
            format!("{name:?} server {location} -> {shown}")
        });
        let (bytes, size) = answer?;
        let is_cut = (bytes.len() as u64) < size;
        let cut = is_cut.then(|| Err(failure(Cause::DownloadFailed, "cut", Concerns::Location)));
        let etag = format!("{:016x}", checksum(&bytes));
        let ports = self.clone();
        let sent = stream::once(async move {
            if is_slow_body {
                ports.respond_after(until_body).await;
            }
            Ok(bytes)
        });
        Ok(IncomingDif {
            etag,
            size: Some(size),
            body: sent.chain(stream::iter(cut)).boxed(),
        })
    }

    async fn list(&self, _: ListQuery<'_>) -> Result<Vec<(FileType, Location)>, ServerFailure> {
        Ok(Vec::new())
    }
}
