//! Reads the functions, inlined calls and lines of modules into flat tables.
//!
//! The rules follow `symbolic` (`symbolic_debuginfo::pdb`, MIT), which is the oracle. It formats
//! the name of each inlined call and the parameters of each function again; here, names of inlined
//! functions, parameters by type, and files are known within a run. Records of other kinds than
//! functions, separated code and inlined calls are not parsed.

use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use foldhash::{HashMap, HashMapExt};
use pdb_addr2line::TypeFormatter;
use pdb_addr2line::pdb::{
    self, AddressMap, FallibleIterator, FileIndex, IdIndex, InlineSiteSymbol, Inlinee, ItemIndex,
    LineInfo, LineProgram, ModuleInfo, PdbInternalSectionOffset, ProcedureSymbol, RawString,
    SeparatedCodeSymbol, StringTable, SymbolData, TypeIndex,
};
use symbolic::common::{Arch, Language};
use symbolic::debuginfo::FileInfo;

use super::ranges::{FunctionNode, PdbLine, RangeBuilder};
use crate::debuginfo::derive::dwarf::tables::{TextRef, UnitFunction, UnitTables};
use crate::debuginfo::derive::pdb_links::PdbLinks;
use crate::debuginfo::panics::caught;
use crate::debuginfo::slices::NOWHERE;
use crate::debuginfo::undecorate::undecorated;

/// The kinds of records of functions and inlined calls: LLVM, `CodeViewSymbols.def`.
const KINDS: [pdb::SymbolKind; 11] = [
    0x100a, // S_LPROC32_ST
    0x100b, // S_GPROC32_ST
    0x110f, // S_LPROC32
    0x1110, // S_GPROC32
    0x1132, // S_SEPCODE
    0x1146, // S_LPROC32_ID
    0x1147, // S_GPROC32_ID
    0x114d, // S_INLINESITE
    0x1155, // S_LPROC32_DPC
    0x1156, // S_LPROC32_DPC_ID
    0x115d, // S_INLINESITE2
];

/// Why a module cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ModuleError {
    #[error(transparent)]
    Pdb(#[from] pdb::Error),
    #[error("an inlined call lies in no function")]
    InlinedNowhere,
}

/// What all modules of a PDB share.
#[derive(Clone, Copy)]
pub(super) struct Shared<'r, 's, 'l> {
    pub(super) formatter: &'r TypeFormatter<'r, 's>,
    pub(super) addresses: &'r AddressMap<'s>,
    pub(super) strings: Option<&'r StringTable<'s>>,
    pub(super) links: Option<&'r Mutex<PdbLinks<'l>>>,
    pub(super) arch: Arch,
}

/// How often a name is formatted until it is settled.
const ATTEMPTS: usize = 4;

/// Formats a name; if that fails at a parameter, without the parameters. The formatter reads the
/// types of a file as far as it has been asked for them: at a damaged record, a first call fails,
/// and the same call finds no type from then on. The name must not depend on which worker asks
/// first.
///
/// A build with debug assertions panics at some records that others cannot read, such as the arrays
/// with names that Zig writes.
fn settled(format: impl Fn(&mut String) -> Result<(), pdb_addr2line::Error>) -> Option<String> {
    let mut name = String::new();
    let is_whole = (0..ATTEMPTS).any(|_| {
        name.clear();
        caught(|| format(&mut name)).is_ok_and(|formatted| formatted.is_ok())
    });
    if is_whole {
        Some(with_char8(name))
    } else {
        without_parameters(&name).map(str::to_owned)
    }
}

/// Returns what is before the first parenthesis that is not closed, if there is one.
fn without_parameters(name: &str) -> Option<&str> {
    let mut open = Vec::new();
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'(' => open.push(at),
            b')' => {
                open.pop();
            }
            _ => {}
        }
    }
    let name = name.get(..*open.first()?)?;
    (!name.is_empty()).then_some(name)
}

/// Names the type `char8_t` of C++20 and pointers to it, which the formatter does not know: LLVM,
/// `CodeViewTypes.def`.
fn with_char8(name: String) -> String {
    const MISSING: &str = "<missing type 0x";
    const TYPES: [(&str, &str); 3] = [
        ("<missing type 0x7c>", "char8_t"),
        ("<missing type 0x47c>", "char8_t*"),
        ("<missing type 0x67c>", "char8_t*"),
    ];
    if name.contains(MISSING) {
        TYPES
            .iter()
            .fold(name, |name, (missing, shown)| name.replace(missing, shown))
    } else {
        name
    }
}

