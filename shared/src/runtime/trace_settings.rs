//! Where traces are exported to, and which.
//!
//! Source of the variables: OpenTelemetry specification, "OpenTelemetry Protocol Exporter" and
//! "Environment Variable Specification".

use percent_encoding::percent_decode_str;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

use crate::domain::{Sampler, SamplerError};

/// The value of a variable that means that it is not set.
const NONE: &str = "none";

/// The variable with the address that traces are sent to.
pub(super) const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";

/// The variable with the address of the collector, to which the path for traces is appended.
pub(super) const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// The variable with the headers of exported traces, which may be the name of a secret.
pub(super) const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";

/// Returns whether a variable with this value is set.
pub(super) fn is_set(value: &str) -> bool {
    !matches!(value, "" | NONE)
}

/// How traces are exported. Values of headers, which may be secrets, are not shown.
#[derive(Clone, Debug)]
pub struct TraceSettings {
    /// Where spans are sent to.
    pub endpoint: Url,
    /// The headers of these requests.
    pub headers: HeaderMap,
    /// The name of the service.
    pub service: String,
    /// The traces that are recorded.
    pub sampler: Sampler,
}

/// The variables.
pub(super) struct TraceVariables {
    pub(super) endpoint: String,
    pub(super) traces_endpoint: String,
    pub(super) headers: String,
    pub(super) service: String,
    pub(super) sampler: String,
    pub(super) sampler_argument: String,
}

impl TraceVariables {
    /// Checks the variables; `None` if no traces are exported. Each problem has its variable.
    pub(super) fn check(self, problems: &mut Vec<(&'static str, String)>) -> Option<TraceSettings> {
        let address = match (&*self.traces_endpoint, &*self.endpoint) {
            (exact, _) if is_set(exact) => (TRACES_ENDPOINT, self.traces_endpoint.clone()),
            (_, base) if is_set(base) => {
                let base = base.trim_end_matches('/');
                (ENDPOINT, format!("{base}/v1/traces"))
            }
            _ => return None,
        };
        let before = problems.len();
        let endpoint = Url::parse(&address.1).ok();
        let endpoint = endpoint.filter(|url| matches!(url.scheme(), "http" | "https"));
        if endpoint.is_none() {
            // It may contain a credential.
            let problem = "is no address of the form https://host[:port]".to_owned();
            problems.push((address.0, problem));
        }
        let headers = headers(&self.headers).unwrap_or_else(|| {
            let problem = "is no list of the form name=value,name=value".to_owned();
            problems.push((HEADERS, problem));
            HeaderMap::new()
        });
        let sampler = Sampler::named(&self.sampler, &self.sampler_argument);
        match sampler {
            Err(SamplerError::Name) => {
                let problem = format!("{:?} is no sampler of OpenTelemetry", self.sampler);
                problems.push(("OTEL_TRACES_SAMPLER", problem));
            }
            Err(SamplerError::Argument) => {
                let problem = format!("{:?} is no number from 0 to 1", self.sampler_argument);
                problems.push(("OTEL_TRACES_SAMPLER_ARG", problem));
            }
            Ok(_) => {}
        }
        if problems.len() > before {
            return None;
        }
        Some(TraceSettings {
            endpoint: endpoint?,
            headers,
            service: self.service,
            sampler: sampler.ok()?,
        })
    }
}

/// Parses a list of headers, whose values are percent-encoded.
fn headers(text: &str) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    let pairs = text.split(',').map(str::trim);
    for pair in pairs.filter(|pair| !pair.is_empty() && *pair != NONE) {
        let (name, value) = pair.split_once('=')?;
        let name: HeaderName = name.trim().parse().ok()?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        let mut value: HeaderValue = value.parse().ok()?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(endpoint: &str, traces_endpoint: &str, headers: &str) -> TraceVariables {
        TraceVariables {
            endpoint: endpoint.to_owned(),
            traces_endpoint: traces_endpoint.to_owned(),
            headers: headers.to_owned(),
            service: "symbols".to_owned(),
            sampler: "parentbased_traceidratio".to_owned(),
            sampler_argument: "0.25".to_owned(),
        }
    }

    fn endpoint(variables: TraceVariables) -> Option<String> {
        let mut problems = Vec::new();
        let settings = variables.check(&mut problems);
        assert_eq!(problems, []);
        settings.map(|settings| settings.endpoint.to_string())
    }

    #[test]
    fn the_address_is_built_as_the_specification_says() {
        assert_eq!(endpoint(variables("none", "none", "none")), None);
        for base in ["https://c.example:4318", "https://c.example:4318/"] {
            let built = endpoint(variables(base, "none", "none"));
            assert_eq!(built.unwrap(), "https://c.example:4318/v1/traces");
        }
        let exact = endpoint(variables("http://a", "http://b/otlp", "none"));
        assert_eq!(exact.unwrap(), "http://b/otlp");
    }

    #[test]
    fn headers_are_decoded_and_not_shown() {
        let mut problems = Vec::new();
        let variables = variables(
            "http://a",
            "none",
            "x-key=s3cret,authorization=Basic%20QQ%3D%3D",
        );
        let settings = variables.check(&mut problems).unwrap();
        assert_eq!(settings.headers["authorization"], "Basic QQ==");
        assert!(!format!("{settings:?}").contains("s3cret"));
    }

    #[test]
    fn each_problem_has_its_variable_and_quotes_no_secret() {
        let wrong = TraceVariables {
            sampler: "often".to_owned(),
            ..variables("s3cret", "none", "s3cret")
        };
        let mut problems = Vec::new();
        assert!(wrong.check(&mut problems).is_none());
        let names: Vec<&str> = problems.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            names,
            [
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                "OTEL_EXPORTER_OTLP_HEADERS",
                "OTEL_TRACES_SAMPLER"
            ]
        );
        assert!(!format!("{problems:?}").contains("s3cret"));
    }
}
