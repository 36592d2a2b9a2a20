//! The body of `POST /symbolicate-any`: a crash file in object storage, of any kind.

use serde::Deserialize;

use super::form::CrashFields;
use super::rewrite::RewriteRules;
use crate::api::symbolicator::{
    Options, RequestError, Scraping, Sources, object, optional_object, parse_body,
};

/// A crash file to symbolicate.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", schemars(rename = "SymbolicateAnyRequest"))]
pub struct AnyRequest {
    #[serde(default)]
    platform: Option<String>,
    #[serde(default)]
    sources: Sources,
    #[serde(default, deserialize_with = "optional_object")]
    options: Option<Options>,
    #[serde(default, deserialize_with = "optional_object")]
    scraping: Option<Scraping>,
    #[serde(deserialize_with = "object")]
    symbolicate: AnyFile,
}

/// The file, and its kind.
// The kinds have the same fields. An `enum` with a tag would be parsed from a copy, and its errors
// would name the whole object instead of a field.
#[derive(Clone, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", schemars(rename = "StoredCrashFile"))]
struct AnyFile {
    /// Its kind.
    #[serde(rename = "type")]
    kind: CrashKind,
    /// Its address.
    #[cfg_attr(
        feature = "openapi",
        schemars(schema_with = "crate::api::schema::storage_url")
    )]
    storage_url: String,
    /// The bearer token for its host.
    #[serde(default)]
    storage_token: Option<String>,
    /// Names under which the first module is looked up.
    #[serde(default)]
    rewrite_first_module: Option<RewriteRules>,
}

/// Addresses and tokens may be secret.
impl std::fmt::Debug for AnyFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnyFile").finish_non_exhaustive()
    }
}

/// How a request refers to a file in object storage.
#[derive(Clone)]
pub struct FileReference {
    /// Its address.
    pub storage_url: String,
    /// The bearer token for its host.
    pub storage_token: Option<String>,
}

/// Addresses and tokens may be secret.
impl std::fmt::Debug for FileReference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileReference").finish_non_exhaustive()
    }
}

/// The kinds of crash files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum CrashKind {
    /// A minidump.
    Minidump,
    /// A crash report of Apple's systems, in text or JSON.
    #[serde(rename = "applecrashreport")]
    AppleReport,
}

impl AnyRequest {
    /// Parses a body.
    ///
    /// # Errors
    ///
    /// [`RequestError::Schema`] if it is not such JSON, and the errors of
    /// [`CrashFields::checked`].
    pub fn parse(body: &[u8]) -> Result<(CrashKind, FileReference, CrashFields), RequestError> {
        let request: Self = parse_body(body)?;
        let AnyFile {
            kind,
            storage_url,
            storage_token,
            rewrite_first_module: rules,
        } = request.symbolicate;
        let file = FileReference {
            storage_url,
            storage_token,
        };
        let fields = CrashFields {
            platform: request.platform,
            sources: request.sources,
            options: request.options.unwrap_or_default(),
            scraping: request.scraping.unwrap_or_default(),
            rewrite_first_module: rules.unwrap_or_default(),
            ..CrashFields::default()
        };
        Ok((kind, file, fields.checked()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(body: &str) -> u16 {
        AnyRequest::parse(body.as_bytes()).unwrap_err().status()
    }

    #[test]
    fn a_body_has_the_kind_the_place_and_the_options_of_a_file() {
        let body = br#"{
            "platform": "native", "sources": [], "scraping": {}, "other": 1,
            "options": {"dif_candidates": true},
            "symbolicate": {
                "type": "minidump", "storage_url": "https://x/", "storage_token": "t",
                "rewrite_first_module": [{"from": "a", "to": "b"}], "other": 1
            }
        }"#;
        let (kind, file, fields) = AnyRequest::parse(body).unwrap();
        assert_eq!(kind, CrashKind::Minidump);
        assert_eq!(
            (&*file.storage_url, file.storage_token.as_deref()),
            ("https://x/", Some("t"))
        );
        assert!(fields.options.dif_candidates);
        assert!(matches!(fields.sources, Sources::Listed(_)), "{fields:?}");
        assert_eq!(fields.rewrite_first_module.0.len(), 1);

        let body = br#"{"symbolicate": {"type": "applecrashreport", "storage_url": "u"}}"#;
        let (kind, file, fields) = AnyRequest::parse(body).unwrap();
        assert_eq!(kind, CrashKind::AppleReport);
        assert_eq!((file.storage_token, fields), (None, CrashFields::default()));
    }

    #[test]
    fn an_error_names_the_field_and_no_type_of_the_program() {
        for (file, expected) in [
            (
                "5",
                "symbolicate: invalid type: integer `5`, expected an object",
            ),
            (
                "null",
                "symbolicate: invalid type: null, expected an object",
            ),
            (
                r#"["minidump", "u"]"#,
                "symbolicate: invalid type: sequence, expected an object",
            ),
            (
                r#"{"storage_url": "u"}"#,
                "symbolicate: missing field `type`",
            ),
            (
                r#"{"type": "minidump"}"#,
                "symbolicate: missing field `storage_url`",
            ),
            (
                r#"{"type": "minidump", "storage_url": 5}"#,
                "symbolicate.storage_url: invalid type: integer `5`, expected a string",
            ),
            (
                r#"{"storage_url": "u", "type": "javascript"}"#,
                "symbolicate.type: unknown variant `javascript`, expected `minidump` or `applecrashreport`",
            ),
        ] {
            let body = format!(r#"{{"symbolicate": {file}}}"#);
            let error = AnyRequest::parse(body.as_bytes()).unwrap_err();
            assert_eq!(error.status(), 422, "{body}");
            let causes = error.body().causes;
            assert!(causes[0].starts_with(expected), "{body}: {causes:?}");
        }
    }

    #[test]
    fn another_body_is_refused() {
        assert_eq!(status("{"), 400);
        assert_eq!(
            status(r#"{"symbolicate": {"type": "minidump", "storage_url": "u"}} 1"#),
            400
        );
        for body in [
            "{}",
            "[]",
            r#"{"symbolicate": {"type": "javascript", "storage_url": "u"}}"#,
            r#"{"symbolicate": {"type": "minidump"}}"#,
            r#"{"symbolicate": {"type": "minidump", "storage_url": 7}}"#,
        ] {
            assert_eq!(status(body), 422, "{body}");
        }
        let rules = r#"{"symbolicate": {"type": "minidump", "storage_url": "u", "rewrite_first_module": [{"from": "(", "to": ""}]}}"#;
        assert_eq!(status(rules), 400);
    }
}
