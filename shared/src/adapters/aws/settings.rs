//! Settings in S3, each read with one request.

use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::error::{DisplayErrorContext, ProvideErrorMetadata};

use super::error::status;
use crate::ports::{MAX_SETTING_BYTES, SettingAddress, SettingError, StoredSettings};

/// The header by which S3 says in which region a bucket is.
const BUCKET_REGION: &str = "x-amz-bucket-region";

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
                (Some(301), _) => {
                    let response = error.raw_response();
                    let region = response.and_then(|it| it.headers().get(BUCKET_REGION));
                    format!(
                        "the bucket is in {}: the object has to be in the region of the function",
                        region.unwrap_or("another region")
                    )
                }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use aws_credential_types::Credentials;
    use aws_credential_types::provider::SharedCredentialsProvider;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::adapters::aws::{AwsClients, AwsEnvironment};

    /// Returns a reader whose S3 is at this address.
    fn settings_of(endpoint: String) -> S3Settings {
        let variables = BTreeMap::from([
            ("AWS_REGION".to_owned(), "eu-west-1".to_owned()),
            ("AWS_ENDPOINT_URL".to_owned(), endpoint),
        ]);
        let keys = Credentials::new("key", "secret", None, None, "test");
        let config = AwsClients::sdk_config(AwsEnvironment::of(&variables)).into_builder();
        let config = config.credentials_provider(SharedCredentialsProvider::new(keys));
        S3Settings::new(AwsClients::from_sdk_config(&config.build()).s3)
    }

    #[tokio::test]
    async fn the_error_of_an_object_in_another_region_names_that_region() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let settings = settings_of(format!("http://{}", listener.local_addr().unwrap()));
        let address = SettingAddress {
            bucket: "settings".to_owned(),
            key: "sources.json".to_owned(),
        };
        let answered = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
            let body = "<Error><Code>PermanentRedirect</Code></Error>";
            let answer = format!(
                "HTTP/1.1 301 Moved Permanently\r\nx-amz-bucket-region: us-east-1\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream
        };
        let (read, _stream) = tokio::join!(settings.read(&address), answered);
        let why = "the bucket is in us-east-1: the object has to be in the region of the function";
        assert_eq!(read, Err(SettingError(why.to_owned())));
    }
}
