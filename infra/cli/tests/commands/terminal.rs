//! Colours and progress bars, which appear on a terminal alone.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::service::{Service, store};
use crate::{fixture, incomplete, noise, run_with, run_with_variables};

/// What of a program is a terminal. The other output is a pipe.
#[derive(Clone, Copy)]
enum OnTerminal {
    Out,
    Err,
}

/// What a program printed, and how it ended.
struct Ended {
    code: Option<i32>,
    terminal: String,
    pipe: String,
}

/// Returns a terminal of 80 columns: the end from which its contents are read, and the end of the
/// programs that run in it.
fn terminal() -> (File, File) {
    let reader = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&reader).unwrap();
    unlockpt(&reader).unwrap();
    let size = Winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&reader, size).unwrap();
    let path = ptsname(&reader, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let programs = open(path, flags, Mode::empty()).unwrap();
    (reader.into(), programs.into())
}

/// Runs the program with one of its outputs on a terminal, and these variables besides the kind of
/// the terminal.
fn run_on(on: OnTerminal, input: &[u8], arguments: &[&str], variables: &[(&str, &str)]) -> Ended {
    let (mut reader, programs) = terminal();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_symdepot"));
    command
        .args(arguments)
        .env_clear()
        .env("XDG_CONFIG_HOME", folder.path())
        .env("TERM", "xterm")
        .envs(variables.iter().copied())
        .current_dir(folder.path())
        .stdin(Stdio::piped());
    match on {
        OnTerminal::Out => command.stdout(programs).stderr(Stdio::piped()),
        OnTerminal::Err => command.stdout(Stdio::piped()).stderr(programs),
    };
    let mut child = command.spawn().unwrap();
    // The contents end when no process has the terminal open any more.
    drop(command);
    // A program that reads no input may have ended already.
    let _ = child.stdin.take().unwrap().write_all(input);
    let mut contents = Vec::new();
    // Linux says so with an error.
    let end = reader.read_to_end(&mut contents).unwrap_err();
    assert_eq!(end.raw_os_error(), Some(Errno::IO.raw_os_error()));
    let output = child.wait_with_output().unwrap();
    let pipe = match on {
        OnTerminal::Out => output.stderr,
        OnTerminal::Err => output.stdout,
    };
    // Terminals end lines with both characters.
    let terminal = String::from_utf8(contents).unwrap().replace("\r\n", "\n");
    Ended {
        code: output.status.code(),
        terminal,
        pipe: String::from_utf8(pipe).unwrap(),
    }
}

/// What begins the codes of colours.
const COLOUR: &str = "\u{1b}[";

#[test]
fn colours_appear_on_a_terminal_unless_no_color_is_set() {
    let service = Service::new();
    let (report, url) = (incomplete(), service.url());
    let arguments = ["symbolicate", "-", "--url", &url];
    let on = |variables: &[(&str, &str)]| {
        run_on(OnTerminal::Out, report.as_bytes(), &arguments, variables)
    };
    let piped = run_with(report.as_bytes(), &arguments);
    assert!(!piped.out.contains(COLOUR), "{}", piped.out);
    let shown = on(&[]);
    assert!(shown.terminal.contains("\u{1b}[33m"), "{}", shown.terminal);
    assert_eq!(shown.code, Some(piped.code));
    // The colours are all that differs.
    let plain = anstream::adapter::strip_str(&shown.terminal).to_string();
    assert_eq!(plain, piped.out);
    for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        assert_eq!(on(&[variable]).terminal, piped.out, "{variable:?}");
    }
    // An empty variable is as if it was not set (no-color.org).
    assert_eq!(on(&[("NO_COLOR", "")]).terminal, shown.terminal);
    let forced = [("CLICOLOR_FORCE", "1")];
    let forced = run_with_variables(report.as_bytes(), &arguments, &forced);
    assert_eq!(forced.out, shown.terminal);
    let not_forced = [("CLICOLOR_FORCE", "0")];
    let not_forced = run_with_variables(report.as_bytes(), &arguments, &not_forced);
    assert_eq!(not_forced.out, piped.out);
    for format in ["text", "markdown", "json"] {
        let arguments = [&arguments[..], &["--format", format]].concat();
        let shown = run_on(OnTerminal::Out, report.as_bytes(), &arguments, &[]);
        assert!(!shown.terminal.contains(COLOUR), "{}", shown.terminal);
    }
}

#[test]
fn an_error_is_red_on_a_terminal_unless_no_color_is_set() {
    let on = |variables: &[(&str, &str)]| {
        let ended = run_on(OnTerminal::Err, b"", &["check", "absent"], variables);
        assert_eq!((ended.code, ended.pipe.as_str()), (Some(1), ""));
        ended.terminal
    };
    let red = on(&[]);
    assert!(red.contains("\u{1b}[31m"), "{red:?}");
    let plain = "symdepot: absent: No such file or directory (os error 2)\n";
    assert_eq!(anstream::adapter::strip_str(&red).to_string(), plain);
    assert_eq!(on(&[("NO_COLOR", "1")]), plain);
}

#[test]
fn a_bar_shows_what_is_inspected_and_sent_and_changes_no_output() {
    let file = fixture("elf/crash.debug");
    let upload = |url: &str| ["upload", &file, "--url", url].map(str::to_owned);
    let piped = {
        let (service, _) = store::start(0);
        let arguments = upload(&service.url());
        run_with(b"", &arguments.each_ref().map(String::as_str))
    };
    assert_eq!((piped.code, piped.err.as_str()), (0, ""));
    let (service, _) = store::start(0);
    let arguments = upload(&service.url());
    let arguments = arguments.each_ref().map(String::as_str);
    let shown = run_on(OnTerminal::Err, b"", &arguments, &[]);
    assert_eq!((shown.code, shown.pipe), (Some(0), piped.out));
    for bar in [" of 1 files inspected", " sent "] {
        assert!(shown.terminal.contains(bar), "{bar}: {:?}", shown.terminal);
    }
    assert_erased(&shown.terminal);
}

#[test]
fn a_bar_shows_how_much_of_a_large_crash_file_is_sent() {
    let dump = [b"MDMP".to_vec(), noise(7 << 20)].concat();
    let (service, _) = store::start(0);
    let arguments = ["symbolicate", "-", "--url", &service.url()];
    let piped = run_with(&dump, &arguments);
    assert_eq!((piped.code, piped.err.as_str()), (0, ""));
    let shown = run_on(OnTerminal::Err, &dump, &arguments, &[]);
    assert_eq!((shown.code, shown.pipe), (Some(0), piped.out));
    let bar = " of 7.00 MiB sent ";
    assert!(shown.terminal.contains(bar), "{:?}", shown.terminal);
    assert_erased(&shown.terminal);
}

/// Asserts that the last that a program did was to erase its bar.
fn assert_erased(terminal: &str) {
    let erased = terminal.ends_with("\u{1b}[2K") || terminal.ends_with("\u{1b}[2K\r");
    assert!(erased, "{terminal:?}");
}
