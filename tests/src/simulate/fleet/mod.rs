//! The fleet: instances of the three functions, the queues between them, and the scheduler that
//! decides at each call which instance continues.

mod deploys;
mod downloads;
mod ending;
mod launch;
mod programs;
mod queues;
mod requests;
mod users;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use symdepot::domain::Location;
use symdepot::flows::HttpService;
use symdepot::flows::build::Builder;
use symdepot::flows::ms_symcache::SymCacheResponse;
use symdepot::flows::prune::Pruner;
use symdepot::flows::symbolicate::SymbolicateOutcome;
use symdepot::flows::uploads::{ReconcileMessage, UploadEvent};
use symdepot::flows::{Invocation, Settings};
use symdepot::ports::QueueMessage;

use self::deploys::Deployed;
use self::downloads::IssuedUrl;
use super::chance::Chance;
use super::coverage::Listener;
use super::faults::Faults;
use super::gate::Fate;
use super::instance::{Instance, Polled};
use super::mistakes::Mistake;
use super::ports::Ports;
use super::releases::Release;
use super::stores::{Counts, Stores};
use super::truth::Truth;
use super::workload::{self, Action};
use super::{EPOCH, Moment, Plan, describe, servers};
use crate::harness::test_settings;

/// The time limits of the functions, as in the template.
const SYMBOLICATE_TIME: Duration = Duration::from_secs(29);
const DERIVE_TIME: Duration = Duration::from_secs(900);

/// How long the gateway waits for a response: 30 s at most, for an HTTP API. A function that was
/// frozen meanwhile ends later, and its client gets an error.
const GATEWAY_WAITS: Duration = Duration::from_secs(30);

/// How long a received message is invisible, and how often it is received, as in the template.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(960);
const MAX_RECEIVES: u32 = 6;

/// A message that failed is received again within this time.
const LONGEST_RETRY: Duration = Duration::from_secs(900);

/// How long what has begun may go on in the end: messages are received six times.
const LAST: Duration = Duration::from_secs(4 * 3600);

/// How often every module is requested in the end, when nothing changes any more.
const LAST_ROUNDS: u32 = 12;

/// How often the pruner runs in the end.
const LAST_PASSES_EVERY: Duration = Duration::from_secs(4 * 3600);

/// How long work waits for an instance that is idle.
const NO_INSTANCE: Duration = Duration::from_millis(300);

/// A function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) enum Function {
    Symbolicate,
    Derive,
    Prune,
}

/// The flows of an instance.
enum Flows {
    Symbolicate(HttpService),
    Builder(Builder),
    Pruner(Pruner),
}

/// One instance of the fleet.
struct Member {
    instance: Instance<Done>,
    ports: Ports,
    flows: Flows,
    function: Function,
    release: Release,
    /// Whether it has the further symbol server.
    is_configured: bool,
    /// Whether its invocation began when nothing was disturbed any more.
    began_calmly: bool,
}

/// The content of a message.
#[derive(Clone, Debug)]
enum Body {
    Event(UploadEvent),
    Build(QueueMessage),
    Reconcile(ReconcileMessage),
}

impl Body {
    fn hops(&self) -> u32 {
        match self {
            Self::Event(_) => 0,
            Self::Build(message) => message.hops,
            Self::Reconcile(message) => message.hops,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Event(event) => format!("{:?} {}", event.change, event.key),
            Self::Build(message) => describe::message(message),
            Self::Reconcile(message) => format!("reconcile {}", message.key),
        }
    }
}

/// A message in a queue.
#[derive(Clone, Debug)]
struct Message {
    body: Body,
    receives: u32,
    /// It is visible from this time. Earlier appointments are void.
    visible_at: Moment,
    /// Whether it was sent when nothing was disturbed any more.
    is_calm: bool,
}

/// What a client wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    /// The names of functions.
    Names,
    /// The names of functions in a program whose debug information is in several files.
    NamesOfProgram(usize),
    /// One of Microsoft's SymCaches. Whether the client obeys a response that asks for a retry.
    File {
        retries: bool,
        /// The minor number of the version that it has.
        present: Option<u8>,
    },
    /// The state of the entries.
    Explanation,
}

