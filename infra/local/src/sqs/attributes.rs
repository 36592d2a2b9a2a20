//! Message attributes in requests and responses, and the digests by which clients verify what they
//! sent and received.
//!
//! Source: Amazon SQS Developer Guide, "Calculating the MD5 message digest for message attributes".

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest, Md5};
use serde_json::{Map, Value, json};

use super::error::SqsError;

/// Values, and data types other than `String`.
pub(super) type Attributes = (BTreeMap<String, String>, BTreeMap<String, String>);

const TEXT: &str = "String";

/// Reads `MessageAttributes` of a request.
pub(super) fn read(value: &Value) -> Result<Attributes, SqsError> {
    let mut attributes = Attributes::default();
    let Some(map) = value.as_object() else {
        return Ok(attributes);
    };
    if map.len() > 10 {
        return Err(SqsError::invalid(format!(
            "a message may have at most 10 attributes; this one has {}",
            map.len()
        )));
    }
    for (name, attribute) in map {
        let kind = attribute["DataType"].as_str().unwrap_or_default();
        let value = match kind.split('.').next() {
            Some("String" | "Number") => attribute["StringValue"].as_str(),
            Some("Binary") => attribute["BinaryValue"]
                .as_str()
                .filter(|value| STANDARD.decode(value).is_ok()),
            _ => {
                return Err(SqsError::invalid(format!(
                    "the message attribute {name:?} has the data type {kind:?}; expected String, Number or Binary"
                )));
            }
        };
        let value = value.filter(|value| !value.is_empty()).ok_or_else(|| {
            SqsError::invalid(format!(
                "the message attribute {name:?} has no value of its data type {kind}"
            ))
        })?;
        attributes.0.insert(name.clone(), value.to_owned());
        if kind != TEXT {
            attributes.1.insert(name.clone(), kind.to_owned());
        }
    }
    Ok(attributes)
}

/// Writes `MessageAttributes` of a response.
pub(super) fn write((values, types): &Attributes) -> Value {
    let entries = values.iter().map(|(name, value)| {
        let kind = types.get(name).map_or(TEXT, String::as_str);
        let field = if kind.starts_with("Binary") {
            "BinaryValue"
        } else {
            "StringValue"
        };
        (name.clone(), json!({ "DataType": kind, field: value }))
    });
    Value::Object(entries.collect::<Map<_, _>>())
}

/// Returns the attributes that `MessageAttributeNames` selects: names, `prefix.*`, `All` or `.*`.
pub(super) fn select((values, types): Attributes, wanted: &[&str]) -> Attributes {
    let is_wanted = |name: &str| {
        wanted.iter().any(|pattern| {
            matches!(*pattern, "All" | ".*")
                || *pattern == name
                || pattern.strip_suffix(".*").is_some_and(|prefix| {
                    name.strip_prefix(prefix)
                        .is_some_and(|rest| rest.starts_with('.'))
                })
        })
    };
    (
        values
            .into_iter()
            .filter(|(name, _)| is_wanted(name))
            .collect(),
        types
            .into_iter()
            .filter(|(name, _)| is_wanted(name))
            .collect(),
    )
}

/// Returns the digest of a body.
pub(super) fn digest(body: &str) -> String {
    hex::encode(Md5::digest(body))
}

/// Returns the digest of attributes; `None` if there are none.
pub(super) fn digest_of((values, types): &Attributes) -> Option<String> {
    if values.is_empty() {
        return None;
    }
    let mut md5 = Md5::new();
    let field = |md5: &mut Md5, bytes: &[u8]| {
        md5.update(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
        md5.update(bytes);
    };
    for (name, value) in values {
        let kind = types.get(name).map_or(TEXT, String::as_str);
        field(&mut md5, name.as_bytes());
        field(&mut md5, kind.as_bytes());
        if kind.starts_with("Binary") {
            md5.update([2]);
            field(&mut md5, &STANDARD.decode(value).unwrap_or_default());
        } else {
            md5.update([1]);
            field(&mut md5, value.as_bytes());
        }
    }
    Some(hex::encode(md5.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_a_body_is_its_md5() {
        // printf 'hello' | md5sum
        assert_eq!(digest("hello"), "5d41402abc4b2a76b9719d911017c592");
    }

    #[test]
    fn attributes_are_returned_as_they_were_sent() {
        let sent = json!({
            "scope": { "DataType": "String", "StringValue": "global" },
            "size": { "DataType": "Number", "StringValue": "12" },
            "blob": { "DataType": "Binary.png", "BinaryValue": "AAEC" },
        });
        let read = read(&sent).unwrap();
        assert_eq!(write(&read), sent);
        // Computed by a Python script that implements the guide's description.
        assert_eq!(
            digest_of(&read).as_deref(),
            Some("4a6569b96f1d179909dee98d976aac99")
        );
        let selected = select(read, &["si.*", "scope"]);
        assert_eq!(selected.0.keys().collect::<Vec<_>>(), ["scope"]);
    }

    #[test]
    fn an_attribute_without_a_value_is_refused() {
        for attribute in [
            json!({ "DataType": "String" }),
            json!({ "DataType": "Binary", "StringValue": "x" }),
            json!({ "DataType": "Date", "StringValue": "x" }),
        ] {
            assert!(read(&json!({ "name": attribute })).is_err(), "{attribute}");
        }
    }
}
