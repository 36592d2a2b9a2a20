//! Layers: the code uses only what the table in ARCHITECTURE.md allows.

use crate::project::{Problems, code, read, sources};

/// A layer of the crate: its directory, and the layers that it may use.
struct Layer {
    name: &'static str,
    may_use: &'static [&'static str],
}

const CRATE: &str = "shared/src";

const LAYERS: [Layer; 10] = [
    Layer {
        name: "domain",
        may_use: &[],
    },
    Layer {
        name: "api",
        may_use: &["domain"],
    },
    Layer {
        name: "cache",
        may_use: &["domain"],
    },
    Layer {
        name: "debuginfo",
        may_use: &["domain", "cache"],
    },
    Layer {
        name: "symbolicate",
        may_use: &["domain", "api", "debuginfo"],
    },
    Layer {
        name: "unwind",
        may_use: &["domain", "api", "debuginfo"],
    },
    Layer {
        name: "ports",
        may_use: &["domain", "cache"],
    },
    Layer {
        name: "flows",
        may_use: &[
            "domain",
            "api",
            "cache",
            "debuginfo",
            "symbolicate",
            "unwind",
            "ports",
        ],
    },
    Layer {
        name: "adapters",
        may_use: &["domain", "cache", "ports"],
    },
    Layer {
        name: "runtime",
        may_use: &[
            "domain",
            "api",
            "cache",
            "debuginfo",
            "symbolicate",
            "unwind",
            "ports",
            "flows",
            "adapters",
        ],
    },
];

/// The modules of the crate that the functions may use.
const FUNCTIONS_MAY_USE: [&str; 3] = ["runtime", "flows", "api"];

/// Exceptions from the table: where, what, why.
const EXCEPTIONS: [(&str, &str, &str); 7] = [
    (
        "shared/src/adapters/parser/",
        "crate::debuginfo",
        "the processes of the parser exchange the layout of a DIF, and that of the tests calls the parsing code",
    ),
    (
        "functions/derive/src/",
        "symdepot::ports::QueueMessage",
        "the function deserializes queue messages",
    ),
    (
        "functions/derive/src/",
        "symdepot::ports::ReadMessage",
        "the same: one may be of a newer release",
    ),
    (
        "functions/derive/src/",
        "symdepot::ports::Needs",
        "the same: what one of a newer release needs",
    ),
    (
        "functions/symbolicate/src/",
        "symdepot::domain::Scope",
        "handlers name the type of the scope",
    ),
    (
        "functions/derive/tests/",
        "symdepot::",
        "the parser process is tested with its own program",
    ),
    (
        "functions/symbolicate/tests/",
        "symdepot::",
        "the demangler process is tested with its own program",
    ),
];

const NO_ASYNC: [&str; 5] = ["domain", "api", "cache", "debuginfo", "symbolicate"];

/// The modules of the crate that the program for the terminal may use: it is a client.
const CLI_MAY_USE: [&str; 3] = ["api", "debuginfo", "domain"];

const REMEDY: &str = "move the code to a layer that may use it, or pass the value in; see the table in ARCHITECTURE.md";

fn is_exception(file: &str, text: &str) -> bool {
    EXCEPTIONS
        .iter()
        .any(|(place, what, _)| file.starts_with(place) && text.contains(what))
}

/// Returns the modules of the crate that a line names after `prefix`.
fn named<'a>(text: &'a str, prefix: &str) -> Vec<&'a str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut names = Vec::new();
    for (at, _) in text.match_indices(prefix) {
        if text[..at].ends_with(is_name) {
            continue;
        }
        let rest = &text[at + prefix.len()..];
        if let Some(group) = rest.strip_prefix('{') {
            // Only the first names of a group are modules; nested groups belong to one of them.
            let mut depth = 0;
            let mut head = 0;
            for (end, c) in group.char_indices() {
                match c {
                    '{' => depth += 1,
                    '}' if depth > 0 => depth -= 1,
                    ',' | '}' if depth == 0 => {
                        names.push(group[head..end].trim());
                        head = end + 1;
                    }
                    _ => {}
                }
            }
            let last = group[head.min(group.len())..].trim();
            names.extend((depth == 0 && !last.contains('}')).then_some(last));
        } else {
            names.push(rest);
        }
    }
    let name = |text: &'a str| text.split(|c| !is_name(c)).next().unwrap_or_default();
    names
        .into_iter()
        .map(name)
        .filter(|name| !name.is_empty())
        .collect()
}

