//! Messages of the lanes: somebody asked for the derived caches of a module.

use std::time::Duration;

use super::build::{Builder, Outcome};
use super::{Error, Invocation};
use crate::cache::Converter;
use crate::domain::Timestamp;
use crate::ports::LaneMessage;

/// How long a message waits for a newer build of this function.
const WAIT_FOR_NEWER_BUILD: Duration = Duration::from_secs(60);

/// The longest delay of a message.
const MAX_DELAY: Duration = Duration::from_secs(15 * 60);

impl Builder {
    /// Serves a message: builds what it asks for, unless no ask stands any more.
    ///
    /// What cannot be done now is sent again with a delay, as a new message: giving this one back would count as a
    /// failed delivery. An error means that the message must come back by itself.
    pub async fn serve(&self, invocation: &Invocation, message: &LaneMessage) -> Result<(), Error> {
        if message.schema > LaneMessage::SCHEMA || message.min_converter > Converter::CURRENT {
            tracing::info!(module = message.module.module, "waits for a newer build");
            self.lanes
                .send(std::slice::from_ref(message), WAIT_FOR_NEWER_BUILD)
                .await?;
            return Ok(());
        }
        match self
            .build(invocation, &message.module, &message.kinds, &mut Vec::new())
            .await?
        {
            Outcome::Settled => Ok(()),
            Outcome::Later(at) => self.send_again(invocation, message, at).await,
        }
    }

    /// Sends a message to be seen at a time, give or take a second.
    pub(super) async fn send_again(
        &self,
        invocation: &Invocation,
        message: &LaneMessage,
        at: Timestamp,
    ) -> Result<(), Error> {
        let delay = at.since(invocation.now()) + Duration::from_secs(1);
        Ok(self
            .lanes
            .send(std::slice::from_ref(message), delay.min(MAX_DELAY))
            .await?)
    }
}