/// Reads the modules of a run.
pub(super) struct ModuleReader<'r, 's, 'l> {
    shared: Shared<'r, 's, 'l>,
    pub(super) tables: UnitTables,
    ranges: RangeBuilder,
    /// The numbers of inlined functions; `None` if a name cannot be formatted.
    inlined: HashMap<Scoped<IdIndex>, Option<u32>>,
    /// What follows the names of functions of a type.
    parameters: HashMap<Scoped<TypeIndex>, Box<str>>,
    /// The numbers of files, by path.
    files: HashMap<Box<[u8]>, u32>,
    folders: HashMap<Box<str>, TextRef>,
    /// The functions that are being read, and the calls inlined into them.
    nodes: Vec<FunctionNode>,
    /// The open ones of [`Self::nodes`], with their depths.
    stack: Vec<(isize, usize)>,
    lines: Vec<PdbLine>,
}

/// The number of a type, with the module if it has a meaning only there.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Scoped<I> {
    module: Option<usize>,
    index: I,
}

impl<I: ItemIndex> Scoped<I> {
    fn new(module: usize, index: I) -> Self {
        let module = index.is_cross_module().then_some(module);
        Self { module, index }
    }
}

/// A module that is being read.
struct OpenModule<'r> {
    number: usize,
    lines: LineProgram<'r>,
    inlinees: HashMap<u32, Inlinee<'r>>,
    files: ModuleFiles,
}

/// The files of a module.
#[derive(Default)]
struct ModuleFiles {
    /// Their numbers.
    known: HashMap<u32, u32>,
    /// The file of the last line, and its number.
    last: Option<(u32, u32)>,
}

