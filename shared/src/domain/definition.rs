//! The JSON form of a source: in the setting `SOURCES`, in requests, and in stored definitions.
//!
//! In a request, unknown fields and file types are ignored, as Symbolicator ignores fields: its
//! clients send fields of their own (`name`, `platforms`). In the operator's list they are errors
//! ([`ConfiguredSource`]), so that a misspelled filter is noticed.

use std::collections::BTreeMap;
use std::fmt;

use percent_encoding::percent_decode_str;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, IgnoredAny, Visitor};
use serde::{Deserialize, Serialize};
use url::Url;

use super::access::{Access, AwsRole, GcsCredentials, S3Access, S3Credentials, S3Keys};
use super::layout::SourceLayout;
use super::public_servers;
use super::server::{Filters, HttpSource, InvalidSource, WithoutEffect};
use super::source_checks::{base_url, bucket_url, check_headers, check_id, without_query};
use super::{OriginPattern, SOURCE_LINK_ID};

/// The fields that a definition has, and this release does not know.
type Unknown = BTreeMap<String, IgnoredAny>;

/// The JSON form of a source.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", schemars(rename = "SourceDefinition"))]
enum Definition {
    Http(HttpDefinition),
    S3(S3Definition),
    Gcs(GcsDefinition),
    Sentry(SentryDefinition),
    /// Only stored: neither requests nor the operator's list may have it.
    #[cfg_attr(feature = "openapi", schemars(skip))]
    SourceLink(LinkDefinition),
}

/// The fields that all types but `sentry` have.
#[derive(Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
struct CommonDefinition {
    #[serde(default)]
    layout: Extended<SourceLayout>,
    #[serde(default)]
    filters: Extended<Filters>,
    #[serde(default)]
    is_public: bool,
    #[serde(default)]
    is_private: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    has_index: bool,
}

#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
struct HttpDefinition {
    #[cfg_attr(feature = "openapi", schemars(length(min = 1, max = HttpSource::MAX_ID_BYTES)))]
    id: String,
    url: String,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schemars(schema_with = "super::schema::headers"))]
    headers: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    accept_invalid_certs: bool,
    #[serde(flatten)]
    common: CommonDefinition,
    #[serde(flatten, skip_serializing)]
    #[cfg_attr(feature = "openapi", schemars(skip))]
    unknown: Unknown,
}

#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
struct S3Definition {
    #[cfg_attr(feature = "openapi", schemars(length(min = 1, max = HttpSource::MAX_ID_BYTES)))]
    id: String,
    bucket: String,
    #[serde(default)]
    prefix: String,
    region: RegionDefinition,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    aws_credentials_provider: Option<CredentialsProvider>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    role_arn: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    external_id: Option<String>,
    #[serde(default)]
    access_key: String,
    #[serde(default)]
    secret_key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session_token: Option<String>,
    #[serde(flatten)]
    common: CommonDefinition,
    #[serde(flatten, skip_serializing)]
    #[cfg_attr(feature = "openapi", schemars(skip))]
    unknown: Unknown,
}

/// A region of AWS, or the name of a region with the address of another service.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(
    untagged,
    expecting = "expected the name of a region, or a list of a name and the address of the service"
)]
enum RegionDefinition {
    Name(String),
    Custom(String, String),
}

#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
struct GcsDefinition {
    #[cfg_attr(feature = "openapi", schemars(length(min = 1, max = HttpSource::MAX_ID_BYTES)))]
    id: String,
    bucket: String,
    #[serde(default)]
    prefix: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_email: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    private_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bearer_token: Option<String>,
    #[serde(flatten)]
    common: CommonDefinition,
    #[serde(flatten, skip_serializing)]
    #[cfg_attr(feature = "openapi", schemars(skip))]
    unknown: Unknown,
}

#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
struct SentryDefinition {
    #[cfg_attr(feature = "openapi", schemars(length(min = 1, max = HttpSource::MAX_ID_BYTES)))]
    id: String,
    url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cookies: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_private: bool,
    #[serde(flatten, skip_serializing)]
    #[cfg_attr(feature = "openapi", schemars(skip))]
    unknown: Unknown,
}

#[derive(Serialize, Deserialize)]
struct LinkDefinition {
    url: String,
    below: OriginPattern,
    headers: BTreeMap<String, String>,
}

