//! Callers: who sends a request, and whether it may.
//!
//! A caller is known by what checked its credential: a principal, by the gateway that verified its
//! signature (IAM); the holder of a JWT, by its claims; the holder of an access token, by the
//! record of the token. The path of a request says nothing about its caller.

use sha2::{Digest, Sha256};
use thiserror::Error;

pub use crate::domain::Right;
use crate::domain::{GrantedScope, Grants, Scope};

/// The claim of a JWT with the scopes, separated by spaces or commas; `*` is every scope.
const SCOPES_CLAIM: &str = "symdepot_scopes";

/// The claim of a JWT with the rights, separated by spaces or commas.
const RIGHTS_CLAIM: &str = "symdepot_rights";

/// The key of the gateway's route for all paths that have no route of their own (API Gateway
/// developer guide, "Create routes for HTTP APIs").
pub const DEFAULT_ROUTE: &str = "$default";

/// The number of hex digits that name a caller in the log.
const HASH_DIGITS: usize = 16;

/// A caller that was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    name: Option<String>,
    grants: Grants,
    /// The scope in the path of the request.
    scope: Option<Scope>,
}

/// What an operation requires of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A credential, whatever it grants.
    Credential,
    /// One of these rights, in the scope of the request. An admin has every right.
    AnyOf(&'static [Right]),
    /// The right of an admin, in the scope of the request.
    Admin,
    /// The right of an admin in every scope, because the response is about all of them.
    AdminEverywhere,
}

/// Why a request may not be in its scope.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScopeError {
    /// The path has one scope, and the query or the body another.
    #[error("the path names the scope {path}, and the query or the body {other}: name one")]
    Contradiction {
        /// The scope in the path.
        path: Scope,
        /// The other one.
        other: Scope,
    },
    /// The query has one scope, and the body another.
    #[error("the query names the scope {query}, and the body {body}: name one")]
    QueryAndBody {
        /// The scope in the query.
        query: Scope,
        /// The scope in the body.
        body: Scope,
    },
    /// The caller has no grant for the scope.
    #[error(
        "the credential is not valid in the scope {0}; a request that names no scope is in the global one, unless its credential has a single scope"
    )]
    NotGranted(Scope),
}

impl Caller {
    /// Returns anyone, who may do everything: on the local stack.
    pub fn anyone() -> Self {
        Self {
            name: None,
            grants: Grants::all(),
            scope: None,
        }
    }

    /// Returns a principal of the account whose signature the gateway verified, by its ARN. Its IAM
    /// policy says which routes of the gateway it may call, and `route` is the one that was
    /// compared with it. What only an admin may do has routes of its own, so on [`DEFAULT_ROUTE`]
    /// no principal is an admin, whatever the path says.
    pub fn principal(arn: &str, route: Option<&str>) -> Self {
        let grants = match route {
            None | Some(DEFAULT_ROUTE) => Grants {
                rights: [Right::Symbolicate, Right::Upload, Right::Download].into(),
                ..Grants::all()
            },
            Some(_) => Grants::all(),
        };
        Self {
            name: Some(caller_hash(arn)),
            grants,
            scope: None,
        }
    }

