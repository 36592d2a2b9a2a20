//! Builds the modules of an upload event, over several invocations if necessary.
//!
//! Modules whose files must be fetched are built one after the other: neighbours are often in one
//! archive, which stays open. When half of the invocation is over, a message continues with the
//! rest ([`ReconcileMessage`]). Its receiver finds the upload pending, and no build requests in the
//! entries that are already built.

use super::changes::{EventContext, UploadChanges};
use super::filing::{ConcernedModule, ServedModule};
use super::side_by_side::side_by_side;
use crate::cache::{Entry, Kind, Queue, Token, UploadState};
use crate::flows::build::{OpenDifs, Resend};
use crate::flows::build_messages::{delay_after, resend_after};
use crate::flows::update::KnownItem;
use crate::flows::{Error, presence, sending};
use crate::ports::{Consistency, Fault, QueueMessage, ReconcileMessage};

/// The maximum number of consecutive messages for one event. After that, the rest is left to the
/// pruner and to readers.
const MAX_CONTINUATIONS: u32 = 30;

/// The maximum number of modules that get a message of their own because other builders work on
/// them. If there are more, one message covers all.
const MAX_MESSAGES: usize = 10;

/// The number of modules without files that are built between two checks of the time.
const MODULES_AT_ONCE: usize = 256;

/// A module whose entries are marked dirty.
pub(super) struct ToBuild {
    pub(super) module: ConcernedModule,
    /// Whether it has files to build from. If not, the build records that there is none.
    pub(super) has_files: bool,
}

/// How far the modules of an event are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BuildProgress {
    /// All are built, or messages of their own build them later.
    Complete,
    /// The time was not sufficient: a message continues the event.
    Continued,
}

impl EventContext<'_> {
    /// Builds modules: at least one in each invocation.
    pub(super) async fn build_all(
        &self,
        modules: Vec<ToBuild>,
        open_difs: &mut OpenDifs,
    ) -> Result<BuildProgress, Error> {
        let UploadChanges {
            builder,
            invocation,
        } = self.changes;
        let is_half_over = || invocation.time_left() < invocation.elapsed();
        let (with_files, without): (Vec<_>, Vec<_>) =
            modules.into_iter().partition(|to_build| to_build.has_files);
        let mut later: Vec<(&ToBuild, Resend)> = Vec::new();
        for (built, to_build) in with_files.iter().enumerate() {
            if built > 0 && is_half_over() {
                self.send_continuation().await?;
                return Ok(BuildProgress::Continued);
            }
            let module = &to_build.module;
            let built = builder
                .build(invocation, &module.key, &module.kinds, open_difs)
                .await?;
            let resend = resend_after(built, 0, invocation.now());
            later.extend(resend.map(|resend| (to_build, resend)));
        }
        for (chunk, some) in without.chunks(MODULES_AT_ONCE).enumerate() {
            if chunk > 0 && is_half_over() {
                self.send_continuation().await?;
                return Ok(BuildProgress::Continued);
            }
            let builds = side_by_side(some, |to_build| async move {
                let module = &to_build.module;
                // There is no file to fetch.
                let mut none = OpenDifs::default();
                let build = builder.build(invocation, &module.key, &module.kinds, &mut none);
                // An error must not drop the other builds: they would keep their leases.
                Ok::<_, Error>((to_build, Box::pin(build).await))
            });
            for (to_build, built) in builds.await? {
                let resend = resend_after(built?, 0, invocation.now());
                later.extend(resend.map(|resend| (to_build, resend)));
            }
        }
        if later.len() > MAX_MESSAGES {
            self.send_continuation().await?;
            return Ok(BuildProgress::Continued);
        }
        for (to_build, resend) in later {
            self.build_later(&to_build.module, resend).await?;
        }
        Ok(BuildProgress::Complete)
    }

    /// Sends messages for the pending build requests of a module.
    ///
    /// A dirty mark keeps a build request that is pending, and this may be that of another delivery
    /// of the event, which sends no message for it. So the messages name the requests that are
    /// stored, and not the mark of this event.
    async fn build_later(&self, module: &ConcernedModule, resend: Resend) -> Result<(), Error> {
        let UploadChanges {
            builder,
            invocation,
        } = self.changes;
        let keys = module.kinds.iter().map(|kind| module.key.entry(*kind));
        let keys: Vec<_> = keys.collect();
        let loaded = builder.records.load(&keys, Consistency::Strong).await?;
        let mut requests: Vec<(Token, Vec<Kind>)> = Vec::new();
        for (kind, stored) in module.kinds.iter().zip(&loaded) {
            let entry = stored.as_ref().and_then(|stored| stored.item.entry());
            let Some(request) = entry.and_then(Entry::build_request) else {
                continue;
            };
            match requests.iter_mut().find(|(id, _)| *id == request.id) {
                Some((_, kinds)) => kinds.push(*kind),
                None => requests.push((request.id.clone(), vec![*kind])),
            }
        }
        let converter = builder.settings.policy.numbers.converter;
        for (id, kinds) in requests {
            let message =
                QueueMessage::new(Queue::Uploads, module.key.clone(), kinds, id, converter);
            builder.send_again(invocation, &message, resend).await?;
        }
        Ok(())
    }

    /// Sends the message that continues an upload. Reading it did not fail, so the attempt is not
    /// counted.
    async fn send_continuation(&self) -> Result<(), Error> {
        let EventContext { key, hops, .. } = *self;
        self.revert_attempt().await?;
        if hops >= MAX_CONTINUATIONS {
            tracing::error!(
                key,
                hops,
                "upload has modules left to build after the maximum number of messages; the pruner will re-queue it"
            );
            return Ok(());
        }
        let message = ReconcileMessage {
            hops: hops + 1,
            ..ReconcileMessage::new(self.dif.location.clone())
        };
        let UploadChanges {
            builder,
            invocation,
        } = self.changes;
        let delay = delay_after(hops);
        sending::reconcile(&*builder.queues, invocation, message, delay).await?;
        Ok(())
    }

    /// Reverts the count of an attempt to read an upload.
    pub(super) async fn revert_attempt(&self) -> Result<(), Fault> {
        let amended = self.changes.amend(self.key, KnownItem::Unread, |present| {
            let is_ours =
                present.sequencer == *self.sequencer && present.state == UploadState::Pending;
            (is_ours && present.attempts > 0).then(|| present.attempts -= 1)
        });
        amended.await?;
        Ok(())
    }
}

impl UploadChanges<'_> {
    /// Returns the modules with a pending build request: those that an earlier invocation left to
    /// build.
    pub(super) async fn left_to_build(
        &self,
        modules: Vec<ServedModule>,
    ) -> Result<Vec<ToBuild>, Fault> {
        let modules = self.concerned(&modules).await?;
        let left = side_by_side(&modules, |module| async move {
            let mut module = module.clone();
            let partition = self.builder.records.query(&module.key.partition()).await?;
            module.add_opaque_kinds(&partition);
            let entries = partition
                .iter()
                .filter_map(|(_, stored)| stored.item.entry());
            let mut requested = entries
                .filter(|entry| module.kinds.contains(&entry.kind()))
                .filter_map(Entry::build_request);
            let is_requested = requested.next().is_some();
            let has_files = presence::files(&partition) > 0;
            Ok::<_, Fault>(is_requested.then_some(ToBuild { module, has_files }))
        });
        Ok(left.await?.into_iter().flatten().collect())
    }
}
