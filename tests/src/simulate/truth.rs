//! The reference: which files exist and existed, and which names a response may contain.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use symdepot::domain::{Scope, Sequencer};

use super::Moment;
use super::releases::Release;
use super::servers;
use super::workload::{File, Offer, Readers, Symbols, module_key};

/// A removed file is in no response after this time (`docs/protocol.md`, "What always holds", 4).
const WITHDRAWN_WITHIN: Duration = Duration::from_secs(60);

/// The files of the uploads bucket, now and before.
#[derive(Debug, Default)]
pub(super) struct Truth {
    files: BTreeMap<String, File>,
    /// Whether symbol servers are searched, and a further one in the end.
    has_servers: bool,
    adds_server: bool,
    /// Every file that has, or had, a function.
    held: Vec<Held>,
    /// Where a function is, or was, by its name: indexes of `held`.
    by_name: BTreeMap<String, Vec<usize>>,
    /// What the product may still serve of a key: indexes of `held`.
    by_key: BTreeMap<String, Vec<usize>>,
    /// When a file of a module was last uploaded or removed, or when the product knows of it.
    changed_at: BTreeMap<usize, Moment>,
}

/// A file that has, or had, a function.
#[derive(Debug)]
struct Held {
    key: String,
    /// The sequencer of its removal.
    removed: Option<Sequencer>,
    /// When the product had applied the removal.
    withdrawn_at: Option<Moment>,
}

impl Truth {
    /// Returns no files yet. Whether symbol servers are searched, and a further one in the end.
    pub(super) fn new(has_servers: bool, adds_server: bool) -> Self {
        Self {
            has_servers,
            adds_server,
            ..Self::default()
        }
    }

    /// Puts a file in place of another one, or removes one.
    pub(super) fn change(
        &mut self,
        key: &str,
        file: Option<&File>,
        sequencer: &Sequencer,
        now: Moment,
    ) {
        let former = match file {
            Some(file) => self.files.insert(key.to_owned(), file.clone()),
            None => self.files.remove(key),
        };
        for (module, _) in former.iter().chain(file).flat_map(File::names) {
            let changed_at = self.changed_at.entry(module).or_default();
            *changed_at = now.max(*changed_at);
        }
        if former.as_ref() == file {
            return;
        }
        let of_key = self.by_key.entry(key.to_owned()).or_default();
        for at in &*of_key {
            self.held[*at].removed.get_or_insert(sequencer.clone());
        }
        for (_, name) in file.into_iter().flat_map(File::names) {
            let at = self.held.len();
            of_key.push(at);
            self.by_name.entry(name).or_default().push(at);
            self.held.push(Held {
                key: key.to_owned(),
                removed: None,
                withdrawn_at: None,
            });
        }
    }

    /// Records that the product may not know before this time which file a key has.
    pub(super) fn unsettle(&mut self, key: &str, until: Moment) {
        for (module, _) in self.files.get(key).into_iter().flat_map(File::names) {
            self.changed_at.insert(module, until);
        }
    }

    /// Returns whether a key has a file.
    pub(super) fn has(&self, key: &str) -> bool {
        self.files.contains_key(key)
    }

    /// Records that the product has applied an event of a key.
    pub(super) fn applied(&mut self, key: &str, sequencer: &Sequencer, now: Moment) {
        let Some(of_key) = self.by_key.get_mut(key) else {
            return;
        };
        of_key.retain(|at| {
            let held = &mut self.held[*at];
            let removed = held.removed.as_ref();
            let is_done = removed.is_some_and(|removed| removed <= sequencer);
            if is_done {
                held.withdrawn_at = Some(now);
            }
            !is_done
        });
    }

    /// Returns the key of the only file that ever had a name; `None` if there were several, or if
    /// the name is that of a file from a server.
    pub(super) fn key_of(&self, name: &str) -> Option<&str> {
        match self.by_name.get(name)?[..] {
            [at] => Some(&self.held[at].key),
            _ => None,
        }
    }

    /// Returns why a response to a request that began at `began` must not contain a name; `None` if
    /// it may.
    pub(super) fn objection(
        &self,
        name: &str,
        module: usize,
        scope: &str,
        began: Moment,
    ) -> Option<(&'static str, String)> {
        if !name.starts_with(&format!("module{module}_")) {
            let detail = format!("module {module} has the name {name}");
            return Some(("3: the bytes of another module", detail));
        }
        if name.contains(servers::SERIAL_TEXT) {
            return None;
        }
        let scope: Scope = scope.parse().unwrap_or_default();
        let readable = scope.readable();
        let held = self.by_name.get(name).into_iter().flatten();
        let held = held.map(|at| &self.held[*at]);
        let mut visible = held
            .filter(|held| Scope::of_key(&held.key).is_some_and(|scope| readable.contains(&scope)));
        if visible.clone().next().is_none() {
            let detail = format!("a request of {scope} has the name {name}");
            return Some(("3: the bytes of another scope", detail));
        }
        let is_allowed = |held: &Held| {
            held.withdrawn_at
                .is_none_or(|at| at + WITHDRAWN_WITHIN >= began)
        };
        if visible.any(is_allowed) {
            None
        } else {
            Some((
                "4: a removed file disappears within 60 s",
                format!("{name} in scope {scope}"),
            ))
        }
    }

