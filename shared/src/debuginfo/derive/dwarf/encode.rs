//! Writes merged ranges as slices, each of which is a SymCache.

use foldhash::{HashMap, HashMapExt};

use super::merge::{MergedRange, What};
use super::symbols::Symbols;
use super::tables::{NOTHING, TextRef, Texts, UnitTables};
use crate::debuginfo::auxiliary::{self, Maps, SourceLine};
use crate::debuginfo::slices::{self, Bounds, Cut, NOWHERE, RawFile, RawFunction, RawLocation};

/// Encodes the slices of an object.
pub(in crate::debuginfo::derive) struct SymCacheEncoder<'a> {
    /// The first bytes of each SymCache: see [`slices::head`].
    pub(in crate::debuginfo::derive) head: &'a [u8],
    pub(in crate::debuginfo::derive) texts: Texts<'a>,
    pub(in crate::debuginfo::derive) symbols: &'a Symbols<'a>,
    pub(in crate::debuginfo::derive) maps: &'a Maps<'a>,
    pub(in crate::debuginfo::derive) bounds: Bounds,
}

impl SymCacheEncoder<'_> {
    /// Returns a function that writes the slices of a group of ranges in address order. It reuses
    /// its tables from one slice to the next.
    pub(in crate::debuginfo::derive) fn cutter(&self) -> impl FnMut(Vec<MergedRange>) -> Vec<Cut> {
        let mut tables = SliceTables::new(self);
        move |group| {
            let (mut left, mut cuts) = (&*group, Vec::new());
            while let Some(first) = left.first() {
                tables.clear();
                let taken = left
                    .iter()
                    .take_while(|entry| {
                        let has_room =
                            tables.is_empty() || tables.raw_bytes() < self.bounds.raw_bytes;
                        if has_room {
                            tables.add(entry);
                        }
                        has_room
                    })
                    .count();
                cuts.push(Cut {
                    start: first.start,
                    raw: tables.written(self.head),
                });
                left = left.get(taken..).expect("it took some of them");
            }
            cuts
        }
    }
}

/// The tables of one slice.
///
/// The `known_` maps give the number of an item that is already in the slice.
struct SliceTables<'t> {
    texts: &'t Texts<'t>,
    symbols: &'t Symbols<'t>,
    maps: &'t Maps<'t>,
    files: Vec<RawFile>,
    functions: Vec<RawFunction>,
    calls: Vec<RawLocation>,
    locations: Vec<RawLocation>,
    ranges: Vec<u32>,
    strings: Vec<u8>,
    known: KnownItems,
    known_symbols: HashMap<u32, u32>,
    known_texts: HashMap<TextRef, u32>,
    /// Files of a line map, by their numbers in the map.
    known_sources: HashMap<u32, u32>,
    /// The paths by which a line map knows files.
    paths: HashMap<(u32, u32), String>,
    /// Calls that are being added, the innermost first.
    chain: Vec<(u32, RawLocation)>,
}

impl<'t> SliceTables<'t> {
    fn new(encoder: &'t SymCacheEncoder<'t>) -> Self {
        Self {
            texts: &encoder.texts,
            symbols: encoder.symbols,
            maps: encoder.maps,
            files: Vec::new(),
            functions: Vec::new(),
            calls: Vec::new(),
            locations: Vec::new(),
            ranges: Vec::new(),
            strings: Vec::new(),
            known: KnownItems::default(),
            known_symbols: HashMap::new(),
            known_texts: HashMap::new(),
            known_sources: HashMap::new(),
            paths: HashMap::new(),
            chain: Vec::new(),
        }
    }

    fn clear(&mut self) {
        self.files.clear();
        self.functions.clear();
        self.calls.clear();
        self.locations.clear();
        self.ranges.clear();
        self.strings.clear();
        self.known.clear();
        self.known_symbols.clear();
        self.known_texts.clear();
        self.known_sources.clear();
        self.paths.clear();
    }

    fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    fn raw_bytes(&self) -> usize {
        size_of_val(&*self.files)
            + size_of_val(&*self.functions)
            + size_of_val(&*self.calls)
            + size_of_val(&*self.locations)
            + size_of_val(&*self.ranges)
            + self.strings.len()
    }

