//! JSON values whose memory is bounded while they are parsed: those of a hostile text take many
//! times its size.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// What a value takes in a list or in an object, besides its text.
const VALUE_BYTES: usize = 64;

/// Parses a value that takes at most as much memory as is left, in bytes.
pub(super) struct BoundedValue<'b> {
    pub(super) left: &'b mut usize,
}

impl BoundedValue<'_> {
    /// Returns the parser of a part of this value.
    fn part(&mut self) -> BoundedValue<'_> {
        BoundedValue { left: self.left }
    }

    fn take<E: Error>(&mut self, text: &str) -> Result<(), E> {
        let left = self.left.checked_sub(VALUE_BYTES + text.len());
        *self.left = left.ok_or_else(|| E::custom("the value is too large"))?;
        Ok(())
    }

    /// Parses an object.
    pub(super) fn object<'de, A: MapAccess<'de>>(
        mut self,
        mut fields: A,
    ) -> Result<Map<String, Value>, A::Error> {
        let mut object = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            self.take(&name)?;
            let value = fields.next_value_seed(self.part())?;
            object.insert(name, value);
        }
        Ok(object)
    }
}

impl<'de> DeserializeSeed<'de> for BoundedValue<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BoundedValue<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E: Error>(mut self, value: bool) -> Result<Value, E> {
        self.take("")?;
        Ok(value.into())
    }

    fn visit_i64<E: Error>(mut self, value: i64) -> Result<Value, E> {
        self.take("")?;
        Ok(value.into())
    }

    fn visit_u64<E: Error>(mut self, value: u64) -> Result<Value, E> {
        self.take("")?;
        Ok(value.into())
    }

    fn visit_f64<E: Error>(mut self, value: f64) -> Result<Value, E> {
        self.take("")?;
        Ok(value.into())
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<Value, E> {
        self.take(text)?;
        Ok(text.into())
    }

    fn visit_unit<E: Error>(mut self) -> Result<Value, E> {
        self.take("")?;
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<Value, A::Error> {
        self.take("")?;
        let mut list = Vec::new();
        while let Some(value) = elements.next_element_seed(self.part())? {
            list.push(value);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, fields: A) -> Result<Value, A::Error> {
        self.take("")?;
        self.object(fields).map(Value::Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(json: &str, mut left: usize) -> Result<Value, serde_json::Error> {
        BoundedValue { left: &mut left }.deserialize(&mut serde_json::Deserializer::from_str(json))
    }

    #[test]
    fn a_value_within_the_bound_is_that_of_its_text() {
        let json = r#"{"a":[1,-2,3.5,true,null,"text"],"b":{"c":{}}}"#;
        let value: Value = serde_json::from_str(json).unwrap();
        assert_eq!(parsed(json, 1 << 10).unwrap(), value);
    }

    #[test]
    fn a_value_of_many_parts_or_of_a_long_text_is_refused_while_it_is_parsed() {
        let many = format!("[{}0]", "0,".repeat(20));
        let long = format!("{:?}", "x".repeat(1 << 10));
        let nested = r#"{"":"#.repeat(20) + "0" + &"}".repeat(20);
        for json in [many, long, nested] {
            let error = parsed(&json, 1 << 10).unwrap_err().to_string();
            assert!(error.contains("too large"), "{error}");
        }
    }
}
