//! The fleet: instances of the three functions, the queues between them, and the scheduler that
//! decides at each call which instance continues.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use symdepot::adapters::demangler::InProcessDemangler;
use symdepot::adapters::memory::{
    MemoryAttachments, MemoryDifs, MemoryRemoteFiles, MemoryServers, SentMessage, SentReconcile,
};
use symdepot::cache::{Entry, Item, UploadState};
use symdepot::domain::{Cause, DifRef, Location, Sequencer};
use symdepot::flows::build::Builder;
use symdepot::flows::memory::Memory;
use symdepot::flows::prune::Pruner;
use symdepot::flows::requests::RequestToKeep;
use symdepot::flows::symbolicate::{Kept, SymbolicateOutcome, Symbolicator};
use symdepot::flows::uploads::{ReconcileMessage, UploadChange, UploadEvent};
use symdepot::flows::{Invocation, Settings};
use symdepot::ports::{DifReader, DifStat, QueueMessage, Received};

use super::chance::Chance;
use super::faults::Faults;
use super::instance::{Instance, Polled};
use super::mistakes::Mistake;
use super::ports::Ports;
use super::stores::{Stores, Writer};
use super::truth::Truth;
use super::workload::{self, Action, File};
use super::{EPOCH, Moment, Plan, describe};
use crate::harness::test_settings;

/// The time limits of the functions, as in the template.
const SYMBOLICATE_TIME: Duration = Duration::from_secs(29);
const DERIVE_TIME: Duration = Duration::from_secs(900);

/// How long a received message is invisible, and how often it is received, as in the template.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(960);
const MAX_RECEIVES: u32 = 6;

/// How long work waits for an instance that is idle.
const NO_INSTANCE: Duration = Duration::from_millis(300);

/// A function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Function {
    Symbolicate,
    Derive,
    Prune,
}

/// The flows of an instance.
enum Flows {
    Symbolicator(Symbolicator),
    Builder(Builder),
    Pruner(Pruner),
}

