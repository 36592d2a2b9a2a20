//! Values of settings that are stored elsewhere: secrets, and lists in S3.

use crate::ports::{SecretName, Secrets, SettingAddress, StoredSettings};

/// Returns the secret with this name.
pub(super) async fn read_secret(reference: &str, secrets: &dyn Secrets) -> Result<String, String> {
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
pub(super) async fn read_setting(
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
