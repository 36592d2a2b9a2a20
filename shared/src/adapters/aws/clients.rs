//! The clients of the three services, built once at start.
//!
//! They share one HTTP client, and therefore one connection pool. Region, credentials and
//! endpoints are those of the environment that Lambda (or the local stack) sets. The files of the
//! AWS command line (`~/.aws`) are not read: on a developer's machine, they are about other things.
//! Building the clients needs no network request.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_config::ecs::EcsCredentialsProvider;
use aws_config::environment::EnvironmentVariableCredentialsProvider;
use aws_config::identity::IdentityCache;
use aws_config::meta::credentials::CredentialsProviderChain;
use aws_config::provider_config::ProviderConfig;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_types::service_config::{LoadServiceConfig, ServiceConfigKey};

use super::http_client::{Connected, OnlyConnect, SdkHttpClient, causes};

/// Responses begin within milliseconds. One that takes this long is on a connection that died while
/// the sandbox was frozen.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// The same for S3, which responds more slowly. Uploads have their own timeout.
const S3_READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The variable with the endpoint of all services, and the begin of those with the endpoint of one.
const ENDPOINT: &str = "AWS_ENDPOINT_URL";

/// The time limit for connecting at the start. A function starts without connections then.
const START_TIMEOUT: Duration = Duration::from_secs(1);

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

/// What the environment says about AWS, without credentials.
#[derive(Clone, Debug, Default)]
pub struct AwsEnvironment {
    region: Option<Region>,
    /// The endpoints that replace those of AWS, by variable.
    endpoints: BTreeMap<String, String>,
    is_fips: bool,
    is_dual_stack: bool,
}

impl AwsEnvironment {
    /// Reads the variables that the SDKs of AWS have in common: `AWS_REGION` (or
    /// `AWS_DEFAULT_REGION`), `AWS_ENDPOINT_URL` and `AWS_ENDPOINT_URL_<SERVICE>`,
    /// `AWS_USE_FIPS_ENDPOINT` and `AWS_USE_DUALSTACK_ENDPOINT`.
    pub fn of(variables: &BTreeMap<String, String>) -> Self {
        let value = |name: &str| variables.get(name).filter(|value| !value.is_empty());
        let is_set = |name| value(name).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let region = value("AWS_REGION").or_else(|| value("AWS_DEFAULT_REGION"));
        let endpoints = variables
            .iter()
            .filter(|(name, value)| name.starts_with(ENDPOINT) && !value.is_empty());
        Self {
            region: region.cloned().map(Region::new),
            endpoints: endpoints
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            is_fips: is_set("AWS_USE_FIPS_ENDPOINT"),
            is_dual_stack: is_set("AWS_USE_DUALSTACK_ENDPOINT"),
        }
    }
}

impl LoadServiceConfig for AwsEnvironment {
    /// Returns the endpoint of a service; nothing else is set for one service.
    fn load_config(&self, key: ServiceConfigKey<'_>) -> Option<String> {
        let service = key.service_id().to_uppercase().replace([' ', '-'], "_");
        let variable = format!("{}_{service}", key.env());
        self.endpoints.get(&variable).cloned()
    }
}

impl AwsClients {
    /// Returns the SDK configuration for an environment.
    ///
    /// Credentials are those of the environment or of the container; the instance metadata service
    /// is never used.
    pub fn sdk_config(environment: AwsEnvironment) -> SdkConfig {
        let http_client = SdkHttpClient::shared();
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
        let mut config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client(http_client)
            .region(environment.region.clone())
            .credentials_provider(SharedCredentialsProvider::new(credentials))
            .identity_cache(IdentityCache::lazy().build())
            .use_fips(environment.is_fips)
            .use_dual_stack(environment.is_dual_stack);
        config.set_endpoint_url(environment.endpoints.get(ENDPOINT).cloned());
        config.service_config(environment).build()
    }

    /// Builds the clients from an SDK configuration. Timeouts and retries are set here and replace
    /// those of the configuration.
    pub fn from_sdk_config(config: &SdkConfig) -> Self {
        let http_client = config.http_client().unwrap_or_else(SdkHttpClient::shared);
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

    /// Connects to DynamoDB and to these buckets, at the same time, so that the first requests need
    /// not. Nothing is sent: the SDK prepares a request, whose address it knows, and the client
    /// only connects there. A service that cannot be reached is left to the first request, which
    /// fails with the reason.
    pub async fn connect(&self, buckets: &[&str]) {
        let to_table = async {
            let prepared = self.dynamodb.list_tables().customize();
            let prepared = prepared.mutate_request(|request| request.add_extension(OnlyConnect));
            log_unless_connected("DynamoDB", prepared.send().await.err());
        };
        let to_buckets = buckets.iter().map(|bucket| async move {
            let prepared = self.s3.head_bucket().bucket(*bucket).customize();
            let prepared = prepared.mutate_request(|request| request.add_extension(OnlyConnect));
            log_unless_connected("S3", prepared.send().await.err());
        });
        let all = futures::future::join(to_table, futures::future::join_all(to_buckets));
        if tokio::time::timeout(START_TIMEOUT, all).await.is_err() {
            tracing::debug!("not connected to all services in time");
        }
    }
}

/// The error of a request that only connects says that it did.
fn log_unless_connected<E: std::error::Error + 'static>(service: &str, error: Option<E>) {
    let Some(error) = error else {
        return;
    };
    let last = causes(&error).last().unwrap_or(&error);
    if !last.is::<Connected>() {
        tracing::debug!(service, error = %last, "not connected at the start");
    }
}

