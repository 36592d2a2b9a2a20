//! The query of `GET /explain`: one upload, by its key, or one module, by its ids; and that of
//! `GET /symcache`: one module.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::caller::{Caller, ScopeError};
use super::symbolicator::{ErrorBody, Module, RequestError, pasted_pairs, query_pairs};
use crate::domain::{CodeId, DebugId, ModuleId, ObjectId, Scope};

/// A parsed query: what to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExplainQuery {
    /// The state of an upload.
    Upload {
        /// The possible keys in the uploads bucket, each of which begins with its scope. If the
        /// query names a scope, that scope can read these keys. A plus sign in the query means a
        /// space or, if the key was pasted, a plus sign: then there are two keys.
        keys: Vec<String>,
        /// The scope that the query names.
        scope: Option<Scope>,
    },
    /// The records that a request for a module would read.
    Module {
        /// The ids and, if a symbol server needs them, names and type.
        module: ObjectId,
        /// The source to report on; all configured ones if `None`.
        source: Option<String>,
        /// The scope of the request.
        scope: Scope,
        /// Whether the query names the scope.
        names_scope: bool,
    },
}

/// A parsed query of `GET /symcache`: the module whose SymCache is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymCacheQuery {
    /// The ids and, if a symbol server needs them, names and type.
    pub module: ObjectId,
    /// The scope whose files are used.
    pub scope: Scope,
    /// Whether the query names the scope.
    pub names_scope: bool,
}

/// Why a query is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("the query of the URL is invalid")]
pub struct ExplainError {
    reason: String,
}

/// What a query may have, and what it is for, as an error says it.
struct Accepted {
    parameters: &'static [&'static str],
    wanted: &'static str,
}

const OF_EXPLAIN: Accepted = Accepted {
    parameters: ExplainQuery::PARAMETERS,
    wanted: "expected ?key=<key in the uploads bucket>, or ?debug_id=… or ?code_id=…, optionally with &source=… and &scope=…; for a symbol server also &type=…, &code_file=…, &debug_file=…",
};

const OF_SYMCACHE: Accepted = Accepted {
    parameters: SymCacheQuery::PARAMETERS,
    wanted: "expected ?debug_id=… or ?code_id=…, optionally with &scope=…; for a symbol server also &type=…, &code_file=…, &debug_file=…. The response is the best SymCache of all sources",
};

