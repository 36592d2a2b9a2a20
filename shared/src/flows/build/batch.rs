//! Probes a symbol server for many modules with one permit. The server has few of them.
//!
//! 1. Read the records of all modules in one round. A module whose build request is no longer
//!    pending is dropped. A module that has a copy, a ready state, a suspect blob or a live lease
//!    is built on its own, without a probe.
//! 2. Acquire a permit, and take the leases of the other modules in parallel.
//! 3. Probe the server for all modules in parallel. If it does not have a module, the placeholder
//!    is written at once: that is the commit point of such a build.
//! 4. If the server has a module, its leases are released, its build request stays pending, and it
//!    is built on its own, by this builder or another one. That build fetches the file again:
//!    the probe reads only the beginning of the response. Source files are small: they are
//!    downloaded and published at once.
//!
//! As in any build, leases are extended meanwhile, and modules that cannot be probed now are sent
//! again.

use std::convert::Infallible;

use futures::FutureExt;
use futures::future::join_all;
use futures::stream::{self, StreamExt};

use super::builder::{Build, Builder, Resend};
use super::lease::{HeldLease, LeaseAttempt};
use super::search::Search;
use super::search_failures::{RequestedLocation, SearchFailures};
use super::search_order::likely_first;
use crate::cache::{
    CallOutcome, Change, Entry, Item, ItemKey, Kind, LEASE_EXTENSION, ModuleKey, Seen,
    ServerSearch, Stored,
};
use crate::domain::{Cause, HttpSource, Missing, Timestamp};
use crate::flows::update::KnownItem;
use crate::flows::{Error, Invocation, download, permits};
use crate::ports::{Consistency, Fault, FileQuery, QueueMessage, RequestedModule};

/// The maximum number of concurrent calls to the store of records, and of concurrent probes.
const IN_FLIGHT: usize = 16;

/// A module of a batch.
struct BatchMember {
    message: QueueMessage,
    sought: ServerSearch,
    /// The entries of the requested kinds, as they were read.
    entries: Vec<(Kind, Option<Stored>)>,
    held: Vec<HeldLease>,
}

/// The server's answer about a module.
enum ServerAnswer {
    /// The server has a file that may serve the module.
    Has,
    /// The server has no file, or does not respond.
    Nothing(Box<Search>),
}

impl Builder {
    /// Probes the server for all modules of a message, and publishes which of them it does not
    /// have. Returns a message for each of the others.
    pub(in crate::flows) async fn probe_batch(
        &self,
        invocation: &Invocation,
        message: &QueueMessage,
    ) -> Result<Vec<QueueMessage>, Error> {
        let source_key = &message.module.source;
        let Some(source) = self.source_of(invocation, &message.module).await? else {
            // The build of each module records that its source is unknown.
            return Ok(message.each().map(hop).collect());
        };
        let (mut batch, mut found) = self.read_batch(invocation, message).await?;
        if batch.is_empty() {
            return Ok(found);
        }
        let probing = async {
            let batch = std::mem::take(&mut batch);
            let (mut batch, backing_off) = self.lease_batch(invocation, batch).await;
            let probed = self.probe_all(invocation, &source, &mut batch).await;
            let outcome = probed.outcome.clone();
            ((probed, backing_off), outcome)
        };
        let (writer, most) = (self.writer(invocation), self.settings.source_max_permits);
        let unread = KnownItem::Unread;
        let probed = permits::with(writer, source_key, most, unread, Box::pin(probing)).await?;
        let (probed, backing_off) = match probed {
            Ok(probed) => probed,
            Err(refused) => {
                let at = refused.retry_at(invocation.now());
                let left = batch.iter().map(|member| &member.message);
                self.delay_batch(invocation, left, at).await?;
                return Ok(found);
            }
        };
        found.extend(probed.found);
        if let Some(until) = backing_off.iter().map(|(_, until)| *until).max() {
            let left = backing_off.iter().map(|(message, _)| message);
            self.delay_batch(invocation, left, until).await?;
        }
        match probed.failed {
            // If there is no module to build, the whole message is retried. Otherwise the modules
            // that were found are built, and readers request the failed ones again.
            Some(error) if found.is_empty() => Err(error.into()),
            Some(error) => {
                tracing::warn!(%error, "cannot publish missing modules");
                Ok(found)
            }
            None => Ok(found),
        }
    }

