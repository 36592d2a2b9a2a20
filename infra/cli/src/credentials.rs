//! Credentials for signing requests, and the signature (AWS Signature Version 4).
//!
//! Only addresses of API Gateway and of SQS need one. The credentials come from the
//! environment, or from the AWS command line, which knows profiles, single sign-on and roles.

use std::time::SystemTime;

use aws_credential_types::Credentials;
#[cfg(feature = "serve")]
use aws_sigv4::http_request::{PayloadChecksumKind, PercentEncodingMode, UriPathNormalizationMode};
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use serde::Deserialize;
use url::Url;

use crate::body::Body;
use crate::error::{CliError, chain};

/// The services that requests are signed for.
const API_GATEWAY: &str = "execute-api";
const SQS: &str = "sqs";
#[cfg(feature = "serve")]
const S3: &str = "s3";

/// The domains of AWS, in which services have their host names: of most regions, of those in China,
/// and of the European Sovereign Cloud.
const AWS_DOMAINS: [&str; 3] = [".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu"];

/// Signs requests to one host.
#[derive(Debug)]
pub(crate) struct Signer {
    credentials: Credentials,
    service: &'static str,
    region: String,
    settings: SigningSettings,
}

/// What `aws configure export-credentials --format process` prints.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Exported {
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
}

/// Returns the service and the region that requests to an address are signed for; `None` if they
/// are not signed.
pub(crate) fn signed_for(url: &Url) -> Option<(&'static str, &str)> {
    let host = url.host_str()?;
    let mut domains = AWS_DOMAINS.iter();
    let domain = domains.find_map(|domain| host.strip_suffix(*domain))?;
    let labels: Vec<&str> = domain.split('.').collect();
    match labels.as_slice() {
        [_, "execute-api", region] => Some((API_GATEWAY, region)),
        ["sqs", region] => Some((SQS, region)),
        _ => None,
    }
}

impl Signer {
    /// Returns a signer for an address; `None` if requests to it are not signed.
    pub(crate) async fn of(url: &Url) -> Result<Option<Self>, CliError> {
        let Some((service, region)) = signed_for(url) else {
            return Ok(None);
        };
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let of_variables = variable("AWS_ACCESS_KEY_ID").zip(variable("AWS_SECRET_ACCESS_KEY"));
        let credentials = match of_variables {
            Some((id, secret)) => Credentials::new(
                id,
                secret,
                variable("AWS_SESSION_TOKEN"),
                None,
                "environment",
            ),
            None => exported(url.host_str().unwrap_or_default()).await?,
        };
        Ok(Some(Self {
            credentials,
            service,
            region: region.to_owned(),
            settings: SigningSettings::default(),
        }))
    }

    /// Returns a signer for S3, whose signatures differ from those of other services: they have the
    /// checksum of the body, and the path as it is.
    #[cfg(feature = "serve")]
    pub(crate) fn of_s3(id: &str, secret: &str, region: &str) -> Self {
        let mut settings = SigningSettings::default();
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        Self {
            credentials: Credentials::new(id, secret, None, None, "stack"),
            service: S3,
            region: region.to_owned(),
            settings,
        }
    }

    /// Returns the headers that sign a request. `now` is the time of the signature.
    pub(crate) fn headers(
        &self,
        method: &str,
        url: &Url,
        body: &Body,
        now: SystemTime,
    ) -> Result<Vec<(String, String)>, String> {
        let identity = self.credentials.clone().into();
        let parameters = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name(self.service)
            .time(now)
            .settings(self.settings.clone())
            .build()
            .map_err(|error| chain(&error))?
            .into();
        let headers = body.headers.iter();
        let headers = headers.map(|(name, value)| (*name, value.as_str()));
        let headers = headers.filter(|_| !body.bytes.is_empty());
        let body = SignableBody::Bytes(&body.bytes);
        let signed = SignableRequest::new(method, url.as_str(), headers, body)
            .and_then(|request| sign(request, &parameters))
            .map_err(|error| chain(&error))?;
        let (instructions, _) = signed.into_parts();
        let headers = instructions.headers();
        Ok(headers
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect())
    }
}

/// Returns the credentials that the AWS command line has.
async fn exported(host: &str) -> Result<Credentials, CliError> {
    let error = |cause: String| CliError::Credentials {
        host: host.to_owned(),
        cause: format!(
            "{cause}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in with the AWS command line"
        ),
    };
    let output = tokio::process::Command::new("aws")
        .args(["configure", "export-credentials", "--format", "process"])
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|cause| error(format!("the program `aws` cannot be started: {cause}")))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(error(if reason.contains("usage:") {
            "this version of `aws` has no `aws configure export-credentials`".to_owned()
        } else {
            format!("`aws configure export-credentials`: {}", reason.trim())
        }));
    }
    let exported: Exported = serde_json::from_slice(&output.stdout).map_err(|_| {
        error("`aws configure export-credentials` printed no credentials".to_owned())
    })?;
    let Exported {
        access_key_id,
        secret_access_key,
        session_token,
    } = exported;
    Ok(Credentials::new(
        access_key_id,
        secret_access_key,
        session_token,
        None,
        "aws",
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_addresses_of_api_gateway_and_sqs_are_signed() {
        let of = |url: &str| {
            let url: Url = url.parse().unwrap();
            signed_for(&url).map(|(service, region)| format!("{service} {region}"))
        };
        for (url, expected) in [
            (
                "https://a1b2.execute-api.eu-west-1.amazonaws.com/prod",
                "execute-api eu-west-1",
            ),
            (
                "https://a1b2.execute-api.cn-north-1.amazonaws.com.cn",
                "execute-api cn-north-1",
            ),
            (
                "https://a1b2.execute-api.eusc-de-east-1.amazonaws.eu",
                "execute-api eusc-de-east-1",
            ),
            (
                "https://sqs.eu-west-1.amazonaws.com/123456789012/dead",
                "sqs eu-west-1",
            ),
        ] {
            assert_eq!(of(url).as_deref(), Some(expected), "{url}");
        }
        for other in [
            "http://127.0.0.1:3021",
            "https://symbols.example.com",
            "https://a1b2.execute-api.eu-west-1.amazonaws.com.evil.example",
            "https://execute-api.eu-west-1.amazonaws.com",
            "https://sqs.eu-west-1.example.com",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn a_signature_has_the_time_the_scope_and_the_session() {
        let signer = Signer {
            credentials: Credentials::new("AKID", "secret", Some("token".to_owned()), None, "test"),
            service: API_GATEWAY,
            region: "eu-west-1".to_owned(),
            settings: SigningSettings::default(),
        };
        let url = "https://a1b2.execute-api.eu-west-1.amazonaws.com/symbolicate?scope=acme";
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let body = Body {
            headers: vec![("x-amz-target", "Service.Operation".to_owned())],
            bytes: b"{}".to_vec(),
        };
        let headers = signer
            .headers("POST", &url.parse().unwrap(), &body, now)
            .unwrap();
        let header = |name: &str| {
            let found = headers.iter().find(|(of, _)| of.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.as_str()).unwrap_or_default()
        };
        assert_eq!(header("x-amz-date"), "20231114T221320Z");
        assert_eq!(header("x-amz-security-token"), "token");
        let authorization = header("authorization");
        let scope = "Credential=AKID/20231114/eu-west-1/execute-api/aws4_request";
        assert!(authorization.contains(scope), "{authorization}");
        assert!(authorization.contains("x-amz-target"), "{authorization}");
    }
}
