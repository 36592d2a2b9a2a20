//! The contract of [`BlobStore`].

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{StreamExt, TryStreamExt};
use symdepot::ports::{BlobPage, BlobStore, Created, MAX_DELETES};
use tokio::task::JoinSet;

/// More bytes than a single request should contain.
const LARGE: usize = (64 << 20) + 3;

/// The store under test, shared by racing writers.
pub type Blobs = Arc<dyn BlobStore>;

/// A blob reads back as it was written, whatever its size and path.
pub async fn a_blob_reads_back_as_written(blobs: &Blobs) {
    let bodies = [Bytes::new(), Bytes::from_static(b"x"), noise(1 << 20)];
    let paths = [
        "whole/a",
        "whole/a/b",
        "whole/ä 🦀",
        "whole/100% + & = ? # ; : @ $ , [x] {y} | ^ ~ ` ' \" < > \\",
        "whole//x/",
    ];
    for path in paths {
        for (number, body) in bodies.iter().enumerate() {
            let path = format!("{path}{number}");
            assert_eq!(
                blobs.create(&path, body.clone()).await.unwrap(),
                Created::New,
                "{path}"
            );
            assert!(
                blobs.get(&path, None).await.unwrap().as_ref() == Some(body),
                "{path} differs"
            );
        }
    }
}

/// An absent blob reads as `None`, whole or in a range, even if other paths start with its path.
pub async fn an_absent_blob_reads_as_none(blobs: &Blobs) {
    blobs
        .create("none/a/b", Bytes::from_static(b"x"))
        .await
        .unwrap();
    for path in ["none/a", "none/a/", "none/a/b/c", "none/"] {
        assert_eq!(blobs.get(path, None).await.unwrap(), None, "{path}");
        assert_eq!(blobs.get(path, Some(0..1)).await.unwrap(), None, "{path}");
        assert_eq!(blobs.get(path, Some(5..5)).await.unwrap(), None, "{path}");
    }
}

/// A range is truncated to the end of the blob, and is empty beyond it.
pub async fn a_range_is_truncated_to_the_blob(blobs: &Blobs) {
    let body = Bytes::from_static(b"0123456789");
    blobs.create("ranges/ten", body).await.unwrap();
    blobs.create("ranges/none", Bytes::new()).await.unwrap();
    let ranges: [(Range<u64>, &str); 9] = [
        (0..10, "0123456789"),
        (0..1, "0"),
        (3..7, "3456"),
        (9..10, "9"),
        (8..1000, "89"),
        (5..u64::MAX, "56789"),
        (10..20, ""),
        (1000..1001, ""),
        (4..4, ""),
    ];
    for (range, expected) in ranges {
        let got = blobs.get("ranges/ten", Some(range.clone())).await.unwrap();
        assert_eq!(got.as_deref(), Some(expected.as_bytes()), "{range:?}");
        let of_nothing = blobs.get("ranges/none", Some(range.clone())).await.unwrap();
        assert_eq!(
            of_nothing.as_deref(),
            Some(&b""[..]),
            "{range:?} of nothing"
        );
    }
}

/// An existing blob is not overwritten.
pub async fn a_blob_is_written_once(blobs: &Blobs) {
    assert_eq!(
        blobs
            .create("once", Bytes::from_static(b"first"))
            .await
            .unwrap(),
        Created::New
    );
    for body in ["second", "first", ""] {
        assert_eq!(
            blobs
                .create("once", Bytes::from_static(body.as_bytes()))
                .await
                .unwrap(),
            Created::AlreadyThere
        );
    }
    assert_eq!(
        blobs.get("once", None).await.unwrap().as_deref(),
        Some(&b"first"[..])
    );
}

/// Of 32 writers of one blob exactly one wins, and its bytes are stored.
pub async fn one_of_several_racing_writers_wins(blobs: &Blobs) {
    for round in 0..5 {
        let path = format!("race/{round}");
        let outcomes = race(32, &path, blobs, |writer| {
            Bytes::from(format!("writer {writer}"))
        })
        .await;
        let winners: Vec<_> = outcomes
            .iter()
            .filter(|(_, created)| *created == Created::New)
            .map(|(writer, _)| writer)
            .collect();
        let [winner] = winners[..] else {
            panic!("round {round}: {winners:?} won")
        };
        let stands = blobs.get(&path, None).await.unwrap().unwrap();
        assert_eq!(
            stands,
            format!("writer {winner}").as_bytes(),
            "round {round}"
        );
    }
}

