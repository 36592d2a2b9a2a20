//! What `docs/protocol.md` says always holds, checked at each write of an entry.

use std::time::Duration;

use symdepot::cache::{Entry, ItemKey, Kind, Placeholder, Ready, Token, violations};
use symdepot::domain::{Cause, SourceKey};

use super::stores::{Stores, Writer, states};
use super::{Moment, describe, servers, timestamp};

/// Requests for an entry within this time are concurrent: they cause one derivation.
const CONCURRENT: Duration = Duration::from_secs(60);

/// A use is recorded when the last recorded one is 60 to 90 minutes old, and clocks differ by two
/// minutes.
const RECORDED_WITHIN: Duration = Duration::from_secs(92 * 60);

/// A blob that readers cannot read is replaced once in this time: an hour, by clocks that differ by
/// two minutes.
const REPLACED_AFTER: Duration = Duration::from_secs(58 * 60);

/// The most builds of an entry in a row that end without a change, each within [`CONCURRENT`] after
/// the last one.
const MAX_UNCHANGED_BUILDS: u32 = 3;

/// A build that ended with a ready state.
#[derive(Clone, Debug)]
pub(super) struct Published {
    at: Moment,
    /// The mark that it has seen.
    seen: Option<Token>,
    /// How often in a row the state was derived again from the same files.
    repetitions: u32,
}

/// Builds of an entry in a row that ended without a change.
#[derive(Clone, Debug)]
pub(super) struct UnchangedBuilds {
    last: Moment,
    times: u32,
    /// The mark that they have seen: each upload is a reason to build.
    seen: Option<Token>,
}

