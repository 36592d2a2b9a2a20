//! The thread of the gateway.
//!
//! A request passes through several tasks: the connection of its client, its invocation, and the
//! connection of the function to its runtime API. In a runtime with several threads, each step may
//! wake another thread. Therefore the gateway and the function processes that it starts have a
//! thread of their own. The stores and the event sources share the other threads.

use std::io;

use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::gateway::{self, Gateway};

/// The thread. Dropping this value ends it, with everything that still runs in it.
#[derive(Debug)]
pub(super) struct GatewayThread {
    running: DropGuard,
    ended: oneshot::Receiver<()>,
}

impl GatewayThread {
    /// Serves `listener` until `shutdown`. Invocations in progress continue until the thread ends.
    pub(super) fn start(
        listener: TcpListener,
        gateway: Gateway,
        shutdown: CancellationToken,
    ) -> io::Result<Self> {
        // The listener belongs to the runtime of the caller, which would wake for each connection.
        let listener = listener.into_std()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let running = CancellationToken::new();
        let stopped = running.clone();
        let (end, ended) = oneshot::channel();
        let work = move || {
            runtime.block_on(async move {
                match TcpListener::from_std(listener) {
                    Ok(listener) => gateway::serve(listener, gateway, shutdown).await,
                    Err(error) => tracing::error!(%error, "the gateway cannot listen"),
                }
                stopped.cancelled().await;
            });
            drop(runtime);
            // The receiver is gone if no caller waits for the end.
            let _ = end.send(());
        };
        std::thread::Builder::new()
            .name("gateway".to_owned())
            .spawn(work)?;
        Ok(Self {
            running: running.drop_guard(),
            ended,
        })
    }

    /// Ends the thread, and waits for its end.
    pub(super) async fn end(self) {
        drop(self.running);
        // An error means that the thread panicked, and has ended as well.
        let _ = self.ended.await;
    }
}
