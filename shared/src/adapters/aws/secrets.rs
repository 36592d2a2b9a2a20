//! Reads secrets from Secrets Manager and SSM, with one signed request per secret.
//!
//! The SDKs of these services are not used; decision 0011 gives the reasons. Sources: AWS Secrets
//! Manager API Reference, "GetSecretValue"; AWS Systems Manager API Reference, "GetParameter"; both
//! speak AWS's JSON 1.1 protocol, as Smithy's specification "AWS JSON 1.1 protocol" describes it.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_s3::config::ProvideCredentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use serde_json::{Value, json};

use super::clients::custom_endpoint;
use crate::adapters::backoff::pause;
use crate::adapters::http;
use crate::adapters::regions::domain_of;
use crate::domain::chain;
use crate::ports::{SecretError, SecretName, SecretService, Secrets};

/// A connection that is not established after this time is retried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A request without a complete response after this time is retried.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Attempts per secret before the function fails to start.
const MAX_ATTEMPTS: u32 = 3;

/// The maximum size of a response, in bytes. A secret has at most 64 KiB.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// The partitions of AWS whose host names are known.
const PARTITIONS: [&str; 4] = ["aws", "aws-cn", "aws-eusc", "aws-us-gov"];

/// The content type of the protocol.
const JSON: &str = "application/x-amz-json-1.1";

/// Secrets in AWS.
pub struct AwsSecrets {
    config: SdkConfig,
    since_epoch: fn() -> Duration,
}

/// Why an attempt failed, and whether a retry may succeed.
struct Failed {
    why: String,
    is_passing: bool,
}

impl AwsSecrets {
    /// Returns a reader that uses the credentials of `config` and signs with the time since 1970.
    pub fn new(config: SdkConfig, since_epoch: fn() -> Duration) -> Self {
        Self {
            config,
            since_epoch,
        }
    }

    async fn attempt(&self, client: &reqwest::Client, name: &SecretName) -> Result<String, Failed> {
        let lasting = |why: String| Failed {
            why,
            is_passing: false,
        };
        let passing = |why: String| Failed {
            why,
            is_passing: true,
        };
        let endpoint = self.endpoint(name).map_err(lasting)?;
        let (service, target, body) = match name.service {
            SecretService::SecretsManager => (
                "secretsmanager",
                "secretsmanager.GetSecretValue",
                json!({"SecretId": name.arn}),
            ),
            SecretService::Ssm => (
                "ssm",
                "AmazonSSM.GetParameter",
                json!({"Name": name.arn, "WithDecryption": true}),
            ),
        };
        let body = body.to_string();
        let headers = [("content-type", JSON), ("x-amz-target", target)];
        let signature = self
            .signature(&endpoint, service, &name.region, headers, body.as_bytes())
            .await
            .map_err(lasting)?;
        let mut request = client.post(&endpoint).body(body);
        for (header, value) in headers {
            request = request.header(header, value);
        }
        for (header, value) in signature {
            request = request.header(header, value);
        }
        let answer = request
            .send()
            .await
            .map_err(|error| passing(format!("{service} cannot be reached: {}", chain(&error))))?;
        let status = answer.status();
        let interrupted = |error| {
            let why = chain(&error);
            passing(format!("the response of {service} was interrupted: {why}"))
        };
        let bytes = http::bytes_within(answer, MAX_ANSWER_BYTES).await;
        let bytes = bytes.map_err(interrupted)?.ok_or_else(|| {
            let most = MAX_ANSWER_BYTES;
            lasting(format!("the response of {service} exceeds {most} bytes"))
        })?;
        let json: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        if !status.is_success() {
            let error = json["__type"].as_str().unwrap_or_default();
            let error = error.rsplit('#').next().unwrap_or_default();
            let said = json["message"].as_str().or(json["Message"].as_str());
            let is_passing = status.is_server_error() || error.contains("Throttling");
            let why = format!("{service} responded with {status} {error}");
            let why = said.map_or(why.clone(), |said| format!("{why}: {said}"));
            return Err(Failed { why, is_passing });
        }
        let value = match name.service {
            SecretService::SecretsManager => &json["SecretString"],
            SecretService::Ssm => &json["Parameter"]["Value"],
        };
        let value = value.as_str().map(str::to_owned);
        value.ok_or_else(|| {
            lasting(format!(
                "the response of {service} contains no string value"
            ))
        })
    }