    /// Reads the records of all modules of a message. Returns the modules to probe, and messages
    /// for those to build without a probe.
    async fn read_batch(
        &self,
        invocation: &Invocation,
        message: &QueueMessage,
    ) -> Result<(Vec<BatchMember>, Vec<QueueMessage>), Fault> {
        let each: Vec<(QueueMessage, ServerSearch)> = message
            .each()
            .filter_map(|one| {
                let sought = one.module.sought()?;
                Some((one, sought))
            })
            .collect();
        let keys = |(one, sought): &(QueueMessage, ServerSearch)| {
            let entries = one.kinds.iter().map(|kind| one.module.entry(*kind));
            let copies = copies_of(&one.module, sought);
            entries.chain(copies).collect::<Vec<_>>()
        };
        let keys: Vec<Vec<ItemKey>> = each.iter().map(keys).collect();
        let all = keys.concat();
        let mut loaded = self
            .records
            .load(&all, Consistency::Strong)
            .await?
            .into_iter();
        let now = invocation.now();
        let (mut batch, mut found) = (Vec::new(), Vec::new());
        for ((one, sought), keys) in each.into_iter().zip(keys) {
            let items: Vec<Option<Stored>> = loaded.by_ref().take(keys.len()).collect();
            let (entries, copies) = items.split_at(one.kinds.len());
            let entry = |stored: &Option<Stored>| {
                let entry = stored.as_ref().and_then(|stored| stored.item.entry());
                entry.cloned()
            };
            let is_of_this_request = |entry: &Entry| entry.is_requested_by(&one.build_request);
            let known: Vec<Entry> = entries.iter().filter_map(entry).collect();
            if !known.iter().any(is_of_this_request) {
                continue;
            }
            let has_copy = copies
                .iter()
                .flatten()
                .any(|stored| matches!(stored.item, Item::Copy(_)));
            let has_state_or_suspect =
                |entry: &Entry| entry.ready().is_some() || entry.suspect().is_some();
            let is_held = |entry: &Entry| entry.live_lease(now).is_some();
            if has_copy || known.iter().any(has_state_or_suspect) || known.iter().any(is_held) {
                found.push(hop(one));
                continue;
            }
            let entries = one.kinds.iter().copied().zip(entries.iter().cloned());
            batch.push(BatchMember {
                entries: entries.collect(),
                message: one,
                sought,
                held: Vec::new(),
            });
        }
        Ok((batch, found))
    }

    /// Takes the leases of all modules in parallel. Leaves out modules whose leases another builder
    /// holds. Also returns messages with the kinds that back off, each with the end of the
    /// back-off.
    async fn lease_batch(
        &self,
        invocation: &Invocation,
        batch: Vec<BatchMember>,
    ) -> (Vec<BatchMember>, Vec<(QueueMessage, Timestamp)>) {
        let leased = batch.into_iter().map(|mut member| {
            async move {
                let (mut backing_off, mut kinds_later) = (None, Vec::new());
                for (kind, known) in &mut member.entries {
                    let module = &member.message.module;
                    let build = self.build_of(invocation, module);
                    let is_due = |leased: &Entry| leased.build_request().is_some();
                    match build.take_lease_from(*kind, known.take(), is_due).await {
                        Ok(LeaseAttempt::Taken(held)) => member.held.push(*held),
                        Ok(LeaseAttempt::BackingOff { until }) => {
                            backing_off = backing_off.max(Some(until));
                            kinds_later.push(*kind);
                        }
                        // The holder settles the build request.
                        Ok(LeaseAttempt::HeldByOther { .. } | LeaseAttempt::NotDue) => {}
                        Err(error) => {
                            tracing::warn!(%kind, module = module.id, %error, "cannot take lease");
                            backing_off = backing_off.max(Some(invocation.now()));
                            kinds_later.push(*kind);
                        }
                    }
                }
                member
                    .message
                    .kinds
                    .retain(|kind| !kinds_later.contains(kind));
                let put_off = backing_off.map(|until| {
                    let kinds = kinds_later;
                    let message = QueueMessage {
                        kinds,
                        ..member.message.clone()
                    };
                    (message, until)
                });
                (member, put_off)
            }
            .boxed()
        });
        let leased = stream::iter(leased.collect::<Vec<_>>()).buffered(IN_FLIGHT);
        let leased: Vec<(BatchMember, Option<(QueueMessage, Timestamp)>)> = leased.collect().await;
        let (mut ours, mut put_off) = (Vec::new(), Vec::new());
        for (member, later) in leased {
            put_off.extend(later);
            if !member.held.is_empty() {
                ours.push(member);
            }
        }
        (ours, put_off)
    }

