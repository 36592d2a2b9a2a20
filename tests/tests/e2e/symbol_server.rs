//! A symbol server on loopback that has some files and responds with 404 to all other paths.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::json;
use symdepot_tests::stack::Options;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The path of the sample's debug file in the native layout.
pub(crate) const DEBUG_FILE: &str = "/ac/456ebc7f4825f4367208b89f51ad481774aae7.debug";

/// A symbol server. It ends with the test.
pub(crate) struct SymbolServer {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
    _task: JoinSet<()>,
}

impl SymbolServer {
    /// Starts a server of files at these paths, which begin with a slash.
    pub(crate) async fn start<const N: usize>(files: [(&str, Vec<u8>); N]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let files = files.map(|(path, file)| (path.to_owned(), file));
        let files = Arc::new(BTreeMap::from(files));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = asked.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (connection, _) = listener.accept().await.unwrap();
                connections.spawn(answer(connection, files.clone(), kept.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Self {
            url,
            asked,
            _task: task,
        }
    }

    /// Configures this server as the source `company` of a stack.
    pub(crate) fn sought_by(&self, options: Options) -> Options {
        let sources = json!([{"id": "company", "type": "http", "url": self.url}]);
        options
            .variable("SOURCES", sources)
            .variable("ALLOW_PRIVATE_SOURCES", 1)
    }

    /// Returns its address.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the number of requests for a path.
    pub(crate) fn asked_for(&self, path: &str) -> usize {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|asked| *asked == path).count()
    }
}

/// Responds to the one request of a connection, unless the client closes it first.
async fn answer(
    mut connection: TcpStream,
    files: Arc<BTreeMap<String, Vec<u8>>>,
    asked: Arc<Mutex<Vec<String>>>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if !matches!(connection.read_buf(&mut head).await, Ok(1..)) {
            return;
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default();
    asked.lock().unwrap().push(path.to_owned());
    let (status, file) = match files.get(path) {
        Some(file) => ("200 OK", file.as_slice()),
        None => ("404 Not Found", &[][..]),
    };
    let length = file.len();
    let answer =
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    let answer = [answer.as_bytes(), file].concat();
    if connection.write_all(&answer).await.is_ok() {
        let _ = connection.shutdown().await;
    }
}