    /// Returns the holder of a JWT that the gateway verified. Without the claims of this service,
    /// it may do nothing.
    pub fn with_claims<'a>(claim: impl Fn(&str) -> Option<&'a str>) -> Self {
        let identity = ["iss", "sub"].map(|name| claim(name).unwrap_or_default());
        let scopes = listed(claim(SCOPES_CLAIM)).map(|scope| GrantedScope::from(scope.to_owned()));
        let rights = listed(claim(RIGHTS_CLAIM)).filter_map(|right| right.parse().ok());
        Self {
            name: Some(caller_hash(&identity.join(" "))),
            grants: Grants {
                scopes: scopes.collect(),
                rights: rights.collect(),
            },
            scope: None,
        }
    }

    /// Returns the holder of the access token with this id.
    pub fn with_token(id: &str, grants: Grants) -> Self {
        Self {
            name: Some(caller_hash(id)),
            grants,
            scope: None,
        }
    }

    /// Returns the caller of a request whose path names this scope.
    #[must_use]
    pub fn in_scope(self, scope: Option<Scope>) -> Self {
        Self { scope, ..self }
    }

    /// Returns its name in the log; anyone has none.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns what it may do.
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Returns whether it has the rights for an operation. [`Caller::scope_for`] says whether it
    /// has them in the scope of the request.
    pub fn may(&self, need: Need) -> bool {
        match need {
            Need::Credential => true,
            Need::AnyOf(rights) => self.grants.have_any(rights),
            Need::Admin => self.grants.have_any(&[Right::Admin]),
            Need::AdminEverywhere => self.grants.are_everywhere() && self.may(Need::Admin),
        }
    }

    /// Returns the scope of a request whose query or body names this one.
    ///
    /// # Errors
    ///
    /// [`ScopeError`] if the path names another scope, or the caller has no grant for the scope.
    pub fn scope_for(&self, named: Option<Scope>) -> Result<Scope, ScopeError> {
        let scope = match (self.scope.clone(), named) {
            (Some(path), Some(other)) if path != other => {
                return Err(ScopeError::Contradiction { path, other });
            }
            (Some(scope), _) | (None, Some(scope)) => scope,
            (None, None) => self.grants.default_scope(),
        };
        if self.grants.cover(&scope) {
            Ok(scope)
        } else {
            Err(ScopeError::NotGranted(scope))
        }
    }

    /// Returns whether the request may see what belongs to this scope, and was found by its id: a
    /// pending request.
    pub fn may_see(&self, scope: &Scope) -> bool {
        self.grants.cover(scope) && self.scope.as_ref().is_none_or(|path| path == scope)
    }

    /// Returns the scope that the path names, or the query: `None` if neither does.
    ///
    /// # Errors
    ///
    /// [`ScopeError`], as [`Caller::scope_for`].
    pub fn named_scope(&self, named: Option<Scope>) -> Result<Option<Scope>, ScopeError> {
        if named.is_some() || self.scope.is_some() {
            self.scope_for(named).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Returns whether a request that names no scope may read what this key names: a key in one of
    /// its scopes, or in the global one, which requests in each scope read.
    pub fn may_read(&self, key: &str) -> bool {
        let is_one = |scope: &GrantedScope| matches!(scope, GrantedScope::One(_));
        match Scope::of_key(key) {
            _ if self.grants.are_everywhere() => true,
            Some(Scope::Global) => self.grants.scopes.iter().any(is_one),
            Some(scope) => self.grants.cover(&scope),
            None => false,
        }
    }
}

/// Returns the words of a claim. The gateway passes a list on as text in brackets.
fn listed(claim: Option<&str>) -> impl Iterator<Item = &str> {
    let is_between = |c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']' | '"');
    let words = claim.unwrap_or_default().split(is_between);
    words.filter(|word| !word.is_empty())
}