/// A request whose response was `pending`, and since when.
#[derive(Clone, Debug)]
struct Kept {
    id: String,
    since: Moment,
}

/// A request of a client.
#[derive(Clone, Debug)]
struct Asked {
    scope: &'static str,
    modules: Vec<usize>,
    wait: Duration,
    wants: Wants,
    /// How often the client asks again after `pending`.
    repeats: u32,
    /// The client expects what the reference says.
    is_final: bool,
    /// The request that the client continues by its id.
    kept: Option<Kept>,
}

/// How an invocation ended.
enum Done {
    /// A message: the reason if it failed, and whether it is received again soon.
    Message(u64, Result<(), (String, bool)>),
    Answer(Asked, Moment, Box<Result<SymbolicateOutcome, String>>),
    /// No request is stored under the id that a client sent.
    Unknown(Asked, Kept),
    File(Asked, Moment, Result<SymCacheResponse, String>),
    Explained(Result<(), String>),
    Pruned(Result<(), String>),
}

/// Something that happens at a time.
enum Appointment {
    Act(Action),
    Deliver(u64),
    Ask(Asked),
    Prune,
    /// From now on nothing is disturbed, and one release runs.
    CalmDown,
    /// Every module is requested. Whether the responses are compared with the reference.
    AskForAll(bool),
    /// From now on, what is built, sent and written is bounded.
    CountLast,
    /// Nothing new begins.
    End,
}

/// The fleet.
pub(super) struct Fleet {
    plan: Plan,
    pub(super) stores: Arc<Stores>,
    settings: Settings,
    deployed: Deployed,
    /// The functions that have the further symbol server.
    configured: BTreeSet<Function>,
    members: Vec<Member>,
    appointments: BTreeMap<(Moment, u64), Appointment>,
    messages: BTreeMap<u64, Message>,
    truth: Truth,
    now: Moment,
    /// Counts whatever needs a number.
    drawn: u64,
    schedule: Chance,
    faults: Faults,
    is_calm: bool,
    /// When nothing new began any more.
    ended_at: Option<Moment>,
    /// When a release was last deployed.
    deployed_at: Moment,
    /// The counts and the number of entries before the last requests, and when that was.
    before_last: Option<(Moment, Counts, usize)>,
    listener: Listener,
    /// Requests whose client still waits for what the reference says.
    awaited: u64,
    /// The URLs that clients got.
    issued: Vec<IssuedUrl>,
}

impl Fleet {
    pub(super) fn new(plan: Plan, stores: Arc<Stores>) -> Self {
        let mut settings = test_settings();
        settings.policy.derived_max_unused = plan.max_unused;
        settings.derived_budget_bytes = plan.budget;
        if plan.has_servers {
            settings.sources = servers::sources(false);
            settings.dif_max_unused = plan.max_unused;
        }
        let mut fleet = Self {
            schedule: Chance::of(plan.schedule, 2),
            faults: Faults::new(&plan),
            stores,
            settings,
            deployed: Deployed::default(),
            configured: BTreeSet::new(),
            members: Vec::new(),
            appointments: BTreeMap::new(),
            messages: BTreeMap::new(),
            truth: Truth::new(plan.has_servers, plan.adds_server),
            now: Moment::ZERO,
            drawn: 0,
            is_calm: false,
            ended_at: None,
            deployed_at: Moment::ZERO,
            before_last: None,
            listener: Listener::default(),
            awaited: 0,
            issued: Vec::new(),
            plan,
        };
        fleet.name_partitions();
        for (function, count) in [
            (Function::Symbolicate, fleet.plan.symbolicates),
            (Function::Derive, fleet.plan.derives),
            (Function::Prune, fleet.plan.prunes),
        ] {
            for _ in 0..count {
                let member = fleet.launch(function, Release::Older);
                fleet.members.push(member);
            }
        }
        fleet.make_appointments();
        fleet
    }

