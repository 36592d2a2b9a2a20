//! Random sequences of uploads, removals, faults and kills. In any order, the final response equals
//! that of a reference of five lines: names from the best existing file, and no names if there is
//! none.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use symdepot::adapters::faulty::{How, Operation};
use symdepot::cache::Kind;
use symdepot::domain::Scope;
use symdepot::flows::uploads::UploadEvent;
use symdepot_tests::harness::{World, fixture, function_names, sample_crash};

use crate::CRASH;

/// The keys of the files.
const KEYS: [&str; 3] = ["global/a", "global/b", "global/c"];

/// The files of the sample's module, and how well each serves; 0 is best.
const FILES: [(&str, u8); 3] = [
    ("elf/crash.debug", 0),
    ("elf/crash.zlib.debug", 0),
    ("elf/crash", 1),
];

/// The maximum number of invocations that are killed in one run. With one more, an entry might be
/// given up as crashed.
const MAX_KILLS: u32 = 2;

/// What happens to an invocation.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    None,
    /// The call of an operation with this number fails.
    Fails(Operation, u64, How),
    /// The function is killed just before that call.
    Killed(Operation, u64),
}

/// An action.
#[derive(Clone, Copy, Debug)]
enum Step {
    Put(usize, usize),
    TakeAway(usize),
    /// Delivers a waiting event, which may be delivered again.
    Deliver {
        which: usize,
        comes_again: bool,
        trouble: Trouble,
    },
    /// Delivers a waiting message.
    Serve(usize, Trouble),
    Request(Trouble),
    Pass(u64),
    Prune(Trouble),
}

fn trouble() -> impl Strategy<Value = Trouble> {
    let operation = prop::sample::select(Operation::ALL.to_vec());
    let fails = (operation.clone(), 1..8_u64, 0..5_usize).prop_map(|(operation, nth, way)| {
        let ways = operation.ways();
        Trouble::Fails(operation, nth, ways[way % ways.len()])
    });
    let killed = (operation, 1..8_u64).prop_map(|(operation, nth)| Trouble::Killed(operation, nth));
    prop_oneof![4 => Just(Trouble::None), 3 => fails, 2 => killed]
}

fn step() -> impl Strategy<Value = Step> {
    let seconds = prop::sample::select(vec![1, 5, 30, 61, 700, 3700, 86_400, 8 * 86_400]);
    prop_oneof![
        4 => (0..KEYS.len(), 0..FILES.len()).prop_map(|(key, file)| Step::Put(key, file)),
        2 => (0..KEYS.len()).prop_map(Step::TakeAway),
        6 => (any::<usize>(), prop::bool::weighted(0.2), trouble())
            .prop_map(|(which, comes_again, trouble)| Step::Deliver { which, comes_again, trouble }),
        3 => (any::<usize>(), trouble()).prop_map(|(which, trouble)| Step::Serve(which, trouble)),
        3 => trouble().prop_map(Step::Request),
        2 => seconds.prop_map(Step::Pass),
        1 => trouble().prop_map(Step::Prune),
    ]
}

/// The world, the work in progress, and the reference.
struct Run {
    world: World,
    events: Vec<UploadEvent>,
    kills: u32,
    /// The reference: the file at each key.
    files: BTreeMap<usize, usize>,
}

impl Run {
    /// Does something that may fail. Returns whether it succeeded.
    async fn meet<T, E>(
        &mut self,
        trouble: Trouble,
        work: impl Future<Output = Result<T, E>>,
    ) -> bool {
        let world = self.world.clone();
        let number = |operation, nth| world.faults.calls(operation) + nth;
        match trouble {
            Trouble::None => {}
            Trouble::Fails(operation, nth, how) => {
                world.faults.fail(operation, number(operation, nth), how);
            }
            Trouble::Killed(operation, nth) if self.kills < MAX_KILLS => {
                self.kills += 1;
                let never = || std::future::pending::<()>();
                world
                    .faults
                    .interrupt(operation, number(operation, nth), never);
            }
            Trouble::Killed(..) => {}
        }
        // Time passes only while the work waits for something that never comes.
        let limit = Duration::from_secs(1);
        let ended = tokio::time::timeout(limit, work).await;
        world.faults.heal();
        world.check();
        matches!(ended, Ok(Ok(_)))
    }

