//! Settings in S3, each read with one request.

use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::error::{DisplayErrorContext, ProvideErrorMetadata};

use super::error::status;
use crate::ports::{MAX_SETTING_BYTES, SettingAddress, SettingError, StoredSettings};

/// Settings in S3.
#[derive(Debug)]
pub struct S3Settings {
    client: Client,
}

impl S3Settings {
    /// Returns a reader with this client.
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

#[async_trait]
impl StoredSettings for S3Settings {
    async fn read(&self, address: &SettingAddress) -> Result<String, SettingError> {
        let SettingAddress { bucket, key } = address;
        let sent = self.client.get_object().bucket(bucket).key(key).send();
        let response = sent.await.map_err(|error| {
            SettingError(match (status(&error), error.code()) {
                (Some(404), Some(code)) => {
                    format!("{code}: upload the value there, or correct the address")
                }
                (Some(403), code) => format!(
                    "{}: the function needs s3:GetObject, and kms:Decrypt if a KMS key encrypts the object; without \
                     s3:ListBucket, S3 also answers this for a key that does not exist",
                    code.unwrap_or("403")
                ),
                _ => DisplayErrorContext(&error).to_string(),
            })
        })?;
        let mut body = response.body;
        let mut bytes = Vec::new();
        while let Some(chunk) = body.try_next().await.map_err(|error| {
            SettingError(format!(
                "the response was interrupted: {}",
                DisplayErrorContext(&error)
            ))
        })? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MAX_SETTING_BYTES {
                return Err(SettingError(format!(
                    "it has more than {MAX_SETTING_BYTES} bytes"
                )));
            }
        }
        String::from_utf8(bytes).map_err(|_| SettingError("it is not UTF-8".to_owned()))
    }
}
