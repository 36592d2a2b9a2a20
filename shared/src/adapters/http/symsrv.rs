//! The requests of Microsoft's clients in addition to the file itself: whether the server has two
//! tiers of folders, and a pointer to a file that is stored elsewhere.
//!
//! - A server with an `index2.txt` in its root keeps each folder in a parent folder that is named
//!   by its first two letters. What that file contains does not matter, unless it is a web page:
//!   some servers send one in place of each absent file. If that file is absent or refused (404,
//!   401, 403), the server has one tier. If the request for it fails in another way, if a web page
//!   comes in its place, or if its beginning does not arrive within 5 s, then for five minutes each
//!   file is requested in one tier, and if it is absent or refused there, in two.
//! - `file.ptr` is stored in place of the file. It contains `PATH:` and an address, or `MSG:` and
//!   the reason why there is no file. An old pointer is the path alone. Only http and https
//!   addresses can be followed; a path on a private network is reported.
//!
//! Sources: Microsoft's documentation of symbol servers, "Using SymSrv" and "SymStore"; the
//! requests in the logs of its clients.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Response, Url};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout};

use super::short::first_bytes;
use crate::domain::{Cause, Formulae, HttpSource, Location, SourceKey, is_web_page, two_tiers};

/// How long the number of tiers of a server is cached.
const BELIEVED: Duration = Duration::from_secs(3600);

/// How long it is cached that the number of tiers could not be found out.
const UNKNOWN_FOR: Duration = Duration::from_secs(300);

/// The longest pointer to read, in bytes, which is much longer than the longest path.
pub(super) const MAX_POINTER_BYTES: usize = 16 << 10;

/// The bytes that are read of the file that marks a server with two tiers.
const MARK_BYTES: usize = 1 << 10;

/// The maximum time for reading them.
const MARK_TIME: Duration = Duration::from_secs(5);

/// The most sources in the cache.
const MAX_KNOWN: usize = 256;

/// How a server arranges its folders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Folders {
    /// All of them are in its root.
    OneTier,
    /// Each is in a parent folder.
    TwoTiers,
    /// The server did not say.
    Unknown,
}

/// A cache of how sources arrange their folders. An entry of one source is never used for another
/// source with the same address.
#[derive(Debug, Default)]
pub(super) struct Tiers {
    known: Mutex<HashMap<SourceKey, Arc<KnownTiers>>>,
    /// The wall clock, if there is one: the monotonic clock may stop while the sandbox is frozen.
    wall_clock: Option<fn() -> Duration>,
}

/// How a source arranges its folders, once that was requested, and when the entry was created.
#[derive(Debug)]
struct KnownTiers {
    folders: OnceCell<Folders>,
    at: Instant,
    since_epoch: Duration,
}

impl KnownTiers {
    /// Returns how long the entry is valid; `None` while the server is asked.
    fn valid_for(&self) -> Option<Duration> {
        Some(match self.folders.get()? {
            Folders::OneTier | Folders::TwoTiers => BELIEVED,
            Folders::Unknown => UNKNOWN_FOR,
        })
    }
}

impl Tiers {
    /// Returns an empty cache whose entries expire by this clock as well.
    pub(super) fn by_wall_clock(wall_clock: fn() -> Duration) -> Self {
        Self {
            wall_clock: Some(wall_clock),
            ..Self::default()
        }
    }

    /// Returns how a source arranges its folders. If that is not cached, one caller runs `probe`,
    /// and concurrent callers for the same source wait for it.
    pub(super) async fn of<E>(
        &self,
        key: &SourceKey,
        probe: impl Future<Output = Result<Folders, E>>,
    ) -> Result<Folders, E> {
        let known = self.known(key);
        known.folders.get_or_try_init(|| probe).await.copied()
    }

    /// Returns the cache entry of a source, and replaces one that has expired.
    fn known(&self, key: &SourceKey) -> Arc<KnownTiers> {
        let since_epoch = self.wall_clock.map_or(Duration::ZERO, |clock| clock());
        let age = |known: &KnownTiers| {
            let by_wall_clock = since_epoch.saturating_sub(known.since_epoch);
            known.at.elapsed().max(by_wall_clock)
        };
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(key)
            && known.valid_for().is_none_or(|limit| age(known) < limit)
        {
            return known.clone();
        }
        if all.len() >= MAX_KNOWN && !all.contains_key(key) {
            let oldest = all.iter().max_by_key(|(_, known)| age(known));
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                all.remove(&oldest);
            }
        }
        let known = Arc::new(KnownTiers {
            folders: OnceCell::new(),
            at: Instant::now(),
            since_epoch,
        });
        all.insert(key.clone(), known.clone());
        known
    }
}

