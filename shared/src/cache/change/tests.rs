//! Tests of the rules of `apply`, one by one.

use std::time::Duration;

use super::examples::{
    Offer, after, applied, built, dif, entry, fail, publish, request_build, seen, state, take,
    then, token,
};
use super::{Applied, Change, Refused, Seen, apply};
use crate::cache::{Converter, Entry, Kind, Policy, Queue, Ready, current_version};
use crate::domain::{Cause, Missing, Timestamp};

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

fn path(ready: Option<&Ready>) -> Option<&str> {
    ready.map(|ready| ready.blob.path.as_str())
}

fn extend(build: u128, deadline: Timestamp) -> Change {
    Change::Extend {
        token: token(build),
        deadline,
    }
}

fn release(build: u128) -> Change {
    Change::ReleaseInterrupted {
        token: token(build),
    }
}

fn invalidate(name: &str, mark: u128) -> Change {
    Change::Invalidate {
        dif: dif(name),
        mark: token(mark),
    }
}

fn revoke(name: &str, mark: u128) -> Change {
    Change::Revoke {
        dif: dif(name),
        mark: token(mark),
    }
}

fn suspect(entry: &Entry, id: u128) -> Change {
    Change::Suspect {
        blob: entry.ready().unwrap().blob.path.clone(),
        id: token(id),
    }
}

fn confirm_loss(build: u128, entry: &Entry, id: u128) -> Change {
    Change::ConfirmLoss {
        token: token(build),
        blob: entry.ready().unwrap().blob.path.clone(),
        id: token(id),
    }
}

fn dispute(build: u128, entry: &Entry, id: u128) -> Change {
    Change::Dispute {
        token: token(build),
        blob: path(entry.ready()).unwrap().to_owned(),
        id: token(id),
    }
}

fn retire(entry: &Entry, seconds: u64) -> Result<Applied, Refused> {
    apply(entry, &Change::Retire, after(seconds), &Policy::default())
}

// RequestBuild

#[test]
fn a_build_request_is_live_as_long_as_its_message_may_be_delivered() {
    for (queue, lifetime) in [
        (Queue::Eager, 30),
        (Queue::Uploads, 600),
        (Queue::Refresh, 6 * HOUR),
    ] {
        let asked = then(&entry(), &request_build(1, queue), 0);
        assert_eq!(
            applied(&asked, &request_build(2, queue), lifetime - 1),
            Err(Refused::Requested),
            "{queue:?}"
        );
        let again = then(&asked, &request_build(2, queue), lifetime);
        assert_eq!(
            (
                &again.build_request().unwrap().id,
                again.build_request().unwrap().at
            ),
            (&token(2), after(lifetime)),
            "{queue:?}"
        );
    }
}

#[test]
fn an_eager_build_request_replaces_others_and_is_never_replaced() {
    for queue in [Queue::Uploads, Queue::Refresh] {
        let asked = then(&entry(), &request_build(1, queue), 0);
        assert_eq!(
            then(&asked, &request_build(2, Queue::Eager), 1)
                .build_request()
                .unwrap()
                .queue,
            Queue::Eager,
            "{queue:?}"
        );
        let eager = then(&entry(), &request_build(1, Queue::Eager), 0);
        assert_eq!(
            applied(&eager, &request_build(2, queue), 1),
            Err(Refused::Requested),
            "{queue:?}"
        );
    }
    let uploads = then(&entry(), &request_build(1, Queue::Uploads), 0);
    assert_eq!(
        applied(&uploads, &request_build(2, Queue::Refresh), 1),
        Err(Refused::Requested)
    );
    assert_eq!(
        applied(&uploads, &request_build(2, Queue::Uploads), 1),
        Err(Refused::Requested)
    );
}

// TakeLease

#[test]
fn one_holder_at_a_time_has_the_lease_for_at_most_a_minute() {
    let leased = then(&entry(), &take(1), 0);
    assert_eq!(leased.lease().unwrap().until, after(60));
    assert_eq!(applied(&leased, &take(2), 59), Err(Refused::Leased));
    assert_eq!(then(&leased, &take(2), 60).lease().unwrap().token, token(2));
}

#[test]
fn a_lease_ends_with_its_holder_but_never_before_it_began() {
    let take = |deadline| Change::TakeLease {
        holder: "1".to_owned(),
        token: token(1),
        deadline,
    };
    assert_eq!(
        then(&entry(), &take(after(20)), 0).lease().unwrap().until,
        after(20)
    );
    // The clock that set the holder's deadline may be slow.
    assert_eq!(
        then(&entry(), &take(after(20)), 100).lease().unwrap().until,
        after(101)
    );
}

#[test]
fn a_lease_stores_the_mark_that_its_build_sees() {
    let marked = then(&entry(), &invalidate("a", 7), 0);
    assert_eq!(
        then(&marked, &take(1), 1).lease().unwrap().dirty,
        Some(token(7))
    );
}

#[test]
fn an_attempt_is_counted_before_the_work_and_the_fourth_gives_up() {
    let mut entry = then(&entry(), &request_build(1, Queue::Eager), 0);
    for attempt in 1..=3 {
        entry = then(&entry, &take(u128::from(attempt)), u64::from(attempt) * 60);
        assert_eq!(entry.attempts(), attempt);
    }
    let given_up = then(&entry, &take(4), 240);
    let placeholder = given_up.missing().unwrap();
    assert_eq!(
        placeholder.missing,
        Missing::new(
            Cause::Crashed,
            "gave up after 3 attempts: the builder or its parser was killed each time"
        )
    );
    assert_eq!(
        (
            given_up.lease(),
            given_up.build_request(),
            given_up.attempts()
        ),
        (None, None, 0)
    );
    assert!(placeholder.retry_at >= after(240 + DAY));
}

#[test]
fn giving_up_keeps_the_ready_state() {
    let ready = built(1, Offer::Debug, &dif("a"));
    let mut entry = ready.clone();
    for attempt in 1..=4 {
        entry = then(&entry, &take(attempt + 10), 60 * attempt as u64);
    }
    assert_eq!(entry.missing().unwrap().missing.cause, Cause::Crashed);
    assert_eq!(entry.ready(), ready.ready());
}

#[test]
fn an_entry_that_backs_off_gives_no_lease_until_then() {
    let resting = then(&then(&entry(), &take(1), 0), &release(1), 10);
    let until = after(12);
    assert_eq!(resting.not_before(), Some(until));
    assert_eq!(
        applied(&resting, &take(2), 11),
        Err(Refused::BackingOff { until })
    );
    assert!(applied(&resting, &take(2), 12).is_ok());
}

