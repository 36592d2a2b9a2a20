//! A server on loopback with scripted responses.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

/// Sends one scripted response per request and records the requests. It ends with the test.
pub(crate) struct Script {
    /// The URL of the server.
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<Request>>>,
    _task: JoinSet<()>,
}

/// A received request; the head is in lower case.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Script {
    /// Starts the server.
    pub(crate) async fn play(answers: Vec<String>) -> Self {
        Self::play_bytes(answers.into_iter().map(String::into_bytes).collect()).await
    }

    /// Starts the server, whose responses need not be text.
    pub(crate) async fn play_bytes(answers: Vec<Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let kept = requests.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            for answer in answers {
                let (mut connection, _) = listener.accept().await.unwrap();
                kept.lock().await.push(read_request(&mut connection).await);
                connection.write_all(&answer).await.unwrap();
                connection.shutdown().await.unwrap();
            }
        });
        Self {
            url,
            requests,
            _task: task,
        }
    }

    /// Returns the shared list of requests, which continues to grow.
    pub(crate) fn requests(&self) -> Arc<Mutex<Vec<Request>>> {
        self.requests.clone()
    }

    /// Returns the requests received so far.
    pub(crate) async fn asked(&self) -> Vec<Request> {
        self.requests.lock().await.clone()
    }
}

async fn read_request(connection: &mut TcpStream) -> Request {
    let mut bytes = Vec::new();
    loop {
        connection.read_buf(&mut bytes).await.unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let head = head.to_ascii_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
            return Request {
                head,
                body: body.to_owned(),
            };
        }
    }
}

/// Returns an HTTP response that announces `length` bytes and closes the connection.
pub(crate) fn answer(status: &str, headers: &str, length: usize, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{headers}connection: close\r\n\r\n{body}"
    )
}
