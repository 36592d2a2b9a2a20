//! Kills at random moments, many of them: every waiter ends with the right names, and nothing stays
//! behind.
//!
//! `make chaos` asks for more kills over more modules than `make test`, and shows what was covered.
//! Chance comes from a seed, which every failure names: what is killed and after how long is the
//! same again, though not what the machine was doing then.

use std::time::{Duration, Instant};

use futures::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Method;
use serde_json::Value;
use symdepot_tests::stack::{LocalStack, Process, until};

use crate::kills::{is_derive, is_parser};
use crate::made_up::MadeUp;
use crate::{PATIENCE, Running};

/// The time that `derive` has, which is how long a killed one's lease delays the next: a quarter of
/// an hour otherwise.
const DERIVE_SECONDS: u64 = 10;

/// Functions of each module: enough that a build goes through every step before the next look, few
/// enough that it is far from done with its time on a slow machine.
const FUNCTIONS: usize = 20_000;

/// Kills for each module before everything is built anew.
const KILLS_A_ROUND: u32 = 2;

/// Deliveries that an upload's event has before it is given up, less the last one.
const SPARE_DELIVERIES: u32 = 5;

/// The longest that a process is let live, once it is chosen.
const LATEST: Duration = Duration::from_millis(150);

/// How long a crash may take to be answered whatever is killed.
const AT_LAST: Duration = Duration::from_secs(600);

/// How much is killed, and by which chance.
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
async fn whatever_is_killed_at_whatever_moment_every_waiter_ends_and_nothing_stays_behind() {
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
            "there is nothing to kill: {killer:?}"
        );
        let left = extent.kills - killer.kills;
        let most = left.min(KILLS_A_ROUND * extent.modules);
        orphans += build_all_anew(&running, &modules, &mut killer, most).await;
    }
    let stats = running.client().stats().await.unwrap();
    let deliveries = stats.function("derive").invocations;
    let (ready, crashed) = every_entry_is_ready(&running, &modules).await;
    let (swept, left) = no_orphan_stays(&running).await;
    orphans += swept;

    let Killer { kills, parsers, .. } = killer;
    eprintln!(
        "covered: {kills} kills in {rounds} rounds, {} of derive and {parsers} of its child; \
         {} entries: {ready} ready, {crashed} crashed; {orphans} orphans swept, {left} left; \
         {deliveries} deliveries; seed {}",
        kills - parsers,
        modules.len(),
        extent.seed,
    );
}

/// Uploads every module while some of what reads them is killed: not one upload is lost.
async fn upload_all(running: &Running, modules: &[MadeUp], killer: &mut Killer) {
    let uploads = modules.iter().map(|module| async {
        let client = running.client();
        client.upload(&module.key(), module.file()).await
    });
    let applied = async {
        for uploaded in join_all(uploads).await {
            uploaded.unwrap();
        }
        running.idle().await;
    };
    killer
        .kill_during(&running.stack, SPARE_DELIVERIES, applied)
        .await;
    for module in modules {
        let (state, upload) = running.state_of(&module.key()).await;
        assert_eq!(state, "applied", "{upload:#}");
    }
}

/// Forgets everything that was derived, and sends a crash in each module while what derives it anew
/// is killed. Returns how many orphans there were.
async fn build_all_anew(
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
        let answered = tokio::time::timeout(AT_LAST, join_all(answers)).await;
        answered.expect("a crash is never answered");
        running.idle().await;
    };
    killer.kill_during(&running.stack, most, answered).await;
    orphans
}

/// Crashes are answered by instances that remember nothing, and nothing is built for it. Returns
/// how many of the entries that crashes wait for are ready, and how many were given up.
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

/// Nothing is in use from now on, so that every blob goes: with its record, or because no record
/// names it. Returns how many orphans went, and how many blobs are left.
///
/// The lease of who was killed last protects its blob until it ends.
async fn no_orphan_stays(running: &Running) -> (u64, usize) {
    let client = running.client();
    let mut swept = 0;
    let end = until("the end of the last blob", PATIENCE, async || {
        swept += orphans(&client.prune(false).await.unwrap());
        client.blobs().await.unwrap().is_empty().then_some(())
    });
    let end = end.await;
    let left = client.blobs().await.unwrap();
    assert!(end.is_ok(), "{end:?}: {left:#?}");
    (swept, left.len())
}

/// Returns how many orphans a sweep found.
fn orphans(report: &Value) -> u64 {
    report["orphans"].as_u64().unwrap()
}

/// Kills what chance chooses.
#[derive(Debug)]
struct Killer {
    chance: StdRng,
    kills: u32,
    parsers: u32,
}

impl Killer {
    /// Does something while up to so many processes are killed, one after the other.
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

    /// Kills a parser or a function, after it was seen at work for a time.
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
        let killed = until("somebody at work", AT_LAST, async || {
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
