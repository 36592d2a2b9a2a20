//! `symdepot`: the program.

use std::process::ExitCode;

fn main() -> ExitCode {
    symdepot_cli::main()
}
