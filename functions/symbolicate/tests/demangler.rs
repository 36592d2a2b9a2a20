//! The demangler process, as `symbolicate` starts it.

use std::process::Command;

use symdepot::adapters::demangler::ProcessDemangler;
use symdepot::domain::{IsolatedName, Language};
use symdepot::ports::Demangler;

const PROGRAM: &str = env!("CARGO_BIN_EXE_symbolicate");

/// Swift's demangler aborts on each of these, or reads invalid memory.
const DEADLY: [&str; 5] = [
    "$eyyxDl",
    "$syyxDl",
    "$syxq_Idgnr_D",
    "$s4blah8PatatinoaySiD",
    "@__swiftmacro_1a1fO1bfMp_",
];

const GOOD: (&str, &str) = (
    "$s8mangling12GenericUnionO3FooyACyxGSicAEmlF",
    "GenericUnion.Foo<A>(GenericUnion<A>.Type)",
);

fn swift(symbol: &str) -> IsolatedName {
    IsolatedName {
        symbol: symbol.to_owned(),
        language: Language::Swift,
    }
}

#[tokio::test]
async fn a_name_that_kills_the_demangler_stays_mangled_and_the_others_are_demangled() {
    let demangler = ProcessDemangler::new(PROGRAM);
    let mut names = vec![swift(GOOD.0)];
    for symbol in DEADLY {
        names.extend([swift(symbol), swift(GOOD.0)]);
    }
    let readable = demangler.demangle(&names).await;
    assert_eq!(readable.len(), names.len());
    for (name, readable) in names.iter().zip(readable) {
        let expected = (name.symbol == GOOD.0).then_some(GOOD.1);
        assert_eq!(readable.as_deref(), expected, "{}", name.symbol);
    }
}

#[tokio::test]
async fn a_name_that_expands_to_gigabytes_does_not_affect_the_others() {
    let references: String = (0..30)
        .map(|index| format!("P6AX{0}{0}@Z", index.min(9)))
        .collect();
    let bomb = IsolatedName {
        symbol: format!("?f@@YAXP6AXHH@Z{references}@Z"),
        language: Language::Cpp,
    };
    let names = [bomb, swift(GOOD.0)];
    let readable = ProcessDemangler::new(PROGRAM).demangle(&names).await;
    assert_eq!(readable[1].as_deref(), Some(GOOD.1));
}

#[tokio::test]
async fn a_name_that_takes_seconds_does_not_take_the_time_of_the_others() {
    let slow = |symbol: String| IsolatedName {
        symbol,
        language: Language::Cpp,
    };
    let names = [
        slow(format!("_Z1f{}", "SaI".repeat(30))),
        swift(GOOD.0),
        slow(format!("_Z1fIX{}EEvv", "dl".repeat(30))),
        swift(GOOD.0),
    ];
    let readable = ProcessDemangler::new(PROGRAM).demangle(&names).await;
    let good = Some(GOOD.1.to_owned());
    assert_eq!(readable, [None, good.clone(), None, good]);
}

#[tokio::test]
async fn two_thousand_names_are_demangled_and_a_hundred_deadly_ones_stay_mangled() {
    let demangler = ProcessDemangler::new(PROGRAM);
    let many = vec![swift(GOOD.0); 2000];
    let readable = demangler.demangle(&many).await;
    assert!(readable.iter().all(|name| name.as_deref() == Some(GOOD.1)));
    let deadly = vec![swift(DEADLY[0]); 100];
    assert_eq!(demangler.demangle(&deadly).await, vec![None; 100]);
}

#[test]
fn the_demangler_command_ends_when_its_input_ends() {
    let output = Command::new(PROGRAM)
        .arg("demangle-names")
        .env_clear()
        .stdin(std::process::Stdio::null())
        .output()
        .expect("the program is started");
    assert!(output.status.success() && output.stdout.is_empty());
}
