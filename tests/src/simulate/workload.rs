//! What users do: the files that they upload, overwrite and remove, and the crashes that they send.
//!
//! A file is small but real: the Breakpad symbols of one module, or an archive of several. Its only
//! function has a name that says which module and which bytes it comes from, so that a response
//! shows which file it was made from.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;
use symdepot::api::symbolicator::{Completed, Request, parse_request};
use symdepot::api::symcache_http::SymCacheRequest;
use symdepot::cache::ModuleKey;
use symdepot::domain::{DebugId, FormatVersion, ModuleId, ObjectId, Scope};

use super::Moment;
use super::builds::Build;
use super::chance::Chance;
use super::fleet::Function;
use crate::harness::archive;

/// The scopes.
pub(super) const SCOPES: [&str; 3] = ["global", "acme", "beta"];

/// The modules from this number on are in no crash.
const OTHERS: usize = 1000;

/// The address of the function in each module.
const FUNCTION: u64 = 0x1000;

/// The distance between the modules of a crash.
const IMAGE: u64 = 0x1_0000_0000;

/// How well a file serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) enum Offer {
    /// A function with lines.
    Debug,
    /// A symbol.
    Symbols,
}

/// The symbols of one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct Symbols {
    pub(super) module: usize,
    pub(super) offer: Offer,
    /// Files with the same number have the same bytes.
    pub(super) serial: usize,
    /// Whether deriving a cache kills the parser, each time.
    pub(super) kills: bool,
    /// Which builds can read it.
    pub(super) readers: Readers,
}

/// What the bytes of a file that kills its parser contain.
pub(super) const KILLER: &str = "_kills";

/// What the bytes of a file that kills its parser at once contain, besides.
pub(super) const EARLY_KILLER: &str = "_kills_early";

/// What the bytes and the key of a file contain that the older build does not know.
pub(super) const FUTURE: &str = "_future";

/// Which builds can read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) enum Readers {
    /// Both.
    All,
    /// The older build fails to convert it.
    Newer,
    /// The newer build fails to convert it.
    Older,
    /// The older build does not know what it is.
    Future,
}

impl Readers {
    /// Returns what the bytes of the file contain.
    pub(super) fn mark(self) -> &'static str {
        match self {
            Self::All => "",
            Self::Newer => "_for_newer",
            Self::Older => "_for_older",
            Self::Future => FUTURE,
        }
    }

    /// Returns whether a build can read the file.
    pub(super) fn include(self, build: Build) -> bool {
        match self {
            Self::All => true,
            Self::Newer | Self::Future => build == Build::Newer,
            Self::Older => build == Build::Older,
        }
    }

    /// Returns the readers of a file with these bytes.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let has = |mark: &str| memmem(bytes, mark.as_bytes());
        let each = [Self::Newer, Self::Older, Self::Future];
        let mut marked = each.into_iter().filter(|readers| has(readers.mark()));
        marked.next().unwrap_or(Self::All)
    }
}

