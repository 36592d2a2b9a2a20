//! What users do: the files that they upload, overwrite and remove, and the crashes that they send.
//!
//! A file is small but real: the Breakpad symbols of one module, or an archive of several. Its only
//! function has a name that says which module and which bytes it comes from, so that a response
//! shows which file it was made from.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;
use symdepot::api::symbolicator::{Completed, Request, parse_request};
use symdepot::api::symcache_http::SymCacheRequest;
use symdepot::cache::ModuleKey;
use symdepot::domain::{DebugId, FormatVersion, ModuleId, ObjectId, Scope};

use super::fleet::Function;
use super::programs;
use super::releases::Release;
use crate::harness::archive;

/// The scopes.
pub(super) const SCOPES: [&str; 3] = ["global", "acme", "beta"];

/// The modules from this number on are in no crash.
pub(super) const OTHERS: usize = 1000;

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
    /// Which releases can read it.
    pub(super) readers: Readers,
}

/// What the bytes of a file that kills its parser contain.
pub(super) const KILLER: &str = "_kills";

/// What the bytes of a file that kills its parser at once contain, besides.
pub(super) const EARLY_KILLER: &str = "_kills_early";

/// What the bytes and the key of a file contain that the older release does not know.
pub(super) const FUTURE: &str = "_future";

/// Which releases can read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) enum Readers {
    /// Both.
    All,
    /// The older release fails to convert it.
    Newer,
    /// The newer release fails to convert it.
    Older,
    /// The older release does not know what it is.
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

    /// Returns whether a release can read the file.
    pub(super) fn include(self, release: Release) -> bool {
        match self {
            Self::All => true,
            Self::Newer | Self::Future => release == Release::Newer,
            Self::Older => release == Release::Older,
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
            "MODULE Linux x86_64 {id} lib{module}.so\nINFO CODE_ID {}\n{record} {}\n",
            code_id(module),
            self.function()
        )
    }
}

/// Returns the code id of a module.
fn code_id(module: usize) -> String {
    format!("{:040x}", module + 1)
}

pub(super) fn hex(module: usize) -> String {
    format!("{:032X}0", module + 1)
}

/// Returns the name of the PDB of a module.
pub(super) fn pdb(module: usize) -> String {
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

/// Returns the short name of a module with this id: in the uploads its debug id, on a symbol server
/// the locations of its files.
pub(super) fn label(id: &str) -> String {
    if let Some((_, rest)) = id.split_once("lib") {
        let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
        return format!("m{number}");
    }
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
    /// A file of a program whose debug information is in several files.
    Part { program: usize, part: usize },
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
            Self::Part { program, part } => programs::part(*program, *part),
            Self::Microsofts { .. } => self.names().remove(0).1.into(),
        }
    }

    /// Returns the symbols in it.
    pub(super) fn symbols(&self) -> &[Symbols] {
        match self {
            Self::Single(symbols) => std::slice::from_ref(symbols),
            Self::Archive(all) => all,
            Self::Nothing(_) | Self::Part { .. } | Self::Microsofts { .. } => &[],
        }
    }

    /// Returns the names in it, each with its module.
    pub(super) fn names(&self) -> Vec<(usize, String)> {
        match self {
            Self::Microsofts { module, serial, .. } => {
                vec![(*module, format!("module{module}_microsofts{serial}"))]
            }
            Self::Part { program, part } => {
                vec![(programs::module(*program), programs::name(*program, *part))]
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
    /// Uploads a file like [`Action::Put`], and the event is lost.
    PutSilently(String, File),
    /// Removes a key.
    Remove(String),
    /// Sends a crash in these modules, and waits this long.
    Crash {
        scope: usize,
        modules: Vec<usize>,
        wait: Duration,
    },
    /// Sends a crash in a program whose debug information is in several files.
    CrashInProgram { scope: usize, program: usize },
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
    /// Fills the queues with so many messages that are of no use.
    Fill(usize),
    /// Starts a pass of the pruner.
    Prune,
    /// Configures a further symbol server for a function.
    Configure(Function),
    /// Deploys a function: so many of its instances run the newer release from now on.
    Deploy(Function, usize),
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
    let body = crash_body(modules);
    parse_request(body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"))
}

/// Returns the body of the same request.
pub(super) fn crash_body(modules: &[usize]) -> String {
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
    json!({"stacktraces": [{"frames": frames}], "modules": images}).to_string()
}

/// Returns the name of the function of each frame.
pub(super) fn names(completed: &Completed) -> Vec<Option<String>> {
    let stacktraces = completed.stacktraces.iter();
    let frames = stacktraces.flat_map(|stacktrace| &stacktrace.frames);
    frames
        .map(|frame| frame.frame.function.as_deref().map(str::to_owned))
        .collect()
}
