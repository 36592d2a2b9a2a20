//! Requests for programs whose debug information is in several files.

use std::time::Duration;

use super::{Appointment, Asked, Body, Fleet, Message, Wants};
use crate::simulate::Moment;
use crate::simulate::programs::{self, Names};

impl Fleet {
    /// Requests the programs, if there are any.
    pub(super) fn ask_for_programs(&mut self, scope: &'static str, repeats: u32, is_final: bool) {
        let count = if self.plan.has_programs {
            programs::COUNT
        } else {
            0
        };
        for program in 0..count {
            self.awaited += u64::from(is_final);
            let asked = Asked {
                scope,
                modules: vec![programs::module(program)],
                wait: Duration::from_secs(25),
                wants: Wants::NamesOfProgram(program),
                repeats,
                is_final,
                kept: None,
            };
            self.appoint(self.now, Appointment::Ask(asked));
        }
    }

    /// Checks the names in a response: they are those of a set of files that may be used, and in
    /// the end those of all files.
    pub(super) fn check_program(
        &mut self,
        program: usize,
        mut asked: Asked,
        began: Moment,
        names: &Names,
    ) {
        let (scope, module) = (asked.scope, asked.modules[0]);
        let sets = programs::made_from(program, names);
        let objection = |set: &Vec<usize>| {
            set.iter().find_map(|part| {
                let name = programs::name(program, *part);
                self.truth.objection(&name, module, scope, began)
            })
        };
        let objections: Option<Vec<_>> = sets.iter().map(objection).collect();
        match objections.map(|mut objections| objections.pop()) {
            Some(Some((property, detail))) => self.fail(property, detail),
            Some(None) => self.fail("1: names that no file has", format!("{names:?}")),
            None => {}
        }
        let parts = self.truth.parts(program, &self.given_up());
        let is_best = *names == programs::names(program, parts.iter().copied());
        if asked.is_final && !is_best && self.is_any_build_requested(|_| true) && asked.repeats > 0
        {
            // At its deadline, a request gets the best state that exists.
            asked.repeats -= 1;
            self.appoint(self.now + Duration::from_secs(3), Appointment::Ask(asked));
            return;
        }
        self.awaited -= u64::from(asked.is_final);
        let changed_at = self.truth.changed_at(module).max(self.deployed_at);
        let is_settled = !self.is_mixed()
            && self
                .settled_within()
                .is_some_and(|time| changed_at + time < began);
        let is_delayed = || self.is_any_build_requested(|message| message.receives == 0);
        if !is_best && (asked.is_final || (is_settled && !is_delayed())) {
            let detail = format!("program {program}@{scope}: {names:?}, it has files {parts:?}");
            self.fail("the answer is that of the reference", detail);
        }
    }

    /// Returns whether one of these messages requests a build.
    fn is_any_build_requested(&self, is_one: impl Fn(&Message) -> bool) -> bool {
        let mut messages = self.messages.values();
        messages.any(|message| is_one(message) && matches!(message.body, Body::Build(_)))
    }
}
