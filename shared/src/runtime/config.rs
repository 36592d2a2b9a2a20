//! The settings of the functions: read as found, then checked together.
//!
//! The only code that reads the environment. `infra/template.yaml` sets every variable; a test compares the two.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::cache::Policy;
use crate::flows::Settings;

/// Where a variable is set that is not.
const TEMPLATE: &str = "infra/template.yaml, Globals.Function.Environment";

/// Every variable as it was found.
#[derive(Clone, Debug, Default)]
pub struct RawEnv(BTreeMap<String, String>);

impl RawEnv {
    /// Reads the environment of this process; what is not Unicode is passed over.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the environment"
    )]
    pub fn read() -> Self {
        Self(
            std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
        )
    }
}

impl<const N: usize> From<[(&str, &str); N]> for RawEnv {
    fn from(variables: [(&str, &str); N]) -> Self {
        Self(
            variables
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        )
    }
}

/// The settings, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The table of records.
    pub cache_table: String,
    /// The bucket of derived caches.
    pub caches_bucket: String,
    /// The bucket that users upload to.
    pub uploads_bucket: String,
    /// The queue of builds that somebody waits for.
    pub eager_lane: String,
    /// The queue of events of the uploads bucket.
    pub uploads_lane: String,
    /// The queue of builds that nobody waits for.
    pub refresh_lane: String,
    /// What is logged, as `tracing-subscriber` filters say it.
    pub log: String,
    /// CPU time that the parser of a DIF may use.
    pub parser_cpu: Duration,
    /// Where scratch files go.
    pub scratch_folder: PathBuf,
    /// The settings of the flows.
    pub settings: Settings,
}

/// What is wrong with the environment: every problem, not only the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(Vec<(&'static str, String)>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "configuration is incomplete:")?;
        let width = self
            .0
            .iter()
            .map(|(name, _)| name.len())
            .max()
            .unwrap_or_default();
        for (name, problem) in &self.0 {
            write!(f, "\n  {name:width$}  {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Checks the environment.
    pub fn from_env(env: &RawEnv) -> Result<Self, ConfigError> {
        let mut env = Reader {
            env,
            problems: Vec::new(),
        };
        let config = Self {
            cache_table: env.text("CACHE_TABLE"),
            caches_bucket: env.text("CACHES_BUCKET"),
            uploads_bucket: env.text("UPLOADS_BUCKET"),
            eager_lane: env.text("EAGER_LANE_URL"),
            uploads_lane: env.text("UPLOADS_LANE_URL"),
            refresh_lane: env.text("REFRESH_LANE_URL"),
            log: env.text("LOG"),
            parser_cpu: env.seconds("PARSER_CPU_SECONDS"),
            // Set by Lambda's rules, not by the template: the only folder that can be written to.
            scratch_folder: env
                .env
                .0
                .get("TMPDIR")
                .map_or_else(|| PathBuf::from("/tmp"), PathBuf::from),
            settings: Settings {
                policy: Policy {
                    derived_max_unused: env.seconds("DERIVED_MAX_UNUSED"),
                    retry_misses_after: env.seconds("RETRY_MISSES_AFTER"),
                    retry_malformed_after: env.seconds("RETRY_MALFORMED_AFTER"),
                    max_attempts: u32::try_from(env.number("MAX_ATTEMPTS", "a number"))
                        .unwrap_or(u32::MAX),
                },
                dif_max_bytes: env.number("DIF_MAX_BYTES", "a number of bytes"),
                scratch_bytes: env.number("SCRATCH_BYTES", "a number of bytes"),
                parser_memory_bytes: env.number("PARSER_MEMORY_BYTES", "a number of bytes"),
                request_lifetime: env.seconds("REQUEST_LIFETIME"),
                orphan_min_age: env.seconds("ORPHAN_MIN_AGE"),
                sweep_read_units: env.number("SWEEP_READ_UNITS", "a number of read units a second"),
                reconcile_after: env.seconds("RECONCILE_AFTER"),
                derived_budget_bytes: env.number("DERIVED_BUDGET_BYTES", "a number of bytes"),
                memory_cache_bytes: env.number("MEMORY_CACHE_BYTES", "a number of bytes"),
            },
        };
        if env.problems.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError(env.problems))
        }
    }
}

/// Reads variables, and collects what is wrong with them.
struct Reader<'a> {
    env: &'a RawEnv,
    problems: Vec<(&'static str, String)>,
}

impl Reader<'_> {
    fn text(&mut self, name: &'static str) -> String {
        match self.env.0.get(name).map(|value| value.trim()) {
            None | Some("") => {
                self.problems
                    .push((name, format!("is not set ({TEMPLATE})")));
                String::new()
            }
            Some(value) => value.to_owned(),
        }
    }

    fn number(&mut self, name: &'static str, what: &str) -> u64 {
        let text = self.text(name);
        if text.is_empty() {
            return 0;
        }
        text.parse().unwrap_or_else(|_| {
            self.problems
                .push((name, format!("{text:?} is not {what}")));
            0
        })
    }

    fn seconds(&mut self, name: &'static str) -> Duration {
        Duration::from_secs(self.number(name, "a number of seconds"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_reported_with_its_variable() {
        let env = RawEnv::from([("CACHE_TABLE", "t"), ("SCRATCH_BYTES", "2G"), ("LOG", " ")]);
        let error = Config::from_env(&env).unwrap_err().to_string();
        assert!(
            error.starts_with("configuration is incomplete:\n"),
            "{error}"
        );
        assert!(
            error.contains("SCRATCH_BYTES          \"2G\" is not a number of bytes"),
            "{error}"
        );
        assert!(
            error.contains("LOG                    is not set (infra/template.yaml"),
            "{error}"
        );
        assert!(
            error.contains("UPLOADS_BUCKET         is not set"),
            "{error}"
        );
        assert!(!error.contains("CACHE_TABLE"), "{error}");
    }
}
