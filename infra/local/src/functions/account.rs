//! The limit of an account for invocations that run at the same time.
//!
//! All functions share what is not reserved for one of them. An invocation beyond the limit is
//! refused, as by Lambda: a client gets an error at once, and a queue keeps its messages and tries
//! again ("Understanding Lambda function scaling").

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What an account allows, and who shares it.
#[derive(Clone, Debug)]
pub struct AccountLimit {
    shared: Arc<Semaphore>,
    /// The functions that have runs of their own.
    reserved: Arc<BTreeSet<String>>,
}

/// The right to run beside others, until it is dropped. A function with runs of its own needs none.
pub(super) type Run = Option<OwnedSemaphorePermit>;

impl AccountLimit {
    /// Returns the limit of an account that runs `runs` invocations at a time, of which these are
    /// reserved for the functions with these names.
    pub fn new(runs: usize, reserved: impl IntoIterator<Item = (String, usize)>) -> Self {
        let (mut names, mut left) = (BTreeSet::new(), runs);
        for (name, own) in reserved {
            left = left.saturating_sub(own);
            names.insert(name);
        }
        Self {
            shared: Arc::new(Semaphore::new(left)),
            reserved: Arc::new(names),
        }
    }

    /// Returns the right to run this function; `None` if the account is at its limit.
    pub(super) fn admit(&self, function: &str) -> Option<Run> {
        if self.reserved.contains(function) {
            return Some(None);
        }
        let run = Arc::clone(&self.shared).try_acquire_owned();
        run.ok().map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_share_what_is_not_reserved() {
        let limit = AccountLimit::new(3, [("worker".to_owned(), 1)]);
        let admit = |function| limit.admit(function);
        let (first, second) = (admit("reader"), admit("reader"));
        assert!(first.is_some() && second.is_some());
        assert!(admit("reader").is_none() && admit("sweeper").is_none());
        assert!(admit("worker").is_some());
        drop(first);
        assert!(admit("sweeper").is_some());
    }

    #[test]
    fn an_account_that_reserves_everything_runs_nothing_else() {
        let limit = AccountLimit::new(1, [("worker".to_owned(), 2)]);
        assert!(limit.admit("reader").is_none() && limit.admit("worker").is_some());
    }
}
