//! What the kernel says of other processes.

use std::time::Duration;

/// The state of a process as `/proc` has it: `R`, `S`, `T` and so on; `None` if it is gone or a zombie that nobody reaps.
pub(crate) fn state(pid: u64) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = stat.rsplit_once(") ")?.1.chars().next()?;
    (!matches!(state, 'Z' | 'X')).then_some(state)
}

/// Waits until `condition` holds of something outside of this process, which cannot be awaited.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let mut looks = tokio::time::interval(Duration::from_millis(5));
    let seen = async {
        while !condition() {
            looks.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), seen)
        .await
        .unwrap_or_else(|_| panic!("never happened: {what}"));
}
