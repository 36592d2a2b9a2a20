//! A large file from a server that limits the rate of each connection, as public symbol servers
//! do: received in ranges, and in one stream.

use std::time::{Duration, Instant};

use futures::TryStreamExt;
use serde_json::json;
use symdepot::adapters::http::HttpServers;
use symdepot::domain::{HttpSource, Location};
use symdepot::ports::{FileQuery, SymbolServers as _};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::measure::unexpected;
use crate::bench_real::BenchError;
use crate::bench_real::report::{Report, Row, milliseconds};

/// The size of the file.
const SIZE: u64 = 256 << 20;

/// The bytes that a connection carries in [`TICK`]: 20 MB per second.
const BURST: u64 = 200_000;
const TICK: Duration = Duration::from_millis(10);

/// The limit of the time in ranges, relative to that in one stream.
const MAX_SHARE: f64 = 0.4;

/// Measures both ways once: the rate of the server determines the times.
///
/// # Errors
/// The server cannot be started, or the file does not arrive.
pub async fn measure(report: &mut Report) -> Result<(), BenchError> {
    let title = "256 MiB from a symbol server that sends 20 MB/s per connection";
    let one = time(false).await?;
    let ranges = time(true).await?;
    let share = ranges / one;
    report.add(title, Row::new("in one stream", milliseconds(one)));
    report.add(title, Row::new("in ranges", milliseconds(ranges)));
    let row = Row::new("in ranges, relative to one stream", format!("{share:.2} ×"));
    let limit = format!("≤ {MAX_SHARE} ×");
    report.add(title, row.target(limit, share <= MAX_SHARE));
    Ok(())
}

/// Returns the time of a download in milliseconds.
async fn time(has_ranges: bool) -> Result<f64, BenchError> {
    let failed = |source| BenchError::Tool {
        tool: "a symbol server".to_owned(),
        source,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
    let url = format!("http://{}", listener.local_addr().map_err(failed)?);
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((connection, _)) = listener.accept().await {
            connections.spawn(serve(connection, has_ranges));
        }
    });
    let wrong = |what: String| unexpected("a download", &json!(what));
    let source = json!({"type": "http", "id": "large", "url": url});
    let source: HttpSource =
        serde_json::from_value(source).map_err(|error| wrong(error.to_string()))?;
    let location = Location::new(format!("{url}/large.debug"));
    let key = source.configured_key();
    let query = FileQuery {
        key: &key,
        source: &source,
        location: &location,
        checksum: None,
    };
    let began = Instant::now();
    let download = HttpServers::new(true).get(query).await;
    let download = download.map_err(|failure| wrong(failure.to_string()))?;
    let received = download
        .body
        .try_fold(0, async |sum, bytes| Ok(sum + bytes.len() as u64))
        .await;
    match received {
        Ok(SIZE) => Ok(began.elapsed().as_secs_f64() * 1000.0),
        other => Err(wrong(format!("{other:?}"))),
    }
}

/// Responds to the requests of one connection, at the rate of a connection.
async fn serve(mut connection: TcpStream, has_ranges: bool) {
    let zeros = vec![0; BURST as usize];
    let mut ticks = tokio::time::interval(TICK);
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if !matches!(connection.read_buf(&mut head).await, Ok(1..)) {
                return;
            }
        }
        let (head, mut left) = response(&String::from_utf8_lossy(&head), has_ranges);
        if connection.write_all(head.as_bytes()).await.is_err() {
            return;
        }
        ticks.reset();
        while left > 0 {
            ticks.tick().await;
            let burst = BURST.min(left);
            if connection
                .write_all(&zeros[..burst as usize])
                .await
                .is_err()
            {
                return;
            }
            left -= burst;
        }
    }
}

/// Returns the head of the response to a request, and the length of the body.
fn response(head: &str, has_ranges: bool) -> (String, u64) {
    const TAG: &str = "etag: \"large\"\r\n";
    let range = head.lines().find_map(|line| {
        let (begin, last) = line.strip_prefix("range: bytes=")?.split_once('-')?;
        Some((begin.parse::<u64>().ok()?, last.parse::<u64>().ok()?))
    });
    match range {
        Some((begin, last)) if has_ranges => {
            let length = last + 1 - begin;
            let head = format!(
                "HTTP/1.1 206 Partial Content\r\ncontent-length: {length}\r\n{TAG}content-range: bytes {begin}-{last}/{SIZE}\r\n\r\n"
            );
            (head, length)
        }
        _ => {
            let ranges = if has_ranges { "bytes" } else { "none" };
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n{TAG}accept-ranges: {ranges}\r\n\r\n"
            );
            (head, SIZE)
        }
    }
}