    /// Probes the server for all modules in parallel, and settles each as soon as its answer is
    /// known.
    async fn probe_all(
        &self,
        invocation: &Invocation,
        source: &HttpSource,
        batch: &mut [BatchMember],
    ) -> Probed {
        let leases: Vec<(ModuleKey, Vec<HeldLease>)> = batch
            .iter()
            .map(|member| (member.message.module.clone(), member.held.clone()))
            .collect();
        let probing = batch
            .iter_mut()
            .map(|member| self.probe_one(invocation, source, member).boxed());
        let probing = stream::iter(probing.collect::<Vec<_>>()).buffer_unordered(IN_FLIGHT);
        let probing = probing.collect::<Vec<_>>();
        let answers = tokio::select! {
            biased;
            answers = probing => answers,
            never = self.keep_extending(invocation, &leases) => match never {},
        };
        let mut probed = Probed::default();
        for answer in answers {
            match answer {
                Ok(Probe::Found(message)) => probed.found.push(message),
                Ok(Probe::Settled(CallOutcome::NotCalled)) => {}
                Ok(Probe::Settled(CallOutcome::Answered)) => probed.answered += 1,
                Ok(Probe::Settled(failed @ CallOutcome::Failed { .. })) => {
                    probed.silent += 1;
                    probed.outcome = failed;
                }
                Err(error) => probed.failed = Some(error),
            }
        }
        // Failures count against the server only if it failed for most of the modules.
        let answered = probed.answered + probed.found.len();
        if answered > 0 && probed.silent <= answered {
            probed.outcome = CallOutcome::Answered;
        }
        probed
    }

    /// Extends the leases of several modules until this is dropped.
    async fn keep_extending(
        &self,
        invocation: &Invocation,
        leases: &[(ModuleKey, Vec<HeldLease>)],
    ) -> Infallible {
        loop {
            tokio::time::sleep(LEASE_EXTENSION).await;
            let extended = leases.iter().map(|(module, held)| {
                let build = self.build_of(invocation, module);
                async move { build.extend(held).await }
            });
            join_all(extended).await;
        }
    }

    /// Probes the server for a module, and settles it: publishes that it is missing, or releases
    /// its leases to another build.
    async fn probe_one(
        &self,
        invocation: &Invocation,
        source: &HttpSource,
        member: &mut BatchMember,
    ) -> Result<Probe, Fault> {
        let module = member.message.module.clone();
        let build = self.build_of(invocation, &module);
        if member.sought.is_source_file {
            let outcome = build
                .settle_source_file(source, &member.sought, &member.held)
                .await?;
            return Ok(Probe::Settled(outcome));
        }
        let kinds: Vec<Kind> = member.held.iter().map(|held| held.kind).collect();
        let probed = build.probe(source, &member.sought, &kinds);
        let said = match tokio::time::timeout(build.time_for_call(), probed).await {
            Ok(said) => said,
            Err(_) => {
                let detail = "the server did not respond within the time that a function has";
                let missing = Missing::new(Cause::Timeout, detail);
                ServerAnswer::Nothing(Box::new(Search {
                    failures: SearchFailures::of_all_files(missing),
                    ..Search::default()
                }))
            }
        };
        let answered = match &said {
            ServerAnswer::Has => Probe::Found(hop(member.message.clone())),
            ServerAnswer::Nothing(search) => Probe::Settled(search.calls.clone()),
        };
        let mut failed = None;
        for lease in member.held.drain(..) {
            let token = lease.token.clone();
            let change = match &said {
                ServerAnswer::Has => Change::ReleaseUntried { token },
                ServerAnswer::Nothing(search) => {
                    let missing = search.failures.of(lease.kind).cloned();
                    Change::Fail {
                        token,
                        missing: missing.unwrap_or_else(Missing::not_found),
                        seen: Seen {
                            candidates: search.tried.clone(),
                            retry_after: search.retry_after(source, &kinds, &self.settings),
                            ..Seen::default()
                        },
                    }
                }
            };
            failed = failed.or(build.change_leased(&lease, &change).await.err());
        }
        // The leases of the other kinds have ended nevertheless.
        failed.map_or(Ok(answered), Err)
    }

