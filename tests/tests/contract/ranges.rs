//! Large files, which are received in several ranges at a time, from servers that support ranges
//! and from servers that only seem to.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::TryStreamExt;
use symdepot::adapters::http::{HttpServers, TimeLimits};
use symdepot::domain::{Cause, HttpSource, Location};
use symdepot::ports::{FileQuery, ServerFailure, SymbolServers};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The size from which files are requested in ranges, and a size that is no multiple of a range.
const LARGE: u64 = 64 << 20;
const SIZE: u64 = LARGE + 12_345;

const RANGE: u64 = 8 << 20;

const TAG: &str = "\"first\"";

/// A response of the server.
struct Reply {
    status: &'static str,
    headers: String,
    /// The bytes of the file that the body has.
    body: Range<u64>,
    /// The version of the file that the body belongs to.
    version: u8,
    /// The bytes after which the connection is closed, if that is before the end.
    cut: Option<u64>,
    /// Whether the server answers at all.
    is_silent: bool,
}

/// A received request.
#[derive(Clone, Debug)]
struct Asked {
    head: String,
    range: Option<Range<u64>>,
}

/// A server with one large file.
struct Origin {
    url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    connections: Arc<AtomicUsize>,
    _serving: JoinSet<()>,
}

/// Returns the response to a request, which also has the number of the range requests before it.
type Answering = fn(&Asked, usize) -> Reply;

impl Origin {
    async fn start(answering: Answering) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let (kept, count) = (asked.clone(), connections.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let (connection, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                open.spawn(serve(connection, kept.clone(), answering));
            }
        });
        Self {
            url,
            asked,
            connections,
            _serving: serving,
        }
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// Returns the ranges that were requested, in the order of their offsets.
    fn ranges(&self) -> Vec<Range<u64>> {
        let asked = self.asked().into_iter();
        let mut ranges: Vec<_> = asked.filter_map(|asked| asked.range).collect();
        ranges.sort_by_key(|range| range.start);
        ranges
    }

    /// Asserts that the file was requested once, besides at most four ranges that were of no use.
    fn assert_one_stream(&self, what: &str) {
        let asked = self.asked();
        let whole = asked.iter().filter(|asked| asked.range.is_none()).count();
        assert_eq!(whole, 1, "{what}");
        assert!((1..=4).contains(&(asked.len() - whole)), "{what}");
    }

    /// Fetches the file. Returns its size, after the comparison of its bytes.
    async fn fetch(&self) -> Result<u64, ServerFailure> {
        self.fetch_within(TimeLimits::default()).await
    }

    async fn fetch_within(&self, limits: TimeLimits) -> Result<u64, ServerFailure> {
        let json = serde_json::json!({
            "type": "http", "id": "a", "url": self.url, "headers": {"authorization": "sesame"},
        });
        let source: HttpSource = serde_json::from_value(json).unwrap();
        let location = Location::new(format!("{}/file", self.url));
        let key = source.configured_key();
        let query = FileQuery {
            key: &key,
            source: &source,
            location: &location,
            checksum: None,
        };
        let servers = HttpServers::new(true).with_time_limits(limits);
        let mut download = servers.get(query).await?;
        let mut received = 0;
        while let Some(bytes) = download.body.try_next().await? {
            let expected = content(received..received + bytes.len() as u64, 1);
            assert!(bytes == expected, "other bytes at {received}");
            received += bytes.len() as u64;
        }
        Ok(received)
    }
}

/// Returns the bytes of a version of the file. Each mebibyte begins with its number.
fn content(range: Range<u64>, version: u8) -> Vec<u8> {
    let mut bytes = vec![version; (range.end - range.start) as usize];
    for mebibyte in range.start.div_ceil(1 << 20)..range.end.div_ceil(1 << 20) {
        bytes[((mebibyte << 20) - range.start) as usize] = mebibyte as u8;
    }
    bytes
}