/// Where the credentials of a bucket come from.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
enum CredentialsProvider {
    /// The definition: the default.
    Static,
    /// The environment of the process: the role of the function.
    Container,
}

/// Whether a definition may use the roles of the functions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Roles {
    /// It is the operator's.
    Allowed,
    /// It is that of a request, whose sender would read what only the operator may read.
    Refused,
}

/// An object, and the fields in it that are unknown.
#[derive(Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", schemars(inline))]
struct Extended<T> {
    #[serde(flatten)]
    known: T,
    #[serde(flatten, skip_serializing)]
    #[cfg_attr(feature = "openapi", schemars(skip))]
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

/// A source in the operator's list: a definition, in which unknown fields are errors, or the name
/// of a public symbol server.
#[derive(Clone, Debug)]
pub struct ConfiguredSource(pub HttpSource);

impl<'de> Deserialize<'de> for ConfiguredSource {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrDefinition;

        impl<'de> Visitor<'de> for NameOrDefinition {
            type Value = ConfiguredSource;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the definition of a source, or the name of a public symbol server")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<ConfiguredSource, E> {
                let definition = public_servers::named(name).ok_or_else(|| {
                    let names: Vec<&str> = public_servers::names().collect();
                    E::custom(format!(
                        "unknown public symbol server {name:?}, expected one of {}",
                        names.join(", ")
                    ))
                })?;
                let definition: Definition =
                    serde_json::from_value(definition).map_err(E::custom)?;
                ConfiguredSource::try_from(definition).map_err(E::custom)
            }

            fn visit_map<A: de::MapAccess<'de>>(
                self,
                map: A,
            ) -> Result<ConfiguredSource, A::Error> {
                let definition = Definition::deserialize(MapAccessDeserializer::new(map))?;
                ConfiguredSource::try_from(definition).map_err(de::Error::custom)
            }
        }

        deserializer.deserialize_any(NameOrDefinition)
    }
}

impl TryFrom<Definition> for ConfiguredSource {
    type Error = InvalidSource;

    fn try_from(definition: Definition) -> Result<Self, InvalidSource> {
        let (id, unknown, common) = match &definition {
            Definition::Http(http) => (&http.id, &http.unknown, Some(&http.common)),
            Definition::S3(s3) => (&s3.id, &s3.unknown, Some(&s3.common)),
            Definition::Gcs(gcs) => (&gcs.id, &gcs.unknown, Some(&gcs.common)),
            Definition::Sentry(sentry) => (&sentry.id, &sentry.unknown, None),
            Definition::SourceLink(_) => return Err(only_stored()),
        };
        let nested = common.into_iter().flat_map(|common| {
            let filters = common.filters.unknown.keys();
            let layout = common.layout.unknown.keys();
            filters
                .map(|field| format!("filters.{field}"))
                .chain(layout.map(|field| format!("layout.{field}")))
        });
        let mut unknown = unknown.keys().cloned().chain(nested);
        if let Some(field) = unknown.next() {
            let id = id.chars().take(HttpSource::MAX_ID_BYTES).collect();
            return Err(InvalidSource::UnknownField { id, field });
        }
        let source = definition.source(Roles::Allowed)?;
        source.check_file_types()?;
        Ok(Self(source))
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

#[cfg(feature = "openapi")]
impl schemars::JsonSchema for HttpSource {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        Definition::schema_name()
    }

    fn schema_id() -> std::borrow::Cow<'static, str> {
        Definition::schema_id()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Definition::json_schema(generator)
    }
}

impl TryFrom<Definition> for HttpSource {
    type Error = InvalidSource;

    fn try_from(definition: Definition) -> Result<Self, InvalidSource> {
        definition.source(Roles::Refused)
    }
}

impl Definition {
    fn source(self, roles: Roles) -> Result<HttpSource, InvalidSource> {
        match self {
            Self::Http(definition) => definition.source(),
            Self::S3(definition) => definition.source(roles),
            Self::Gcs(definition) => definition.source(),
            Self::Sentry(definition) => definition.source(),
            Self::SourceLink(definition) => definition.source(),
        }
    }
}

impl CommonDefinition {
    fn of(source: &HttpSource) -> Self {
        Self {
            layout: source.layout.into(),
            filters: source.filters.clone().into(),
            is_public: source.is_public,
            is_private: source.is_private,
            has_index: source.without_effect.has_index,
        }
    }

