//! Building what an event of the uploads bucket asks for, over several invocations if need be.
//!
//! Modules whose files must be fetched are built one after the other: neighbours are often in one
//! archive, which stays open. When half of the invocation is over, one message goes on with the
//! rest ([`ReconcileMessage`]); it finds the upload pending, and the entries that are built already
//! without an ask.

use super::super::build::{Builder, OpenDif, Outcome};
use super::super::derive::SENT_AGAIN;
use super::super::update::KnownItem;
use super::super::{Error, Invocation, presence};
use super::arrival::{Arrived, ToBuild};
use super::filing::FiledModule;
use super::order::side_by_side;
use crate::cache::{Entry, Queue, UploadState};
use crate::domain::Timestamp;
use crate::ports::{Fault, QueueMessage, ReconcileMessage};

/// Messages for one event that follow one another. What is left then is left to the sweep and to
/// readers.
const MAX_HOPS: u32 = 30;

/// Modules that get a message each because others are at work on them. With more of them, one
/// message looks at all.
const MAX_MESSAGES: usize = 10;

/// Modules without files that are looked at before the time is.
const MODULES_AT_ONCE: usize = 256;

impl Builder {
    /// Builds modules. Returns `false` if the time did not suffice: then a message was sent that
    /// goes on.
    ///
    /// Each invocation builds at least one.
    pub(super) async fn build_all(
        &self,
        invocation: &Invocation,
        arrived: &Arrived<'_>,
        modules: Vec<ToBuild>,
        open: &mut Vec<OpenDif>,
    ) -> Result<bool, Error> {
        let is_half_over = || invocation.time_left() < invocation.elapsed();
        let (with_files, without): (Vec<_>, Vec<_>) =
            modules.into_iter().partition(|to_build| to_build.has_files);
        let mut later: Vec<(&ToBuild, Timestamp)> = Vec::new();
        for (built, to_build) in with_files.iter().enumerate() {
            if built > 0 && is_half_over() {
                self.go_on(invocation, arrived).await?;
                return Ok(false);
            }
            let module = &to_build.module;
            match self
                .build(invocation, &module.key, &module.kinds, open)
                .await?
            {
                Outcome::Settled => {}
                Outcome::Later(at) => later.push((to_build, at)),
            }
        }
        for (chunk, some) in without.chunks(MODULES_AT_ONCE).enumerate() {
            if chunk > 0 && is_half_over() {
                self.go_on(invocation, arrived).await?;
                return Ok(false);
            }
            let outcomes = side_by_side(some, |to_build| async move {
                let module = &to_build.module;
                // Nothing is fetched: there is no file.
                let mut open = Vec::new();
                let build = self.build(invocation, &module.key, &module.kinds, &mut open);
                Ok::<_, Error>((to_build, Box::pin(build).await?))
            });
            for (to_build, outcome) in outcomes.await? {
                if let Outcome::Later(at) = outcome {
                    later.push((to_build, at));
                }
            }
        }
        if later.len() > MAX_MESSAGES {
            self.go_on(invocation, arrived).await?;
            return Ok(false);
        }
        for (
            ToBuild {
                module,
                build_request,
                ..
            },
            at,
        ) in later
        {
            let (key, kinds) = (module.key.clone(), module.kinds.clone());
            let message = QueueMessage::new(Queue::Uploads, key, kinds, build_request.clone());
            self.send_again(invocation, &message, at).await?;
        }
        Ok(true)
    }

    /// Returns those of the modules for which an ask stands: what an earlier invocation left to
    /// build.
    pub(super) async fn left_to_build(
        &self,
        modules: Vec<FiledModule>,
    ) -> Result<Vec<ToBuild>, Fault> {
        let modules = self.concerned(&modules).await?;
        let left = side_by_side(&modules, |module| async move {
            let mut module = module.clone();
            let partition = self.records.query(&module.key.partition()).await?;
            module.add_opaque_kinds(&partition);
            let entries = partition
                .iter()
                .filter_map(|(_, stored)| stored.item.entry());
            let mut requests = entries
                .filter(|entry| module.kinds.contains(&entry.kind()))
                .filter_map(Entry::build_request);
            let build_request = requests
                .next()
                .map(|build_request| build_request.id.clone());
            let has_files = presence::files(&partition) > 0;
            Ok::<_, Fault>(build_request.map(|build_request| ToBuild {
                module,
                build_request,
                has_files,
            }))
        });
        Ok(left.await?.into_iter().flatten().collect())
    }

    /// Sends the message that goes on with an upload. Reading it did not fail: no attempt is
    /// counted.
    async fn go_on(&self, invocation: &Invocation, arrived: &Arrived<'_>) -> Result<(), Error> {
        let Arrived { key, hops, .. } = *arrived;
        self.give_attempt_back(invocation, arrived).await?;
        if hops >= MAX_HOPS {
            tracing::error!(
                key,
                hops,
                "an upload is left to the sweep: so many messages did not suffice to build what it serves"
            );
            return Ok(());
        }
        let message = ReconcileMessage {
            reconcile: arrived.dif.location.clone(),
            hops: hops + 1,
        };
        self.queues
            .reconcile(&message, SENT_AGAIN.after(hops))
            .await?;
        Ok(())
    }

    /// Takes back that an attempt to read an upload was counted.
    pub(super) async fn give_attempt_back(
        &self,
        invocation: &Invocation,
        arrived: &Arrived<'_>,
    ) -> Result<(), Fault> {
        let (key, sequencer) = (arrived.key, arrived.sequencer);
        self.amend(invocation, key, KnownItem::Nothing, |present| {
            let is_ours = present.sequencer == *sequencer && present.state == UploadState::Pending;
            (is_ours && present.crashes > 0).then(|| present.crashes -= 1)
        })
        .await?;
        Ok(())
    }
}
