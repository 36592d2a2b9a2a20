//! What users do.

use std::time::Duration;

use symdepot::cache::{Converter, Kind, Queue, Token};
use symdepot::domain::{Location, Sequencer};
use symdepot::flows::uploads::{UploadChange, UploadEvent};
use symdepot::ports::{DifStat, QueueMessage};

use super::{Asked, Body, Fleet, Wants};
use crate::simulate::workload::{Action, File, OTHERS, SCOPES};
use crate::simulate::{describe, programs, workload};

/// If the event of an upload is lost, the pruner repairs this within this time: when the file is an
/// hour old, in its next run, of which there is at least one an hour.
const RECONCILED_WITHIN: Duration = Duration::from_secs(3 * 3600);

impl Fleet {
    pub(super) fn act(&mut self, action: Action) {
        match action {
            Action::Put(key, file) => {
                let event = self.put(&key, &file);
                self.send_event(event);
            }
            Action::PutSilently(key, file) => {
                let until = self.now + RECONCILED_WITHIN;
                self.truth.unsettle(&key, until);
                drop(self.put(&key, &file));
                self.truth.unsettle(&key, until);
            }
            Action::Remove(key) if self.truth.has(&key) => {
                self.note(|| format!("a user removes {key}"));
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
                scope: SCOPES[scope],
                modules,
                wait,
                wants: Wants::Names,
                repeats: 2,
                is_final: false,
                kept: None,
            }),
            Action::CrashInProgram { scope, program } => self.ask(Asked {
                scope: SCOPES[scope],
                modules: vec![programs::module(program)],
                wait: Duration::from_secs(25),
                wants: Wants::NamesOfProgram(program),
                repeats: 2,
                is_final: false,
                kept: None,
            }),
            Action::Download {
                scope,
                module,
                retries,
            } => self.ask(Asked {
                scope: SCOPES[scope],
                modules: vec![module],
                wait: Duration::from_secs(25),
                wants: Wants::File {
                    retries,
                    present: None,
                },
                repeats: 2,
                is_final: false,
                kept: None,
            }),
            Action::Explain { scope, module } => self.ask(Asked {
                scope: SCOPES[scope],
                modules: vec![module],
                wait: Duration::ZERO,
                wants: Wants::Explanation,
                repeats: 0,
                is_final: false,
                kept: None,
            }),
            Action::Damage(which, is_removed) => self.damage(which, is_removed),
            Action::Fill(count) => self.fill(count),
            Action::Prune => self.prune(),
            Action::Configure(function) => self.configure(function),
            Action::Deploy(function, newer) => self.deploy(function, newer),
        }
    }

    /// Uploads a file. Returns its event.
    fn put(&mut self, key: &str, file: &File) -> UploadEvent {
        let names: Vec<String> = file.names().into_iter().map(|(_, name)| name).collect();
        let bytes = file.bytes();
        let size = bytes.len() as u64;
        let etag = self.stores.uploads.put(&Location::new(key), bytes);
        let names = names.join(", ");
        self.note(|| {
            format!(
                "a user uploads {key}: {names} etag {}",
                describe::short(&etag)
            )
        });
        let sequencer = self.sequencer();
        self.truth.change(key, Some(file), &sequencer, self.now);
        UploadEvent {
            key: key.to_owned(),
            sequencer,
            change: UploadChange::Created,
            written: Some(DifStat { etag, size }),
        }
    }

    pub(super) fn sequencer(&mut self) -> Sequencer {
        self.drawn += 1;
        Sequencer::new(format!("{:018X}", self.drawn))
    }

    /// Fills the queues: with messages whose build requests are over, and with those for modules
    /// that have no files.
    fn fill(&mut self, count: usize) {
        self.note(|| format!("{count} messages of no use are sent"));
        for number in 0..count {
            let scope = SCOPES[number % self.plan.scopes];
            let module = match number % 4 {
                0 => OTHERS + number,
                _ => number % self.plan.modules,
            };
            let queue = [Queue::Eager, Queue::Uploads, Queue::Refresh][number % 3];
            self.drawn += 1;
            let id = Token::from_random(u128::MAX - u128::from(self.drawn));
            let module = workload::module_key(scope, module);
            let converter = Converter::CURRENT;
            let message = QueueMessage::new(queue, module, vec![Kind::SymCache], id, converter);
            self.enqueue(Body::Build(message), Duration::ZERO);
        }
    }

    pub(super) fn damage(&mut self, which: u64, is_removed: bool) {
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
        self.note(|| format!("the blob {} is {how}", describe::path(path)));
        self.stores.ledger().damaged.push((*path).clone());
        if is_removed {
            self.stores.caches.lose(path);
        } else {
            self.stores.caches.overwrite(path, "damaged");
        }
    }
}