// Extend

#[test]
fn only_the_holder_extends_a_lease_and_only_while_it_lives() {
    let leased = then(&entry(), &take(1), 0);
    assert_eq!(
        then(&leased, &extend(1, after(1000)), 20)
            .lease()
            .unwrap()
            .until,
        after(80)
    );
    assert_eq!(
        applied(&leased, &extend(2, after(1000)), 20),
        Err(Refused::LeaseLost)
    );
    assert_eq!(
        applied(&leased, &extend(1, after(1000)), 60),
        Err(Refused::LeaseLost)
    );
    assert_eq!(
        applied(&entry(), &extend(1, after(1000)), 0),
        Err(Refused::LeaseLost)
    );
}

#[test]
fn extending_never_shortens_a_lease() {
    let leased = then(&entry(), &take(1), 0);
    assert_eq!(
        then(&leased, &extend(1, after(30)), 20)
            .lease()
            .unwrap()
            .until,
        after(60)
    );
}

// Publish

#[test]
fn a_publish_clears_lease_build_request_placeholder_and_attempts() {
    let failed = then(
        &then(&entry(), &take(1), 0),
        &fail(1, Cause::NotFound, &[]),
        1,
    );
    let asked = then(&failed, &request_build(2, Queue::Eager), HOUR * 2);
    let leased = then(&asked, &take(2), HOUR * 2);
    let ready = state(&leased, 2, 1, Offer::Debug, &dif("a"));
    let published = then(
        &leased,
        &publish(2, ready.clone(), &[dif("a"), dif("b")]),
        HOUR * 2 + 1,
    );
    assert_eq!(published.ready(), Some(&ready));
    assert_eq!(
        (
            published.lease(),
            published.build_request(),
            published.missing(),
            published.attempts()
        ),
        (None, None, None, 0)
    );
    assert_eq!(published.considered(), [dif("a"), dif("b")]);
    assert_eq!(
        published.last_used_at(),
        after(HOUR * 2 + 1),
        "the first state of an entry counts as used"
    );
}

#[test]
fn an_expired_or_lost_lease_publishes_nothing() {
    let leased = then(&entry(), &take(1), 0);
    let ready = state(&leased, 1, 1, Offer::Debug, &dif("a"));
    assert_eq!(
        applied(&leased, &publish(1, ready.clone(), &[]), 60),
        Err(Refused::LeaseLost)
    );
    let taken = then(&leased, &take(2), 60);
    assert_eq!(
        applied(&taken, &publish(1, ready.clone(), &[]), 61),
        Err(Refused::LeaseLost)
    );
    let revoked = then(&leased, &revoke("a", 9), 1);
    assert_eq!(
        applied(&revoked, &publish(1, ready, &[]), 2),
        Err(Refused::LeaseLost)
    );
}

#[test]
fn at_the_same_version_an_equal_or_better_state_replaces_and_a_worse_one_does_not() {
    let check = |first: Offer, second: Offer, replaces: bool| {
        let leased = then(&built(1, first, &dif("a")), &take(2), 10);
        let ready = state(&leased, 2, 1, second, &dif("b"));
        let published = then(
            &leased,
            &publish(2, ready.clone(), &[dif("a"), dif("b")]),
            11,
        );
        assert_eq!(
            published.ready() == Some(&ready),
            replaces,
            "{second:?} over {first:?}"
        );
        assert_eq!(published.older(), None);
        // The build is complete although its state was refused for its rank.
        assert_eq!(
            (
                published.lease(),
                published.build_request(),
                published.attempts()
            ),
            (None, None, 0)
        );
        assert_eq!(published.considered(), [dif("a"), dif("b")]);
    };
    check(Offer::Debug, Offer::Debug, true);
    check(Offer::Symbols, Offer::Debug, true);
    check(Offer::Nothing, Offer::Symbols, true);
    check(Offer::Debug, Offer::Symbols, false);
    check(Offer::Symbols, Offer::Nothing, false);
}

#[test]
fn a_higher_version_replaces_the_state_and_keeps_it_for_older_releases() {
    let before = built(1, Offer::Debug, &dif("a"));
    let leased = then(&before, &take(2), 10);
    let ready = state(&leased, 2, 2, Offer::Debug, &dif("a"));
    let published = then(&leased, &publish(2, ready.clone(), &[dif("a")]), 11);
    assert_eq!(
        (published.ready(), published.older()),
        (Some(&ready), before.ready())
    );
}

#[test]
fn a_worse_state_of_a_higher_version_waits_until_the_better_file_is_removed() {
    let before = built(1, Offer::Debug, &dif("better"));
    let leased = then(&before, &take(2), 10);
    let ready = state(&leased, 2, 2, Offer::Symbols, &dif("worse"));
    let kept = then(
        &leased,
        &publish(2, ready.clone(), &[dif("better"), dif("worse")]),
        11,
    );
    assert_eq!((kept.ready(), kept.older()), (before.ready(), None));
    let replaced = then(&leased, &publish(2, ready.clone(), &[dif("worse")]), 11);
    assert_eq!(
        (replaced.ready(), replaced.older()),
        (Some(&ready), before.ready())
    );
}

#[test]
fn a_worse_state_of_a_higher_version_waits_although_not_all_companions_are_considered() {
    let leased = then(&entry(), &take(1), 0);
    let mut better = state(&leased, 1, 1, Offer::Debug, &dif("better"));
    let companions = (0..40).map(|number| dif(&format!("companion-{number}")));
    better.made_from.extend(companions);
    let before = then(&leased, &publish(1, better, &[dif("better")]), 0);
    let leased = then(&before, &take(2), 10);
    let worse = state(&leased, 2, 2, Offer::Symbols, &dif("worse"));
    let publish = |considered: &[&str]| {
        let considered: Vec<_> = considered.iter().map(|name| dif(name)).collect();
        then(&leased, &publish(2, worse.clone(), &considered), 11)
    };
    let kept = publish(&["worse", "better", "companion-0"]);
    assert_eq!(kept.ready(), before.ready());
    let replaced = publish(&["worse", "companion-0"]);
    assert_eq!(replaced.ready(), Some(&worse));
}

