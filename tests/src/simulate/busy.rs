//! What users do, drawn from a seed.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Moment;
use super::chance::Chance;
use super::programs;
use super::workload::{Action, FUTURE, File, OTHERS, Offer, Readers, SCOPES, Symbols, hex, pdb};

/// What the users do in one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Busy {
    pub(super) modules: usize,
    pub(super) scopes: usize,
    pub(super) time: Duration,
    pub(super) actions: usize,
    pub(super) damages_blobs: bool,
    /// The longest time between two things that happen at about the same time.
    pub(super) pause: Duration,
    /// Whether there are two releases, and files that only one of them can read.
    pub(super) has_deploys: bool,
    /// The number of members of large archives; 0: there are none.
    pub(super) most_members: usize,
    /// Whether there are programs whose debug information is in several files.
    pub(super) has_programs: bool,
    /// Whether a team renames files.
    pub(super) renames: bool,
}

/// Draws what happens in weeks: each module is uploaded on the first day. The even ones are
/// requested on each day, at intervals of up to some hours. Each of the others is requested on the
/// first day and on one other day.
pub(super) fn weeks(
    chance: &mut Chance,
    modules: usize,
    scopes: usize,
    days: u32,
) -> Vec<(Moment, Action)> {
    let hour = Duration::from_secs(3600);
    let mut done = Vec::new();
    let all = (0..scopes).flat_map(|scope| (0..modules).map(move |module| (scope, module)));
    for (serial, (scope, module)) in all.enumerate() {
        done.push((Moment::from_secs(1), upload(scope, module, serial)));
        let mut request_at = |at: Moment| done.push((at, request(scope, module, PATIENT)));
        request_at(hour);
        if module % 2 == 0 {
            let mut at = hour;
            while at < 24 * hour * days {
                at += hour.mul_f64(1.0 + 9.0 * chance.fraction());
                request_at(at);
            }
        } else {
            let day = 2 + chance.below(u64::from(days) - 2) as u32;
            request_at(24 * hour * day);
        }
    }
    // A higher version of one of Microsoft's SymCaches, beside a lower one.
    for (at, minor) in [(hour, 1), (2 * hour, 2)] {
        let file = File::Microsofts {
            module: 0,
            minor,
            serial: usize::from(minor),
        };
        done.push((at, Action::Put(microsofts(SCOPES[0], 0, minor), file)));
    }
    done.sort_by_key(|(at, _)| *at);
    done
}

/// Draws what meets states that are a day old: two versions of one of Microsoft's SymCaches are
/// uploaded for each module within the first hour. At the time `last`, two passes of the pruner
/// begin, and at about the same time, files of each module are overwritten and requested.
pub(super) fn aged(chance: &mut Chance, modules: usize, last: Moment) -> Vec<(Moment, Action)> {
    let of_microsoft = |module, minor, serial| {
        let file = File::Microsofts {
            module,
            minor,
            serial,
        };
        Action::Put(microsofts(SCOPES[0], module, minor), file)
    };
    let mut done = vec![(last, Action::Prune), (last, Action::Prune)];
    for module in 0..modules {
        for (at, minor) in [(30, 1), (40, 2)] {
            let serial = FIRST_SERIAL + usize::from(minor);
            let at = Moment::from_secs(at * 60);
            done.push((at, of_microsoft(module, minor, serial)));
        }
        let (put, crash) = (upload(0, module, FIRST_SERIAL), request(0, module, PATIENT));
        // The first version, which is due to be dropped, gets other bytes, or a third one is built.
        let (minor, serial) = match chance.below(3) {
            0 => (1, FIRST_SERIAL),
            _ => (3, FIRST_SERIAL + 3),
        };
        let again = of_microsoft(module, minor, serial);
        for action in [put, again, crash] {
            let about = Duration::from_millis(500).mul_f64(chance.fraction());
            done.push((last - Duration::from_millis(250) + about, action));
        }
    }
    done
}

/// Draws what makes readers doubt caches: each module is uploaded in the beginning, and then
/// requested by several clients at about the same time, every half minute.
pub(super) fn doubted(
    chance: &mut Chance,
    modules: usize,
    time: Duration,
) -> Vec<(Moment, Action)> {
    let mut done = Vec::new();
    for module in 0..modules {
        done.push((Moment::from_secs(1), upload(0, module, module)));
        let mut round = Moment::from_secs(60);
        while round < time {
            for _ in 0..6 {
                let about = Duration::from_millis(300).mul_f64(chance.fraction());
                let crash = request(0, module, Duration::from_secs(2));
                done.push((round + about, crash));
            }
            round += Duration::from_secs(30);
        }
    }
    done
}

/// How long a patient client waits.
const PATIENT: Duration = Duration::from_secs(25);

/// Returns the upload of a file with lines, which all releases can read.
fn upload(scope: usize, module: usize, serial: usize) -> Action {
    let symbols = Symbols {
        module,
        offer: Offer::Debug,
        serial,
        kills: false,
        readers: Readers::All,
    };
    let key = format!("{}/m{module}-0", SCOPES[scope]);
    Action::Put(key, File::Single(symbols))
}

