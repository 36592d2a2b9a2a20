//! Workers: threads that do the same work until nothing is left of it.

use std::panic::resume_unwind;
use std::thread;

/// Has so many workers, this thread among them, do the same; returns what each of them did, in no
/// order. Where no more threads can be had, fewer do it all.
///
/// # Errors
///
/// The error of a worker. The others end first.
pub(super) fn side_by_side<T: Send, E: Send>(
    workers: usize,
    work: impl Fn() -> Result<Vec<T>, E> + Sync,
) -> Result<Vec<T>, E> {
    thread::scope(|scope| {
        let others: Vec<_> = (1..workers)
            .map_while(|_| thread::Builder::new().spawn_scoped(scope, &work).ok())
            .collect();
        let mut done = work()?;
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        Ok(done)
    })
}