async fn serve(mut connection: TcpStream, log: Arc<Mutex<Vec<Asked>>>, answering: Answering) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if !matches!(connection.read_buf(&mut head).await, Ok(1..)) {
                return;
            }
        }
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        let range = head.lines().find_map(|line| {
            let (begin, last) = line.strip_prefix("range: bytes=")?.split_once('-')?;
            Some(begin.parse().unwrap()..last.parse::<u64>().unwrap() + 1)
        });
        let asked = Asked { head, range };
        let reply = {
            let mut log = log.lock().unwrap();
            let before = log.iter().filter(|asked| asked.range.is_some()).count();
            log.push(asked.clone());
            answering(&asked, before)
        };
        let Reply {
            status,
            headers,
            body,
            version,
            cut,
            is_silent,
        } = reply;
        if is_silent {
            std::future::pending::<()>().await;
        }
        let length = body.end - body.start;
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{headers}\r\n");
        if connection.write_all(head.as_bytes()).await.is_err() {
            return;
        }
        let end = cut.map_or(body.end, |cut| body.start + cut);
        let mut at = body.start;
        while at < end {
            let next = end.min(at + (1 << 20));
            let bytes = content(at..next, version);
            if connection.write_all(&bytes).await.is_err() {
                return;
            }
            at = next;
        }
        if cut.is_some() {
            return;
        }
    }
}

/// Responds with the whole file.
fn whole(more: &str) -> Reply {
    Reply {
        status: "200 OK",
        headers: format!("etag: {TAG}\r\naccept-ranges: bytes\r\n{more}"),
        body: 0..SIZE,
        version: 1,
        cut: None,
        is_silent: false,
    }
}

/// Responds with a range.
fn part(range: Range<u64>) -> Reply {
    let (begin, last) = (range.start, range.end - 1);
    Reply {
        status: "206 Partial Content",
        headers: format!("etag: {TAG}\r\ncontent-range: bytes {begin}-{last}/{SIZE}\r\n"),
        body: range,
        ..whole("")
    }
}

fn nothing(status: &'static str, headers: &str) -> Reply {
    Reply {
        status,
        headers: headers.to_owned(),
        body: 0..0,
        ..whole("")
    }
}

/// Responds as RFC 9110 says.
fn honest(asked: &Asked, _: usize) -> Reply {
    asked.range.clone().map_or_else(|| whole(""), part)
}

#[tokio::test]
async fn a_large_file_is_received_in_ranges_of_the_same_bytes() {
    let origin = Origin::start(honest).await;
    assert_eq!(origin.fetch().await, Ok(SIZE));
    let ranges = origin.ranges();
    // The first request is for the whole file, of which the first 8 MiB or little more are used.
    let begin = ranges[0].start;
    assert!((RANGE..RANGE + (1 << 20)).contains(&begin), "{begin}");
    for pair in ranges.windows(2) {
        assert_eq!(pair[0].end, pair[1].start);
        assert_eq!(pair[0].end - pair[0].start, RANGE);
    }
    assert_eq!(ranges.last().unwrap().end, SIZE);
    assert_eq!(origin.asked().len(), 1 + ranges.len());
    // One for the first request, and one for each of the ranges that are received at a time.
    assert_eq!(origin.connections.load(Ordering::SeqCst), 1 + 4);
    for asked in origin.asked().iter().skip(1) {
        let head = &asked.head;
        assert!(head.contains(&format!("if-range: {TAG}\r\n")), "{head}");
        assert!(head.contains("authorization: sesame\r\n"), "{head}");
        assert!(head.contains("accept-encoding: identity\r\n"), "{head}");
    }
}

