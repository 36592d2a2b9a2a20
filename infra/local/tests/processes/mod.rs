//! The states of other processes, as the kernel reports them.

use std::time::Duration;

/// Returns the state of a process in `/proc`: `R`, `S`, `T` and so on; `None` if it has ended,
/// reaped or not.
pub(crate) fn state(pid: u64) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = stat.rsplit_once(") ")?.1.chars().next()?;
    (!matches!(state, 'Z' | 'X')).then_some(state)
}

/// Waits for a condition outside of this process, which cannot be awaited.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let mut looks = tokio::time::interval(Duration::from_millis(5));
    let seen = async {
        while !condition() {
            looks.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), seen)
        .await
        .unwrap_or_else(|_| panic!("timed out waiting until {what}"));
}
