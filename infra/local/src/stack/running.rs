//! A stack that serves.

use std::time::Duration;

use super::addresses::Addresses;
use super::error::StackError;
use super::folder::DataFolder;
use super::machine::Division;
use super::services::Services;
use crate::control::Control;
use crate::functions::Functions;
use crate::queues::Queues;

/// How long invocations in progress may take when the stack stops, and then requests to the stores.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// A running stack.
#[derive(Debug)]
pub struct Running {
    pub(super) addresses: Addresses,
    pub(super) division: Division,
    pub(super) functions: Functions,
    pub(super) queues: Queues,
    pub(super) services: Services,
    pub(super) folder: DataFolder,
}

impl Running {
    /// Writes the file with the addresses.
    pub(super) fn announce(&self) -> Result<(), StackError> {
        self.folder.addresses.write(&self.addresses)
    }

    /// Returns the addresses.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Returns the machine's resources and the share of each function.
    pub fn division(&self) -> &Division {
        &self.division
    }

    /// Returns the functions.
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Returns the queues.
    pub fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Returns the state that `/_local/` serves.
    pub fn control(&self) -> &Control {
        &self.services.control
    }

    /// Stops: begins no new invocation, waits a short time for those in progress, and then kills
    /// the function processes. Stored data remains. The next stack on the same folder delivers the
    /// messages in flight again.
    pub async fn stop(mut self) {
        if let Err(error) = self.folder.addresses.remove() {
            tracing::warn!(%error, "cannot remove the file of the addresses");
        }
        // Invocations in progress still reach the stores, and their clients the gateway.
        self.services.intake.cancel();
        self.functions.drain(LAST_REQUESTS).await;
        self.services.shutdown.cancel();
        self.functions.stop().await;
        self.services.gateway.end().await;
        // Requests in progress may end; a client that never ends its request does not delay the
        // stop.
        let ended = async { while self.services.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_REQUESTS, ended).await.is_err() {
            self.services.tasks.shutdown().await;
        }
    }
}