#[test]
fn an_older_converter_replaces_the_state_of_a_newer_one_only_if_it_is_better() {
    let check = |first: Offer, second: Offer, replaces: bool| {
        let leased = then(&entry(), &take(1), 0);
        let mut newer = state(&leased, 1, 1, first, &dif("a"));
        newer.converter = Converter(Converter::CURRENT.0 + 1);
        let before = then(&leased, &publish(1, newer, &[dif("a")]), 0);
        let leased = then(&before, &take(2), 10);
        let ready = state(&leased, 2, 1, second, &dif("b"));
        let published = then(
            &leased,
            &publish(2, ready.clone(), &[dif("a"), dif("b")]),
            11,
        );
        assert_eq!(
            published.ready() == Some(&ready),
            replaces,
            "{second:?} over {first:?}"
        );
    };
    check(Offer::Debug, Offer::Debug, false);
    check(Offer::Debug, Offer::Symbols, false);
    check(Offer::Symbols, Offer::Debug, true);
}

#[test]
fn a_lower_version_replaces_nothing_and_is_kept_as_the_older_state() {
    let before = built(2, Offer::Symbols, &dif("a"));
    let leased = then(&before, &take(2), 10);
    let ready = state(&leased, 2, 1, Offer::Debug, &dif("b"));
    let published = then(&leased, &publish(2, ready.clone(), &[dif("b")]), 11);
    assert_eq!(
        (published.ready(), published.older()),
        (before.ready(), Some(&ready))
    );
}

#[test]
fn a_state_of_a_lower_version_is_kept_below_the_published_one() {
    // Version 2 was made from a file that was removed; version 1, from another file, is left.
    let first = built(1, Offer::Debug, &dif("a"));
    let leased = then(&first, &take(2), 10);
    let newer = state(&leased, 2, 2, Offer::Debug, &dif("b"));
    let left = then(
        &then(&leased, &publish(2, newer, &[dif("a"), dif("b")]), 11),
        &revoke("b", 9),
        12,
    );
    assert_eq!(
        (left.ready(), path(left.older())),
        (None, path(first.ready()))
    );
    let publish = |version: u32| {
        let leased = then(&left, &take(3), 20);
        then(
            &leased,
            &publish(
                3,
                state(&leased, 3, version, Offer::Debug, &dif("a")),
                &[dif("a")],
            ),
            21,
        )
    };
    let versions = |entry: &Entry| {
        (
            entry.ready().unwrap().version,
            entry.older().map(|older| older.version),
        )
    };
    assert_eq!(versions(&publish(2)), (2, Some(1)));
    assert_eq!(versions(&publish(1)), (1, None));
    assert_eq!(versions(&publish(0)), (1, Some(0)));
}

#[test]
fn a_build_request_survives_a_publish_that_did_not_see_the_new_file() {
    let leased = then(
        &then(&entry(), &request_build(1, Queue::Eager), 0),
        &take(1),
        1,
    );
    let marked = then(&leased, &invalidate("b", 7), 2);
    let ready = state(&leased, 1, 1, Offer::Symbols, &dif("a"));
    let published = then(&marked, &publish(1, ready, &[dif("a")]), 3);
    assert!(published.ready().is_some() && published.lease().is_none());
    assert_eq!(published.build_request().unwrap().id, token(1));
    // The next build has seen it.
    let leased = then(&published, &take(2), 4);
    let ready = state(&leased, 2, 1, Offer::Debug, &dif("b"));
    assert_eq!(
        then(&leased, &publish(2, ready, &[dif("a"), dif("b")]), 5).build_request(),
        None
    );
}

#[test]
fn a_build_request_survives_a_repeated_mark_over_another_one() {
    // The response to the first mark is lost; its build begins; another file arrives; the first
    // mark is written again.
    let marked = then(&entry(), &invalidate("a", 7), 0);
    let leased = then(&marked, &take(1), 1);
    let again = then(
        &then(&leased, &invalidate("b", 8), 2),
        &invalidate("a", 7),
        3,
    );
    assert_eq!(again.dirty(), Some(&token(7)));
    let ready = state(&leased, 1, 1, Offer::Symbols, &dif("a"));
    let published = then(&again, &publish(1, ready, &[dif("a")]), 4);
    assert!(
        published.build_request().is_some(),
        "the other file was not seen yet"
    );
}

// Fail

#[test]
fn a_failure_is_kept_beside_the_ready_state_and_ends_lease_build_request_and_attempts() {
    let before = built(1, Offer::Symbols, &dif("a"));
    let leased = then(
        &then(&before, &request_build(1, Queue::Refresh), 5),
        &take(2),
        10,
    );
    let failed = then(
        &leased,
        &fail(2, Cause::Malformed, &[dif("a"), dif("b")]),
        11,
    );
    assert_eq!(failed.ready(), before.ready());
    assert_eq!(failed.missing().unwrap().missing.cause, Cause::Malformed);
    assert_eq!(
        (failed.lease(), failed.build_request(), failed.attempts()),
        (None, None, 0)
    );
    assert_eq!(failed.considered(), [dif("a"), dif("b")]);
}

#[test]
fn a_failure_that_did_not_see_the_new_file_releases_the_lease() {
    let leased = then(
        &then(&entry(), &request_build(1, Queue::Eager), 0),
        &take(1),
        1,
    );
    let marked = then(&leased, &invalidate("b", 7), 2);
    let failed = then(&marked, &fail(1, Cause::Malformed, &[dif("a")]), 3);
    assert_eq!(
        (failed.missing(), failed.lease(), failed.attempts()),
        (None, None, 0)
    );
    assert!(failed.build_request().is_some() && failed.considered().is_empty());
}

#[test]
fn only_the_holder_fails_a_build() {
    let leased = then(&entry(), &take(1), 0);
    assert_eq!(
        applied(&leased, &fail(2, Cause::Malformed, &[]), 1),
        Err(Refused::LeaseLost)
    );
    assert_eq!(
        applied(&leased, &fail(1, Cause::Malformed, &[]), 60),
        Err(Refused::LeaseLost)
    );
}

#[test]
fn each_cause_is_cached_for_its_own_time_plus_up_to_a_tenth_of_jitter() {
    let check = |cause: Cause, wait: u64| {
        // The token determines the jitter: none, and the maximum.
        for (build, most) in [(1, wait), (u128::MAX, wait + wait / 10)] {
            let failed = then(
                &then(&entry(), &take(build), 0),
                &fail(build, cause, &[]),
                1,
            );
            let retry_at = failed.missing().unwrap().retry_at;
            assert!(
                (after(1 + wait)..=after(1 + most)).contains(&retry_at),
                "{cause:?}: {retry_at}"
            );
            assert_eq!(build == 1, retry_at == after(1 + wait), "{cause:?}");
        }
    };
    check(Cause::NotFound, HOUR);
    check(Cause::PermissionDenied, HOUR);
    check(Cause::DownloadFailed, 60);
    check(Cause::Timeout, 60);
    check(Cause::Malformed, DAY);
    check(Cause::Unsupported, DAY);
    check(Cause::TooLarge { limit: 1 }, DAY);
    check(Cause::Crashed, DAY);
}

