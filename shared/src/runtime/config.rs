//! The settings of the functions: read as text, then checked together.
//!
//! This is the only code that reads the environment. `infra/template.yaml` sets every variable; a
//! test compares the two.

mod lists;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use super::config_error::ConfigError;
use super::given;
use super::stored_values::{StoredValue, read_side_by_side};
use super::telemetry;
use super::trace_settings::{self, TraceSettings, TraceVariables};
use crate::adapters::aws::AwsEnvironment;
use crate::adapters::parser::transcoder::Transcoder;
use crate::cache::{Policy, ReleaseNumbers};
use crate::domain::SourceLinks;
use crate::flows::prune::UNNAMED_MIN_AGE;
use crate::flows::{Server, Settings, SourceSecret};
use crate::ports::{Secrets, StoredSettings};

/// The bodies of pending requests expire a day after they were written, by a lifecycle rule of the
/// bucket in the template.
const MAX_REQUEST_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The longest time that a setting may have, a hundred years: it can be added to any point in time.
const MAX_TIME: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The place where the variables are set, for error texts.
const TEMPLATE: &str = "infra/template.yaml, Environment";

/// The value of a variable that means an empty list, or no limit.
const NONE: &str = "none";

/// What a number is that must not be 0: with none, every build would be refused.
const AT_LEAST_ONE: &str = "a number of at least 1";

/// The endpoint of the records, which only the local stack sets to an address of this machine.
const RECORDS_ENDPOINT: &str = "AWS_ENDPOINT_URL_DYNAMODB";

/// The memory of the function in MB, which Lambda sets.
const OWN_MEMORY: &str = "AWS_LAMBDA_FUNCTION_MEMORY_SIZE";

/// What a function needs symbol servers for, and therefore how much it may know about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceUse {
    /// Nothing: it reads neither settings about them nor secrets.
    Nothing,
    /// Locations of files: it keeps ids and addresses, and drops credentials.
    Locations,
    /// Contents: it sends requests to them.
    Contents,
}

/// The variables of the environment, unparsed.
#[derive(Clone, Default)]
pub struct RawEnv {
    values: BTreeMap<String, String>,
    /// Where values were read that the environment only refers to, by variable.
    stored_at: BTreeMap<&'static str, String>,
}

/// Values are not shown, because some are secrets.
impl fmt::Debug for RawEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

impl RawEnv {
    /// Reads the environment of this process; variables that are not Unicode are ignored.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the environment"
    )]
    pub fn read() -> Self {
        let values = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Self {
            values: values.collect(),
            stored_at: BTreeMap::new(),
        }
    }

    /// Returns what the environment says about AWS.
    pub fn aws(&self) -> AwsEnvironment {
        AwsEnvironment::of(&self.values)
    }

    /// Replaces references in variables by what they refer to, for a function with this use of
    /// sources: the names of secrets, and the addresses of settings in S3. What the function does
    /// not need is not read.
    ///
    /// # Errors
    ///
    /// A reference is invalid, or cannot be read. The error contains the variable, the reference
    /// and the reason.
    pub async fn with_stored_values(
        mut self,
        sources: SourceUse,
        secrets: &dyn Secrets,
        settings: &dyn StoredSettings,
    ) -> Result<Self, ConfigError> {
        let may_define = self.values.get("ALLOW_REQUEST_SOURCES");
        let may_define = may_define.is_some_and(|flag| flag.trim() == "1");
        let of_source_code: &[&'static str] = match (sources, may_define) {
            (SourceUse::Nothing, _) => &[],
            (SourceUse::Locations | SourceUse::Contents, false) => &["SOURCES", "SOURCE_LINKS"],
            (SourceUse::Locations | SourceUse::Contents, true) => {
                &["SOURCES", "SOURCE_LINKS", "REQUEST_SOURCES_SECRET"]
            }
        };
        let endpoints = [trace_settings::TRACES_ENDPOINT, trace_settings::ENDPOINT];
        let mut endpoints = endpoints.iter().filter_map(|name| self.values.get(*name));
        let exports_traces = endpoints.any(|value| trace_settings::is_set(value));
        let of_traces = exports_traces.then_some(&trace_settings::HEADERS);
        let named = of_source_code.iter().chain(of_traces).filter_map(|name| {
            let reference = self.values.get(*name)?.trim().to_owned();
            Some((*name, reference))
        });
        let read = read_side_by_side(named, secrets, settings).await;
        let mut problems = Vec::new();
        for StoredValue {
            name,
            reference,
            read,
        } in read
        {
            match read {
                Ok(read) => {
                    self.values.insert(name.to_owned(), read);
                    self.stored_at.insert(name, reference);
                }
                Err(problem) => problems.push((name, problem)),
            }
        }
        if problems.is_empty() {
            Ok(self)
        } else {
            Err(ConfigError(problems))
        }
    }

    /// Returns a variable that Lambda sets, unchecked.
    pub(super) fn of_lambda(&self, name: &str) -> Option<&String> {
        self.values.get(name)
    }

    /// Returns whether this function runs on the local stack, where the records are on the same
    /// machine.
    fn is_of_the_local_stack(&self) -> bool {
        let endpoint = self.values.get(RECORDS_ENDPOINT);
        let endpoint = endpoint.and_then(|url| Url::parse(url).ok());
        match endpoint.as_ref().and_then(Url::host) {
            Some(url::Host::Domain(name)) => name == "localhost",
            Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
            Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
            None => false,
        }
    }
}

