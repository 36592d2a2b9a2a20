//! Invariants of every stored entry. The stores of the tests check them after each write.

use super::Entry;
use super::change::Seen;
use crate::domain::Missing;

/// Returns the violated invariants of an entry, one line each; empty for a valid entry.
pub fn violations(entry: &Entry) -> Vec<&'static str> {
    let mut violations = Vec::new();
    let mut must = |holds: bool, what: &'static str| {
        if !holds {
            violations.push(what);
        }
    };
    if let Some(ready) = &entry.ready {
        must(
            !ready.made_from.is_empty(),
            "a ready state names the DIFs that it was made from",
        );
        must(
            ready.quality == ready.rank.quality(),
            "the quality is that of the rank",
        );
        let (blob, key) = (&ready.blob.path, entry.module.entry(entry.kind));
        must(
            super::ItemKey::of_blob(blob) == Some(key),
            "the path of a blob leads to its entry's key",
        );
    }
    if let Some(older) = &entry.older {
        let below = entry
            .ready
            .as_ref()
            .is_none_or(|ready| older.version < ready.version);
        must(
            below,
            "an older state has a lower version than the ready one",
        );
    }
    if let Some(placeholder) = &entry.missing {
        must(
            placeholder.missing.detail.len() <= Missing::MAX_DETAIL_BYTES,
            "a detail is at most `MAX_DETAIL_BYTES` long",
        );
    }
    if let Some(lease) = &entry.lease {
        must(entry.attempts > 0, "a lease counts as an attempt");
        must(!lease.holder.is_empty(), "a lease names its holder");
    }
    must(
        entry.candidates.len() <= Seen::MAX_CANDIDATES,
        "an entry keeps at most `MAX_CANDIDATES` candidates",
    );
    violations
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::cache::change::examples::{
        BEGIN, Offer, dif, entry, fail, publish, state, take, token,
    };
    use crate::cache::{
        Applied, Capabilities, Change, Decision, Policy, Queue, Refused, ReleaseNumbers, apply,
        decide,
    };
    use crate::domain::{Cause, DifRef, Timestamp};

    /// The DIFs that are uploaded and removed, the best last.
    const DIFS: [(&str, Offer); 3] = [
        ("c", Offer::Nothing),
        ("b", Offer::Symbols),
        ("a", Offer::Debug),
    ];

    /// One step of an actor.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Pass(u64),
        RequestBuild(Queue),
        Take(usize),
        Extend(usize),
        /// Publishes the best DIF that existed when the builder took the lease.
        Publish(usize),
        Fail(usize, Cause),
        Release(usize),
        Touch,
        Upload(usize),
        Remove(usize),
        Suspect,
        ConfirmLoss(usize),
        ClearLease,
        DropOlder,
        Retire,
    }

    fn step() -> impl Strategy<Value = Step> {
        let builder = 0..3_usize;
        let seconds = prop::sample::select(vec![
            0,
            1,
            2,
            10,
            19,
            30,
            59,
            60,
            61,
            600,
            3600,
            86_400,
            7 * 86_400,
        ]);
        let queue = prop::sample::select(vec![Queue::Eager, Queue::Uploads, Queue::Refresh]);
        let cause = prop::sample::select(vec![
            Cause::NotFound,
            Cause::DownloadFailed,
            Cause::Malformed,
            Cause::TooLarge { limit: 1 },
            Cause::Crashed,
        ]);
        prop_oneof![
            4 => seconds.prop_map(Step::Pass),
            2 => queue.prop_map(Step::RequestBuild),
            5 => builder.clone().prop_map(Step::Take),
            1 => builder.clone().prop_map(Step::Extend),
            6 => builder.clone().prop_map(Step::Publish),
            2 => (builder.clone(), cause).prop_map(|(builder, cause)| Step::Fail(builder, cause)),
            1 => builder.clone().prop_map(Step::Release),
            1 => Just(Step::Touch),
            3 => (0..DIFS.len()).prop_map(Step::Upload),
            2 => (0..DIFS.len()).prop_map(Step::Remove),
            1 => Just(Step::Suspect),
            1 => builder.prop_map(Step::ConfirmLoss),
            1 => Just(Step::ClearLease),
            1 => Just(Step::DropOlder),
            1 => Just(Step::Retire),
        ]
    }

    /// A build, from its builder's point of view.
    #[derive(Clone)]
    struct Build {
        token: u128,
        seen: Vec<usize>,
        /// The end of the lease according to the builder; `None` if the lease was ended or revoked.
        until: Option<Timestamp>,
    }

    /// The world around one entry. Builder 0 is an older release that makes version 1; the others
    /// make version 2.
    struct World {
        entry: Entry,
        now: Timestamp,
        uploaded: [bool; 3],
        builds: BTreeMap<usize, Build>,
        drawn: u128,
    }

    impl World {
        fn new() -> Self {
            Self {
                entry: entry(),
                now: BEGIN,
                uploaded: [false; 3],
                builds: BTreeMap::new(),
                drawn: 0,
            }
        }

        fn draw(&mut self) -> u128 {
            self.drawn += 1;
            self.drawn
        }

        fn try_apply(&mut self, change: &Change) -> Result<(), Refused> {
            match apply(&self.entry, change, self.now, &Policy::default())? {
                Applied::Changed(next) => self.entry = next,
                Applied::Retired => {
                    self.entry = entry();
                    self.entry.last_used_at = self.now;
                }
            }
            Ok(())
        }

        fn dif(index: usize) -> DifRef {
            dif(DIFS[index].0)
        }

        fn of(dif: &DifRef) -> usize {
            (0..DIFS.len())
                .find(|index| World::dif(*index) == *dif)
                .unwrap()
        }

        /// Returns whether the builder's lease is live, judged without the record.
        fn is_holder(&self, builder: usize) -> bool {
            self.builds
                .get(&builder)
                .and_then(|build| build.until)
                .is_some_and(|until| self.now < until)
        }

        fn end_build(&mut self, builder: usize) {
            if let Some(build) = self.builds.get_mut(&builder) {
                build.until = None;
            }
        }

        fn step(&mut self, step: Step) {
            let before = self.entry.clone();
            match step {
                Step::Pass(seconds) => {
                    self.now = Timestamp::from_secs(self.now.as_secs() + seconds);
                }
                Step::RequestBuild(queue) => {
                    let id = token(self.draw());
                    let _ = self.try_apply(&Change::RequestBuild { id, queue });
                    assert_eq!(before.ready, self.entry.ready);
                }
                Step::Take(builder) => {
                    let drawn = self.draw();
                    let taken = self.try_apply(&take(drawn));
                    assert_eq!(before.ready, self.entry.ready);
                    if taken.is_ok() {
                        self.builds
                            .values_mut()
                            .for_each(|build| build.until = None);
                        let seen = (0..DIFS.len())
                            .filter(|index| self.uploaded[*index])
                            .collect();
                        let until = self.entry.lease.as_ref().map(|lease| lease.until);
                        self.builds.insert(
                            builder,
                            Build {
                                token: drawn,
                                seen,
                                until,
                            },
                        );
                    }
                }
                Step::Extend(builder) => {
                    let Some(build) = self.builds.get(&builder).cloned() else {
                        return;
                    };
                    let change = Change::Extend {
                        token: token(build.token),
                        deadline: self.now.plus(crate::cache::LEASE_LENGTH),
                    };
                    let extended = self.try_apply(&change);
                    assert_eq!(
                        extended.is_ok(),
                        self.is_holder(builder),
                        "only the lease holder can extend the lease"
                    );
                    if extended.is_ok() {
                        self.builds.get_mut(&builder).unwrap().until =
                            self.entry.lease.as_ref().map(|lease| lease.until);
                    }
                    assert_eq!(before.ready, self.entry.ready);
                }
                Step::Publish(builder) => self.publish(builder, &before),
                Step::Fail(builder, cause) => {
                    let Some(build) = self.builds.get(&builder).cloned() else {
                        return;
                    };
                    let seen: Vec<DifRef> =
                        build.seen.iter().map(|index| World::dif(*index)).collect();
                    let failed = self.try_apply(&fail(build.token, cause, &seen));
                    assert_eq!(
                        failed.is_ok(),
                        self.is_holder(builder),
                        "only the lease holder can report a failure"
                    );
                    assert_eq!(
                        (&before.ready, &before.older),
                        (&self.entry.ready, &self.entry.older)
                    );
                    self.check_request_of(builder, &before, failed);
                }
                Step::Release(builder) => {
                    let Some(build) = self.builds.get(&builder).cloned() else {
                        return;
                    };
                    let released = self.try_apply(&Change::ReleaseInterrupted {
                        token: token(build.token),
                    });
                    assert_eq!(
                        released.is_ok(),
                        self.is_holder(builder),
                        "only the lease holder can release the lease"
                    );
                    assert_eq!(
                        (&before.ready, &before.build_request),
                        (&self.entry.ready, &self.entry.build_request)
                    );
                    if released.is_ok() {
                        self.end_build(builder);
                    }
                }
                Step::Touch => {
                    let _ = self.try_apply(&Change::Touch);
                    assert_eq!(before.ready, self.entry.ready);
                }
                Step::Upload(index) => {
                    self.uploaded[index] = true;
                    let mark = token(self.draw());
                    let marked = self.try_apply(&Change::Invalidate {
                        dif: World::dif(index),
                        mark,
                    });
                    assert_eq!(before.ready, self.entry.ready);
                    // An upload is never lost: the last build considered it, or a build that will
                    // is requested.
                    assert!(marked.is_err() || self.entry.build_request.is_some());
                }
                Step::Remove(index) => {
                    self.uploaded[index] = false;
                    let mark = token(self.draw());
                    self.try_apply(&Change::Revoke {
                        dif: World::dif(index),
                        mark,
                    })
                    .unwrap();
                    self.builds
                        .values_mut()
                        .for_each(|build| build.until = None);
                }
                Step::Suspect => {
                    if let Some(ready) = &before.ready {
                        let id = token(self.draw());
                        self.try_apply(&Change::Suspect {
                            blob: ready.blob.path.clone(),
                            id,
                        })
                        .unwrap();
                        assert_eq!(before.ready, self.entry.ready);
                    }
                }
                Step::ConfirmLoss(builder) => {
                    let build = self.builds.get(&builder).cloned();
                    if let (Some(ready), Some(build)) = (&before.ready, build) {
                        let id = token(self.draw());
                        let confirmed = self.try_apply(&Change::ConfirmLoss {
                            token: token(build.token),
                            blob: ready.blob.path.clone(),
                            id,
                        });
                        // At most once an hour, however much is lost.
                        let is_too_soon = |at| self.now.since(at) < Policy::CONFIRM_LOSS_INTERVAL;
                        let expected = if !self.is_holder(builder) {
                            Err(Refused::LeaseLost)
                        } else if before.lost_at.is_some_and(is_too_soon) {
                            Err(Refused::TooSoon)
                        } else {
                            Ok(())
                        };
                        assert_eq!(confirmed, expected);
                    }
                }
                Step::ClearLease => {
                    let _ = self.try_apply(&Change::ClearLease);
                    assert_eq!(
                        (&before.ready, &before.older),
                        (&self.entry.ready, &self.entry.older)
                    );
                }
                Step::DropOlder => {
                    let _ = self.try_apply(&Change::DropOlder);
                    assert_eq!(before.ready, self.entry.ready);
                }
                Step::Retire => {
                    let held = (0..3).any(|builder| self.is_holder(builder));
                    if self.try_apply(&Change::Retire).is_ok() {
                        assert!(!held, "an entry is not retired while it is being built");
                        self.builds
                            .values_mut()
                            .for_each(|build| build.until = None);
                    }
                }
            }
            self.check();
        }

        fn publish(&mut self, builder: usize, before: &Entry) {
            let Some(build) = self.builds.get(&builder).cloned() else {
                return;
            };
            let Some(best) = build.seen.iter().max().copied() else {
                return;
            };
            let seen: Vec<DifRef> = build.seen.iter().map(|index| World::dif(*index)).collect();
            let version = if builder == 0 { 1 } else { 2 };
            let built = state(
                before,
                build.token,
                version,
                DIFS[best].1,
                &World::dif(best),
            );
            let published = self.try_apply(&publish(build.token, built.clone(), &seen));
            assert_eq!(
                published.is_ok(),
                self.is_holder(builder),
                "only the lease holder can publish"
            );
            match (&before.ready, &self.entry.ready) {
                (None, after) => assert!(published.is_err() || after.is_some()),
                (Some(_), None) => panic!("publishing removed the ready state"),
                (Some(before), Some(after)) => {
                    assert!(
                        after.version >= before.version,
                        "an older version replaced a newer one"
                    );
                    let better_exists = seen.contains(&before.made_from[0]);
                    assert!(
                        !better_exists || after.rank <= before.rank,
                        "a worse state replaced a better one"
                    );
                }
            }
            self.check_request_of(builder, before, published);
        }

        /// A completed build removes the build request only if no DIF arrived since it began.
        fn check_request_of(&mut self, builder: usize, before: &Entry, ended: Result<(), Refused>) {
            if ended.is_err() {
                assert_eq!(*before, self.entry);
                return;
            }
            self.end_build(builder);
            let had_seen = before
                .lease
                .as_ref()
                .is_some_and(|lease| lease.dirty == before.dirty);
            assert_eq!(
                self.entry.build_request.is_some(),
                !had_seen && before.build_request.is_some()
            );
        }

        fn check(&self) {
            assert_eq!(violations(&self.entry), Vec::<&str>::new());
            for ready in self.entry.ready.iter().chain(&self.entry.older) {
                assert!(
                    self.uploaded[World::of(&ready.made_from[0])],
                    "a state made from a removed DIF is served"
                );
            }
            let reader = Capabilities {
                transcoded: Vec::new(),
                numbers: ReleaseNumbers::CURRENT,
                limits: vec![1],
            };
            let mut now = self.now;
            for _ in 0..4 {
                match decide(Some(&self.entry), &reader, now) {
                    Decision::Wait { until } => {
                        assert!(
                            until > now && until <= self.now.plus(crate::cache::LEASE_LENGTH * 2),
                            "a wait is short"
                        );
                        now = until;
                    }
                    _ => return,
                }
            }
            panic!("waits forever: {:?}", self.entry);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn an_entry_stays_valid_after_any_sequence_of_steps(steps in prop::collection::vec(step(), 1..60)) {
            let mut world = World::new();
            for step in steps {
                world.step(step);
            }
        }
    }

    #[test]
    fn an_inconsistent_entry_is_reported_with_the_reason() {
        let mut unsound = entry();
        let mut ready = state(&unsound, 1, 1, Offer::Debug, &dif("a"));
        ready.made_from.clear();
        ready.blob.path = "derived/elsewhere".to_owned();
        unsound.older = Some(ready.clone());
        unsound.ready = Some(ready);
        assert_eq!(
            violations(&unsound),
            [
                "a ready state names the DIFs that it was made from",
                "the path of a blob leads to its entry's key",
                "an older state has a lower version than the ready one",
            ]
        );
    }
}