#[test]
fn what_a_source_requests_does_not_apply_to_a_file_that_cannot_be_converted() {
    let asked = Duration::from_secs(700);
    for (cause, wait) in [
        (Cause::NotFound, 700),
        (Cause::DownloadFailed, 700),
        (Cause::Malformed, DAY),
        (Cause::Crashed, DAY),
    ] {
        let failed = Change::Fail {
            token: token(1),
            missing: Missing::new(cause, "no good"),
            seen: Seen {
                retry_after: Some(asked),
                ..seen(&[])
            },
        };
        let failed = then(&then(&entry(), &take(1), 0), &failed, 1);
        let retry_at = failed.missing().unwrap().retry_at;
        assert_eq!(retry_at, after(1 + wait), "{cause:?}");
    }
}

#[test]
fn a_source_that_fails_repeatedly_is_retried_with_growing_delays_up_to_an_hour() {
    let mut entry = entry();
    let mut waits = Vec::new();
    let mut now = 0;
    for _ in 0..8 {
        entry = then(
            &then(&entry, &take(1), now),
            &fail(1, Cause::DownloadFailed, &[]),
            now,
        );
        let wait = entry
            .missing()
            .unwrap()
            .retry_at
            .since(after(now))
            .as_secs();
        waits.push(wait);
        now += wait;
    }
    assert_eq!(waits, [60, 120, 240, 480, 960, 1920, 3600, 3600]);
    // Another cause starts from the beginning.
    let other = then(
        &then(&entry, &take(1), now),
        &fail(1, Cause::Timeout, &[]),
        now,
    );
    assert_eq!(other.missing().unwrap().retry_at, after(now + 60));
}

// Release

#[test]
fn a_released_lease_costs_no_attempt_and_keeps_the_build_request() {
    let leased = then(
        &then(&entry(), &request_build(1, Queue::Eager), 0),
        &take(1),
        1,
    );
    let released = then(&leased, &release(1), 2);
    assert_eq!((released.lease(), released.attempts()), (None, 0));
    assert!(released.build_request().is_some());
    assert_eq!(applied(&leased, &release(2), 2), Err(Refused::LeaseLost));
    assert_eq!(applied(&leased, &release(1), 61), Err(Refused::LeaseLost));
}

#[test]
fn abandoned_leases_count_and_after_enough_of_them_the_entry_is_crashed() {
    let mut entry = then(&entry(), &request_build(1, Queue::Eager), 0);
    let mut now = 1;
    for attempt in 1..=Policy::default().max_attempts {
        let abandon = Change::ReleaseKilled {
            token: token(attempt.into()),
        };
        entry = then(&then(&entry, &take(attempt.into()), now), &abandon, now);
        assert_eq!((entry.lease(), entry.attempts()), (None, attempt));
        assert!(entry.build_request().is_some() && entry.missing().is_none());
        now = entry.not_before().unwrap().as_secs() - after(0).as_secs();
    }
    let crashed = then(&entry, &take(9), now);
    assert_eq!(crashed.missing().unwrap().missing.cause, Cause::Crashed);
    assert_eq!((crashed.lease(), crashed.build_request()), (None, None));
}

#[test]
fn an_entry_names_the_release_that_left_files_until_another_build_ends() {
    let by = Converter::CURRENT;
    let newer = Converter(by.0 + 1);
    let with_unread = |change: Change| match change {
        Change::Publish { token, ready, seen } => Change::Publish {
            token,
            ready,
            seen: Seen {
                has_unread: true,
                ..seen
            },
        },
        other => other,
    };
    let leased = then(&entry(), &take(1), 0);
    let made = state(&leased, 1, 1, Offer::Debug, &dif("a"));
    let partial = then(&leased, &with_unread(publish(1, made, &[dif("a")])), 0);
    assert!(partial.defers_files_to(newer) && !partial.defers_files_to(by));

    let again = then(&partial, &take(2), 0);
    assert!(again.defers_files_to(newer));
    let failed = then(&again, &fail(2, Cause::Malformed, &[dif("a")]), 0);
    assert!(!failed.defers_files_to(newer));

    // Otherwise readers would request builds of a file that kills its builders without a limit.
    let policy = Policy::default();
    let mut killed = partial;
    for attempt in 0..=policy.max_attempts {
        let (build, now) = (10 + u128::from(attempt), u64::from(attempt) * 100);
        killed = then(&killed, &take(build), now);
    }
    assert_eq!(killed.missing().unwrap().missing.cause, Cause::Crashed);
    assert!(!killed.defers_files_to(newer));
}

#[test]
fn a_file_that_an_older_release_cannot_use_beside_a_newer_state_is_left_to_a_newer_release() {
    let newer = Converter(Converter::CURRENT.0 + 1);
    let version = current_version(Kind::SymCache);
    let files = [dif("a"), dif("b")];
    for made in [version, version + 1] {
        let mut with = built(version, Offer::Symbols, &dif("a"));
        let ready = with.ready.as_mut().unwrap();
        (ready.version, ready.converter) = (made, newer);
        let leased = then(&with, &take(2), 0);
        let seen_again = then(&leased, &fail(2, Cause::Malformed, &files[..1]), 0);
        assert!(!seen_again.defers_files_to(newer));

        let failed = then(&leased, &fail(2, Cause::Malformed, &files), 0);
        assert!(failed.defers_files_to(newer));
        let lesser = state(&leased, 2, version, Offer::Symbols, &dif("b"));
        let published = then(&leased, &publish(2, lesser, &files), 0);
        assert!(published.defers_files_to(newer));
        // What it left stays left.
        let again = then(&published, &take(3), 0);
        let failed = then(&again, &fail(3, Cause::Malformed, &files), 0);
        assert!(failed.defers_files_to(newer));
    }
}

