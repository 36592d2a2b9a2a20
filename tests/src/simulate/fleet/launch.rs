//! How instances begin, are disturbed and end.

use std::sync::Arc;

use symdepot::adapters::demangler::InProcessDemangler;
use symdepot::flows::HttpService;
use symdepot::flows::build::Builder;
use symdepot::flows::memory::Memory;
use symdepot::flows::prune::Pruner;

use super::{Fleet, Flows, Function, Member};
use crate::simulate::absent::Absent;
use crate::simulate::instance::Instance;
use crate::simulate::ports::Ports;
use crate::simulate::releases::Release;
use crate::simulate::servers;
use crate::simulate::stores::Writer;

impl Fleet {
    /// Starts an instance.
    pub(super) fn launch(&mut self, function: Function, release: Release) -> Member {
        self.drawn += 1;
        let mark = if release == Release::Newer { "+" } else { "" };
        let name = format!("{function:?}{mark}-{}", self.drawn).to_lowercase();
        let clock_error = if self.plan.clocks_differ {
            60 - i64::try_from(self.schedule.below(121)).unwrap_or(0)
        } else {
            0
        };
        let instance = Instance::new(name.clone(), self.now, clock_error);
        let is_configured = self.configured.contains(&function);
        let writer = Writer {
            instance: name.into(),
            invocation: "".into(),
            release,
            function,
            is_configured,
        };
        let ports = Ports::new(self.stores.clone(), instance.gate.clone(), writer);
        let mut settings = self.settings.clone();
        settings.policy.numbers = release.numbers(self.plan.difference);
        if is_configured {
            settings.sources = servers::sources(true);
        }
        let each = Arc::new(ports.clone());
        let absent = Arc::new(Absent(self.stores.clone()));
        let flows = match function {
            Function::Symbolicate => Flows::Symbolicate(HttpService {
                records: each.clone(),
                caches: each.clone(),
                uploads: absent.clone(),
                queues: each,
                attachments: absent.clone(),
                remote_files: absent,
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
                servers: each.clone(),
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
            release,
            is_configured,
            began_calmly: false,
        }
    }

    /// Freezes or kills an instance. Returns whether it did.
    pub(super) fn disturb(&mut self, at: usize) -> bool {
        if let Some((time, stands_still)) = self.faults.freeze() {
            let instance = &mut self.members[at].instance;
            instance.freeze(self.now, time, stands_still);
            let clock = if stands_still { "stopped" } else { "running" };
            let (name, seconds) = (instance.name.clone(), time.as_secs());
            self.note(|| format!("{name} is frozen for {seconds} s, its clock is {clock}"));
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
    pub(super) fn kill(&mut self, at: usize, how: &str) {
        let function = self.members[at].function;
        self.members[at].instance.kill();
        let release = self.release_of(at);
        let successor = self.launch(function, release);
        let (name, other) = (&self.members[at].instance.name, &successor.instance.name);
        self.note(|| format!("{name} {how}, {other} is started"));
        self.members[at] = successor;
    }

    /// Returns an idle instance of a function.
    pub(super) fn idle(&mut self, function: Function) -> Option<usize> {
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
}
