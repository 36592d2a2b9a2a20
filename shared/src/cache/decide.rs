//! The reader's decision about an entry: use it, wait, or request a build.

use super::{Entry, Kind, Placeholder, Queue, Ready, ReleaseNumbers};
use crate::domain::{Cause, FormatVersion, Quality, Timestamp};

/// A reader's decision about an entry. A ready state takes precedence over a placeholder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<'a> {
    /// Use this state.
    Use(&'a Ready),
    /// Use this state, and send a build request to the refresh queue: a better DIF may exist by
    /// now.
    UseAndUpgrade(&'a Ready),
    /// Use this state, and send a build request for the current version to the refresh queue.
    UseOlder(&'a Ready),
    /// Respond without a cache, for this reason.
    Missing(&'a Placeholder),
    /// Nothing to do before `until`: a build is in progress or requested, the entry backs off, or a
    /// newer release has just published.
    Wait {
        /// When to decide again, at the latest.
        until: Timestamp,
    },
    /// Send a build request to the eager queue.
    Build,
}

/// What this release can read and derive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The numbers of this release.
    pub numbers: ReleaseNumbers,
    /// The configured size limits of DIFs, in bytes. A `TooLarge` placeholder with another limit is
    /// outdated.
    pub limits: Vec<u64>,
    /// The versions of Microsoft's SymCaches that the transcoder makes, at most one per major
    /// version.
    pub transcoded: Vec<FormatVersion>,
}

impl Capabilities {
    /// Returns the version that a build makes of this kind; `None` if the kind can only be
    /// uploaded.
    pub fn made_version(&self, kind: Kind) -> Option<u32> {
        match kind {
            Kind::MsSymCache(major) => {
                let transcoded = self
                    .transcoded
                    .iter()
                    .find(|version| version.major == major);
                transcoded.map(|version| version.as_u32())
            }
            Kind::CfiCache | Kind::PpdbCache | Kind::SourceCode | Kind::SymCache => {
                Some(self.numbers.version(kind))
            }
        }
    }
}

/// Returns a reader's decision about an entry. `entry` is `None` if there is no record.
pub fn decide<'a>(
    entry: Option<&'a Entry>,
    capabilities: &Capabilities,
    now: Timestamp,
) -> Decision<'a> {
    let Some(entry) = entry else {
        return Decision::Build;
    };
    // An older release deferred files to this one.
    let has_deferred = entry.defers_files_to(capabilities.numbers.converter);
    if let Some(ready) = readable(entry, capabilities) {
        // After a failed rebuild, do not request another one before the placeholder expires: the
        // source may have removed the DIF for good.
        let placeholder = entry.missing.as_ref();
        let is_backing_off = !has_deferred
            && placeholder.is_some_and(|placeholder| is_valid(placeholder, capabilities, now));
        return if is_backing_off {
            Decision::Use(ready)
        } else if capabilities
            .made_version(entry.kind)
            .is_some_and(|made| ready.version < made)
        {
            Decision::UseOlder(ready)
        } else if is_probe_due(entry, now)
            || placeholder.is_some_and(|placeholder| {
                may_succeed_now(placeholder, capabilities) || was_delayed(placeholder, ready)
            })
            || newer_state_used_another_dif(entry, ready)
            || has_deferred
        {
            Decision::UseAndUpgrade(ready)
        } else {
            Decision::Use(ready)
        };
    }
    if let Some(placeholder) = entry
        .missing
        .as_ref()
        .filter(|placeholder| !has_deferred && is_valid(placeholder, capabilities, now))
    {
        return Decision::Missing(placeholder);
    }
    if let Some(lease) = entry.live_lease(now) {
        return Decision::Wait { until: lease.until };
    }
    // A newer release has published a version that this release cannot read. During a deployment,
    // either this release is about to be replaced or the newer one is rolled back. Wait for a short
    // time, so that the two releases do not rebuild the entry in turn.
    let is_newer = |ready: &&Ready| ready.version > capabilities.numbers.version(entry.kind);
    if let Some(newer) = entry.ready.as_ref().filter(is_newer) {
        let until = newer.derived_at.plus(super::Policy::WAIT_BEHIND);
        if now < until {
            return Decision::Wait { until };
        }
    }
    match (&entry.build_request, entry.not_before) {
        (Some(build_request), _)
            if build_request.queue == Queue::Eager && entry.live_request(now).is_some() =>
        {
            Decision::Wait {
                until: build_request
                    .at
                    .plus(super::Policy::request_lifetime(build_request.queue)),
            }
        }
        (Some(_), Some(until)) if now < until => Decision::Wait { until },
        _ => Decision::Build,
    }
}

