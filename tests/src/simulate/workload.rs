//! What users do: the files that they upload, overwrite and remove, and the crashes that they send.
//!
//! A file is small but real: the Breakpad symbols of one module, or an archive of several. Its only
//! function has a name that says which module and which bytes it comes from, so that a response
//! shows which file it was made from.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use symdepot::api::symbolicator::{Completed, Request, parse_request};
use symdepot::cache::ModuleKey;
use symdepot::domain::{DebugId, ModuleId, Scope};

use super::Moment;
use super::chance::Chance;
use crate::harness::archive;

/// The scopes.
pub(super) const SCOPES: [&str; 3] = ["global", "acme", "beta"];

/// The address of the function in each module.
const FUNCTION: u64 = 0x1000;

/// The distance between the modules of a crash.
const IMAGE: u64 = 0x1_0000_0000;

/// How well a file serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Offer {
    /// A function with lines.
    Debug,
    /// A symbol.
    Symbols,
}

/// The symbols of one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Symbols {
    pub(super) module: usize,
    pub(super) offer: Offer,
    /// Files with the same number have the same bytes.
    pub(super) serial: usize,
    /// Whether deriving a cache kills the parser, each time.
    pub(super) kills: bool,
}

/// What the bytes of a file that kills its parser contain.
pub(super) const KILLER: &str = "_kills";

impl Symbols {
    /// Returns the name of the function.
    pub(super) fn function(self) -> String {
        let offer = match self.offer {
            Offer::Debug => "debug",
            Offer::Symbols => "symbols",
        };
        let kills = if self.kills { KILLER } else { "" };
        format!("module{}_{offer}{}{kills}", self.module, self.serial)
    }

    fn text(self) -> String {
        let module = self.module;
        let id = hex(module);
        let record = match self.offer {
            Offer::Debug => format!("FUNC {FUNCTION:x} 10 0"),
            Offer::Symbols => format!("PUBLIC {FUNCTION:x} 0"),
        };
        format!(
            "MODULE Linux x86_64 {id} lib{module}.so\n{record} {}\n",
            self.function()
        )
    }
}

fn hex(module: usize) -> String {
    format!("{:032X}0", module + 1)
}

/// Returns the debug id of a module.
pub(super) fn debug_id(module: usize) -> DebugId {
    DebugId::from_breakpad(&hex(module)).unwrap_or_else(|error| panic!("{module}: {error}"))
}

/// Returns the key of a module in the uploads of a scope.
pub(super) fn module_key(scope: &str, module: usize) -> ModuleKey {
    ModuleKey::uploads(self::scope(scope), &ModuleId::Debug(debug_id(module)))
}

/// Returns the short name of a module with this id.
pub(super) fn label(id: &str) -> String {
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).collect();
    // The text begins with `debug_id:`, whose hex digits are skipped.
    let number = digits.get(digits.len().saturating_sub(32)..);
    let number = number.and_then(|digits| u128::from_str_radix(digits, 16).ok());
    number.map_or_else(
        || id.to_owned(),
        |number| format!("m{}", number.wrapping_sub(1)),
    )
}

/// Returns a scope.
pub(super) fn scope(name: &str) -> Scope {
    name.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// A file of the uploads bucket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum File {
    /// The symbols of one module.
    Single(Symbols),
    /// An archive.
    Archive(Vec<Symbols>),
    /// Bytes that are no debug information file.
    Nothing(usize),
}

impl File {
    pub(super) fn bytes(&self) -> Bytes {
        match self {
            Self::Single(symbols) => symbols.text().into(),
            Self::Archive(all) => {
                let file = |symbols: &Symbols| {
                    let name = format!("{}.sym", symbols.module);
                    (name, symbols.text().into_bytes())
                };
                archive(&all.iter().map(file).collect::<Vec<_>>()).into()
            }
            Self::Nothing(number) => format!("no symbols, {number}").into(),
        }
    }

    /// Returns the symbols in it.
    pub(super) fn symbols(&self) -> &[Symbols] {
        match self {
            Self::Single(symbols) => std::slice::from_ref(symbols),
            Self::Archive(all) => all,
            Self::Nothing(_) => &[],
        }
    }
}

/// Something that a user does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Uploads a file under a key, and so overwrites another one.
    Put(String, File),
    /// Removes a key.
    Remove(String),
    /// Sends a crash in these modules, and waits this long.
    Crash {
        scope: &'static str,
        modules: Vec<usize>,
        wait: Duration,
    },
    /// Damages or removes a blob: the number selects it.
    Damage(u64, bool),
}

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
}