#[test]
fn a_layer_uses_only_what_the_table_allows() {
    let mut problems = Problems::default();
    for layer in &LAYERS {
        for file in sources(&format!("{CRATE}/{}/", layer.name)) {
            for line in code(&file) {
                for name in named(&line.text, "crate::") {
                    let is_layer = LAYERS.iter().any(|layer| layer.name == name);
                    let allowed = name == layer.name || layer.may_use.contains(&name);
                    if is_layer && !allowed && !is_exception(&file, &line.text) {
                        let rule = format!("`{}` may not use `{name}`: {}", layer.name, line.text);
                        problems.add(format!("{file}:{}", line.number), rule, REMEDY);
                    }
                }
            }
        }
    }
    problems.report();
}

#[test]
fn every_module_of_the_crate_is_in_the_table() {
    let text = read("shared/src/lib.rs").unwrap();
    let modules: Vec<&str> = text
        .lines()
        .filter_map(|line| {
            line.strip_prefix("pub mod ")
                .and_then(|rest| rest.strip_suffix(';'))
        })
        .collect();
    let mut layers: Vec<&str> = LAYERS.iter().map(|layer| layer.name).collect();
    layers.sort_unstable();
    assert_eq!(
        modules, layers,
        "shared/src/lib.rs: every module is a layer: add it here and to ARCHITECTURE.md"
    );
    let architecture = read("ARCHITECTURE.md").unwrap();
    for layer in layers {
        let row = format!("| `{layer}` |");
        assert!(
            architecture.contains(&row),
            "ARCHITECTURE.md: the table of layers lacks a row `{row}`"
        );
    }
}

#[test]
fn functions_use_flows_and_no_stores() {
    let mut problems = Problems::default();
    for file in sources("functions/") {
        for line in code(&file) {
            for name in named(&line.text, "symdepot::") {
                if !FUNCTIONS_MAY_USE.contains(&name) && !is_exception(&file, &line.text) {
                    let rule = format!("a function may not use `{name}`: {}", line.text);
                    problems.add(
                        format!("{file}:{}", line.number),
                        rule,
                        "do it in `flows` or `runtime`",
                    );
                }
            }
        }
    }
    problems.report();
}

#[test]
fn the_program_for_the_terminal_is_a_client() {
    let mut problems = Problems::default();
    for file in sources("infra/cli/") {
        for line in code(&file) {
            for name in named(&line.text, "symdepot::") {
                if !CLI_MAY_USE.contains(&name) {
                    problems.add(
                        format!("{file}:{}", line.number),
                        format!(
                            "the program for the terminal may not use `{name}`: {}",
                            line.text
                        ),
                        "ask the service over HTTP",
                    );
                }
            }
        }
    }
    problems.report();
}

#[test]
fn the_local_stack_does_not_use_the_crate() {
    let mut problems = Problems::default();
    let remedy = "use AWS's protocol: shared code has shared bugs";
    for file in sources("infra/local/") {
        for line in code(&file)
            .iter()
            .filter(|line| !named(&line.text, "symdepot::").is_empty())
        {
            problems.add(
                format!("{file}:{}", line.number),
                format!("uses the crate: {}", line.text),
                remedy,
            );
        }
    }
    let manifest = read("infra/local/Cargo.toml").unwrap();
    for line in manifest
        .lines()
        .filter(|line| line.starts_with("symdepot.") || line.starts_with("symdepot ="))
    {
        problems.add(
            "infra/local/Cargo.toml",
            format!("depends on the crate: {line}"),
            remedy,
        );
    }
    problems.report();
}

#[test]
fn the_local_stack_names_nothing_of_the_product() {
    let words = ["symdepot", "symbolicate", "prune", "symcache", "dif"];
    let mut problems = Problems::default();
    for file in sources("infra/local/") {
        let text = read(&file).unwrap().to_lowercase();
        for (number, line) in (1..).zip(text.lines()) {
            let mut found = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            if let Some(word) = found.find(|word| words.contains(word)) {
                problems.add(
                    format!("{file}:{number}"),
                    format!("says `{word}`"),
                    "the local stack runs any template: name what AWS names",
                );
            }
        }
    }
    problems.report();
}