/// Returns whether a server uses the protocol of Microsoft's clients.
pub(super) fn is_symsrv(source: &HttpSource) -> bool {
    source.layout.formulae == Formulae::Symsrv
}

/// Returns the address of the file that marks a server with two tiers.
pub(super) fn index2(source: &HttpSource) -> Url {
    below(source, "index2.txt")
}

/// Returns what a successful response to the request for that file says. The file may be empty,
/// whatever type the server gives it.
pub(super) async fn folders_of(response: Response) -> Folders {
    let kind = response.headers().get(CONTENT_TYPE);
    let is_html = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    let is_page = |begin: &[u8]| !begin.is_empty() && (is_html || is_web_page(begin));
    match timeout(MARK_TIME, first_bytes(response, MARK_BYTES)).await {
        Ok(Ok(begin)) if !is_page(&begin) => Folders::TwoTiers,
        Ok(Ok(_) | Err(_)) | Err(_) => Folders::Unknown,
    }
}

/// Returns the two-tier address of a file, given its one-tier address.
pub(super) fn in_two_tiers(source: &HttpSource, url: &Url) -> Url {
    let base = below(source, "");
    match url.path().strip_prefix(base.path()).and_then(two_tiers) {
        Some(path) => below(source, &path),
        None => url.clone(),
    }
}

/// Returns the address of an encoded path below the address of a source.
fn below(source: &HttpSource, path: &str) -> Url {
    let mut url = source.url.clone();
    let base = url.path().trim_end_matches('/').to_owned();
    url.set_path(&format!("{base}/{path}"));
    url
}

/// Returns whether a location is that of a pointer, not of a file.
pub(super) fn is_pointer(location: &Location) -> bool {
    location.as_str().ends_with("/file.ptr")
}