    /// Returns a source with this base of its locations, and without headers and query.
    fn source(self, id: String, url: Url, access: Access) -> HttpSource {
        HttpSource {
            id,
            url,
            query: None,
            headers: BTreeMap::new(),
            access,
            layout: self.layout.known,
            filters: self.filters.known,
            is_public: self.is_public,
            is_private: self.is_private,
            without_effect: WithoutEffect {
                accept_invalid_certs: false,
                has_index: self.has_index,
            },
        }
    }
}

impl HttpDefinition {
    fn source(self) -> Result<HttpSource, InvalidSource> {
        check_id(&self.id)?;
        let url = base_url(&self.id, &self.url)?;
        check_headers(&self.id, &self.headers)?;
        let query = url.query().filter(|query| !query.is_empty());
        let query = query.map(str::to_owned);
        let source = self
            .common
            .source(self.id, without_query(url), Access::Http);
        Ok(HttpSource {
            query,
            headers: self.headers,
            without_effect: WithoutEffect {
                accept_invalid_certs: self.accept_invalid_certs,
                ..source.without_effect
            },
            ..source
        })
    }
}

impl S3Definition {
    fn source(self, roles: Roles) -> Result<HttpSource, InvalidSource> {
        check_id(&self.id)?;
        let url = bucket_url("s3", &self.id, &self.bucket, &self.prefix)?;
        let credentials = self.credentials(roles)?;
        let (region, endpoint) = match self.region {
            RegionDefinition::Name(region) => (region, None),
            RegionDefinition::Custom(region, address) => {
                (region, Some(base_url(&self.id, &address)?))
            }
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if region.is_empty() || !region.chars().all(is_name) {
            return Err(InvalidSource::Bucket {
                id: self.id,
                problem: "its region must be the name of a region".to_owned(),
            });
        }
        let access = Access::S3(S3Access {
            region,
            endpoint,
            credentials,
        });
        Ok(self.common.source(self.id, url, access))
    }

    fn credentials(&self, roles: Roles) -> Result<S3Credentials, InvalidSource> {
        let invalid = |problem: &str| {
            Err(InvalidSource::Bucket {
                id: self.id.clone(),
                problem: problem.to_owned(),
            })
        };
        let is_assumed = self.role_arn.is_some() || self.external_id.is_some();
        let has_role =
            is_assumed || self.aws_credentials_provider == Some(CredentialsProvider::Container);
        let has_keys = !self.access_key.is_empty() || !self.secret_key.is_empty();
        match (&self.role_arn, &self.external_id) {
            _ if !has_role && !has_keys => Ok(S3Credentials::Anonymous),
            _ if !has_role => Ok(S3Credentials::Keys(S3Keys {
                access_key: self.access_key.clone(),
                secret_key: self.secret_key.clone(),
                session_token: self.session_token.clone(),
            })),
            _ if roles == Roles::Refused => invalid(
                "`aws_credentials_provider` must be `static`, without `role_arn` and `external_id`: the roles of the \
                 functions are not lent to sources of requests",
            ),
            _ if has_keys => invalid("it has both a role and an access key"),
            (None, None) => Ok(S3Credentials::Role(AwsRole::Execution)),
            (None, Some(_)) => invalid("it has an `external_id`, and no `role_arn`"),
            (Some(arn), external_id) => match AwsRole::assumed(arn, external_id.as_deref()) {
                Ok(role) => Ok(S3Credentials::Role(role)),
                Err(problem) => invalid(problem),
            },
        }
    }
}

impl GcsDefinition {
    fn source(self) -> Result<HttpSource, InvalidSource> {
        check_id(&self.id)?;
        let url = bucket_url("gs", &self.id, &self.bucket, &self.prefix)?;
        let credentials = match (self.client_email, self.private_key, self.bearer_token) {
            (_, _, Some(token)) => GcsCredentials::Token(token),
            (Some(email), Some(private_key), None) => {
                GcsCredentials::ServiceAccount { email, private_key }
            }
            _ => {
                return Err(InvalidSource::Bucket {
                    id: self.id,
                    problem: "it needs `client_email` and `private_key`, or `bearer_token`"
                        .to_owned(),
                });
            }
        };
        Ok(self.common.source(self.id, url, Access::Gcs(credentials)))
    }
}

impl SentryDefinition {
    /// The locations of Sentry's files.
    const LOCATIONS: &'static str = "sentry://project_debug_file/";

