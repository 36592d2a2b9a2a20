//! Kills processes at many random moments: every waiting request completes with the right names,
//! and no orphan remains.
//!
//! `make chaos` sets more kills and more modules than `make test`, and prints the coverage.
//! Randomness comes from a seed, which the test prints: the same seed repeats which processes are
//! killed and after how long, although not what the machine was doing at that moment.

use std::time::{Duration, Instant};

use futures::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Method;
use serde_json::Value;
use symdepot_tests::stack::{Client, LocalStack, Process, until};

use crate::kills::{is_derive, is_parser};
use crate::made_up::MadeUp;
use crate::{PATIENCE, Running};

/// The timeout of `derive`: how long the lease of a killed builder delays the next one. The default
/// is 15 minutes.
const DERIVE_SECONDS: u64 = 10;

/// The number of functions of each module: enough that a build passes through every step while the
/// test observes it, and few enough that a build finishes well within the timeout on a slow
/// machine.
const FUNCTIONS: usize = 20_000;

/// Kills per module before all entries are retired and built again.
const KILLS_A_ROUND: u32 = 2;

/// The number of deliveries of an upload's event before it becomes a dead letter, minus the last
/// one.
const SPARE_DELIVERIES: u32 = 5;

/// The maximum time that a chosen process runs before it is killed.
const LATEST: Duration = Duration::from_millis(150);

/// The maximum time until a request completes, whatever is killed.
const AT_LAST: Duration = Duration::from_secs(600);

/// The number of kills and modules, and the random seed.
#[derive(Clone, Copy, Debug)]
struct Extent {
    kills: u32,
    modules: u32,
    seed: u64,
}

impl Extent {
    fn from_env() -> Self {
        let number = |name: &str, default: u64| match std::env::var(name) {
            Ok(text) => text
                .parse()
                .unwrap_or_else(|error| panic!("{name}={text}: {error}")),
            Err(_) => default,
        };
        let small = |name, default| u32::try_from(number(name, default)).unwrap();
        Self {
            kills: small("SYMDEPOT_CHAOS_KILLS", 40),
            modules: small("SYMDEPOT_CHAOS_MODULES", 5),
            seed: number("SYMDEPOT_CHAOS_SEED", 7),
        }
    }
}

#[tokio::test]
async fn after_kills_at_random_moments_every_request_completes_and_no_orphan_remains() {
    let extent = Extent::from_env();
    eprintln!("{extent:?}");
    let running = Running::start_with(|options| {
        options
            .timeout("derive", DERIVE_SECONDS)
            .variable("MAX_ATTEMPTS", 1_000_000)
            .variable("ORPHAN_MIN_AGE", 0)
            .variable("DERIVED_MAX_UNUSED", 0)
    })
    .await;
    let modules: Vec<MadeUp> = (1..=extent.modules)
        .map(|number| MadeUp::new(number, FUNCTIONS))
        .collect();
    let mut killer = Killer {
        chance: StdRng::seed_from_u64(extent.seed),
        kills: 0,
        parsers: 0,
    };

    upload_all(&running, &modules, &mut killer).await;
    let (mut rounds, mut orphans) = (0, 0);
    while killer.kills < extent.kills {
        rounds += 1;
        assert!(
            rounds <= extent.kills,
            "no process to kill was found: {killer:?}"
        );
        let left = extent.kills - killer.kills;
        let most = left.min(KILLS_A_ROUND * extent.modules);
        orphans += build_all_again(&running, &modules, &mut killer, most).await;
    }
    let stats = running.client().stats().await.unwrap();
    let deliveries = stats.function("derive").invocations;
    let (ready, crashed) = every_entry_is_ready(&running, &modules).await;
    let (swept, left) = no_orphan_stays(&running).await;
    orphans += swept;

    let Killer { kills, parsers, .. } = killer;
    eprintln!(
        "covered: {kills} kills in {rounds} rounds, {} of derive and {parsers} of its child; \
         {} entries: {ready} ready, {crashed} crashed; {orphans} orphans removed, {left} left; \
         {deliveries} deliveries; seed {}",
        kills - parsers,
        modules.len(),
        extent.seed,
    );
}

/// Uploads every module while processes that read the uploads are killed: no upload is lost.
async fn upload_all(running: &Running, modules: &[MadeUp], killer: &mut Killer) {
    let uploads = modules.iter().map(|module| async {
        let client = running.client();
        client.upload(&module.key(), module.file()).await
    });
    let applied = async {
        for uploaded in join_all(uploads).await {
            uploaded.unwrap();
        }
        running.settled().await;
    };
    killer
        .kill_during(&running.stack, SPARE_DELIVERIES, applied)
        .await;
    for module in modules {
        let (state, upload) = running.state_of(&module.key()).await;
        assert_eq!(state, "applied", "{upload:#}");
    }
}

