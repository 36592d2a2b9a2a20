//! Licences: those that dependencies may have are those that a release lists.

use std::collections::BTreeSet;

use crate::project::read;

/// Returns the texts in the list that begins at `begin`.
fn list(text: &str, begin: &str) -> BTreeSet<String> {
    let (_, rest) = text.split_once(begin).unwrap_or_default();
    let inside = rest.split(']').next().unwrap_or_default();
    let texts = inside.split('"').skip(1).step_by(2);
    texts.map(str::to_owned).collect()
}

#[test]
fn a_release_lists_the_licences_that_dependencies_may_have() {
    let (deny, about) = (
        read("deny.toml").unwrap(),
        read("infra/check/about.toml").unwrap(),
    );
    let allowed = list(&deny, "\nallow = [");
    assert!(allowed.contains("MIT"), "deny.toml: {allowed:?}");
    assert_eq!(
        allowed,
        list(&about, "\naccepted = ["),
        "deny.toml (left) and infra/check/about.toml (right) differ"
    );
    let (_, exceptions) = deny.split_once("\nexceptions = [").unwrap();
    let exceptions = exceptions.split("\n]").next().unwrap_or_default();
    let excepted: BTreeSet<&str> = exceptions
        .split("crate = \"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    let tables = about.lines().filter_map(|line| line.strip_prefix('['));
    let listed = tables.filter_map(|rest| rest.strip_suffix(']')).collect();
    assert_eq!(
        excepted, listed,
        "deny.toml (left) and infra/check/about.toml (right) have other exceptions"
    );
}
