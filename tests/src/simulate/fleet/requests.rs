//! Requests and runs of the pruner: how they begin, and what is checked when they end.

use std::collections::BTreeSet;
use std::time::Duration;

use symdepot::flows::HttpService;
use symdepot::flows::Invocation;
use symdepot::flows::requests::{CallState, MAX_PENDING, RequestToStore};
use symdepot::flows::symbolicate::SymbolicateOutcome;

use super::{
    Appointment, Asked, Body, DERIVE_TIME, Done, Fleet, Flows, Function, GATEWAY_WAITS, Kept,
    LONGEST_RETRY, Message, NO_INSTANCE, SYMBOLICATE_TIME, Wants,
};
use crate::harness::stored_request;
use crate::simulate::releases::Release;
use crate::simulate::{Moment, programs, workload};

/// The clocks of two instances differ by less than this.
const CLOCKS_DIFFER: Duration = Duration::from_secs(150);

/// When a client asks again after `pending`; some only when the request is overdue, or when it has
/// expired.
const ASKS_AGAIN_AFTER: [Duration; 16] = {
    let mut after = [Duration::from_secs(3); 16];
    after[7] = Duration::from_secs(20 * 60);
    after[15] = Duration::from_secs(90 * 60);
    after
};

impl Fleet {
    pub(super) fn ask(&mut self, asked: Asked) {
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
        self.note(|| format!("{name} is asked by {scope} for {modules:?}, waits {seconds} s"));
        let (now, begin) = self.invocation(at, SYMBOLICATE_TIME);
        let member = &mut self.members[at];
        let Flows::Symbolicate(service) = &member.flows else {
            return;
        };
        let service = service.clone();
        member.instance.start(now, SYMBOLICATE_TIME, || {
            let invocation = begin();
            async move {
                let scope = workload::scope(asked.scope);
                if let Wants::File { retries, present } = asked.wants {
                    let request = workload::download(asked.scope, asked.modules[0]);
                    let file = service.ms_sym_cache(
                        &invocation,
                        &request,
                        present.map(workload::version),
                        retries,
                    );
                    let file = Box::pin(file).await.map_err(|error| error.to_string());
                    return Done::File(asked, now, file);
                }
                if asked.wants == Wants::Explanation {
                    let module = workload::object_id(asked.modules[0]);
                    let explained = service.explain_module(&invocation, &module, None, &scope);
                    let explained = Box::pin(explained).await;
                    return Done::Explained(
                        explained.map(|_| ()).map_err(|error| error.to_string()),
                    );
                }
                Box::pin(symbolicated(service, invocation, asked, now)).await
            }
        });
    }

