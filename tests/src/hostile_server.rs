//! A symbol server on loopback that misbehaves, each path in its own way.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// How a request is answered.
#[derive(Clone, Debug)]
pub enum Behavior {
    /// Sends these bytes, and closes the connection.
    Bytes(Vec<u8>),
    /// Sends these bytes after a pause, and closes the connection.
    Late(Vec<u8>, Duration),
    /// Sends the first bytes, then the others again and again, each after a pause.
    Endless(Vec<u8>, Vec<u8>, Duration),
}

impl Behavior {
    /// Returns a response with this status line and these headers, each of which ends with a line
    /// break.
    pub fn response(status: &str, headers: &str, body: &[u8]) -> Self {
        let head = format!("HTTP/1.1 {status}\r\n{headers}connection: close\r\n\r\n");
        Self::Bytes([head.as_bytes(), body].concat())
    }

    /// Returns a response that states its length.
    pub fn file(headers: &str, body: &[u8]) -> Self {
        let headers = format!("content-length: {}\r\n{headers}", body.len());
        Self::response("200 OK", &headers, body)
    }

    /// Returns a redirect.
    pub fn redirect(to: &str) -> Self {
        let headers = format!("location: {to}\r\ncontent-length: 0\r\n");
        Self::response("302 Found", &headers, b"")
    }
}

/// A server. It ends when it is dropped.
pub struct HostileServer {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
    sent: Arc<AtomicU64>,
    _serving: JoinSet<()>,
}

impl HostileServer {
    /// Starts a server that answers each request with the first behavior whose name is in the path;
    /// any other with 404.
    ///
    /// # Errors
    ///
    /// A port cannot be bound.
    pub async fn start(behaviors: Vec<(&'static str, Behavior)>) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let behaviors = Arc::new(behaviors);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let sent = Arc::new(AtomicU64::new(0));
        let (log, count) = (asked.clone(), sent.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((connection, _)) = listener.accept().await {
                let (behaviors, log, count) = (behaviors.clone(), log.clone(), count.clone());
                connections.spawn(async move {
                    // The client may close the connection at any time.
                    let _ = serve(connection, &behaviors, &log, &count).await;
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            url,
            asked,
            sent,
            _serving: serving,
        })
    }

    /// Returns the address, without a slash at its end.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the heads of the requests so far.
    pub fn asked(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.clone()
    }

    /// Returns the number of bytes that were sent.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for HostileServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostileServer")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// Answers the one request of a connection.
async fn serve(
    mut connection: TcpStream,
    behaviors: &[(&'static str, Behavior)],
    log: &Mutex<Vec<String>>,
    count: &AtomicU64,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if connection.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    log.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(head);
    let absent = Behavior::response("404 Not Found", "content-length: 0\r\n", b"");
    let behavior = behaviors.iter().find(|(name, _)| path.contains(name));
    match behavior.map_or(&absent, |(_, behavior)| behavior) {
        Behavior::Bytes(bytes) => {
            for piece in bytes.chunks(64 << 10) {
                connection.write_all(piece).await?;
                count.fetch_add(piece.len() as u64, Ordering::SeqCst);
            }
            connection.shutdown().await
        }
        Behavior::Late(bytes, pause) => {
            tokio::time::sleep(*pause).await;
            connection.write_all(bytes).await?;
            connection.shutdown().await
        }
        Behavior::Endless(begin, piece, pause) => {
            connection.write_all(begin).await?;
            loop {
                connection.write_all(piece).await?;
                count.fetch_add(piece.len() as u64, Ordering::SeqCst);
                if !pause.is_zero() {
                    tokio::time::sleep(*pause).await;
                }
            }
        }
    }
}
