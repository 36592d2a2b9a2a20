//! What this program is started as: a function of the service, a child process of one, the watchdog
//! of the stack, or the program for the terminal.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use local_stack::functions::ledger::watch_over;

/// The first argument of the process that ends the functions of a stack that was killed.
const WATCHDOG: &str = "watchdog";

/// A part of the service that this program contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The function `symbolicate`, or a child process of it.
    Symbolicate,
    /// The function `derive`, or a child process of it.
    Derive,
    /// The function `prune`.
    Prune,
    /// The watchdog of the stack whose run has this folder.
    Watchdog(PathBuf),
}

impl Role {
    /// Returns what this process was started as; `None` for the program for the terminal.
    pub(crate) fn of_process() -> Option<Self> {
        Self::of(std::env::args_os())
    }

    /// The name of the program is that of a function if the stack started it through a link. Child
    /// processes are started with the path of the program itself.
    fn of(mut arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let program = arguments.next()?;
        match Path::new(&program).file_name().and_then(OsStr::to_str) {
            Some("symbolicate") => return Some(Self::Symbolicate),
            Some("derive") => return Some(Self::Derive),
            Some("prune") => return Some(Self::Prune),
            _ => {}
        }
        let first = arguments.next()?;
        let is_child = |children: &[&str]| children.iter().any(|child| *child == first);
        if is_child(&symbolicate::CHILDREN) {
            Some(Self::Symbolicate)
        } else if is_child(&derive::CHILDREN) {
            Some(Self::Derive)
        } else if first == WATCHDOG {
            arguments.next().map(|folder| Self::Watchdog(folder.into()))
        } else {
            None
        }
    }

    /// Runs this part of the service.
    pub(crate) fn run(self) -> ExitCode {
        match self {
            Self::Symbolicate => symbolicate::main(),
            Self::Derive => derive::main(),
            Self::Prune => prune::main(),
            Self::Watchdog(folder) => {
                watch_over(&folder, std::io::stdin().lock());
                ExitCode::SUCCESS
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_decides_before_the_first_argument() {
        let of = |arguments: &[&str]| Role::of(arguments.iter().map(OsString::from));
        let of_link = |name: &str| of(&[&format!("/srv/.data/functions/{name}")]);
        assert_eq!(of_link("symbolicate"), Some(Role::Symbolicate));
        assert_eq!(of_link("derive"), Some(Role::Derive));
        assert_eq!(of_link("prune"), Some(Role::Prune));
        for child in symbolicate::CHILDREN {
            assert_eq!(of(&["/usr/bin/symdepot", child]), Some(Role::Symbolicate));
        }
        for child in derive::CHILDREN {
            assert_eq!(of(&["/usr/bin/symdepot", child]), Some(Role::Derive));
            assert_eq!(of(&["derive", child]), Some(Role::Derive));
        }
        let watchdog = of(&["symdepot", "watchdog", "/run"]);
        assert_eq!(watchdog, Some(Role::Watchdog("/run".into())));
    }

    #[test]
    fn the_commands_for_the_terminal_are_no_parts_of_the_service() {
        let of = |arguments: &[&str]| Role::of(arguments.iter().map(OsString::from));
        for arguments in [
            &["symdepot"][..],
            &["./symdepot", "symbolicate", "crash.txt"],
            &["symdepot", "check", "parse-dif"],
            &["symdepot", "watchdog"],
            &[],
        ] {
            assert_eq!(of(arguments), None, "{arguments:?}");
        }
    }
}
