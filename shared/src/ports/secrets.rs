//! Secrets: settings that are stored in AWS Secrets Manager, or as parameters of AWS Systems
//! Manager (SSM).

use std::fmt;

use async_trait::async_trait;

/// Reads secrets.
#[async_trait]
pub trait Secrets: fmt::Debug + Send + Sync {
    /// Returns the current value of a secret.
    async fn read(&self, name: &SecretName) -> Result<String, SecretError>;
}

/// The ARN of a secret.
///
/// Source: AWS General Reference, "Amazon Resource Names (ARNs)"; Service Authorization Reference,
/// resource types of Secrets Manager and Systems Manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretName {
    /// The whole ARN.
    pub arn: String,
    /// The service that stores it.
    pub service: SecretService,
    /// The partition, as `aws`.
    pub partition: String,
    /// The region.
    pub region: String,
}

/// A service that stores secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretService {
    /// AWS Secrets Manager.
    SecretsManager,
    /// The parameter store of AWS Systems Manager.
    Ssm,
}

/// Why a secret cannot be read. The text never contains the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SecretError(pub String);

impl SecretName {
    /// The prefix of every ARN. No value of a setting begins with it.
    pub const PREFIX: &str = "arn:";

    /// Parses an ARN; `None` if it belongs to neither service.
    pub fn parse(arn: &str) -> Option<Self> {
        let mut parts = arn.splitn(6, ':');
        let mut next = || parts.next().filter(|part| !part.is_empty());
        let ("arn", partition, service, region, _account, resource) =
            (next()?, next()?, next()?, next()?, next()?, next()?)
        else {
            return None;
        };
        let (service, begins) = match service {
            "secretsmanager" => (SecretService::SecretsManager, "secret:"),
            "ssm" => (SecretService::Ssm, "parameter/"),
            _ => return None,
        };
        let name = resource.strip_prefix(begins)?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let is_sound = !name.is_empty() && region.chars().all(is_plain);
        is_sound.then(|| Self {
            arn: arn.to_owned(),
            service,
            partition: partition.to_owned(),
            region: region.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arn_of_a_secret_names_service_and_region() {
        for (arn, service, partition) in [
            (
                "arn:aws:secretsmanager:eu-central-1:123456789012:secret:symdepot/sources-AbCdEf",
                SecretService::SecretsManager,
                "aws",
            ),
            (
                "arn:aws-cn:ssm:cn-north-1:123456789012:parameter/symdepot/sources",
                SecretService::Ssm,
                "aws-cn",
            ),
        ] {
            let name = SecretName::parse(arn).unwrap();
            assert_eq!((name.service, &*name.partition), (service, partition));
            assert_eq!(name.arn, arn);
        }
        for bad in [
            "arn:aws:s3:::bucket",
            "arn:aws:ssm:eu-central-1:123456789012:parameter/",
            "arn:aws:ssm:eu-central-1:123456789012:document/a",
            "arn:aws:secretsmanager:eu-central-1:123456789012:secret:",
            "arn:aws:secretsmanager::123456789012:secret:a",
            "arn:aws:secretsmanager:evil.example/:123456789012:secret:a",
            "arn:aws:ssm",
        ] {
            assert_eq!(SecretName::parse(bad), None, "{bad}");
        }
    }
}
