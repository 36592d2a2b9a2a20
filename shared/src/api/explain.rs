//! The query of `GET /explain`: one upload, by its key, or one module, by its ids.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::symbolicator::{ErrorBody, Module, RequestError, pasted_pairs, query_pairs};
use crate::domain::{CodeId, DebugId, ModuleId, ObjectId, Scope};

/// What is to be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExplainQuery {
    /// What became of an upload.
    Upload {
        /// Its key in the uploads bucket, which begins with its scope. Where the query names a scope, too, it
        /// is one that reads the key's. A plus sign is a space, or was pasted: then the key has a second form.
        keys: Vec<String>,
    },
    /// What a request for a module would read.
    Module {
        /// Its ids, and where a symbol server wants them, its names and type.
        module: ObjectId,
        /// The one source to tell of; all that are configured, where it is not named.
        source: Option<String>,
        /// Who asks.
        scope: Scope,
    },
}

/// Why a query cannot be answered: it names what there is not, or too little.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("the query of the URL does not name what to explain")]
pub struct ExplainError {
    reason: String,
}

const WANTED: &str = "ask for ?key=<key in the uploads bucket>, or ?debug_id=… or ?code_id=…, with &source=… and &scope=… if need be; for a symbol server also &type=…, &code_file=…, &debug_file=…";

impl ExplainQuery {
    /// Reads the part of a URL after the question mark.
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
    /// A name that nobody knows, or that is there twice; a value that is none; a query that names nothing.
    pub fn parse(query: &str) -> Result<Self, ExplainError> {
        let (mut key, mut debug_id, mut code_id) = (None, None, None);
        let (mut source, mut scope, mut object_type) = (None, None, None);
        let (mut code_file, mut debug_file) = (None, None);
        let mut pasted = None;
        for (name, value) in query_pairs(query)? {
            let slot = match name.as_str() {
                "key" => &mut key,
                "debug_id" => &mut debug_id,
                "code_id" => &mut code_id,
                "source" => &mut source,
                "scope" => &mut scope,
                "type" => &mut object_type,
                "code_file" => &mut code_file,
                "debug_file" => &mut debug_file,
                _ => return refuse(format!("{name:?} is no name of this query: {WANTED}")),
            };
            if slot.replace(value).is_some() {
                return refuse(format!("{name} is there twice"));
            }
        }
        for (name, value) in pasted_pairs(query)? {
            if name == "key" {
                pasted = Some(value);
            }
        }
        if let Some(key) = key {
            let others = [
                debug_id,
                code_id,
                source,
                object_type,
                code_file,
                debug_file,
            ];
            if others.iter().any(Option::is_some) {
                return refuse("a key goes with nothing but its scope");
            }
            let asked: Option<Scope> = parsed("scope", scope)?;
            let is_readable = |key: &String| {
                asked.as_ref().is_none_or(|asked| {
                    Scope::of_key(key).is_some_and(|scope| asked.readable().contains(&scope))
                })
            };
            let mut keys: Vec<String> = std::iter::once(key).chain(pasted).collect();
            keys.dedup();
            keys.retain(is_readable);
            return match keys.is_empty() {
                true => refuse("the key lies in another scope than the one that is asked for"),
                false => Ok(Self::Upload { keys }),
            };
        }
        let debug_id: Option<DebugId> = parsed("debug_id", debug_id)?;
        let code_id: Option<CodeId> = parsed("code_id", code_id)?;
        let scope: Option<Scope> = parsed("scope", scope)?;
        if ModuleId::of(debug_id, code_id.as_ref()).is_none() {
            return refuse(WANTED);
        }
        let object_type = object_type.map(|name| Module::type_named(&name));
        Ok(Self::Module {
            module: ObjectId {
                debug_id,
                code_id,
                debug_file,
                code_file,
                object_type: object_type.unwrap_or_default(),
            },
            source,
            scope: scope.unwrap_or_default(),
        })
    }
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
    /// Returns the HTTP status that it is answered with.
    pub fn status(&self) -> u16 {
        400
    }

    /// Returns the body that it is answered with.
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
    use crate::domain::ObjectType;

    const ID: &str = "502fc0a5-1ec1-3e47-9998-684fa139dca7";

    #[test]
    fn an_upload_is_named_by_its_key_and_a_module_by_its_ids() {
        let parse = |query: &str| ExplainQuery::parse(query).unwrap();
        let keys = vec!["global/a b+c".to_owned(), "global/a+b+c".to_owned()];
        for query in ["key=global/a+b%2Bc", "key=global/a+b%2Bc&scope=acme"] {
            assert_eq!(parse(query), ExplainQuery::Upload { keys: keys.clone() });
        }
        let keys = vec!["global/libc++.debug".to_owned()];
        let encoded = "key=global/libc%2B%2B.debug";
        assert_eq!(parse(encoded), ExplainQuery::Upload { keys });
        let module = |query: &str| match parse(query) {
            ExplainQuery::Module {
                module,
                source,
                scope,
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
    fn a_query_that_explains_nothing_is_refused_with_the_reason() {
        for (query, reason) in [
            ("", "ask for ?key="),
            ("debugid=1", "\"debugid\" is no name"),
            ("timeout=1", "\"timeout\" is no name"),
            ("debug_id=soon", "debug_id: \"soon\""),
            ("code_id=0000", "ask for ?key="),
            ("debug_id=1&debug_id=2", "debug_id is there twice"),
            ("code_id=f1c3bcc0&scope=a%2Fb", "scope: \"a/b\""),
            ("key=a&type=elf", "a key goes with nothing but its scope"),
            ("key=acme/a&scope=other", "in another scope"),
            ("key=acme/a&scope=global", "in another scope"),
            ("key=a&scope=acme", "in another scope"),
            ("key=%ff", "not UTF-8"),
        ] {
            let error = ExplainQuery::parse(query).unwrap_err();
            let causes = error.body().causes;
            assert!(causes[0].contains(reason), "{query}: {causes:?}");
            assert_eq!(error.status(), 400);
        }
    }
}