#[tokio::test]
async fn a_server_without_usable_ranges_sends_the_file_in_one_stream() {
    let answers: [(&str, Answering); 7] = [
        ("ignores ranges", |_, _| whole("")),
        ("refuses ranges", |asked, _| match asked.range {
            None => whole(""),
            Some(_) => nothing("416 Range Not Satisfiable", ""),
        }),
        ("allows one connection", |asked, _| match asked.range {
            None => whole(""),
            Some(_) => nothing("503 Busy", "retry-after: 100\r\n"),
        }),
        ("sends another range", |asked, _| {
            match asked.range.clone() {
                None => whole(""),
                Some(range) => part(range.start - 1..range.end - 1),
            }
        }),
        ("says another size", |asked, _| match asked.range.clone() {
            None => whole(""),
            Some(range) => {
                let (begin, last) = (range.start, range.end - 1);
                let headers = format!("etag: {TAG}\r\ncontent-range: bytes {begin}-{last}/*\r\n");
                Reply {
                    headers,
                    ..part(range)
                }
            }
        }),
        ("has another version", |asked, _| {
            match asked.range.clone() {
                None => whole(""),
                Some(range) => {
                    let reply = part(range);
                    Reply {
                        headers: reply.headers.replace("first", "second"),
                        version: 2,
                        ..reply
                    }
                }
            }
        }),
        ("honors some ranges", |asked, before| {
            match asked.range.clone() {
                Some(range) if before != 2 => part(range),
                _ => whole(""),
            }
        }),
    ];
    for (what, answering) in answers {
        let origin = Origin::start(answering).await;
        assert_eq!(origin.fetch().await, Ok(SIZE), "{what}");
        origin.assert_one_stream(what);
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_ranges_sends_the_file_in_one_stream() {
    let origin = Origin::start(|asked, _| Reply {
        is_silent: asked.range.is_some(),
        ..whole("")
    });
    let origin = origin.await;
    let limits = TimeLimits {
        silence: Duration::from_secs(2),
        ..TimeLimits::default()
    };
    assert_eq!(origin.fetch_within(limits).await, Ok(SIZE));
    origin.assert_one_stream("does not answer");
}

#[tokio::test]
async fn no_range_is_requested_of_a_small_or_changeable_file() {
    let answers: [(&str, Answering); 5] = [
        ("small", |_, _| Reply {
            body: 0..LARGE - 1,
            ..whole("")
        }),
        ("no ranges", |_, _| Reply {
            headers: format!("etag: {TAG}\r\n"),
            ..whole("")
        }),
        ("ranges of another unit", |_, _| Reply {
            headers: format!("etag: {TAG}\r\naccept-ranges: lines\r\n"),
            ..whole("")
        }),
        ("no etag", |_, _| Reply {
            headers: "accept-ranges: bytes\r\n".to_owned(),
            ..whole("")
        }),
        ("a weak etag", |_, _| Reply {
            headers: format!("etag: W/{TAG}\r\naccept-ranges: bytes\r\n"),
            ..whole("")
        }),
    ];
    for (what, answering) in answers {
        let origin = Origin::start(answering).await;
        let size = origin.fetch().await.unwrap();
        assert!(size >= LARGE - 1, "{what}");
        assert_eq!(origin.asked().len(), 1, "{what}");
    }
}

/// The first four ranges are of the first version, and the fifth is not.
#[tokio::test]
async fn a_file_that_changes_during_the_download_is_never_combined_with_its_new_version() {
    let origin = Origin::start(|asked, before| match asked.range.clone() {
        Some(range) if before < 4 => part(range),
        Some(_) => Reply {
            headers: "etag: \"second\"\r\n".to_owned(),
            version: 2,
            ..whole("")
        },
        None => whole(""),
    })
    .await;
    let missing = origin.fetch().await.unwrap_err().missing;
    assert_eq!(missing.cause, Cause::DownloadFailed);
    let detail = &missing.detail;
    assert!(detail.contains("the file changed during"), "{detail}");
}

#[tokio::test]
async fn a_later_range_that_was_not_requested_fails_with_what_happened() {
    let answers: [(&str, Answering); 3] = [
        (
            "a range that was not requested",
            |asked, before| match asked.range.clone() {
                Some(range) if before < 4 => part(range),
                Some(range) => part(range.start + 1..range.end),
                None => whole(""),
            },
        ),
        ("404 Not Found", |asked, before| match asked.range.clone() {
            Some(range) if before < 4 => part(range),
            Some(_) => nothing("404 Not Found", ""),
            None => whole(""),
        }),
        ("403 Forbidden", |asked, before| match asked.range.clone() {
            Some(range) if before < 4 => part(range),
            Some(_) => nothing("403 Forbidden", ""),
            None => whole(""),
        }),
    ];
    for (says, answering) in answers {
        let origin = Origin::start(answering).await;
        let missing = origin.fetch().await.unwrap_err().missing;
        // The file is there, so that nothing is cached about its absence.
        assert_eq!(missing.cause, Cause::DownloadFailed, "{says}");
        assert!(missing.detail.contains(says), "{}", missing.detail);
    }
}

/// Returns the part of the file that is asked for, whose connection breaks after this number of
/// bytes; the whole file if no part is.
fn part_cut_after(asked: &Asked, cut: Option<u64>) -> Reply {
    match asked.range.clone() {
        Some(range) => Reply { cut, ..part(range) },
        None => whole(""),
    }
}

#[tokio::test]
async fn a_range_whose_connection_breaks_is_continued_where_it_ended() {
    let origin = Origin::start(|asked, before| {
        part_cut_after(asked, (before == 1 || before == 4).then_some(1 << 20))
    });
    let origin = origin.await;
    assert_eq!(origin.fetch().await, Ok(SIZE));
    let ranges = origin.ranges();
    let continued: Vec<_> = ranges
        .windows(2)
        .filter(|pair| pair[1].start < pair[0].end)
        .collect();
    assert_eq!(continued.len(), 2, "{ranges:?}");
    for pair in continued {
        assert_eq!(pair[1], pair[0].start + (1 << 20)..pair[0].end);
    }

    // A server that always breaks the connection before the first byte of a range.
    let origin = Origin::start(|asked, before| part_cut_after(asked, (before >= 4).then_some(0)));
    let origin = origin.await;
    let missing = origin.fetch().await.unwrap_err().missing;
    assert_eq!(missing.cause, Cause::DownloadFailed);
    assert!(
        missing.detail.contains("closed the connection"),
        "{}",
        missing.detail
    );
}

#[tokio::test]
async fn a_server_that_breaks_the_connection_after_each_byte_is_not_asked_for_every_byte() {
    let origin = Origin::start(|asked, before| part_cut_after(asked, (before >= 4).then_some(1)));
    let origin = origin.await;
    let missing = origin.fetch().await.unwrap_err().missing;
    assert_eq!(missing.cause, Cause::DownloadFailed);
    // Four ranges at a time have three attempts each.
    let cut = origin.ranges().len() - 4;
    assert!((3..=4 * 3).contains(&cut), "{cut}");
}

#[tokio::test]
async fn a_server_that_breaks_the_connection_after_each_mebibyte_sends_the_whole_file() {
    let origin = Origin::start(|asked, before| {
        let range = asked.range.as_ref();
        let is_longer = range.is_some_and(|range| range.end - range.start > 1 << 20);
        part_cut_after(asked, (before >= 4 && is_longer).then_some(1 << 20))
    });
    let origin = origin.await;
    assert_eq!(origin.fetch().await, Ok(SIZE));
}

/// The ranges are requested where the redirects led to, and without the credentials of the source.
#[tokio::test]
async fn the_ranges_of_a_redirected_file_are_requested_from_its_target() {
    let target = Origin::start(honest).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let begin = Origin {
        url: format!("http://{}", listener.local_addr().unwrap()),
        asked: Arc::default(),
        connections: Arc::default(),
        _serving: JoinSet::new(),
    };
    let to = format!("{}/signed?token=x", target.url);
    let mut redirecting = JoinSet::new();
    redirecting.spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            connection.read_buf(&mut head).await.unwrap();
        }
        let answer = format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n");
        connection.write_all(answer.as_bytes()).await.unwrap();
    });
    assert_eq!(begin.fetch().await, Ok(SIZE));
    assert!(target.ranges().len() > 4);
    for asked in target.asked() {
        assert!(
            asked.head.starts_with("get /signed?token=x "),
            "{}",
            asked.head
        );
        assert!(!asked.head.contains("sesame"), "{}", asked.head);
    }
}
