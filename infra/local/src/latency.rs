//! Artificial latency of the services, so that a function waits for them as it does in AWS.
//!
//! Only calls of functions are delayed: the head of the response is sent no earlier than the
//! latency of its service after the head of the request arrived. The operation itself is not
//! delayed. Calls of outside clients and of the stack itself, such as receiving messages for
//! functions, are not delayed either.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::guard::Guard;
use crate::iam::Access;
use crate::meter::{Meter, Service};

/// The maximum latency, in milliseconds; clients time out beyond it.
const MAX_MS: u64 = 60_000;

/// The name of [`Latency::AWS`].
const PRESET: &str = "aws";

/// The minimum time from a function's call to the first byte of the response, by service.
///
/// As text it is `aws` or a list such as `dynamodb=5,s3=15,sqs=8`, in milliseconds. A service that
/// is not in the list has no latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Of DynamoDB.
    pub dynamodb: Duration,
    /// Of S3.
    pub s3: Duration,
    /// Of SQS.
    pub sqs: Duration,
}

/// The error for a text that is not a latency.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{problem}; expected aws, or milliseconds for some of dynamodb, s3 and sqs, each from 0 to {MAX_MS}: dynamodb=5,s3=15,sqs=8"
)]
pub struct InvalidLatency {
    problem: String,
}

impl Latency {
    /// Typical latencies in AWS, for a function in the same region.
    pub const AWS: Self = Self {
        dynamodb: Duration::from_millis(5),
        s3: Duration::from_millis(15),
        sqs: Duration::from_millis(8),
    };

    /// Returns whether no service has a latency.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    pub(crate) fn of(self, service: Service) -> Duration {
        match service {
            Service::DynamoDb => self.dynamodb,
            Service::S3 => self.s3,
            Service::Sqs => self.sqs,
        }
    }
}

impl FromStr for Latency {
    type Err = InvalidLatency;

    fn from_str(text: &str) -> Result<Self, InvalidLatency> {
        let invalid = |problem: String| InvalidLatency { problem };
        let mut latency = Self::default();
        match text.trim() {
            "" => return Ok(latency),
            PRESET => return Ok(Self::AWS),
            _ => {}
        }
        let mut named = Vec::new();
        for part in text.split(',') {
            let part = part.trim();
            let (service, milliseconds) = part.split_once('=').ok_or_else(|| {
                invalid(format!("{part:?} is not of the form SERVICE=MILLISECONDS"))
            })?;
            let slot = match service {
                "dynamodb" => &mut latency.dynamodb,
                "s3" => &mut latency.s3,
                "sqs" => &mut latency.sqs,
                other => {
                    return Err(invalid(format!("{other:?} is not one of the services")));
                }
            };
            if named.contains(&service) {
                return Err(invalid(format!("{service} is listed twice")));
            }
            named.push(service);
            let number: u64 = milliseconds.parse().map_err(|_| {
                invalid(format!(
                    "{service}={milliseconds} is not a whole number of milliseconds"
                ))
            })?;
            if number > MAX_MS {
                return Err(invalid(format!("{service}={number} is over the maximum")));
            }
            *slot = Duration::from_millis(number);
        }
        Ok(latency)
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "dynamodb={},s3={},sqs={}",
            self.dynamodb.as_millis(),
            self.s3.as_millis(),
            self.sqs.as_millis()
        )
    }
}

/// The policies that an endpoint applies to calls: it refuses those of web pages, counts the
/// others, delays those of functions, and denies what the template does not allow.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// Counts calls.
    pub meter: Meter,
    /// Delays calls.
    pub latency: Latency,
    /// Refuses calls.
    pub guard: Guard,
    /// Denies calls.
    pub access: Access,
}

/// Calls are counted and not delayed or denied, under the default guard.
impl From<Meter> for Traffic {
    fn from(meter: Meter) -> Self {
        Self {
            meter,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_services_and_the_others_have_no_latency() {
        let some: Latency = "s3=15, sqs=0".parse().unwrap();
        let expected = Latency {
            s3: Duration::from_millis(15),
            ..Latency::default()
        };
        assert_eq!(some, expected);
        assert_eq!("".parse(), Ok(Latency::default()));
    }

    #[test]
    fn the_preset_equals_the_documented_list() {
        let aws: Latency = PRESET.parse().unwrap();
        assert_eq!(aws.to_string(), "dynamodb=5,s3=15,sqs=8");
        assert_eq!(aws.to_string().parse(), Ok(aws));
    }

    #[test]
    fn an_invalid_latency_is_refused_with_the_valid_forms() {
        for (text, problem) in [
            ("ec2=5", "\"ec2\" is not one of the services"),
            ("AWS", "\"AWS\" is not of the form SERVICE=MILLISECONDS"),
            ("s3", "\"s3\" is not of the form SERVICE=MILLISECONDS"),
            ("s3=fast", "s3=fast is not a whole number of milliseconds"),
            ("s3=-1", "s3=-1 is not a whole number of milliseconds"),
            ("s3=60001", "s3=60001 is over the maximum"),
            ("s3=1,s3=2", "s3 is listed twice"),
            ("s3=1,", "\"\" is not of the form SERVICE=MILLISECONDS"),
        ] {
            let error = text.parse::<Latency>().unwrap_err().to_string();
            assert!(error.starts_with(problem), "{text}: {error}");
            assert!(
                error.contains("dynamodb, s3 and sqs, each from 0 to 60000"),
                "{error}"
            );
        }
    }
}