/// A blob too large for one request is written completely and once, and can be read in ranges.
pub async fn a_large_blob_is_written_once(blobs: &Blobs) {
    const PART: u64 = 16 << 20;
    let body = noise(LARGE);
    let length = LARGE as u64;
    assert_eq!(
        blobs.create("large", body.clone()).await.unwrap(),
        Created::New
    );
    for range in [
        PART - 2..PART + 2,
        0..3,
        length - 3..length,
        length - 1..length + 9,
    ] {
        let end = usize::try_from(range.end.min(length)).unwrap();
        let expected = body.slice(usize::try_from(range.start).unwrap()..end);
        assert_eq!(
            blobs.get("large", Some(range.clone())).await.unwrap(),
            Some(expected),
            "{range:?}"
        );
    }
    assert_eq!(
        blobs
            .create("large", Bytes::from_static(b"small"))
            .await
            .unwrap(),
        Created::AlreadyThere
    );
    assert_eq!(
        blobs.create("large", noise(LARGE + 1)).await.unwrap(),
        Created::AlreadyThere
    );
    assert!(
        blobs.get("large", None).await.unwrap() == Some(body),
        "the complete blob differs"
    );
}

/// Of two writers of a blob too large for one request exactly one wins, and its bytes are stored.
pub async fn one_of_two_writers_of_a_large_blob_wins(blobs: &Blobs) {
    let bodies = [noise(LARGE), noise(LARGE + 2)];
    let outcomes = race(2, "large-race", blobs, |writer| bodies[writer].clone()).await;
    let winners: Vec<_> = outcomes
        .iter()
        .filter(|(_, created)| *created == Created::New)
        .map(|(writer, _)| *writer)
        .collect();
    let [winner] = winners[..] else {
        panic!("{winners:?} won")
    };
    assert!(
        blobs.get("large-race", None).await.unwrap().as_ref() == Some(&bodies[winner]),
        "the bytes of the loser are stored"
    );
}

/// A removed blob is gone. Removing an absent blob succeeds. The path can be written again.
pub async fn a_removed_blob_is_gone(blobs: &Blobs) {
    blobs
        .create("gone/a", Bytes::from_static(b"old"))
        .await
        .unwrap();
    blobs
        .create("gone/a/b", Bytes::from_static(b"stays"))
        .await
        .unwrap();
    for _ in 0..2 {
        let not_deleted = blobs.delete_many(&["gone/a".to_owned()]).await.unwrap();
        assert!(not_deleted.is_empty());
        assert_eq!(blobs.get("gone/a", None).await.unwrap(), None);
    }
    assert_eq!(
        blobs.get("gone/a/b", None).await.unwrap().as_deref(),
        Some(&b"stays"[..])
    );
    assert_eq!(
        paths(&blobs.list("gone/", None).await.unwrap()),
        ["gone/a/b"]
    );
    assert_eq!(
        blobs
            .create("gone/a", Bytes::from_static(b"new"))
            .await
            .unwrap(),
        Created::New
    );
    assert_eq!(
        blobs.get("gone/a", None).await.unwrap().as_deref(),
        Some(&b"new"[..])
    );
}

/// One call removes many blobs, and no others. A call with too many paths is refused.
pub async fn many_blobs_are_removed_at_once(blobs: &Blobs) {
    let paths: Vec<String> = (0..MAX_DELETES)
        .map(|number| format!("many/{number:05} + & <>"))
        .collect();
    let writes = paths.iter().map(|path| blobs.create(path, Bytes::new()));
    futures::stream::iter(writes)
        .buffer_unordered(16)
        .try_for_each(|_| async { Ok(()) })
        .await
        .unwrap();
    blobs.create("many0", Bytes::new()).await.unwrap();
    let not_deleted = blobs.delete_many(&[]).await.unwrap();
    assert!(not_deleted.is_empty(), "{not_deleted:?}");
    let (some, others) = paths.split_at(3);
    // Absent blobs count as removed, and so do blobs that are removed twice.
    for _ in 0..2 {
        let not_deleted = blobs.delete_many(some).await.unwrap();
        assert!(not_deleted.is_empty(), "{not_deleted:?}");
        let page = blobs.list("many/", None).await.unwrap();
        assert_eq!(self::paths(&page), others);
    }
    let not_deleted = blobs.delete_many(&paths).await.unwrap();
    assert!(not_deleted.is_empty(), "{not_deleted:?}");
    let page = blobs.list("many", None).await.unwrap();
    assert_eq!(self::paths(&page), ["many0"]);
    let too_many = [paths, vec!["many0".to_owned()]].concat();
    blobs.delete_many(&too_many).await.unwrap_err();
    let stands = blobs.get("many0", None).await.unwrap();
    assert!(stands.is_some(), "a refused call removed a blob");
}

