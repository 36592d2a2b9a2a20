//! A program's functions: their addresses and names, from its symbol table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use symbolic::common::ByteView;
use symbolic::debuginfo::Object;

use super::BenchError;

/// A program with its functions, from the symbol table; from the debug information if the symbols
/// have no sizes.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its short name.
    pub name: String,
    /// The debug file.
    pub debug: std::path::PathBuf,
    /// Its debug id.
    pub debug_id: String,
    /// Its build id.
    pub code_id: String,
    /// The offset from an address in the module to the address that other tools use.
    pub load_address: u64,
    /// Functions by first address: the end of each, and all its names.
    functions: BTreeMap<u64, Function>,
}

#[derive(Clone, Debug, Default)]
struct Function {
    end: u64,
    names: BTreeSet<String>,
}

impl Program {
    /// Reads a debug file.
    ///
    /// # Errors
    /// [`BenchError::Dif`] if it has no ids or no functions.
    pub fn read(name: &str, debug: &Path) -> Result<Self, BenchError> {
        let unreadable = |reason: String| BenchError::Dif {
            path: debug.to_owned(),
            reason,
        };
        let view = ByteView::open(debug).map_err(BenchError::file(debug))?;
        let object = Object::parse(&view).map_err(|error| unreadable(error.to_string()))?;
        let mut functions: BTreeMap<u64, Function> = BTreeMap::new();
        for symbol in object.symbols().filter(|symbol| symbol.size > 0) {
            let function = functions.entry(symbol.address).or_default();
            function.end = function.end.max(symbol.address + symbol.size);
            function.names.extend(symbol.name().map(str::to_owned));
        }
        // Symbols of PDBs have no sizes.
        if functions.is_empty() {
            let session = object.debug_session();
            let session = session.map_err(|error| unreadable(error.to_string()))?;
            for known in session.functions().flatten() {
                let function = functions.entry(known.address).or_default();
                function.end = function.end.max(known.address + known.size);
                function.names.insert(known.name.to_string());
            }
        }
        if functions.is_empty() {
            return Err(unreadable("it has no functions".to_owned()));
        }
        Ok(Self {
            name: name.to_owned(),
            debug: debug.to_owned(),
            debug_id: object.debug_id().to_string(),
            code_id: object
                .code_id()
                .map(|id| id.to_string())
                .unwrap_or_default(),
            load_address: object.load_address(),
            functions,
        })
    }

    /// Returns random addresses in functions, with a uniform distribution over their bytes.
    pub fn addresses(&self, count: usize, seed: u64) -> Vec<u64> {
        // The end of each function if all of them were adjacent, and its first address.
        let ends = self.functions.iter().scan(0, |end, (start, function)| {
            *end += function.end - start;
            Some((*end, *start))
        });
        let ends: Vec<(u64, u64)> = ends.collect();
        let total = ends.last().map_or(0, |(end, _)| *end);
        let mut chance = StdRng::seed_from_u64(seed);
        let at_offset = |offset: u64| {
            let at = ends.partition_point(|(end, _)| *end <= offset);
            let before = at.checked_sub(1).map_or(0, |before| ends[before].0);
            ends.get(at)
                .map_or(0, |(_, start)| start + (offset - before))
        };
        (0..count)
            .map(|_| at_offset(chance.random_range(0..total)))
            .collect()
    }

    /// Returns the first addresses of random functions. Cold parts, which are jumped to, are not
    /// among them.
    pub fn starts(&self, count: usize, seed: u64) -> Vec<u64> {
        let is_called =
            |function: &Function| !function.names.iter().any(|name| name.contains(".cold"));
        let functions = self.functions.iter();
        let called = functions.filter(|(_, function)| is_called(function));
        let starts: Vec<u64> = called.map(|(start, _)| *start).collect();
        let mut chance = StdRng::seed_from_u64(seed);
        (0..count)
            .map(|_| starts[chance.random_range(0..starts.len())])
            .collect()
    }

    /// Returns all names that the symbol table has for the function at an address.
    pub fn names_at(&self, address: u64) -> impl Iterator<Item = &str> {
        // Symbols may start inside others; those that cover the address start shortly before it.
        let before = self.functions.range(..=address).rev().take(8);
        let covering = before.filter(move |(_, function)| address < function.end);
        covering.flat_map(|(_, function)| function.names.iter().map(String::as_str))
    }
}