/// Returns the request of a client that waits this long.
fn request(scope: usize, module: usize, wait: Duration) -> Action {
    Action::Crash {
        scope,
        modules: vec![module],
        wait,
    }
}

/// The serial numbers of files that are not drawn begin here.
const FIRST_SERIAL: usize = 1_000_000;

/// Returns the key of one of Microsoft's SymCaches of a module.
fn microsofts(scope: &str, module: usize, minor: u8) -> String {
    let (pdb, id) = (pdb(module), hex(module).to_ascii_uppercase());
    format!("{scope}/{pdb}/{}1/{pdb}-v3.{minor}.0.symcache", &id[..32])
}

impl Busy {
    /// Draws the actions.
    pub(super) fn draw(self, chance: &mut Chance) -> Vec<(Moment, Action)> {
        let mut actions = Vec::new();
        let mut keys: BTreeMap<String, File> = BTreeMap::new();
        let (mut drawn, mut serial): (Vec<File>, usize) = (Vec::new(), 0);
        for _ in 0..self.actions {
            let at = self.time.mul_f64(chance.fraction());
            actions.push(at);
        }
        actions.sort();
        let mut last = Moment::ZERO;
        let mut done = Vec::new();
        for at in actions {
            // Things often happen at the same time.
            let at = if chance.one_in(5) {
                at.max(last)
            } else {
                last + self.pause.mul_f64(chance.fraction())
            };
            last = at;
            if self.has_programs && chance.one_in(5) {
                done.push((at, self.of_program(chance)));
                continue;
            }
            let action = match chance.below(100) {
                0..3 if !keys.is_empty() => {
                    let renamed = self.rename(chance, &mut keys, at);
                    done.extend(renamed);
                    continue;
                }
                0..30 => {
                    let key = if chance.one_in(2) && !keys.is_empty() {
                        chance.pick_key(&keys)
                    } else {
                        self.key(chance)
                    };
                    // The same bytes may come under another key, unless the key says what they are.
                    let is_plain = !key.contains(FUTURE) && !key.contains(".pdb");
                    let file = if is_plain && chance.one_in(4) && !drawn.is_empty() {
                        drawn[chance.index(drawn.len())].clone()
                    } else {
                        self.file(chance, &key, serial)
                    };
                    serial += 1;
                    if is_plain {
                        drawn.push(file.clone());
                    }
                    keys.insert(key.clone(), file.clone());
                    Action::Put(key, file)
                }
                30..42 if !keys.is_empty() => {
                    let key = chance.pick_key(&keys);
                    keys.remove(&key);
                    Action::Remove(key)
                }
                42..45 => Action::Explain {
                    scope: chance.index(self.scopes),
                    module: chance.index(self.modules),
                },
                45..53 if self.damages_blobs => Action::Damage(chance.draw(), chance.one_in(2)),
                _ => self.crash(chance),
            };
            done.push((at, action));
        }
        done
    }

    /// Draws an action that concerns a program.
    fn of_program(self, chance: &mut Chance) -> Action {
        let program = chance.index(programs::COUNT);
        let part = chance.index(programs::parts(program));
        let key = format!("{}/program{program}-{part}", SCOPES[0]);
        match chance.below(8) {
            0..4 => Action::Put(key, File::Part { program, part }),
            4 => Action::Remove(key),
            _ => Action::CrashInProgram {
                scope: chance.index(self.scopes),
                program,
            },
        }
    }

    /// Draws what renames a file does to a bucket: the same bytes come under another key, and the
    /// old key is removed, in either order and at about the same time.
    fn rename(
        self,
        chance: &mut Chance,
        keys: &mut BTreeMap<String, File>,
        at: Moment,
    ) -> Vec<(Moment, Action)> {
        let old = chance.pick_key(keys);
        let is_single = matches!(keys.get(&old), Some(File::Single(_)));
        let new = match old.rsplit_once('-') {
            Some((stem, slot)) if is_single && matches!(slot, "0" | "1") => {
                format!("{stem}-{}", if slot == "0" { 1 } else { 0 })
            }
            _ => return Vec::new(),
        };
        let Some(file) = keys.remove(&old) else {
            return Vec::new();
        };
        keys.insert(new.clone(), file.clone());
        let later = at + self.pause.mul_f64(chance.fraction() / 2.0);
        let (put, remove) = (Action::Put(new, file), Action::Remove(old));
        if chance.one_in(2) {
            vec![(at, put), (later, remove)]
        } else {
            vec![(at, remove), (later, put)]
        }
    }

