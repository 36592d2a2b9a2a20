//! `serve`: the whole service on this machine, from this one program.
//!
//! The program contains the local stack, its template and all functions. The stack starts each
//! function through a link of its name to this program ([`roles`]).

mod demo;
pub(crate) mod roles;
mod secret;

use std::io::Write;
use std::path::{Path, PathBuf};

use local_stack::program;
use local_stack::stack::{ADDRESSES_FILE, Addresses, Options};

pub(crate) use self::demo::run as demo;
use crate::Output;
use crate::arguments::{DATA, ServeArguments};
use crate::error::CliError;

/// The template of the service.
const TEMPLATE: &str = include_str!("../../../template.yaml");

/// The name of the stack, from which the names of its buckets are made: that of `make run`.
const STACK_NAME: &str = "symdepot";

/// The setting that says whether requests need an access token, and its value if they do.
const AUTH: &str = "AUTH";
const AUTH_TOKEN: &str = "token";

/// The level of the log, of the stack and of the functions, unless the variable is set.
const LOG: &str = "LOG";
const LOG_LEVEL: &str = "warn";

/// Serves until a signal ends it.
pub(crate) fn run(arguments: &ServeArguments) -> Result<Output, CliError> {
    program::init_logging(LOG_LEVEL).map_err(CliError::Serve)?;
    let this = std::env::current_exe();
    let this = this.map_err(|error| CliError::Serve(format!("this program: {error}")))?;
    let functions = PathBuf::new();
    let mut options = Options::new("template.yaml", functions, &arguments.data);
    options.template_text = Some(TEMPLATE);
    options.stack_name = STACK_NAME.to_owned();
    options.program = Some(this.clone());
    options.watchdog = Some(this);
    options.port = arguments.port;
    options.host_names.clone_from(&arguments.host_name);
    options.inherited = program::variables();
    let level = options.inherited.entry(LOG.to_owned());
    level.or_insert_with(|| LOG_LEVEL.to_owned());
    secret::add(&mut options.inherited, &arguments.data)?;
    // A wrong setting ends the program here, and does not fail each request.
    options.starts_functions = true;
    let auth = options.inherited.get(AUTH);
    let needs_token = auth.is_some_and(|auth| auth == AUTH_TOKEN);
    program::run(options, |running| {
        announce(running.addresses(), &arguments.data, needs_token);
    })
    .map_err(CliError::Serve)?;
    Ok(Output::done(""))
}

/// Prints where the service is, and what to do with it. `started_with` is the folder of its data as
/// the user named it. It serves even if nothing reads that.
fn announce(addresses: &Addresses, started_with: &Path, needs_token: bool) {
    let (bold, dim) = (anstyle::Style::new().bold(), anstyle::Style::new().dimmed());
    let Addresses { gateway, data, .. } = addresses;
    let mut text = format!(
        "{bold}symdepot serves at {gateway}{bold:#}\n  \
         {dim}Ctrl-C stops it; its data stays in {}{dim:#}\n",
        data.display()
    );
    if needs_token {
        text.push_str(&issue_token("the first one", gateway, data));
        text.push('\n');
    }
    let demo = if started_with == Path::new(DATA) {
        "symdepot demo".to_owned()
    } else {
        format!("symdepot demo --data {}", quoted(started_with))
    };
    text.push_str(&format!(
        "  {dim}in another terminal, in this folder: {demo}{dim:#}\n"
    ));
    let mut out = anstream::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Returns how the user who started a stack issues an access token, and where programs find it.
/// `which` says which token that is, for people.
fn issue_token(which: &str, gateway: &str, data: &Path) -> String {
    let file = data.join(ADDRESSES_FILE);
    format!(
        r#"  requests need an access token (AUTH=token). Issue {which}:
    KEY=$(sed -n 's/.*"operator_key": "\(.*\)",/\1/p' {})
    curl -H "x-local-operator: $KEY" {gateway}/tokens -d '{{"name": "me", "scope": "*", "rights": ["admin"]}}'
  then set SYMDEPOT_TOKEN to the "token" of the response"#,
        quoted(&file)
    )
}

/// Returns a path as one word of a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_of_a_shell() {
        for (path, expected) in [
            ("/srv/.data", "'/srv/.data'"),
            ("my data/$HOME/`id`\"", "'my data/$HOME/`id`\"'"),
            ("it's", r"'it'\''s'"),
        ] {
            assert_eq!(quoted(Path::new(path)), expected);
        }
    }
}