/// Returns whether it is time to probe the source for a better DIF.
fn is_probe_due(entry: &Entry, now: Timestamp) -> bool {
    entry.probes.is_some_and(|probes| {
        now.since(probes.at) >= super::Policy::PROBE_BACKOFF.after(probes.fruitless)
    })
}

/// Returns whether another attempt may succeed where one failed, although no file changed: the
/// parser of a better DIF was killed, perhaps because the function was, or a newer converter could
/// not convert the DIF, for example before a rollback.
fn may_succeed_now(placeholder: &Placeholder, capabilities: &Capabilities) -> bool {
    let cause = placeholder.missing.cause;
    let is_of_newer = placeholder.converter > capabilities.numbers.converter;
    cause == Cause::Crashed || (is_of_newer && cause.belongs_to_the_converter())
}

/// Returns whether a server failed for a moment that may have a better DIF than that of this state.
/// The placeholder says when that is over.
fn was_delayed(placeholder: &Placeholder, ready: &Ready) -> bool {
    placeholder.missing.cause.is_of_a_moment() && ready.quality == Quality::Fallback
}

/// Returns whether a newer release has used another DIF since this state was made. Readers of this
/// release, which cannot read the newer state, would not see that DIF, for example after a
/// rollback. The state is renewed once: the best DIF of this release may be another one.
fn newer_state_used_another_dif(entry: &Entry, ready: &Ready) -> bool {
    let newest = entry.ready.as_ref();
    newest.is_some_and(|newest| {
        newest.version > ready.version
            && newest.made_from != ready.made_from
            && ready.derived_at < newest.derived_at
    })
}

/// Returns the newest state that this release can read.
fn readable<'a>(entry: &'a Entry, capabilities: &Capabilities) -> Option<&'a Ready> {
    let current = capabilities.numbers.version(entry.kind);
    entry.states().find(|ready| ready.version <= current)
}

