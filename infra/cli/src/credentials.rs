//! Credentials for signing requests, and the signature (AWS Signature Version 4).
//!
//! Only addresses of API Gateway need one. The credentials come from the environment, or from the
//! AWS command line, which knows profiles, single sign-on and roles.

use std::time::SystemTime;

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use serde::Deserialize;
use url::Url;

use crate::error::{CliError, chain};

/// The service that requests to API Gateway are signed for.
const SERVICE: &str = "execute-api";

/// Signs requests to one host.
#[derive(Debug)]
pub(crate) struct Signer {
    credentials: Credentials,
    region: String,
}

/// What `aws configure export-credentials --format process` prints.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Exported {
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
}

/// Returns the region of an address of API Gateway; `None` for other addresses.
pub(crate) fn region_of(url: &Url) -> Option<&str> {
    let mut labels = url.host_str()?.split('.').skip(1);
    let (service, region) = (labels.next()?, labels.next()?);
    let rest: Vec<&str> = labels.collect();
    let is_aws = matches!(
        rest.as_slice(),
        ["amazonaws", "com"] | ["amazonaws", "com", "cn"]
    );
    (service == SERVICE && is_aws).then_some(region)
}

impl Signer {
    /// Returns a signer for an address; `None` if requests to it are not signed.
    pub(crate) async fn of(url: &Url) -> Result<Option<Self>, CliError> {
        let Some(region) = region_of(url) else {
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
            region: region.to_owned(),
        }))
    }

    /// Returns the headers that sign a request. `now` is the time of the signature.
    pub(crate) fn headers(
        &self,
        method: &str,
        url: &Url,
        body: &[u8],
        now: SystemTime,
    ) -> Result<Vec<(String, String)>, String> {
        let identity = self.credentials.clone().into();
        let parameters = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name(SERVICE)
            .time(now)
            .settings(SigningSettings::default())
            .build()
            .map_err(|error| chain(&error))?
            .into();
        let body = SignableBody::Bytes(body);
        let signed = SignableRequest::new(method, url.as_str(), std::iter::empty(), body)
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
        return Err(error(format!(
            "`aws configure export-credentials`: {}",
            reason.trim()
        )));
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
    fn only_addresses_of_api_gateway_are_signed() {
        let region = |url: &str| region_of(&url.parse().unwrap()).map(str::to_owned);
        let expected = Some("eu-west-1".to_owned());
        assert_eq!(
            region("https://a1b2.execute-api.eu-west-1.amazonaws.com/prod"),
            expected
        );
        assert_eq!(
            region("https://a1b2.execute-api.cn-north-1.amazonaws.com.cn"),
            Some("cn-north-1".to_owned())
        );
        for other in [
            "http://127.0.0.1:3021",
            "https://symbols.example.com",
            "https://a1b2.execute-api.eu-west-1.amazonaws.com.evil.example",
            "https://execute-api.eu-west-1.amazonaws.com",
        ] {
            assert_eq!(region(other), None, "{other}");
        }
    }

    #[test]
    fn a_signature_has_the_time_the_scope_and_the_session() {
        let signer = Signer {
            credentials: Credentials::new("AKID", "secret", Some("token".to_owned()), None, "test"),
            region: "eu-west-1".to_owned(),
        };
        let url = "https://a1b2.execute-api.eu-west-1.amazonaws.com/symbolicate?scope=acme";
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let headers = signer
            .headers("POST", &url.parse().unwrap(), b"{}", now)
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
    }
}