impl<const N: usize> From<[(&str, &str); N]> for RawEnv {
    fn from(variables: [(&str, &str); N]) -> Self {
        let values = variables.into_iter();
        let values = values.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self {
            values: values.collect(),
            stored_at: BTreeMap::new(),
        }
    }
}

/// The settings, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of the stack, which metrics carry.
    pub stack: String,
    /// The table of records.
    pub cache_table: String,
    /// The bucket of derived caches.
    pub caches_bucket: String,
    /// The bucket that users upload to.
    pub uploads_bucket: String,
    /// The bucket that clients write attachments to.
    pub attachments_bucket: String,
    /// The URL of the eager queue: builds that a request waits for.
    pub eager_queue: String,
    /// The URL of the uploads queue: events of the uploads bucket.
    pub uploads_queue: String,
    /// The URL of the refresh queue: builds that no request waits for.
    pub refresh_queue: String,
    /// The log filter, in the syntax of `tracing-subscriber`.
    pub log: String,
    /// CPU time that the parser of a DIF may use.
    pub parser_cpu: Duration,
    /// Whether to refuse to parse where system calls cannot be filtered.
    pub parser_needs_seccomp: bool,
    /// The folder of scratch files.
    pub scratch_folder: PathBuf,
    /// Whether symbol servers may be in private networks or on this machine.
    pub allow_private_sources: bool,
    /// The tools that make Microsoft's SymCaches from PDBs.
    pub transcoders: Vec<Transcoder>,
    /// Time that such a tool may take for one PDB.
    pub transcoder_time: Duration,
    /// How traces are exported, if they are.
    pub traces: Option<TraceSettings>,
    /// The settings of the flows.
    pub settings: Settings,
}

impl Config {
    /// Checks the environment of a function with this use of sources.
    pub fn from_env(env: &RawEnv, source_use: SourceUse) -> Result<Self, ConfigError> {
        let mut env = Environment {
            env,
            problems: Vec::new(),
        };
        let early = EarlySettings::read(&mut env, source_use);
        let traces = env.traces();
        let config = Self {
            traces,
            stack: env.text("STACK_NAME"),
            cache_table: env.text("CACHE_TABLE"),
            caches_bucket: env.text("CACHES_BUCKET"),
            uploads_bucket: env.text("UPLOADS_BUCKET"),
            attachments_bucket: env.text("ATTACHMENTS_BUCKET"),
            eager_queue: env.text("EAGER_QUEUE_URL"),
            uploads_queue: env.text("UPLOADS_QUEUE_URL"),
            refresh_queue: env.text("REFRESH_QUEUE_URL"),
            log: env.log_filter("LOG"),
            parser_cpu: env.seconds("PARSER_CPU_SECONDS"),
            parser_needs_seccomp: env.flag("PARSER_NEEDS_SECCOMP"),
            // Set by Lambda's rules, not by the template: the only writable folder.
            scratch_folder: env
                .env
                .values
                .get("TMPDIR")
                .map_or_else(|| PathBuf::from("/tmp"), PathBuf::from),
            allow_private_sources: early.allow_private_sources,
            transcoder_time: env.seconds("TRANSCODER_SECONDS"),
            transcoders: early.transcoders.clone(),
            settings: Self::settings(&mut env, early),
        };
        if env.problems.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError(env.problems))
        }
    }

    /// Returns the settings of the flows: these, and those that are not read yet.
    fn settings(env: &mut Environment<'_>, early: EarlySettings) -> Settings {
        Settings {
            policy: Policy {
                derived_max_unused: env.seconds("DERIVED_MAX_UNUSED"),
                retry_misses_after: env.seconds("RETRY_MISSES_AFTER"),
                retry_malformed_after: env.seconds("RETRY_MALFORMED_AFTER"),
                max_attempts: u32::try_from(env.number("MAX_ATTEMPTS", AT_LEAST_ONE))
                    .unwrap_or(u32::MAX),
                numbers: ReleaseNumbers::CURRENT,
            },
            dif_max_bytes: env.number("DIF_MAX_BYTES", "a number of bytes"),
            scratch_bytes: env.bytes("SCRATCH_BYTES", || {
                given::scratch_bytes(early.derive_scratch_mb)
            }),
            parser_memory_bytes: env.bytes("PARSER_MEMORY_BYTES", || {
                given::parser_memory_bytes(early.derive_memory_mb)
            }),
            queued_wait: env.optional_seconds("QUEUED_WAIT"),
            request_lifetime: early.request_lifetime,
            orphan_min_age: early.orphan_min_age,
            sources: early.sources.servers,
            transcoded: early.transcoders.iter().map(|tool| tool.version).collect(),
            request_sources: early.sources.secret,
            source_links: early.sources.links,
            source_event_parameters: early.source_event_parameters,
            attachment_hosts: early.attachment_hosts,
            retry_public_misses_after: env.seconds("RETRY_PUBLIC_MISSES_AFTER"),
            sweep_read_units: env.number("SWEEP_READ_UNITS", "a number of read units a second"),
            reconcile_after: env.seconds("RECONCILE_AFTER"),
            derived_budget_bytes: env.number("DERIVED_BUDGET_BYTES", "a number of bytes"),
            dif_max_unused: env.seconds("DIF_MAX_UNUSED"),
            dif_budget_bytes: env.number("DIF_BUDGET_BYTES", "a number of bytes"),
            source_max_permits: usize::try_from(env.number("SOURCE_MAX_PERMITS", AT_LEAST_ONE))
                .unwrap_or(usize::MAX),
            max_losses_per_hour: env.number("MAX_LOSSES_PER_HOUR", "a number of blobs"),
            memory_cache_bytes: env.memory_cache(),
            allows_anonymous: env.read_auth(&early.auth),
        }
    }
}