impl ExplainQuery {
    /// The parameters of `GET /explain`.
    pub const PARAMETERS: &'static [&'static str] = &[
        "key",
        "debug_id",
        "code_id",
        "scope",
        "source",
        "type",
        "code_file",
        "debug_file",
    ];

    /// Parses the part of a URL after the question mark.
    ///
    /// ```
    /// use symdepot::api::explain::ExplainQuery;
    ///
    /// assert!(ExplainQuery::parse("debug_id=502fc0a51ec13e479998684fa139dca7&scope=acme").is_ok());
    /// assert!(ExplainQuery::parse("debugid=502fc0a51ec13e479998684fa139dca7").is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// Fails on an unknown or repeated parameter, an invalid value, and a query that names nothing
    /// to explain.
    pub fn parse(query: &str) -> Result<Self, ExplainError> {
        let wanted = OF_EXPLAIN.wanted;
        let mut given = given(query, &OF_EXPLAIN)?;
        match given.remove("key") {
            Some(key) if key.is_empty() => refuse(format!("key: it is empty: {wanted}")),
            Some(key) => Self::of_upload(key, query, given),
            None => {
                let source = given.remove("source");
                let (module, scope) = module_of(given, wanted)?;
                Ok(Self::Module {
                    module,
                    source,
                    names_scope: scope.is_some(),
                    scope: scope.unwrap_or_default(),
                })
            }
        }
    }

    /// Returns the query for an upload. `given` are the parameters besides its key.
    fn of_upload(
        key: String,
        query: &str,
        mut given: BTreeMap<String, String>,
    ) -> Result<Self, ExplainError> {
        let scope: Option<Scope> = parsed("scope", given.remove("scope"))?;
        if !given.is_empty() {
            return refuse("`key` can only be combined with `scope`");
        }
        let pasted = pasted_pairs(query)?.into_iter();
        let pasted = pasted.filter(|(name, _)| name == "key");
        let pasted = pasted.map(|(_, value)| value);
        let is_readable = |key: &String| {
            scope.as_ref().is_none_or(|scope| {
                Scope::of_key(key).is_some_and(|of_key| scope.readable().contains(&of_key))
            })
        };
        let mut keys: Vec<String> = std::iter::once(key).chain(pasted).collect();
        keys.dedup();
        keys.retain(is_readable);
        if keys.is_empty() {
            refuse("the key is in a scope that requests with this `scope` do not read")
        } else {
            Ok(Self::Upload { keys, scope })
        }
    }

    /// Returns the query as this caller may send it: in a scope that it has a grant for.
    ///
    /// # Errors
    ///
    /// [`ScopeError`] if there is none, or if requests of the scope do not read the keys.
    pub fn for_caller(self, caller: &Caller) -> Result<Self, ScopeError> {
        match self {
            Self::Upload { mut keys, scope } => {
                let of_key = keys.iter().find_map(|key| Scope::of_key(key));
                match caller.named_scope(scope.clone())? {
                    Some(named) => {
                        let readable = named.readable();
                        let may = |of: Scope| readable.contains(&of);
                        keys.retain(|key| Scope::of_key(key).is_some_and(may));
                    }
                    None => keys.retain(|key| caller.may_read(key)),
                }
                if keys.is_empty() {
                    Err(ScopeError::NotGranted(of_key.unwrap_or_default()))
                } else {
                    Ok(Self::Upload { keys, scope })
                }
            }
            Self::Module {
                module,
                source,
                scope,
                names_scope,
            } => {
                let scope = caller.scope_for(names_scope.then_some(scope))?;
                Ok(Self::Module {
                    module,
                    source,
                    scope,
                    names_scope,
                })
            }
        }
    }
}

impl SymCacheQuery {
    /// The parameters of `GET /symcache`.
    pub const PARAMETERS: &'static [&'static str] = &[
        "debug_id",
        "code_id",
        "scope",
        "type",
        "code_file",
        "debug_file",
    ];

    /// Parses the part of a URL after the question mark.
    ///
    /// # Errors
    ///
    /// As [`ExplainQuery::parse`].
    pub fn parse(query: &str) -> Result<Self, ExplainError> {
        let given = given(query, &OF_SYMCACHE)?;
        let (module, scope) = module_of(given, OF_SYMCACHE.wanted)?;
        Ok(Self {
            module,
            names_scope: scope.is_some(),
            scope: scope.unwrap_or_default(),
        })
    }

    /// Returns the query as this caller may send it: in a scope that it has a grant for.
    ///
    /// # Errors
    ///
    /// [`ScopeError`] if there is none.
    pub fn for_caller(self, caller: &Caller) -> Result<Self, ScopeError> {
        let scope = caller.scope_for(self.names_scope.then_some(self.scope))?;
        Ok(Self { scope, ..self })
    }
}

/// Returns the parameters that a query gives.
fn given(query: &str, accepted: &Accepted) -> Result<BTreeMap<String, String>, ExplainError> {
    let wanted = accepted.wanted;
    let mut given = BTreeMap::new();
    for (name, value) in query_pairs(query)? {
        if !accepted.parameters.contains(&name.as_str()) {
            return refuse(format!("unknown parameter {name:?}: {wanted}"));
        }
        if given.insert(name.clone(), value).is_some() {
            return refuse(format!("{name} is given more than once"));
        }
    }
    Ok(given)
}

