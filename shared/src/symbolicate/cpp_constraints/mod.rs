//! Removes from mangled names what C++20 adds to them.
//!
//! Since clang 18 and GCC 14, the name of a function includes its constraints (`Q`), and the
//! declarations of template parameters that the arguments do not determine (`Tk`, `Tn`, `Tp`, `Tt`,
//! `Ty`). The demangler, `cpp_demangle`, supports neither of them, nor some newer expressions, up
//! to its newest release (0.5.1), and cannot read such a name. A readable name does not need these
//! parts. The names that this module writes do not contain them, and are those that the same
//! compilers produced before.
//!
//! The `M` between a variable and a lambda in its initializer is removed, too, where the demangler
//! does not support it.
//!
//! Compression makes this difficult. Parts of a name are *substitution candidates*, numbered in the
//! order in which they end, and a later `S_`, `S0_`, … refers to the first, second, … of them. The
//! removed parts contain candidates as well: the remaining candidates get other numbers, and a
//! reference to a removed candidate must be spelled out. Therefore a name is read into parts, with
//! the candidates among them ([`NameReader`]), and the remaining parts are written with new numbers
//! ([`write()`]).
//!
//! The grammar is that of the
//! [Itanium C++ ABI](https://itanium-cxx-abi.github.io/cxx-abi/abi.html), section 5.1 "External
//! Names (a.k.a. Mangling)"; constraints were added by its issue 24, template parameters by 31
//! and 47. The candidates are those of section 5.1.10 "Compression":
//!
//! - every prefix of a nested name; the whole name if it is a type, or a template before its
//!   arguments
//! - an unscoped name that is a template, before its arguments
//! - every type that is neither built in nor itself a reference, with all its qualifiers at once:
//!   `VKi` is one candidate
//! - template parameters and `decltype` where they are types, but not where they are expressions
//! - never `St`, `Sa`, `Ss` and so on; types that begin with them are
//!
//! Names are untrusted: nesting, the steps of reading (of a name, and of all names of a request)
//! and the length of the output are limited.
//!
//! The same reader finds names that the demangler could parse for hours: see [`retries()`].

mod expressions;
mod mangled_types;
mod names;
mod reader;
mod retries;

pub(super) use self::reader::Keep;
use self::reader::{NamePart, NamePlace, NameReader, NameResult, NodeKind, Unreadable};
pub(super) use self::retries::{most_retries, retries};

/// Returns a mangled C++ name without what C++20 adds to names; `None` if there is nothing to
/// remove, or the name cannot be read in the remaining steps, from which its own are subtracted.
pub(super) fn without_constraints(
    symbol: &str,
    keep: Keep,
    steps_left: &mut usize,
) -> Option<String> {
    let start = start_of_encoding(symbol)?;
    let (reader, parts) = read(symbol, start, keep, steps_left)?;
    if !reader.has_changed {
        return None;
    }
    write(&reader, start, parts).ok()
}

/// Returns the place after the prefix of a C++ name; `None` for another name.
fn start_of_encoding(symbol: &str) -> Option<usize> {
    let underscores = symbol.bytes().take_while(|byte| *byte == b'_').count();
    let is_cpp =
        (1..=4).contains(&underscores) && symbol.as_bytes().get(underscores) == Some(&b'Z');
    is_cpp.then_some(underscores + 1)
}

/// Reads a whole name.
fn read<'a>(
    symbol: &'a str,
    start: usize,
    keep: Keep,
    steps_left: &mut usize,
) -> Option<(NameReader<'a>, Vec<NamePart>)> {
    let mut reader = NameReader::new(symbol, start, keep, *steps_left);
    let allowed = reader.steps_left;
    let parts = reader.whole();
    *steps_left -= allowed - reader.steps_left;
    Some((reader, parts.ok()?))
}

