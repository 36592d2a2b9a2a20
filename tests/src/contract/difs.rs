//! The contract of [`DifReader`].

use async_trait::async_trait;
use bytes::Bytes;
use symdepot::domain::{Cause, Location};
use symdepot::ports::{DifError, DifListing, DifReader, FaultKind};

/// Puts DIFs into the source under test, as its users do.
#[async_trait]
pub trait Uploads: Send + Sync {
    /// Returns the reader of the source.
    fn reader(&self) -> &dyn DifReader;

    /// Returns the listing of the source.
    fn listing(&self) -> &dyn DifListing;

    /// Puts a DIF into the source, and replaces an existing one.
    async fn put(&self, location: &str, body: Bytes);

    /// Removes a DIF.
    async fn remove(&self, location: &str);
}

/// A DIF is read in ranges of exactly the requested length, by the ETag from its lookup.
pub async fn a_dif_is_read_in_exact_ranges(uploads: &dyn Uploads) {
    for path in ["global/exact/app.debug", "global/exact/ä b+c%20/../🦀//x"] {
        let location = Location::new(path);
        uploads.put(path, Bytes::from_static(b"0123456789")).await;
        let stat = uploads.reader().stat(&location).await.unwrap();
        assert_eq!(stat.size, 10);
        assert!(
            !stat.etag.is_empty() && !stat.etag.contains('"'),
            "{stat:?}"
        );
        for (range, expected) in [
            (0..10, "0123456789"),
            (0..1, "0"),
            (3..7, "3456"),
            (9..10, "9"),
            (4..4, ""),
        ] {
            let read = uploads
                .reader()
                .read(&location, &stat.etag, range.clone())
                .await
                .unwrap();
            assert_eq!(read, expected.as_bytes(), "{range:?}");
        }
    }
}

/// A range that ends beyond the DIF is a fault of the caller.
pub async fn a_range_beyond_the_dif_is_a_fault(uploads: &dyn Uploads) {
    let location = Location::new("global/beyond/app.debug");
    for body in ["0123456789", ""] {
        uploads
            .put(location.as_str(), Bytes::from_static(body.as_bytes()))
            .await;
        let stat = uploads.reader().stat(&location).await.unwrap();
        assert_eq!(stat.size, body.len() as u64);
        for range in [8..11, 10..11, 100..200] {
            let error = uploads
                .reader()
                .read(&location, &stat.etag, range.clone())
                .await
                .unwrap_err();
            assert!(
                matches!(&error, DifError::Fault(error) if error.kind() == FaultKind::Bug),
                "{range:?}: {error:?}"
            );
        }
    }
}

/// An absent DIF is missing with the cause "not found".
pub async fn an_absent_dif_is_missing(uploads: &dyn Uploads) {
    uploads
        .put("global/absent/a/b", Bytes::from_static(b"x"))
        .await;
    for path in ["global/absent/a", "global/absent/a/b/c", "global/absent/"] {
        let location = Location::new(path);
        assert_missing(&uploads.reader().stat(&location).await.unwrap_err());
        assert_missing(
            &uploads
                .reader()
                .read(&location, "0123", 0..1)
                .await
                .unwrap_err(),
        );
    }
}

/// A DIF that is overwritten during a read never gives a mixture of both; a DIF that is removed is
/// missing.
pub async fn a_dif_change_during_a_read_is_detected(uploads: &dyn Uploads) {
    let location = Location::new("global/changing/app.debug");
    uploads
        .put(location.as_str(), Bytes::from_static(b"old bytes"))
        .await;
    let old = uploads.reader().stat(&location).await.unwrap();
    assert_eq!(
        uploads
            .reader()
            .read(&location, &old.etag, 0..3)
            .await
            .unwrap(),
        &b"old"[..]
    );

    uploads
        .put(location.as_str(), Bytes::from_static(b"new bytes"))
        .await;
    let error = uploads
        .reader()
        .read(&location, &old.etag, 3..9)
        .await
        .unwrap_err();
    assert!(matches!(error, DifError::Changed), "{error:?}");
    let new = uploads.reader().stat(&location).await.unwrap();
    assert_ne!(new.etag, old.etag);
    assert_eq!(
        uploads
            .reader()
            .read(&location, &new.etag, 0..9)
            .await
            .unwrap(),
        &b"new bytes"[..]
    );

    uploads.remove(location.as_str()).await;
    assert_missing(
        &uploads
            .reader()
            .read(&location, &new.etag, 0..3)
            .await
            .unwrap_err(),
    );
    assert_missing(&uploads.reader().stat(&location).await.unwrap_err());
}

/// DIFs are listed in byte order of their locations, on consecutive pages, with the ETags to read
/// them by.
pub async fn difs_are_listed_page_by_page(uploads: &dyn Uploads) {
    let odd = "global/listed/ä b+c%20/../🦀//x";
    let mut paths: Vec<String> = (0..1001)
        .map(|number| format!("global/listed/{number:05}"))
        .chain([odd.to_owned()])
        .collect();
    for path in &paths {
        uploads.put(path, Bytes::from_static(b"0123456789")).await;
    }
    paths.sort_unstable();
    let first = uploads.listing().list(None).await.unwrap();
    assert_eq!((first.difs.len(), first.more), (1000, true));
    let last = first.difs.last().map(|dif| &dif.location);
    let second = uploads.listing().list(last).await.unwrap();
    assert_eq!((second.difs.len(), second.more), (2, false));
    let listed: Vec<_> = first.difs.iter().chain(&second.difs).collect();
    assert!(listed.iter().map(|dif| dif.location.as_str()).eq(&paths));
    let stat = uploads.reader().stat(&Location::new(odd)).await.unwrap();
    assert!(listed.iter().all(|dif| dif.etag == stat.etag));
}

fn assert_missing(error: &DifError) {
    assert!(
        matches!(error, DifError::Missing(missing) if missing.cause == Cause::NotFound),
        "{error:?}"
    );
}
