//! Tests which name a function has if there are several symbols at its first address.

use super::bad_input_tests::{CODE, Sections};

/// Functions, by their binding.
const LOCAL: u8 = 0x02;
const GLOBAL: u8 = 0x12;
const WEAK: u8 = 0x22;
const GLOBAL_RESOLVER: u8 = 0x1a;

/// A symbol of the size of a function: its name, its type and binding.
type NamedSymbol = (&'static str, u8);

/// Returns the address of the function with this number.
fn at(number: u64) -> u64 {
    CODE + number * 16
}

/// Returns the name in the middle of each function with one of these entries, if it has a name, and
/// these symbols.
fn names_of(functions: &[(Option<&str>, &[NamedSymbol])]) -> Vec<String> {
    let mut sections = Sections::new();
    for (address, (entry, symbols)) in (0..).map(at).zip(functions) {
        for (name, info) in *symbols {
            sections.add_symbol(name, *info, address, 16);
        }
        if let Some(name) = entry {
            sections.add_by_address(name, address, 16);
        }
    }
    let middles = (0..).map(at).take(functions.len());
    let middles: Vec<u64> = middles.map(|start| start + 8).collect();
    let (answers, lacks) = sections.answers(&middles);
    assert_eq!(lacks, None);
    answers.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn of_several_symbols_the_one_that_the_entry_names_is_used() {
    let found = names_of(&[
        // The attribute `alias` of C.
        (Some("real"), &[("an_alias", GLOBAL), ("real", GLOBAL)]),
        (Some("real"), &[("real", GLOBAL), ("zz_alias", GLOBAL)]),
        // A function that is not exported, and an alias that is.
        (Some("hidden"), &[("exported", GLOBAL), ("hidden", LOCAL)]),
        // Go: `-buildmode=plugin`.
        (
            Some("main.run"),
            &[("local.main.run", LOCAL), ("main.run", GLOBAL)],
        ),
        // D and GCC.
        (Some("f"), &[("f.localalias", LOCAL), ("f", LOCAL)]),
        // A constructor and a destructor, whose kinds have the same code.
        (
            Some("_ZN1AC2Ev"),
            &[("_ZN1AC1Ev", WEAK), ("_ZN1AC2Ev", WEAK)],
        ),
        (
            Some("_ZN1AD2Ev"),
            &[
                ("_ZN1BD2Ev", WEAK),
                ("_ZN1AD1Ev", WEAK),
                ("_ZN1AD2Ev", WEAK),
            ],
        ),
        // A specialised copy: its entry has the name of the original.
        (Some("g"), &[("gg", LOCAL), ("g.constprop.0", LOCAL)]),
        // Symbols with versions: the entry has the name in the source.
        (Some("v"), &[("other", GLOBAL), ("v@@V_1", GLOBAL)]),
        (Some("w_1"), &[("w@V_1", GLOBAL), ("w_1", LOCAL)]),
    ]);
    let expected = [
        "real",
        "real",
        "hidden",
        "main.run",
        "f",
        "_ZN1AC1Ev",
        "_ZN1AD1Ev",
        "g.constprop.0",
        "v",
        "w_1",
    ];
    assert_eq!(found, expected);
}

#[test]
fn symbols_that_an_entry_does_not_name_count_by_their_binding() {
    const SYMBOLS: &[NamedSymbol] = &[
        ("local", LOCAL),
        ("weak", WEAK),
        ("global", GLOBAL),
        ("second", GLOBAL),
    ];
    let found = names_of(&[
        (None, SYMBOLS),
        (Some("unlike"), SYMBOLS),
        (Some(""), SYMBOLS),
        (None, &[("local", LOCAL), ("weak", WEAK)]),
        (None, &[("local.main.run", LOCAL), ("main.run", GLOBAL)]),
        // The function that chooses an implementation has a name of its own.
        (None, &[("memcpy", GLOBAL_RESOLVER), ("choose", LOCAL)]),
        // Versions that GNU `ld` adds.
        (None, &[("cfn@LIBV_1", GLOBAL), ("cfn_v1", LOCAL)]),
        (Some("lib::frob"), &[("_ZN3lib4frobEi@@LIBV_2", GLOBAL)]),
    ]);
    let expected = [
        "global",
        "global",
        "global",
        "weak",
        "main.run",
        "choose",
        "cfn",
        "_ZN3lib4frobEi",
    ];
    assert_eq!(found, expected);
}

#[test]
fn one_symbol_names_a_function_and_each_of_its_parts() {
    let mut sections = Sections::new();
    sections.add_by_ranges("f", &[at(0), at(1)]);
    sections.add_symbol("f.cold", LOCAL, at(1), 16);
    sections.add_symbol("f", GLOBAL, at(0), 16);
    sections.add_symbol("alias_of_f", GLOBAL, at(0), 16);
    sections.add_by_address("g", at(2), 16);
    sections.add_symbol("g.part.0", LOCAL, at(2), 16);
    // Without a symbol, a part has the name of the first one.
    sections.add_by_ranges("h", &[at(3), at(4)]);
    sections.add_symbol("alias_of_h", GLOBAL, at(3), 16);
    sections.add_symbol("h", LOCAL, at(3), 16);
    let middles = [0, 1, 2, 3, 4].map(|number| at(number) + 8);
    let (answers, lacks) = sections.answers(&middles);
    let found: Vec<&str> = answers.iter().map(|(name, _)| &**name).collect();
    assert_eq!(found, ["f", "f.cold", "g.part.0", "h", "h"]);
    assert_eq!(lacks, None);
}

#[test]
fn the_name_in_another_entry_is_that_of_the_function() {
    let mut sections = Sections::new();
    let original = sections.next();
    // Its address is that of discarded functions.
    sections.add_by_address("original", 0, 16);
    sections.add_by_reference(original, at(0));
    sections.add_symbol("alias", GLOBAL, at(0), 16);
    sections.add_symbol("original", LOCAL, at(0), 16);
    let (answers, _) = sections.answers(&[at(0) + 8]);
    assert_eq!(answers, [("original".to_owned(), 0)]);
}

#[test]
fn a_symbol_without_a_size_that_the_entry_names_is_used() {
    let mut sections = Sections::new();
    sections.add_by_address("entry", at(0), 16);
    sections.add_symbol("sized", GLOBAL, at(0), 16);
    sections.add_symbol("entry", GLOBAL, at(0), 0);
    sections.add_symbol("empty", GLOBAL, at(1), 0);
    sections.add_symbol("sized", LOCAL, at(1), 16);
    let (answers, _) = sections.answers(&[at(0) + 8, at(1) + 8]);
    let expected = ["entry", "sized"].map(|name| (name.to_owned(), 0));
    assert_eq!(answers, expected);
}

/// As after a linker that merges functions with the same code.
#[test]
fn of_very_many_symbols_at_one_address_the_first_ones_are_searched() {
    for (entry, expected) in [("f77", "f77"), ("f999", "f0")] {
        let mut sections = Sections::new();
        for number in 0..1000 {
            sections.add_symbol(&format!("f{number}"), GLOBAL, at(0), 16);
        }
        sections.add_by_address(entry, at(0), 16);
        let (answers, _) = sections.answers(&[at(0) + 8]);
        assert_eq!(answers, [(expected.to_owned(), 0)]);
    }
}
