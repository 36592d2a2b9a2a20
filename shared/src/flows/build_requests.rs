//! Requests builds: writes the build request into the entry, and sends a message if that write
//! succeeded.
//!
//! Only the writer whose build request was stored sends the message. Build requests are written in
//! parallel, and messages are sent in batches. Modules of one symbol server share a message, so
//! that one permit is enough for all of them. Each upload has its own message, because each is
//! built separately.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};

use super::lookup::{CacheFinder, CachePlace, Items};
use super::update::KnownEntry;
use super::{Updated, sending};
use crate::cache::{Change, Converter, Entry, Kind, ModuleKey, Queue, Stored, Token};
use crate::flows::http_service::CALLS_IN_FLIGHT;
use crate::ports::{Fault, QueueMessage, RequestedModule};

/// The maximum number of builds that one call requests. The call that continues the request
/// requests the next ones.
pub(super) const MAX_BUILD_REQUESTS: usize = 256;

/// A build to request.
#[derive(Clone, Debug)]
pub(super) struct BuildToRequest {
    /// The module.
    pub(super) module: ModuleKey,
    /// The kind.
    pub(super) kind: Kind,
    /// The queue of its message.
    pub(super) queue: Queue,
    /// The entry's record as it was read, if there is one.
    pub(super) known: Option<Arc<Stored>>,
    /// The blob that cannot be read, if the request reports one to the next build.
    pub(super) suspect: Option<String>,
}

impl BuildToRequest {
    /// Returns the build of the entry of a place, as it was loaded.
    pub(super) fn of(place: &CachePlace, items: &Items, queue: Queue) -> Self {
        Self {
            module: place.module.clone(),
            kind: place.kind,
            queue,
            known: items.stored(place).cloned(),
            suspect: None,
        }
    }
}

