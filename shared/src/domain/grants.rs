//! Grants: what a caller may do, and in which scopes.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Scope;

/// A right of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Right {
    /// Send crashes, and read what explains the responses.
    Symbolicate,
    /// Upload debug files, and read what became of them.
    Upload,
    /// Download SymCaches.
    Download,
    /// Everything, including issuing and revoking tokens.
    Admin,
}

impl Right {
    /// All rights.
    pub const ALL: [Self; 4] = [Self::Symbolicate, Self::Upload, Self::Download, Self::Admin];

    /// Returns its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Symbolicate => "symbolicate",
            Self::Upload => "upload",
            Self::Download => "download",
            Self::Admin => "admin",
        }
    }
}

/// A text that is not the name of a right.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no such right: use symbolicate, upload, download or admin")]
pub struct InvalidRight;

impl FromStr for Right {
    type Err = InvalidRight;

    fn from_str(text: &str) -> Result<Self, InvalidRight> {
        let named = Self::ALL.into_iter().find(|right| right.as_str() == text);
        named.ok_or(InvalidRight)
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A scope in which a caller has its rights.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum GrantedScope {
    /// Every scope. Its text is `*`, which is therefore no name of a tenant here.
    Every,
    /// One scope.
    One(Scope),
    /// A text that is the name of no scope.
    None,
}

impl GrantedScope {
    /// The text for every scope.
    pub const EVERY: &'static str = "*";
}

impl From<String> for GrantedScope {
    fn from(text: String) -> Self {
        match text.as_str() {
            Self::EVERY => Self::Every,
            text => text.parse().map_or(Self::None, Self::One),
        }
    }
}

impl From<GrantedScope> for String {
    fn from(scope: GrantedScope) -> Self {
        match scope {
            GrantedScope::Every => GrantedScope::EVERY.to_owned(),
            GrantedScope::One(scope) => scope.into(),
            GrantedScope::None => String::new(),
        }
    }
}

/// What a caller may do.
///
/// A caller has the same rights in each of its scopes. Its requests in the scope of a tenant read
/// the global scope too, as all requests of that scope do; for requests *in* the global scope it
/// needs a grant of that scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grants {
    /// The scopes.
    pub scopes: BTreeSet<GrantedScope>,
    /// The rights.
    pub rights: BTreeSet<Right>,
}

impl Grants {
    /// Returns the grants of the operator: everything.
    pub fn all() -> Self {
        Self {
            scopes: [GrantedScope::Every].into(),
            rights: [Right::Admin].into(),
        }
    }

    /// Returns whether the caller has one of these rights in its scopes. An admin has every right.
    pub fn have_any(&self, rights: &[Right]) -> bool {
        let is_held = |right: &Right| self.rights.contains(right);
        is_held(&Right::Admin) || rights.iter().any(is_held)
    }

    /// Returns whether the rights apply in every scope, also in those that do not exist yet.
    pub fn are_everywhere(&self) -> bool {
        self.scopes.contains(&GrantedScope::Every)
    }

    /// Returns whether the rights apply in a scope.
    pub fn cover(&self, scope: &Scope) -> bool {
        self.are_everywhere() || self.scopes.contains(&GrantedScope::One(scope.clone()))
    }

    /// Returns the scope of a request that names none: the only scope of its caller, or else the
    /// global scope.
    pub fn default_scope(&self) -> Scope {
        let mut scopes = self.scopes.iter();
        match (scopes.next(), scopes.next()) {
            (Some(GrantedScope::One(only)), None) => only.clone(),
            _ => Scope::Global,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(scopes: &[&str], rights: &[Right]) -> Grants {
        let scopes = scopes.iter().map(|scope| (*scope).to_owned().into());
        Grants {
            scopes: scopes.collect(),
            rights: rights.iter().copied().collect(),
        }
    }

    #[test]
    fn rights_apply_in_the_scopes_of_the_caller_alone() {
        let acme: Scope = "acme".parse().unwrap();
        let other: Scope = "other".parse().unwrap();
        let of_acme = grants(&["acme"], &[Right::Upload]);
        assert!(of_acme.cover(&acme));
        assert!(!of_acme.cover(&other) && !of_acme.cover(&Scope::Global));
        assert!(of_acme.have_any(&[Right::Symbolicate, Right::Upload]));
        assert!(!of_acme.have_any(&[Right::Download]));
        let all = Grants::all();
        assert!(all.cover(&acme) && all.cover(&Scope::Global) && all.are_everywhere());
        let nothing = grants(&["", "a/b"], &[Right::Admin]);
        assert!(!nothing.cover(&acme) && !nothing.cover(&Scope::Global));
    }

    #[test]
    fn an_admin_has_every_right_in_its_scopes() {
        let admin = grants(&["acme"], &[Right::Admin]);
        for right in Right::ALL {
            assert!(admin.have_any(&[right]), "{right}");
            assert_eq!(right.as_str().parse(), Ok(right));
        }
        assert!(!admin.cover(&Scope::Global));
        assert!("root".parse::<Right>().is_err());
    }

    #[test]
    fn a_caller_with_one_scope_need_not_name_it() {
        let default = |scopes: &[&str]| grants(scopes, &[]).default_scope();
        assert_eq!(default(&["acme"]).as_str(), "acme");
        assert_eq!(default(&["acme", "other"]), Scope::Global);
        for scopes in [&["*"][..], &["global"], &[]] {
            assert_eq!(default(scopes), Scope::Global, "{scopes:?}");
        }
    }
}
