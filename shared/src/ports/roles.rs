//! Credentials of AWS roles, for the buckets of configured sources.

use std::fmt;

use async_trait::async_trait;

use crate::domain::{AwsRole, S3Keys};

/// Gives the credentials of AWS roles.
#[async_trait]
pub trait AwsRoles: fmt::Debug + Send + Sync {
    /// Returns credentials of a role that stay valid for some time.
    async fn credentials(&self, role: &AwsRole) -> Result<S3Keys, RoleError>;
}

/// Why a role gives no credentials. Callers of the API see the text, so it names no role and no
/// account.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoleError {
    /// AWS denies the role.
    #[error("{0}")]
    Denied(String),
    /// AWS does not answer, or fails.
    #[error("{0}")]
    Failed(String),
}
