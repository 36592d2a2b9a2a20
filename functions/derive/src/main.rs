//! The program of the function.

use std::process::ExitCode;

fn main() -> ExitCode {
    derive::main()
}
