//! The settings of the functions: read as found, then checked together.
//!
//! The only code that reads the environment. `infra/template.yaml` sets every variable; a test compares the two.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use crate::adapters::parser::transcoder::Transcoder;
use crate::cache::Policy;
use crate::domain::{FormatVersion, HttpSource};
use crate::flows::prune::UNNAMED_MIN_AGE;
use crate::flows::{Server, Settings, SourceSecret};

/// The bodies of pending requests expire a day after they were written: a lifecycle rule of the bucket, in the template.
const MAX_REQUEST_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Where a variable is set that is not.
const TEMPLATE: &str = "infra/template.yaml, Globals.Function.Environment";

/// What a variable says where there is nothing.
const NONE: &str = "none";

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
    /// Whether files are parsed only where there is a sandbox for it.
    pub parser_needs_sandbox: bool,
    /// Where scratch files go.
    pub scratch_folder: PathBuf,
    /// Whether symbol servers may be in private networks, or on this machine.
    pub allow_private_sources: bool,
    /// The tools that make Microsoft's SymCaches of PDBs.
    pub transcoders: Vec<Transcoder>,
    /// Time that such a tool may take over one PDB.
    pub transcoder_time: Duration,
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
        let allows_definitions = env.flag("ALLOW_REQUEST_SOURCES");
        let source_secret = env.text("REQUEST_SOURCES_SECRET");
        let symbol_server = env.text("SYMBOL_SERVER");
        let request_lifetime = env.seconds("REQUEST_LIFETIME");
        let orphan_min_age = env.seconds("ORPHAN_MIN_AGE");
        env.check_ages(request_lifetime, orphan_min_age);
        let paths = env.list("TRANSCODER_PATH");
        let versions = env.list("TRANSCODER_VERSION");
        let transcoders = env.transcoders(paths, versions);
        let config = Self {
            cache_table: env.text("CACHE_TABLE"),
            caches_bucket: env.text("CACHES_BUCKET"),
            uploads_bucket: env.text("UPLOADS_BUCKET"),
            eager_lane: env.text("EAGER_LANE_URL"),
            uploads_lane: env.text("UPLOADS_LANE_URL"),
            refresh_lane: env.text("REFRESH_LANE_URL"),
            log: env.text("LOG"),
            parser_cpu: env.seconds("PARSER_CPU_SECONDS"),
            parser_needs_sandbox: env.flag("PARSER_NEEDS_SANDBOX"),
            // Set by Lambda's rules, not by the template: the only folder that can be written to.
            scratch_folder: env
                .env
                .0
                .get("TMPDIR")
                .map_or_else(|| PathBuf::from("/tmp"), PathBuf::from),
            allow_private_sources: env.flag("ALLOW_PRIVATE_SOURCES"),
            transcoder_time: env.seconds("TRANSCODER_SECONDS"),
            transcoders: transcoders.clone(),
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
                request_lifetime,
                orphan_min_age,
                sources: env.sources("SOURCES", &symbol_server),
                transcoded: transcoders.iter().map(|tool| tool.version).collect(),
                request_sources: env.source_secret(allows_definitions, &source_secret),
                retry_public_misses_after: env.seconds("RETRY_PUBLIC_MISSES_AFTER"),
                sweep_read_units: env.number("SWEEP_READ_UNITS", "a number of read units a second"),
                reconcile_after: env.seconds("RECONCILE_AFTER"),
                derived_budget_bytes: env.number("DERIVED_BUDGET_BYTES", "a number of bytes"),
                dif_max_unused: env.seconds("DIF_MAX_UNUSED"),
                dif_budget_bytes: env.number("DIF_BUDGET_BYTES", "a number of bytes"),
                source_max_visits: usize::try_from(env.number("SOURCE_MAX_VISITS", "a number"))
                    .unwrap_or(usize::MAX),
                max_losses_per_hour: env.number("MAX_LOSSES_PER_HOUR", "a number of blobs"),
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

    fn flag(&mut self, name: &'static str) -> bool {
        match self.text(name).as_str() {
            "1" => true,
            "0" | "" => false,
            text => {
                let problem = format!("{text:?} is neither 0 nor 1");
                self.problems.push((name, problem));
                false
            }
        }
    }

    fn source_secret(&mut self, is_wanted: bool, text: &str) -> Option<SourceSecret> {
        let secret = is_wanted.then(|| SourceSecret::new(text))?;
        if secret.is_none() {
            let problem = format!(
                "has fewer than {} characters, which ALLOW_REQUEST_SOURCES=1 wants",
                SourceSecret::MIN_CHARS
            );
            self.problems.push(("REQUEST_SOURCES_SECRET", problem));
        }
        secret
    }

    /// Checks the ages at which something is removed that clients or builders may still use.
    fn check_ages(&mut self, request_lifetime: Duration, orphan_min_age: Duration) {
        if request_lifetime > MAX_REQUEST_LIFETIME {
            let problem = format!(
                "is {} s: the body of a request is removed after a day, so set at most {}",
                request_lifetime.as_secs(),
                MAX_REQUEST_LIFETIME.as_secs()
            );
            self.problems.push(("REQUEST_LIFETIME", problem));
        }
        if !orphan_min_age.is_zero() && orphan_min_age < UNNAMED_MIN_AGE {
            let problem = format!(
                "is {} s: plain SymCaches and parts of copies are in use for longer without a record that names them, so \
                 set at least {}, or 0 to have derived caches alone removed at once",
                orphan_min_age.as_secs(),
                UNNAMED_MIN_AGE.as_secs()
            );
            self.problems.push(("ORPHAN_MIN_AGE", problem));
        }
    }

    /// Returns the tools at these paths, of which each makes one of the versions.
    fn transcoders(&mut self, paths: Vec<String>, versions: Vec<String>) -> Vec<Transcoder> {
        let version = "TRANSCODER_VERSION";
        if paths.len() != versions.len() {
            let (paths, versions) = (paths.len(), versions.len());
            let problem = format!("has {versions} versions for the {paths} of TRANSCODER_PATH");
            self.problems.push((version, problem));
        }
        let mut tools: Vec<Transcoder> = Vec::new();
        for (tool, text) in paths.into_iter().zip(versions) {
            let problem = match text.parse::<FormatVersion>() {
                Err(error) => error.to_string(),
                Ok(made) if made < FormatVersion::FIRST => {
                    format!(
                        "{made} is below {}, the first version",
                        FormatVersion::FIRST
                    )
                }
                Ok(made) if tools.iter().any(|tool| tool.version.major == made.major) => {
                    format!("has two versions of major version {}", made.major)
                }
                Ok(made) => {
                    tools.push(Transcoder {
                        path: PathBuf::from(tool),
                        version: made,
                    });
                    continue;
                }
            };
            self.problems.push((version, problem));
        }
        tools
    }

    /// Reads texts with commas between them; `none` is none.
    fn list(&mut self, name: &'static str) -> Vec<String> {
        let text = self.text(name);
        let texts = text.split(',').map(str::trim);
        let texts = texts.filter(|text| !text.is_empty() && *text != NONE);
        texts.map(str::to_owned).collect()
    }

    /// Reads the list of sources, and the one that is given by its address alone.
    fn sources(&mut self, name: &'static str, address: &str) -> Vec<Server> {
        let text = self.text(name);
        let mut json = serde_json::Deserializer::from_str(&text);
        let mut sources: Vec<HttpSource> = match serde_path_to_error::deserialize(&mut json) {
            Ok(sources) => sources,
            Err(_) if text.is_empty() => Vec::new(),
            Err(error) => {
                let problem = format!("is not a list of sources: {error}");
                self.problems.push((name, problem));
                Vec::new()
            }
        };
        if !matches!(address, "" | NONE) {
            let definition = json!({
                "type": "http",
                "id": "symbol-server",
                "url": address,
                "layout": {"type": "symsrv"},
                "filters": {"filetypes": ["pe", "pdb"]},
            });
            match serde_json::from_value(definition) {
                Ok(source) => sources.push(source),
                Err(error) => self.problems.push(("SYMBOL_SERVER", error.to_string())),
            }
        }
        let ids: Vec<&str> = sources.iter().map(|source| source.id.as_str()).collect();
        if let Some(twice) = (1..ids.len()).find(|at| ids[..*at].contains(&ids[*at])) {
            let problem = format!("{:?} is the id of two sources", ids[twice]);
            self.problems.push((name, problem));
        }
        sources.into_iter().map(Server::from).collect()
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
        let lines: Vec<String> = error
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        for problem in [
            "SCRATCH_BYTES \"2G\" is not a number of bytes",
            "LOG is not set (infra/template.yaml, Globals.Function.Environment)",
            "UPLOADS_BUCKET is not set (infra/template.yaml, Globals.Function.Environment)",
        ] {
            assert!(lines.iter().any(|line| line == problem), "{error}");
        }
        assert!(!error.contains("CACHE_TABLE"), "{error}");
    }

    /// L9.
    #[test]
    fn ages_at_which_something_is_removed_that_is_still_used_are_refused() {
        let problem = |name: &str, value: &str| {
            let env = RawEnv::from([(name, value)]);
            let error = Config::from_env(&env).unwrap_err().to_string();
            let mut lines = error.lines().map(str::trim_start);
            let line = lines.find(|line| line.starts_with(name));
            line.map(str::to_owned)
        };
        for (name, good) in [
            ("REQUEST_LIFETIME", "86400"),
            ("ORPHAN_MIN_AGE", "0"),
            ("ORPHAN_MIN_AGE", "1500"),
        ] {
            assert_eq!(problem(name, good), None, "{name} {good}");
        }
        for (name, bad, says) in [
            ("REQUEST_LIFETIME", "86401", "set at most 86400"),
            ("ORPHAN_MIN_AGE", "1499", "set at least 1500, or 0"),
            ("ORPHAN_MIN_AGE", "1", "is 1 s"),
        ] {
            let problem = problem(name, bad).unwrap();
            assert!(problem.contains(says), "{problem}");
        }
    }

    #[test]
    fn transcoders_are_one_a_major_version() {
        let read = |paths: &str, versions: &str| {
            let env = RawEnv::from([("P", paths), ("V", versions)]);
            let mut reader = Reader {
                env: &env,
                problems: Vec::new(),
            };
            let (paths, versions) = (reader.list("P"), reader.list("V"));
            let tools = reader.transcoders(paths, versions);
            let tools = tools
                .iter()
                .map(|tool| format!("{}@{}", tool.path.display(), tool.version));
            (tools.collect::<Vec<_>>(), reader.problems)
        };
        let good = |paths, versions, expected: &[&str]| {
            let (tools, problems) = read(paths, versions);
            assert_eq!(tools, expected);
            assert_eq!(problems, []);
        };
        good("none", "none", &[]);
        good("/opt/symcachegen", "3.1.0", &["/opt/symcachegen@3.1.0"]);
        good("/a, /b", "3.1.0,4.5.0", &["/a@3.1.0", "/b@4.5.0"]);
        let bad = |paths, versions, expected: &str| {
            let (_, problems) = read(paths, versions);
            assert!(
                problems
                    .iter()
                    .any(|(_, problem)| problem.contains(expected)),
                "{problems:?}"
            );
        };
        bad("/a", "none", "has 0 versions for the 1 of TRANSCODER_PATH");
        bad("/a,/b", "3.1.0,3.2.0", "two versions of major version 3");
        bad("/a", "3.1", "is not a version");
        bad("/a", "2.9.0", "below 3.0.0");
    }

    #[test]
    fn a_symbol_server_may_be_given_by_its_address_alone() {
        let read = |address: &str| {
            let env = RawEnv::from([("S", "[]")]);
            let mut reader = Reader {
                env: &env,
                problems: Vec::new(),
            };
            let sources = reader.sources("S", address);
            (sources.len(), reader.problems.len())
        };
        assert_eq!(read("none"), (0, 0));
        assert_eq!(read("https://symbols.test/download/symbols"), (1, 0));
        assert_eq!(read("symbols.test"), (0, 1));
    }

    #[test]
    fn what_is_no_list_of_sources_is_refused_with_its_place() {
        let problem = |sources: &str| {
            let env = RawEnv::from([("SOURCES", sources), ("ALLOW_PRIVATE_SOURCES", "yes")]);
            Config::from_env(&env).unwrap_err().to_string()
        };
        let http = r#"{"type": "http", "id": "a", "url": "http://x"}"#;
        assert!(!problem(&format!("[{http}]")).contains("list of sources"));
        assert!(
            problem("[{}]").contains("[0]: missing field `type`"),
            "{}",
            problem("[{}]")
        );
        assert!(problem(&format!("[{http}, {http}]")).contains(r#""a" is the id of two sources"#));
        assert!(problem("[]").contains(r#""yes" is neither 0 nor 1"#));
    }
}
