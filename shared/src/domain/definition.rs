//! The JSON form of a source: in the setting `SOURCES`, in requests, and in stored definitions.
//!
//! In a request, unknown fields are ignored at every level, as Symbolicator ignores them: its
//! clients send fields of their own (`name`, `platforms`). In the operator's list they are errors
//! ([`ConfiguredSource`]), so that a misspelled filter is noticed.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use url::Url;

use super::layout::SourceLayout;
use super::server::{Filters, HttpSource, InvalidSource, WithoutEffect, shapes_the_connection};

/// The fields that a definition has, and this version of the code does not know.
type Unknown = BTreeMap<String, IgnoredAny>;

/// The JSON form of a source.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Definition {
    Http(HttpDefinition),
}

#[derive(Serialize, Deserialize)]
struct HttpDefinition {
    id: String,
    url: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    layout: Extended<SourceLayout>,
    #[serde(default)]
    filters: Extended<Filters>,
    #[serde(default)]
    is_public: bool,
    #[serde(default)]
    is_private: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    accept_invalid_certs: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    has_index: bool,
    #[serde(flatten, skip_serializing)]
    unknown: Unknown,
}

/// An object, and the fields in it that are unknown.
#[derive(Default, Serialize, Deserialize)]
struct Extended<T> {
    #[serde(flatten)]
    known: T,
    #[serde(flatten, skip_serializing)]
    unknown: Unknown,
}

impl<T> From<T> for Extended<T> {
    fn from(known: T) -> Self {
        Self {
            known,
            unknown: Unknown::new(),
        }
    }
}

/// A source in the operator's list. Unknown fields are errors.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Definition")]
pub struct ConfiguredSource(pub HttpSource);

impl TryFrom<Definition> for ConfiguredSource {
    type Error = InvalidSource;

    fn try_from(definition: Definition) -> Result<Self, InvalidSource> {
        let Definition::Http(http) = &definition;
        let filters = http.filters.unknown.keys();
        let layout = http.layout.unknown.keys();
        let mut unknown = http
            .unknown
            .keys()
            .cloned()
            .chain(filters.map(|field| format!("filters.{field}")))
            .chain(layout.map(|field| format!("layout.{field}")));
        match unknown.next() {
            Some(field) => Err(InvalidSource::UnknownField {
                id: http.id.chars().take(HttpSource::MAX_ID_BYTES).collect(),
                field,
            }),
            None => HttpSource::try_from(definition).map(Self),
        }
    }
}

impl<'de> Deserialize<'de> for HttpSource {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let definition = Definition::deserialize(deserializer)?;
        Self::try_from(definition).map_err(serde::de::Error::custom)
    }
}

impl Serialize for HttpSource {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Definition::from(self.clone()).serialize(serializer)
    }
}

impl TryFrom<Definition> for HttpSource {
    type Error = InvalidSource;

    fn try_from(Definition::Http(definition): Definition) -> Result<Self, InvalidSource> {
        let HttpDefinition {
            id,
            url,
            headers,
            layout,
            filters,
            is_public,
            is_private,
            accept_invalid_certs,
            has_index,
            unknown: _,
        } = definition;
        check_id(&id)?;
        let url = base_url(&id, &url)?;
        check_headers(&id, &headers)?;
        let query = url.query().filter(|query| !query.is_empty());
        let query = query.map(str::to_owned);
        Ok(Self {
            id,
            url: without_query(url),
            query,
            headers,
            layout: layout.known,
            filters: filters.known,
            is_public,
            is_private,
            without_effect: WithoutEffect {
                accept_invalid_certs,
                has_index,
            },
        })
    }
}

fn check_id(id: &str) -> Result<(), InvalidSource> {
    let is_sound = !id.is_empty()
        && id.len() <= HttpSource::MAX_ID_BYTES
        && !id.chars().any(char::is_control)
        && id != "uploads";
    match is_sound {
        true => Ok(()),
        false => {
            let shown = id.chars().take(HttpSource::MAX_ID_BYTES).collect();
            Err(InvalidSource::Id(shown))
        }
    }
}

/// Parses the address of a server.
fn base_url(id: &str, text: &str) -> Result<Url, InvalidSource> {
    let invalid = |problem: &str| InvalidSource::Address {
        id: id.to_owned(),
        problem: problem.to_owned(),
    };
    let url = Url::parse(text).map_err(|error| invalid(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(invalid(
            "it must begin with http:// or https:// and name a host",
        ));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("it contains credentials; send them in `headers`"));
    }
    Ok(url)
}

fn without_query(mut url: Url) -> Url {
    url.set_query(None);
    url.set_fragment(None);
    url
}

fn check_headers(id: &str, headers: &BTreeMap<String, String>) -> Result<(), InvalidSource> {
    let is_unsound = |(name, value): &(&String, &String)| {
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        let is_sound = !name.is_empty()
            && name.chars().all(token)
            && !value.contains(|c: char| c.is_control());
        !is_sound
    };
    let (id, mut names) = (id.to_owned(), headers.keys());
    if let Some((name, _)) = headers.iter().find(is_unsound) {
        let name = name.clone();
        return Err(InvalidSource::Header { name, id });
    }
    match names.find(|name| shapes_the_connection(name)) {
        Some(name) => Err(InvalidSource::ConnectionHeader {
            name: name.clone(),
            id,
        }),
        None => Ok(()),
    }
}

impl From<HttpSource> for Definition {
    fn from(source: HttpSource) -> Self {
        let url = source.with_query(&source.url).into();
        let HttpSource {
            id,
            url: _,
            query: _,
            headers,
            layout,
            filters,
            is_public,
            is_private,
            without_effect,
        } = source;
        Self::Http(HttpDefinition {
            id,
            url,
            headers,
            layout: layout.into(),
            filters: filters.into(),
            is_public,
            is_private,
            accept_invalid_certs: without_effect.accept_invalid_certs,
            has_index: without_effect.has_index,
            unknown: Unknown::new(),
        })
    }
}
