//! Workers: threads that run the same function until no work is left.

use std::panic::resume_unwind;
use std::thread;

use super::panics::STACK_BYTES;

/// Runs `work` on a number of workers, one of which is this thread. Returns the results of all
/// workers in no particular order. If the system starts fewer threads, those do all of the work.
///
/// # Errors
///
/// The error of a worker. The call returns after all workers have ended.
pub(super) fn side_by_side<T: Send, E: Send>(
    workers: usize,
    work: impl Fn() -> Result<Vec<T>, E> + Sync,
) -> Result<Vec<T>, E> {
    on_threads(&thread::Builder::new, workers, work)
}

/// Like [`side_by_side`], for parsers that call themselves for each level of what they read: each
/// worker has the stack of a thread that parses.
pub(super) fn deep_side_by_side<T: Send, E: Send>(
    workers: usize,
    work: impl Fn() -> Result<Vec<T>, E> + Sync,
) -> Result<Vec<T>, E> {
    let deep = || thread::Builder::new().stack_size(STACK_BYTES);
    on_threads(&deep, workers, work)
}

fn on_threads<T: Send, E: Send>(
    thread: &dyn Fn() -> thread::Builder,
    workers: usize,
    work: impl Fn() -> Result<Vec<T>, E> + Sync,
) -> Result<Vec<T>, E> {
    thread::scope(|scope| {
        let others: Vec<_> = (1..workers)
            .map_while(|_| thread().spawn_scoped(scope, &work).ok())
            .collect();
        let mut done = work()?;
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        Ok(done)
    })
}
