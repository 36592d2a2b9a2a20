//! The loop that accepts connections; every listener of the stack uses it.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The pause after a failed accept. Usually the process is out of file descriptors until other
/// connections close.
const PAUSE: Duration = Duration::from_millis(50);

/// An accepted connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    /// The port that the client connected to.
    pub(crate) port: u16,
    pub(crate) peer: SocketAddr,
}

/// Accepts connections until `shutdown` resolves, and closes the listener. Each connection is
/// served in its own task. Returns the tasks of the open connections; dropping them closes the
/// connections.
pub(crate) async fn accept<F>(
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send,
    serve: impl Fn(Connection) -> F,
) -> JoinSet<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut open = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => return open,
            Some(_) = open.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot disable Nagle's algorithm");
        }
        match stream.local_addr() {
            Ok(address) => {
                let port = address.port();
                open.spawn(serve(Connection { stream, port, peer }));
            }
            Err(error) => tracing::debug!(%error, "connection failed"),
        }
    }
}
