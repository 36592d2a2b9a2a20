//! `completions` and `man`: made from the arguments.

use clap_complete::Shell;

use crate::Output;
use crate::arguments::Arguments;
use crate::error::CliError;

pub(crate) fn completions(shell: Shell) -> Output {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::program(), "symdepot", &mut text);
    Output::done(text)
}

/// Prints the manual page of the program, followed by those of its commands.
pub(crate) fn man() -> Result<Output, CliError> {
    let mut text = Vec::new();
    let mut program = Arguments::program();
    // The commands receive the names of their pages, such as symdepot-check.
    program.build();
    clap_mangen::Man::new(program.clone())
        .render(&mut text)
        .map_err(CliError::Output)?;
    let commands = program.get_subcommands();
    // `help` has no page of its own.
    let shown = commands.filter(|it| !it.is_hide_set() && it.get_name() != "help");
    for command in shown {
        clap_mangen::Man::new(command.clone())
            .render(&mut text)
            .map_err(CliError::Output)?;
    }
    Ok(Output::done(text))
}
