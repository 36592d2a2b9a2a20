//! The settings and clients of a function, built once when the sandbox starts.

use std::sync::Arc;
use std::time::Duration;

use aws_config::SdkConfig;

use super::run::since_epoch;
use super::sandbox::{self, Sandbox};
use super::{Config, ConfigError, Metrics, RawEnv, SourceUse, Traces, telemetry, traces};
use crate::adapters::aws::{
    AwsClients, AwsSecrets, DynamoRecords, QueueUrls, S3Attachments, S3Blobs, S3Difs, S3Settings,
    SqsQueues, StsRoles,
};
use crate::adapters::demangler::ProcessDemangler;
use crate::adapters::http::{HttpRemoteFiles, HttpServers};
use crate::adapters::parser::transcoder::Transcoders;
use crate::adapters::parser::{ParserLimits, ProcessDeriver};
use crate::adapters::scratch::ScratchSpace;
use crate::flows::HttpService;
use crate::flows::build::Builder;
use crate::flows::memory::Memory;
use crate::flows::prune::Pruner;
use crate::flows::spans::SpanAttribute;

/// What a function reports besides its result.
#[derive(Debug)]
pub struct Reports {
    /// Writes the metrics of its stack.
    pub metrics: Metrics,
    /// Records and exports its traces.
    pub traces: Traces,
}

/// A function's settings and clients.
#[derive(Debug)]
pub struct App {
    config: Config,
    clients: AwsClients,
    sdk_config: SdkConfig,
    /// What identifies this function in its traces.
    function: Vec<SpanAttribute>,
    /// Whether it reads files of the uploads bucket.
    reads_files: bool,
}

impl App {
    /// Reads the settings, starts logging and builds the clients. The only network requests are
    /// those for the secrets and the stored settings that settings of this use refer to.
    pub async fn from_env(sources: SourceUse) -> Result<Self, ConfigError> {
        let env = RawEnv::read();
        let sdk_config = AwsClients::sdk_config(env.aws());
        let clients = AwsClients::from_sdk_config(&sdk_config);
        let secrets = AwsSecrets::new(sdk_config.clone(), since_epoch);
        let settings = S3Settings::new(clients.s3.clone());
        let env = env.with_stored_values(sources, &secrets, &settings).await?;
        let config = Config::from_env(&env, sources)?;
        telemetry::init(&config.log);
        Ok(Self {
            clients,
            config,
            sdk_config,
            function: traces::identity(&env),
            reads_files: matches!(sources, SourceUse::Contents),
        })
    }

    /// Connects to the stores that every invocation reads, without calling them. It takes at most a
    /// second, and does not fail.
    pub async fn connect(&self) {
        let mut buckets = vec![self.config.caches_bucket.as_str()];
        if self.reads_files {
            buckets.push(&self.config.uploads_bucket);
        }
        self.clients.connect(&buckets).await;
    }

    /// Returns what this function reports with.
    pub fn reports(&self) -> Reports {
        Reports {
            metrics: Metrics::of_stack(&self.config.stack),
            traces: self.traces(),
        }
    }

    /// Returns what records and exports the traces of this function, if the settings say so.
    pub fn traces(&self) -> Traces {
        let settings = self.config.traces.as_ref();
        settings.map_or_else(Traces::default, |settings| {
            Traces::new(settings, self.function.clone())
        })
    }

    /// Logs in which sandbox files are parsed.
    ///
    /// # Errors
    ///
    /// System calls cannot be filtered, and the settings require it.
    pub fn check_sandbox(&self) -> std::io::Result<()> {
        match sandbox::probe()? {
            Sandbox::Unfiltered(error) if self.config.parser_needs_seccomp => {
                let error = super::chain(&error);
                Err(std::io::Error::other(format!(
                    "the system calls of the parser cannot be filtered: {error}; run derive where seccomp works, or set PARSER_NEEDS_SECCOMP=0"
                )))
            }
            sandbox => {
                let is_hidden = sandbox::is_hidden();
                tracing::info!(%sandbox, is_hidden, "files are parsed in a sandbox");
                Ok(())
            }
        }
    }

    /// Returns the flow that serves requests. `executable` is this program, which also runs as the
    /// demangler.
    pub fn http_service(&self, executable: std::path::PathBuf) -> HttpService {
        let settings = &self.config.settings;
        HttpService {
            records: Arc::new(self.records()),
            caches: Arc::new(self.caches()),
            uploads: Arc::new(self.uploads()),
            attachments: Arc::new(S3Attachments::new(
                self.clients.s3.clone(),
                self.config.attachments_bucket.clone(),
            )),
            remote_files: Arc::new(HttpRemoteFiles::new(self.config.allow_private_sources)),
            queues: Arc::new(self.queues()),
            demangler: Arc::new(ProcessDemangler::new(executable)),
            memory: Arc::new(Memory::new(
                settings.memory_cache_bytes,
                settings.policy.retry_misses_after,
            )),
            settings: settings.clone(),
        }
    }

    /// Returns the flow that builds derived caches. `executable` is this program, which also runs
    /// as the parser.
    pub fn builder(&self, executable: std::path::PathBuf) -> Builder {
        let settings = &self.config.settings;
        let scratch = ScratchSpace::new(self.config.scratch_folder.clone(), settings.scratch_bytes);
        let limits = ParserLimits {
            memory_bytes: settings.parser_memory_bytes,
            cpu_seconds: self.config.parser_cpu.max(Duration::from_secs(1)).as_secs(),
            needs_seccomp: self.config.parser_needs_seccomp,
        };
        let tools = self.config.transcoders.clone();
        let transcoders = Transcoders::new(tools, self.config.transcoder_time);
        Builder {
            records: Arc::new(self.records()),
            caches: Arc::new(self.caches()),
            uploads: Arc::new(self.uploads()),
            servers: Arc::new(
                HttpServers::new(self.config.allow_private_sources)
                    .with_wall_clock(since_epoch)
                    .with_roles(Arc::new(StsRoles::new(
                        self.sdk_config.clone(),
                        since_epoch,
                    ))),
            ),
            queues: Arc::new(self.queues()),
            deriver: Arc::new(
                ProcessDeriver::new(executable, limits, scratch).with_transcoders(transcoders),
            ),
            settings: settings.clone(),
        }
    }

    /// Returns the flow that removes unused data.
    pub fn pruner(&self) -> Pruner {
        Pruner {
            records: Arc::new(self.records()),
            caches: Arc::new(self.caches()),
            uploads: Arc::new(self.uploads()),
            listing: Arc::new(self.uploads()),
            queues: Arc::new(self.queues()),
            settings: self.config.settings.clone(),
        }
    }

    fn uploads(&self) -> S3Difs {
        S3Difs::new(self.clients.s3.clone(), self.config.uploads_bucket.clone())
    }

    fn records(&self) -> DynamoRecords {
        DynamoRecords::new(
            self.clients.dynamodb.clone(),
            self.config.cache_table.clone(),
        )
    }

    fn caches(&self) -> S3Blobs {
        S3Blobs::new(self.clients.s3.clone(), self.config.caches_bucket.clone())
    }

    fn queues(&self) -> SqsQueues {
        let urls = QueueUrls {
            eager: self.config.eager_queue.clone(),
            uploads: self.config.uploads_queue.clone(),
            refresh: self.config.refresh_queue.clone(),
        };
        SqsQueues::new(self.clients.sqs.clone(), urls)
    }
}