/// A property that does not hold, as `docs/protocol.md` names it, and what was seen.
type Violation = (&'static str, String);

impl Stores {
    /// Checks a change of an entry.
    pub(super) fn check_entry(
        &self,
        writer: &Writer,
        key: &ItemKey,
        before: Option<&Entry>,
        entry: &Entry,
    ) {
        let mut failures: Vec<Violation> = violations(entry)
            .into_iter()
            .map(|violation| ("an invariant of an entry", violation.to_owned()))
            .collect();
        if entry.module().entry(entry.kind()) != *key {
            failures.push(("3: the key of an entry", "it is another's".to_owned()));
        }
        failures.extend(self.check_published(writer, before, entry));
        failures.extend(check_rank(before, entry));
        failures.extend(self.check_repetition(key, before, entry));
        failures.extend(self.check_unchanged_builds(writer, key, before, entry));
        failures.extend(self.check_replacement(key, before, entry));
        failures.extend(check_end(writer, before, entry));
        failures.extend(check_removed(writer, before, entry));
        failures.extend(check_placeholder(writer, before, entry));
        if let Some((property, detail)) = failures.into_iter().next() {
            let module = describe::module(entry.module());
            let text = describe::entry(entry);
            let by = &writer.instance;
            let detail = format!("{module} {} by {by}: {detail}: {text}", entry.kind());
            self.ledger().fail(property, detail);
        }
    }

    /// Checks the states that were published just now.
    fn check_published(
        &self,
        writer: &Writer,
        before: Option<&Entry>,
        entry: &Entry,
    ) -> Vec<Violation> {
        let mut failures = Vec::new();
        let former: Vec<&Ready> = before.into_iter().flat_map(states).collect();
        let is_known = |ready: &&Ready| {
            let mut former = former.iter();
            former.any(|known| known.blob.path == ready.blob.path)
        };
        for ready in states(entry).filter(|ready| !is_known(ready)) {
            let blob = self.caches.peek(&ready.blob.path);
            let is_damaged = self.ledger().damaged.contains(&ready.blob.path);
            if !is_damaged && blob.is_none_or(|blob| blob.len() as u64 != ready.blob.bytes) {
                failures.push(("1: a state is published with its blob", String::new()));
            }
            let lease = before.and_then(Entry::lease);
            if lease.is_none_or(|lease| *lease.holder != *writer.invocation) {
                let held = lease.map_or("no lease", |lease| &lease.holder);
                let detail = format!("{held} has the lease, {} publishes", writer.invocation);
                failures.push(("2: only the holder of the lease publishes", detail));
            }
        }
        failures
    }

    /// Checks that no entry is derived again from the same files for concurrent requests. A suspect
    /// blob is replaced.
    fn check_repetition(
        &self,
        key: &ItemKey,
        before: Option<&Entry>,
        entry: &Entry,
    ) -> Option<Violation> {
        let is = entry.ready()?;
        let was = before.and_then(Entry::ready);
        if was.is_some_and(|was| was.blob.path == is.blob.path) {
            return None;
        }
        // A file that came during a build is considered by the next one.
        let seen = before.and_then(Entry::lease)?.dirty.clone();
        let mut ledger = self.ledger();
        let now = ledger.now;
        let last = ledger.published.get(key).cloned();
        let is_concurrent = last.as_ref().is_some_and(|last| {
            last.seen == seen
                && now < last.at.saturating_add(CONCURRENT)
                && was.is_some_and(|was| is_made_alike(was, is))
                && before.is_some_and(|before| before.suspect().is_none())
        });
        let repetitions = match &last {
            Some(last) if is_concurrent => last.repetitions + 1,
            _ => 0,
        };
        let published = Published {
            at: now,
            seen,
            repetitions,
        };
        ledger.published.insert(key.clone(), published);
        // A reader of another release requests a build of its own once.
        let allowed = u32::from(ledger.has_deployed);
        (repetitions > allowed).then(|| {
            let seconds = last.map_or(0, |last| (now - last.at).as_secs());
            let detail = format!("derived again after {seconds} s, {repetitions} times in a row");
            ("8: concurrent requests cause one derivation", detail)
        })
    }
}

impl Stores {
    /// Checks that readers do not cause builds again and again that find nothing to do.
    fn check_unchanged_builds(
        &self,
        writer: &Writer,
        key: &ItemKey,
        before: Option<&Entry>,
        entry: &Entry,
    ) -> Option<Violation> {
        let before = before?;
        let lease = before.lease()?;
        let has_ended = *lease.holder == *writer.invocation && entry.lease().is_none();
        let is_unchanged = states(before).eq(states(entry)) && before.missing() == entry.missing();
        if !has_ended || entry.not_before().is_some() {
            return None;
        }
        let mut ledger = self.ledger();
        let now = ledger.now;
        let former = ledger.unchanged_builds.get(key);
        let seen = lease.dirty.clone();
        let is_again = |former: &&UnchangedBuilds| {
            former.seen == seen && now < former.last.saturating_add(CONCURRENT)
        };
        let times = if is_unchanged {
            1 + former.filter(is_again).map_or(0, |former| former.times)
        } else {
            0
        };
        let unchanged_builds = UnchangedBuilds {
            last: now,
            times,
            seen,
        };
        ledger
            .unchanged_builds
            .insert(key.clone(), unchanged_builds);
        (times > MAX_UNCHANGED_BUILDS).then(|| {
            let detail = format!("{times} builds in a row changed nothing");
            (
                "8: requests do not cause builds that change nothing",
                detail,
            )
        })
    }
}

fn is_made_alike(was: &Ready, is: &Ready) -> bool {
    was.version == is.version && was.converter == is.converter && was.made_from == is.made_from
}

impl Stores {
    /// Checks that a blob that readers could not read is replaced at most once an hour.
    fn check_replacement(
        &self,
        key: &ItemKey,
        before: Option<&Entry>,
        entry: &Entry,
    ) -> Option<Violation> {
        let before = before?;
        let suspect = before.suspect()?;
        let has_it = |entry: &Entry| states(entry).any(|ready| ready.blob.path == suspect.blob);
        let is_lost = has_it(before)
            && !has_it(entry)
            && before.dirty() == entry.dirty()
            && before.lease() == entry.lease();
        let is_disputed = entry
            .suspect()
            .is_some_and(|is| is.disputed.is_some() && is.disputed != suspect.disputed);
        if !is_lost && !is_disputed {
            return None;
        }
        let mut ledger = self.ledger();
        let now = ledger.now;
        let last = ledger.replaced.insert(key.clone(), now)?;
        (now < last + REPLACED_AFTER).then(|| {
            let seconds = (now - last).as_secs();
            let detail = format!("replaced again after {seconds} s");
            ("a blob is replaced at most once an hour", detail)
        })
    }

    /// Checks that a cache that is removed was unused for long enough.
    pub(super) fn check_retired(&self, entry: &Entry) {
        let mut ledger = self.ledger();
        let used_at = ledger.used.get(&entry.module().partition()).copied();
        let (Some(kept_for), Some(used_at)) = (self.kept_for, used_at) else {
            return;
        };
        let unused_for = ledger.now.saturating_sub(used_at);
        let is_cache = entry.kind() == Kind::SymCache && states(entry).next().is_some();
        if is_cache && unused_for + RECORDED_WITHIN < kept_for {
            let module = describe::module(entry.module());
            let detail = format!("{module} was used {} s ago", unused_for.as_secs());
            ledger.fail("rule 2: caches are kept until they are unused", detail);
        }
    }

    /// Checks that no cache stays that was unused for longer than it is kept, after a pass.
    pub(super) fn check_unused(&self, passes_every: Duration) {
        let Some(kept_for) = self.kept_for else {
            return;
        };
        let now = timestamp(self.now());
        let mut unused = None;
        self.records.for_each(|_, stored| {
            let entry = stored.item.entry();
            let is_unused = |entry: &&Entry| {
                let unused_for = now.since(entry.last_used_at());
                states(entry).next().is_some() && unused_for > kept_for + 3 * passes_every
            };
            if let Some(entry) = entry.filter(is_unused) {
                let module = describe::module(entry.module());
                unused.get_or_insert((module, now.since(entry.last_used_at())));
            }
        });
        if let Some((module, unused_for)) = unused {
            let detail = format!("{module} is unused for {} s", unused_for.as_secs());
            self.ledger()
                .fail("rule 2: unused caches are removed", detail);
        }
    }
}

fn check_rank(before: Option<&Entry>, entry: &Entry) -> Option<Violation> {
    let (was, is) = (before.and_then(Entry::ready)?, entry.ready()?);
    (was.version == is.version && is.rank > was.rank).then(|| {
        let detail = format!("rank {} after {}", is.rank.as_u8(), was.rank.as_u8());
        ("2: a worse state never replaces a better one", detail)
    })
}

/// Checks that the end of a build leaves a state.
fn check_end(writer: &Writer, before: Option<&Entry>, entry: &Entry) -> Option<Violation> {
    let before = before?;
    let lease = before.lease()?;
    let is_build_end = *lease.holder == *writer.invocation
        && entry.lease().is_none()
        && before.dirty() == entry.dirty();
    let is_lost = states(before).next().is_some() && states(entry).next().is_none();
    (is_build_end && is_lost).then(|| ("4: a failed build never removes a state", String::new()))
}

/// Checks that a state is removed by the holder of the lease, or because a file was removed. An
/// older state is also dropped.
fn check_removed(writer: &Writer, before: Option<&Entry>, entry: &Entry) -> Option<Violation> {
    let before = before?;
    let was = before.ready()?;
    let stays = states(entry).any(|ready| ready.blob.path == was.blob.path);
    let lease = before.lease();
    let is_held = lease.is_some_and(|lease| *lease.holder == *writer.invocation);
    (!stays && !is_held && before.dirty() == entry.dirty()).then(|| {
        let property = "4: only the holder of the lease removes a state";
        (property, writer.invocation.to_string())
    })
}

/// Checks the cause of a failure: what the slow server does says nothing about its files, and only
/// a build that knows a server can say that it has none.
fn check_placeholder(writer: &Writer, before: Option<&Entry>, entry: &Entry) -> Option<Violation> {
    let placeholder = entry.missing()?;
    if before.and_then(Entry::missing) == Some(placeholder) {
        return None;
    }
    let Placeholder { missing, .. } = placeholder;
    let SourceKey::Configured { id, .. } = &entry.module().source else {
        return None;
    };
    let property = match (&**id, missing.cause) {
        ("slow", Cause::Malformed) => "a file of a slow server is not malformed",
        (servers::ADDED, Cause::NotFound) if !writer.is_configured => {
            "an absence is known to a build that knows the server"
        }
        _ => return None,
    };
    Some((property, missing.detail.clone()))
}