fn timeouts(read: Duration) -> TimeoutConfig {
    TimeoutConfig::builder().read_timeout(read).build()
}

/// Returns whether S3 has a custom endpoint: `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL` is set.
fn has_s3_endpoint(config: &SdkConfig) -> bool {
    custom_endpoint(config, "S3").is_some()
}

/// Returns the endpoint that replaces that of AWS for a service: its own, or that of all services.
pub(super) fn custom_endpoint(config: &SdkConfig, service: &str) -> Option<String> {
    let key = ServiceConfigKey::builder()
        .service_id(service)
        .env(ENDPOINT)
        .profile("endpoint_url")
        .build();
    let of_service = config
        .service_config()
        .zip(key.ok())
        .and_then(|(settings, key)| settings.load_config(key));
    of_service.or_else(|| config.endpoint_url().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    /// Returns the configuration for an environment with these variables.
    fn config_for(variables: &[(&str, &str)]) -> SdkConfig {
        let variables = variables.iter();
        let variables = variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        AwsClients::sdk_config(AwsEnvironment::of(&variables.collect()))
    }

    #[test]
    fn a_service_has_the_endpoint_of_its_variable_before_that_of_all() {
        let config = config_for(&[
            ("AWS_REGION", "eu-west-1"),
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
            ("AWS_ENDPOINT_URL_SECRETS_MANAGER", "http://127.0.0.1:2"),
            ("AWS_ENDPOINT_URL_S3", ""),
        ]);
        assert_eq!(config.region(), Some(&Region::from_static("eu-west-1")));
        assert_eq!(config.endpoint_url(), Some("http://127.0.0.1:1"));
        let of_secrets = custom_endpoint(&config, "Secrets Manager");
        assert_eq!(of_secrets.as_deref(), Some("http://127.0.0.1:2"));
        // An empty variable is none.
        let of_s3 = custom_endpoint(&config, "S3");
        assert_eq!(of_s3.as_deref(), Some("http://127.0.0.1:1"));
    }

    /// Returns clients whose services are all at this address.
    fn clients_of(address: std::net::SocketAddr) -> AwsClients {
        let endpoint = format!("http://{address}");
        let config = config_for(&[("AWS_REGION", "eu-west-1"), ("AWS_ENDPOINT_URL", &endpoint)]);
        let keys = aws_credential_types::Credentials::new("key", "secret", None, None, "test");
        let keys = SharedCredentialsProvider::new(keys);
        let config = config.into_builder().credentials_provider(keys);
        AwsClients::from_sdk_config(&config.build())
    }

    /// Two buckets and a table are three connections. A server that received a request would see
    /// its first byte.
    #[tokio::test]
    async fn connections_are_established_at_the_start_without_a_request() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let clients = clients_of(listener.local_addr().unwrap());
        clients.connect(&["caches", "uploads"]).await;
        let mut accepted = Vec::new();
        while let Some(connection) = listener.accept().now_or_never() {
            accepted.push(connection.unwrap().0);
        }
        assert_eq!(accepted.len(), 3);
        // Closes the connections.
        drop(clients);
        for mut stream in accepted {
            assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        }
    }

    #[tokio::test]
    async fn a_function_starts_without_connections_if_no_service_can_be_reached() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        clients_of(address).connect(&["caches"]).await;
    }

    #[test]
    fn without_variables_the_endpoints_are_those_of_aws() {
        let config = config_for(&[("AWS_DEFAULT_REGION", "us-gov-west-1")]);
        assert_eq!(config.region(), Some(&Region::from_static("us-gov-west-1")));
        assert_eq!(
            (config.endpoint_url(), config.use_fips()),
            (None, Some(false))
        );
        assert!(!has_s3_endpoint(&config));
        let config = config_for(&[("AWS_USE_FIPS_ENDPOINT", "true")]);
        assert_eq!(
            (config.use_fips(), config.use_dual_stack()),
            (Some(true), Some(false))
        );
    }

    #[test]
    fn buckets_are_in_the_path_where_s3_has_an_endpoint_of_its_own() {
        for variable in ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"] {
            assert!(has_s3_endpoint(&config_for(&[(
                variable,
                "http://127.0.0.1:1"
            )])));
        }
    }
}