    fn source(self) -> Result<HttpSource, InvalidSource> {
        check_id(&self.id)?;
        let api = base_url(&self.id, &self.url)?;
        let token = self
            .token
            .map(|token| ("authorization", format!("Bearer {token}")));
        let cookies = self.cookies.map(|cookies| ("cookie", cookies));
        let headers = token.into_iter().chain(cookies);
        let headers: BTreeMap<String, String> = headers
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        check_headers(&self.id, &headers)?;
        let query = api.query().map(str::to_owned);
        let locations = Url::parse(Self::LOCATIONS).expect("it is a URL");
        let api = without_query(api);
        let common = CommonDefinition {
            is_private: self.is_private,
            ..CommonDefinition::default()
        };
        Ok(HttpSource {
            query,
            headers,
            ..common.source(self.id, locations, Access::Sentry { api })
        })
    }
}

impl LinkDefinition {
    fn source(self) -> Result<HttpSource, InvalidSource> {
        let id = SOURCE_LINK_ID.to_owned();
        let url = base_url(&id, &self.url)?;
        check_headers(&id, &self.headers)?;
        let access = Access::Links { below: self.below };
        Ok(HttpSource {
            headers: self.headers,
            ..CommonDefinition::default().source(id, without_query(url), access)
        })
    }
}

/// The error for the definition of a link in a place where only sources of DIFs may be defined.
fn only_stored() -> InvalidSource {
    InvalidSource::Address {
        id: SOURCE_LINK_ID.to_owned(),
        problem: "links are not sources of debug information files".to_owned(),
    }
}

impl From<HttpSource> for Definition {
    fn from(source: HttpSource) -> Self {
        let common = CommonDefinition::of(&source);
        let bucket = source.url.host_str().unwrap_or_default().to_owned();
        let prefix = percent_decode_str(source.url.path().trim_matches('/'));
        let prefix = prefix.decode_utf8_lossy().into_owned();
        let unknown = Unknown::new();
        match &source.access {
            Access::Http => Self::Http(HttpDefinition {
                url: source.with_query(&source.url).into(),
                accept_invalid_certs: source.without_effect.accept_invalid_certs,
                headers: source.headers,
                id: source.id,
                common,
                unknown,
            }),
            Access::S3(access) => {
                let region = access.region.clone();
                let (keys, role) = match access.credentials.clone() {
                    S3Credentials::Anonymous => (None, None),
                    S3Credentials::Keys(keys) => (Some(keys), None),
                    S3Credentials::Role(role) => (None, Some(role)),
                };
                let (access_key, secret_key, session_token) = match keys {
                    None => Default::default(),
                    Some(keys) => (keys.access_key, keys.secret_key, keys.session_token),
                };
                let (role_arn, external_id) = match &role {
                    Some(AwsRole::Assumed { arn, external_id }) => {
                        (Some(arn.clone()), external_id.clone())
                    }
                    Some(AwsRole::Execution) | None => (None, None),
                };
                Self::S3(S3Definition {
                    id: source.id,
                    bucket,
                    prefix,
                    region: match &access.endpoint {
                        None => RegionDefinition::Name(region),
                        Some(endpoint) => RegionDefinition::Custom(region, endpoint.to_string()),
                    },
                    aws_credentials_provider: match role {
                        Some(AwsRole::Execution) => Some(CredentialsProvider::Container),
                        Some(AwsRole::Assumed { .. }) | None => None,
                    },
                    role_arn,
                    external_id,
                    access_key,
                    secret_key,
                    session_token,
                    common,
                    unknown,
                })
            }
            Access::Gcs(credentials) => {
                let (client_email, private_key, bearer_token) = match credentials.clone() {
                    GcsCredentials::ServiceAccount { email, private_key } => {
                        (Some(email), Some(private_key), None)
                    }
                    GcsCredentials::Token(token) => (None, None, Some(token)),
                };
                Self::Gcs(GcsDefinition {
                    id: source.id,
                    bucket,
                    prefix,
                    client_email,
                    private_key,
                    bearer_token,
                    common,
                    unknown,
                })
            }
            Access::Links { below } => Self::SourceLink(LinkDefinition {
                url: source.url.into(),
                below: below.clone(),
                headers: source.headers,
            }),
            Access::Sentry { api } => {
                let header = |name: &str| source.headers.get(name);
                let token = header("authorization").and_then(|value| value.strip_prefix("Bearer "));
                Self::Sentry(SentryDefinition {
                    url: source.with_query(api).into(),
                    token: token.map(str::to_owned),
                    cookies: header("cookie").cloned(),
                    is_private: source.is_private,
                    id: source.id,
                    unknown,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::{CodeId, ObjectId, ObjectType};

    fn source(json: Value) -> Result<HttpSource, String> {
        serde_json::from_value(json).map_err(|error| error.to_string())
    }

    /// Sources of each type, as Symbolicator's clients write them.
    fn sources() -> [Value; 6] {
        [
            json!({"type": "http", "id": "http", "url": "https://x.test/a/?sig=1", "headers": {"x": "y"}}),
            json!({
                "type": "s3", "id": "s3", "bucket": "symbols", "prefix": "/a b/c/", "region": "us-east-1", "access_key": "k",
                "secret_key": "s", "aws_credentials_provider": "static", "layout": {"type": "unified"},
            }),
            json!({
                "type": "s3", "id": "minio", "bucket": "symbols", "region": ["minio", "http://minio.test:9000"],
                "filters": {"filetypes": ["elf_debug"]}, "is_public": true, "has_index": true,
            }),
            json!({"type": "gcs", "id": "gcs", "bucket": "symbols", "client_email": "a@b", "private_key": "k"}),
            json!({"type": "gcs", "id": "token", "bucket": "symbols", "prefix": "p", "bearer_token": "t"}),
            json!({"type": "sentry", "id": "sentry:project", "url": "https://sentry.test/api/?_last_upload=1", "token": "t"}),
        ]
    }

    #[test]
    fn a_source_of_each_type_survives_a_round_trip() {
        for json in sources() {
            let parsed = source(json.clone()).unwrap();
            let again = source(serde_json::to_value(&parsed).unwrap()).unwrap();
            assert_eq!(parsed, again, "{json}");
        }
    }

    #[test]
    fn locations_in_buckets_are_written_as_symbolicator_writes_them() {
        let module = ObjectId {
            code_id: Some(CodeId::new("aabbccdd".to_owned())),
            object_type: ObjectType::Elf,
            ..ObjectId::default()
        };
        let first = |at: usize| {
            let source = source(sources()[at].clone()).unwrap();
            let locations = source.locations(&module);
            for (_, location) in &locations {
                assert!(
                    source.is_above(&Url::parse(location.as_str()).unwrap()),
                    "{location}"
                );
            }
            locations.first().map(|(_, location)| location.to_string())
        };
        assert_eq!(
            first(1).unwrap(),
            "s3://symbols/a%20b/c/aa/bbccdd/executable"
        );
        assert_eq!(first(2).unwrap(), "s3://symbols/aa/bbccdd.debug");
        assert_eq!(first(4).unwrap(), "gs://symbols/p/aa/bbccdd");
        assert_eq!(first(5), None, "Sentry lists its files");
    }

    #[test]
    fn a_location_of_another_bucket_is_not_below_a_source() {
        let source = source(sources()[1].clone()).unwrap();
        for bad in [
            "s3://other/a%20b/c/x",
            "gs://symbols/a%20b/c/x",
            "s3://symbols/secret/x",
            "s3://symbols/a%20b/c/../x",
            "https://symbols/a%20b/c/x",
        ] {
            assert!(!source.is_above(&Url::parse(bad).unwrap()), "{bad}");
        }
    }

    #[test]
    fn a_bucket_with_invalid_access_is_refused_with_the_reason() {
        for (json, says) in [
            (json!({"type": "s3", "id": "a", "bucket": "b"}), "region"),
            (
                json!({"type": "s3", "id": "a", "bucket": "b/c", "region": "r"}),
                "the name of a bucket",
            ),
            (
                json!({"type": "s3", "id": "a", "bucket": "b", "region": "evil.test/"}),
                "the name of a region",
            ),
            (
                json!({"type": "s3", "id": "a", "bucket": "b", "region": ["r", "file:///etc"]}),
                "must begin with http://",
            ),
            (
                json!({"type": "s3", "id": "a", "bucket": "b", "region": "r", "aws_credentials_provider": "container"}),
                "are not lent to sources of requests",
            ),
            (
                json!({"type": "gcs", "id": "a", "bucket": "b", "client_email": "e"}),
                "`private_key`",
            ),
            (
                json!({"type": "sentry", "id": "a", "url": "ftp://x"}),
                "must begin with http://",
            ),
            (
                json!({"type": "filesystem", "id": "a", "path": "/etc"}),
                "unknown variant",
            ),
        ] {
            let error = source(json.clone()).unwrap_err();
            assert!(error.contains(says), "{json}: {error}");
        }
    }

    #[test]
    fn only_the_operator_may_name_the_role_of_a_bucket() {
        let bucket = |more: Value| {
            let mut json = json!({"type": "s3", "id": "a", "bucket": "b", "region": "r"});
            let more = more.as_object().unwrap().clone();
            json.as_object_mut().unwrap().extend(more);
            json
        };
        let configured = |json: Value| {
            let parsed = serde_json::from_value::<ConfiguredSource>(json);
            parsed
                .map(|source| source.0)
                .map_err(|error| error.to_string())
        };
        let arn = "arn:aws-cn:iam::123456789012:role/path/symbols";
        let assumed = |external_id: Option<&str>| AwsRole::Assumed {
            arn: arn.to_owned(),
            external_id: external_id.map(str::to_owned),
        };
        for (more, role) in [
            (
                json!({"aws_credentials_provider": "container"}),
                AwsRole::Execution,
            ),
            (json!({"role_arn": arn}), assumed(None)),
            (
                json!({"role_arn": arn, "external_id": "0pen:sesame"}),
                assumed(Some("0pen:sesame")),
            ),
        ] {
            let parsed = configured(bucket(more.clone())).unwrap();
            let Access::S3(access) = &parsed.access else {
                panic!("{parsed:?}");
            };
            assert!(access.credentials == S3Credentials::Role(role), "{more}");
            // It is not a source that a request can describe, and shows no secret.
            assert!(parsed.has_credentials());
            assert!(!format!("{parsed:?} {:?}", parsed.access).contains("0pen"));
            assert_eq!(
                parsed.configured_key(),
                source(bucket(json!({}))).unwrap().configured_key()
            );
            let again = serde_json::to_value(&parsed).unwrap();
            assert_eq!(configured(again).unwrap(), parsed);
            let refused = source(bucket(more)).unwrap_err();
            assert!(
                refused.contains("are not lent to sources of requests"),
                "{refused}"
            );
        }
        for (more, says) in [
            (
                json!({"role_arn": arn, "access_key": "k"}),
                "both a role and an access key",
            ),
            (json!({"external_id": "abc"}), "no `role_arn`"),
            (
                json!({"role_arn": "arn:aws:iam::1:role/x"}),
                "not the ARN of a role",
            ),
            (
                json!({"role_arn": "arn:aws:iam::123456789012:user/x"}),
                "not the ARN of a role",
            ),
            (
                json!({"role_arn": "arn:aws:s3:::b"}),
                "not the ARN of a role",
            ),
            (
                json!({"role_arn": arn, "external_id": "a"}),
                "2 to 1224 letters",
            ),
            (
                json!({"role_arn": arn, "external_id": "a b"}),
                "2 to 1224 letters",
            ),
            (
                json!({"aws_credentials_provider": "imds"}),
                "unknown variant `imds`",
            ),
        ] {
            let error = configured(bucket(more.clone())).unwrap_err();
            assert!(error.contains(says), "{more}: {error}");
        }
    }

    #[test]
    fn credentials_of_a_bucket_are_shown_nowhere_and_can_be_dropped() {
        for json in [
            json!({"type": "s3", "id": "a", "bucket": "b", "region": "r", "access_key": "0pen", "secret_key": "0pen"}),
            json!({"type": "gcs", "id": "a", "bucket": "b", "client_email": "e", "private_key": "0pen"}),
            json!({"type": "gcs", "id": "a", "bucket": "b", "bearer_token": "0pen"}),
            json!({"type": "sentry", "id": "a", "url": "https://x.test", "cookies": "0pen"}),
        ] {
            let source = source(json).unwrap();
            assert!(!format!("{source:?}").contains("0pen"), "{source:?}");
            assert!(source.has_credentials());
            let without = source.clone().without_credentials();
            assert!(!serde_json::to_string(&without).unwrap().contains("0pen"));
            assert_eq!(without.configured_key(), source.configured_key());
        }
    }
}
