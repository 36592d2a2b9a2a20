//! Demangles the names of functions.
//!
//! Names are untrusted input. The demanglers of C++, Rust and Objective-C are written in Rust:
//! their recursion is bounded, their panics are caught here, and the length of names is limited.
//! Swift's demangler is written in C++, with assertions that end the process. Back references let a
//! hundred bytes expand to gigabytes of text, in Swift, in Rust and in Microsoft's scheme. The
//! demangler of C++ takes hours for some names. Such names are therefore *isolated*: this module
//! collects them ([`KnownNames::take_isolated`]), a process without privileges demangles them one
//! by one ([`IsolatedName::demangle`]), and the request is symbolicated once more with the results
//! ([`KnownNames::add`]).
//!
//! Many names that are each below these limits could still take long together. The names that a
//! request demangles here therefore share a budget of counted work ([`NameWork`]): the same request
//! has the same names on every machine.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::panic::catch_unwind;
use std::sync::Arc;

use quick_cache::sync::Cache;
use quick_cache::{Equivalent, Weighter};
use symbolic::common::{Name, NameMangling};
use symbolic::demangle::Demangle;

use super::cpp_names::{
    Keep, may_be_misprinted, most_retries, retries, rewritten, thunk, with_classes,
    with_literal_operators,
};
use super::text::shown;
use crate::api::symbolicator::Frame;
use crate::domain::{IsolatedName, Language, READABLE};
use crate::symbolicate::text::escaped_bytes;

/// The longest name that is demangled, in bytes; longer names are unchanged. Longer names of Swift
/// and C++ would demangle to more than `symbolic` returns; Microsoft's compiler hashes longer
/// names.
const LONGEST_NAME: usize = 4096;

/// The longest name that is demangled if it is known to be Rust's, in bytes: names of closures in
/// futures are long.
const LONGEST_RUST_NAME: usize = 64 * 1024;

/// The longest demangled name in a response, in bytes.
const LONGEST_DEMANGLED: usize = 16 * 1024;

/// The most back references in a name that is not isolated. Each may double the name. Names in a
/// request with more of them are unchanged.
const MAX_BACK_REFERENCES: usize = 20;

/// The most text that the back references of a name of Microsoft's that is not isolated may stand
/// for, as a multiple of the shortest parts.
const LONGEST_EXPANSION: usize = 64 * 1024;

/// The most back references in a v0 name of Rust that is not isolated. Two of them may double the
/// steps for the name, which need not print anything.
const MAX_RUST_REFERENCES: u32 = 12;

/// The most productions in a C++ name that may be parsed twice, if the name is not read before.
const MAX_RETRIES: u32 = 6;

/// The most productions inside each other that may be parsed twice, in a C++ name that was read.
const DEEPEST_RETRIES: u32 = 10;

/// The most pack expansions in a C++ name that is not isolated. They print nothing themselves, so
/// the limit of the printed text does not limit them.
const MAX_EXPANSIONS: usize = 32;

/// What the demangler misreads in names by GCC instead of rejecting it: a name in a template of
/// `std`. It takes the template for the whole name, and counts other candidates for substitutions.
const MISREAD: [&str; 2] = ["srSt", "srNSt"];

/// What the linker of Go adds to the names of functions that also have a variant for the other
/// calling convention. Neither the tools of Go nor its debug information have it.
const VARIANTS_OF_GO: [&str; 2] = [".abi0", ".abiinternal"];

/// The work of demangling the names of a request, in bytes of names that are parsed once. That is
/// about a second, and enough for 100,000 names of 200 bytes.
const MAX_WORK: usize = 32 << 20;

/// The work for a name of any length, in bytes.
const LEAST_WORK: usize = 64;

/// The longest demangled name whose length costs nothing, in bytes.
const USUAL_DEMANGLED: usize = 1024;

/// The work for a byte of a demangled name beyond [`USUAL_DEMANGLED`], in bytes.
const WORK_PER_BYTE: usize = 4;

/// The steps of reading C++ names in a request. An ordinary name takes a step for two bytes.
const MAX_STEPS: usize = 16 << 20;

/// The maximum number of isolated names of a request; further ones are unchanged.
const MAX_ISOLATED: usize = 2000;

/// The names that are known before a request is symbolicated, and those that it turns out to need.
#[derive(Debug, Default)]
pub struct KnownNames<'m> {
    memory: Option<&'m NameMemory>,
    /// The readable forms of isolated names: the outer `None` for a name that is unknown, the inner
    /// one for a name without a readable form.
    isolated: HashMap<IsolatedName, Option<Option<Arc<str>>>>,
    wanted: Vec<IsolatedName>,
    work: NameWork,
}

/// What is left of the work that a request may cause in this process. Names that need more are
/// unchanged.
#[derive(Debug)]
struct NameWork {
    bytes: usize,
    steps: usize,
}

impl Default for NameWork {
    fn default() -> Self {
        Self {
            bytes: MAX_WORK,
            steps: MAX_STEPS,
        }
    }
}

impl NameWork {
    fn is_used(&self) -> bool {
        self.bytes == 0 || self.steps == 0
    }

    /// Demangles a name that may be parsed 2ⁿ times, for n `doublings`, if it cannot be read.
    fn demangle(&mut self, symbol: &str, language: Language, doublings: u32) -> Option<Arc<str>> {
        let demangled = demangled(symbol, language);
        let once = symbol.len() + LEAST_WORK;
        let always = rust_references(symbol).saturating_sub(MAX_RUST_REFERENCES / 2) / 2;
        let parsed = match &demangled {
            Some(_) => once << always.min(16),
            None => once << doublings.min(16),
        };
        let length = demangled.as_ref().map_or(0, String::len);
        let printed = length.saturating_sub(USUAL_DEMANGLED) * WORK_PER_BYTE;
        self.bytes = self.bytes.saturating_sub(parsed + printed);
        let demangled = demangled.filter(|demangled| demangled.len() <= LONGEST_DEMANGLED)?;
        Some(demangled.into())
    }

    /// Returns how often the time for parsing a C++ name may double; `None` if it has no limit.
    ///
    /// A name is in one of three classes:
    ///
    /// - It has few productions that can be parsed twice. It is parsed at most 2⁶ times.
    /// - The reader has read it, so the demangler reads it without parsing anything twice. If it
    ///   differs from the reader, the productions inside each other limit it to 2¹⁰ times.
    /// - Any other name, such as one that was cut off, has no limit.
    fn doublings(&mut self, symbol: &str) -> Option<u32> {
        if symbol.matches("Dp").count() + symbol.matches("sp").count() > MAX_EXPANSIONS {
            return None;
        }
        let most = most_retries(symbol);
        if most <= MAX_RETRIES {
            return Some(most);
        }
        retries(symbol, &mut self.steps).filter(|deepest| *deepest <= DEEPEST_RETRIES)
    }
}