    /// Draws what a busy team does: so many requests and uploads, at the hours of a working day.
    pub(super) fn team(
        self,
        chance: &mut Chance,
        requests: usize,
        uploads: usize,
    ) -> Vec<(Moment, Action)> {
        let mut done = Vec::new();
        let mut keys: BTreeMap<String, File> = BTreeMap::new();
        let at = |chance: &mut Chance| {
            let day = Duration::from_secs(24 * 3600);
            let days = self.time.as_secs() / day.as_secs();
            let hour = 7.0 + 12.0 * (chance.fraction() + chance.fraction()) / 2.0;
            day * chance.below(days.max(1)) as u32 + Duration::from_secs_f64(hour * 3600.0)
        };
        for _ in 0..requests {
            let crash = if chance.one_in(50) {
                Action::Explain {
                    scope: chance.index(self.scopes),
                    module: chance.index(self.modules),
                }
            } else {
                self.crash(chance)
            };
            done.push((at(chance), crash));
        }
        let mut times: Vec<Moment> = (0..uploads).map(|_| at(chance)).collect();
        times.sort();
        for (serial, at) in times.into_iter().enumerate() {
            if chance.one_in(6) && !keys.is_empty() {
                let key = chance.pick_key(&keys);
                keys.remove(&key);
                done.push((at, Action::Remove(key)));
                continue;
            }
            let key = if chance.one_in(3) && !keys.is_empty() {
                chance.pick_key(&keys)
            } else {
                self.key(chance)
            };
            let file = self.file(chance, &key, serial);
            keys.insert(key.clone(), file.clone());
            done.push((at, Action::Put(key, file)));
            if self.renames && chance.one_in(20) {
                done.extend(self.rename(chance, &mut keys, at + self.pause));
            }
        }
        done
    }

    /// Draws what happens to a busy team now and then, in a day.
    pub(super) fn now_and_then(self, chance: &mut Chance, day: Moment) -> Vec<(Moment, Action)> {
        let mut done = Vec::new();
        let at =
            |chance: &mut Chance| day + Duration::from_secs(24 * 3600).mul_f64(chance.fraction());
        if self.damages_blobs {
            for _ in 0..5 {
                done.push((at(chance), Action::Damage(chance.draw(), chance.one_in(2))));
            }
        }
        if self.has_programs {
            for _ in 0..30 {
                done.push((at(chance), self.of_program(chance)));
            }
        }
        done
    }

    fn key(self, chance: &mut Chance) -> String {
        let scope = SCOPES[chance.index(self.scopes)];
        if chance.one_in(8) {
            return format!("{scope}/archive{}", chance.below(2));
        }
        let (module, slot) = (chance.index(self.modules), chance.below(2));
        if chance.one_in(12) {
            let minor = if chance.below(2) == 0 { 1 } else { 2 };
            return microsofts(scope, module, minor);
        }
        if self.has_deploys && chance.one_in(10) {
            return format!("{scope}/m{module}-{FUTURE}");
        }
        format!("{scope}/m{module}-{slot}")
    }

    fn file(self, chance: &mut Chance, key: &str, serial: usize) -> File {
        // A build reads all of a file, or nothing.
        let readers = match chance.below(12) {
            _ if key.contains(FUTURE) => Readers::Future,
            0 if self.has_deploys => Readers::Newer,
            1 if self.has_deploys => Readers::Older,
            _ => Readers::All,
        };
        let mut symbols = |module| Symbols {
            module,
            offer: if chance.one_in(3) {
                Offer::Symbols
            } else {
                Offer::Debug
            },
            serial,
            kills: chance.one_in(15),
            readers,
        };
        let name = key.split('/').next_back().unwrap_or_default();
        if let Some((pdb, version)) = name.split_once(".pdb-v3.") {
            return File::Microsofts {
                module: pdb.trim_start_matches("app").parse().unwrap_or(0),
                minor: version
                    .split('.')
                    .next()
                    .and_then(|minor| minor.parse().ok())
                    .unwrap_or(0),
                serial,
            };
        }
        if name.starts_with("archive") {
            let mut members: Vec<Symbols> =
                (0..self.modules).step_by(2).map(&mut symbols).collect();
            if name.ends_with('1') {
                // Modules that no crash has.
                members.extend((0..self.most_members).map(|at| symbols(OTHERS + at)));
            }
            return File::Archive(members);
        }
        let module = name.trim_start_matches('m').split('-').next();
        let module = module.and_then(|module| module.parse().ok()).unwrap_or(0);
        let file = File::Single(symbols(module));
        if chance.one_in(20) {
            File::Nothing(serial)
        } else {
            file
        }
    }

    fn crash(self, chance: &mut Chance) -> Action {
        if chance.one_in(12) {
            return Action::Download {
                scope: chance.index(self.scopes),
                module: chance.index(self.modules),
                retries: chance.one_in(2),
            };
        }
        let count = 1 + chance.index(3);
        let wait = match chance.below(3) {
            0 => Duration::ZERO,
            1 => Duration::from_secs(2),
            _ => Duration::from_secs(25),
        };
        Action::Crash {
            scope: chance.index(self.scopes),
            modules: (0..count).map(|_| chance.index(self.modules)).collect(),
            wait,
        }
    }
}
