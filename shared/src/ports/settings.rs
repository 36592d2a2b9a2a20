//! Settings that are stored in S3: the variables of a function hold 4 KB together (AWS Lambda
//! Developer Guide, "Lambda quotas").

use std::fmt;

use async_trait::async_trait;

/// Reads settings that are stored in S3.
#[async_trait]
pub trait StoredSettings: fmt::Debug + Send + Sync {
    /// Returns the text at an address, of at most [`MAX_SETTING_BYTES`].
    async fn read(&self, address: &SettingAddress) -> Result<String, SettingError>;
}

/// The maximum size of a stored setting, in bytes.
pub const MAX_SETTING_BYTES: usize = 1 << 20;

/// Where a setting is stored. Its text form is `s3://bucket/key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingAddress {
    /// The bucket.
    pub bucket: String,
    /// The key in the bucket.
    pub key: String,
}

/// Why a stored setting cannot be read. The text never contains the setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingError(pub String);

impl SettingAddress {
    /// The prefix of every address. No value of a setting begins with it.
    pub const PREFIX: &str = "s3://";

    /// Parses an address; `None` if it names no bucket or no key.
    pub fn parse(text: &str) -> Option<Self> {
        let (bucket, key) = text.strip_prefix(Self::PREFIX)?.split_once('/')?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        let is_sound = !bucket.is_empty()
            && bucket.chars().all(is_name)
            && (1..=1024).contains(&key.len())
            && !key.chars().any(char::is_control);
        is_sound.then(|| Self {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
        })
    }
}

impl fmt::Display for SettingAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}/{}", Self::PREFIX, self.bucket, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_a_bucket_and_a_key() {
        for text in ["s3://bucket/key", "s3://my.bucket-1/a/b c.json", "s3://b//"] {
            assert_eq!(SettingAddress::parse(text).unwrap().to_string(), text);
        }
        for bad in [
            "s3://",
            "s3://bucket",
            "s3://bucket/",
            "s3:///key",
            "s3://b c/key",
            "s3://b/a\nb",
        ] {
            assert_eq!(SettingAddress::parse(bad), None, "{bad:?}");
        }
    }
}