    fn add(&mut self, entry: &MergedRange) {
        let location = match entry.what {
            What::Nothing => NOTHING,
            What::Symbol(number) => [NOWHERE, 0, self.symbol(number), NOWHERE],
            What::Line { symbol, run, place } => self.line(symbol, run, place),
            What::Range { run, location } => match self.texts.runs.get(run as usize) {
                Some(tables) => {
                    self.known.enter(run);
                    self.range(tables, location)
                }
                None => NOTHING,
            },
        };
        self.ranges.push(entry.start);
        self.locations.push(location);
    }

    fn range(
        &mut self,
        tables: &UnitTables,
        [file, line, function, call]: RawLocation,
    ) -> RawLocation {
        let call = self.call(tables, call);
        self.location(tables, [file, line, function, call])
    }

    /// Returns a location whose call already has its number in the slice.
    fn location(
        &mut self,
        tables: &UnitTables,
        [file, line, function, call]: RawLocation,
    ) -> RawLocation {
        let [file, line] = self.place(tables, [file, line]);
        [file, line, self.function(tables, function), call]
    }

    /// Returns a place, whose file has its number in the slice: that of the line map, if the map
    /// has one for it.
    fn place(&mut self, tables: &UnitTables, [file, line]: [u32; 2]) -> [u32; 2] {
        match self.mapped(tables, [file, line]) {
            Some(SourceLine { file, line }) => [self.source(file), line],
            None => [self.file(tables, file), line],
        }
    }

    /// Looks up a place in the line map.
    fn mapped(&mut self, tables: &UnitTables, [file, line]: [u32; 2]) -> Option<SourceLine> {
        let map = self.maps.lines.as_ref()?;
        let parts = tables.files.get(file as usize)?;
        let (texts, maps) = (self.texts, self.maps);
        let path = self.paths.entry((tables.run, file)).or_insert_with(|| {
            let parts = parts.map(|text| maps.name(texts.get(text)));
            auxiliary::path_of(parts.each_ref().map(AsRef::as_ref))
        });
        map.find(path, line)
    }

    /// Adds a file of the line map. Returns its number in the slice.
    fn source(&mut self, number: u32) -> u32 {
        if let Some(known) = self.known_sources.get(&number) {
            return *known;
        }
        let maps = self.maps;
        let name = maps.lines.as_ref().map_or("", |map| map.file(number));
        let name = self.string(name);
        let known = count(&self.files);
        self.files
            .push([NOWHERE, NOWHERE, name, NOWHERE, NOWHERE, NOWHERE]);
        self.known_sources.insert(number, known);
        known
    }

    /// Adds a call and the calls around it, outermost first. Returns its number in the slice.
    fn call(&mut self, tables: &UnitTables, call: u32) -> u32 {
        let mut next = call;
        let mut known = NOWHERE;
        while let Some(location) = tables.calls.get(next as usize) {
            if let Some(number) = self.known.get(TableItem::Call, next) {
                known = number;
                break;
            }
            self.chain.push((next, *location));
            next = location[3];
        }
        while let Some((number, [file, line, function, _])) = self.chain.pop() {
            let location = self.location(tables, [file, line, function, known]);
            known = count(&self.calls);
            self.calls.push(location);
            self.known.set(TableItem::Call, number, known);
        }
        known
    }

    fn file(&mut self, tables: &UnitTables, number: u32) -> u32 {
        if let Some(known) = self.known.get(TableItem::File, number) {
            return known;
        }
        let Some(file) = tables.files.get(number as usize) else {
            return NOWHERE;
        };
        let [working_directory, directory, name] = file.map(|text| self.text(text));
        let link = tables.links.get(&number);
        let link = link.map_or([NOWHERE; 3], |link| link.map(|text| self.text(text)));
        let [link_name, link_directory, revision] = link;
        let known = count(&self.files);
        self.files.push([
            working_directory,
            directory,
            name,
            link_name,
            link_directory,
            revision,
        ]);
        self.known.set(TableItem::File, number, known);
        known
    }

