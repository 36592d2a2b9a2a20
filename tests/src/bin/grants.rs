//! Checks the permissions of the template against the calls that the functions made in the tests.
//!
//! `make test` runs it after the end-to-end tests, which leave the records of their stacks in a
//! folder.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use local_stack::iam::Use;
use symdepot_tests::grants::{needs, policies, problems, shown};
use symdepot_tests::stack::{RECORDS, uses_in};

/// Checks that the functions need exactly what the template grants them
#[derive(Debug, Parser)]
struct Arguments {
    /// The folder with the records of the stacks
    #[arg(long, env = RECORDS, value_name = "FOLDER")]
    records: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match checked(&arguments) {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        Ok(problems) => {
            for problem in problems {
                anstream::eprintln!("{problem}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            anstream::eprintln!("grants: {error}");
            ExitCode::FAILURE
        }
    }
}

fn checked(arguments: &Arguments) -> Result<Vec<String>, String> {
    let unreadable = |error| format!("cannot read {}: {error}", arguments.records.display());
    let mut uses: Vec<Use> = Vec::new();
    let mut stacks = 0;
    for entry in std::fs::read_dir(&arguments.records).map_err(unreadable)? {
        uses.extend(uses_in(&entry.map_err(unreadable)?.path()));
        stacks += 1;
    }
    let grants = policies()?.grants();
    for (grant, need) in needs(&grants, &uses) {
        anstream::println!("{:>5} {:>5}  {}", need.allowed, need.alone, shown(&grant));
    }
    anstream::println!(
        "{} grants, {stacks} stacks; above: in how many stacks and kinds of calls each was used, and as the only one",
        grants.len()
    );
    Ok(problems(&grants, &uses))
}