#[test]
fn an_entry_backs_off_longer_each_time_its_build_is_released() {
    let (mut entry, mut now, mut rests) = (entry(), 0, Vec::new());
    for _ in 0..8 {
        entry = then(&then(&entry, &take(1), now), &release(1), now);
        let rest = entry.not_before().unwrap().since(after(now)).as_secs();
        rests.push(rest);
        now += rest;
    }
    assert_eq!(rests, [2, 4, 8, 16, 32, 64, 64, 64]);
    let leased = then(&entry, &take(1), now);
    let published = then(
        &leased,
        &publish(1, state(&leased, 1, 1, Offer::Debug, &dif("a")), &[]),
        now,
    );
    assert_eq!(published.not_before(), None);
    let again = then(&then(&published, &take(2), now), &release(2), now);
    assert_eq!(
        again.not_before(),
        Some(after(now + 2)),
        "a successful build resets the back-off"
    );
}

// Touch

#[test]
fn a_use_is_recorded_at_most_hourly_and_only_of_ready_entries() {
    assert_eq!(
        applied(&entry(), &Change::Touch, 2 * HOUR),
        Err(Refused::Nothing)
    );
    let ready = built(1, Offer::Debug, &dif("a"));
    assert_eq!(
        applied(&ready, &Change::Touch, HOUR - 1),
        Err(Refused::TooSoon)
    );
    let touched = then(&ready, &Change::Touch, HOUR);
    assert_eq!(touched.last_used_at(), after(HOUR));
    assert_eq!(
        applied(&touched, &Change::Touch, HOUR + 1),
        Err(Refused::TooSoon)
    );
}

// Invalidate

#[test]
fn a_new_dif_marks_the_entry_clears_its_failures_and_requests_a_build() {
    let failed = then(
        &then(&entry(), &take(1), 0),
        &fail(1, Cause::NotFound, &[]),
        1,
    );
    let marked = then(&failed, &invalidate("a", 7), 2);
    assert_eq!(
        (marked.dirty(), marked.missing(), marked.attempts()),
        (Some(&token(7)), None, 0)
    );
    assert_eq!(
        (
            &marked.build_request().unwrap().id,
            marked.build_request().unwrap().queue
        ),
        (&token(7), Queue::Uploads)
    );

    let resting = then(&then(&entry(), &take(1), 0), &release(1), 1);
    assert_eq!(then(&resting, &invalidate("a", 7), 1).not_before(), None);
}

#[test]
fn a_new_dif_keeps_lease_ready_state_and_a_live_build_request() {
    let ready = built(1, Offer::Symbols, &dif("a"));
    let leased = then(
        &then(&ready, &request_build(1, Queue::Eager), 1),
        &take(2),
        2,
    );
    let marked = then(&leased, &invalidate("b", 7), 3);
    assert_eq!(
        (marked.lease(), marked.ready(), marked.build_request()),
        (leased.lease(), leased.ready(), leased.build_request())
    );
    assert_eq!(marked.dirty(), Some(&token(7)));
}

#[test]
fn a_dif_that_the_last_build_knew_marks_nothing() {
    let ready = built(1, Offer::Debug, &dif("a"));
    assert_eq!(
        applied(&ready, &invalidate("a", 7), 1),
        Err(Refused::Considered)
    );
    let failed = then(
        &then(&entry(), &take(1), 0),
        &fail(1, Cause::Malformed, &[dif("b")]),
        1,
    );
    assert_eq!(
        applied(&failed, &invalidate("b", 7), 2),
        Err(Refused::Considered)
    );
    // Other bytes at the same location are another DIF.
    let mut other = dif("a");
    other.etag = "2".to_owned();
    assert!(
        applied(
            &ready,
            &Change::Invalidate {
                dif: other,
                mark: token(7)
            },
            1
        )
        .is_ok()
    );
}

// Revoke

#[test]
fn a_removal_removes_the_lease_and_every_state_made_from_the_dif() {
    let older = built(1, Offer::Debug, &dif("a"));
    let leased = then(&older, &take(2), 1);
    let newer = state(&leased, 2, 2, Offer::Debug, &dif("a"));
    let both = then(
        &then(&leased, &publish(2, newer, &[dif("a"), dif("b")]), 2),
        &take(3),
        3,
    );
    let revoked = then(&both, &revoke("a", 7), 4);
    assert_eq!(
        (revoked.ready(), revoked.older(), revoked.lease()),
        (None, None, None)
    );
    assert_eq!(
        (revoked.considered(), revoked.attempts()),
        ([dif("b")].as_slice(), 0)
    );
    assert_eq!(
        (revoked.dirty(), &revoked.build_request().unwrap().id),
        (Some(&token(7)), &token(7))
    );
}

#[test]
fn a_removal_keeps_states_made_from_other_difs() {
    let ready = built(1, Offer::Debug, &dif("a"));
    let revoked = then(&ready, &revoke("b", 7), 1);
    assert_eq!(revoked.ready(), ready.ready());
    // The current build may use the DIF, so another build is requested.
    assert!(revoked.build_request().is_some());
}

// Suspect, ConfirmLoss

#[test]
fn an_unreadable_blob_is_marked_suspect_and_requested_and_its_state_stays() {
    let ready = built(1, Offer::Debug, &dif("a"));
    let suspected = then(&ready, &suspect(&ready, 5), 10);
    assert_eq!(suspected.suspect().unwrap().at, after(10));
    assert_eq!(
        (
            &suspected.build_request().unwrap().id,
            suspected.build_request().unwrap().queue
        ),
        (&token(5), Queue::Eager)
    );
    assert_eq!(suspected.ready(), ready.ready());
    let other = Change::Suspect {
        blob: "derived/other".to_owned(),
        id: token(5),
    };
    assert_eq!(applied(&ready, &other, 10), Err(Refused::Nothing));
}

#[test]
fn a_confirmed_loss_removes_the_state_and_requests_a_build() {
    let ready = built(1, Offer::Debug, &dif("a"));
    let leased = then(&then(&ready, &suspect(&ready, 5), 10), &take(2), 20);
    let lost = then(&leased, &confirm_loss(2, &ready, 6), 40);
    assert_eq!((lost.ready(), lost.suspect()), (None, None));
    assert!(lost.build_request().is_some() && lost.missing().is_none());
    assert_eq!(
        applied(&lost, &confirm_loss(2, &ready, 6), 41),
        Err(Refused::Nothing)
    );
}

