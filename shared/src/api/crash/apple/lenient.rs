//! Reads JSON of which single values may have an unexpected form, so that these cost no others.
//!
//! Text is checked as JSON before. A value of another form is left out; a list that exceeds its
//! limit is an error.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Reads a number, a text, or whether something holds. Returns the default for another value.
pub(super) fn value<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    let raw = <&RawValue>::deserialize(deserializer)?;
    Ok(serde_json::from_str(raw.get()).unwrap_or_default())
}

/// Reads an object. Returns the default for another value.
pub(super) fn object<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    let object = LenientObject::deserialize(deserializer)?;
    Ok(object.0.unwrap_or_default())
}

/// An object; `None` for another value. The fields of a `T` are read with the functions above.
pub(super) struct LenientObject<T>(pub(super) Option<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for LenientObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?.get();
        let object = raw.starts_with('{').then(|| serde_json::from_str(raw));
        Ok(Self(object.transpose().map_err(de::Error::custom)?))
    }
}

/// A list of at most `N` elements. Another value is the empty list.
pub(super) struct Bounded<T, const N: usize>(pub(super) Vec<T>);

impl<T, const N: usize> Default for Bounded<T, N> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for Bounded<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?.get();
        if !raw.starts_with('[') {
            return Ok(Self::default());
        }
        let elements = Elements::<T, N>(PhantomData);
        let list = serde_json::Deserializer::from_str(raw).deserialize_seq(elements);
        Ok(Self(list.map_err(de::Error::custom)?))
    }
}

/// Reads the elements of a list, and ends at its limit: a list of few bytes per element does not
/// take a multiple of its size in memory.
struct Elements<T, const N: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for Elements<T, N> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {N} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = from.next_element()? {
            if elements.len() == N {
                return Err(de::Error::invalid_length(N + 1, &self));
            }
            elements.push(element);
        }
        Ok(elements)
    }
}

/// The maximum number of texts in a list.
const TEXTS: usize = 1_024;

/// One text, or a list of texts. What is not a text is left out.
#[derive(Default)]
pub(super) struct OneOrManyTexts(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for OneOrManyTexts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?.get();
        if let Ok(text) = serde_json::from_str(raw) {
            return Ok(Self(vec![text]));
        }
        let list = serde_json::from_str::<Bounded<Text, TEXTS>>(raw);
        let list = list.map_err(de::Error::custom)?.0.into_iter();
        Ok(Self(list.filter_map(|text| text.0).collect()))
    }
}

/// A text; `None` for another value.
struct Text(Option<String>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        value(deserializer).map(Self)
    }
}
