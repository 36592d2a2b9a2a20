//! Settings: the code reads, the template sets and the documents explain the same variables.

use std::collections::BTreeSet;

use symdepot::api::uploads::FILE_BYTES;
use symdepot::flows::Settings;

use crate::project::{code, read};

/// Returns the variables that `runtime/config.rs` reads with validation. `TMPDIR` belongs to
/// Lambda, and is read without it.
fn read_by_the_code() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let lines = code("shared/src/runtime/config.rs")
        .into_iter()
        .take_while(|line| line.text != "#[cfg(test)]");
    // A call may span several lines.
    let text: String = lines.map(|line| line.text).collect();
    for reading in [
        "env.text(\"",
        "env.number(\"",
        "env.bytes(\"",
        "self.bytes(\"",
        "env.seconds(\"",
        "env.optional_seconds(\"",
        "env.flag(\"",
        "env.sources(\"",
        "env.links(\"",
        "env.list(\"",
        "env.hosts(\"",
        "env.log_filter(\"",
        "self.flag(\"",
    ] {
        for (at, _) in text.match_indices(reading) {
            let rest = &text[at + reading.len()..];
            names.extend(rest.split('"').next().map(str::to_owned));
        }
    }
    assert!(
        names.len() > 10,
        "shared/src/runtime/config.rs: found only {names:?}"
    );
    names
}

/// Variables that may contain secrets, which only the functions that use symbol servers have.
const SECRETS: [&str; 3] = ["REQUEST_SOURCES_SECRET", "SOURCES", "SOURCE_LINKS"];

/// Returns the variables that the template sets for every function.
fn set_by_the_template() -> BTreeSet<String> {
    set_under("Globals:", |line| {
        line.starts_with(' ') || line.trim().is_empty()
    })
}

/// Returns the variables that the template sets for one function only.
fn set_for(function: &str) -> BTreeSet<String> {
    set_under(&format!("  {function}:"), |line| {
        line.starts_with("   ") || line.trim().is_empty()
    })
}

/// Returns the variables in a section of the template, which ends at the first line that is not
/// inside.
fn set_under(begin: &str, is_inside: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let text = read("infra/template.yaml").unwrap();
    let mut names = BTreeSet::new();
    let section = text
        .lines()
        .skip_while(|line| !line.starts_with(begin))
        .skip(1);
    let mut depth = None;
    for line in section.take_while(|line| is_inside(line)) {
        let indent = line.len() - line.trim_start().len();
        match depth {
            None if line.trim() == "Variables:" => depth = Some(indent),
            Some(variables) if indent > variables && !line.trim_start().starts_with('#') => {
                names.extend(line.trim().split(':').next().map(str::to_owned));
            }
            Some(variables) if indent <= variables && !line.trim().is_empty() => break,
            _ => {}
        }
    }
    names
}

#[test]
fn the_template_sets_exactly_the_variables_that_the_code_reads() {
    let (read, mut set) = (read_by_the_code(), set_by_the_template());
    assert!(
        SECRETS.iter().all(|secret| !set.contains(*secret)),
        "infra/template.yaml: Globals.Function.Environment has {SECRETS:?}, which prune does not need"
    );
    let secrets = BTreeSet::from(SECRETS.map(str::to_owned));
    assert_eq!(set_for("SymbolicateFunction"), secrets);
    assert_eq!(set_for("DeriveFunction"), secrets);
    assert_eq!(set_for("PruneFunction"), BTreeSet::new());
    set.extend(secrets);
    let missing: Vec<_> = read.difference(&set).collect();
    let unread: Vec<_> = set.difference(&read).collect();
    assert!(
        missing.is_empty(),
        "infra/template.yaml: Globals.Function.Environment lacks {missing:?}, which shared/src/runtime/config.rs reads: set them"
    );
    assert!(
        unread.is_empty(),
        "infra/template.yaml: Globals.Function.Environment sets {unread:?}, which shared/src/runtime/config.rs does not read: remove them"
    );
}

#[test]
fn every_setting_is_explained() {
    let text = read("docs/settings.md").unwrap();
    for name in read_by_the_code() {
        assert!(
            text.contains(&format!("`{name}`")),
            "docs/settings.md: lacks `{name}`: describe it, with its unit and default"
        );
    }
}

