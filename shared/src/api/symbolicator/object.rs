//! Objects in requests. Serde also accepts a list of a struct's values in place of an object, which
//! no client means.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Reads an object.
pub(in crate::api) fn object<'de, D, T>(json: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(JsonObject::deserialize(json)?.0)
}

/// Reads an object or `null`.
pub(in crate::api) fn optional_object<'de, D, T>(json: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let object = Option::<JsonObject<T>>::deserialize(json)?;
    Ok(object.map(|object| object.0))
}

/// Reads a list of objects.
pub(in crate::api) fn objects<'de, D, T>(json: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let objects = Vec::<JsonObject<T>>::deserialize(json)?;
    Ok(objects.into_iter().map(|object| object.0).collect())
}

/// A value whose JSON is an object.
pub(in crate::api) struct JsonObject<T>(pub(in crate::api) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonObject<T> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = JsonObject<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<JsonObject<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(JsonObject)
    }
}

#[cfg(test)]
mod tests {
    use crate::api::crash::any::AnyRequest;
    use crate::api::symbolicator::parse_request;
    use crate::api::uploads::parse_uploads;

    #[test]
    fn a_list_of_the_values_of_an_object_is_refused_at_every_level() {
        for body in [
            "[]",
            r#"{"options": []}"#,
            r#"{"scraping": []}"#,
            r#"{"modules": [["elf"]]}"#,
            r#"{"stacktraces": [[null, null, null, {}, []]]}"#,
            r#"{"stacktraces": [{"frames": [[null, "abs", 1]]}]}"#,
        ] {
            let error = parse_request(body.as_bytes()).unwrap_err();
            assert_eq!(error.status(), 422, "{body}: {error:?}");
        }
        for body in [r#"["global", []]"#, r#"{"files": [["a"]]}"#] {
            let error = parse_uploads(body.as_bytes()).unwrap_err();
            assert_eq!(error.status(), 422, "{body}: {error:?}");
        }
        let file = |more: &str| {
            format!(r#"{{"symbolicate": {{"type": "minidump", "storage_url": "u"{more}}}"#)
        };
        for body in [
            file("}"),
            file(r#"}, "options": []"#),
            file(r#"}, "scraping": []"#),
            file(r#", "rewrite_first_module": [["a", "b"]]}"#),
        ] {
            let parsed = AnyRequest::parse(body.as_bytes());
            let status = parsed.map_or_else(|error| error.status(), |_| 200);
            let expected = if body == file("}") { 200 } else { 422 };
            assert_eq!(status, expected, "{body}");
        }
    }
}