    fn name_partitions(&self) {
        let mut ledger = self.stores.ledger();
        for scope in workload::SCOPES {
            for module in 0..self.plan.modules {
                let partition = workload::module_key(scope, module).partition();
                ledger.labels.add(partition, format!("m{module}@{scope}"));
                for slot in 0..3 {
                    let key = format!("{scope}/m{module}-{slot}");
                    let item = symdepot::cache::ItemKey::upload(&Location::new(key.as_str()));
                    ledger.labels.add(item.partition, key);
                }
            }
            let generation = symdepot::cache::ItemKey::generation(&workload::scope(scope));
            ledger.labels.add(generation.partition, scope.to_owned());
        }
    }

    fn make_appointments(&mut self) {
        for (at, action) in self.plan.actions.clone() {
            self.appoint(at, Appointment::Act(action));
        }
        let hour = Duration::from_secs(3600);
        let calm = self.plan.busy_for;
        self.appoint(calm, Appointment::CalmDown);
        // Every cause of a miss ends within a day, and so does every wait for the pruner.
        let settled = calm + 28 * hour;
        // A request may get a cache that is ready, and begin the build of a better one.
        self.appoint(settled - hour, Appointment::AskForAll(false));
        self.appoint(settled, Appointment::AskForAll(true));
        // Now every entry is as good as it gets: however often it is requested, nothing is built
        // again, except for what is removed in between.
        let last = settled + 2 * hour;
        self.appoint(last, Appointment::CountLast);
        for round in 0..LAST_ROUNDS {
            let at = last + Duration::from_secs(600) * round;
            self.appoint(at, Appointment::AskForAll(false));
        }
        // Blobs are listed once a day: orphans are removed in one of two passes.
        let end = settled + 60 * hour;
        self.appoint(end, Appointment::End);
        let mut at = Duration::from_secs(600);
        while at < end {
            self.appoint(at, Appointment::Prune);
            at += if at < calm {
                self.plan.prunes_every
            } else if at < calm + 4 * hour {
                hour
            } else {
                LAST_PASSES_EVERY
            };
        }
    }

    fn appoint(&mut self, at: Moment, appointment: Appointment) {
        self.drawn += 1;
        self.appointments
            .insert((at.max(self.now), self.drawn), appointment);
    }

    fn note(&self, line: impl FnOnce() -> String) {
        self.stores.ledger().note(line);
    }

    fn fail(&self, property: &'static str, detail: String) {
        self.stores.ledger().fail(property, detail);
    }

    /// Runs until nothing is left to do, or until a property does not hold.
    pub(super) fn run(&mut self) {
        let _listening = tracing::subscriber::set_default(self.listener.clone());
        while self.stores.ledger().failure.is_none() && !self.is_overdue() {
            self.keep_appointments();
            let candidates: Vec<usize> = (0..self.members.len())
                .filter(|at| self.members[*at].instance.can_continue(self.now))
                .collect();
            if candidates.is_empty() {
                let Some(next) = self.next_time() else {
                    break;
                };
                self.set_now(next);
                continue;
            }
            let at = self.choose(&candidates);
            self.step(at);
        }
        if self.stores.ledger().failure.is_none() {
            self.check_end();
        }
        for member in &mut self.members {
            member.instance.kill();
        }
    }

    /// Returns whether something goes on although nothing new begins.
    fn is_overdue(&self) -> bool {
        self.ended_at.is_some_and(|ended| self.now > ended + LAST)
    }

    fn set_now(&mut self, now: Moment) {
        self.now = now.max(self.now);
        self.stores.set_now(self.now);
    }

    fn next_time(&self) -> Option<Moment> {
        let members = self.members.iter();
        let continues = members.filter_map(|member| member.instance.continues_at());
        let appointment = self.appointments.keys().next().map(|(at, _)| *at);
        continues.chain(appointment).min()
    }

