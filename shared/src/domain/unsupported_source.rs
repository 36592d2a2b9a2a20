//! Sources in requests whose type this release does not know. They are not searched.

use serde::Serialize;
use serde_json::{Map, Value};

use super::source_checks::check_id;

/// The types that definitions of sources may have.
const TYPES: [&str; 5] = ["http", "s3", "gcs", "sentry", "sourcelink"];

/// The maximum number of characters that are kept of a type.
const MAX_TYPE_CHARS: usize = 64;

/// A source in a request whose type this release does not know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnsupportedSource {
    /// The id that the request gives it.
    pub id: String,
    /// Its type.
    #[serde(rename = "type")]
    pub source_type: String,
}

impl UnsupportedSource {
    /// Returns the source of a definition, if it has a valid id and an unknown type. Nothing else
    /// of the definition is kept: it may contain credentials.
    pub fn of(definition: &Map<String, Value>) -> Option<Self> {
        let id = definition.get("id")?.as_str()?;
        let source_type = definition.get("type")?.as_str()?;
        let is_unsupported = !TYPES.contains(&source_type) && check_id(id).is_ok();
        is_unsupported.then(|| Self {
            id: id.to_owned(),
            source_type: source_type.chars().take(MAX_TYPE_CHARS).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::HttpSource;

    fn of(definition: &Value) -> Option<UnsupportedSource> {
        UnsupportedSource::of(definition.as_object().unwrap())
    }

    #[test]
    fn a_source_of_an_unknown_type_keeps_its_id_and_type_and_no_credentials() {
        let azure = json!({"type": "azure", "id": "a", "container": "c", "sas_token": "0pen"});
        let kept = of(&azure).unwrap();
        let again = serde_json::to_value(&kept).unwrap();
        assert_eq!(again, json!({"type": "azure", "id": "a"}));
        assert_eq!(of(&again), Some(kept));
    }

    #[test]
    fn a_definition_without_a_valid_id_or_of_a_known_type_is_no_unsupported_source() {
        for invalid in [
            json!({"type": "azure"}),
            json!({"type": "azure", "id": "uploads"}),
            json!({"type": 5, "id": "a"}),
            json!({"id": "a"}),
        ] {
            assert_eq!(of(&invalid), None, "{invalid}");
            assert!(serde_json::from_value::<HttpSource>(invalid).is_err());
        }
        for known in TYPES {
            let definition = json!({"type": known, "id": "a"});
            assert_eq!(of(&definition), None, "{known}");
            let error = serde_json::from_value::<HttpSource>(definition).unwrap_err();
            assert!(!error.to_string().contains("unknown variant"), "{error}");
        }
    }
}