/// One instance of the fleet.
struct Member {
    instance: Instance<Done>,
    ports: Ports,
    flows: Flows,
    function: Function,
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
    fn text(&self) -> String {
        match self {
            Self::Event(event) => format!("{:?} {}", event.change, event.key),
            Self::Build(message) => describe::message(message),
            Self::Reconcile(message) => format!("reconcile {}", message.reconcile),
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
}

/// A request of a client.
#[derive(Clone, Debug)]
struct Asked {
    scope: &'static str,
    modules: Vec<usize>,
    wait: Duration,
    /// How often the client asks again after `pending`.
    repeats: u32,
    /// The client expects what the reference says.
    is_final: bool,
}

/// How an invocation ended.
enum Done {
    Message(u64, Result<(), String>),
    Answer(Asked, Moment, Box<Result<SymbolicateOutcome, String>>),
    Pruned(Result<(), String>),
}

/// Something that happens at a time.
enum Appointment {
    Act(Action),
    Deliver(u64),
    Ask(Asked),
    Prune,
    /// From now on nothing is disturbed.
    CalmDown,
    /// Every module is requested. Whether the responses are compared with the reference.
    AskForAll(bool),
    /// Nothing new begins.
    End,
}

/// The fleet.
pub(super) struct Fleet {
    plan: Plan,
    pub(super) stores: Arc<Stores>,
    settings: Settings,
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
    has_ended: bool,
    /// Requests whose client still waits for what the reference says.
    awaited: u64,
}

impl Fleet {
    pub(super) fn new(plan: Plan, stores: Arc<Stores>) -> Self {
        let mut settings = test_settings();
        settings.policy.derived_max_unused = plan.max_unused;
        let mut fleet = Self {
            schedule: Chance::of(plan.schedule, 2),
            faults: Faults::new(&plan),
            stores,
            settings,
            members: Vec::new(),
            appointments: BTreeMap::new(),
            messages: BTreeMap::new(),
            truth: Truth::default(),
            now: Moment::ZERO,
            drawn: 0,
            is_calm: false,
            has_ended: false,
            awaited: 0,
            plan,
        };
        fleet.name_partitions();
        for (function, count) in [
            (Function::Symbolicate, fleet.plan.symbolicates),
            (Function::Derive, fleet.plan.derives),
            (Function::Prune, fleet.plan.prunes),
        ] {
            for _ in 0..count {
                let member = fleet.launch(function);
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
        // A request may get what there is, and begin a build that is better.
        self.appoint(settled - hour, Appointment::AskForAll(false));
        self.appoint(settled, Appointment::AskForAll(true));
        let end = settled + 30 * hour;
        self.appoint(end, Appointment::End);
        let mut at = Duration::from_secs(600);
        while at < end {
            self.appoint(at, Appointment::Prune);
            at += if at < calm {
                self.plan.prunes_every
            } else if at < calm + 4 * hour {
                hour
            } else {
                4 * hour
            };
        }
    }

    fn appoint(&mut self, at: Moment, appointment: Appointment) {
        self.drawn += 1;
        self.appointments
            .insert((at.max(self.now), self.drawn), appointment);
    }

    fn note(&self, line: &str) {
        self.stores.ledger().note(line);
    }

    fn fail(&self, property: &'static str, detail: String) {
        self.stores.ledger().fail(property, detail);
    }

    /// Starts an instance.
    fn launch(&mut self, function: Function) -> Member {
        self.drawn += 1;
        let name = format!("{function:?}-{}", self.drawn).to_lowercase();
        let clock_error = match self.plan.clocks_differ {
            true => 60 - i64::try_from(self.schedule.below(121)).unwrap_or(0),
            false => 0,
        };
        let instance = Instance::new(name.clone(), self.now, clock_error);
        let writer = Writer {
            instance: name,
            invocation: String::new(),
        };
        let ports = Ports::new(self.stores.clone(), instance.gate.clone(), writer);
        let settings = self.settings.clone();
        let each = Arc::new(ports.clone());
        let flows = match function {
            Function::Symbolicate => Flows::Symbolicator(Symbolicator {
                records: each.clone(),
                caches: each.clone(),
                // Clients of this workload write to the bucket themselves.
                uploads: Arc::new(MemoryDifs::new()),
                queues: each,
                attachments: Arc::new(MemoryAttachments::default()),
                remote_files: Arc::new(MemoryRemoteFiles::default()),
                demangler: Arc::new(InProcessDemangler),
                memory: Arc::new(Memory::new(
                    settings.memory_cache_bytes,
                    settings.policy.retry_misses_after,
                )),
                settings,
            }),
            Function::Derive => Flows::Builder(Builder {
                records: each.clone(),
                caches: each.clone(),
                uploads: each.clone(),
                servers: Arc::new(MemoryServers::new()),
                queues: each.clone(),
                deriver: each,
                settings,
            }),
            Function::Prune => Flows::Pruner(Pruner {
                records: each.clone(),
                caches: each.clone(),
                uploads: each.clone(),
                listing: each.clone(),
                queues: each,
                settings,
            }),
        };
        Member {
            instance,
            ports,
            flows,
            function,
            began_calmly: false,
        }
    }

    /// Runs until nothing is left to do, or until a property does not hold.
    pub(super) fn run(&mut self) {
        while self.stores.ledger().failure.is_none() {
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
            if fate != super::gate::Fate::Succeeds && call.is_remote() {
                self.stores.ledger().counts.faults += 1;
            }
            self.stores.ledger().coverage.fate(call, fate);
            self.members[at].instance.gate.let_pass(id, fate);
        }
        let polled = self.members[at].instance.poll(self.now);
        self.collect_messages();
        if let Polled::Ended(done) = polled {
            self.end(at, done);
        }
    }

    /// Freezes or kills an instance. Returns whether it did.
    fn disturb(&mut self, at: usize) -> bool {
        if let Some((time, stands_still)) = self.faults.freeze() {
            let instance = &mut self.members[at].instance;
            instance.freeze(self.now, time, stands_still);
            let clock = if stands_still { "stopped" } else { "running" };
            let line = format!(
                "{} is frozen for {} s, its clock is {clock}",
                instance.name,
                time.as_secs()
            );
            self.note(&line);
            self.stores.ledger().counts.freezes += 1;
            return true;
        }
        if self.faults.kills() {
            self.stores.ledger().counts.kills += 1;
            self.kill(at, "is killed");
            return true;
        }
        false
    }

    /// Kills an instance, and starts another one in its place.
    fn kill(&mut self, at: usize, how: &str) {
        let function = self.members[at].function;
        self.members[at].instance.kill();
        let successor = self.launch(function);
        let line = format!(
            "{} {how}, {} is started",
            self.members[at].instance.name, successor.instance.name
        );
        self.note(&line);
        self.members[at] = successor;
    }

    /// Returns an idle instance of a function.
    fn idle(&mut self, function: Function) -> Option<usize> {
        let is_idle = |at: &usize| {
            let member = &self.members[*at];
            let instance = &member.instance;
            member.function == function
                && !instance.is_running()
                && instance.frozen_until <= self.now
        };
        let idle: Vec<usize> = (0..self.members.len()).filter(is_idle).collect();
        (!idle.is_empty()).then(|| idle[self.schedule.index(idle.len())])
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
        let epoch = match error < 0 {
            true => EPOCH + wall_clock - set,
            false => EPOCH + wall_clock + set,
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
                    self.note("from now on nothing is disturbed");
                    self.is_calm = true;
                }
                Appointment::AskForAll(is_final) => self.ask_for_all(is_final),
                Appointment::End => self.has_ended = true,
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Put(key, file) => self.put(&key, &file),
            Action::Remove(key) if self.truth.has(&key) => {
                self.note(&format!("a user removes {key}"));
                self.stores.uploads.remove(&Location::new(key.as_str()));
                let sequencer = self.sequencer();
                self.truth.change(&key, None, &sequencer, self.now);
                self.send_event(UploadEvent {
                    key,
                    sequencer,
                    change: UploadChange::Removed,
                    written: None,
                });
            }
            Action::Remove(_) => {}
            Action::Crash {
                scope,
                modules,
                wait,
            } => self.ask(Asked {
                scope,
                modules,
                wait,
                repeats: 2,
                is_final: false,
            }),
            Action::Damage(which, is_removed) => self.damage(which, is_removed),
        }
    }

    fn put(&mut self, key: &str, file: &File) {
        let names: Vec<String> = file
            .symbols()
            .iter()
            .map(|symbols| symbols.function())
            .collect();
        let bytes = file.bytes();
        let size = bytes.len() as u64;
        let etag = self.stores.uploads.put(&Location::new(key), bytes);
        let names = names.join(", ");
        self.note(&format!(
            "a user uploads {key}: {names} etag {}",
            describe::short(&etag)
        ));
        let sequencer = self.sequencer();
        self.truth.change(key, Some(file), &sequencer, self.now);
        self.send_event(UploadEvent {
            key: key.to_owned(),
            sequencer,
            change: UploadChange::Created,
            written: Some(DifStat { etag, size }),
        });
    }

    fn sequencer(&mut self) -> Sequencer {
        self.drawn += 1;
        Sequencer::new(format!("{:018X}", self.drawn))
    }

    fn damage(&mut self, which: u64, is_removed: bool) {
        let paths = self.stores.caches.paths();
        let derived: Vec<&String> = paths
            .iter()
            .filter(|path| path.starts_with("derived/"))
            .collect();
        let Some(path) = derived.get(usize::try_from(which).unwrap_or(0) % derived.len().max(1))
        else {
            return;
        };
        let how = if is_removed { "removed" } else { "damaged" };
        self.note(&format!("the blob {} is {how}", describe::path(path)));
        self.stores.ledger().damaged.push((*path).clone());
        match is_removed {
            true => self.stores.caches.lose(path),
            false => self.stores.caches.overwrite(path, "damaged"),
        }
    }

    // Messages.

    fn send_event(&mut self, event: UploadEvent) {
        self.enqueue(Body::Event(event), Duration::ZERO);
    }

    fn collect_messages(&mut self) {
        for SentMessage { message, delay } in self.stores.queues.drain() {
            self.enqueue(Body::Build(message), delay);
        }
        for SentReconcile { message, delay } in self.stores.queues.drain_reconcile_messages() {
            self.enqueue(Body::Reconcile(message), delay);
        }
        for (received, delay) in self.stores.queues.drain_retried() {
            let receipt = received.receipt.split('#').next();
            if let Some(id) = receipt.and_then(|id| id.parse().ok()) {
                self.show(id, delay);
            }
        }
    }

    /// Adds a message to a queue, perhaps twice or not at all.
    fn enqueue(&mut self, body: Body, delay: Duration) {
        let (copies, late) = match self.is_calm {
            true => (1, Duration::from_millis(20)),
            false => self.faults.delivery(),
        };
        if copies == 0 {
            self.note(&format!("a message is lost: {}", body.text()));
        }
        for _ in 0..copies {
            self.drawn += 1;
            let id = self.drawn;
            let message = Message {
                body: body.clone(),
                receives: 0,
                visible_at: self.now,
            };
            self.messages.insert(id, message);
            let late = late.mul_f64(0.5 + self.schedule.fraction());
            self.show(id, delay + late);
        }
    }

    /// Makes a message visible after a time.
    fn show(&mut self, id: u64, after: Duration) {
        let at = self.now + after;
        if let Some(message) = self.messages.get_mut(&id) {
            message.visible_at = at;
            self.appoint(at, Appointment::Deliver(id));
        }
    }

    fn deliver(&mut self, id: u64) {
        let Some(message) = self.messages.get(&id) else {
            return;
        };
        if message.visible_at > self.now {
            return;
        }
        let Some(at) = self.idle(Function::Derive) else {
            self.show(id, NO_INSTANCE);
            return;
        };
        let Some(message) = self.messages.get_mut(&id) else {
            return;
        };
        message.receives += 1;
        let (receives, mut body) = (message.receives, message.body.clone());
        if receives > MAX_RECEIVES {
            self.messages.remove(&id);
            self.stores.ledger().counts.dead_letters += 1;
            self.note(&format!("dead letter: {}", body.text()));
            if self.settled_within().is_some() {
                self.fail("no dead letters", body.text());
            }
            return;
        }
        self.show(id, VISIBILITY_TIMEOUT);
        if let (Some(Mistake::SequencersAreIgnored), Body::Event(event)) =
            (self.stores.mistake, &mut body)
        {
            event.sequencer = self.sequencer();
        }
        let name = self.members[at].instance.name.clone();
        self.note(&format!(
            "{name} receives message {id}, {receives} times: {}",
            body.text()
        ));
        let (now, begin) = self.invocation(at, DERIVE_TIME);
        let member = &mut self.members[at];
        let Flows::Builder(builder) = &member.flows else {
            return;
        };
        let builder = builder.clone();
        member.instance.start(now, DERIVE_TIME, || {
            let invocation = begin();
            async move {
                let served = match &body {
                    Body::Event(event) => builder.upload(&invocation, event).await,
                    Body::Build(message) => Box::pin(builder.serve(&invocation, message)).await,
                    Body::Reconcile(message) => builder.reconcile(&invocation, message).await,
                };
                if served.is_err() {
                    let received = Received {
                        queue: "arn:aws:sqs:::queue".to_owned(),
                        receipt: format!("{id}#{receives}"),
                    };
                    // As in the function: otherwise the message is visible after its timeout.
                    let _ = builder.retry_later(&received, receives).await;
                }
                Done::Message(id, served.map_err(|error| error.to_string()))
            }
        });
    }

    // Requests and prune runs.

    fn ask(&mut self, asked: Asked) {
        let Some(at) = self.idle(Function::Symbolicate) else {
            self.appoint(self.now + NO_INSTANCE, Appointment::Ask(asked));
            return;
        };
        let name = self.members[at].instance.name.clone();
        let Asked {
            scope,
            modules,
            wait,
            ..
        } = &asked;
        let seconds = wait.as_secs();
        self.note(&format!(
            "{name} is asked by {scope} for {modules:?}, waits {seconds} s"
        ));
        let (now, begin) = self.invocation(at, SYMBOLICATE_TIME);
        let member = &mut self.members[at];
        let Flows::Symbolicator(symbolicator) = &member.flows else {
            return;
        };
        let symbolicator = symbolicator.clone();
        member.instance.start(now, SYMBOLICATE_TIME, || {
            let invocation = begin();
            async move {
                let request = workload::crash(&asked.modules);
                let scope = workload::scope(asked.scope);
                let id = invocation.uuid().to_string();
                let kept = Kept {
                    wait: symbolicator.wait(&invocation, Some(asked.wait)),
                    id: &id,
                    body: Some(RequestToKeep::received(b"{}")),
                    is_overdue: false,
                };
                let answer = symbolicator.answer(&invocation, &request, &scope, kept);
                let answer = Box::pin(answer).await.map_err(|error| error.to_string());
                Done::Answer(asked, now, Box::new(answer))
            }
        });
    }

    fn prune(&mut self) {
        let Some(at) = self.idle(Function::Prune) else {
            return;
        };
        let name = self.members[at].instance.name.clone();
        self.note(&format!("{name} begins"));
        let (now, begin) = self.invocation(at, DERIVE_TIME);
        let member = &mut self.members[at];
        let Flows::Pruner(pruner) = &member.flows else {
            return;
        };
        let pruner = pruner.clone();
        member.instance.start(now, DERIVE_TIME, || {
            let invocation = begin();
            async move {
                let report = Box::pin(pruner.prune(&invocation, false)).await;
                let failure = report.map(|report| report.failure());
                Done::Pruned(match failure {
                    Ok(None) => Ok(()),
                    Ok(Some(error)) | Err(error) => Err(error.to_string()),
                })
            }
        });
    }

    /// Requests every module in every scope.
    fn ask_for_all(&mut self, is_final: bool) {
        self.note("every module is requested");
        let repeats = 20;
        for scope in &workload::SCOPES[..self.plan.scopes] {
            for module in 0..self.plan.modules {
                let asked = Asked {
                    scope,
                    modules: vec![module],
                    wait: Duration::from_secs(25),
                    repeats,
                    is_final,
                };
                self.awaited += u64::from(is_final);
                self.appoint(self.now, Appointment::Ask(asked));
            }
        }
    }

    // Ends of invocations.

    fn end(&mut self, at: usize, done: Done) {
        let name = self.members[at].instance.name.clone();
        if self.members[at].instance.detached_tasks() > 0 {
            self.fail("9: nothing outlives an invocation", name.clone());
        }
        match done {
            Done::Message(id, Ok(())) => {
                self.note(&format!("{name} completes message {id}"));
                self.messages.remove(&id);
            }
            Done::Message(id, Err(error)) => {
                self.note(&format!("{name} fails with message {id}: {error}"));
                self.stores.ledger().counts.errors += 1;
            }
            Done::Answer(asked, began, answer) => self.answered(&name, asked, began, *answer),
            Done::Pruned(Ok(())) => self.note(&format!("{name} ends")),
            Done::Pruned(Err(error)) => {
                self.note(&format!("{name} fails: {error}"));
                self.stores.ledger().counts.errors += 1;
            }
        }
        if !self.is_calm
            && let Some((time, stands_still)) = self.faults.idle()
        {
            self.members[at]
                .instance
                .freeze(self.now, time, stands_still);
        }
        self.update_truth();
    }

    fn answered(
        &mut self,
        name: &str,
        mut asked: Asked,
        began: Moment,
        answer: Result<SymbolicateOutcome, String>,
    ) {
        self.update_truth();
        let (scope, modules) = (asked.scope, asked.modules.clone());
        let completed = match answer {
            Ok(SymbolicateOutcome::Completed(completed, _)) => completed,
            other => {
                let is_error = other.is_err();
                let what = match &other {
                    Err(error) => format!("fails: {error}"),
                    Ok(_) => "pending".to_owned(),
                };
                self.note(&format!("{name} answers {scope} for {modules:?}: {what}"));
                {
                    let counts = &mut self.stores.ledger().counts;
                    counts.errors += u64::from(is_error);
                    counts.pending += u64::from(!is_error);
                }
                let is_last = asked.repeats == 0;
                asked.repeats = asked.repeats.saturating_sub(1);
                match is_last {
                    false => {
                        self.appoint(self.now + Duration::from_secs(3), Appointment::Ask(asked))
                    }
                    true if asked.is_final => {
                        self.fail("6: every wait ends", format!("{scope} {modules:?}: {what}"));
                    }
                    true => {}
                }
                return;
            }
        };
        self.stores.ledger().counts.answers += 1;
        let names = workload::names(&completed);
        self.note(&format!(
            "{name} answers {scope} for {modules:?}: {names:?}"
        ));
        for (module, function) in modules.iter().zip(&names) {
            let objection = function
                .as_ref()
                .and_then(|function| self.truth.objection(function, *module, scope, began));
            if let Some((property, detail)) = objection {
                self.fail(property, detail);
            }
            self.awaited -= u64::from(asked.is_final);
            // Without faults, an event is applied within seconds.
            // A client that does not wait gets what there is, even if its own scope has a file.
            let waits = asked.wait == Duration::from_secs(25);
            let settled_within = self.settled_within().filter(|_| waits);
            let changed_at = self.truth.changed_at(*module);
            let is_settled = settled_within.is_some_and(|time| changed_at + time < began);
            if asked.is_final || (is_settled && !self.is_build_delayed(*module)) {
                self.compare(scope, *module, function.as_deref());
            }
        }
    }

    /// Returns whether a message that requests a build of a module is not delivered yet. A client
    /// that waits less than the delay gets what there is.
    fn is_build_delayed(&self, module: usize) -> bool {
        let label = format!("m{module}");
        let mut delayed = self
            .messages
            .values()
            .filter(|message| message.receives == 0);
        delayed.any(|message| match &message.body {
            Body::Build(build) => {
                let further = build.further.iter().map(|further| &further.module);
                let mut modules = further.chain([&build.module.id]);
                modules.any(|id| workload::label(id) == label)
            }
            Body::Event(_) | Body::Reconcile(_) => false,
        })
    }

    /// Returns the time after a change within which each response is that of the reference.
    fn settled_within(&self) -> Option<Duration> {
        let time = self.faults.settled_within();
        time.filter(|_| !self.plan.damages_blobs)
    }

    /// Compares a name in a response with the reference.
    fn compare(&self, scope: &str, module: usize, function: Option<&str>) {
        let mut best = self.truth.best(scope, module, &self.given_up());
        if self.plan.rates.parsers == 0 {
            // If the parser of one file was killed, another one that is as good may have been used.
            best.truncate(1);
        }
        let is_best = match function {
            Some(function) => best.iter().any(|name| name == function),
            None => best.is_empty(),
        };
        if !is_best {
            let detail = format!("m{module}@{scope}: {function:?} instead of {best:?}");
            self.fail("the answer is that of the reference", detail);
        }
    }

    /// Returns the keys of the files that no builder could read in several attempts. With faults,
    /// these may be good ones.
    fn given_up(&self) -> Vec<String> {
        if self.settled_within().is_some() {
            return Vec::new();
        }
        let items = self.stores.records.items().into_iter();
        let uploads = items.filter_map(|(_, stored)| stored.item.upload().cloned());
        let given_up = uploads.filter(
            |upload| matches!(&upload.state, UploadState::Ignored { reason } if reason.contains("gave up")),
        );
        given_up.map(|upload| upload.key).collect()
    }

    fn update_truth(&mut self) {
        let applied = std::mem::take(&mut self.stores.ledger().applied);
        for (key, sequencer, at) in applied {
            self.truth.applied(&key, &sequencer, at);
        }
    }

    /// Checks that the last build of each entry has considered each file of its module.
    fn check_considered(&self) {
        let given_up = self.given_up();
        // A build that was given up after several attempts has considered nothing.
        let has_crashed = |entry: &Entry| {
            let missing = entry.missing();
            missing.is_some_and(|missing| missing.missing.cause == Cause::Crashed)
        };
        let entries = self.stores.entries().into_iter();
        for entry in entries.filter(|entry| !has_crashed(entry)) {
            let module = entry.module();
            for key in self.truth.keys_of(&module.partition()) {
                let location = Location::new(key);
                let stat = self.stores.uploads.stat(&location).now_or_never();
                let Some(Ok(DifStat { etag, .. })) = stat else {
                    continue;
                };
                let file = DifRef { location, etag };
                let mut made = super::stores::states(&entry);
                let is_considered = entry.considered().contains(&file)
                    || made.any(|ready| ready.made_from.contains(&file));
                if !is_considered && !given_up.iter().any(|given_up| given_up == key) {
                    let text = describe::entry(&entry);
                    let module = describe::module(module);
                    let detail = format!("{module} {}, {key}: {text}", entry.kind());
                    self.fail("5: an upload is never lost", detail);
                }
            }
        }
    }

    /// Checks what is left in the records.
    fn check_items(&self) {
        let items = self.stores.records.items();
        let difs = items
            .iter()
            .filter(|(_, stored)| matches!(stored.item, Item::Dif(_)));
        let modules: BTreeSet<&str> = difs.map(|(key, _)| &*key.partition).collect();
        let is_exact = self.settled_within().is_some();
        for (key, stored) in &items {
            let label = self.stores.ledger().labels.key(key);
            match &stored.item {
                Item::Presence(_) if !modules.contains(&*key.partition) => {
                    self.fail("a presence ends with the last file", label);
                }
                Item::Dif(dif) if is_exact && !self.truth.has(dif.file.location.as_str()) => {
                    self.fail("a removed file is not filed", label);
                }
                Item::Upload(upload) if upload.state == UploadState::Pending => {
                    self.fail("5: each event of an upload ends", upload.key.clone());
                }
                Item::Entry(entry) if is_exact && entry.lease().is_some() => {
                    self.fail("6: no lease stays", describe::entry(entry));
                }
                _ => {}
            }
        }
    }

    /// Checks what holds when nothing is left to do.
    fn check_end(&mut self) {
        if !self.has_ended || self.awaited > 0 {
            self.fail("6: every wait ends", format!("{} requests", self.awaited));
        }
        let left: Vec<String> = self
            .messages
            .values()
            .map(|message| message.body.text())
            .collect();
        if !left.is_empty() {
            self.fail("no message is left", left.join("; "));
        }
        self.check_items();
        self.check_considered();
        let entries = self.stores.entries();
        let named: Vec<&str> = entries
            .iter()
            .flat_map(super::stores::states)
            .map(|ready| &*ready.blob.path)
            .collect();
        let paths = self.stores.caches.paths();
        let derived = paths.iter().filter(|path| path.starts_with("derived/"));
        let orphans: Vec<String> = derived
            .filter(|path| !named.contains(&&***path))
            .map(|path| describe::path(path))
            .collect();
        if !orphans.is_empty() {
            self.fail("7: no orphan exists forever", orphans.join(", "));
        }
        let missing = named
            .iter()
            .filter(|path| !paths.iter().any(|known| known == *path));
        let missing: Vec<String> = missing.map(|path| describe::path(path)).collect();
        if !missing.is_empty() && !self.plan.damages_blobs {
            self.fail("7: no record names a missing blob", missing.join(", "));
        }
    }
}
