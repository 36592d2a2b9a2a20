//! Workers: threads that run the same function until no work is left.

use std::convert::Infallible;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// Does numbered work on a number of workers, each with a state of its own. Returns the results in
/// the order of their numbers.
pub(super) fn in_order<S, T: Send>(
    count: usize,
    workers: usize,
    begin: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let Ok(mut done) = side_by_side(workers.min(count), || {
        let (mut state, mut done) = (begin(), Vec::new());
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok::<_, Infallible>(done);
            }
            done.push((number, work(&mut state, number)));
        }
    });
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, done)| done).collect()
}

/// Does `work` on this thread. If there are more workers, another one does what is needed later. If
/// the system does not start it, that is left undone.
pub(super) fn beside<T>(
    workers: usize,
    ahead: impl FnOnce() + Send,
    work: impl FnOnce() -> T,
) -> T {
    thread::scope(|scope| {
        let other = (workers > 1).then(|| thread::Builder::new().spawn_scoped(scope, ahead));
        let done = work();
        if let Some(Ok(other)) = other {
            other.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
        done
    })
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