#[test]
fn unsafe_code_is_in_one_file() {
    let words = ["unsafe_code", "unsafe {", "unsafe fn", "unsafe impl"];
    let is_unsafe = |file: &String| {
        let lines = code(file).into_iter();
        lines
            .into_iter()
            .any(|line| words.iter().any(|word| line.text.contains(word)))
    };
    let found: Vec<String> = sources("").into_iter().filter(is_unsafe).collect();
    let allowed = [
        "shared/src/runtime/sandbox/refusal.rs",
        "tests/tests/tidy/layers.rs",
    ];
    assert_eq!(
        found, allowed,
        "docs/decisions/0003 explains why it is this file"
    );
}

#[test]
fn decisions_are_pure() {
    let mut problems = Problems::default();
    for layer in NO_ASYNC {
        for file in sources(&format!("{CRATE}/{layer}/")) {
            for line in code(&file) {
                let words = line
                    .text
                    .split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                if words.clone().any(|word| word == "async") || line.text.contains(".await") {
                    let rule = format!("`{layer}` has no `async`: {}", line.text);
                    problems.add(
                        format!("{file}:{}", line.number),
                        rule,
                        "fetch in `flows`, decide on values here",
                    );
                }
            }
        }
    }
    problems.report();
}

/// Names that look like those of the SDK, with the folder that may use them: the crates that sign
/// requests, without a client, a value of OpenTelemetry, and a field of sources in Symbolicator's
/// requests.
const NOT_THE_SDK: [(&str, &str); 4] = [
    ("aws_sqs", "shared/src/flows/sending.rs"),
    ("aws_sigv4", "shared/src/adapters/http/"),
    ("aws_credential_types", "shared/src/adapters/http/"),
    ("aws_credentials_provider", "shared/src/domain/"),
];

#[test]
fn the_core_builds_without_the_aws_sdk() {
    let mut problems = Problems::default();
    let is_allowed = |name: &str, file: &str| {
        let mut allowed = NOT_THE_SDK.iter();
        allowed.any(|(known, folder)| *known == name && file.starts_with(folder))
    };
    let may = |file: &str| {
        file.starts_with("shared/src/adapters/aws/") || file.starts_with("shared/src/runtime/")
    };
    for file in sources(CRATE).into_iter().filter(|file| !may(file)) {
        for line in code(&file) {
            let names = line
                .text
                .split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let is_of_sdk = |name: &&str| {
                let is_named_so = name.starts_with("aws_") || name.starts_with("lambda_");
                is_named_so && !is_allowed(name, &file)
            };
            for name in names.filter(is_of_sdk) {
                let rule = format!("uses `{name}`");
                problems.add(
                    format!("{file}:{}", line.number),
                    rule,
                    "put it into adapters/aws or runtime, behind a port",
                );
            }
        }
    }
    problems.report();
}

#[test]
fn module_names_are_parsed_from_paths_and_groups() {
    assert_eq!(
        named("use crate::cache::{Kind, Entry};", "crate::"),
        ["cache"]
    );
    assert_eq!(
        named(
            "use crate::{api::{self, limits}, domain, ports::Queues};",
            "crate::"
        ),
        ["api", "domain", "ports"]
    );
    assert_eq!(
        named("let x: crate::a::B = crate::c(my_crate::d);", "crate::"),
        ["a", "c"]
    );
    assert_eq!(named("use crate::{", "crate::"), Vec::<&str>::new());
}

#[test]
fn groups_of_layers_are_on_one_line() {
    let mut problems = Problems::default();
    for file in sources(CRATE) {
        for line in code(&file) {
            if ["use crate::{", "use symdepot::{"]
                .iter()
                .any(|start| line.text == *start)
            {
                let rule = "this test cannot parse a group of layers that spans several lines";
                problems.add(
                    format!("{file}:{}", line.number),
                    rule,
                    "write one `use` for each layer",
                );
            }
        }
    }
    problems.report();
}

#[test]
fn every_exception_is_still_needed() {
    for (place, what, why) in EXCEPTIONS {
        let used = sources(place)
            .iter()
            .any(|file| code(file).iter().any(|line| line.text.contains(what)));
        assert!(
            used,
            "{place} does not use {what} any more ({why}): remove the exception"
        );
    }
}