impl Busy {
    /// Draws the actions.
    pub(super) fn draw(self, chance: &mut Chance) -> Vec<(Moment, Action)> {
        let mut actions = Vec::new();
        let mut keys: BTreeMap<String, ()> = BTreeMap::new();
        let mut drawn: Vec<File> = Vec::new();
        for _ in 0..self.actions {
            let at = self.time.mul_f64(chance.fraction());
            actions.push(at);
        }
        actions.sort();
        let mut last = Moment::ZERO;
        let mut done = Vec::new();
        for at in actions {
            // Things often happen at the same time.
            let at = match chance.one_in(5) {
                true => at.max(last),
                false => last + self.pause.mul_f64(chance.fraction()),
            };
            last = at;
            let action = match chance.below(100) {
                0..30 => {
                    let key = match chance.one_in(2) && !keys.is_empty() {
                        true => chance.pick_key(&keys),
                        false => self.key(chance),
                    };
                    let file = match chance.one_in(4) && !drawn.is_empty() {
                        true => drawn[chance.index(drawn.len())].clone(),
                        false => self.file(chance, &key, drawn.len()),
                    };
                    drawn.push(file.clone());
                    keys.insert(key.clone(), ());
                    Action::Put(key, file)
                }
                30..42 if !keys.is_empty() => {
                    let key = chance.pick_key(&keys);
                    keys.remove(&key);
                    Action::Remove(key)
                }
                42..50 if self.damages_blobs => Action::Damage(chance.draw(), chance.one_in(2)),
                _ => self.crash(chance),
            };
            done.push((at, action));
        }
        done
    }

    fn key(self, chance: &mut Chance) -> String {
        let scope = SCOPES[chance.index(self.scopes)];
        if chance.one_in(8) {
            return format!("{scope}/archive{}", chance.below(2));
        }
        let (module, slot) = (chance.index(self.modules), chance.below(2));
        format!("{scope}/m{module}-{slot}")
    }

    fn file(self, chance: &mut Chance, key: &str, serial: usize) -> File {
        let mut symbols = |module| Symbols {
            module,
            offer: match chance.one_in(3) {
                true => Offer::Symbols,
                false => Offer::Debug,
            },
            serial,
            kills: chance.one_in(15),
        };
        let name = key.split('/').next_back().unwrap_or_default();
        if name.starts_with("archive") {
            return File::Archive((0..self.modules).step_by(2).map(symbols).collect());
        }
        let module = name.trim_start_matches('m').split('-').next();
        let module = module.and_then(|module| module.parse().ok()).unwrap_or(0);
        let file = File::Single(symbols(module));
        match chance.one_in(20) {
            true => File::Nothing(serial),
            false => file,
        }
    }

    fn crash(self, chance: &mut Chance) -> Action {
        let count = 1 + chance.index(3);
        let wait = match chance.below(3) {
            0 => Duration::ZERO,
            1 => Duration::from_secs(2),
            _ => Duration::from_secs(25),
        };
        Action::Crash {
            scope: SCOPES[chance.index(self.scopes)],
            modules: (0..count).map(|_| chance.index(self.modules)).collect(),
            wait,
        }
    }
}

/// Returns a crash in each module of each scope.
pub(super) fn crash_everywhere(modules: usize, scopes: usize) -> impl Iterator<Item = Action> {
    let scopes = SCOPES.into_iter().take(scopes);
    scopes.flat_map(move |scope| {
        (0..modules).map(move |module| Action::Crash {
            scope,
            modules: vec![module],
            wait: Duration::from_secs(25),
        })
    })
}

/// Returns a request with one frame in each of these modules.
pub(super) fn crash(modules: &[usize]) -> Request {
    let base = |at: usize| IMAGE * (at as u64 + 1);
    let images: Vec<_> = modules
        .iter()
        .enumerate()
        .map(|(at, module)| {
            let debug_id = debug_id(*module).to_string();
            json!({"type": "elf", "debug_id": debug_id, "image_addr": format!("{:#x}", base(at))})
        })
        .collect();
    let frames: Vec<_> = (0..modules.len())
        .map(|at| {
            let address = format!("{:#x}", base(at) + FUNCTION);
            json!({"instruction_addr": address, "adjust_instruction_addr": false})
        })
        .collect();
    let body = json!({"stacktraces": [{"frames": frames}], "modules": images}).to_string();
    parse_request(body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"))
}

/// Returns the name of the function of each frame.
pub(super) fn names(completed: &Completed) -> Vec<Option<String>> {
    let stacktraces = completed.stacktraces.iter();
    let frames = stacktraces.flat_map(|stacktrace| &stacktrace.frames);
    frames
        .map(|frame| frame.frame.function.as_deref().map(str::to_owned))
        .collect()
}