/// A pending step of writing.
enum Task {
    Part(NamePart),
    /// The content of a node: its prefix and its last component.
    Within(usize),
    /// The end of a node, which gets a number if it is a candidate.
    Written(usize),
}

/// Writes the remaining parts of a name, with new numbers of candidates.
fn write(reader: &NameReader, start: usize, parts: Vec<NamePart>) -> NameResult<String> {
    // Each candidate is written once, and references are short.
    let most = reader.symbol.len() * 2 + 64;
    let mut written = reader.symbol[..start].to_owned();
    let mut numbers: Vec<Option<usize>> = vec![None; reader.nodes.len()];
    let mut count = 0;
    let mut tasks: Vec<Task> = parts.into_iter().rev().map(Task::Part).collect();
    while let Some(task) = tasks.pop() {
        if written.len() > most {
            return Err(Unreadable);
        }
        let (index, place, is_reference) = match task {
            Task::Part(NamePart::Text(from, to)) => {
                written.push_str(&reader.symbol[from..to]);
                continue;
            }
            Task::Part(NamePart::Instead(text)) => {
                written.push_str(text);
                continue;
            }
            Task::Written(index) => {
                if reader.nodes[index].is_candidate && numbers[index].is_none() {
                    numbers[index] = Some(count);
                    count += 1;
                }
                continue;
            }
            Task::Within(index) => {
                let node = &reader.nodes[index];
                tasks.extend(node.parts.iter().rev().map(|part| Task::Part(*part)));
                if let NodeKind::Name {
                    prefix: Some(prefix),
                    ..
                } = node.kind
                {
                    // For a name that is not local, the prefix was referred to even if the prefix
                    // is local.
                    tasks.push(Task::Part(if node.is_local {
                        NamePart::Node(prefix, NamePlace::Prefix)
                    } else {
                        NamePart::Reference(prefix, NamePlace::Prefix)
                    }));
                }
                continue;
            }
            Task::Part(NamePart::Node(index, place)) => (index, place, false),
            Task::Part(NamePart::Reference(index, place)) => (index, place, true),
        };
        if let Some(number) = numbers[index] {
            push_substitution(&mut written, number);
            continue;
        }
        let node = &reader.nodes[index];
        if is_reference && node.is_local {
            return Err(Unreadable);
        }
        match (place, node.kind) {
            (
                NamePlace::Type,
                NodeKind::Name {
                    is_nested: true, ..
                },
            ) => {
                written.push('N');
                tasks.push(Task::Written(index));
                tasks.push(Task::Part(NamePart::Instead("E")));
            }
            (NamePlace::Prefix, NodeKind::Type) => return Err(Unreadable),
            _ => tasks.push(Task::Written(index)),
        }
        tasks.push(Task::Within(index));
    }
    Ok(written)
}