/// Returns whether bytes contain others.
pub(super) fn memmem(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

impl Symbols {
    /// Returns the name of the function.
    pub(super) fn function(self) -> String {
        let offer = match self.offer {
            Offer::Debug => "debug",
            Offer::Symbols => "symbols",
        };
        let kills = match (self.kills, self.serial % 2) {
            (false, _) => "",
            (true, 0) => KILLER,
            (true, _) => EARLY_KILLER,
        };
        let readers = self.readers.mark();
        format!(
            "module{}_{offer}{}{kills}{readers}",
            self.module, self.serial
        )
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

/// Returns the name of the PDB of a module.
fn pdb(module: usize) -> String {
    format!("app{module}.pdb")
}

/// Returns the version of one of Microsoft's SymCaches.
pub(super) fn version(minor: u8) -> FormatVersion {
    FormatVersion {
        major: 3,
        minor,
        patch: 0,
    }
}

/// Returns a client's request for one of Microsoft's SymCaches of a module.
pub(super) fn download(scope: &str, module: usize) -> SymCacheRequest {
    let id = format!("{}1", &hex(module)[..32]);
    SymCacheRequest {
        scope: self::scope(scope),
        version: version(9),
        name: pdb(module),
        debug_id: DebugId::from_breakpad(&id).unwrap_or_else(|error| panic!("{id}: {error}")),
    }
}

/// Returns the debug id of a module.
pub(super) fn debug_id(module: usize) -> DebugId {
    DebugId::from_breakpad(&hex(module)).unwrap_or_else(|error| panic!("{module}: {error}"))
}

/// Returns the ids of a module, as a request names them.
pub(super) fn object_id(module: usize) -> ObjectId {
    let request = crash(&[module]);
    let mut modules = request.modules.into_iter();
    let module = modules.next().map(|module| module.object_id());
    module.unwrap_or_else(|| unreachable!("the request has a module"))
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
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) enum File {
    /// The symbols of one module.
    Single(Symbols),
    /// An archive.
    Archive(Vec<Symbols>),
    /// Bytes that are no debug information file.
    Nothing(usize),
    /// One of Microsoft's SymCaches: of a module, with the minor number of its version.
    Microsofts {
        module: usize,
        minor: u8,
        serial: usize,
    },
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
            Self::Microsofts { .. } => self.names().remove(0).1.into(),
        }
    }

    /// Returns the symbols in it.
    pub(super) fn symbols(&self) -> &[Symbols] {
        match self {
            Self::Single(symbols) => std::slice::from_ref(symbols),
            Self::Archive(all) => all,
            Self::Nothing(_) | Self::Microsofts { .. } => &[],
        }
    }

    /// Returns the names in it, each with its module.
    pub(super) fn names(&self) -> Vec<(usize, String)> {
        match self {
            Self::Microsofts { module, serial, .. } => {
                vec![(*module, format!("module{module}_microsofts{serial}"))]
            }
            _ => {
                let symbols = self.symbols().iter();
                let names = symbols.map(|symbols| (symbols.module, symbols.function()));
                names.collect()
            }
        }
    }
}

/// Something that a user does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Action {
    /// Uploads a file under a key, and so overwrites another one.
    Put(String, File),
    /// Removes a key.
    Remove(String),
    /// Sends a crash in these modules, and waits this long.
    Crash {
        scope: usize,
        modules: Vec<usize>,
        wait: Duration,
    },
    /// Requests one of Microsoft's SymCaches. Whether the client obeys a response that asks for a
    /// retry.
    Download {
        scope: usize,
        module: usize,
        retries: bool,
    },
    /// Asks for the state of the entries of a module.
    Explain { scope: usize, module: usize },
    /// Damages or removes a blob: the number selects it.
    Damage(u64, bool),
    /// Deploys a function: so many of its instances run the newer build from now on.
    Deploy(Function, usize),
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
    /// Whether there are two builds, and files that only one of them can read.
    pub(super) has_deploys: bool,
    /// The number of members of large archives; 0: there are none.
    pub(super) most_members: usize,
}

impl Busy {
    /// Draws the actions.
    pub(super) fn draw(self, chance: &mut Chance) -> Vec<(Moment, Action)> {
        let mut actions = Vec::new();
        let mut keys: BTreeMap<String, ()> = BTreeMap::new();
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
                    // The same bytes may come under another key, unless the key says what they are.
                    let is_plain = !key.contains(FUTURE) && !key.contains(".pdb");
                    let file = match is_plain && chance.one_in(4) && !drawn.is_empty() {
                        true => drawn[chance.index(drawn.len())].clone(),
                        false => self.file(chance, &key, serial),
                    };
                    serial += 1;
                    if is_plain {
                        drawn.push(file.clone());
                    }
                    keys.insert(key.clone(), ());
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

    /// Draws what a busy team does: so many requests and uploads, at the hours of a working day.
    pub(super) fn team(
        self,
        chance: &mut Chance,
        requests: usize,
        uploads: usize,
    ) -> Vec<(Moment, Action)> {
        let mut done = Vec::new();
        let mut keys: BTreeMap<String, ()> = BTreeMap::new();
        let at = |chance: &mut Chance| {
            let day = Duration::from_secs(24 * 3600);
            let days = self.time.as_secs() / day.as_secs();
            let hour = 7.0 + 12.0 * (chance.fraction() + chance.fraction()) / 2.0;
            day * chance.below(days.max(1)) as u32 + Duration::from_secs_f64(hour * 3600.0)
        };
        for _ in 0..requests {
            let crash = match chance.one_in(50) {
                true => Action::Explain {
                    scope: chance.index(self.scopes),
                    module: chance.index(self.modules),
                },
                false => self.crash(chance),
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
            let key = match chance.one_in(3) && !keys.is_empty() {
                true => chance.pick_key(&keys),
                false => self.key(chance),
            };
            let file = self.file(chance, &key, serial);
            keys.insert(key.clone(), ());
            done.push((at, Action::Put(key, file)));
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
            let (pdb, id) = (pdb(module), hex(module).to_ascii_uppercase());
            let minor = 1 + chance.below(2);
            return format!("{scope}/{pdb}/{}1/{pdb}-v3.{minor}.0.symcache", &id[..32]);
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
            offer: match chance.one_in(3) {
                true => Offer::Symbols,
                false => Offer::Debug,
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
        match chance.one_in(20) {
            true => File::Nothing(serial),
            false => file,
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

/// Returns a crash in each module of each scope.
pub(super) fn crash_everywhere(modules: usize, scopes: usize) -> impl Iterator<Item = Action> {
    (0..scopes).flat_map(move |scope| {
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
            json!({
                "type": "elf",
                "debug_id": debug_id,
                "debug_file": format!("lib{module}.so"),
                "image_addr": format!("{:#x}", base(at)),
            })
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