/// The settings that are read before the others. Problems are reported in the order of reading.
struct EarlySettings {
    allow_private_sources: bool,
    /// The text of `AUTH`, unchecked.
    auth: String,
    sources: SourceSettings,
    attachment_hosts: Vec<String>,
    source_event_parameters: Vec<String>,
    request_lifetime: Duration,
    orphan_min_age: Duration,
    transcoders: Vec<Transcoder>,
    derive_memory_mb: u64,
    derive_scratch_mb: u64,
}

impl EarlySettings {
    fn read(env: &mut Environment<'_>, source_use: SourceUse) -> Self {
        let allows_definitions = env.flag("ALLOW_REQUEST_SOURCES");
        let symbol_server = env.text("SYMBOL_SERVER");
        let allow_private_sources = env.private_sources();
        let auth = env.text("AUTH");
        let sources = match source_use {
            SourceUse::Nothing => SourceSettings::default(),
            SourceUse::Locations => {
                let sources = SourceSettings::read(env, allows_definitions, &symbol_server);
                sources.without_credentials()
            }
            SourceUse::Contents => SourceSettings::read(env, allows_definitions, &symbol_server),
        };
        let attachment_hosts = env.hosts("ATTACHMENT_HOSTS");
        let source_event_parameters = env.list("SOURCE_EVENT_PARAMETERS");
        let request_lifetime = env.seconds("REQUEST_LIFETIME");
        let orphan_min_age = env.seconds("ORPHAN_MIN_AGE");
        env.check_ages(request_lifetime, orphan_min_age);
        let paths = env.list("TRANSCODER_PATH");
        let versions = env.list("TRANSCODER_VERSION");
        let transcoders = env.transcoders(paths, versions);
        let derive_memory_mb = env.number("DERIVE_MEMORY_MB", "a number of megabytes");
        let derive_scratch_mb = env.number("DERIVE_SCRATCH_MB", "a number of megabytes");
        if source_use == SourceUse::Contents {
            env.check_memory_of_derive(derive_memory_mb);
        }
        Self {
            allow_private_sources,
            auth,
            sources,
            attachment_hosts,
            source_event_parameters,
            request_lifetime,
            orphan_min_age,
            transcoders,
            derive_memory_mb,
            derive_scratch_mb,
        }
    }
}

/// The settings about symbol servers, which only the functions that use these read.
#[derive(Default)]
struct SourceSettings {
    servers: Vec<Server>,
    links: SourceLinks,
    /// The secret for sources that requests define.
    secret: Option<SourceSecret>,
}

impl SourceSettings {
    fn read(env: &mut Environment<'_>, allows_definitions: bool, symbol_server: &str) -> Self {
        let secret = env.text("REQUEST_SOURCES_SECRET");
        let links = env.links("SOURCE_LINKS");
        let sources = env.sources("SOURCES", symbol_server);
        Self {
            servers: sources.into_iter().map(Server::from).collect(),
            links,
            secret: env.source_secret(allows_definitions, &secret),
        }
    }

    /// Drops the credentials of servers and of links.
    fn without_credentials(self) -> Self {
        let servers = self.servers.into_iter();
        Self {
            servers: servers.map(Server::without_credentials).collect(),
            links: self.links.without_credentials(),
            secret: self.secret,
        }
    }
}

/// Reads variables and collects their problems.
struct Environment<'a> {
    env: &'a RawEnv,
    problems: Vec<(&'static str, String)>,
}