/// Finding S14 in `docs/protocol.md`.
#[test]
fn only_the_holder_of_the_lease_removes_or_disputes_a_blob() {
    let ready = built(1, Offer::Debug, &dif("a"));
    let suspected = then(&ready, &suspect(&ready, 5), 10);
    let leased = then(&suspected, &take(2), 20);
    // A removal of another file revokes the lease and keeps the state.
    let revoked = then(&leased, &revoke("b", 7), 21);
    let taken_by_another = then(&revoked, &take(3), 22);
    for entry in [&suspected, &revoked, &taken_by_another] {
        assert!(entry.ready().is_some() && entry.suspect().is_some());
        for change in [confirm_loss(2, &ready, 6), dispute(2, &ready, 6)] {
            let refused = applied(entry, &change, 23);
            assert_eq!(refused, Err(Refused::LeaseLost), "{change:?}");
        }
    }
    for change in [confirm_loss(2, &ready, 6), dispute(2, &ready, 6)] {
        assert!(applied(&leased, &change, 23).is_ok(), "{change:?}");
        let expired = applied(&leased, &change, 20 + HOUR);
        assert_eq!(expired, Err(Refused::LeaseLost), "{change:?}");
    }
}

#[test]
fn a_blob_is_removed_or_disputed_at_most_once_an_hour() {
    let again = || {
        let ready = built(1, Offer::Debug, &dif("a"));
        let leased = then(&then(&ready, &take(2), 10), &confirm_loss(2, &ready, 6), 10);
        then(
            &leased,
            &publish(
                2,
                state(&leased, 2, 1, Offer::Debug, &dif("a")),
                &[dif("a")],
            ),
            11,
        )
    };
    let suspected = then(&again(), &suspect(&again(), 5), 12);
    let leased = then(&suspected, &take(3), 10 + HOUR - 1);
    for change in [confirm_loss(3, &again(), 7), dispute(3, &again(), 7)] {
        let soon = applied(&leased, &change, 10 + HOUR - 1);
        assert_eq!(soon, Err(Refused::TooSoon), "{change:?}");
    }
    let disputed = then(&leased, &dispute(3, &again(), 7), 10 + HOUR);
    assert!(disputed.ready().is_some() && disputed.suspect().is_some());
    let taken = then(&leased, &confirm_loss(3, &again(), 7), 10 + HOUR);
    assert_eq!((taken.ready(), taken.suspect()), (None, None));
    assert!(taken.build_request().is_some() && taken.missing().is_none());
    // The same applies to the blob that replaces it.
    for replaced in [disputed, taken] {
        let made = state(&replaced, 3, 1, Offer::Debug, &dif("a"));
        let replaced = then(&replaced, &publish(3, made, &[dif("a")]), 11 + HOUR);
        let suspected = then(&replaced, &suspect(&replaced, 8), 12 + HOUR);
        let leased = then(&suspected, &take(4), 10 + 2 * HOUR - 1);
        for change in [confirm_loss(4, &replaced, 9), dispute(4, &replaced, 9)] {
            let soon = applied(&leased, &change, 10 + 2 * HOUR - 1);
            assert_eq!(soon, Err(Refused::TooSoon), "{change:?}");
            let later = applied(&leased, &change, 10 + 2 * HOUR);
            assert!(later.is_ok(), "{change:?}: {later:?}");
        }
    }
}

#[test]
fn a_disputed_blob_is_replaced_by_the_build_after_an_interrupted_one() {
    let ready = built(1, Offer::Debug, &dif("a"));
    let suspected = then(&ready, &suspect(&ready, 5), 10);
    let disputed = then(&then(&suspected, &take(2), 20), &dispute(2, &ready, 6), 20);
    let interrupted = then(&disputed, &release(2), 30);
    let leased = then(&interrupted, &take(3), 60);
    let disputed = then(&leased, &dispute(3, &ready, 7), 60);
    let made = state(&disputed, 3, 1, Offer::Debug, &dif("a"));
    let replaced = then(&disputed, &publish(3, made, &[dif("a")]), 70);
    assert_ne!(path(replaced.ready()), path(ready.ready()));
    // From then on, the limit applies to the new blob.
    let suspected = then(&replaced, &suspect(&replaced, 8), 80);
    let leased = then(&suspected, &take(4), 20 + HOUR);
    let soon = applied(&leased, &dispute(4, &replaced, 9), 20 + HOUR);
    assert_eq!(soon, Err(Refused::TooSoon));
    let later = applied(&leased, &dispute(4, &replaced, 9), 60 + HOUR);
    assert!(later.is_ok(), "{later:?}");
}

#[test]
fn the_dispute_of_a_blob_ends_when_its_rebuild_is_given_up_and_the_hourly_limit_stays() {
    let ready = built(1, Offer::Debug, &dif("a"));
    let mut entry = then(&ready, &suspect(&ready, 50), 10);
    let mut now = 10;
    let attempts = u128::from(Policy::default().max_attempts);
    // Deriving kills the parser each time.
    for build in 2..2 + attempts {
        let leased = then(&entry, &take(build), now);
        let disputed = then(&leased, &dispute(build, &ready, 60 + build), now);
        let abandon = Change::ReleaseKilled {
            token: token(build),
        };
        entry = then(&disputed, &abandon, now);
        now = entry.not_before().unwrap().as_secs() - after(0).as_secs();
    }
    let crashed = then(&entry, &take(20), now);
    assert_eq!(crashed.missing().unwrap().missing.cause, Cause::Crashed);
    assert_eq!((crashed.suspect(), crashed.lease()), (None, None));
    assert_eq!(path(crashed.ready()), path(ready.ready()));
    let reported = then(&crashed, &suspect(&ready, 51), now + 1);
    let leased = then(&reported, &take(21), now + 2);
    let soon = applied(&leased, &dispute(21, &ready, 90), now + 2);
    assert_eq!(soon, Err(Refused::TooSoon));
}

#[test]
fn a_probe_that_could_not_ask_a_server_does_not_lengthen_the_interval() {
    let probed = |entry: &Entry, build: u128, has_unasked: bool, seconds: u64| {
        let leased = then(entry, &take(build), seconds);
        let ready = leased.ready().cloned();
        let ready = ready.unwrap_or_else(|| state(&leased, build, 1, Offer::Debug, &dif("a")));
        let publish = Change::Publish {
            token: token(build),
            ready: Box::new(ready),
            seen: Seen {
                lacks_companion: true,
                has_unasked,
                ..seen(&[dif("a")])
            },
        };
        then(&leased, &publish, seconds)
    };
    let first = probed(&entry(), 1, false, 0);
    let refused = probed(&first, 2, true, HOUR);
    let unsuccessful = probed(&refused, 3, false, 2 * HOUR);
    let probes = [&first, &refused, &unsuccessful].map(|entry| {
        let probes = entry.probes().unwrap();
        (probes.at, probes.fruitless)
    });
    assert_eq!(
        probes,
        [(after(0), 0), (after(HOUR), 0), (after(2 * HOUR), 1)]
    );
}