    fn function(&mut self, tables: &UnitTables, number: u32) -> u32 {
        if let Some(known) = self.known.get(TableItem::Function, number) {
            return known;
        }
        let Some(function) = tables.functions.get(number as usize) else {
            return NOWHERE;
        };
        let name = self.text(function.name);
        let known = count(&self.functions);
        self.functions
            .push([name, NOWHERE, function.entry, function.language as u32]);
        self.known.set(TableItem::Function, number, known);
        known
    }

    fn line(&mut self, symbol: u32, run: u32, place: [u32; 2]) -> RawLocation {
        let [file, line] = match self.texts.runs.get(run as usize) {
            Some(tables) => {
                self.known.enter(run);
                self.place(tables, place)
            }
            None => [NOWHERE, place[1]],
        };
        [file, line, self.symbol(symbol), NOWHERE]
    }

    fn symbol(&mut self, number: u32) -> u32 {
        if let Some(known) = self.known_symbols.get(&number) {
            return *known;
        }
        let name = self.text(TextRef::of_symbol(number as usize));
        let start = u32::try_from(self.symbols.address(number)).unwrap_or(NOWHERE);
        let known = count(&self.functions);
        self.functions.push([name, NOWHERE, start, NOWHERE]);
        self.known_symbols.insert(number, known);
        known
    }

    fn text(&mut self, text: TextRef) -> u32 {
        if text == TextRef::NONE {
            return NOWHERE;
        }
        if let Some(known) = self.known_texts.get(&text) {
            return *known;
        }
        let (texts, maps) = (self.texts, self.maps);
        let known = self.string(&maps.name(texts.get(text)));
        self.known_texts.insert(text, known);
        known
    }

    fn string(&mut self, text: &str) -> u32 {
        let offset = u32::try_from(self.strings.len()).unwrap_or(NOWHERE);
        slices::write_string(text.as_bytes(), &mut self.strings);
        offset
    }

    fn written(&self, head: &[u8]) -> Vec<u8> {
        let slice = slices::SymCacheTables {
            head,
            files: &self.files,
            functions: &self.functions,
            calls: &self.calls,
            locations: &self.locations,
            ranges: &self.ranges,
            strings: &self.strings,
        };
        slice.written()
    }
}

/// An item in the tables of a run.
#[derive(Clone, Copy, Debug)]
enum TableItem {
    File,
    Function,
    Call,
}

/// The items that are already in the slice, by the run that they are from, with their numbers in
/// the slice. A slice has ranges of few runs, and most ranges are of the same run as the range
/// before.
#[derive(Default)]
struct KnownItems {
    /// The number of the slice. What earlier slices noted does not count.
    slice: u32,
    /// One for each run that occurs in the slice, then spare ones.
    runs: Vec<RunItems>,
    by_run: HashMap<u32, usize>,
    /// The index of the current run in `runs`, and its number.
    current: usize,
    run: Option<u32>,
}

/// For each kind of [`TableItem`], by its number in the run: the last slice that has it, and its
/// number in that slice.
#[derive(Default)]
struct RunItems([Vec<(u32, u32)>; 3]);

impl KnownItems {
    fn clear(&mut self) {
        self.slice += 1;
        self.by_run.clear();
        self.run = None;
    }

    /// Makes a run the current one, which the other functions refer to.
    fn enter(&mut self, run: u32) {
        if self.run == Some(run) {
            return;
        }
        self.run = Some(run);
        let next = self.by_run.len();
        self.current = *self.by_run.entry(run).or_insert(next);
        if self.runs.len() <= self.current {
            self.runs.push(RunItems::default());
        }
    }

    fn get(&self, item: TableItem, number: u32) -> Option<u32> {
        let RunItems(items) = self.runs.get(self.current)?;
        let (slice, known) = *items[item as usize].get(number as usize)?;
        (slice == self.slice).then_some(known)
    }

    fn set(&mut self, item: TableItem, number: u32, known: u32) {
        let Some(RunItems(items)) = self.runs.get_mut(self.current) else {
            return;
        };
        let (items, at) = (&mut items[item as usize], number as usize);
        if items.len() <= at {
            items.resize(at + 1, (0, 0));
        }
        items[at] = (self.slice, known);
    }
}

fn count<T>(table: &[T]) -> u32 {
    u32::try_from(table.len()).unwrap_or(NOWHERE)
}