    /// Sends the modules that cannot be probed now again, in one message.
    async fn delay_batch(
        &self,
        invocation: &Invocation,
        mut left: impl Iterator<Item = &QueueMessage>,
        at: Timestamp,
    ) -> Result<(), Error> {
        let Some(mut again) = left.next().cloned() else {
            return Ok(());
        };
        for one in left.cloned() {
            again.add(RequestedModule {
                module: one.module.id,
                kinds: one.kinds,
                build_request: one.build_request,
            });
        }
        self.send_again(invocation, &again, Resend::At(at)).await
    }
}

impl Build<'_> {
    /// Requests one location of the module after the other, until the server has a file.
    async fn probe(
        &self,
        source: &HttpSource,
        sought: &ServerSearch,
        kinds: &[Kind],
    ) -> ServerAnswer {
        let module = self.module;
        let mut search = Search::default();
        if source.lists_files() {
            let files = self.list(source, sought, kinds, &mut search).await;
            return if files.is_empty() {
                ServerAnswer::Nothing(Box::new(search))
            } else {
                ServerAnswer::Has
            };
        }
        for (file_type, location) in likely_first(sought) {
            if !kinds.iter().any(|kind| kind.comes_of(*file_type)) {
                continue;
            }
            let began = self.invocation.elapsed();
            let servers = &self.builder.servers;
            let query = FileQuery {
                key: &module.source,
                source,
                location,
                checksum: sought.checksum.as_deref(),
            };
            let probed = match servers.get(query).await {
                Ok(found) => download::check_response(found).await,
                Err(failure) => Err(failure),
            };
            match probed {
                Ok(()) => return ServerAnswer::Has,
                Err(failure) => {
                    let requested = RequestedLocation {
                        location,
                        file_type: Some(*file_type),
                        took: self.invocation.elapsed() - began,
                    };
                    search.note(self, requested, failure);
                    if search.is_over {
                        break;
                    }
                }
            }
        }
        ServerAnswer::Nothing(Box::new(search))
    }
}

/// The results of all probes.
#[derive(Default)]
struct Probed {
    /// Messages for the modules that the server has.
    found: Vec<QueueMessage>,
    /// The number of modules that the server does not have.
    answered: usize,
    /// The number of modules for which the server did not respond.
    silent: usize,
    outcome: CallOutcome,
    failed: Option<Fault>,
}

/// The result of one probe.
enum Probe {
    /// The server has it.
    Found(QueueMessage),
    /// The module is settled, after calls with this outcome.
    Settled(CallOutcome),
}

/// Returns the keys of all possible copies of the files of a module.
fn copies_of<'a>(
    module: &'a ModuleKey,
    sought: &'a ServerSearch,
) -> impl Iterator<Item = ItemKey> + 'a {
    let locations = sought.locations.iter();
    locations.map(|(_, location)| module.copy(location))
}

/// Returns the message with its number of hops incremented.
fn hop(message: QueueMessage) -> QueueMessage {
    QueueMessage {
        hops: message.hops + 1,
        ..message
    }
}