/// Returns the documented defaults, converted to bytes and seconds as in the template.
fn documented_defaults() -> Vec<(String, u64)> {
    let text = read("docs/settings.md").unwrap();
    let rows = text.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
        Some((name.to_owned(), rest.split(" | ").next()?))
    });
    let number = |text: &str| {
        let text = text.trim_matches('`');
        let mut words = text.split(' ');
        let number: f64 = words.next()?.parse().ok()?;
        let unit = match words.next() {
            Some("GiB") => f64::from(1 << 30),
            Some("s") | None => 1.0,
            Some(_) => return None,
        };
        Some((number * unit) as u64)
    };
    let numbers = rows.filter_map(|(name, default)| Some((name, number(default)?)));
    numbers.collect()
}

#[test]
fn documents_template_and_code_have_the_same_defaults() {
    let documented = documented_defaults();
    assert!(documented.len() > 18, "docs/settings.md: {documented:?}");
    let template = read("infra/template.yaml").unwrap();
    for (name, value) in &documented {
        let line = format!("        {name}: \"{value}\"");
        // A new account may have another value.
        let unless_new = format!("        {name}: !If [IsNewAccount, ");
        let otherwise = format!(", \"{value}\"]");
        let is_set =
            |set: &str| set == line || set.starts_with(&unless_new) && set.ends_with(&otherwise);
        assert!(
            template.lines().any(is_set),
            "infra/template.yaml: `{name}` is not {value}, as in docs/settings.md"
        );
    }
    let Settings {
        policy,
        dif_max_bytes,
        scratch_bytes: _,
        parser_memory_bytes: _,
        queued_wait: _,
        request_lifetime,
        orphan_min_age,
        sources: _,
        request_sources: _,
        source_links: _,
        source_event_parameters,
        attachment_hosts: _,
        retry_public_misses_after,
        sweep_read_units,
        reconcile_after,
        derived_budget_bytes,
        dif_max_unused,
        dif_budget_bytes,
        source_max_permits,
        max_losses_per_hour,
        transcoded: _,
        memory_cache_bytes: _,
        allows_anonymous,
    } = Settings::default();
    assert_eq!(
        dif_max_bytes, FILE_BYTES,
        "DIF_MAX_BYTES: Settings::default() differs from FILE_BYTES, the limit of the program for the terminal"
    );
    let listed = read("docs/settings.md").unwrap_or_default();
    let is_closed = listed.contains("| `AUTH` | `token` |");
    assert!(
        !allows_anonymous && is_closed && template.contains("        AUTH: token\n"),
        "AUTH: code, docs/settings.md and infra/template.yaml are not all closed"
    );
    for name in ["SCRATCH_BYTES", "PARSER_MEMORY_BYTES", "MEMORY_CACHE_BYTES"] {
        assert!(
            listed.contains(&format!("| `{name}` | `auto` |"))
                && template.contains(&format!("        {name}: auto\n")),
            "{name}: docs/settings.md and infra/template.yaml do not both say auto"
        );
    }
    assert!(
        listed.contains(&format!("`{}`", source_event_parameters.join(","))),
        "SOURCE_EVENT_PARAMETERS: Settings::default() differs from docs/settings.md"
    );
    for (name, value) in [
        ("DERIVED_MAX_UNUSED", policy.derived_max_unused.as_secs()),
        ("RETRY_MISSES_AFTER", policy.retry_misses_after.as_secs()),
        (
            "RETRY_MALFORMED_AFTER",
            policy.retry_malformed_after.as_secs(),
        ),
        ("MAX_ATTEMPTS", policy.max_attempts.into()),
        ("DIF_MAX_BYTES", dif_max_bytes),
        ("REQUEST_LIFETIME", request_lifetime.as_secs()),
        ("ORPHAN_MIN_AGE", orphan_min_age.as_secs()),
        (
            "RETRY_PUBLIC_MISSES_AFTER",
            retry_public_misses_after.as_secs(),
        ),
        ("SWEEP_READ_UNITS", sweep_read_units),
        ("RECONCILE_AFTER", reconcile_after.as_secs()),
        ("DERIVED_BUDGET_BYTES", derived_budget_bytes),
        ("DIF_MAX_UNUSED", dif_max_unused.as_secs()),
        ("DIF_BUDGET_BYTES", dif_budget_bytes),
        ("SOURCE_MAX_PERMITS", source_max_permits as u64),
        ("MAX_LOSSES_PER_HOUR", max_losses_per_hour),
    ] {
        let known = documented.iter().find(|(documented, _)| documented == name);
        assert_eq!(
            known.map(|(_, value)| *value),
            Some(value),
            "{name}: Settings::default() differs from docs/settings.md"
        );
    }
}