impl<'r, 's, 'l> ModuleReader<'r, 's, 'l> {
    pub(super) fn new(run: u32, shared: Shared<'r, 's, 'l>) -> Self {
        Self {
            shared,
            tables: UnitTables::new(run),
            ranges: RangeBuilder::new(),
            inlined: HashMap::new(),
            parameters: HashMap::new(),
            files: HashMap::new(),
            folders: HashMap::new(),
            nodes: Vec::new(),
            stack: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Reads a module.
    ///
    /// # Errors
    ///
    /// It is malformed. Functions before the fault were read.
    pub(super) fn read(
        &mut self,
        number: usize,
        module: &'r ModuleInfo<'s>,
    ) -> Result<(), ModuleError> {
        let read = self.read_module(number, module);
        if read.is_err() {
            self.stack.clear();
        }
        self.flush(0);
        // Malformed files end more functions than they begin.
        self.stack.clear();
        self.nodes.clear();
        read
    }

    fn read_module(
        &mut self,
        number: usize,
        module: &'r ModuleInfo<'s>,
    ) -> Result<(), ModuleError> {
        let mut inlinees = HashMap::new();
        let mut each = module.inlinees()?;
        while let Some(inlinee) = each.next()? {
            inlinees.insert(inlinee.index().0, inlinee);
        }
        let mut module_lines = OpenModule {
            number,
            lines: module.line_program()?,
            inlinees,
            files: ModuleFiles::default(),
        };
        let module_lines = &mut module_lines;

        let mut depth = 0;
        let mut opens = false;
        // The depth of a function or inlined call that was left out, with all in it.
        let mut left_out = None;
        let mut procedures: Vec<(isize, PdbInternalSectionOffset)> = Vec::new();
        let mut last: Option<ProcedureSymbol<'_>> = None;
        let mut symbols = module.symbols()?;
        while let Some(symbol) = symbols.next()? {
            depth += isize::from(opens);
            opens = symbol.starts_scope();
            let closes = symbol.ends_scope();
            if closes {
                depth -= 1;
                procedures.pop_if(|(at, _)| *at >= depth);
            }
            if left_out.is_some_and(|left_out| depth > left_out) {
                continue;
            }
            left_out = None;
            if closes {
                self.flush(depth);
            }
            if !KINDS.contains(&symbol.raw_kind()) {
                continue;
            }
            let node = match symbol.parse() {
                Ok(SymbolData::Procedure(procedure)) => {
                    procedures.push((depth, procedure.offset));
                    let extent = (procedure.offset, procedure.len);
                    let node = self.function(module_lines, extent, &procedure)?;
                    last = Some(procedure);
                    node
                }
                Ok(SymbolData::SeparatedCode(SeparatedCodeSymbol {
                    offset,
                    len,
                    parent_offset,
                    ..
                })) => match &last {
                    Some(last) if last.offset == parent_offset => {
                        self.function(module_lines, (offset, len), last)?
                    }
                    _ => continue,
                },
                Ok(SymbolData::InlineSite(site)) => {
                    let (_, parent) = procedures.last().ok_or(ModuleError::InlinedNowhere)?;
                    self.inlined_call(module_lines, &site, *parent)
                }
                // Some kinds of records are unknown.
                _ => continue,
            };
            match node {
                Some(node) => {
                    self.stack.push((depth, self.nodes.len()));
                    self.nodes.push(node);
                }
                None => left_out = Some(depth),
            }
        }
        Ok(())
    }

    /// Closes what is open at this depth and below. An inlined call becomes part of what is around
    /// it, a function is complete.
    fn flush(&mut self, depth: isize) {
        let mut inner = None;
        while let Some((at, number)) = self.stack.pop() {
            let Some(node) = self.nodes.get_mut(number) else {
                continue;
            };
            node.inlined.extend(inner.take());
            if at < depth {
                self.stack.push((at, number));
                return;
            }
            if node.is_inlined {
                inner = Some(number);
                continue;
            }
            let mut inlined = std::mem::take(&mut node.inlined);
            inlined.sort_by_key(|call| self.nodes.get(*call).map(|call| call.address));
            if let Some(node) = self.nodes.get_mut(number) {
                node.inlined = inlined;
            }
            self.ranges.add(&self.nodes, number, &mut self.tables);
        }
        self.nodes.clear();
    }

    fn function(
        &mut self,
        module: &mut OpenModule<'r>,
        (offset, length): (PdbInternalSectionOffset, u32),
        procedure: &ProcedureSymbol<'_>,
    ) -> Result<Option<FunctionNode>, ModuleError> {
        let Some(address) = offset.to_rva(self.shared.addresses) else {
            return Ok(None);
        };
        let lines = module.lines.lines_for_symbol(offset);
        self.collect(&module.lines, &mut module.files, lines)?;
        // A function without code has no ranges.
        let function = match length {
            0 => NOWHERE,
            _ => {
                let (name, of) = (procedure.name, procedure.type_index);
                let name = self.name_of(module.number, name, of);
                self.new_function(&name, address.0)
            }
        };
        let (address, size) = (u64::from(address.0), u64::from(length));
        Ok(Some(self.node((address, size), function, false)))
    }

    fn inlined_call(
        &mut self,
        module: &mut OpenModule<'r>,
        site: &InlineSiteSymbol<'r>,
        parent: PdbInternalSectionOffset,
    ) -> Option<FunctionNode> {
        let lines = module.inlinees.get(&site.inlinee.0)?.lines(parent, site);
        // Some compilers write files that do not exist.
        self.collect(&module.lines, &mut module.files, lines).ok()?;
        let address = self.lines.first()?.address;
        let last = self.lines.last()?;
        let end = last.address + last.size.unwrap_or(1);
        let function = self.inlined_function(module.number, site.inlinee)?;
        Some(self.node((address, end - address), function, true))
    }

    /// Makes a node of the lines that were collected and that lie in the function.
    fn node(
        &mut self,
        (address, size): (u64, u64),
        function: u32,
        is_inlined: bool,
    ) -> FunctionNode {
        let mut node = FunctionNode {
            address,
            size,
            is_inlined,
            function,
            lines: Vec::new(),
            inlined: Vec::new(),
        };
        let end = node.end();
        self.lines.retain(|line| {
            let line_end = line.size.map(|size| line.address.saturating_add(size));
            line.address < end && line_end.is_none_or(|line_end| line_end > address)
        });
        node.lines.extend_from_slice(&self.lines);
        node
    }

    /// Collects lines by address. Lines that differ only in their column become one.
    fn collect(
        &mut self,
        program: &LineProgram<'_>,
        files: &mut ModuleFiles,
        mut lines: impl FallibleIterator<Item = LineInfo, Error = pdb::Error>,
    ) -> Result<(), ModuleError> {
        self.lines.clear();
        while let Some(line) = lines.next()? {
            let Some(address) = line.offset.to_rva(self.shared.addresses) else {
                continue;
            };
            let size = line.length.map(u64::from);
            if size == Some(0) {
                continue;
            }
            let file = self.file(program, files, line.file_index)?;
            self.lines.push(PdbLine {
                address: u64::from(address.0),
                size,
                file,
                line: line.line_start,
            });
        }
        self.lines.sort_by_key(|line| line.address);
        self.lines.dedup_by(|line, last| {
            let end = last.size.and_then(|size| last.address.checked_add(size));
            let continues =
                end == Some(line.address) && (line.file, line.line) == (last.file, last.line);
            if continues {
                let more = line.size.unwrap_or(0);
                last.size = last.size.map(|size| size.saturating_add(more));
            }
            continues
        });
        Ok(())
    }

    /// Returns the number of a file.
    fn file(
        &mut self,
        program: &LineProgram<'_>,
        files: &mut ModuleFiles,
        file: FileIndex,
    ) -> Result<u32, ModuleError> {
        if let Some((last, number)) = files.last
            && last == file.0
        {
            return Ok(number);
        }
        let number = match files.known.get(&file.0) {
            Some(number) => *number,
            None => {
                let name = program.get_file_info(file)?.name;
                let path = match self.shared.strings {
                    Some(strings) => name.to_raw_string(strings)?,
                    None => "".into(),
                };
                let number = self.file_at(path.as_bytes());
                files.known.insert(file.0, number);
                number
            }
        };
        files.last = Some((file.0, number));
        Ok(number)
    }

    fn file_at(&mut self, path: &[u8]) -> u32 {
        if let Some(number) = self.files.get(path) {
            return *number;
        }
        let file = FileInfo::from_path(path);
        let (folder, name) = (file.dir_str(), file.name_str());
        let (folder_text, name_text) = (self.folder(&folder), self.tables.keep(name.as_bytes()));
        let number = u32::try_from(self.tables.files.len()).unwrap_or(NOWHERE);
        let parts = [TextRef::EMPTY, folder_text, name_text];
        self.tables.files.push(parts);
        self.files.insert(path.into(), number);
        if let Some(links) = self.shared.links {
            let mut links = links.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(link) = links.of_file(&folder, &name) {
                let folder = link.folder.map_or(TextRef::NONE, |text| self.folder(&text));
                let mut keep = |text: &str| self.tables.keep(text.as_bytes());
                let name = keep(&link.name);
                let revision = link.revision.as_deref().map_or(TextRef::NONE, keep);
                self.tables.links.insert(number, [name, folder, revision]);
            }
        }
        number
    }

    /// Keeps the text of a folder once.
    fn folder(&mut self, folder: &str) -> TextRef {
        if let Some(text) = self.folders.get(folder) {
            return *text;
        }
        let text = self.tables.keep(folder.as_bytes());
        self.folders.insert(folder.into(), text);
        text
    }

    /// Returns the number of a new function.
    fn new_function(&mut self, name: &str, entry: u32) -> u32 {
        let name = undecorated(name, self.shared.arch);
        let number = u32::try_from(self.tables.functions.len()).unwrap_or(NOWHERE);
        let name = self.tables.keep(name.as_bytes());
        self.tables.functions.push(UnitFunction {
            name,
            entry,
            language: Language::Unknown,
        });
        number
    }

    /// Returns the number of a function that is inlined.
    fn inlined_function(&mut self, module: usize, id: IdIndex) -> Option<u32> {
        let key = Scoped::new(module, id);
        if let Some(known) = self.inlined.get(&key) {
            return *known;
        }
        let formatter = self.shared.formatter;
        let name = settled(|text| formatter.emit_id(text, module, id));
        let number = name.map(|name| self.new_function(&name, NOWHERE));
        self.inlined.insert(key, number);
        number
    }

    /// Returns the name of a function with its parameters, or without if they cannot be formatted.
    fn name_of(&mut self, module: usize, name: RawString<'_>, of: TypeIndex) -> String {
        /// Any name. The formatter has a text for the empty one.
        const NAME: &str = "f";
        let (formatter, name) = (self.shared.formatter, name.to_string());
        if name.is_empty() {
            let whole = settled(|text| formatter.emit_function(text, "", module, of));
            return whole.unwrap_or_default();
        }
        let parameters = self.parameters.entry(Scoped::new(module, of));
        let parameters = parameters.or_insert_with(|| {
            let formatted = settled(|text| formatter.emit_function(text, NAME, module, of));
            let formatted = formatted.unwrap_or_default();
            formatted.strip_prefix(NAME).unwrap_or_default().into()
        });
        [&name, &**parameters].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_char8_t_has_its_name() {
        let named = |name: &str| with_char8(name.to_owned());
        assert_eq!(named("f(<missing type 0x7c>)"), "f(char8_t)");
        assert_eq!(named("f(<missing type 0x67c>, int)"), "f(char8_t*, int)");
        assert_eq!(named("f(<missing type 0x7d>)"), "f(<missing type 0x7d>)");
        assert_eq!(named("f(int)"), "f(int)");
    }

    #[test]
    fn a_name_without_parameters_ends_where_they_begin() {
        for (partial, name) in [
            ("sum(", Some("sum")),
            ("A::sum(int, ", Some("A::sum")),
            ("A::operator()(void (int, ", Some("A::operator()")),
            ("sum", None),
            ("sum(int)", None),
            ("(", None),
            ("", None),
        ] {
            assert_eq!(without_parameters(partial), name, "{partial}");
        }
    }

    #[test]
    fn a_fault_in_the_parameters_of_a_name_costs_only_these() {
        let failing = settled(|text| {
            text.push_str("sum(int, ");
            Err(pdb::Error::UnexpectedEof.into())
        });
        assert_eq!(failing.as_deref(), Some("sum"));
        let panicking = settled(|text| {
            text.push_str("sum(");
            panic!("an array has a name")
        });
        assert_eq!(panicking.as_deref(), Some("sum"));
    }
}