/// Finding S11 in `docs/protocol.md`.
#[test]
fn an_older_converter_replaces_a_disputed_state_of_a_newer_one_and_leaves_the_files_to_it() {
    let version = current_version(Kind::SymCache);
    let mut newer = built(version, Offer::Debug, &dif("a"));
    newer.ready.as_mut().unwrap().converter = Converter(Converter::CURRENT.0 + 1);
    let taken = |entry: &Entry| then(entry, &take(2), 13);
    let build = |leased: &Entry| {
        let made = state(leased, 2, version, Offer::Debug, &dif("a"));
        then(leased, &publish(2, made, &[dif("a")]), 21)
    };
    let kept = build(&taken(&newer));
    assert_eq!(
        (path(kept.ready()), kept.deferred_by),
        (path(newer.ready()), None)
    );
    let suspected = then(&newer, &suspect(&newer, 5), 12);
    let disputed = then(&taken(&suspected), &dispute(2, &newer, 7), 13);
    let replaced = build(&disputed);
    assert_ne!(path(replaced.ready()), path(newer.ready()));
    assert_eq!(replaced.deferred_by, Some(Converter::CURRENT));

    // Another report does not make the build that is at work forget the dispute.
    let replaced = build(&then(&disputed, &suspect(&newer, 9), 14));
    assert_ne!(path(replaced.ready()), path(newer.ready()));
}

/// Finding P4 in `docs/protocol.md`.
#[test]
fn the_failure_of_the_better_file_is_kept_beside_the_state_of_a_worse_one() {
    let leased = then(&entry(), &take(1), 0);
    let made = state(&leased, 1, 1, Offer::Symbols, &dif("b"));
    let mut published = publish(1, made, &[dif("a"), dif("b")]);
    if let Change::Publish { seen, .. } = &mut published {
        seen.better_failed = Some(Missing::malformed("bits flipped"));
    }
    let lesser = then(&leased, &published, 1);
    assert_eq!(path(lesser.ready()), path(lesser.ready()));
    assert!(lesser.ready().is_some() && lesser.build_request().is_none());
    assert_eq!(
        lesser.missing().unwrap().missing,
        Missing::malformed("bits flipped")
    );
    // The next upload removes the reason.
    let marked = then(&lesser, &invalidate("c", 9), 2);
    assert_eq!(marked.missing(), None);
}

/// Finding P4 in `docs/protocol.md`.
#[test]
fn a_state_that_is_refused_because_it_is_worse_leaves_a_reason() {
    let ready = built(1, Offer::Debug, &dif("a"));
    let leased = then(&ready, &take(2), 10);
    let worse = state(&leased, 2, 2, Offer::Symbols, &dif("b"));
    let refused = then(&leased, &publish(2, worse, &[dif("a"), dif("b")]), 11);
    assert_eq!(path(refused.ready()), path(ready.ready()));
    assert_eq!(refused.missing().unwrap().missing.cause, Cause::Malformed);
}

/// Finding P16 in `docs/protocol.md`.
#[test]
fn a_dif_that_was_absent_in_a_build_is_tried_when_it_returns() {
    let failed = |cause| {
        then(
            &then(&entry(), &take(1), 0),
            &fail(1, cause, &[dif("a")]),
            0,
        )
    };
    let returned = invalidate("a", 9);
    assert!(
        then(&failed(Cause::NotFound), &returned, 1)
            .build_request()
            .is_some()
    );
    assert_eq!(
        applied(&failed(Cause::Malformed), &returned, 1),
        Err(Refused::Considered)
    );
}

/// Finding L1 in `docs/protocol.md`.
#[test]
fn giving_up_is_recognized_by_its_effect() {
    let mut entry = entry();
    for build in 1..=3 {
        entry = then(&entry, &take(build), u64::from(build as u32) * 100);
    }
    let given_up = then(&entry, &take(4), 1000);
    assert_eq!(given_up.missing().unwrap().missing.cause, Cause::Crashed);
    assert!(take(4).has_effect(&given_up) && !take(5).has_effect(&given_up));
}

/// Finding L4 in `docs/protocol.md`.
#[test]
fn a_state_that_only_an_older_release_reads_is_in_use() {
    let ready = built(1, Offer::Debug, &dif("a"));
    let leased = then(&ready, &take(2), 10);
    let newer = state(&leased, 2, 2, Offer::Debug, &dif("b"));
    let both = then(&leased, &publish(2, newer, &[dif("b")]), 11);
    let older = then(&both, &revoke("b", 7), 12);
    assert!(older.ready().is_none() && older.older().is_some());
    let used = then(&older, &Change::Touch, 2 * HOUR);
    assert_eq!(used.last_used_at(), after(2 * HOUR));
    assert_eq!(retire(&used, 2 * DAY), Err(Refused::InUse));
}

#[test]
fn a_lease_that_is_handed_over_can_be_taken_at_once() {
    let leased = then(
        &then(&entry(), &request_build(1, Queue::Eager), 0),
        &take(1),
        0,
    );
    let handed_over = then(&leased, &Change::ReleaseUntried { token: token(1) }, 1);
    assert_eq!((handed_over.lease(), handed_over.attempts()), (None, 0));
    assert!(handed_over.build_request().is_some());
    assert!(then(&handed_over, &take(2), 1).lease().is_some());
}

#[test]
fn a_blob_published_since_is_not_suspect() {
    let ready = built(1, Offer::Debug, &dif("a"));
    let leased = then(&then(&ready, &suspect(&ready, 5), 10), &take(2), 11);
    let rebuilt = then(
        &leased,
        &publish(
            2,
            state(&leased, 2, 1, Offer::Debug, &dif("a")),
            &[dif("a")],
        ),
        12,
    );
    assert_eq!(rebuilt.suspect(), None);
}

// Housekeeping

#[test]
fn a_lease_is_cleared_only_after_it_has_expired() {
    let leased = then(&entry(), &take(1), 0);
    assert_eq!(
        applied(&leased, &Change::ClearLease, 59),
        Err(Refused::Nothing)
    );
    let cleared = then(&leased, &Change::ClearLease, 60);
    assert_eq!(
        (cleared.lease(), cleared.attempts()),
        (None, 1),
        "the holder crashed, so the attempt counts"
    );
    assert_eq!(
        applied(&entry(), &Change::ClearLease, 60),
        Err(Refused::Nothing)
    );
}

