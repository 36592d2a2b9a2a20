//! Values of settings that are stored elsewhere: secrets, and lists in S3.

use futures::future::join_all;

use crate::ports::{SecretName, Secrets, SettingAddress, StoredSettings};

/// The value of a variable that refers to it, or why it cannot be read.
pub(super) struct StoredValue {
    pub(super) name: &'static str,
    pub(super) reference: String,
    pub(super) read: Result<String, String>,
}

/// Reads what variables refer to, each with its reference. The values of others are left out.
///
/// A function that starts waits for the slowest of them, not for one after the other.
pub(super) async fn read_side_by_side(
    named: impl Iterator<Item = (&'static str, String)>,
    secrets: &dyn Secrets,
    settings: &dyn StoredSettings,
) -> Vec<StoredValue> {
    let reads = named.map(async |(name, reference)| {
        let read = if reference.starts_with(SecretName::PREFIX) {
            read_secret(&reference, secrets).await
        } else if reference.starts_with(SettingAddress::PREFIX) {
            read_setting(name, &reference, settings).await
        } else {
            return None;
        };
        Some(StoredValue {
            name,
            reference,
            read,
        })
    });
    join_all(reads).await.into_iter().flatten().collect()
}

/// Returns the secret with this name.
async fn read_secret(reference: &str, secrets: &dyn Secrets) -> Result<String, String> {
    let secret = SecretName::parse(reference).ok_or_else(|| {
        format!(
            "{reference} is neither the ARN of a secret of Secrets Manager nor of a parameter of SSM"
        )
    })?;
    let read = secrets.read(&secret).await;
    read.map_err(|error| format!("names the secret {reference}, which cannot be read: {error}"))
}

/// Only the list of sources may be large enough to be stored in S3. Secrets belong in a service for
/// secrets.
async fn read_setting(
    name: &str,
    reference: &str,
    settings: &dyn StoredSettings,
) -> Result<String, String> {
    if name != "SOURCES" {
        return Err(format!(
            "{reference} is an address in S3, where only SOURCES may be stored"
        ));
    }
    let address = SettingAddress::parse(reference)
        .ok_or_else(|| format!("{reference} is no address in S3: write s3://bucket/key"))?;
    let read = settings.read(&address).await;
    read.map_err(|error| format!("is stored at {reference}, which cannot be read: {error}"))
}