    async fn step(&mut self, step: Step) {
        let world = self.world.clone();
        match step {
            Step::Put(key, file) => {
                self.files.insert(key, file);
                self.events
                    .push(world.put(KEYS[key], fixture(FILES[file].0)));
            }
            Step::TakeAway(key) if self.files.remove(&key).is_some() => {
                self.events.push(world.take_away(KEYS[key]));
            }
            Step::TakeAway(_) => {}
            Step::Deliver {
                which,
                comes_again,
                trouble,
            } if !self.events.is_empty() => {
                let which = which % self.events.len();
                let event = self.events[which].clone();
                let is_done = self.meet(trouble, world.deliver(&event)).await;
                if is_done && !comes_again {
                    self.events.remove(which);
                }
            }
            Step::Deliver { .. } => {}
            Step::Serve(which, trouble) => {
                let mut waiting = world.queues.drain();
                if !waiting.is_empty() {
                    let sent = waiting.remove(which % waiting.len());
                    world.pass(sent.delay).await;
                    let is_done = self.meet(trouble, world.serve(&sent.message)).await;
                    waiting.extend((!is_done).then_some(sent));
                }
                self.send_back(waiting).await;
            }
            Step::Request(trouble) => {
                let (instance, crash) = (world.another_instance(), sample_crash());
                let answer = instance.answer(&crash, &Scope::Global, Duration::ZERO);
                self.meet(trouble, answer).await;
            }
            Step::Pass(seconds) => world.pass(Duration::from_secs(seconds)).await,
            Step::Prune(trouble) => {
                self.meet(trouble, world.prune()).await;
            }
        }
    }

    /// Puts received messages back into the queues.
    async fn send_back(&self, waiting: Vec<symdepot::adapters::memory::SentMessage>) {
        use symdepot::ports::Queues;
        for sent in waiting {
            self.world
                .queues
                .send(&[sent.message], sent.delay)
                .await
                .unwrap();
        }
    }

    /// Delivers everything that waits, until nothing does, and all leases and back-offs have ended.
    async fn settle(&mut self) {
        for _ in 0..2 {
            // A builder that was killed may still have the lease.
            self.world.pass(Duration::from_secs(900)).await;
            for event in self.events.clone() {
                self.world.deliver(&event).await.unwrap();
            }
            self.world.settle().await;
        }
        self.events.clear();
    }

    /// The reference: the best existing file, and its key.
    fn best(&self) -> Option<(&'static str, &'static str)> {
        let best = self
            .files
            .iter()
            .min_by_key(|(key, file)| (FILES[**file].1, **key));
        best.map(|(key, file)| (KEYS[*key], FILES[*file].0))
    }

    async fn compare(&self) {
        let names = function_names(
            &self
                .world
                .another_instance()
                .symbolicate(&sample_crash())
                .await,
        );
        self.world.check();
        let ready = self.world.entry("global", CRASH, Kind::SymCache);
        let ready = ready.and_then(|entry| entry.ready().cloned());
        let Some((key, file)) = self.best() else {
            assert_eq!(ready, None, "a removed file is served");
            assert!(names.iter().all(|name| name == "?"), "{names:?}");
            return;
        };
        let other = World::new();
        let upload = other.upload(key, file).await;
        assert_eq!(
            names,
            function_names(&other.symbolicate(&sample_crash()).await)
        );
        let made_from = ready.unwrap().made_from;
        assert_eq!(
            (made_from[0].location.as_str(), &made_from[0].etag),
            (key, &upload.etag)
        );
    }
}

async fn run(steps: Vec<Step>) {
    let mut run = Run {
        world: World::new(),
        events: Vec::new(),
        kills: 0,
        files: BTreeMap::new(),
    };
    for step in steps {
        run.step(step).await;
    }
    run.settle().await;
    run.compare().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn final_responses_equal_the_reference_after_any_sequence_of_events(steps in prop::collection::vec(step(), 1..25)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(run(steps));
    }
}