/// Returns whether a placeholder is still valid for this reader.
fn is_valid(placeholder: &Placeholder, capabilities: &Capabilities, now: Timestamp) -> bool {
    let cause = placeholder.missing.cause;
    if cause.belongs_to_the_converter() && placeholder.converter < capabilities.numbers.converter {
        // A newer converter retries at once; its own placeholder then makes it wait. An older
        // converter, for example after a rollback, honors the placeholder until `retry_at`.
        return false;
    }
    match cause {
        Cause::TooLarge { limit } if !capabilities.limits.contains(&limit) => false,
        _ => now < placeholder.retry_at,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::cache::change::examples::{
        BEGIN, Offer, after, built, dif, entry, entry_of_a_symbol_server, fail, publish,
        request_build, state, take, then, token,
    };
    use crate::cache::{Change, Converter, current_version};

    const HOUR: u64 = 3600;
    const DAY: u64 = 24 * HOUR;

    fn capabilities() -> Capabilities {
        Capabilities {
            numbers: ReleaseNumbers::CURRENT,
            limits: vec![1000],
            transcoded: Vec::new(),
        }
    }

    fn failed(cause: Cause) -> Entry {
        then(
            &then(&entry(), &take(1), 0),
            &fail(1, cause, &[dif("a")]),
            0,
        )
    }

    fn failed_by(converter: u32, cause: Cause) -> Entry {
        let mut entry = failed(cause);
        entry.missing.as_mut().unwrap().converter = Converter(converter);
        entry
    }

    fn left(entry: &Entry, by: u32) -> Option<Entry> {
        let deferred_by = Some(Converter(by));
        Some(Entry {
            deferred_by,
            ..entry.clone()
        })
    }

    fn built_for(entry: Entry, version: u32, offer: Offer) -> Entry {
        let leased = then(&entry, &take(1), 0);
        then(
            &leased,
            &publish(1, state(&leased, 1, version, offer, &dif("a")), &[dif("a")]),
            0,
        )
    }

    /// Returns every state that an entry can have; each name begins with the decisive field.
    fn states() -> Vec<(&'static str, Option<Entry>)> {
        let current = current_version(Kind::SymCache);
        let mine = Converter::CURRENT.0;
        let ready = built(current, Offer::Debug, &dif("a"));
        let released = then(
            &then(
                &then(&entry(), &request_build(1, Queue::Uploads), 0),
                &take(1),
                0,
            ),
            &Change::ReleaseInterrupted { token: token(1) },
            0,
        );
        let loss = Change::ConfirmLoss {
            token: token(2),
            blob: ready.ready().unwrap().blob.path.clone(),
            id: token(3),
        };
        let lost = then(&then(&ready, &take(2), 0), &loss, 0);
        let lost = then(&lost, &Change::ReleaseUntried { token: token(2) }, 0);
        let suspect = Change::Suspect {
            blob: ready.ready().unwrap().blob.path.clone(),
            id: token(3),
        };
        let revoke = Change::Revoke {
            dif: dif("a"),
            mark: token(4),
        };
        let mut newer = built(current, Offer::Debug, &dif("a"));
        newer.ready.as_mut().unwrap().version = current + 1;
        let mut side_by_side = newer.clone();
        side_by_side.older = ready.ready.clone();
        let mut behind = ready.clone();
        behind.ready.as_mut().unwrap().version = current - 1;
        let failed_to_renew = then(
            &then(&behind, &take(2), 0),
            &fail(2, Cause::NotFound, &[]),
            0,
        );
        vec![
            ("no record", None),
            ("a record of nothing", Some(entry())),
            (
                "build requested, eager queue",
                Some(then(&entry(), &request_build(1, Queue::Eager), 0)),
            ),
            (
                "build requested, uploads queue",
                Some(then(&entry(), &request_build(1, Queue::Uploads), 0)),
            ),
            (
                "build requested, refresh queue",
                Some(then(&entry(), &request_build(1, Queue::Refresh), 0)),
            ),
            ("leased", Some(then(&entry(), &take(1), 0))),
            (
                "leased, build requested",
                Some(then(
                    &then(&entry(), &request_build(1, Queue::Eager), 0),
                    &take(1),
                    0,
                )),
            ),
            ("given back, build requested", Some(released)),
            ("ready", Some(ready.clone())),
            (
                "ready, fallback, uploads",
                Some(built(current, Offer::Symbols, &dif("a"))),
            ),
            (
                "ready, fallback, other source",
                Some(built_for(
                    entry_of_a_symbol_server(),
                    current,
                    Offer::Symbols,
                )),
            ),
            (
                "ready, other source",
                Some(built_for(entry_of_a_symbol_server(), current, Offer::Debug)),
            ),
            ("ready, leased", Some(then(&ready, &take(2), 0))),
            ("ready, suspected", Some(then(&ready, &suspect, 0))),
            (
                "ready, failed to improve",
                Some(then(
                    &then(&ready, &take(2), 0),
                    &fail(2, Cause::Malformed, &[]),
                    0,
                )),
            ),
            (
                "ready, files left by an older release",
                left(&ready, mine - 1),
            ),
            ("ready, files left by this release", left(&ready, mine)),
            ("ready, lower version", Some(behind)),
            ("ready, lower version, not renewed", Some(failed_to_renew)),
            ("ready, higher version", Some(newer)),
            ("ready, higher version beside mine", Some(side_by_side)),
            ("lost", Some(lost)),
            ("removed", Some(then(&ready, &revoke, 0))),
            ("missing: not found", Some(failed(Cause::NotFound))),
            (
                "missing: not found, build requested, eager queue",
                Some({
                    let mut entry = failed(Cause::NotFound);
                    entry.build_request =
                        then(&entry, &request_build(9, Queue::Eager), 0).build_request;
                    entry
                }),
            ),
            (
                "missing: permission denied",
                Some(failed(Cause::PermissionDenied)),
            ),
            (
                "missing: download failed",
                Some(failed(Cause::DownloadFailed)),
            ),
            ("missing: timeout", Some(failed(Cause::Timeout))),
            ("missing: malformed", Some(failed(Cause::Malformed))),
            (
                "missing: malformed, older converter",
                Some(failed_by(mine - 1, Cause::Malformed)),
            ),
            (
                "missing: malformed, newer converter",
                Some(failed_by(mine + 1, Cause::Malformed)),
            ),
            (
                "missing: not found, older converter",
                Some(failed_by(mine - 1, Cause::NotFound)),
            ),
            (
                "missing: files left by an older release",
                left(&failed(Cause::NotFound), mine - 1),
            ),
            ("missing: unsupported", Some(failed(Cause::Unsupported))),
            (
                "missing: too large, same limit",
                Some(failed(Cause::TooLarge { limit: 1000 })),
            ),
            (
                "missing: too large, other limit",
                Some(failed(Cause::TooLarge { limit: 999 })),
            ),
            ("missing: crashed", Some(failed(Cause::Crashed))),
        ]
    }

    fn word(decision: &Decision<'_>) -> String {
        match decision {
            Decision::Use(ready) => format!("use v{}", ready.version),
            Decision::UseAndUpgrade(ready) => format!("use v{}, upgrade", ready.version),
            Decision::UseOlder(ready) => format!("use v{}, renew", ready.version),
            Decision::Missing(_) => "go without".to_owned(),
            Decision::Wait { until } => format!("wait till {} s", until.since(BEGIN).as_secs()),
            Decision::Build => "build".to_owned(),
        }
    }

    #[test]
    fn every_state_at_every_time_has_its_decision() {
        let times = [
            ("at once", 0),
            ("29 s", 29),
            ("30 s", 30),
            ("60 s", 60),
            ("1 h", HOUR),
            ("24 h", DAY),
            ("8 d", 8 * DAY),
        ];
        let mut table = format!("{:38}", "what is stored");
        times
            .iter()
            .for_each(|(name, _)| write!(table, "| {name:17}").unwrap());
        table = table.trim_end().to_owned();
        for (name, entry) in states() {
            let mut line = format!("{name:38}");
            for (_, seconds) in times {
                write!(
                    line,
                    "| {:17}",
                    word(&decide(entry.as_ref(), &capabilities(), after(seconds)))
                )
                .unwrap();
            }
            write!(table, "\n{}", line.trim_end()).unwrap();
        }
        insta::assert_snapshot!("decisions", table);
    }

    #[test]
    fn a_ready_state_takes_precedence_over_every_placeholder() {
        for cause in [
            Cause::NotFound,
            Cause::Malformed,
            Cause::TooLarge { limit: 1000 },
            Cause::Crashed,
        ] {
            let ready = built(current_version(Kind::SymCache), Offer::Nothing, &dif("a"));
            let failed = then(&then(&ready, &take(2), 0), &fail(2, cause, &[]), 0);
            assert!(failed.missing().is_some());
            assert_eq!(
                decide(Some(&failed), &capabilities(), after(1)),
                Decision::Use(ready.ready().unwrap()),
                "{cause:?}"
            );
        }
    }

    /// Found by the simulation.
    #[test]
    fn a_better_file_whose_parser_was_killed_is_tried_again_after_a_day() {
        let ready = built(current_version(Kind::SymCache), Offer::Symbols, &dif("a"));
        let killed = fail(2, Cause::Crashed, &[]);
        let failed = then(&then(&ready, &take(2), 0), &killed, 0);
        let (ready, capabilities) = (failed.ready().unwrap(), capabilities());
        let decision = |seconds| decide(Some(&failed), &capabilities, after(seconds));
        assert_eq!(decision(HOUR), Decision::Use(ready));
        assert_eq!(decision(2 * DAY), Decision::UseAndUpgrade(ready));
    }

    /// Finding S19 in `docs/protocol.md`: after a rollback, the older release used the lesser file.
    #[test]
    fn a_better_file_that_only_a_newer_converter_could_not_convert_is_tried_after_a_while() {
        let ready = built(current_version(Kind::SymCache), Offer::Symbols, &dif("a"));
        let malformed = fail(2, Cause::Malformed, &[]);
        let mut failed = then(&then(&ready, &take(2), 0), &malformed, 0);
        let rests = |failed: &Entry, at| {
            decide(Some(failed), &capabilities(), at) == Decision::Use(failed.ready().unwrap())
        };
        let retry_at = failed.missing().unwrap().retry_at;
        // Its own converter would fail again.
        assert!(rests(&failed, retry_at));
        failed.missing.as_mut().unwrap().converter = Converter(Converter::CURRENT.0 + 1);
        assert!(rests(&failed, Timestamp::from_secs(retry_at.as_secs() - 1)));
        assert!(!rests(&failed, retry_at));
    }

    #[test]
    fn every_wait_ends() {
        for (name, entry) in states() {
            let mut now = BEGIN;
            let mut waits = 0;
            while let Decision::Wait { until } = decide(entry.as_ref(), &capabilities(), now) {
                assert!(until > now && until <= after(64), "{name}: until {until}");
                now = until;
                waits += 1;
                assert!(waits < 4, "{name}");
            }
        }
    }
}