impl<'m> KnownNames<'m> {
    /// Returns the names that an instance has cached; further names in DIFs are added to the cache.
    pub fn remembered(memory: &'m NameMemory) -> Self {
        Self {
            memory: Some(memory),
            ..Self::default()
        }
    }

    /// Takes the isolated names that are needed, without duplicates. The request is then
    /// symbolicated again, so its work begins again, too.
    pub fn take_isolated(&mut self) -> Vec<IsolatedName> {
        self.work = NameWork::default();
        std::mem::take(&mut self.wanted)
    }

    /// Adds the readable form of an isolated name; `None` if it has none.
    pub fn add(&mut self, name: IsolatedName, readable: Option<String>) {
        let readable = readable.filter(|readable| readable.len() <= LONGEST_DEMANGLED);
        self.isolated.insert(name, Some(readable.map(Arc::from)));
    }

    /// Returns the name of a function in a DIF.
    fn of_dif(&mut self, symbol: &str, language: Language) -> FunctionName {
        if let Some(memory) = self.memory
            && let Some(name) = memory.names.get(&SymbolRef { symbol, language })
        {
            return name;
        }
        let demangled = self.readable(symbol, language);
        let is_known = demangled.is_some();
        let name = FunctionName::new(shown(symbol).into(), demangled.flatten());
        if let Some(memory) = self.memory
            && is_known
        {
            memory.remember(symbol, language, name.clone());
        }
        name
    }

    /// Returns the readable form of a name in a request.
    fn of_request(&mut self, symbol: &str, language: Language) -> Option<Arc<str>> {
        self.readable(symbol, language).flatten()
    }

    /// Returns the readable form of a name, `Some(None)` if it has none; `None` if that is not
    /// known yet, or the request may not cause the work to find out.
    fn readable(&mut self, symbol: &str, language: Language) -> Option<Option<Arc<str>>> {
        if symbol.len() > longest(language) {
            return Some(None);
        }
        if let Some(function) = without_variant(symbol, language) {
            return Some(Some(function.into()));
        }
        if self.work.is_used() {
            return None;
        }
        let detected = Name::new(symbol, NameMangling::Unknown, language).detect_language();
        match detected {
            Language::Cpp | Language::ObjCpp if symbol.trim_start_matches('_').starts_with('Z') => {
                self.of_cpp(symbol, language)
            }
            _ if needs_isolation(symbol, detected) => self.isolated(symbol, language),
            _ => Some(self.work.demangle(symbol, language, 0)),
        }
    }

    /// Returns the readable form of a C++ name like [`Self::readable`].
    fn of_cpp(&mut self, symbol: &str, language: Language) -> Option<Option<Arc<str>>> {
        let (kind, function) = match thunk(symbol) {
            Some((kind, function)) => (kind, Cow::Owned(function)),
            None => ("", Cow::Borrowed(symbol)),
        };
        let readable = self.of_cpp_function(&function, language)?;
        Some(readable.map(|readable| {
            let readable = with_literal_operators(&readable).map_or(readable, Arc::from);
            match kind {
                "" => readable,
                kind => format!("{kind}{readable}").into(),
            }
        }))
    }

    /// Returns the readable form of a C++ name that is none of a thunk: as it is, or without the
    /// parts that the demangler does not know, and with those that it misprints rewritten.
    fn of_cpp_function(&mut self, symbol: &str, language: Language) -> Option<Option<Arc<str>>> {
        let may_be_misread = MISREAD.iter().any(|part| symbol.contains(*part));
        let is_misread =
            may_be_misread && rewritten(symbol, Keep::Known, &mut self.work.steps).is_some();
        let mut unlimited: Option<(Cow<'_, str>, Language)> = None;
        let forms = if may_be_misprinted(symbol) {
            [Some(Keep::Known), None, Some(Keep::Names)]
        } else {
            [None, Some(Keep::Known), Some(Keep::Names)]
        };
        for keep in forms {
            let (form, language) = match keep {
                None if is_misread => continue,
                None => (Cow::Borrowed(symbol), language),
                Some(keep) => match rewritten(symbol, keep, &mut self.work.steps) {
                    Some(form) => (Cow::Owned(form), Language::Cpp),
                    None => continue,
                },
            };
            let in_full = with_classes(&form, &mut self.work.steps);
            let in_full = in_full.filter(|in_full| in_full.len() <= LONGEST_NAME);
            let in_full: Option<Cow<'_, str>> = in_full.map(Cow::Owned);
            for form in in_full.into_iter().chain([form]) {
                match self.work.doublings(&form) {
                    Some(doublings) => {
                        let readable = self.work.demangle(&form, language, doublings);
                        if readable.is_some() {
                            return Some(readable);
                        }
                    }
                    None if unlimited.is_none() || keep == Some(Keep::Known) => {
                        unlimited = Some((form, language));
                    }
                    None => {}
                }
                if self.work.is_used() {
                    return None;
                }
            }
        }
        match unlimited {
            Some((form, language)) => self.isolated(&form, language),
            None => Some(None),
        }
    }

    /// Returns the readable form of an isolated name if it is known; otherwise notes that it is
    /// needed.
    fn isolated(&mut self, symbol: &str, language: Language) -> Option<Option<Arc<str>>> {
        if symbol.len() > longest(language) {
            return Some(None);
        }
        let name = IsolatedName {
            symbol: symbol.to_owned(),
            language,
        };
        match self.isolated.entry(name) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(unknown) => {
                if self.wanted.len() < MAX_ISOLATED {
                    self.wanted.push(unknown.key().clone());
                }
                unknown.insert(None);
                None
            }
        }
    }
}

/// The names of a request's functions, each demangled once and stored once.
#[derive(Debug)]
pub(super) struct Names<'a> {
    of_difs: foldhash::HashMap<(&'a str, Language), FunctionName>,
    sent: foldhash::HashMap<&'a str, Option<Arc<str>>>,
    known: KnownNames<'a>,
}

/// The name of a function in a DIF, as it is shown.
#[derive(Clone, Debug)]
pub(super) struct FunctionName {
    /// The mangled name.
    pub(super) symbol: Arc<str>,
    /// The readable name: the demangled symbol, or the symbol itself.
    pub(super) function: Arc<str>,
    /// The bytes of both as JSON in a response.
    pub(super) answer_bytes: usize,
}

impl FunctionName {
    fn new(symbol: Arc<str>, demangled: Option<Arc<str>>) -> Self {
        let function = demangled.unwrap_or_else(|| Arc::clone(&symbol));
        Self {
            answer_bytes: escaped_bytes(&symbol) + escaped_bytes(&function),
            symbol,
            function,
        }
    }
}