/// Returns the module that parameters name, and the scope.
fn module_of(
    mut given: BTreeMap<String, String>,
    wanted: &str,
) -> Result<(ObjectId, Option<Scope>), ExplainError> {
    let mut take = |name: &str| given.remove(name);
    let (debug_id, code_id) = (take("debug_id"), take("code_id"));
    if debug_id.is_none() && code_id.is_none() {
        return refuse(wanted);
    }
    let debug_id: Option<DebugId> = parsed("debug_id", debug_id)?;
    let code_id: Option<CodeId> = parsed("code_id", code_id)?;
    let scope: Option<Scope> = parsed("scope", take("scope"))?;
    if debug_id.is_some() && ModuleId::of(debug_id, None).is_none() {
        return refuse("debug_id: it is all zeros: leave it out, and send code_id");
    }
    if code_id.is_some() && ModuleId::of(None, code_id.as_ref()).is_none() {
        return refuse("code_id: it has no hexadecimal digit except zeros");
    }
    let object_type = take("type").map(|name| Module::type_named(&name));
    let module = ObjectId {
        debug_id,
        code_id,
        debug_file: take("debug_file"),
        code_file: take("code_file"),
        debug_checksum: None,
        object_type: object_type.unwrap_or_default(),
    };
    Ok((module, scope))
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
    name: &str,
    value: Option<String>,
) -> Result<Option<T>, ExplainError> {
    let parse = |value: String| {
        let parsed = value.parse();
        parsed.or_else(|error| refuse(format!("{name}: {value:?}: {error}")))
    };
    value.map(parse).transpose()
}

fn refuse<T>(reason: impl Into<String>) -> Result<T, ExplainError> {
    Err(ExplainError {
        reason: reason.into(),
    })
}

impl ExplainError {
    /// Returns the HTTP status of the response.
    pub fn status(&self) -> u16 {
        400
    }

    /// Returns the body of the response.
    pub fn body(&self) -> ErrorBody {
        ErrorBody {
            detail: self.to_string(),
            causes: vec![self.reason.clone()],
        }
    }
}