    pub(super) fn prune(&mut self) {
        let Some(at) = self.idle(Function::Prune) else {
            return;
        };
        let name = self.members[at].instance.name.clone();
        self.note(|| format!("{name} begins"));
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
    pub(super) fn ask_for_all(&mut self, is_final: bool) {
        self.note(|| "every module is requested".to_owned());
        let repeats = 20;
        for scope in &workload::SCOPES[..self.plan.scopes] {
            for module in 0..self.plan.modules {
                let asked = Asked {
                    scope,
                    modules: vec![module],
                    wait: Duration::from_secs(25),
                    wants: Wants::Names,
                    repeats,
                    is_final,
                    kept: None,
                };
                let file = Asked {
                    wants: Wants::File {
                        retries: false,
                        present: None,
                    },
                    ..asked.clone()
                };
                for asked in [asked, file] {
                    self.awaited += u64::from(is_final);
                    self.appoint(self.now, Appointment::Ask(asked));
                }
            }
            self.ask_for_programs(scope, repeats, is_final);
        }
    }

    pub(super) fn end(&mut self, at: usize, done: Done) {
        let name = self.members[at].instance.name.clone();
        if self.members[at].instance.detached_tasks() > 0 {
            self.fail("9: nothing outlives an invocation", name.clone());
        }
        match done {
            Done::Message(id, Ok(())) => {
                self.note(|| format!("{name} completes message {id}"));
                let message = self.messages.remove(&id);
                if message.is_some_and(|message| matches!(message.body, Body::Event(_))) {
                    self.check_presences();
                }
            }
            Done::Message(id, Err((error, is_put_off))) => {
                self.note(|| format!("{name} fails with message {id}: {error}"));
                self.stores.ledger().counts.errors += 1;
                let latest = self.now + LONGEST_RETRY;
                let message = self.messages.get(&id);
                if is_put_off && message.is_some_and(|message| message.visible_at > latest) {
                    self.fail("a message that failed is retried soon", name);
                }
            }
            Done::Answer(asked, began, _) | Done::File(asked, began, _)
                if self.now > began + GATEWAY_WAITS =>
            {
                self.note(|| format!("the client of {name} got an error before"));
                self.ask_again(asked, Duration::from_secs(3));
            }
            Done::Answer(asked, _, _) if self.loses_response() => {
                self.note(|| format!("the response of {name} is lost"));
                self.ask_again(asked, Duration::from_secs(3));
            }
            Done::Answer(asked, began, answer) => self.answered(&name, asked, began, *answer),
            Done::Unknown(asked, kept) => {
                self.note(|| format!("{name} knows no request {}", kept.id));
                let age = self.now.saturating_sub(kept.since);
                if age + CLOCKS_DIFFER < self.settings.request_lifetime {
                    let detail = format!("after {} s", age.as_secs());
                    self.fail("a pending request is found until it expires", detail);
                }
                self.ask_again(asked, Duration::from_secs(3));
            }
            Done::File(asked, _, file) => self.downloaded(&name, asked, file),
            Done::Explained(Ok(())) => self.note(|| format!("{name} explains")),
            Done::Explained(Err(error)) => {
                self.note(|| format!("{name} cannot explain: {error}"));
                self.stores.ledger().counts.errors += 1;
            }
            Done::Pruned(Ok(())) => {
                self.note(|| format!("{name} ends"));
                // Passes are rarer in the end.
                if !self.is_calm {
                    self.stores.check_unused(self.plan.prunes_every);
                }
            }
            Done::Pruned(Err(error)) => {
                self.note(|| format!("{name} fails: {error}"));
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
        self.replace_outdated();
    }

    pub(super) fn answered(
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
                self.note(|| format!("{name} answers {scope} for {modules:?}: {what}"));
                {
                    let counts = &mut self.stores.ledger().counts;
                    counts.errors += u64::from(is_error);
                    counts.pending += u64::from(!is_error);
                }
                let since = asked.kept.as_ref().map_or(began, |kept| kept.since);
                if !is_error && since + MAX_PENDING + CLOCKS_DIFFER < began {
                    let seconds = (began - since).as_secs();
                    self.fail("6: every wait ends", format!("pending for {seconds} s"));
                }
                let is_last = asked.repeats == 0;
                let at = usize::try_from(self.drawn).unwrap_or(0) % ASKS_AGAIN_AFTER.len();
                let after = if self.plan.continues && !asked.is_final && !is_error {
                    ASKS_AGAIN_AFTER[at]
                } else {
                    ASKS_AGAIN_AFTER[0]
                };
                asked.kept.take_if(|_| !self.plan.continues);
                if is_last && asked.is_final {
                    self.fail("6: every wait ends", format!("{scope} {modules:?}: {what}"));
                }
                self.ask_again(asked, after);
                return;
            }
        };
        asked.kept = None;
        self.stores.ledger().counts.answers += 1;
        let names = workload::names(&completed);
        self.note(|| format!("{name} answers {scope} for {modules:?}: {names:?}"));
        if let Wants::NamesOfProgram(program) = asked.wants {
            self.check_program(program, asked, began, &names);
            return;
        }
        for (module, function) in modules.iter().zip(&names) {
            let objection = function
                .as_ref()
                .and_then(|function| self.truth.objection(function, *module, scope, began));
            if let Some((property, detail)) = objection {
                self.fail(property, detail);
            }
            if let Some(key) = function.as_ref().and_then(|name| self.truth.key_of(name)) {
                let scope = key.split('/').next().unwrap_or_default();
                let partition = workload::module_key(scope, *module).partition();
                self.stores.ledger().used.insert(partition, self.now);
            }
        }
        if asked.is_final && asked.repeats > 0 && self.is_early(&asked, &names) {
            asked.repeats -= 1;
            self.appoint(self.now + Duration::from_secs(3), Appointment::Ask(asked));
            return;
        }
        for (module, function) in modules.iter().zip(&names) {
            self.awaited -= u64::from(asked.is_final);
            // Without faults, an event is applied within seconds.
            // A client that does not wait gets a cache that is ready, even if its own scope has a
            // file.
            let waits = asked.wait == Duration::from_secs(25);
            let settled_within = self.settled_within().filter(|_| waits);
            let changed_at = self.truth.changed_at(*module);
            let changed_at = changed_at.max(self.deployed_at);
            // During a deploy, readers may keep what their release can read.
            let is_settled =
                !self.is_mixed() && settled_within.is_some_and(|time| changed_at + time < began);
            if asked.is_final || (is_settled && !self.is_build_delayed(*module)) {
                self.compare(scope, *module, function.as_deref());
            }
        }
    }

    /// Decides whether a client does not get its response.
    fn loses_response(&mut self) -> bool {
        self.plan.continues && !self.is_calm && self.faults.loses_response()
    }

    /// Lets a client send or continue its request again, if it does so any more.
    fn ask_again(&mut self, mut asked: Asked, after: Duration) {
        if asked.repeats > 0 {
            asked.repeats -= 1;
            self.appoint(self.now + after, Appointment::Ask(asked));
        }
    }

    /// Returns whether a response has a lesser name because a better build is requested and has not
    /// ended: at its deadline, a request gets the best state that exists. The client asks again.
    fn is_early(&self, asked: &Asked, names: &[Option<String>]) -> bool {
        let mut each = asked.modules.iter().zip(names);
        each.any(|(module, name)| {
            let best = self.best(asked.scope, *module);
            !self.is_best(&best, name.as_deref()) && self.is_build_requested(*module, |_| true)
        })
    }

    /// Returns whether a message that requests a build of a module is not delivered yet. A client
    /// that waits less than the delay gets a cache that is ready.
    pub(super) fn is_build_delayed(&self, module: usize) -> bool {
        self.is_build_requested(module, |message| message.receives == 0)
    }

    /// Returns whether one of these messages requests a build of a module.
    fn is_build_requested(&self, module: usize, is_one: impl Fn(&Message) -> bool) -> bool {
        let label = format!("m{module}");
        let mut messages = self.messages.values().filter(|message| is_one(message));
        messages.any(|message| match &message.body {
            Body::Build(build) => {
                let further = build.further.iter().map(|further| &further.module);
                let mut modules = further.chain([&build.module.id]);
                modules.any(|id| workload::label(id) == label)
            }
            Body::Event(_) | Body::Reconcile(_) => false,
        })
    }

    /// Returns the time after a change within which each response is that of the reference.
    pub(super) fn settled_within(&self) -> Option<Duration> {
        let time = self.faults.settled_within();
        time.filter(|_| !self.plan.damages_blobs && !self.plan.has_servers)
    }

    /// Compares a name in a response with the reference.
    pub(super) fn compare(&self, scope: &str, module: usize, function: Option<&str>) {
        let best = self.best(scope, module);
        if !self.is_best(&best, function) {
            let detail = format!("m{module}@{scope}: {function:?} instead of {best:?}");
            self.fail("the answer is that of the reference", detail);
        }
    }

    fn is_best(&self, best: &[String], function: Option<&str>) -> bool {
        match function {
            // A state that only the other release can make may have stayed.
            Some(function) if self.truth.is_of_one_release(function) => true,
            Some(function) => best.iter().any(|name| name == function),
            None => best.is_empty(),
        }
    }

    /// Returns the names that the reference allows; none if there must be no name.
    fn best(&self, scope: &str, module: usize) -> Vec<String> {
        let given_up = self.given_up();
        let best_of = |release| self.truth.best(scope, module, release, &given_up);
        let best = best_of(self.last_release());
        if self.plan.rates.parsers > 0 {
            // If the parser of one file was killed, another one that is as good may have been used.
            return best;
        }
        // After a rollback, the older release does not replace a state of the same rank that the
        // newer one made. Of equally good files, that is the first that the newer release can read.
        let mut allowed: Vec<String> = best.first().cloned().into_iter().collect();
        let of_newer = best_of(Release::Newer).into_iter().next();
        let kept = of_newer.filter(|name| self.is_mixed() && best.contains(name));
        allowed.extend(kept.filter(|name| !allowed.contains(name)));
        allowed
    }

    /// Returns the keys of the files that no builder could read in several attempts. With faults,
    /// these may be good ones.
    pub(super) fn given_up(&self) -> BTreeSet<String> {
        if self.settled_within().is_some() {
            return BTreeSet::new();
        }
        self.stores.ledger().index.given_up().clone()
    }

    pub(super) fn update_truth(&mut self) {
        let applied = std::mem::take(&mut self.stores.ledger().applied);
        for (key, sequencer, at) in applied {
            self.truth.applied(&key, &sequencer, at);
        }
    }
}

/// Answers a request, which is new or is continued by its id.
async fn symbolicated(
    service: HttpService,
    invocation: Invocation,
    mut asked: Asked,
    now: Moment,
) -> Done {
    let (request, body) = match asked.wants {
        Wants::NamesOfProgram(program) => (programs::crash(program), format!("program {program}")),
        _ => {
            let body = workload::crash_body(&asked.modules);
            (workload::crash(&asked.modules), body)
        }
    };
    let scope = workload::scope(asked.scope);
    let new = RequestToStore::received(body.as_bytes());
    let (id, age, to_store) = match asked.kept.take() {
        None => (invocation.uuid().to_string(), Duration::ZERO, Some(new)),
        Some(kept) => match stored_request(&service, &invocation, &kept.id).await {
            Err(error) => {
                asked.kept = Some(kept);
                return Done::Answer(asked, now, Box::new(Err(error.to_string())));
            }
            Ok(Some((found, stored))) if *found.scope() == scope && stored == body.as_bytes() => {
                let id = kept.id.clone();
                asked.kept = Some(kept);
                (id, found.age(invocation.now()), None)
            }
            Ok(_) => return Done::Unknown(asked, kept),
        },
    };
    let wait_limit = service.wait_limit(&invocation, Some(asked.wait));
    let call = CallState {
        to_store,
        age,
        ..CallState::first(&id, &scope, wait_limit)
    };
    let answer = service.answer(&invocation, &request, call);
    let answer = Box::pin(answer).await.map_err(|error| error.to_string());
    if matches!(answer, Ok(SymbolicateOutcome::Pending)) {
        asked.kept.get_or_insert(Kept { id, since: now });
    }
    Done::Answer(asked, now, Box::new(answer))
}