impl<'a> Names<'a> {
    /// Returns a set without names other than the known ones.
    pub(super) fn new(known: KnownNames<'a>) -> Self {
        Self {
            of_difs: foldhash::HashMap::default(),
            sent: foldhash::HashMap::default(),
            known,
        }
    }

    /// Returns the names that are known now.
    pub(super) fn into_known(self) -> KnownNames<'a> {
        self.known
    }

    /// Returns the name of a function in a DIF.
    pub(super) fn of(&mut self, symbol: &'a str, language: Language) -> &FunctionName {
        let known = &mut self.known;
        self.of_difs
            .entry((symbol, language))
            .or_insert_with(|| known.of_dif(symbol, language))
    }

    /// Completes the name of a frame that could not be looked up, if the frame has a single name,
    /// and that name is mangled.
    pub(super) fn complete(&mut self, sent: &'a Frame, frame: &mut Frame) {
        let ((Some(symbol), None) | (None, Some(symbol))) = (&sent.symbol, &sent.function) else {
            return;
        };
        if back_references(symbol) > MAX_BACK_REFERENCES {
            return;
        }
        // The mangled name says more than `lang`, which may be that of the file of the frame.
        let known = &mut self.known;
        let demangled = self
            .sent
            .entry(symbol)
            .or_insert_with(|| known.of_request(symbol, Language::Unknown));
        if let Some(function) = demangled {
            frame.symbol = Some(Arc::clone(symbol));
            frame.function = Some(Arc::clone(function));
        }
    }
}

/// The cache of demangled names of a warm instance, with a limit in bytes.
///
/// It does not affect responses, because the readable form of a symbol never changes. Only names in
/// DIFs are cached, so that callers cannot evict them with names of their own.
#[derive(Debug)]
pub struct NameMemory {
    names: Cache<Symbol, FunctionName, NameBytes>,
}

impl NameMemory {
    /// Returns an empty cache of about this size.
    pub fn new(max_bytes: u64) -> Self {
        // A name with its symbol has about three hundred bytes.
        let names = usize::try_from(max_bytes / 300).unwrap_or(usize::MAX);
        Self {
            names: Cache::with_weighter(names, max_bytes, NameBytes),
        }
    }

    fn remember(&self, symbol: &str, language: Language, name: FunctionName) {
        let symbol = if *name.symbol == *symbol {
            Arc::clone(&name.symbol)
        } else {
            symbol.into()
        };
        self.names.insert(Symbol { symbol, language }, name);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Symbol {
    symbol: Arc<str>,
    language: Language,
}

/// A borrowed [`Symbol`] with the same hash.
#[derive(Hash)]
struct SymbolRef<'a> {
    symbol: &'a str,
    language: Language,
}

impl Equivalent<Symbol> for SymbolRef<'_> {
    fn equivalent(&self, key: &Symbol) -> bool {
        *key.symbol == *self.symbol && key.language == self.language
    }
}

#[derive(Clone, Debug)]
struct NameBytes;

impl Weighter<Symbol, FunctionName> for NameBytes {
    fn weight(&self, symbol: &Symbol, name: &FunctionName) -> u64 {
        const OVERHEAD: usize = 96;
        let shown = [&name.symbol, &name.function].into_iter();
        let others = shown.filter(|text| !Arc::ptr_eq(text, &symbol.symbol));
        (OVERHEAD + symbol.symbol.len() + others.map(|text| text.len()).sum::<usize>()) as u64
    }
}

/// Demangles a symbol that needs no isolation; `None` if it is not mangled in a known way.
fn demangled(symbol: &str, language: Language) -> Option<String> {
    catch_unwind(|| Name::new(symbol, NameMangling::Unknown, language).demangle(READABLE))
        .unwrap_or_else(|_| {
            tracing::warn!(symbol, "demangler panicked");
            None
        })
}

/// Returns whether demangling a symbol could end the process, or use too much memory or time. C++
/// symbols that start with `_Z` have other limits: see [`NameWork::doublings`].
fn needs_isolation(symbol: &str, detected: Language) -> bool {
    let references = back_references(symbol);
    if detected == Language::Swift || references > MAX_BACK_REFERENCES {
        return true;
    }
    if is_rust_v0(symbol) {
        return symbol.len() > LONGEST_NAME || rust_references(symbol) > MAX_RUST_REFERENCES;
    }
    // Two references to a part double its text.
    let doublings = references / 2;
    doublings > 0 && symbol.len() << doublings > LONGEST_EXPANSION
}

/// Returns the name of a function in Go without what the linker added to it.
fn without_variant(symbol: &str, language: Language) -> Option<&str> {
    // A symbol without debug information has no language.
    matches!(language, Language::Go | Language::Unknown).then_some(())?;
    let mut variants = VARIANTS_OF_GO.iter();
    let name = variants.find_map(|variant| symbol.strip_suffix(*variant))?;
    (!name.is_empty()).then_some(name)
}

fn is_rust_v0(symbol: &str) -> bool {
    symbol.trim_start_matches('_').starts_with('R')
}

/// Returns an upper bound of the back references in a v0 name of Rust (`B_`, `B3x_`), 0 for another
/// name.
fn rust_references(symbol: &str) -> u32 {
    if !is_rust_v0(symbol) {
        return 0;
    }
    let mut count = 0;
    // Whether the letters and digits after a place are followed by `_`.
    let mut is_closed = false;
    for byte in symbol.bytes().rev() {
        count += u32::from(byte == b'B' && is_closed);
        if !byte.is_ascii_alphanumeric() {
            is_closed = byte == b'_';
        }
    }
    count
}

/// Returns the longest name of a language that is demangled, in bytes.
fn longest(language: Language) -> usize {
    match language {
        Language::Rust => LONGEST_RUST_NAME,
        _ => LONGEST_NAME,
    }
}

/// Returns an upper bound of the back references in a symbol, for the schemes that do not limit
/// their expansion.
fn back_references(symbol: &str) -> usize {
    match symbol.trim_start_matches(['_', '@']) {
        // Microsoft's are single digits.
        microsoft if microsoft.starts_with('?') => {
            symbol.bytes().filter(u8::is_ascii_digit).count()
        }
        swift
            if ["$s", "$S", "$e", "T0", "swiftmacro_"]
                .iter()
                .any(|prefix| swift.starts_with(prefix)) =>
        {
            swift_substitutions(swift.as_bytes())
        }
        _ => 0,
    }
}

