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
        let id = match name.service {
            SecretService::SecretsManager => "Secrets Manager",
            SecretService::Ssm => "SSM",
        };
        if let Some(url) = custom_endpoint(&self.config, id) {
            return Ok(format!("{}/", url.trim_end_matches('/')));
        }
        if !PARTITIONS.contains(&name.partition.as_str()) {
            return Err(format!("the AWS partition {} is unknown", name.partition));
        }
        let is_fips = self.config.use_fips().unwrap_or_default();
        let is_dual_stack = self.config.use_dual_stack().unwrap_or_default();
        let host = host_of(name.service, &name.region, is_fips, is_dual_stack);
        Ok(format!("https://{host}/"))
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

/// Returns the host of a service in a region: as the SDKs choose it, by its endpoint rules.
///
/// Source: `endpoint-rule-set.json` of both services, and `partitions.json`, in the SDKs.
fn host_of(service: SecretService, region: &str, is_fips: bool, is_dual_stack: bool) -> String {
    let (name, is_fips, is_dual_stack) = match service {
        // Its usual hosts have addresses of both kinds, except in the European Sovereign Cloud.
        SecretService::SecretsManager => {
            let has_others = region.starts_with("eusc-");
            ("secretsmanager", is_fips, is_dual_stack && has_others)
        }
        // Its usual hosts in AWS GovCloud are those that comply with FIPS.
        SecretService::Ssm => {
            let is_usual = region.starts_with("us-gov-") && !is_dual_stack;
            ("ssm", is_fips && !is_usual, is_dual_stack)
        }
    };
    let fips = if is_fips { "-fips" } else { "" };
    let domain = if is_dual_stack {
        dual_stack_domain_of(region)
    } else {
        domain_of(region)
    };
    format!("{name}{fips}.{region}.{domain}")
}

/// Returns the domain of the hosts that have addresses of both kinds, in a region.
fn dual_stack_domain_of(region: &str) -> &'static str {
    if region.starts_with("cn-") {
        "api.amazonwebservices.com.cn"
    } else if region.starts_with("eusc-") {
        "api.amazonwebservices.eu"
    } else {
        "api.aws"
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

    #[test]
    fn a_secret_is_requested_at_the_hosts_that_the_environment_asks_for() {
        let host = |arn: &str, is_fips, is_dual_stack| {
            let config = SdkConfig::builder()
                .use_fips(is_fips)
                .use_dual_stack(is_dual_stack);
            let secrets = AwsSecrets::new(config.build(), Duration::default);
            let endpoint = secrets.endpoint(&SecretName::parse(arn).unwrap()).unwrap();
            endpoint.replace("https://", "").replace('/', "")
        };
        let parameter = "arn:aws:ssm:us-east-1:123456789012:parameter/sources";
        let secret = "arn:aws:secretsmanager:us-east-1:123456789012:secret:sources-AbCdEf";
        let of_gov = "arn:aws-us-gov:ssm:us-gov-west-1:123456789012:parameter/sources";
        let of_eu = "arn:aws-eusc:secretsmanager:eusc-de-east-1:123456789012:secret:sources-AbCdEf";
        for (arn, is_fips, is_dual_stack, expected) in [
            (parameter, true, false, "ssm-fips.us-east-1.amazonaws.com"),
            (parameter, false, true, "ssm.us-east-1.api.aws"),
            (parameter, true, true, "ssm-fips.us-east-1.api.aws"),
            (of_gov, true, false, "ssm.us-gov-west-1.amazonaws.com"),
            (of_gov, true, true, "ssm-fips.us-gov-west-1.api.aws"),
            (
                secret,
                true,
                false,
                "secretsmanager-fips.us-east-1.amazonaws.com",
            ),
            (
                secret,
                false,
                true,
                "secretsmanager.us-east-1.amazonaws.com",
            ),
            (
                of_eu,
                false,
                true,
                "secretsmanager.eusc-de-east-1.api.amazonwebservices.eu",
            ),
        ] {
            let shown = format!("{arn} {is_fips} {is_dual_stack}");
            assert_eq!(host(arn, is_fips, is_dual_stack), expected, "{shown}");
        }
    }
}