    /// Chooses who continues.
    fn choose(&mut self, candidates: &[usize]) -> usize {
        let weight = |at: &usize| u64::from(self.members[*at].instance.weight);
        let all: u64 = candidates.iter().map(weight).sum();
        let mut drawn = self.schedule.below(all.max(1));
        for at in candidates {
            let weight = weight(at);
            if drawn < weight {
                return *at;
            }
            drawn -= weight;
        }
        candidates[0]
    }

    /// Lets one instance continue.
    fn step(&mut self, at: usize) {
        self.stores.ledger().counts.steps += 1;
        let passes = self.schedule.below(6000);
        self.set_now(self.now + Duration::from_micros(passes));
        if self.members[at].instance.is_out_of_time(self.now) {
            if self.members[at].began_calmly {
                let name = &self.members[at].instance.name;
                self.fail("6: every wait ends", format!("{name} runs out of time"));
            }
            self.kill(at, "is out of time");
            return;
        }
        if !self.is_calm && self.disturb(at) {
            return;
        }
        let ready = self.members[at].instance.gate.ready(self.now);
        if !ready.is_empty() {
            let (id, call) = ready[self.schedule.index(ready.len())];
            if !self.is_calm
                && call.is_remote()
                && let Some(time) = self.faults.detour()
            {
                self.members[at].instance.postpone(id, self.now, time);
                return;
            }
            let fate = self.faults.fate(call, self.is_calm);
            if fate != Fate::Succeeds && call.is_remote() {
                self.stores.ledger().counts.faults += 1;
            }
            self.stores.ledger().coverage.fate(call, fate);
            self.members[at].instance.gate.let_pass(id, fate);
        }
        let polled = self.members[at].instance.poll(self.now);
        self.hear(at);
        self.collect_messages();
        if let Polled::Ended(done) = polled {
            self.end(at, done);
        }
    }

    /// Counts the changes that an instance has made.
    fn hear(&self, at: usize) {
        let heard = self.listener.take();
        if heard.is_empty() {
            return;
        }
        let mut ledger = self.stores.ledger();
        let mixture = ledger.mixture(self.members[at].release);
        for traced in heard {
            ledger.coverage.traced(mixture, traced);
        }
    }

    /// Begins an invocation.
    fn invocation(
        &mut self,
        at: usize,
        time: Duration,
    ) -> (Moment, impl FnOnce() -> Invocation + use<>) {
        self.drawn += 1;
        let id = format!("invocation-{}", self.drawn);
        let seed = self.schedule.seed();
        let member = &mut self.members[at];
        member.ports.begin(&id);
        member.began_calmly = self.is_calm;
        member.instance.weight = self.faults.weight();
        let error = member.instance.clock_error;
        let wall_clock = match self.stores.mistake {
            Some(Mistake::MemoryIgnoresTheWallClock) => member.instance.monotonic_time(self.now),
            _ => self.now,
        };
        let set = Duration::from_secs(error.unsigned_abs());
        let epoch = if error < 0 {
            EPOCH + wall_clock - set
        } else {
            EPOCH + wall_clock + set
        };
        (self.now, move || Invocation::new(id, epoch, time, seed))
    }

    /// Does what is due.
    fn keep_appointments(&mut self) {
        while let Some(entry) = self.appointments.first_entry()
            && entry.key().0 <= self.now
        {
            match entry.remove() {
                Appointment::Act(action) => self.act(action),
                Appointment::Deliver(id) => self.deliver(id),
                Appointment::Ask(asked) => self.ask(asked),
                Appointment::Prune => self.prune(),
                Appointment::CalmDown => {
                    self.note(|| "from now on nothing is disturbed".to_owned());
                    self.is_calm = true;
                    self.stores.ledger().garbles_reads = false;
                    self.end_deploys();
                }
                Appointment::CountLast => {
                    let entries = self.stores.entries().len();
                    self.before_last = Some((self.now, self.stores.ledger().counts, entries));
                }
                Appointment::AskForAll(is_final) => self.ask_for_all(is_final),
                Appointment::End => self.ended_at = Some(self.now),
            }
        }
    }
}
