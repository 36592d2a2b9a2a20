//! The clients of the three services, built once at start.
//!
//! They share one HTTP client, and therefore one connection pool. The SDK reads region, credentials
//! and endpoints from the environment that Lambda (or the local stack) sets; building the clients
//! needs no network request.

use std::time::Duration;

use aws_config::ecs::EcsCredentialsProvider;
use aws_config::environment::{
    EnvironmentVariableCredentialsProvider, EnvironmentVariableRegionProvider,
};
use aws_config::meta::credentials::CredentialsProviderChain;
use aws_config::provider_config::ProviderConfig;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_smithy_http_client::Builder as HttpClientBuilder;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_types::service_config::ServiceConfigKey;

/// A connection takes a millisecond within one region. One that is not established after this time
/// is retried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Responses begin within milliseconds. One that takes this long is on a connection that died while
/// the sandbox was frozen.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// The same for S3, which responds more slowly. Uploads have their own timeout.
const S3_READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Attempts of the SDK per request.
const MAX_ATTEMPTS: u32 = 3;

/// The clients of the three services.
#[derive(Clone, Debug)]
pub struct AwsClients {
    /// For blobs and DIFs.
    pub s3: aws_sdk_s3::Client,
    /// For records.
    pub dynamodb: aws_sdk_dynamodb::Client,
    /// For queues.
    pub sqs: aws_sdk_sqs::Client,
}

impl AwsClients {
    /// Returns the SDK configuration from the variables that Lambda sets: region, credentials, and
    /// endpoints if there are any.
    ///
    /// Credentials are those of the environment or of the container; the instance metadata service
    /// is never used.
    pub async fn sdk_config() -> SdkConfig {
        let http_client = http_client();
        let container = ProviderConfig::without_region().with_http_client(http_client.clone());
        let credentials = CredentialsProviderChain::first_try(
            "Environment",
            EnvironmentVariableCredentialsProvider::new(),
        )
        .or_else(
            "Container",
            EcsCredentialsProvider::builder()
                .configure(&container)
                .build(),
        );
        aws_config::defaults(BehaviorVersion::latest())
            .http_client(http_client)
            .region(EnvironmentVariableRegionProvider::new())
            .credentials_provider(credentials)
            .load()
            .await
    }

    /// Builds the clients from an SDK configuration. Timeouts and retries are set here and replace
    /// those of the configuration.
    pub fn from_sdk_config(config: &SdkConfig) -> Self {
        let http_client = config.http_client().unwrap_or_else(http_client);
        let retries = RetryConfig::standard().with_max_attempts(MAX_ATTEMPTS);
        let s3 = aws_sdk_s3::config::Builder::from(config)
            .http_client(http_client.clone())
            .timeout_config(timeouts(S3_READ_TIMEOUT))
            .retry_config(retries.clone())
            // On AWS the bucket is part of the host name. A custom endpoint has one host name for
            // all buckets.
            .force_path_style(has_s3_endpoint(config))
            .build();
        let dynamodb = aws_sdk_dynamodb::config::Builder::from(config)
            .http_client(http_client.clone())
            .timeout_config(timeouts(READ_TIMEOUT))
            .retry_config(retries.clone())
            .build();
        let sqs = aws_sdk_sqs::config::Builder::from(config)
            .http_client(http_client)
            .timeout_config(timeouts(READ_TIMEOUT))
            .retry_config(retries)
            .build();
        Self {
            s3: aws_sdk_s3::Client::from_conf(s3),
            dynamodb: aws_sdk_dynamodb::Client::from_conf(dynamodb),
            sqs: aws_sdk_sqs::Client::from_conf(sqs),
        }
    }
}

fn http_client() -> aws_sdk_s3::config::SharedHttpClient {
    HttpClientBuilder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .build_https()
}

fn timeouts(read: Duration) -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(read)
        .build()
}

/// Returns whether S3 has a custom endpoint: `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL` is set.
fn has_s3_endpoint(config: &SdkConfig) -> bool {
    let key = ServiceConfigKey::builder()
        .service_id("S3")
        .env("AWS_ENDPOINT_URL")
        .profile("endpoint_url")
        .build();
    let of_service = || {
        config
            .service_config()
            .zip(key.ok())
            .and_then(|(settings, key)| settings.load_config(key))
    };
    config.endpoint_url().is_some() || of_service().is_some()
}