/// Returns a caller's name in the log: the beginning of a hash of its identity. The same caller has
/// the same name in all lines, and who may only read the log does not learn who it is.
fn caller_hash(identity: &str) -> String {
    let mut hash = format!("{:x}", Sha256::digest(identity));
    hash.truncate(HASH_DIGITS);
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(name: &str) -> Scope {
        name.parse().unwrap()
    }

    fn of_token(scope: &str, rights: &[Right]) -> Caller {
        let grants = Grants {
            scopes: [scope.to_owned().into()].into(),
            rights: rights.iter().copied().collect(),
        };
        Caller::with_token("00ff", grants)
    }

    fn with_claims(scopes: &str, rights: &str) -> Caller {
        Caller::with_claims(|name| match name {
            "sub" => Some("someone"),
            SCOPES_CLAIM => Some(scopes),
            RIGHTS_CLAIM => Some(rights),
            _ => None,
        })
    }

    #[test]
    fn a_caller_has_a_name_of_its_own_that_does_not_contain_its_identity() {
        let principal = |arn| Caller::principal(arn, Some("ANY /tokens"));
        let [one, other] = ["arn:aws:iam::1:user/a", "arn:aws:iam::1:user/b"].map(principal);
        assert_eq!(one, principal("arn:aws:iam::1:user/a"));
        assert_ne!(one.name(), other.name());
        let name = one.name().unwrap();
        assert_eq!(name.len(), HASH_DIGITS);
        assert!(
            name.bytes().all(|digit| digit.is_ascii_hexdigit()),
            "{name}"
        );
        assert_eq!(Caller::anyone().name(), None);
    }

    #[test]
    fn claims_are_lists_of_scopes_and_rights_and_without_them_nothing_is_granted() {
        let caller = with_claims("acme other", "symbolicate,upload");
        assert_eq!(caller.scope_for(Some(scope("other"))), Ok(scope("other")));
        assert!(caller.may(Need::AnyOf(&[Right::Upload])));
        assert!(!caller.may(Need::AnyOf(&[Right::Download])));
        assert_eq!(with_claims("[acme other]", "[symbolicate, upload]"), caller);
        for (scopes, rights) in [("", ""), ("acme", "root Admin"), ("acme", "")] {
            let caller = with_claims(scopes, rights);
            assert!(!caller.may(Need::AnyOf(&Right::ALL)), "{rights}");
        }
        let nothing = Caller::with_claims(|_| None);
        assert!(nothing.scope_for(None).is_err() && !nothing.may(Need::AnyOf(&Right::ALL)));
        let nowhere = with_claims("a/b", "admin");
        assert!(nowhere.scope_for(None).is_err() && nowhere.scope_for(Some(scope("b"))).is_err());
    }

    #[test]
    fn a_request_is_in_the_scope_of_its_path_its_query_or_its_caller() {
        let acme = of_token("acme", &[Right::Symbolicate]);
        assert_eq!(acme.scope_for(None), Ok(scope("acme")));
        let refused = |named| Err(ScopeError::NotGranted(named));
        assert_eq!(acme.scope_for(Some(Scope::Global)), refused(Scope::Global));
        assert_eq!(acme.scope_for(Some(scope("b"))), refused(scope("b")));
        let in_path = |name| acme.clone().in_scope(Some(scope(name)));
        assert_eq!(in_path("acme").scope_for(None), Ok(scope("acme")));
        assert_eq!(in_path("b").scope_for(None), refused(scope("b")));
        let both = in_path("acme").scope_for(Some(scope("b")));
        assert!(matches!(both, Err(ScopeError::Contradiction { .. })));
        let anyone = Caller::anyone();
        assert_eq!(anyone.scope_for(None), Ok(Scope::Global));
        assert_eq!(anyone.scope_for(Some(scope("b"))), Ok(scope("b")));
    }

    #[test]
    fn only_an_admin_of_every_scope_sees_what_is_about_all_of_them() {
        let may = |caller: &Caller| caller.may(Need::AdminEverywhere);
        let principal = |route| Caller::principal("arn", route);
        assert!(may(&Caller::anyone()) && may(&principal(Some("ANY /rollout"))));
        for route in [None, Some(DEFAULT_ROUTE)] {
            let principal = principal(route);
            assert!(!may(&principal) && !principal.may(Need::Admin));
            for right in [
                &[Right::Symbolicate][..],
                &[Right::Upload],
                &[Right::Download],
            ] {
                assert!(principal.may(Need::AnyOf(right)));
            }
        }
        assert!(may(&of_token("*", &[Right::Admin])));
        assert!(!may(&of_token("acme", &[Right::Admin])));
        assert!(!may(&of_token("*", &[Right::Symbolicate, Right::Upload])));
    }

    #[test]
    fn what_an_id_or_a_key_names_is_in_a_scope_of_the_caller() {
        let acme = of_token("acme", &[Right::Upload]);
        assert!(acme.may_read("acme/a") && acme.may_read("global/a"));
        assert!(!acme.may_read("b/a") && !acme.may_read("a"));
        assert!(Caller::anyone().may_read("b/a") && Caller::anyone().may_read("a"));
        assert!(!with_claims("a/b", "upload").may_read("global/a"));
        let two = with_claims("acme b", "upload");
        assert!(two.may_read("b/a") && two.named_scope(None) == Ok(None));
        assert!(two.named_scope(Some(Scope::Global)).is_err());
        assert!(acme.may_see(&scope("acme")));
        assert!(!acme.may_see(&Scope::Global) && !acme.may_see(&scope("b")));
        let anyone_in_b = Caller::anyone().in_scope(Some(scope("b")));
        assert!(anyone_in_b.may_see(&scope("b")) && !anyone_in_b.may_see(&scope("acme")));
    }
}
