//! Concurrent work on the modules of one upload.

use futures::future::{BoxFuture, FutureExt};
use futures::stream;
use futures::stream::{StreamExt as _, TryStreamExt as _};

/// The maximum number of modules that are processed at a time.
pub(super) const SIDE_BY_SIDE: usize = 16;

/// Runs `work` for each item of `of`, concurrently. Returns the results in order. After an error,
/// no further work is started, and the running work is dropped.
pub(super) fn side_by_side<'a, T, R, E, Work>(
    of: &'a [T],
    work: impl FnMut(&'a T) -> Work,
) -> BoxFuture<'a, Result<Vec<R>, E>>
where
    Work: Future<Output = Result<R, E>> + Send + 'a,
    R: Send + 'a,
    E: Send + 'a,
{
    // Boxed, because otherwise the compiler cannot prove that these futures are `Send`.
    let work: Vec<BoxFuture<'a, Result<R, E>>> =
        of.iter().map(work).map(FutureExt::boxed).collect();
    stream::iter(work)
        .buffered(SIDE_BY_SIDE)
        .try_collect()
        .boxed()
}