    /// Returns the URL of the service: the one that the environment sets, or else that of the ARN's
    /// region.
    fn endpoint(&self, name: &SecretName) -> Result<String, String> {
        let (id, host) = match name.service {
            SecretService::SecretsManager => ("Secrets Manager", "secretsmanager"),
            SecretService::Ssm => ("SSM", "ssm"),
        };
        if let Some(url) = custom_endpoint(&self.config, id) {
            return Ok(format!("{}/", url.trim_end_matches('/')));
        }
        if !PARTITIONS.contains(&name.partition.as_str()) {
            return Err(format!("the AWS partition {} is unknown", name.partition));
        }
        let domain = domain_of(&name.region);
        Ok(format!("https://{host}.{}.{domain}/", name.region))
    }

    async fn signature(
        &self,
        url: &str,
        service: &str,
        region: &str,
        headers: [(&str, &str); 2],
        body: &[u8],
    ) -> Result<Vec<(String, String)>, String> {
        let provider = self.config.credentials_provider();
        let provider = provider.ok_or("the function has no credentials")?;
        let credentials = provider
            .provide_credentials()
            .await
            .map_err(|error| format!("the function has no credentials: {}", chain(&error)))?;
        let identity = credentials.into();
        let parameters = v4::SigningParams::builder()
            .identity(&identity)
            .region(region)
            .name(service)
            .time(UNIX_EPOCH + (self.since_epoch)())
            .settings(SigningSettings::default())
            .build()
            .map_err(|error| format!("the request cannot be signed: {error}"))?
            .into();
        let body = SignableBody::Bytes(body);
        let signed = SignableRequest::new("POST", url, headers.into_iter(), body)
            .and_then(|request| sign(request, &parameters))
            .map_err(|error| format!("the request cannot be signed: {}", chain(&error)))?;
        let (instructions, _) = signed.into_parts();
        let headers = instructions.headers();
        Ok(headers
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect())
    }
}

#[async_trait]
impl Secrets for AwsSecrets {
    async fn read(&self, name: &SecretName) -> Result<String, SecretError> {
        let client = http::client()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            .build()
            .map_err(|error| SecretError(chain(&error)))?;
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.attempt(&client, name).await {
                Ok(value) => return Ok(value),
                Err(failed) if attempts == MAX_ATTEMPTS || !failed.is_passing => {
                    return Err(SecretError(failed.why));
                }
                Err(_) => pause(attempts).await,
            }
        }
    }
}

impl fmt::Debug for AwsSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AwsSecrets")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_requested_in_the_domain_of_its_partition() {
        let secrets = AwsSecrets::new(SdkConfig::builder().build(), Duration::default);
        let endpoint = |arn: &str| secrets.endpoint(&SecretName::parse(arn).unwrap());
        for (arn, expected) in [
            (
                "arn:aws:ssm:eu-central-1:123456789012:parameter/sources",
                "https://ssm.eu-central-1.amazonaws.com/",
            ),
            (
                "arn:aws-us-gov:ssm:us-gov-west-1:123456789012:parameter/sources",
                "https://ssm.us-gov-west-1.amazonaws.com/",
            ),
            (
                "arn:aws-cn:secretsmanager:cn-north-1:123456789012:secret:sources-AbCdEf",
                "https://secretsmanager.cn-north-1.amazonaws.com.cn/",
            ),
            (
                "arn:aws-eusc:secretsmanager:eusc-de-east-1:123456789012:secret:sources-AbCdEf",
                "https://secretsmanager.eusc-de-east-1.amazonaws.eu/",
            ),
        ] {
            assert_eq!(endpoint(arn).as_deref(), Ok(expected), "{arn}");
        }
        let secret = "arn:aws-iso:ssm:us-iso-east-1:123456789012:parameter/sources";
        let unknown = "the AWS partition aws-iso is unknown".to_owned();
        assert_eq!(endpoint(secret), Err(unknown));
    }
}