/// Counts the substitutions in a Swift symbol: letters after an `A`, the last of which is a
/// capital, each optionally preceded by a repetition count.
fn swift_substitutions(symbol: &[u8]) -> usize {
    let mut count = 0_usize;
    let mut in_substitution = false;
    let mut rest = symbol;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'0'..=b'9' => {
                let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
                let number =
                    rest[..digits]
                        .iter()
                        .fold(usize::from(byte - b'0'), |number, digit| {
                            number
                                .saturating_mul(10)
                                .saturating_add(usize::from(digit - b'0'))
                        });
                rest = &rest[digits..];
                if in_substitution {
                    count = count.saturating_add(number);
                } else if byte != b'0' {
                    // An identifier of this length. A leading zero means that it contains
                    // substitutions.
                    rest = rest.get(number..).unwrap_or_default();
                }
            }
            _ if in_substitution => {
                count = count.saturating_add(1);
                in_substitution = byte.is_ascii_lowercase();
            }
            b'A' => in_substitution = true,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Returns a readable name, with isolation if necessary.
    fn name(symbol: &str, language: Language) -> String {
        let mut known = KnownNames::default();
        for _ in 0..2 {
            let mut names = Names::new(known);
            let readable = names.of(symbol, language).function.to_string();
            known = names.into_known();
            let isolated = known.take_isolated();
            if isolated.is_empty() {
                return readable;
            }
            for name in isolated {
                let readable = name.demangle();
                known.add(name, readable);
            }
        }
        panic!("{symbol} is isolated again and again");
    }

    #[test]
    fn names_of_each_language_are_demangled() {
        let check = |language, symbol: &str, want: &str| {
            assert_eq!(name(symbol, language), want);
            assert_eq!(name(symbol, Language::Unknown), want, "by its looks");
        };
        check(
            Language::Cpp,
            "_ZN3foo3barEPKcS1_",
            "foo::bar(char const*, char const*)",
        );
        check(Language::Cpp, "_Z3addIiET_S0_S0_", "add<int>(int, int)"); // the return type is left out
        check(Language::Cpp, "?add@@YAHHH@Z", "add(int, int)");
        check(
            Language::Cpp,
            "??@8ba8d245c9eca390356129098dbe9f73@",
            "??@8ba8d245c9eca390356129098dbe9f73@",
        );
        check(
            Language::Rust,
            "_ZN3std2io4Read11read_to_end17hb85a0f6802e14499E",
            "std::io::Read::read_to_end",
        );
        check(Language::Rust, "_RNvCs1234_7mycrate3foo", "mycrate::foo");
        check(
            Language::Swift,
            "$s8mangling12GenericUnionO3FooyACyxGSicAEmlF",
            "GenericUnion.Foo<A>(GenericUnion<A>.Type)",
        );
        check(Language::ObjC, "-[Foo bar:]", "-[Foo bar:]");
        check(Language::C, "main", "main");
    }

    #[test]
    fn a_function_of_go_is_named_without_its_variant() {
        let mut names = Names::new(KnownNames::default());
        for language in [Language::Go, Language::Unknown] {
            let found = names.of("runtime.memmove.abi0", language);
            assert_eq!(&*found.function, "runtime.memmove");
            assert_eq!(&*found.symbol, "runtime.memmove.abi0");
        }
        for (symbol, language, expected) in [
            ("main.(*T).f.abiinternal", Language::Go, "main.(*T).f"),
            ("main.f.abi0", Language::C, "main.f.abi0"),
            (".abi0", Language::Go, ".abi0"),
            ("main.abi0x", Language::Go, "main.abi0x"),
        ] {
            assert_eq!(name(symbol, language), expected);
        }
    }

    #[test]
    fn what_the_demangler_misprints_is_printed_as_by_other_demanglers() {
        for (symbol, expected) in [
            ("_ZThn8_N1C1gEv", "non-virtual thunk to C::g()"),
            ("_ZTv0_n24_N1C1gEv", "virtual thunk to C::g()"),
            (
                "_ZTcv0_n24_v0_n32_N1C1gEv",
                "covariant return thunk to C::g()",
            ),
            (
                "_ZThn8_N1C1gEv.cold",
                "non-virtual thunk to C::g() [clone .cold]",
            ),
            ("_ZThn8_N1C", "_ZThn8_N1C"),
            ("_Zli3_kmy", "operator\"\" _km(unsigned long long)"),
            (
                "_ZZN2nsli2_sEPKcmENKUlvE_clEv",
                "ns::operator\"\" _s(char const*, unsigned long)::{lambda()#1}::operator()() const",
            ),
            // Before: `a::b const::c&`, and `l::L(int)::m const::…`.
            ("_Z1fN1a1bERKNS0_1cE", "f(a::b, a::b::c const&)"),
            (
                "_ZN1l1gINS_1LEZNKS1_1mEiEUlvE_EEvT_T0_",
                "l::g<l::L, l::L::m(int) const::{lambda()#1}>(l::L, l::L::m(int) const::{lambda()#1})",
            ),
            (
                "_ZN1l1gINS_1BENS_1LIS1_NS_1MEEEZNKS4_1mERNS_1VIPS1_EEEUlPKS1_E_EEiPKT0_RNS5_IPT_EET1_",
                "l::g<l::B, l::L<l::B, l::M>, \
                 l::L<l::B, l::M>::m(l::V<l::B*>&) const::{lambda(l::B const*)#1}>\
                 (l::L<l::B, l::M> const*, l::V<l::B*>&, \
                 l::L<l::B, l::M>::m(l::V<l::B*>&) const::{lambda(l::B const*)#1})",
            ),
        ] {
            for language in [Language::Cpp, Language::Unknown] {
                assert_eq!(name(symbol, language), expected);
            }
        }
    }

    /// The demangler takes `std::is_same<S0, int>::value` for two expressions,
    /// `std::is_same<S0, int>` and `value`, where a list has room for both, and a later
    /// substitution for another candidate.
    #[test]
    fn what_the_demangler_misreads_in_names_by_gcc_is_left_out() {
        for (symbol, misread, expected) in [
            (
                "_Z1fI2S0EvPDTclsrT_4callaasrSt7is_sameIS1_iE5valueLb1EEEPS1_",
                "f<S0>(decltype ((S0::call)((std::is_same<S0, int>)&&(value), true))*, S0*)",
                "f<S0>(decltype ((S0::call)((...)&&(true)))*, S0*)",
            ),
            (
                "_Z1fI2S0EvPDTclsrSt3mytIT_E4callLi1EEEPS2_",
                "f<S0>(decltype ((std::myt<S0>)(call, 1))*, decltype ((std::myt<S0>)(call, 1))*)",
                "f<S0>(decltype ((...)(1))*, S0*)",
            ),
            (
                "_Z1fI2S0EvPDtsrNSt3mytIT_E4typeE5valueEPS2_",
                "f<S0>(decltype (std::myt<S0>::type::value)*, decltype (std::myt<S0>::type::value)*)",
                "f<S0>(decltype (...)*, S0*)",
            ),
        ] {
            assert_eq!(demangled(symbol, Language::Cpp).as_deref(), Some(misread));
            for language in [Language::Cpp, Language::Unknown] {
                assert_eq!(name(symbol, language), expected);
            }
        }
        // An identifier may contain the same letters.
        assert_eq!(name("_Z8usrStatsv", Language::Cpp), "usrStats()");
        let in_list = "_Z8usrStatsIiEDTcl1gfp_EET_";
        assert_eq!(name(in_list, Language::Cpp), "usrStats<int>(int)");
    }

    /// Returns the path of the function in a readable name, without return type, parameters,
    /// arguments and constraints, which compilers and demanglers format differently.
    fn path(readable: &str) -> String {
        let mut readable = readable
            .replace("operator< <", "operator<<")
            .replace("operator ", "operator_");
        for operator in ["<=>", "<<", ">>", "<", ">", "->", "()", "[]"] {
            let name: String = operator.bytes().map(|byte| format!("{byte:x}")).collect();
            readable = readable.replace(&format!("operator{operator}"), &format!("operator{name}"));
        }
        let mut depth = 0_usize;
        let mut path = String::new();
        for character in readable.split(" requires ").next().unwrap().chars() {
            match character {
                '<' | '(' | '{' | '[' => depth += 1,
                '>' | ')' | '}' | ']' => depth = depth.saturating_sub(1),
                _ if depth == 0 => path.push(character),
                _ => {}
            }
        }
        let path = path.replace(" const", "").replace("::friend ", "::");
        let path = path.split(' ').next_back().unwrap();
        let parts = path
            .split("::")
            .filter(|part| !part.starts_with("'lambda") && !part.is_empty());
        parts.collect::<Vec<_>>().join("::")
    }

    /// All names that the demangler did not read in a C++20 program of 1,321 functions.
    #[test]
    fn names_of_cpp_20_are_readable_and_agree_with_another_demangler() {
        let lines = include_str!("../../../tests/fixtures/names/cxx20.txt").lines();
        let mut others = Vec::new();
        let mut count = 0;
        for line in lines {
            let [symbol, before, oracle] = *line.split('\t').collect::<Vec<_>>() else {
                panic!("{line}");
            };
            assert_eq!(demangled(symbol, Language::Cpp), None, "{symbol}");
            let readable = name(symbol, Language::Cpp);
            assert_ne!(readable, symbol);
            assert_eq!(readable, name(symbol, Language::Unknown));
            count += 1;
            let (ours, theirs) = (path(&readable), path(oracle));
            if ours != theirs || readable != name(before, Language::Cpp) {
                let theirs = if oracle == symbol {
                    "not read"
                } else {
                    &theirs
                };
                others.push(format!(
                    "{ours} | {} | {theirs}",
                    path(&name(before, Language::Cpp))
                ));
            }
        }
        assert_eq!(count, 196);
        // Our name, the name by clang 17, and the oracle's. Before, friends were functions of the
        // namespace.
        insta::assert_snapshot!(others.join("\n"), @r"
        shop::Shelf::put | shop::Shelf::put | not read
        shop::Shelf::peek | shop::peek | shop::Shelf::peek
        shop::Shelf::operator_std::vector | shop::Shelf::operator_std::vector | not read
        std::ranges::filter_view::_Iterator::operator== | std::ranges::operator== | std::ranges::filter_view::_Iterator::operator==
        std::ranges::transform_view::_Iterator::operator== | std::ranges::operator== | std::ranges::transform_view::_Iterator::operator==
        std::ranges::ref_view::ref_view | std::ranges::ref_view::ref_view | not read
        std::ranges::ref_view::ref_view | std::ranges::ref_view::ref_view | not read
        std::ranges::iota_view::_Iterator::operator== | std::ranges::operator== | std::ranges::iota_view::_Iterator::operator==
        std::ranges::iota_view::_Iterator::operator- | std::ranges::operator- | std::ranges::iota_view::_Iterator::operator-
        shop::lambdas::$_9::operator2829::operator2829 | shop::lambdas::$_9::operator2829::operator2829 | not read
        ");
    }

    /// As `c++filt` prints them, without the return type.
    #[test]
    fn lambdas_in_the_initializers_of_variables_are_readable() {
        for (symbol, readable) in [
            (
                "_ZNK3lamMUliE_clEi",
                "lam::{lambda(int)#1}::operator()(int) const",
            ),
            (
                "_ZNK2tvIiEMUliE_clEi",
                "tv<int>::{lambda(int)#1}::operator()(int) const",
            ),
            (
                "_Z3cptIN3lamMUliE_EEiT_",
                "cpt<lam::{lambda(int)#1}>(lam::{lambda(int)#1})",
            ),
            (
                "_ZNK1W1fMUliE_clEi",
                "W::f::{lambda(int)#1}::operator()(int) const",
            ),
        ] {
            assert_eq!(name(symbol, Language::Cpp), readable);
        }
    }

    /// As `llvm-cxxfilt-19` prints them, without return types and modules.
    #[test]
    fn templates_of_constructors_packs_and_modules_agree_with_another_demangler() {
        for (symbol, oracle) in [
            (
                "_ZN1AC1IdEEPKcT_i",
                "A::A<double>(char const*, double, int)",
            ),
            (
                "_ZN1AC4IdEEPKcT_i",
                "A::A<double>(char const*, double, int)",
            ),
            (
                "_ZNSt8optionalIiEC4IRiLb1EEEOT_",
                "std::optional<int>::optional<int&, true>(int&)",
            ),
            ("_ZN1AC3IiEET_", "A::A<int>(int)"),
            ("_ZN1AC1IiEEv", "A::A<int>()"),
            ("_ZN1AC1B5cxx11IiEET_", "A::A[abi:cxx11]<int>(int)"),
            ("_ZNK1FcvPT_IiEEv", "F::operator int*<int>() const"),
            (
                "_ZN1CIiEC2IPKcEEiT_",
                "C<int>::C<char const*>(int, char const*)",
            ),
            ("_ZN1AC2IJEEEiDpOT_", "A::A<>(int)"),
            (
                "_ZN1AC2IJRA2_KciEEEiDpOT_",
                "A::A<char const (&) [2], int>(int, char const (&) [2], int&&)",
            ),
            (
                "_ZN1AC2IdJicEEET_lDpPT0_",
                "A::A<double, int, char>(double, long, int*, char*)",
            ),
            (
                "_ZSt11make_uniqueI7DerivedJEENSt8__detail9_MakeUniqIT_E15__single_objectEDpOT0_",
                "std::__detail::_MakeUniq<Derived>::__single_object std::make_unique<Derived>()",
            ),
            (
                "_ZSt11make_uniqueI7DerivedJiiEENSt8__detail9_MakeUniqIT_E15__single_objectEDpOT0_",
                "std::__detail::_MakeUniq<Derived>::__single_object std::make_unique<Derived, int, int>(int&&, int&&)",
            ),
            ("_Z4noopIJEEvDpOT_", "void noop<>()"),
            (
                "_Z4noopIJiR1PPKcEEvDpOT_",
                "void noop<int, P&, char const*>(int&&, P&, char const*&&)",
            ),
            (
                "_Z4noopIJ1P1QEEvDpOT_DpPS3_",
                "void noop<P, Q>(P&&, Q&&, P&&*, Q&&*)",
            ),
            (
                "_ZNSt6threadC1IRFvvEJEvEEOT_DpOT0_",
                "std::thread::thread<void (&)(), void>(void (&)())",
            ),
            (
                "_ZSt8__invokeIPFvvEJEENSt15__invoke_resultIT_JDpT0_EE4typeEOS3_DpOS4_",
                "std::__invoke_result<void (*)()>::type std::__invoke<void (*)()>(void (*&&)())",
            ),
            ("_ZN1f1gE1AIiJEES0_IJEJEE", "f::g(A<int>, A<>)"),
            (
                "_Z2fpIJivEEvDpPFT_iE",
                "void fp<int, void>(int (*)(int), void (*)(int))",
            ),
            (
                "_Z3zipIJicEJlsEEvDpSt4pairIT_T0_E",
                "void zip<int, char, long, short>(std::pair<int, long>, std::pair<char, short>)",
            ),
            ("_Z5firstIiJEET_S0_DpRKT0_", "int first<int>(int)"),
            (
                "_ZNSt5tupleIJicEEC2IJicELb1EEEDpOT_",
                "std::tuple<int, char>::tuple<int, char, true>(int&&, char&&)",
            ),
            (
                "_Z4intsIJLb1ELb0EEEvSt16integer_sequenceIbJXspT_EEE",
                "void ints<true, false>(std::integer_sequence<bool, true, false>)",
            ),
            (
                "_Z1fIJPFvvEM1AiEEvDpRT_",
                "void f<void (*)(), int A::*>(void (*&)(), int A::*&)",
            ),
            (
                "_Z1fIJ1A1BEEvPFvDpRKT_E",
                "void f<A, B>(void (*)(A const&, B const&))",
            ),
            (
                "_Z1fIJicEdEvDp1AIT_T0_E",
                "void f<int, char, double>(A<int, double>, A<char, double>)",
            ),
            ("_ZW3geo6hiddenPi", "hidden@geo(int*)"),
            ("_ZN3geoW3geo5probeEPi", "geo::probe@geo(int*)"),
            ("_ZW3fooW3bar1fPS_1AS1_", "f@foo.bar(A@foo*, A@foo)"),
            (
                "_ZN3geoW3geo1PIiE4len2ERKNS_S0_1QE",
                "geo::P@geo<int>::len2(geo::Q@geo const&)",
            ),
            ("_ZW3fooWP4part1fNS_1BE", "f@foo:part(B@foo)"),
        ] {
            let ours = name(symbol, Language::Cpp).replace("> >", ">>");
            let modules = ["@geo", "@foo.bar", "@foo:part", "@foo"];
            let theirs = modules
                .iter()
                .fold(oracle.to_owned(), |name, module| name.replace(module, ""));
            assert!(
                theirs
                    .strip_suffix(&*ours)
                    .is_some_and(|before| before.is_empty() || before.ends_with(' ')),
                "{symbol}: {ours}, not {theirs}"
            );
        }
        // It does not read this one.
        assert_eq!(
            name("_ZZW3geo5entryPiENK3$_0clIS0_EEDaT_", Language::Cpp),
            "entry(int*)::$_0::operator()<int*>(int*) const"
        );
        // It prints all parameters of the closure as `auto`, and the other one has none.
        assert_eq!(
            name(
                "_ZZN1AC1IdEEPKcT_iENKUlDpOT_E_clIJicEEEDaS6_",
                Language::Cpp
            ),
            "A::A<double>(char const*, double, int)::{lambda(auto:1&&...)#1}::operator()<int, char>(int&&, char&&) const"
        );
    }

    #[test]
    fn a_cached_name_equals_the_demangled_name() {
        let memory = NameMemory::new(1 << 20);
        for _ in 0..2 {
            for (symbol, want) in [("_ZN3foo3barEv", "foo::bar()"), ("main", "main")] {
                assert_eq!(
                    &*Names::new(KnownNames::remembered(&memory))
                        .of(symbol, Language::Cpp)
                        .function,
                    want
                );
            }
            assert_eq!(
                &*Names::new(KnownNames::remembered(&memory))
                    .of("_ZN3foo3barEv", Language::C)
                    .function,
                "_ZN3foo3barEv",
                "the language is part of the key"
            );
        }
        assert_eq!(memory.names.len(), 3);

        let sent = Frame {
            symbol: Some("_ZN3foo3bazEv".into()),
            ..Frame::default()
        };
        let mut completed = sent.clone();
        Names::new(KnownNames::remembered(&memory)).complete(&sent, &mut completed);
        assert_eq!(
            (completed.function.as_deref(), memory.names.len()),
            (Some("foo::baz()"), 3),
            "names in requests are not cached"
        );
    }

    /// Swift's demangler ends the process on these. Their prefixes say that they are Swift's, also
    /// if they were sent, where `lang` is ignored.
    #[test]
    fn swift_names_are_isolated_and_unchanged_until_their_result_is_known() {
        for symbol in [
            "$eyyxDl",
            "$syyxDl",
            "$syxq_Idgnr_D",
            "$s4blah8PatatinoaySiD",
            "@__swiftmacro_1a1fO1bfMp_",
        ] {
            for language in [Language::Unknown, Language::Swift] {
                let mut names = Names::new(KnownNames::default());
                assert_eq!(&*names.of(symbol, language).function, symbol);
                let sent = Frame {
                    function: Some(symbol.into()),
                    lang: Some(language),
                    ..Frame::default()
                };
                let mut completed = sent.clone();
                names.complete(&sent, &mut completed);
                assert_eq!(completed, sent);
                let mut known = names.into_known();
                let isolated = known.take_isolated();
                let languages: Vec<Language> = isolated.iter().map(|name| name.language).collect();
                let sniffed = [language, Language::Unknown];
                let count = if language == Language::Unknown { 1 } else { 2 };
                assert_eq!(languages, sniffed[..count], "{isolated:?}");
                // The process died on this name: the name is unchanged and is not isolated again.
                for name in isolated {
                    known.add(name, None);
                }
                let mut names = Names::new(known);
                assert_eq!(&*names.of(symbol, language).function, symbol);
                assert_eq!(names.into_known().take_isolated(), []);
            }
        }
    }

    #[test]
    fn the_cache_of_names_is_bounded() {
        let memory = NameMemory::new(10_000);
        for index in 0..1000 {
            let symbol = format!("_ZN3foo3barEv{index}");
            Names::new(KnownNames::remembered(&memory)).of(&symbol, Language::C);
        }
        assert!(memory.names.weight() <= 10_000 && !memory.names.is_empty());
    }

    #[test]
    fn a_symbol_of_another_language_than_declared_stays_unchanged() {
        assert_eq!(name("_ZN3foo3barEv", Language::C), "_ZN3foo3barEv");
        assert_eq!(name("_ZN3foo3barEv", Language::Swift), "_ZN3foo3barEv");
    }

    #[test]
    fn a_name_that_was_sent_is_demangled_if_it_is_the_only_one() {
        let check =
            |symbol: Option<&str>, function: Option<&str>, want: (Option<&str>, Option<&str>)| {
                let frame = |(symbol, function): (Option<&str>, Option<&str>)| Frame {
                    symbol: symbol.map(Arc::from),
                    function: function.map(Arc::from),
                    ..Frame::default()
                };
                let sent = frame((symbol, function));
                let mut completed = sent.clone();
                Names::new(KnownNames::default()).complete(&sent, &mut completed);
                assert_eq!(completed, frame(want));
            };
        let (mangled, demangled) = (Some("_ZN3foo3barEv"), Some("foo::bar()"));
        check(mangled, None, (mangled, demangled));
        check(None, mangled, (mangled, demangled));
        let of_swift = Frame {
            function: mangled.map(Arc::from),
            lang: Some(Language::Swift),
            ..Frame::default()
        };
        let mut completed = of_swift.clone();
        Names::new(KnownNames::default()).complete(&of_swift, &mut completed);
        assert_eq!(
            completed.function.as_deref(),
            demangled,
            "whatever `lang` says"
        );
        check(mangled, mangled, (mangled, mangled));
        check(None, Some("main"), (None, Some("main")));
        check(Some("main"), None, (Some("main"), None));
        check(None, None, (None, None));
    }

    /// Symbols that nest as deeply as their length allows, each in its own way.
    fn nested(length: usize) -> Vec<String> {
        let around = |start: &str, open: &str, core: &str, close: &str, end: &str| {
            let fixed = start.len() + core.len() + end.len();
            let times = (length - fixed) / (open.len() + close.len());
            format!(
                "{start}{}{core}{}{end}",
                open.repeat(times),
                close.repeat(times)
            )
        };
        vec![
            around("$s1a1fyySi", "m", "", "", "F"),
            around("$s1a1fyySi", "z", "", "", "F"),
            around("$s1a1fyySi", "Sg", "", "", "F"),
            around("$s1a1fyySi", "_t", "", "", "F"),
            around("$s1a1fyy", "Say", "Si", "G", "F"),
            around("$s1a", "1bV", "", "", ""),
            around("$s1a1fyyF", "TA", "", "", ""),
            around("$s1a1fyyF", "1bL_yyF", "", "", ""),
            around("_Z1f", "P", "i", "", ""),
            around("_Z1f", "1aI", "i", "E", ""),
            around("_Z1fI", "ng", "Li1E", "", "Evv"),
            around("_ZN", "1a", "1f", "", "Ev"),
            around("_RMC1a", "T", "u", "E", ""),
            around("_RMC1a", "R", "u", "", ""),
            around("?f@@YAX", "PA", "H", "", "@Z"),
            around("?f@@YAX", "V?$a@", "H", "@@", "@Z"),
            around("?f@@YAX", "P6AX", "H", "@Z", "@Z"),
            around("?f@", "a@", "", "", "@YAXXZ"),
            around("_Z1fIiQ", "nt", "Lb1E", "", "Evv"),
            around("_Z1fIiQ", "rqQ", "Lb1E", "E", "Evv"),
            around("_Z1fIiQ", "sr1aIX", "Lb1E", "EE1b", "Evv"),
            around("_Z1fIiQ", "cl", "Lb1E", "E", "Evv"),
            around("_Z1fI", "Tn1aI", "i", "ELi1E", "Evv"),
            around("_Z1fI", "Tt", "Ty", "E", "iEvv"),
            around("_Z1fI", "Tp", "Ty", "", "iEvv"),
            around("_Z1f", "UlTy", "i", "E_", ""),
            around("_Z1f", "Z1fvQLb1EEN", "1a1b", "E", ""),
            around("_Z1fIX", "dl", "Li1E", "", "EEvv"),
            around("_Z1fIX", "nw_1aIX", "Li1E", "EEE", "EEvv"),
            around("_Z1f", "SaI", "i", "E", ""),
            around("_Z1f", "St1aI", "i", "E", ""),
            around("_Z1fI", "L1aI", "i", "E1E", "Evv"),
            around("_ZN1acv", "1aI", "i", "E", "Ev"),
        ]
    }

    #[test]
    fn no_nesting_overflows_a_stack_of_two_megabytes() {
        // A quarter of the main thread's stack. An overflow ends the process, and so this test.
        let demangle_all = || {
            for length in [64, 256, LONGEST_NAME] {
                for symbol in nested(length) {
                    for language in [
                        Language::Unknown,
                        Language::Cpp,
                        Language::Swift,
                        Language::Rust,
                        Language::ObjCpp,
                    ] {
                        let name = IsolatedName {
                            symbol: symbol.clone(),
                            language,
                        };
                        // In a process of its own, the others could take hours.
                        let mut names = Names::new(KnownNames::default());
                        names.of(&symbol, language);
                        if names.into_known().take_isolated().is_empty()
                            || language == Language::Swift
                            || most_retries(&symbol) == 0
                        {
                            name.demangle();
                        }
                    }
                }
            }
            for symbol in nested(LONGEST_RUST_NAME) {
                demangled(&symbol, Language::Rust);
            }
        };
        thread::Builder::new()
            .stack_size(2 << 20)
            .spawn(demangle_all)
            .unwrap()
            .join()
            .unwrap();
    }

    #[test]
    fn a_name_that_is_too_long_is_unchanged() {
        for symbol in nested(LONGEST_NAME + 20) {
            let mut known = KnownNames::default();
            let readable = known.readable(&symbol, Language::Unknown);
            assert!(symbol.len() <= LONGEST_NAME || readable == Some(None));
        }
        let long = |parts: usize| format!("_ZN{}17h0123456789abcdefE", "3foo".repeat(parts));
        assert_eq!(
            name(&long(2000), Language::Rust).len(),
            2000 * "foo::".len() - 2
        );
        assert_eq!(*name(&long(5000), Language::Rust), *shown(&long(5000)));
    }

    fn is_isolated(symbol: &str) -> bool {
        let mut known = KnownNames::default();
        known.readable(symbol, Language::Unknown);
        !known.take_isolated().is_empty()
    }

    #[test]
    fn names_that_would_take_seconds_are_isolated() {
        let doublings = |times: usize| {
            let first = "_RINvC1a1fNtC1b1c";
            let pairs: String = (0..times)
                .map(|index| format!("TB{index}_B{index}_E"))
                .collect();
            format!("{first}{pairs}E")
        };
        let microsoft = format!(
            "?f@@YAXP6AX{}@ZP6AX0000@ZP6AX1111@ZP6AX2222@Z3333@Z",
            "H".repeat(3950)
        );
        for symbol in [
            format!("_Z1fIX{}EEvv", "dl".repeat(26)),
            format!("__Z1fIX{}EEvv", "da".repeat(26)),
            format!("___Z1fIX{}EEvv_block_invoke_2", "nw".repeat(26)),
            format!("_Z1fIX{}EEvv", "na".repeat(26)),
            format!("_Z1f{}", "SaI".repeat(24)),
            format!("_Z1f1a{}", "S_I".repeat(24)),
            format!("_Z1f{}", "St1aI".repeat(24)),
            format!("_Z1fI{}", "L1aI".repeat(24)),
            format!("_ZUl{}", "Z1fvEUl".repeat(24)),
            format!("_Z1f{}", "CI1".repeat(24)),
            format!("_ZN1acv1aI{}iEEv", "T_I".repeat(24)),
            // The demangler ends at a part that the reader knows.
            format!("_Z1f{}DB1_{}", "SaI".repeat(24), "E".repeat(24)),
            format!("_Z1fDpi{}v", "DpS_".repeat(40)),
            doublings(20),
            microsoft,
        ] {
            assert!(is_isolated(&symbol), "{symbol}");
        }
        let long = format!("_RNvC1a{}{}", 60_000, "b".repeat(60_000));
        let mut known = KnownNames::default();
        known.readable(&long, Language::Rust);
        assert_eq!(known.take_isolated().len(), 1);
    }

    #[test]
    fn long_names_of_real_programs_are_not_isolated() {
        for symbol in [
            "_ZNSt6vectorISt3mapINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEES_IiSaIiEESt4lessIS6_ESaISt4pairIKS6_S8_EEESaISF_EE9push_backERKSF_",
            "_ZNSt8_Rb_treeINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESt4pairIKS5_St6vectorIS5_SaIS5_EEESt10_Select1stISB_ESt4lessIS5_ESaISB_EE8_M_eraseEPSt13_Rb_tree_nodeISB_E",
            "_ZNSt3__16vectorINS_12basic_stringIcNS_11char_traitsIcEENS_9allocatorIcEEEENS4_IS6_EEE21__push_back_slow_pathIS6_EEvOT_",
            "_ZNSt10_HashtableINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESt4pairIKS5_iESaIS8_ENSt8__detail10_Select1stESt8equal_toIS5_ESt4hashIS5_ENSA_18_Mod_range_hashingENSA_20_Default_ranged_hashENSA_20_Prime_rehash_policyENSA_17_Hashtable_traitsILb1ELb0ELb1EEEED1Ev",
            "_RINvCskG63dWbCD90_9inventory5countINtNtB2_5stock5CrateNtBz_5ShelfEEB2_",
            "?insert@?$vector@V?$basic_string@DU?$char_traits@D@std@@V?$allocator@D@2@@std@@V?$allocator@V?$basic_string@DU?$char_traits@D@std@@V?$allocator@D@2@@std@@@2@@std@@QEAAXXZ",
        ] {
            let mut known = KnownNames::default();
            let readable = known.readable(symbol, Language::Unknown);
            assert!(readable.flatten().is_some(), "{symbol}");
            assert_eq!(known.take_isolated(), [], "{symbol}");
        }
        let lines = include_str!("../../../tests/fixtures/names/cxx20.txt").lines();
        let symbols = lines.filter_map(|line| line.split('\t').next());
        let isolated: Vec<&str> = symbols.filter(|symbol| is_isolated(symbol)).collect();
        assert_eq!(isolated, [""; 0]);
    }

    #[test]
    fn the_names_of_a_request_have_a_budget_of_work() {
        let name_of = |index: usize, end: &str| format!("_ZN3foo181a{index:0180}Ev{end}");
        let mut known = KnownNames::default();
        for index in 0..100_000 {
            let readable = known.readable(&name_of(index, ""), Language::Unknown);
            assert!(readable.flatten().is_some(), "{index}");
        }
        // The same request has the same names.
        let demangled_until_the_end = || {
            let mut known = KnownNames::default();
            let mut count = 0;
            while !known.work.is_used() {
                known.work.demangle(&name_of(count, "@"), Language::Cpp, 10);
                count += 1;
            }
            assert_eq!(known.readable("_ZN3foo3barEv", Language::Cpp), None);
            assert_eq!(known.take_isolated(), []);
            assert!(known.readable("_ZN3foo3barEv", Language::Cpp).is_some());
            count
        };
        let count = demangled_until_the_end();
        assert!((50..500).contains(&count), "{count}");
        assert_eq!(demangled_until_the_end(), count);
    }

    #[test]
    fn a_name_beyond_the_budget_is_not_cached() {
        let memory = NameMemory::new(1 << 20);
        let mut known = KnownNames::remembered(&memory);
        known.work.bytes = 0;
        let mut names = Names::new(known);
        let symbol = "_ZN3foo3barEv";
        assert_eq!(&*names.of(symbol, Language::Cpp).function, symbol);
        assert_eq!(memory.names.len(), 0);
    }

    #[test]
    fn a_sent_name_that_doubles_with_each_reference_is_not_demangled() {
        // Each type is a function that takes the previous type twice.
        let microsoft = |times: usize| {
            let references: String = (0..times)
                .map(|index| format!("P6AX{index}{index}@Z"))
                .collect();
            format!("?f@@YAXP6AXHH@Z{references}@Z")
        };
        assert_eq!(back_references(&microsoft(3)), 1 + 3 * 3);
        assert!(back_references(&microsoft(9)) > MAX_BACK_REFERENCES);
        // A substitution may have a repetition count, and several may share their `A`.
        let check = |symbol: &str, want| assert_eq!(back_references(symbol), want, "{symbol}");
        check("$s1a1fyyAD1bVyADySiSiGAEGF", 3);
        check("_$s1a1fyyAbcDF", 3);
        check("$s1a1fyyA2000BF", 2001);
        check("$s5MyApp11AppDelegateCyAA10AppAddressVF", 1);
        check("_ZN3foo3barEPKcS1_", 0);
        check("$s", 0);
        check("$s99", 0);

        let bomb = format!(
            "$s1a1fyyAA1bVy{}SiSiG{}F",
            "ADy".repeat(25),
            ('E'..='Z').map(|id| format!("A{id}G")).collect::<String>()
        );
        let sent = Frame {
            function: Some(bomb.into()),
            ..Frame::default()
        };
        let mut completed = sent.clone();
        Names::new(KnownNames::default()).complete(&sent, &mut completed);
        assert_eq!(completed, sent);
    }
}