/// Returns the address that a pointer contains; otherwise the cause and the reason why there is no
/// file.
///
/// The reason does not quote the pointer, because it is shown to callers that may not read the
/// server.
pub(super) fn lead(text: &str, url: &Url) -> Result<Url, (Cause, String)> {
    let text = text.trim_start_matches('\u{feff}').trim();
    let host = url.host_str().unwrap_or_default();
    let begins = |word: &str| {
        let head = text.get(..word.len())?;
        head.eq_ignore_ascii_case(word)
            .then(|| text[word.len()..].trim())
    };
    if begins("MSG:").is_some() {
        return Err((
            Cause::NotFound,
            format!("{host} has a message instead of the file (file.ptr)"),
        ));
    }
    if is_web_page(text.as_bytes()) {
        return Err((
            Cause::DownloadFailed,
            format!("{host} sent a web page instead of file.ptr"),
        ));
    }
    let path = begins("PATH:").unwrap_or(text);
    match Url::parse(path) {
        Ok(to) if matches!(to.scheme(), "http" | "https") && to.host().is_some() => Ok(to),
        _ if path.is_empty() || path.contains(char::is_control) => Err((
            Cause::Malformed,
            format!("the file.ptr of {host} cannot be parsed"),
        )),
        _ => Err((
            Cause::NotFound,
            format!("the file.ptr of {host} contains a path that is not an http or https address"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(url: &str) -> HttpSource {
        let json = format!(
            r#"{{"type": "http", "id": "a", "url": "{url}", "layout": {{"type": "symsrv"}}}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn two_tier_folders_are_below_the_path_of_the_source() {
        for (base, at, expected) in [
            (
                "http://x.test",
                "http://x.test/app.pdb/1/app.pdb",
                "http://x.test/ap/app.pdb/1/app.pdb",
            ),
            (
                "http://x.test/s/",
                "http://x.test/s/app.pdb/1/file.ptr",
                "http://x.test/s/ap/app.pdb/1/file.ptr",
            ),
            (
                "http://x.test/s",
                "http://x.test/s/a.pdb/1/a.pdb",
                "http://x.test/s/a/a.pdb/1/a.pdb",
            ),
            (
                "http://x.test/",
                "http://x.test/my%20app.pdb/1/my%20app.pdb",
                "http://x.test/my/my%20app.pdb/1/my%20app.pdb",
            ),
        ] {
            let url = in_two_tiers(&source(base), &Url::parse(at).unwrap());
            assert_eq!(url.as_str(), expected);
        }
        assert_eq!(
            index2(&source("http://x.test/s")).as_str(),
            "http://x.test/s/index2.txt"
        );
    }

    #[test]
    fn a_pointer_is_followed_or_reports_why_not() {
        let here = Url::parse("http://x.test/a.pdb/1/file.ptr").unwrap();
        let good = |text: &str| lead(text, &here).map(String::from);
        for text in [
            "PATH:http://y.test/a.pdb",
            "path: http://y.test/a.pdb\r\n",
            "\u{feff}http://y.test/a.pdb",
        ] {
            assert_eq!(good(text), Ok("http://y.test/a.pdb".to_owned()), "{text:?}");
        }
        for (text, cause, said) in [
            (
                "MSG: removed by policy",
                Cause::NotFound,
                "a message instead of the file",
            ),
            (
                "PATH:\\\\server\\share\\a.pdb",
                Cause::NotFound,
                "not an http or https address",
            ),
            (
                "C:\\symbols\\a.pdb",
                Cause::NotFound,
                "not an http or https address",
            ),
            (
                "PATH:file:///etc/passwd",
                Cause::NotFound,
                "not an http or https address",
            ),
            ("", Cause::Malformed, "cannot be parsed"),
            ("PATH:", Cause::Malformed, "cannot be parsed"),
            ("a\nb", Cause::Malformed, "cannot be parsed"),
            (
                "<!DOCTYPE html><title>policy</title>",
                Cause::DownloadFailed,
                "sent a web page instead",
            ),
        ] {
            let (found, detail) = lead(text, &here).unwrap_err();
            assert_eq!(found, cause, "{text:?}");
            assert!(detail.contains(said), "{text:?}: {detail}");
            for told in ["policy", "share", "symbols", "passwd"] {
                assert!(!detail.contains(told), "{detail}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_folder_tiers_of_a_server_are_requested_once_an_hour_and_after_a_failure() {
        let tiers = Tiers::default();
        let source = source("http://x.test");
        let key = source.configured_key();
        let ask = async |answer: Result<Folders, ()>| tiers.of(&key, async { answer }).await;
        assert_eq!(ask(Err(())).await, Err(()));
        assert_eq!(ask(Ok(Folders::TwoTiers)).await, Ok(Folders::TwoTiers));
        assert_eq!(ask(Ok(Folders::OneTier)).await, Ok(Folders::TwoTiers));
        tokio::time::advance(BELIEVED).await;
        assert_eq!(ask(Ok(Folders::Unknown)).await, Ok(Folders::Unknown));
        assert_eq!(ask(Ok(Folders::OneTier)).await, Ok(Folders::Unknown));
        tokio::time::advance(UNKNOWN_FOR).await;
        assert_eq!(ask(Ok(Folders::OneTier)).await, Ok(Folders::OneTier));
    }

    #[tokio::test(start_paused = true)]
    async fn folder_tiers_are_not_shared_between_sources_with_one_address() {
        let tiers = Tiers::default();
        let source = source("http://x.test");
        let ask = async |key: &SourceKey, answer: Folders| {
            let answered = tiers.of(key, async { Ok::<_, ()>(answer) });
            answered.await.unwrap()
        };
        let defined = source.defined_key("1".to_owned());
        assert_eq!(ask(&defined, Folders::TwoTiers).await, Folders::TwoTiers);
        let configured = source.configured_key();
        assert_eq!(ask(&configured, Folders::OneTier).await, Folders::OneTier);
        assert_eq!(ask(&defined, Folders::OneTier).await, Folders::TwoTiers);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_source_does_not_delay_others_and_the_cache_is_bounded() {
        let tiers = Tiers::default();
        let source = source("http://x.test");
        let key = |number: usize| source.defined_key(number.to_string());
        let (first, second) = (key(0), key(1));
        let slow = tiers.of(&first, std::future::pending::<Result<Folders, ()>>());
        let quick = tiers.of(&second, async { Ok::<_, ()>(Folders::TwoTiers) });
        tokio::select! {
            biased;
            _ = slow => panic!("the request never completes"),
            answered = quick => assert_eq!(answered, Ok(Folders::TwoTiers)),
        }
        for number in 0..MAX_KNOWN * 2 {
            let key = key(number);
            let answered = tiers.of(&key, async { Ok::<_, ()>(Folders::TwoTiers) });
            assert_eq!(answered.await, Ok(Folders::TwoTiers));
        }
        let known = tiers.known.lock().unwrap().len();
        assert_eq!(known, MAX_KNOWN);
    }
}
