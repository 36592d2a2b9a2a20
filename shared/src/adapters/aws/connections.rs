//! Connections that are established before the first request needs them.
//!
//! The pool of the HTTP client gets a connection only with a request. [`Connections`] are what the
//! pool connects with: one that was prepared for the same origin is given away before a new one is
//! established. A prepared connection has no request, so nothing is called, signed or billed.

use std::error::Error;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBuf};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tower_service::Service;

/// Servers close connections on which no request arrives. A connection that was prepared longer ago
/// is not used.
const MAX_AGE: Duration = Duration::from_secs(10);

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

type NoConnection = Box<dyn Error + Send + Sync>;

/// Establishes connections. Clones share those that were prepared.
#[derive(Clone, Debug)]
pub(super) struct Connections {
    connector: HttpsConnector<TcpConnector>,
    prepared: Arc<Mutex<Vec<Prepared>>>,
}

#[derive(Debug)]
struct Prepared {
    origin: Uri,
    stream: Stream,
    since: Instant,
}

impl Connections {
    pub(super) fn new(connector: HttpsConnector<TcpConnector>) -> Self {
        Self {
            connector,
            prepared: Arc::default(),
        }
    }

    /// Establishes a connection to the server of a URL, for a later request.
    pub(super) async fn prepare(&self, url: &Uri) -> Result<(), NoConnection> {
        let stream = self.connector.clone().call(url.clone()).await?;
        self.prepared().push(Prepared {
            origin: url.clone(),
            stream,
            since: Instant::now(),
        });
        Ok(())
    }

    /// Takes a connection to the server of a URL that is still open. Others that are too old or
    /// closed are dropped.
    fn take(&self, url: &Uri) -> Option<Stream> {
        let mut prepared = self.prepared();
        prepared.retain_mut(|one| one.since.elapsed() < MAX_AGE && is_open(&mut one.stream));
        let is_same =
            |other: &Uri| (other.scheme(), other.authority()) == (url.scheme(), url.authority());
        let index = prepared.iter().position(|one| is_same(&one.origin))?;
        Some(prepared.swap_remove(index).stream)
    }

    fn prepared(&self) -> MutexGuard<'_, Vec<Prepared>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service<Uri> for Connections {
    type Response = Stream;
    type Error = NoConnection;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, NoConnection>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), NoConnection>> {
        self.connector.poll_ready(context)
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        match self.take(&url) {
            Some(stream) => Box::pin(std::future::ready(Ok(stream))),
            None => self.connector.call(url),
        }
    }
}

/// Returns whether a server waits for a request. Before one, it sends at most what belongs to TLS,
/// which the stream keeps to itself.
fn is_open(stream: &mut Stream) -> bool {
    let mut byte = [0];
    let mut buffer = ReadBuf::new(&mut byte);
    let mut context = Context::from_waker(Waker::noop());
    let read = Pin::new(stream).poll_read(&mut context, buffer.unfilled());
    read.is_pending()
}

#[cfg(test)]
impl Connections {
    /// Waits until the servers have closed all prepared connections.
    pub(super) async fn closed(&self) {
        while self
            .prepared()
            .iter_mut()
            .any(|one| is_open(&mut one.stream))
        {
            tokio::task::yield_now().await;
        }
    }
}
