//! Symbol servers on loopback that have no files, and respond after a delay.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::bench_real::BenchError;
use crate::stack::Options;

/// The response time.
const ANSWERED_AFTER: Duration = Duration::from_millis(5);

/// The maximum size of a request head.
const MAX_HEAD: usize = 16 * 1024;

/// Some symbol servers, which end when this is dropped.
#[derive(Debug)]
pub struct SymbolServers {
    urls: Vec<String>,
    questions: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl SymbolServers {
    /// Starts this many servers.
    ///
    /// # Errors
    /// A port cannot be bound.
    pub async fn start(count: usize) -> Result<Self, BenchError> {
        let failed = |source| BenchError::Tool {
            tool: "a symbol server".to_owned(),
            source,
        };
        let questions = Arc::new(AtomicU64::new(0));
        let (mut urls, mut tasks) = (Vec::new(), JoinSet::new());
        for _ in 0..count {
            let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            urls.push(format!("http://{address}/"));
            tasks.spawn(serve(listener, Arc::clone(&questions)));
        }
        Ok(Self {
            urls,
            questions,
            _tasks: tasks,
        })
    }

    /// Configures all servers as sources of a stack.
    pub fn sought_by(&self, options: Options) -> Options {
        let source = |(at, url): (usize, &String)| json!({"id": format!("server-{at}"), "type": "http", "url": url});
        let sources: Vec<_> = self.urls.iter().enumerate().map(source).collect();
        options
            .variable("SOURCES", json!(sources))
            .variable("ALLOW_PRIVATE_SOURCES", 1)
    }

    /// Returns the URLs of the servers.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Returns the number of requests that all servers have received.
    pub fn questions(&self) -> u64 {
        self.questions.load(Ordering::Relaxed)
    }
}

impl fmt::Display for SymbolServers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.urls.len() {
            0 => write!(formatter, "no symbol server"),
            1 => write!(formatter, "one symbol server"),
            count => write!(formatter, "{count} symbol servers"),
        }
    }
}

async fn serve(listener: TcpListener, questions: Arc<AtomicU64>) {
    let mut connections = JoinSet::new();
    while let Ok((connection, _)) = listener.accept().await {
        connections.spawn(answer(connection, Arc::clone(&questions)));
        while connections.try_join_next().is_some() {}
    }
}

/// Responds to the requests of one connection until the client closes it.
async fn answer(mut connection: TcpStream, questions: Arc<AtomicU64>) {
    const NOT_FOUND: &[u8] = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
    const END_OF_HEAD: &[u8] = b"\r\n\r\n";
    let _ = connection.set_nodelay(true);
    let mut received = Vec::new();
    loop {
        let end = received
            .windows(END_OF_HEAD.len())
            .position(|window| window == END_OF_HEAD);
        match end {
            Some(end) => {
                received.drain(..end + END_OF_HEAD.len());
                questions.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(ANSWERED_AFTER).await;
                if connection.write_all(NOT_FOUND).await.is_err() {
                    return;
                }
            }
            None if received.len() > MAX_HEAD => return,
            None => {
                if !matches!(connection.read_buf(&mut received).await, Ok(1..)) {
                    return;
                }
            }
        }
    }
}