#[test]
fn an_older_state_is_dropped_a_day_after_the_newer_one_was_made_but_not_during_a_build() {
    let current = current_version(Kind::SymCache);
    let older = built(current - 1, Offer::Debug, &dif("a"));
    assert_eq!(
        applied(&older, &Change::DropOlder, 10 * DAY),
        Err(Refused::Nothing)
    );
    let leased = then(&older, &take(2), 1);
    let newer = state(&leased, 2, current, Offer::Debug, &dif("a"));
    let both = then(&leased, &publish(2, newer, &[dif("a")]), 2);
    assert_eq!(
        applied(&both, &Change::DropOlder, DAY - 1),
        Err(Refused::Nothing)
    );
    let leased = then(&both, &take(3), DAY);
    // A lease that was not cleared may be live by its holder's clock.
    for at in [DAY + 1, 10 * DAY] {
        let refused = applied(&leased, &Change::DropOlder, at);
        assert_eq!(refused, Err(Refused::InUse), "at {at} s");
    }
    let cleared = then(&leased, &Change::ClearLease, 10 * DAY);
    assert_eq!(
        then(&cleared, &Change::DropOlder, 10 * DAY).older(),
        None,
        "the lease was cleared"
    );
    let dropped = then(&both, &Change::DropOlder, DAY);
    assert_eq!((dropped.older(), dropped.ready()), (None, both.ready()));
}

#[test]
fn an_older_state_is_used_by_a_build_that_reads_no_newer_one() {
    let current = current_version(Kind::SymCache);
    let mine = built(current, Offer::Debug, &dif("a"));
    let leased = then(&mine, &take(2), 1);
    let newer = state(&leased, 2, current + 1, Offer::Debug, &dif("a"));
    let both = then(&leased, &publish(2, newer, &[dif("a")]), 2);
    assert_eq!(
        applied(&both, &Change::DropOlder, 10 * DAY),
        Err(Refused::InUse)
    );
}

#[test]
fn a_cache_is_retired_after_seven_days_without_use() {
    let ready = built(1, Offer::Debug, &dif("a"));
    assert_eq!(retire(&ready, 7 * DAY - 1), Err(Refused::InUse));
    assert_eq!(retire(&ready, 7 * DAY), Ok(Applied::Retired));
    let touched = then(&ready, &Change::Touch, DAY);
    assert_eq!(retire(&touched, 7 * DAY), Err(Refused::InUse));
    assert_eq!(retire(&touched, 8 * DAY), Ok(Applied::Retired));
}

#[test]
fn a_placeholder_is_retired_a_day_after_its_retry_time_and_an_empty_entry_after_a_day() {
    let failed = then(
        &then(&entry(), &take(1), 0),
        &fail(1, Cause::NotFound, &[]),
        0,
    );
    assert_eq!(retire(&failed, HOUR + DAY - 1), Err(Refused::InUse));
    assert_eq!(retire(&failed, HOUR + DAY), Ok(Applied::Retired));
    assert_eq!(retire(&entry(), DAY - 1), Err(Refused::InUse));
    assert_eq!(retire(&entry(), DAY), Ok(Applied::Retired));
}

#[test]
fn an_entry_with_a_lease_or_build_request_is_not_retired() {
    let ready = built(1, Offer::Debug, &dif("a"));
    let leased = then(&ready, &take(2), 7 * DAY);
    assert_eq!(retire(&leased, 7 * DAY + 59), Err(Refused::InUse));
    assert_eq!(retire(&leased, 7 * DAY + 60), Ok(Applied::Retired));
    let asked = then(&ready, &request_build(2, Queue::Eager), 7 * DAY);
    assert_eq!(retire(&asked, 7 * DAY + 29), Err(Refused::InUse));
    assert_eq!(retire(&asked, 7 * DAY + 30), Ok(Applied::Retired));
}

// After an ambiguous write

#[test]
fn each_change_is_recognized_by_its_effect_and_not_before() {
    let ready = built(1, Offer::Debug, &dif("a"));
    let leased = then(&ready, &take(2), 1);
    let check = |before: &Entry, change: &Change| {
        let next = then(before, change, 2);
        assert!(!change.has_effect(before), "before: {change:?}");
        assert!(change.has_effect(&next), "after: {change:?}");
        // A touch in between, or another build request, does not hide it.
        let disturbed = then(&next, &Change::Touch, 2 * HOUR);
        assert!(change.has_effect(&disturbed), "disturbed: {change:?}");
    };
    check(&ready, &request_build(3, Queue::Eager));
    check(&ready, &take(2));
    check(
        &leased,
        &publish(
            2,
            state(&leased, 2, 1, Offer::Debug, &dif("a")),
            &[dif("a")],
        ),
    );
    check(&leased, &fail(2, Cause::Malformed, &[dif("a")]));
    check(&leased, &release(2));
    check(&ready, &invalidate("b", 7));
    check(&ready, &suspect(&ready, 5));
    // These remove the state that a touch needs.
    for change in [revoke("a", 7), confirm_loss(2, &leased, 6)] {
        assert!(
            !change.has_effect(&leased) && change.has_effect(&then(&leased, &change, 2)),
            "{change:?}"
        );
    }
}

#[test]
fn a_state_that_is_published_again_is_recognized_by_the_end_of_its_lease() {
    let ready = built(1, Offer::Debug, &dif("a"));
    let asked = then(&ready, &request_build(2, Queue::Eager), 1);
    let leased = then(&asked, &take(2), 1);
    let again = publish(2, ready.ready().unwrap().clone(), &[dif("a")]);
    assert!(!again.has_effect(&leased));
    let published = then(&leased, &again, 2);
    assert!(again.has_effect(&published));
    let next_holder = then(&published, &take(3), 3);
    assert!(again.has_effect(&next_holder));
}

#[test]
fn a_change_without_a_visible_effect_is_refused_when_repeated() {
    let ready = built(1, Offer::Debug, &dif("a"));
    let touched = then(&ready, &Change::Touch, HOUR);
    assert!(!Change::Touch.has_effect(&touched));
    assert_eq!(
        applied(&touched, &Change::Touch, HOUR),
        Err(Refused::TooSoon)
    );
    // Extending twice has the same effect as extending once.
    let leased = then(&ready, &take(2), 1);
    let once = then(&leased, &extend(2, after(1000)), 20);
    assert_eq!(then(&once, &extend(2, after(1000)), 20), once);
}
