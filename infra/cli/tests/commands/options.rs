//! Options and variables that are empty, missing or of no effect, and names with line breaks.

use crate::service::Service;
use crate::{APPLE, run, run_with, run_with_variables};

#[test]
fn an_empty_variable_is_as_if_it_was_not_set() {
    let service = Service::new();
    let url = service.url();
    let empty = [
        ("SYMDEPOT_URL", ""),
        ("SYMDEPOT_SCOPE", ""),
        ("SYMDEPOT_PROFILE", ""),
        ("SYMDEPOT_TOKEN", ""),
        ("SYMDEPOT_DEAD_LETTERS", ""),
    ];
    let ended = run_with_variables(b"", &["wanted", "--url", &url], &empty);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    for (command, expected) in [
        ("wanted", "no service to ask"),
        ("redrive", "no queue of dead letters"),
    ] {
        let ended = run_with_variables(b"", &[command], &empty);
        assert_eq!(ended.code, 2, "{}", ended.err);
        assert!(ended.err.contains(expected), "{}", ended.err);
    }
    // What is typed is meant.
    let typed = run(&["wanted", "--url", ""]);
    assert_eq!(typed.code, 2, "{}", typed.err);
    assert!(typed.err.contains("the address \"\""), "{}", typed.err);
}

#[test]
fn serve_and_demo_refuse_to_be_told_which_service_to_ask() {
    let url = ["--url", "http://127.0.0.1:1"];
    for command in ["serve", "demo"] {
        for option in [url, ["--scope", "acme"], ["--profile", "prod"]] {
            for arguments in [
                [&[command][..], &option].concat(),
                [&option[..], &[command]].concat(),
            ] {
                let ended = run(&arguments);
                assert_eq!(ended.code, 2, "{arguments:?}: {}", ended.out);
                let expected = format!("`symdepot {command}` has no {}: ", option[0]);
                assert!(ended.err.contains(&expected), "{}", ended.err);
                assert!(ended.err.contains("--data FOLDER"), "{}", ended.err);
            }
        }
    }
    // Variables are there for the other commands.
    let variables = [("SYMDEPOT_URL", url[1]), ("SYMDEPOT_SCOPE", "acme")];
    let ended = run_with_variables(b"", &["demo"], &variables);
    assert_eq!(ended.code, 1, "{}", ended.err);
    assert!(ended.err.contains("data folder .data"), "{}", ended.err);
}

#[test]
fn commands_that_are_hidden_are_not_listed_if_none_is_given() {
    let ended = run(&["--url", "http://127.0.0.1:1"]);
    assert_eq!(ended.code, 2, "{}", ended.err);
    let (_, list) = ended.err.split_once("subcommands: ").unwrap();
    assert!(list.contains("symbolicate"), "{}", ended.err);
    assert!(!list.contains("inspect-file"), "{}", ended.err);
}

#[test]
fn that_modules_are_given_for_a_file_that_the_service_reads_is_said_to_have_no_effect() {
    let service = Service::new();
    let url = service.url();
    let module = "Ledger=60a0285889bf05c4a3384b2e8733386b47c5d71d@0x100000000";
    let arguments = ["symbolicate", "-", "--module", module, "--url", &url];
    for file in [&b"MDMP"[..], APPLE.as_bytes()] {
        let ended = run_with(file, &arguments);
        let note = "--module has no effect: the service reads this file itself";
        assert!(ended.err.starts_with(note), "{}", ended.err);
        let without = run_with(file, &["symbolicate", "-", "--url", &url]);
        assert_eq!((ended.code, ended.out), (without.code, without.out));
    }
}

#[test]
fn a_line_break_in_a_name_breaks_no_line_of_an_error() {
    let ended = run(&["check", "a\nsymdepot: b"]);
    assert_eq!(ended.code, 1);
    let expected = "symdepot: a\u{fffd}symdepot: b: No such file or directory (os error 2)\n";
    assert_eq!(ended.err, expected);
}