/// A listing has the paths with the prefix, in byte order, after a given path, with sizes and
/// ETags.
pub async fn a_listing_is_in_byte_order(blobs: &Blobs) {
    let names = [
        "b", "a/b", "a", "a!", "Z", "ä", "a0", "", "🦀", "a/", "a b", "a+b", "a%20b",
    ];
    for (bytes, name) in names.iter().enumerate() {
        blobs
            .create(&format!("order/{name}"), noise(bytes))
            .await
            .unwrap();
    }
    for other in ["order", "order0", "ordeq/z"] {
        blobs.create(other, Bytes::new()).await.unwrap();
    }
    let mut expected: Vec<String> = names.iter().map(|name| format!("order/{name}")).collect();
    expected.sort();
    let page = blobs.list("order/", None).await.unwrap();
    assert_eq!(paths(&page), expected);
    assert!(!page.more);
    for blob in &page.blobs {
        let bytes = names
            .iter()
            .position(|name| blob.path == format!("order/{name}"))
            .unwrap();
        assert_eq!(blob.bytes, bytes as u64, "{}", blob.path);
        assert!(
            !blob.etag.is_empty() && !blob.etag.contains('"'),
            "{blob:?}"
        );
    }
    for (number, after) in expected.iter().enumerate() {
        assert_eq!(
            paths(&blobs.list("order/", Some(after)).await.unwrap()),
            expected[number + 1..],
            "after {after}"
        );
    }
    // `after` need not exist, nor start with the prefix.
    assert_eq!(
        paths(&blobs.list("order/", Some("order/a/a")).await.unwrap())[0],
        "order/a/b"
    );
    assert_eq!(
        paths(&blobs.list("order/", Some("a")).await.unwrap()),
        expected
    );
    assert_eq!(
        paths(&blobs.list("order/", Some("z")).await.unwrap()),
        [""; 0]
    );
    assert_eq!(paths(&blobs.list("nothing/", None).await.unwrap()), [""; 0]);
}

/// A long listing has several pages, without omissions and duplicates.
pub async fn listings_continue_each_other(blobs: &Blobs) {
    let expected: Vec<String> = (0..1005)
        .map(|number| format!("pages/{number:05}"))
        .collect();
    let writes = expected.iter().map(|path| blobs.create(path, Bytes::new()));
    futures::stream::iter(writes)
        .buffer_unordered(16)
        .try_for_each(|_| async { Ok(()) })
        .await
        .unwrap();
    let first = blobs.list("pages/", None).await.unwrap();
    assert!(
        first.more && first.blobs.len() == 1000,
        "{} blobs, more: {}",
        first.blobs.len(),
        first.more
    );
    let second = blobs
        .list("pages/", first.blobs.last().map(|blob| blob.path.as_str()))
        .await
        .unwrap();
    assert!(!second.more);
    assert!(
        paths(&first)
            .iter()
            .chain(&paths(&second))
            .eq(expected.iter()),
        "the listings differ from the written paths"
    );
}

fn paths(page: &BlobPage) -> Vec<&str> {
    page.blobs.iter().map(|blob| blob.path.as_str()).collect()
}

/// Returns the first bytes of an endless sequence whose period is not a multiple of common block
/// sizes.
fn noise(bytes: usize) -> Bytes {
    const PERIOD: usize = (1 << 20) + 7;
    let mut state = 1u64;
    let next = || {
        // Knuth's linear congruential generator: its high bits look random.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let period: Vec<u8> = std::iter::repeat_with(next)
        .take(PERIOD.min(bytes))
        .collect();
    let mut noise = period.repeat(bytes.div_ceil(PERIOD));
    noise.truncate(bytes);
    noise.into()
}

async fn race(
    writers: usize,
    path: &str,
    blobs: &Blobs,
    body: impl Fn(usize) -> Bytes,
) -> Vec<(usize, Created)> {
    let mut tasks = JoinSet::new();
    for writer in 0..writers {
        let (blobs, path, body) = (blobs.clone(), path.to_owned(), body(writer));
        tasks.spawn(async move { (writer, blobs.create(&path, body).await.unwrap()) });
    }
    tasks.join_all().await
}
