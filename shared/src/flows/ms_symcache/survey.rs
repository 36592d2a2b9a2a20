//! The combined state of the records of a PDB, for a client that reads certain versions. Pure.

use std::sync::Arc;
use std::time::Duration;

use crate::api::symcache_http::SymCacheRequest;
use crate::cache::{
    Capabilities, Decision, Entry, ItemKey, Kind, ModuleKey, Placeholder, Ready, Stored, decide,
};
use crate::domain::{Cause, FormatVersion, Timestamp};

/// A request, and the places where its PDB may be found.
pub(super) struct Client<'a> {
    pub(super) asked: &'a SymCacheRequest,
    /// The version that the client has.
    pub(super) present: Option<FormatVersion>,
    pub(super) places: Vec<ModuleKey>,
    /// The highest version that can be made for the client.
    pub(super) transcoder: Option<FormatVersion>,
}

impl Client<'_> {
    /// Returns the kinds that the client reads, the newest first.
    pub(super) fn kinds(&self) -> impl Iterator<Item = Kind> {
        let majors = FormatVersion::FIRST.major..=self.asked.version.major;
        majors.rev().take(MAX_MAJORS).map(Kind::MsSymCache)
    }

    /// Returns the kind that can be made for the client.
    fn made(&self) -> Option<Kind> {
        self.transcoder
            .map(|version| Kind::MsSymCache(version.major))
    }

    /// Returns the entries that may exist. For a symbol server, only the kind that can be made
    /// here.
    pub(super) fn entries(&self) -> Vec<(&ModuleKey, Kind)> {
        let of_kind = |kind: Kind| {
            let is_made = self.made() == Some(kind);
            let places = self.places.iter();
            let places = places.filter(move |place| is_made || place.source.is_uploads());
            places.map(move |place| (place, kind))
        };
        self.kinds().flat_map(of_kind).collect()
    }

    /// Returns whether the client reads a state.
    pub(super) fn reads(&self, ready: &Ready) -> bool {
        self.asked
            .version
            .reads(FormatVersion::from_u32(ready.version))
    }

    /// Returns whether no version better than a state can be made.
    pub(super) fn is_best(&self, ready: &Ready) -> bool {
        self.transcoder
            .is_none_or(|made| ready.version >= made.as_u32())
    }

    /// Returns the result for a ready state: `NotModified` if the client already has this version.
    pub(super) fn judge(&self, (entry, ready): (Entry, Ready)) -> Look {
        match self.has(FormatVersion::from_u32(ready.version)) {
            true => Look::NotModified,
            false => Look::Ready(Box::new((entry, ready))),
        }
    }

    /// Returns whether the client has the newest version that can be made. If none can be made,
    /// returns whether it has any.
    pub(super) fn has_the_newest(&self) -> bool {
        match self.transcoder {
            Some(made) => self.has(made),
            None => self.present.is_some(),
        }
    }

    /// Returns whether the client has this version or a higher one.
    fn has(&self, version: FormatVersion) -> bool {
        self.present.is_some_and(|present| present >= version)
    }
}

/// An entry that a build could make or renew.
#[derive(Clone, Copy)]
pub(super) struct Buildable<'a> {
    pub(super) place: &'a ModuleKey,
    pub(super) kind: Kind,
    /// Whether a build is in progress or requested.
    pub(super) is_requested: bool,
}

impl Buildable<'_> {
    pub(super) fn key(&self) -> ItemKey {
        self.place.entry(self.kind)
    }
}

/// The combined state of the entries.
#[derive(Default)]
pub(super) struct Survey<'a> {
    /// The newest state that the client reads.
    pub(super) best: Option<(Entry, Ready)>,
    /// Entries without a state that a build could make.
    pub(super) to_request: Vec<Buildable<'a>>,
    /// Entries that a build would renew.
    behind: Vec<Buildable<'a>>,
    pub(super) is_waited_for: bool,
    /// Whether an entry that is waited for belongs to the uploads.
    pub(super) is_upload_awaited: bool,
    /// The time until a source that did not respond may be called again.
    pub(super) silent_for: Option<Duration>,
}

impl<'a> Survey<'a> {
    pub(super) fn of(
        client: &Client<'_>,
        entries: &[(&'a ModuleKey, Kind)],
        items: &[Option<Arc<Stored>>],
        with_files: &[&ModuleKey],
        reader: &Capabilities,
        now: Timestamp,
    ) -> Self {
        let mut survey = Self::default();
        for ((place, kind), item) in entries.iter().copied().zip(items) {
            // Without a presence item, no upload serves this place.
            let may_come = !place.source.is_uploads() || with_files.contains(&place);
            let entry = item.as_deref().and_then(|stored| stored.item.entry());
            let open = Buildable {
                place,
                kind,
                is_requested: entry.is_some_and(|entry| is_at_work(entry, now)),
            };
            match decide(entry, reader, now) {
                Decision::Use(ready) | Decision::UseAndUpgrade(ready) => {
                    survey.meet(client, entry, ready);
                }
                Decision::UseOlder(ready) => {
                    survey.behind.push(open);
                    survey.meet(client, entry, ready);
                }
                Decision::Wait { .. } if may_come => {
                    survey.is_waited_for = true;
                    survey.is_upload_awaited |= place.source.is_uploads();
                }
                Decision::Missing(Placeholder {
                    missing, retry_at, ..
                }) => {
                    if matches!(missing.cause, Cause::DownloadFailed | Cause::Timeout) {
                        let time = retry_at.since(now);
                        survey.silent_for = survey.silent_for.max(Some(time));
                    }
                }
                Decision::Build if may_come && client.made() == Some(kind) => {
                    survey.to_request.push(open);
                }
                Decision::Build | Decision::Wait { .. } => {}
            }
        }
        survey
    }

    fn meet(&mut self, client: &Client<'_>, entry: Option<&Entry>, ready: &Ready) {
        let best = self.best.as_ref();
        let beats = best.is_none_or(|(_, best)| best.version < ready.version);
        if let Some(entry) = entry
            && client.reads(ready)
            && beats
        {
            self.best = Some((entry.clone(), ready.clone()));
        }
    }

    /// Returns the entries that could provide a newer version than a state.
    pub(super) fn newer_than(&self, ready: &Ready, client: &Client<'_>) -> Vec<Buildable<'a>> {
        if client.is_best(ready) {
            return Vec::new();
        }
        let could_be = [self.behind.as_slice(), &self.to_request].concat();
        uploads_first(could_be, self.is_upload_awaited)
    }
}

/// Returns whether a build of an entry is in progress or requested.
pub(super) fn is_at_work(entry: &Entry, now: Timestamp) -> bool {
    entry.live_request(now).is_some() || entry.live_lease(now).is_some()
}

/// The maximum number of major versions that are looked up, beginning with the newest that the
/// client reads.
pub(super) const MAX_MAJORS: usize = 8;

/// The result of one lookup.
pub(super) enum Look {
    Ready(Box<(Entry, Ready)>),
    NotModified,
    Nothing,
    /// A build is in progress or requested.
    Waiting,
    /// A source does not respond. The time until the next attempt.
    Silent(Duration),
}

/// Leaves out symbol servers while the uploads may have the file.
pub(super) fn uploads_first(
    entries: Vec<Buildable<'_>>,
    is_upload_awaited: bool,
) -> Vec<Buildable<'_>> {
    let is_upload = |open: &Buildable<'_>| open.place.source.is_uploads();
    let only_uploads = is_upload_awaited || entries.iter().any(is_upload);
    let is_next = |open: &Buildable<'_>| !only_uploads || is_upload(open);
    entries.into_iter().filter(is_next).collect()
}
