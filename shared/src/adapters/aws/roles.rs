//! Credentials of roles: that of the function itself, and those that it assumes with STS.
//!
//! Credentials are kept until they expire soon. While they are requested, other callers for the
//! same role wait for them. A failure is kept for a minute, so that the files of a module do not
//! cost a request each.
//!
//! Source: AWS Security Token Service API Reference, "AssumeRole".

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{Credentials, ProvideCredentials};
use aws_sdk_sts::error::{DisplayErrorContext, ProvideErrorMetadata};
use aws_sdk_sts::operation::assume_role::AssumeRoleOutput;

use crate::domain::{AwsRole, S3Keys};
use crate::ports::{AwsRoles, RoleError};

/// The name of the sessions, which the owner of a role sees in its logs.
const SESSION: &str = "symdepot";

/// A request without a response after this time is retried.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// Attempts per request.
const MAX_ATTEMPTS: u32 = 3;

/// Credentials are replaced this long before they expire: longer than an address that is signed
/// with them is valid.
const REPLACED_BEFORE: Duration = Duration::from_secs(20 * 60);

/// How long a failure is kept.
const FAILURE_KEPT: Duration = Duration::from_secs(60);

/// The roles of a function.
pub struct StsRoles {
    config: SdkConfig,
    sts: aws_sdk_sts::Client,
    since_epoch: fn() -> Duration,
    kept: Mutex<HashMap<AwsRole, Arc<Slot>>>,
}

/// The last result for a role. Callers wait for the lock while one of them requests the next.
type Slot = tokio::sync::Mutex<Option<KeptCredentials>>;

/// A result, and until when it is used.
struct KeptCredentials {
    result: Result<S3Keys, RoleError>,
    until: Duration,
}

impl StsRoles {
    /// Returns the roles of the function that has the credentials of `config`; `since_epoch`
    /// returns the time since 1970.
    pub fn new(config: SdkConfig, since_epoch: fn() -> Duration) -> Self {
        let timeouts = TimeoutConfig::builder().read_timeout(READ_TIMEOUT).build();
        let of_sts = aws_sdk_sts::config::Builder::from(&config)
            .timeout_config(timeouts)
            .retry_config(RetryConfig::standard().with_max_attempts(MAX_ATTEMPTS))
            .build();
        Self {
            sts: aws_sdk_sts::Client::from_conf(of_sts),
            config,
            since_epoch,
            kept: Mutex::default(),
        }
    }

    fn slot(&self, role: &AwsRole) -> Arc<Slot> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(kept.entry(role.clone()).or_default())
    }

    async fn requested(&self, role: &AwsRole) -> Result<Credentials, RoleError> {
        match role {
            AwsRole::Execution => {
                let failed = |error: &dyn std::error::Error| {
                    tracing::warn!(error = %DisplayErrorContext(error), "the function has no credentials");
                    RoleError::Failed("the function has no credentials".to_owned())
                };
                let provider = self.config.credentials_provider();
                let Some(provider) = provider else {
                    return Err(RoleError::Failed(
                        "the function has no credentials".to_owned(),
                    ));
                };
                let provided = provider.provide_credentials().await;
                provided.map_err(|error| failed(&error))
            }
            AwsRole::Assumed { arn, external_id } => self.assumed(arn, external_id.clone()).await,
        }
    }

    async fn assumed(
        &self,
        arn: &str,
        external_id: Option<String>,
    ) -> Result<Credentials, RoleError> {
        let assumed = self.sts.assume_role().role_arn(arn);
        let assumed = assumed.set_external_id(external_id);
        let assumed = assumed.role_session_name(SESSION).send().await;
        let assumed = assumed.map_err(|error| {
            tracing::warn!(role = arn, error = %DisplayErrorContext(&error), "a role cannot be assumed");
            let code = error.code().unwrap_or("no answer");
            let detail = format!("the role of the source cannot be assumed: {code}");
            match code {
                "AccessDenied" => RoleError::Denied(detail),
                _ => RoleError::Failed(detail),
            }
        })?;
        credentials(&assumed)
            .ok_or_else(|| RoleError::Failed("the response of STS has no credentials".to_owned()))
    }
}

fn credentials(assumed: &AssumeRoleOutput) -> Option<Credentials> {
    let given = assumed.credentials()?;
    let expiration = given.expiration().as_secs_f64();
    let expires_at = UNIX_EPOCH + Duration::try_from_secs_f64(expiration).ok()?;
    Some(Credentials::new(
        given.access_key_id(),
        given.secret_access_key(),
        Some(given.session_token().to_owned()),
        Some(expires_at),
        SESSION,
    ))
}

#[async_trait]
impl AwsRoles for StsRoles {
    async fn credentials(&self, role: &AwsRole) -> Result<S3Keys, RoleError> {
        let slot = self.slot(role);
        let mut slot = slot.lock().await;
        let now = (self.since_epoch)();
        if let Some(kept) = slot.as_ref().filter(|kept| now < kept.until) {
            return kept.result.clone();
        }
        let requested = self.requested(role).await;
        let until = match &requested {
            Ok(credentials) => used_until(credentials, now),
            Err(_) => now + FAILURE_KEPT,
        };
        let result = requested.map(|credentials| S3Keys {
            access_key: credentials.access_key_id().to_owned(),
            secret_key: credentials.secret_access_key().to_owned(),
            session_token: credentials.session_token().map(str::to_owned),
        });
        *slot = Some(KeptCredentials {
            result: result.clone(),
            until,
        });
        result
    }
}

/// Returns until when credentials are used, all as the time since 1970. Those without an expiry are
/// read again each time: they are in the environment.
fn used_until(credentials: &Credentials, now: Duration) -> Duration {
    let expiry = credentials.expiry();
    let expiry = expiry.and_then(|expiry| expiry.duration_since(UNIX_EPOCH).ok());
    expiry.map_or(now, |expiry| {
        let lifetime = expiry.saturating_sub(now);
        now + lifetime.saturating_sub(REPLACED_BEFORE.min(lifetime / 2))
    })
}

impl fmt::Debug for StsRoles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StsRoles")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_replaced_twenty_minutes_before_they_expire() {
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        let now = minutes(1000);
        let used_for = |lifetime: Option<Duration>| {
            let expiry = lifetime.map(|lifetime| UNIX_EPOCH + now + lifetime);
            let credentials = Credentials::new("AKIA", "secret", None, expiry, "test");
            used_until(&credentials, now) - now
        };
        assert_eq!(used_for(Some(minutes(60))), minutes(40));
        assert_eq!(used_for(Some(minutes(15))), minutes(15) / 2);
        assert_eq!(used_for(Some(Duration::ZERO)), Duration::ZERO);
        assert_eq!(used_for(None), Duration::ZERO);
    }
}