    /// Returns the names that a request of a scope may get for a module: those of the best files,
    /// the very best first. Empty if there is none. Files whose key is `given_up` do not count.
    pub(super) fn best(
        &self,
        scope: &str,
        module: usize,
        release: Release,
        given_up: &BTreeSet<String>,
    ) -> Vec<String> {
        let scope: Scope = scope.parse().unwrap_or_default();
        let places = scope.readable();
        // A file that kills its parser when one object is derived kills it for each object.
        let kills = |file: &File| file.symbols().iter().any(|symbols| symbols.kills);
        let files = self.files.iter();
        let reads = |file: &File| {
            let mut symbols = file.symbols().iter();
            symbols.all(|symbols| symbols.readers.include(release))
        };
        let usable =
            files.filter(|(key, file)| !kills(file) && reads(file) && !given_up.contains(*key));
        let candidates = usable.flat_map(|(key, file)| {
            let place = Scope::of_key(key).and_then(|of| places.iter().position(|at| *at == of));
            let symbols = file.symbols().iter();
            let symbols = symbols.filter(|symbols| symbols.module == module);
            symbols.map(move |symbols| (symbols.offer, place, key.as_str(), *symbols))
        });
        let visible = candidates.filter(|(_, place, _, _)| place.is_some());
        let served = servers::symbols(module, self.adds_server).filter(|_| self.has_servers);
        let served = served.map(|symbols| (symbols.offer, Some(places.len()), "", symbols));
        let mut visible: Vec<(Offer, _, _, Symbols)> = visible.chain(served).collect();
        visible.sort();
        let best = visible.first().map(|(offer, place, _, _)| (*offer, *place));
        visible.retain(|(offer, place, _, _)| Some((*offer, *place)) == best);
        let best = visible.into_iter();
        best.map(|(_, _, _, symbols)| symbols.function()).collect()
    }

    /// Returns the highest minor number of Microsoft's SymCaches that a request of a scope may get
    /// for a module; `None` if there is none.
    pub(super) fn highest(&self, scope: &str, module: usize) -> Option<u8> {
        let scope: Scope = scope.parse().unwrap_or_default();
        let places = scope.readable();
        let files = self.files.iter();
        let visible =
            files.filter(|(key, _)| Scope::of_key(key).is_some_and(|of| places.contains(&of)));
        let minors = visible.filter_map(|(_, file)| match file {
            File::Microsofts {
                module: of, minor, ..
            } if *of == module => Some(*minor),
            _ => None,
        });
        minors.max()
    }

    /// Returns the files of a program, except for those whose key is `given_up`.
    pub(super) fn parts(&self, program: usize, given_up: &BTreeSet<String>) -> Vec<usize> {
        let files = self
            .files
            .iter()
            .filter(|(key, _)| !given_up.contains(*key));
        let parts = files.filter_map(|(_, file)| match file {
            File::Part { program: of, part } if *of == program => Some(*part),
            _ => None,
        });
        parts.collect()
    }

    /// Returns the number of modules of a scope, below this number, that have a file which kills
    /// its parser.
    pub(super) fn killed(&self, scope: &str, modules: usize) -> usize {
        let of_scope = |key: &str| key.split_once('/').is_some_and(|(of, _)| of == scope);
        let files = self.files.iter().filter(|(key, _)| of_scope(key));
        // Each of its objects, as in `best`.
        let killers = files.filter(|(_, file)| file.symbols().iter().any(|symbols| symbols.kills));
        let killed = killers.flat_map(|(_, file)| file.symbols());
        let killed = killed.map(|symbols| symbols.module);
        let killed: BTreeSet<usize> = killed.filter(|module| *module < modules).collect();
        killed.len()
    }

    /// Returns whether a release can make something of the file of a key.
    pub(super) fn is_usable(&self, key: &str, release: Release) -> bool {
        let mut symbols = self.files.get(key).into_iter().flat_map(File::symbols);
        symbols.all(|symbols| !symbols.kills && symbols.readers.include(release))
    }

    /// Returns whether only one of two releases can make something of the file with a name.
    pub(super) fn is_of_one_release(&self, name: &str) -> bool {
        Readers::of(name.as_bytes()) != Readers::All
    }

    /// Returns when a file of a module was last uploaded or removed.
    pub(super) fn changed_at(&self, module: usize) -> Moment {
        self.changed_at.get(&module).copied().unwrap_or_default()
    }

    /// Returns the keys of the files of the module with this partition.
    pub(super) fn keys_of(&self, partition: &str) -> Vec<&str> {
        let offers = self.offers_of(partition).into_iter();
        offers.map(|(key, _)| key).collect()
    }

    /// Returns the keys of the files of the module with this partition, and how well each serves.
    pub(super) fn offers_of(&self, partition: &str) -> Vec<(&str, Offer)> {
        let is_of_it = |key: &str, symbols: &Symbols| {
            let scope = key.split_once('/').map(|(scope, _)| scope);
            scope.is_some_and(|scope| module_key(scope, symbols.module).partition() == partition)
        };
        let files = self.files.iter();
        let offers = files.filter_map(|(key, file)| {
            let mut symbols = file.symbols().iter();
            let of_it = symbols.find(|symbols| is_of_it(key, symbols))?;
            Some((&**key, of_it.offer))
        });
        offers.collect()
    }
}
