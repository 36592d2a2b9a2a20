//! Access to sources that are not plain HTTP servers: buckets in S3 and Google Cloud Storage,
//! Sentry, and links to source files.

use std::fmt;

use url::Url;

use super::OriginPattern;

/// How the files of a source are requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// At the address of the location.
    Http,
    /// In a bucket of S3, or of a service with the same API.
    S3(S3Access),
    /// In a bucket of Google Cloud Storage.
    Gcs(GcsCredentials),
    /// From Sentry's API for debug information files. It lists the files of a module.
    Sentry {
        /// The address of the API.
        api: Url,
    },
    /// Source files that debug information links to. Their locations may have a query.
    Links {
        /// The addresses that belong to the source, among those with its scheme, host and port.
        below: OriginPattern,
    },
}

/// Access to a bucket of S3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Access {
    /// The name of the region.
    pub region: String,
    /// The address of another service with the API of S3. Buckets are addressed by path.
    pub endpoint: Option<Url>,
    /// The credentials.
    pub credentials: S3Credentials,
}

/// Credentials for a bucket of S3.
#[derive(Clone, PartialEq, Eq)]
pub enum S3Credentials {
    /// None: the bucket is public.
    Anonymous,
    /// An access key.
    Keys(S3Keys),
    /// The credentials of a role. Only the operator's sources have them.
    Role(AwsRole),
}

/// An access key of AWS.
#[derive(Clone, PartialEq, Eq)]
pub struct S3Keys {
    /// Its id.
    pub access_key: String,
    /// The secret.
    pub secret_key: String,
    /// The token of a session, which ends soon.
    pub session_token: Option<String>,
}

/// A role of AWS.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum AwsRole {
    /// The execution role of the function.
    Execution,
    /// A role that the execution role assumes.
    Assumed {
        /// The ARN of the role.
        arn: String,
        /// The id that the owner of the role agreed on with the operator.
        external_id: Option<String>,
    },
}

/// Credentials for a bucket of Google Cloud Storage.
#[derive(Clone, PartialEq, Eq)]
pub enum GcsCredentials {
    /// The key of a service account.
    ServiceAccount {
        /// The e-mail address of the account.
        email: String,
        /// The private key: PKCS #8 in PEM.
        private_key: String,
    },
    /// An access token, which ends soon.
    Token(String),
}

impl AwsRole {
    /// Returns a role to assume. The error says what is invalid.
    pub(super) fn assumed(arn: &str, external_id: Option<&str>) -> Result<Self, &'static str> {
        if !is_role_arn(arn) {
            return Err(
                "its `role_arn` is not the ARN of a role (arn:aws:iam::123456789012:role/name)",
            );
        }
        if !external_id.is_none_or(is_external_id) {
            return Err(
                "its `external_id` must have 2 to 1224 letters, digits and characters of _+=,.@:/-",
            );
        }
        Ok(Self::Assumed {
            arn: arn.to_owned(),
            external_id: external_id.map(str::to_owned),
        })
    }
}

/// Source: IAM User Guide, "IAM identifiers"; AWS STS API Reference, "AssumeRole".
fn is_role_arn(arn: &str) -> bool {
    let mut parts = arn.splitn(6, ':');
    let mut next = || parts.next().unwrap_or_default();
    let (prefix, partition, service) = (next(), next(), next());
    let (region, account, role) = (next(), next(), next());
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let is_printable = |c: char| c.is_ascii_graphic();
    (prefix, service, region) == ("arn", "iam", "")
        && !partition.is_empty()
        && partition.chars().all(is_plain)
        && account.len() == 12
        && account.bytes().all(|byte| byte.is_ascii_digit())
        && role
            .strip_prefix("role/")
            .is_some_and(|name| !name.is_empty())
        && role.chars().all(is_printable)
        && arn.len() <= 2048
}

fn is_external_id(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_+=,.@:/-".contains(c);
    (2..=1224).contains(&text.len()) && text.chars().all(is_allowed)
}

/// Credentials are not shown.
impl fmt::Debug for S3Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("S3Credentials")
    }
}

/// Credentials are not shown.
impl fmt::Debug for S3Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("S3Keys")
    }
}

/// The external id is not shown.
impl fmt::Debug for AwsRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Execution => f.write_str("Execution"),
            Self::Assumed { arn, .. } => write!(f, "Assumed({arn})"),
        }
    }
}

/// Credentials are not shown.
impl fmt::Debug for GcsCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GcsCredentials")
    }
}

impl Access {
    /// Returns whether requests contain credentials.
    pub fn has_credentials(&self) -> bool {
        match self {
            Self::Http | Self::Sentry { .. } | Self::Links { .. } => false,
            Self::S3(access) => access.credentials != S3Credentials::Anonymous,
            Self::Gcs(_) => true,
        }
    }

    /// Returns the access without credentials.
    #[must_use]
    pub fn without_credentials(self) -> Self {
        match self {
            Self::S3(access) => Self::S3(S3Access {
                credentials: S3Credentials::Anonymous,
                ..access
            }),
            Self::Gcs(_) => Self::Gcs(GcsCredentials::Token(String::new())),
            Self::Http | Self::Sentry { .. } | Self::Links { .. } => self,
        }
    }

    /// Removes credentials that are replaced every hour or so. Returns them.
    pub fn take_passing_credentials(&mut self) -> Option<String> {
        match self {
            Self::S3(access) => {
                let S3Credentials::Keys(S3Keys {
                    access_key,
                    secret_key,
                    session_token: Some(token),
                }) = &access.credentials
                else {
                    return None;
                };
                let passing = format!("{access_key}\n{secret_key}\n{token}");
                access.credentials = S3Credentials::Anonymous;
                Some(passing)
            }
            Self::Gcs(GcsCredentials::Token(token)) => Some(std::mem::take(token)),
            Self::Gcs(GcsCredentials::ServiceAccount { .. })
            | Self::Http
            | Self::Sentry { .. }
            | Self::Links { .. } => None,
        }
    }
}