/// Retires all derived caches and sends a crash in each module while the builders are killed.
/// Returns the number of orphans that the prune run found.
async fn build_all_again(
    running: &Running,
    modules: &[MadeUp],
    killer: &mut Killer,
    most: u32,
) -> u64 {
    let client = running.client();
    let orphans = orphans(&client.prune(false).await.unwrap());
    client.end_functions().await.unwrap();
    let answered = async {
        let answers = modules.iter().map(|module| async move {
            let answer = client.completed_at_last(&module.crash()).await.unwrap();
            module.assert_symbolicated(&answer);
        });
        let answered = tokio::time::timeout(AT_LAST, join_all(answers));
        // The message of a builder that was killed waits for a quarter of an hour. The stack may be
        // idle between two polls.
        let retries = async {
            loop {
                client.settled(AT_LAST).await.unwrap();
            }
        };
        tokio::select! {
            answered = answered => drop(answered.expect("a crash was not answered in time")),
            () = retries => {}
        }
        running.settled().await;
    };
    killer.kill_during(&running.stack, most, answered).await;
    orphans
}

/// Sends crashes to new instances, which have no cache, and asserts that no build is needed.
/// Returns the number of entries that are ready and the number that failed with the cause
/// `crashed`.
async fn every_entry_is_ready(running: &Running, modules: &[MadeUp]) -> (usize, usize) {
    let client = running.client();
    client.end_functions().await.unwrap();
    client.clear_stats().await.unwrap();
    for module in modules {
        module.assert_symbolicated(&client.completed("", &module.crash()).await.unwrap());
    }
    let stats = client.stats().await.unwrap();
    assert_eq!(stats.function("derive").invocations, 0, "{stats:#?}");

    let (mut ready, mut crashed) = (0, 0);
    for module in modules {
        let path = format!("/explain?debug_id={}", module.debug_id());
        let request = client.request(Method::GET, &path);
        let explained = client.send("a module", request).await.unwrap();
        let explained = explained.expect(200, &path).unwrap().body;
        let mut records = explained.as_array().unwrap().iter();
        let entry = records.find(|record| record["kind"] == "symcache");
        let entry = &entry.unwrap()["record"];
        ready += usize::from(entry["ready"].is_object());
        crashed += usize::from(entry["missing"]["cause"] == "crashed");
    }
    assert_eq!((ready, crashed), (modules.len(), 0));
    (ready, crashed)
}

/// Prunes until no blob remains. `DERIVED_MAX_UNUSED` is 0, so each blob is removed together with
/// its record, or as an orphan. Returns the number of removed orphans and of remaining blobs.
///
/// The lease of the builder that was killed last protects its blob until the lease expires.
async fn no_orphan_stays(running: &Running) -> (u64, usize) {
    let client = running.client();
    let mut swept = 0;
    let end = until("the end of the last blob", PATIENCE, async || {
        swept += orphans(&client.prune(false).await.unwrap());
        of_caches(client).await.is_empty().then_some(())
    });
    let end = end.await;
    let left = of_caches(client).await;
    assert!(end.is_ok(), "{end:?}: {left:#?}");
    (swept, left.len())
}

/// Returns the blobs of caches. Those of requests belong to the items of these, and expire after a
/// day by the lifecycle rule of the bucket.
async fn of_caches(client: &Client) -> Vec<(String, u64)> {
    let mut blobs = client.blobs().await.unwrap();
    blobs.retain(|(path, _)| !path.starts_with("requests/"));
    blobs
}

/// Returns the number of orphans in the report of a prune run.
fn orphans(report: &Value) -> u64 {
    report["orphans"].as_u64().unwrap()
}

/// Kills randomly chosen processes.
#[derive(Debug)]
struct Killer {
    chance: StdRng,
    kills: u32,
    parsers: u32,
}

impl Killer {
    /// Runs `work` and meanwhile kills up to `most` processes, one after the other.
    async fn kill_during(&mut self, stack: &LocalStack, most: u32, work: impl Future<Output = ()>) {
        let mut work = std::pin::pin!(work);
        for _ in 0..most {
            tokio::select! {
                biased;
                () = &mut work => return,
                () = self.kill_one(stack) => {}
            }
        }
        work.await;
    }

    /// Kills a parser or a function after it was observed at work for a random time.
    async fn kill_one(&mut self, stack: &LocalStack) {
        let kills_parser = self.chance.random_bool(0.5);
        let after = LATEST.mul_f64(self.chance.random::<f64>());
        let is_meant = |process: &Process| {
            let program = if kills_parser {
                is_parser(process)
            } else {
                is_derive(process)
            };
            program && !process.is_frozen()
        };
        let mut seen: Vec<(Process, Instant)> = Vec::new();
        let killed = until("a process at work", AT_LAST, async || {
            let mut at_work = stack.processes();
            at_work.retain(is_meant);
            seen.retain(|(known, _)| at_work.contains(known));
            for process in at_work {
                if !seen.iter().any(|(known, _)| *known == process) {
                    seen.push((process, Instant::now()));
                }
            }
            let (victim, _) = seen.iter().find(|(_, since)| since.elapsed() >= after)?;
            victim.kill();
            Some(())
        });
        killed.await.unwrap();
        self.kills += 1;
        self.parsers += u32::from(kills_parser);
    }
}