impl From<RequestError> for ExplainError {
    fn from(error: RequestError) -> Self {
        Self {
            reason: error.body().causes.join(": "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::caller::Right;
    use crate::domain::{Grants, ObjectType};

    const ID: &str = "502fc0a5-1ec1-3e47-9998-684fa139dca7";

    #[test]
    fn an_upload_is_named_by_its_key_and_a_module_by_its_ids() {
        let parse = |query: &str| ExplainQuery::parse(query).unwrap();
        let keys = vec!["global/a b+c".to_owned(), "global/a+b+c".to_owned()];
        for query in ["key=global/a+b%2Bc", "key=global/a+b%2Bc&scope=acme"] {
            let ExplainQuery::Upload { keys: found, scope } = parse(query) else {
                panic!("{query}");
            };
            assert_eq!(
                (found, scope.is_some()),
                (keys.clone(), query.contains("scope"))
            );
        }
        let keys = vec!["global/libc++.debug".to_owned()];
        let encoded = "key=global/libc%2B%2B.debug";
        let scope = None;
        assert_eq!(parse(encoded), ExplainQuery::Upload { keys, scope });
        let module = |query: &str| match parse(query) {
            ExplainQuery::Module {
                module,
                source,
                scope,
                ..
            } => (module, source, scope.to_string()),
            other => panic!("{other:?}"),
        };
        let (debug, source, scope) = module(&format!("debug_id={ID}"));
        assert_eq!(debug.debug_id, Some(ID.parse().unwrap()));
        assert_eq!((source, scope.as_str()), (None, "global"));
        let (code, source, scope) = module("code_id=F1C3BCC0&scope=acme&source=uploads&type=elf");
        assert_eq!(code.code_id, Some(CodeId::new("f1c3bcc0".into())));
        assert_eq!(code.object_type, ObjectType::Elf);
        assert_eq!(
            (source.as_deref(), scope.as_str()),
            (Some("uploads"), "acme")
        );
    }

    #[test]
    fn a_query_of_explain_is_in_a_scope_of_its_caller() {
        let grants = Grants {
            scopes: ["acme".to_owned().into()].into(),
            rights: [Right::Upload].into(),
        };
        let acme = Caller::with_token("00", grants);
        let refused = |query: &str| {
            let query = ExplainQuery::parse(query).unwrap();
            query.for_caller(&acme).is_err()
        };
        let module = format!("debug_id={ID}");
        for query in [
            "key=acme/a",
            "key=global/a",
            "key=acme/a&scope=acme",
            &module,
            &format!("{module}&scope=acme"),
        ] {
            assert!(!refused(query), "{query}");
        }
        for query in [
            "key=b/a",
            "key=a",
            "key=b/a&scope=b",
            "key=global/a&scope=global",
            &format!("{module}&scope=b"),
            &format!("{module}&scope=global"),
        ] {
            assert!(refused(query), "{query}");
        }
        for query in ["key=b/a", "key=a", &module] {
            let query = ExplainQuery::parse(query).unwrap();
            assert_eq!(query.clone().for_caller(&Caller::anyone()), Ok(query));
        }
    }

    #[test]
    fn an_invalid_query_of_explain_is_refused_with_the_reason() {
        for (query, reason) in [
            ("", "expected ?key="),
            ("debugid=1", "unknown parameter \"debugid\""),
            ("timeout=1", "unknown parameter \"timeout\""),
            ("debug_id=soon", "debug_id: \"soon\""),
            ("code_id=0000", "code_id: it has no hexadecimal digit"),
            (
                "code_id=xyz&debug_id=502fc0a51ec13e479998684fa139dca7",
                "code_id: it has no hexadecimal digit",
            ),
            (
                "code_id=f1c3bcc0&debug_id=00000000-0000-0000-0000-000000000000",
                "debug_id: it is all zeros",
            ),
            ("source=uploads", "expected ?key="),
            ("debug_id=1&debug_id=2", "debug_id is given more than once"),
            ("code_id=f1c3bcc0&scope=a%2Fb", "scope: \"a/b\""),
            ("key=a&type=elf", "can only be combined with `scope`"),
            ("key=acme/a&scope=other", "in a scope that"),
            ("key=acme/a&scope=global", "in a scope that"),
            ("key=a&scope=acme", "in a scope that"),
            ("key=%ff", "not UTF-8"),
            ("key=", "key: it is empty: expected ?key="),
            ("key", "key: it is empty"),
        ] {
            let error = ExplainQuery::parse(query).unwrap_err();
            let causes = error.body().causes;
            assert!(causes[0].contains(reason), "{query}: {causes:?}");
            assert_eq!(error.status(), 400);
        }
    }

    #[test]
    fn a_query_for_a_symcache_names_a_module_and_no_key_or_source() {
        let found = SymCacheQuery::parse("code_id=F1C3BCC0&scope=acme").unwrap();
        assert_eq!(found.module.code_id, Some(CodeId::new("f1c3bcc0".into())));
        assert_eq!((found.scope.as_str(), found.names_scope), ("acme", true));
        for (query, reason) in [
            ("", "expected ?debug_id=… or ?code_id=…"),
            ("scope=acme", "expected ?debug_id=… or ?code_id=…"),
            (
                "key=global/a",
                "unknown parameter \"key\": expected ?debug_id=",
            ),
            (
                "code_id=f1c3bcc0&source=uploads",
                "unknown parameter \"source\"",
            ),
        ] {
            let causes = SymCacheQuery::parse(query).unwrap_err().body().causes;
            assert!(causes[0].contains(reason), "{query}: {causes:?}");
            assert!(!causes[0].contains("?key="), "{query}: {causes:?}");
        }
    }
}