/// Writes `S_`, `S0_`, …
fn push_substitution(written: &mut String, number: usize) {
    written.push('S');
    if let Some(mut number) = number.checked_sub(1) {
        let mut digits = Vec::new();
        loop {
            digits.push(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[number % 36]);
            number /= 36;
            if number == 0 {
                break;
            }
        }
        written.extend(digits.iter().rev().map(|digit| char::from(*digit)));
    }
    written.push('_');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn without_constraints(symbol: &str, keep: Keep) -> Option<String> {
        let mut steps_left = usize::MAX;
        super::without_constraints(symbol, keep, &mut steps_left)
    }

    /// Names of functions in `tests/fixtures/sources/names/cxx20.cpp` that clang 17 mangled
    /// differently, each with the name by clang 17.
    fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
        let lines = include_str!("../../../../tests/fixtures/names/cxx20.txt").lines();
        lines.map(|line| {
            let mut columns = line.split('\t');
            (columns.next().unwrap(), columns.next().unwrap())
        })
    }

    #[test]
    fn new_parts_are_removed_and_the_rest_is_renumbered() {
        let check = |symbol, want| {
            let written = without_constraints(symbol, Keep::Known);
            assert_eq!(written.as_deref(), want, "{symbol}");
        };
        check("_Z1fITk1CiEvv", Some("_Z1fIiEvv"));
        check("_Z1fIiQ1CIT_EEvv", Some("_Z1fIiEvv"));
        check("_Z1fIiEvvQ1CIT_E", Some("_Z1fIiEvv"));
        check("_Z1fIiEvvQ?.cold", Some("_Z1fIiEvv"));
        check("_Z1fIiEvvQ1CIT_E.cold", Some("_Z1fIiEvv.cold"));
        check("_Z1fITnDaLi1EEvv", Some("_Z1fILi1EEvv"));
        check("_Z1fITpTk1CJicEEvDpT_", Some("_Z1fIJicEEvDpT_"));
        check("_Z1fITtTyQLb1EE3BoxEvv", Some("_Z1fI3BoxEvv"));
        check(
            "_Z1fITnN1a1bIiEELi1EEvS2_S1_",
            Some("_Z1fILi1EEvN1a1bIiEES1_"),
        );
        check(
            "_Z1fITnN1a1bELi1EEvNS0_1cENS1_1dE",
            Some("_Z1fILi1EEvN1a1cENS0_1b1dE"),
        );
        check("_ZN1aF1fEvQLb1E", Some("_ZN1a1fEv"));
        check(
            "_ZZ4mainENKUlTyT_E_clIiEEDaS_",
            Some("_ZZ4mainENKUlT_E_clIiEEDaS_"),
        );
        check("_Z1fDkSt7same_asIiE", Some("_Z1fDa"));
        check("_Z1fIiEDTflplT_Ev", Some("_Z1fIiEDT3...Ev"));
        check(
            "_Z1fIiEu11__remove_cvIT_ES1_",
            Some("_Z1fIiE11__remove_cvIT_ES2_"),
        );
        check("_ZN1aawEv", Some("_ZN1a17operator_co_awaitEv"));
        check(
            "_ZTAXtl1aLi1EEE",
            Some("_Z25template_parameter_objectIXtl1aLi1EEEE"),
        );

        // Lambdas in the initializers of variables, and of templates of variables.
        check("_ZNK3lamMUliE_clEi", Some("_ZNK3lamUliE_clEi"));
        check("_ZNK2tvIiEMUliE_clEi", Some("_ZNK2tvIiEUliE_clEi"));
        check("_ZNK1a1bIiEMUlvE_clEv", Some("_ZNK1a1bIiEUlvE_clEv"));
        check(
            "_Z3cptIN3lamMUliE_EEiT_S1_",
            Some("_Z3cptIN3lamUliE_EEiT_S1_"),
        );

        // Nothing to remove, or not readable.
        for symbol in [
            "_ZNK1W1fMUliE_clEi",
            "",
            "_",
            "_Z",
            "main",
            "_Z1f",
            "_Z1fv",
            "_ZN3foo3barEPKcS1_",
            "_____Z1fITk1CiEvv",
            "_Z1fITk1CiEvS9_",
            "_Z1fITk1Ci",
            "_Z9fITk1CiEvv",
            "_Z99999999999999999999fITk1CiEvv",
            "_ZN1aCI21bITk1CiEEvv",
        ] {
            check(symbol, None);
        }
    }

    #[test]
    fn expressions_can_be_dropped() {
        let check = |symbol, want| {
            let written = without_constraints(symbol, Keep::Names);
            assert_eq!(written.as_deref(), want, "{symbol}");
        };
        check("_Z1fIiEDTclonplfp_Li1EEEv", Some("_Z1fIiEDT3...Ev"));
        check("_Z1fIXgtstT_TL0__ELi1EEvv", Some("_Z1fIX3...ELi1EEvv"));
        check("_Z1fILi1EEvv", None);
    }

    #[test]
    fn the_rest_equals_the_name_of_clang_17() {
        let mut others = Vec::new();
        let mut same = 0;
        for (symbol, before) in names() {
            let written = without_constraints(symbol, Keep::Known).unwrap();
            // The demangler does not support declarations in lambdas either.
            let before = without_constraints(before, Keep::Known).unwrap_or(before.to_owned());
            assert_eq!(without_constraints(&written, Keep::Known), None);
            if written == before {
                same += 1;
            } else {
                others.push(written);
            }
        }
        assert_eq!(same, 188);
        // Before, friends were functions of the namespace, and a concept in an expression was a
        // name of its own (`L_Z…E`).
        insta::assert_snapshot!(others.join("\n"), @r"
        _ZN4shop5ShelfIiE4peekERKS1_
        _ZNKSt6ranges9__find_fnclIRSt6vectorIiSaIiEEiSt8identityEENSt13__conditionalIX14borrowed_rangeIT_EEE4typeIDTclsr6ranges13__cust_accessE7__beginclsr3stdE7declvalIRS8_EEEENS_8danglingEEEOS8_RKT0_T1_
        _ZNKSt6ranges9__sort_fnclIRSt6vectorIiSaIiEENS_4lessESt8identityEENSt13__conditionalIX14borrowed_rangeIT_EEE4typeIDTclsr6ranges13__cust_accessE7__beginclsr3stdE7declvalIRS9_EEEENS_8danglingEEEOS9_T0_T1_
        _ZNKSt6ranges9__sort_fnclIRSt6vectorIiSaIiEENS_7greaterEZN4shop7libraryEvE3$_3EENSt13__conditionalIX14borrowed_rangeIT_EEE4typeIDTclsr6ranges13__cust_accessE7__beginclsr3stdE7declvalIRSA_EEEENS_8danglingEEEOSA_T0_T1_
        _ZNSt6ranges11filter_viewINS_8ref_viewISt6vectorIiSaIiEEEEZN4shop5evensIRS4_EEDaOT_EUlS9_E_E9_IteratoreqERKSD_SF_
        _ZNSt6ranges14transform_viewINS_11filter_viewINS_8ref_viewISt6vectorIiSaIiEEEEZN4shop5evensIRS5_EEDaOT_EUlSA_E_EEZNS8_IS9_EEDaSB_EUlSA_E0_E9_IteratorILb0EEeqERKSH_SJ_
        _ZNSt6ranges9iota_viewIiiE9_IteratoreqERKS2_S4_
        _ZNSt6ranges9iota_viewIiiE9_IteratormiERKS2_S4_
        ");
    }

    fn mutated() -> impl Strategy<Value = String> {
        let names: Vec<&str> = names().map(|(symbol, _)| symbol).collect();
        let change = (
            any::<prop::sample::Index>(),
            any::<prop::sample::Index>(),
            0..40_usize,
            0..3,
        );
        (
            prop::sample::select(names),
            prop::collection::vec(change, 1..5),
        )
            .prop_map(|(name, changes)| {
                let mut name = name.as_bytes().to_vec();
                for (at, from, length, kind) in changes {
                    let (at, from) = (at.index(name.len()), from.index(name.len()));
                    let piece = name[from..(from + length).min(name.len())].to_vec();
                    match kind {
                        0 => name[at] = name[from],
                        1 => drop(name.splice(at..at, piece)),
                        _ => {
                            drop(name.drain(
                                at.max(1)..(at + length).clamp(1, name.len()).max(at.max(1)),
                            ));
                        }
                    }
                }
                String::from_utf8(name).unwrap()
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_name_stays_short_and_a_second_pass_removes_nothing(name in mutated()) {
            for keep in [Keep::Known, Keep::Names] {
                if let Some(written) = without_constraints(&name, keep) {
                    prop_assert!(written.len() <= 2 * name.len() + 100);
                    prop_assert_eq!(without_constraints(&written, Keep::Known), None);
                }
            }
        }
    }
}