impl CacheFinder<'_> {
    /// Requests builds, except those that another writer has requested meanwhile. Returns the
    /// unreadable blobs that were reported with them.
    ///
    /// # Errors
    ///
    /// The first error of the store, or an error of the queues. After an error of the store, the
    /// other builds are requested nevertheless.
    pub(super) async fn request_builds(
        &self,
        mut to_request: Vec<BuildToRequest>,
    ) -> Result<Vec<String>, Fault> {
        if to_request.is_empty() {
            return Ok(Vec::new());
        }
        let reported = to_request.iter().filter_map(|build| build.suspect.clone());
        let reported = reported.collect();
        // All kinds of a module share one id, and so one message.
        to_request.sort_by(|a, b| (&a.module, a.kind).cmp(&(&b.module, b.kind)));
        let mut ids: BTreeMap<(ModuleKey, bool), Token> = BTreeMap::new();
        let with_ids: Vec<(BuildToRequest, Token)> = to_request
            .into_iter()
            .map(|to_request| {
                let is_eager = to_request.queue == Queue::Eager;
                let id = ids.entry((to_request.module.clone(), is_eager));
                let id = id.or_insert_with(|| self.invocation.token()).clone();
                (to_request, id)
            })
            .collect();
        let mut writes = stream::iter(with_ids)
            .map(|(to_request, id)| async move {
                let written = self.record_request(&to_request, &id).await;
                (to_request, id, written)
            })
            .buffered(CALLS_IN_FLIGHT);
        let converter = self.service.settings.policy.numbers.converter;
        let (mut messages, mut failed) = (Messages::of(converter), None);
        while let Some((
            BuildToRequest {
                module,
                kind,
                queue,
                ..
            },
            id,
            written,
        )) = writes.next().await
        {
            match written {
                Ok(true) => messages.add(module, kind, queue, id),
                Ok(false) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let messages = messages.into_vec();
        if !messages.is_empty() {
            let queues = &*self.service.queues;
            sending::send(queues, self.invocation, messages, Duration::ZERO).await?;
        }
        failed.map_or(Ok(reported), Err)
    }

    /// Writes a build request, or a report that requests a build. Returns whether this build
    /// request is the stored one.
    async fn record_request(
        &self,
        BuildToRequest {
            module,
            kind,
            queue,
            known,
            suspect,
        }: &BuildToRequest,
        id: &Token,
    ) -> Result<bool, Fault> {
        let change = match suspect.clone() {
            Some(blob) => Change::Suspect {
                blob,
                id: id.clone(),
            },
            None => Change::RequestBuild {
                id: id.clone(),
                queue: *queue,
            },
        };
        let before = known.as_ref().and_then(|stored| stored.item.entry());
        // If a build ended meanwhile, look at its result first: it may be what is needed.
        let is_due = |now: &Entry| {
            suspect.is_some()
                || (now.ready() == before.and_then(Entry::ready)
                    && now.missing() == before.and_then(Entry::missing))
        };
        let entry = KnownEntry::read_earlier(known.as_deref().cloned()).while_due(&is_due);
        let writer = self.service.writer(self.invocation);
        let updated = writer.apply_to(module, *kind, &change, entry).await;
        self.service.memory.forget(&module.entry(*kind));
        Ok(match updated?.0 {
            Updated::Done(entry) => entry.is_requested_by(id),
            Updated::Refused(..) | Updated::NotDue => false,
        })
    }
}

/// Messages that are being assembled.
pub(super) struct Messages {
    converter: Converter,
    assembled: Vec<QueueMessage>,
}

impl Messages {
    /// Returns no messages yet. Those that are added require this converter.
    pub(super) fn of(converter: Converter) -> Self {
        Self {
            converter,
            assembled: Vec::new(),
        }
    }

    /// Adds a build request. The kinds of one module must be added consecutively.
    pub(super) fn add(
        &mut self,
        module: ModuleKey,
        kind: Kind,
        queue: Queue,
        build_request: Token,
    ) {
        let shares_message = |message: &&mut QueueMessage| {
            message.queue == queue
                && message.module.scope == module.scope
                && message.module.source == module.source
        };
        let mut open = self.assembled.iter_mut().rev().filter(shares_message);
        let Some(message) = open.next() else {
            self.push(queue, module, kind, build_request);
            return;
        };
        let last = match message.further.last_mut() {
            Some(last) => (&last.build_request, &mut last.kinds),
            None => (&message.build_request, &mut message.kinds),
        };
        if *last.0 == build_request {
            last.1.push(kind);
        } else if !module.source.is_uploads()
            && message.further.len() + 1 < QueueMessage::MAX_MODULES
        {
            message.add(RequestedModule {
                module: module.id,
                kinds: vec![kind],
                build_request,
            });
        } else {
            self.push(queue, module, kind, build_request);
        }
    }

    fn push(&mut self, queue: Queue, module: ModuleKey, kind: Kind, build_request: Token) {
        let kinds = vec![kind];
        let message = QueueMessage::new(queue, module, kinds, build_request, self.converter);
        self.assembled.push(message);
    }

    /// Returns the messages.
    pub(super) fn into_vec(self) -> Vec<QueueMessage> {
        self.assembled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Scope, SourceKey};

    fn module(source: &str, name: &str) -> ModuleKey {
        let source: SourceKey = serde_json::from_value(source.into()).unwrap();
        ModuleKey {
            scope: Scope::Global,
            source,
            id: name.to_owned(),
        }
    }

    fn modules(message: &QueueMessage) -> Vec<String> {
        message.each().map(|one| one.module.id).collect()
    }

    #[test]
    fn ten_modules_of_a_server_share_a_message_and_an_upload_has_its_own() {
        let mut messages = Messages::of(Converter::CURRENT);
        for number in 0..12_u32 {
            let id = Token::from_random(number.into());
            for source in ["a#1", "b#2", "uploads"] {
                let module = module(source, &number.to_string());
                messages.add(module, Kind::SymCache, Queue::Eager, id.clone());
            }
        }
        let messages = messages.into_vec();
        let of = |source: &str| -> Vec<usize> {
            let of = messages.iter();
            let of = of.filter(|message| message.module.source.to_string() == source);
            of.map(|message| modules(message).len()).collect()
        };
        assert_eq!(of("a#1"), [10, 2]);
        assert_eq!(of("b#2"), [10, 2]);
        assert_eq!(of("uploads"), [1; 12]);
    }

    #[test]
    fn all_kinds_of_a_module_are_one_build_request() {
        let mut messages = Messages::of(Converter::CURRENT);
        let id = Token::from_random(7);
        for kind in [Kind::CfiCache, Kind::SymCache] {
            messages.add(module("a#1", "x"), kind, Queue::Eager, id.clone());
        }
        for kind in [Kind::CfiCache, Kind::SymCache] {
            let id = Token::from_random(8);
            messages.add(module("a#1", "y"), kind, Queue::Eager, id);
        }
        let [message] = messages.into_vec().try_into().unwrap();
        let kinds: Vec<usize> = message.each().map(|one| one.kinds.len()).collect();
        assert_eq!((message.schema, kinds), (2, vec![2, 2]));
    }
}