impl Environment<'_> {
    fn text(&mut self, name: &'static str) -> String {
        match self.env.values.get(name).map(|value| value.trim()) {
            None | Some("") => {
                self.problems
                    .push((name, format!("is not set ({TEMPLATE})")));
                String::new()
            }
            Some(value) => value.to_owned(),
        }
    }

    fn log_filter(&mut self, name: &'static str) -> String {
        let filter = self.text(name);
        // The parser does not trim.
        let filter: Vec<&str> = filter.split(',').map(str::trim).collect();
        let filter = filter.join(",");
        // That it is not set was reported.
        if !filter.is_empty()
            && let Some(problem) = telemetry::problem_of(&filter)
        {
            self.problems.push((name, problem));
        }
        filter
    }

    fn number(&mut self, name: &'static str, what: &str) -> u64 {
        let text = self.text(name);
        if text.is_empty() {
            return 0;
        }
        let number = text.parse().ok();
        let number = number.filter(|number| *number > 0 || what != AT_LEAST_ONE);
        number.unwrap_or_else(|| {
            self.problems
                .push((name, format!("{text:?} is not {what}")));
            0
        })
    }

    /// Reads a number of bytes, or the one that follows from what the function was given.
    fn bytes(&mut self, name: &'static str, auto: impl FnOnce() -> u64) -> u64 {
        if self.is_auto(name) {
            auto()
        } else {
            self.number(name, "a number of bytes or auto")
        }
    }

    fn is_auto(&self, name: &str) -> bool {
        let value = self.env.values.get(name);
        value.is_some_and(|value| value.trim() == given::AUTO)
    }

    fn memory_cache(&mut self) -> u64 {
        let own = if self.is_auto("MEMORY_CACHE_BYTES") {
            self.number(OWN_MEMORY, "a number of megabytes")
        } else {
            0
        };
        self.bytes("MEMORY_CACHE_BYTES", || given::memory_cache_bytes(own))
    }

    /// Checks that `derive` has the memory from which the limit of its parser is computed. Its
    /// memory may have been changed without the template.
    fn check_memory_of_derive(&mut self, told: u64) {
        if !self.is_auto("PARSER_MEMORY_BYTES") {
            return;
        }
        let own = self.number(OWN_MEMORY, "a number of megabytes");
        if own != 0 && told != 0 && own != told {
            let problem = format!(
                "is {told}, but this function has {own} MB: change the parameter DeriveMemory, which sets both"
            );
            self.problems.push(("DERIVE_MEMORY_MB", problem));
        }
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

    /// Whether all sources may be in private networks. Allowed only on the local stack, where tests
    /// serve files.
    fn private_sources(&mut self) -> bool {
        let name = "ALLOW_PRIVATE_SOURCES";
        let allows = self.flag("ALLOW_PRIVATE_SOURCES");
        if allows && !self.env.is_of_the_local_stack() {
            let problem = "is 1, which is allowed on the local stack only: set \"is_private\": true on the sources in \
                           SOURCES that are in private networks";
            self.problems.push((name, problem.to_owned()));
            return false;
        }
        allows
    }

    /// Reads the text of `AUTH`. Returns whether requests need no credential, which is allowed only
    /// on the local stack, because only its machine reaches it.
    fn read_auth(&mut self, auth: &str) -> bool {
        let problem = match auth {
            "token" | "" => return false,
            "open" if self.env.is_of_the_local_stack() => return true,
            "open" => "is open, which is allowed on the local stack only: set token".to_owned(),
            other => format!("{other:?} is neither token nor open"),
        };
        self.problems.push(("AUTH", problem));
        false
    }

    /// Reads a time; `none` is no limit.
    fn optional_seconds(&mut self, name: &'static str) -> Option<Duration> {
        if self.text(name) == NONE {
            return None;
        }
        let seconds = self.number(name, "a number of seconds or none");
        Some(self.of_seconds(name, seconds))
    }

    fn traces(&mut self) -> Option<TraceSettings> {
        let env = self;
        let variables = TraceVariables {
            endpoint: env.text("OTEL_EXPORTER_OTLP_ENDPOINT"),
            traces_endpoint: env.text("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
            headers: env.text("OTEL_EXPORTER_OTLP_HEADERS"),
            service: env.text("OTEL_SERVICE_NAME"),
            sampler: env.text("OTEL_TRACES_SAMPLER"),
            sampler_argument: env.text("OTEL_TRACES_SAMPLER_ARG"),
        };
        variables.check(&mut env.problems)
    }

    fn source_secret(&mut self, is_wanted: bool, text: &str) -> Option<SourceSecret> {
        match SourceSecret::new(text) {
            Ok(secret) if is_wanted => Some(secret),
            Err(problem) if is_wanted => {
                let problem = format!("{problem}; ALLOW_REQUEST_SOURCES=1 requires a secret");
                self.problems.push(("REQUEST_SOURCES_SECRET", problem));
                None
            }
            _ => None,
        }
    }

    /// Checks the ages at which data is removed, so that nothing is removed while clients or
    /// builders use it.
    fn check_ages(&mut self, request_lifetime: Duration, orphan_min_age: Duration) {
        if request_lifetime > MAX_REQUEST_LIFETIME {
            let problem = format!(
                "is {} s, but the body of a request is removed after a day: set at most {}",
                request_lifetime.as_secs(),
                MAX_REQUEST_LIFETIME.as_secs()
            );
            self.problems.push(("REQUEST_LIFETIME", problem));
        }
        if !orphan_min_age.is_zero() && orphan_min_age < UNNAMED_MIN_AGE {
            let problem = format!(
                "is {} s, but plain SymCaches and chunks of copies are in use for longer without a record that names \
                 them: set at least {}, or 0 to remove only derived caches at once",
                orphan_min_age.as_secs(),
                UNNAMED_MIN_AGE.as_secs()
            );
            self.problems.push(("ORPHAN_MIN_AGE", problem));
        }
    }

    fn seconds(&mut self, name: &'static str) -> Duration {
        let seconds = self.number(name, "a number of seconds");
        self.of_seconds(name, seconds)
    }

    /// Returns a time that can be added to any point in time.
    fn of_seconds(&mut self, name: &'static str, seconds: u64) -> Duration {
        let time = Duration::from_secs(seconds);
        if time > MAX_TIME {
            let most = MAX_TIME.as_secs();
            let problem = format!("is {seconds} s: set at most {most}, which are a hundred years");
            self.problems.push((name, problem));
            return MAX_TIME;
        }
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::{SecretError, SecretName, SettingAddress, SettingError};

    #[test]
    fn every_problem_is_reported_with_its_variable() {
        let env = RawEnv::from([
            ("CACHE_TABLE", "t"),
            ("SCRATCH_BYTES", "2G"),
            ("MAX_ATTEMPTS", "0"),
            ("SOURCE_MAX_PERMITS", "some"),
            ("LOG", " "),
        ]);
        let error = Config::from_env(&env, SourceUse::Contents)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("configuration is incomplete:\n"),
            "{error}"
        );
        let lines: Vec<String> = error
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        for problem in [
            "SCRATCH_BYTES \"2G\" is not a number of bytes or auto",
            "MAX_ATTEMPTS \"0\" is not a number of at least 1",
            "SOURCE_MAX_PERMITS \"some\" is not a number of at least 1",
            "LOG is not set (infra/template.yaml, Environment)",
            "UPLOADS_BUCKET is not set (infra/template.yaml, Environment)",
        ] {
            assert!(lines.iter().any(|line| line == problem), "{error}");
        }
        assert!(!error.contains("CACHE_TABLE"), "{error}");
    }

    #[test]
    fn a_misspelled_level_of_the_log_is_a_problem() {
        let env = RawEnv::from([("LOG", "warning")]);
        let error = Config::from_env(&env, SourceUse::Nothing).unwrap_err();
        let mut problems = error.0.iter();
        let problem = problems.find(|(name, _)| *name == "LOG");
        let (_, problem) = problem.unwrap();
        assert!(
            problem.contains("\"warning\" is neither a level"),
            "{problem}"
        );
    }

    #[test]
    fn limits_may_follow_from_what_the_functions_were_given() {
        let read = |memory: &str, own: &str, source_use| {
            let env = RawEnv::from([
                ("DERIVE_MEMORY_MB", "3008"),
                ("DERIVE_SCRATCH_MB", "10240"),
                ("PARSER_MEMORY_BYTES", memory),
                ("SCRATCH_BYTES", "2G"),
                ("MEMORY_CACHE_BYTES", "auto"),
                (OWN_MEMORY, own),
            ]);
            let error = Config::from_env(&env, source_use).unwrap_err();
            let about = |name| error.0.iter().find(|(about, _)| *about == name);
            let text = |name| about(name).map(|(_, problem)| problem.clone());
            assert_eq!(text("PARSER_MEMORY_BYTES"), None);
            assert_eq!(text("MEMORY_CACHE_BYTES"), None);
            assert!(text("SCRATCH_BYTES").is_some_and(|it| it.ends_with("bytes or auto")));
            text("DERIVE_MEMORY_MB")
        };
        // What `symbolicate` was given is not what `derive` was given.
        assert_eq!(read("auto", "1769", SourceUse::Locations), None);
        assert_eq!(read("auto", "3008", SourceUse::Contents), None);
        assert_eq!(read("1000", "1769", SourceUse::Contents), None);
        let problem = read("auto", "1769", SourceUse::Contents).unwrap();
        assert!(problem.contains("this function has 1769 MB"), "{problem}");
    }

    #[test]
    fn ages_that_would_remove_data_in_use_are_refused() {
        let problem = |name: &str, value: &str| {
            let env = RawEnv::from([(name, value)]);
            let error = Config::from_env(&env, SourceUse::Contents)
                .unwrap_err()
                .to_string();
            let mut lines = error.lines().map(str::trim_start);
            let line = lines.find(|line| line.starts_with(name));
            line.map(str::to_owned)
        };
        for (name, good) in [
            ("REQUEST_LIFETIME", "86400"),
            ("ORPHAN_MIN_AGE", "0"),
            ("ORPHAN_MIN_AGE", "1500"),
            ("DERIVED_MAX_UNUSED", "3153600000"),
            ("QUEUED_WAIT", "none"),
        ] {
            assert_eq!(problem(name, good), None, "{name} {good}");
        }
        for (name, bad, says) in [
            ("REQUEST_LIFETIME", "86401", "set at most 86400"),
            ("ORPHAN_MIN_AGE", "1499", "set at least 1500, or 0"),
            ("ORPHAN_MIN_AGE", "1", "is 1 s"),
            // These could not be added to a point in time.
            ("RETRY_MISSES_AFTER", "18446744073709551615", "a hundred"),
            ("QUEUED_WAIT", "3153600001", "set at most 3153600000"),
        ] {
            let problem = problem(name, bad).unwrap();
            assert!(problem.contains(says), "{problem}");
        }
    }

    #[test]
    fn at_most_one_transcoder_per_major_version_is_accepted() {
        let read = |paths: &str, versions: &str| {
            let env = RawEnv::from([("P", paths), ("V", versions)]);
            let mut reader = Environment {
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
        bad(
            "/a",
            "none",
            "has 0 versions for 1 paths in TRANSCODER_PATH",
        );
        bad("/a,/b", "3.1.0,3.2.0", "two versions of major version 3");
        bad("/a", "3.1", "invalid version");
        bad("/a", "2.9.0", "below 3.0.0");
    }

    #[test]
    fn a_symbol_server_may_be_given_by_its_address_alone() {
        let read = |address: &str| {
            let env = RawEnv::from([("S", "[]")]);
            let mut reader = Environment {
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
    fn a_malformed_list_of_sources_is_refused_with_its_position() {
        let problem = |sources: &str| {
            let env = RawEnv::from([("SOURCES", sources), ("ALLOW_PRIVATE_SOURCES", "yes")]);
            Config::from_env(&env, SourceUse::Contents)
                .unwrap_err()
                .to_string()
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

    #[test]
    fn a_host_of_crash_files_is_a_name_with_a_port_and_a_scheme_or_without() {
        let problem = |host: &str| {
            let env = RawEnv::from([("ATTACHMENT_HOSTS", host)]);
            let error = Config::from_env(&env, SourceUse::Contents).unwrap_err();
            let mut problems = error.0.into_iter();
            problems.find(|(name, _)| *name == "ATTACHMENT_HOSTS")
        };
        for host in [
            "none",
            "a.example, 10.0.0.5:8443",
            "[::1]:3000",
            "http://objectstore:8888",
            "https://a.example",
        ] {
            assert_eq!(problem(host), None, "{host}");
        }
        for host in [
            "ftp://a.example",
            "http://",
            "http://a.example/b",
            "u@a.example",
            "a b",
            "a/b",
            "a?b",
            "a:99999",
        ] {
            assert!(problem(host).is_some(), "{host}");
        }
    }

    /// The secrets of a test, by ARN. Reading any other secret fails the test.
    #[derive(Debug)]
    struct Kept(BTreeMap<&'static str, &'static str>);

    #[async_trait::async_trait]
    impl Secrets for Kept {
        async fn read(&self, name: &SecretName) -> Result<String, SecretError> {
            let denied = || SecretError("AccessDeniedException".to_owned());
            let value = self.0.get(name.arn.as_str());
            value.map(|value| (*value).to_owned()).ok_or_else(denied)
        }
    }

    /// Settings in S3, by address.
    #[async_trait::async_trait]
    impl StoredSettings for Kept {
        async fn read(&self, address: &SettingAddress) -> Result<String, SettingError> {
            let absent = || SettingError("NoSuchKey".to_owned());
            let value = self.0.get(address.to_string().as_str());
            value.map(|value| (*value).to_owned()).ok_or_else(absent)
        }
    }

    const SOURCES_ARN: &str = "arn:aws:secretsmanager:eu-central-1:1:secret:sources-AbCdEf";
    const SECRET_ARN: &str = "arn:aws:ssm:eu-central-1:1:parameter/symdepot/secret";

    fn named() -> RawEnv {
        RawEnv::from([
            ("SOURCES", SOURCES_ARN),
            ("REQUEST_SOURCES_SECRET", SECRET_ARN),
            ("ALLOW_REQUEST_SOURCES", "1"),
        ])
    }

    #[tokio::test]
    async fn a_setting_may_name_a_secret_that_only_its_functions_read() {
        let kept = Kept(BTreeMap::from([(SOURCES_ARN, "[]"), (SECRET_ARN, "s")]));
        let read = async |source_use| {
            let env = named()
                .with_stored_values(source_use, &kept, &kept)
                .await
                .unwrap();
            (
                env.values["SOURCES"].clone(),
                env.values["REQUEST_SOURCES_SECRET"].clone(),
            )
        };
        let values = ("[]".to_owned(), "s".to_owned());
        assert_eq!(read(SourceUse::Contents).await, values);
        assert_eq!(read(SourceUse::Locations).await, values);
        let names = (SOURCES_ARN.to_owned(), SECRET_ARN.to_owned());
        assert_eq!(read(SourceUse::Nothing).await, names);
        // Sources cannot be defined, so there is nothing to encrypt.
        let mut env = named();
        env.values
            .insert("ALLOW_REQUEST_SOURCES".to_owned(), "0".to_owned());
        let env = env
            .with_stored_values(SourceUse::Contents, &kept, &kept)
            .await
            .unwrap();
        assert_eq!(env.values["REQUEST_SOURCES_SECRET"], SECRET_ARN);
    }

    /// Secrets that are returned when both of two reads have begun.
    #[derive(Debug)]
    struct ReturnedTogether(tokio::sync::Barrier);

    #[async_trait::async_trait]
    impl Secrets for ReturnedTogether {
        async fn read(&self, _: &SecretName) -> Result<String, SecretError> {
            self.0.wait().await;
            Ok("read".to_owned())
        }
    }

    #[tokio::test]
    async fn secrets_are_read_side_by_side() {
        let together = ReturnedTogether(tokio::sync::Barrier::new(2));
        let nothing = Kept(BTreeMap::new());
        let env = named().with_stored_values(SourceUse::Contents, &together, &nothing);
        let env = env.await.unwrap();
        assert_eq!(env.values["SOURCES"], "read");
        assert_eq!(env.values["REQUEST_SOURCES_SECRET"], "read");
    }

    #[tokio::test]
    async fn the_headers_of_traces_are_read_only_if_traces_are_exported() {
        let kept = Kept(BTreeMap::from([(SECRET_ARN, "key=1")]));
        let read = async |name: &str, endpoint: &str| {
            let env = RawEnv::from([(trace_settings::HEADERS, SECRET_ARN), (name, endpoint)]);
            let env = env.with_stored_values(SourceUse::Nothing, &kept, &kept);
            env.await.unwrap().values[trace_settings::HEADERS].clone()
        };
        for name in [trace_settings::ENDPOINT, trace_settings::TRACES_ENDPOINT] {
            assert_eq!(read(name, "https://collector.test").await, "key=1");
            assert_eq!(read(name, "none").await, SECRET_ARN);
        }
    }

    #[tokio::test]
    async fn a_function_does_not_start_without_its_secret_and_names_it() {
        let nothing = Kept(BTreeMap::new());
        let refused = named()
            .with_stored_values(SourceUse::Contents, &nothing, &nothing)
            .await;
        let text = refused.unwrap_err().to_string();
        for said in [
            "SOURCES",
            SOURCES_ARN,
            "REQUEST_SOURCES_SECRET",
            SECRET_ARN,
            "cannot be read: AccessDeniedException",
        ] {
            assert!(text.contains(said), "{text}");
        }
        let odd = RawEnv::from([("SOURCES", "arn:aws:s3:::bucket")]);
        let refused = odd
            .with_stored_values(SourceUse::Contents, &nothing, &nothing)
            .await;
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("neither the ARN of a secret"), "{text}");
    }

    const ADDRESS: &str = "s3://settings/symdepot/sources.json";

    #[tokio::test]
    async fn the_list_of_sources_may_be_stored_in_s3() {
        let env = || RawEnv::from([("SOURCES", ADDRESS)]);
        let read =
            async |kept: &Kept, source_use| env().with_stored_values(source_use, kept, kept).await;
        let list = r#"[{"type": "http", "id": "a", "url": "http://x"}]"#;
        let kept = Kept(BTreeMap::from([(ADDRESS, list)]));
        for source_use in [SourceUse::Contents, SourceUse::Locations] {
            assert_eq!(
                read(&kept, source_use).await.unwrap().values["SOURCES"],
                list
            );
        }
        let unread = read(&kept, SourceUse::Nothing).await.unwrap();
        assert_eq!(unread.values["SOURCES"], ADDRESS);

        let missing = read(&Kept(BTreeMap::new()), SourceUse::Contents).await;
        let text = missing.unwrap_err().to_string();
        let expected = format!("SOURCES  is stored at {ADDRESS}, which cannot be read: NoSuchKey");
        assert!(text.contains(&expected), "{text}");

        // The list is parsed as strictly as one in the environment, and the error says where it is.
        let misspelled = r#"[{"type": "http", "id": "a", "url": "http://x", "filter": {}}]"#;
        let kept = Kept(BTreeMap::from([(ADDRESS, misspelled)]));
        let env = read(&kept, SourceUse::Contents).await.unwrap();
        let text = Config::from_env(&env, SourceUse::Contents)
            .unwrap_err()
            .to_string();
        let expected = format!("{ADDRESS} is not a list of sources: ");
        assert!(
            text.contains(&expected) && text.contains("`filter`"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn an_invalid_address_and_a_secret_in_s3_are_refused() {
        let kept = Kept(BTreeMap::new());
        let env = RawEnv::from([
            ("SOURCES", "s3://settings"),
            ("REQUEST_SOURCES_SECRET", ADDRESS),
            ("ALLOW_REQUEST_SOURCES", "1"),
        ]);
        let refused = env
            .with_stored_values(SourceUse::Contents, &kept, &kept)
            .await;
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("write s3://bucket/key"), "{text}");
        assert!(text.contains("where only SOURCES may be stored"), "{text}");
    }

    #[test]
    fn values_of_the_environment_appear_in_no_debug_output_or_error() {
        let sources =
            r#"[{"type": "http", "id": "a", "url": "http://x", "headers": "Bearer sesame"}]"#;
        let env = RawEnv::from([("SOURCES", sources), ("REQUEST_SOURCES_SECRET", "sesame")]);
        let shown = format!("{env:?}");
        assert!(
            shown.contains("SOURCES") && !shown.contains("sesame"),
            "{shown}"
        );
        let problem = Config::from_env(&env, SourceUse::Contents).unwrap_err();
        let problem = format!("{problem} {problem:?}");
        assert!(problem.contains("[0]: invalid type: string,"), "{problem}");
        assert!(!problem.contains("sesame"), "{problem}");
    }

    #[test]
    fn links_are_followed_where_the_setting_says_so() {
        let read = |links: &str| {
            let env = RawEnv::from([("SOURCE_LINKS", links)]);
            let mut reader = Environment {
                env: &env,
                problems: Vec::new(),
            };
            (reader.links("SOURCE_LINKS"), reader.problems)
        };
        let target = Url::parse("https://a.test/x.c").unwrap();
        let allows = |links: &SourceLinks| links.allowed(&target).is_some();
        let (links, problems) = read("[]");
        assert!(!allows(&links) && problems.is_empty(), "{problems:?}");
        let (links, problems) =
            read(r#"[{"origin": "a.test", "headers": {"authorization": "sesame"}}]"#);
        assert!(allows(&links) && problems.is_empty(), "{problems:?}");
        let (_, problems) = read(r#"["a.test", {"origin": "b.test", "headers": "sesame"}]"#);
        let text = format!("{problems:?}");
        assert!(text.contains("[1]") && !text.contains("sesame"), "{text}");
    }

    #[test]
    fn prune_needs_no_sources_and_symbolicate_keeps_no_credentials() {
        let sources =
            r#"[{"type": "http", "id": "a", "url": "http://x/?sig=1", "headers": {"b": "c"}}]"#;
        let env = RawEnv::from([("SOURCES", sources)]);
        let problems = |source_use| {
            let error = Config::from_env(&env, source_use).unwrap_err();
            error.0.into_iter().map(|(name, _)| name)
        };
        assert!(problems(SourceUse::Contents).any(|name| name == "REQUEST_SOURCES_SECRET"));
        assert!(!problems(SourceUse::Nothing).any(|name| name == "REQUEST_SOURCES_SECRET"));
        let nothing = RawEnv::default();
        let problems = Config::from_env(&nothing, SourceUse::Nothing)
            .unwrap_err()
            .0;
        assert!(
            !problems.iter().any(|(name, _)| *name == "SOURCES"),
            "{problems:?}"
        );
    }

    #[test]
    fn requests_need_a_credential_except_on_the_local_stack() {
        let local = (RECORDS_ENDPOINT, "http://127.0.0.1:3023");
        let elsewhere = (
            RECORDS_ENDPOINT,
            "https://dynamodb.eu-central-1.amazonaws.com",
        );
        let problem = |auth: &str, endpoint: (&str, &str)| {
            let env = RawEnv::from([("AUTH", auth), endpoint]);
            let error = Config::from_env(&env, SourceUse::Nothing).unwrap_err();
            let mut problems = error.0.into_iter();
            problems.find(|(name, _)| *name == "AUTH")
        };
        for accepted in [("token", local), ("token", elsewhere), ("open", local)] {
            assert_eq!(problem(accepted.0, accepted.1), None, "{accepted:?}");
        }
        for refused in [("open", elsewhere), ("none", local), ("", local)] {
            assert!(problem(refused.0, refused.1).is_some(), "{refused:?}");
        }
    }

    #[test]
    fn all_sources_may_be_private_only_on_the_local_stack() {
        let problem = |endpoint: Option<&str>| {
            let mut env = RawEnv::from([("ALLOW_PRIVATE_SOURCES", "1")]);
            if let Some(endpoint) = endpoint {
                env.values
                    .insert(RECORDS_ENDPOINT.to_owned(), endpoint.to_owned());
            }
            let error = Config::from_env(&env, SourceUse::Contents).unwrap_err();
            let mut problems = error.0.into_iter();
            problems.find(|(name, _)| *name == "ALLOW_PRIVATE_SOURCES")
        };
        for local in [
            "http://127.0.0.1:3023",
            "http://localhost:3023",
            "http://[::1]:3023",
        ] {
            assert_eq!(problem(Some(local)), None, "{local}");
        }
        for elsewhere in [
            None,
            Some("https://dynamodb.eu-central-1.amazonaws.com"),
            Some("http://10.0.0.1:3023"),
            Some("http://127.0.0.1.evil.example"),
        ] {
            let (_, problem) = problem(elsewhere).unwrap();
            assert!(problem.contains(r#""is_private": true"#), "{problem}");
        }
    }
}
