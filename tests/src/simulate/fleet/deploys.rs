//! Deploys: which release each instance runs, function by function.

use super::{Fleet, Function};
use crate::simulate::releases::Release;

/// How many instances of each function run the newer release.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Deployed {
    symbolicate: usize,
    derive: usize,
    prune: usize,
}

impl Deployed {
    fn of(&mut self, function: Function) -> &mut usize {
        match function {
            Function::Symbolicate => &mut self.symbolicate,
            Function::Derive => &mut self.derive,
            Function::Prune => &mut self.prune,
        }
    }
}

impl Fleet {
    /// Deploys a function: so many of its instances run the newer release from now on. An instance
    /// that is at work completes its invocation first.
    pub(super) fn deploy(&mut self, function: Function, newer: usize) {
        *self.deployed.of(function) = newer;
        self.stores.ledger().has_deployed = true;
        self.note(|| format!("{newer} instances of {function:?} run the newer release"));
        self.deployed_at = self.now;
        self.replace_outdated();
    }

    /// Ends what is under way: one release runs from now on.
    pub(super) fn end_deploys(&mut self) {
        if !self.stores.ledger().has_deployed {
            return;
        }
        let newer = if self.plan.ends_newer { usize::MAX } else { 0 };
        for function in [Function::Symbolicate, Function::Derive, Function::Prune] {
            self.deploy(function, newer);
        }
    }

    /// Returns whether both releases run, or ran before: what one of them made may still be used.
    pub(super) fn is_mixed(&self) -> bool {
        self.stores.ledger().has_deployed
    }

    /// Returns the release that runs in the end.
    pub(super) fn last_release(&self) -> Release {
        if self.plan.ends_newer && self.stores.ledger().has_deployed {
            Release::Newer
        } else {
            Release::Older
        }
    }

    /// Returns the release that an instance should run.
    pub(super) fn release_of(&mut self, at: usize) -> Release {
        let function = self.members[at].function;
        let newer = *self.deployed.of(function);
        let before = self.members[..at].iter();
        let number = before.filter(|member| member.function == function).count();
        if number < newer {
            Release::Newer
        } else {
            Release::Older
        }
    }

    /// Configures a further symbol server for a function.
    pub(super) fn configure(&mut self, function: Function) {
        self.note(|| format!("{function:?} gets a further symbol server"));
        self.configured.insert(function);
        self.replace_outdated();
    }

    /// Starts other instances in the place of idle ones that run another release or have another
    /// configuration than they should.
    pub(super) fn replace_outdated(&mut self) {
        for at in 0..self.members.len() {
            let release = self.release_of(at);
            let member = &self.members[at];
            let is_configured = self.configured.contains(&member.function);
            let is_outdated = member.release != release || member.is_configured != is_configured;
            if is_outdated && !member.instance.is_running() {
                let successor = self.launch(member.function, release);
                self.members[at] = successor;
            }
        }
    }
}
