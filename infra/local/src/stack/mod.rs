//! The whole stack in one process: its services, functions and event sources, on one data folder.
//!
//! The start has these steps:
//!
//! 1. The data folder is locked: two stacks on one folder would deliver messages twice and kill
//!    each other's processes. Its permissions are restricted to its owner.
//! 2. All ports are bound, so that the template can be resolved with the addresses in it.
//! 3. Queues, buckets and tables are created as in the template. Messages that were in flight in an
//!    earlier run become visible again.
//! 4. The machine is divided among the processes of the functions ([`machine`]).
//! 5. Everything is served. `stack.json` in the data folder lists the addresses for scripts; it
//!    exists only while the stack is ready.

mod error;
mod files;
mod listeners;
mod lock;
pub mod machine;
mod private;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use error::StackError;
pub use files::ADDRESSES_FILE;
use listeners::Listeners;
use lock::FolderLock;
use machine::{Claim, Division, Machine};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::control::Control;
use crate::database::Database;
use crate::event_sources::{QueuePoller, run_schedule};
use crate::functions::{FunctionSpec, Functions};
use crate::gateway::{self, Gateway};
use crate::guard::{Guard, HostName};
use crate::latency::{Latency, Traffic};
use crate::meter::Meter;
use crate::queues::{QueueSpec, Queues, Redrive};
use crate::template::{Deployment, Function, Template};
use crate::{dynamodb, s3, sqs};

/// How long requests in progress may take when the stack stops.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// How often expired items are removed. In AWS this takes up to days, so no client can rely on it.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(60);

/// Configuration of a stack.
#[derive(Clone, Debug)]
pub struct Options {
    /// The SAM template.
    pub template: PathBuf,
    /// The value of `AWS::StackName`, from which a template may make the names of its buckets. The
    /// default is the name of the template's file, without its extension.
    pub stack_name: String,
    /// The folder with the functions' binaries.
    pub functions: PathBuf,
    /// The gateway's port; S3, DynamoDB and SQS are on the three after it. 0 takes any four.
    pub port: u16,
    /// The data folder.
    pub data: PathBuf,
    /// Host names under which the stack answers, in addition to those of the loopback interface: of
    /// a tunnel or a proxy.
    pub host_names: Vec<HostName>,
    /// The environment of the process that starts the stack. A variable that the template sets
    /// takes its value from here if it is present; other variables are not passed to the functions.
    pub inherited: BTreeMap<String, String>,
    /// Variables of all functions; they override the template.
    pub environment: BTreeMap<String, String>,
    /// Timeouts of functions (by binary or logical id); they override the template.
    pub timeouts: BTreeMap<String, Duration>,
    /// The maximum number of processes of a function that has no reserved concurrency.
    pub concurrency: usize,
    /// The maximum number of queue events that one function processes at the same time, whatever
    /// the limits of its queues add up to. `None`: two for each core and at least four, or fewer if
    /// the machine's memory or disk does not suffice ([`machine`]).
    pub event_concurrency: Option<usize>,
    /// The machine to divide among the processes of the functions; `None`: this machine.
    pub machine: Option<Machine>,
    /// The timeout of a request; [`gateway::INTEGRATION_TIMEOUT`] in AWS.
    pub integration_timeout: Duration,
    /// The latency of the services towards the functions.
    pub latency: Latency,
    /// A `local-stack` binary, which ends the function processes if this process is killed.
    pub watchdog: Option<PathBuf>,
}

impl Options {
    /// Returns the defaults: any free ports, and limits that suit this machine.
    pub fn new(
        template: impl Into<PathBuf>,
        functions: impl Into<PathBuf>,
        data: impl Into<PathBuf>,
    ) -> Self {
        let template = template.into();
        let stack_name = template.file_stem().unwrap_or(template.as_os_str());
        Self {
            stack_name: stack_name.to_string_lossy().into_owned(),
            template,
            functions: functions.into(),
            port: 0,
            data: data.into(),
            host_names: Vec::new(),
            inherited: BTreeMap::new(),
            environment: BTreeMap::new(),
            timeouts: BTreeMap::new(),
            concurrency: 64,
            event_concurrency: None,
            machine: None,
            integration_timeout: gateway::INTEGRATION_TIMEOUT,
            latency: Latency::default(),
            watchdog: None,
        }
    }
}

/// The addresses of a stack. Serialized to [`ADDRESSES_FILE`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Addresses {
    /// `http://127.0.0.1:<port>` of the HTTP API.
    pub gateway: String,
    /// The same of S3.
    pub s3: String,
    /// The same of DynamoDB.
    pub dynamodb: String,
    /// The same of SQS.
    pub sqs: String,
    /// Bucket names, by logical id.
    pub buckets: BTreeMap<String, String>,
    /// Table names, by logical id.
    pub tables: BTreeMap<String, String>,
    /// Queue URLs, by logical id.
    pub queues: BTreeMap<String, String>,
    /// The data folder.
    pub data: PathBuf,
    /// The process id of the stack.
    pub pid: u32,
}

/// The stack.
#[derive(Debug)]
pub struct Stack;

impl Stack {
    /// Starts a stack; it serves until [`Running::stop`].
    ///
    /// # Errors
    /// See [`StackError`]. No task or process is left running.
    pub async fn start(options: Options) -> Result<Running, StackError> {
        let lock = FolderLock::take(&options.data)?;
        let file = |path: &Path, source| StackError::File {
            path: path.to_owned(),
            source,
        };
        let data = options
            .data
            .canonicalize()
            .map_err(|source| file(&options.data, source))?;
        let folder = data.clone();
        tokio::task::spawn_blocking(move || private::tighten(&folder))
            .await
            .map_err(io::Error::other)
            .and_then(|tightened| tightened)
            .map_err(|source| file(&data, source))?;
        let addresses_file = data.join(ADDRESSES_FILE);
        match std::fs::remove_file(&addresses_file) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(file(&addresses_file, source));
            }
            _ => {}
        }

        let listeners = Listeners::bind(options.port).await?;
        let endpoints = listeners
            .endpoints()
            .map_err(|source| file(&data, source))?;
        let deployment = Deployment {
            stack_name: &options.stack_name,
            sqs_endpoint: &endpoints.sqs,
        };
        let template =
            Template::load(&options.template, &deployment).map_err(StackError::Template)?;
        let mut specs = specs(&template, &options)?;

        let store = |source: Box<dyn std::error::Error + Send + Sync>| StackError::Store {
            folder: data.clone(),
            source,
        };
        let folder = data.clone();
        let database = tokio::task::spawn_blocking(move || Database::open(&folder))
            .await
            .map_err(|error| store(error.into()))?
            .map_err(|error| store(error.into()))?;
        let queues = Queues::new(database.clone());
        for queue in &template.queues {
            let redrive = queue
                .redrive
                .clone()
                .map(|(dead_letter, max_receive_count)| Redrive {
                    dead_letter,
                    max_receive_count,
                });
            let spec = QueueSpec {
                name: queue.name.clone(),
                visibility_timeout: queue.visibility_timeout,
                delay: queue.delay,
                retention: queue.retention,
                redrive,
            };
            queues
                .create(spec)
                .await
                .map_err(|error| store(error.into()))?;
        }
        let released = queues
            .release_all()
            .await
            .map_err(|error| store(error.into()))?;
        if released > 0 {
            tracing::info!(
                messages = released,
                "released messages that were in flight in an earlier run"
            );
        }
        let notifications = template.buckets.iter().flat_map(|bucket| {
            bucket
                .notifications
                .iter()
                .map(|notification| s3::Notification {
                    bucket: bucket.name.clone(),
                    events: vec![notification.event.clone()],
                    prefix: String::new(),
                    suffix: String::new(),
                    queue: notification.queue.clone(),
                })
        });
        let objects = s3::Store::open(&data, database, queues.clone(), notifications.collect())
            .await
            .map_err(|error| store(error.into()))?;
        for bucket in &template.buckets {
            objects
                .create_bucket(&bucket.name)
                .await
                .map_err(|error| store(error.into()))?;
        }
        let tables = dynamodb::Tables::open(&data)
            .await
            .map_err(|error| store(error.into()))?;
        for table in &template.tables {
            tables
                .create(&table.name, &table.properties)
                .await
                .map_err(|error| store(error.into()))?;
        }

        let stored = objects
            .stored_bytes()
            .await
            .map_err(|error| store(error.into()))?;
        let machine = options.machine;
        let machine = machine.unwrap_or_else(|| Machine::this(&data, stored));
        let (events, division) = share_out(machine, &template, &options);
        for allotment in &division.allotments {
            let values = specs
                .iter_mut()
                .filter_map(|spec| spec.environment.get_mut(&allotment.variable));
            for value in values {
                *value = allotment.bytes.to_string();
            }
        }

        let watchdog = options.watchdog.clone();
        let (folder, its_endpoints) = (data.clone(), endpoints.clone());
        let functions = tokio::task::spawn_blocking(move || {
            Functions::start(specs, &its_endpoints, &folder, watchdog.as_deref())
        })
        .await
        .map_err(|error| store(error.into()))??;

        let meter = Meter::default();
        let guard = Guard::new(&options.host_names, listeners.gateway_port());
        let traffic = Traffic {
            meter: meter.clone(),
            latency: options.latency,
            guard: guard.clone(),
        };
        let queue_names = template
            .queues
            .iter()
            .map(|queue| {
                (
                    queue.name.clone(),
                    queue
                        .redrive
                        .as_ref()
                        .map(|(dead_letter, _)| dead_letter.clone()),
                )
            })
            .collect();
        let control = Control {
            functions: functions.clone(),
            queues: queues.clone(),
            queue_names: Arc::new(queue_names),
            meter,
            schedules: template.schedules.clone().into(),
        };
        let gateway = Gateway {
            functions: functions.clone(),
            function: template.http_api.clone(),
            control: control.clone(),
            guard,
            timeout: options.integration_timeout,
        };

        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(s3::serve(
            listeners.s3,
            objects,
            traffic.clone(),
            shutdown.clone().cancelled_owned(),
        ));
        let (sweeper, stopped) = (tables.clone(), shutdown.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = sweeper.sweep_every(EXPIRY_INTERVAL) => {}
                () = stopped.cancelled() => {}
            }
        });
        tasks.spawn(dynamodb::serve(
            listeners.dynamodb,
            tables,
            traffic.clone(),
            shutdown.clone().cancelled_owned(),
        ));
        tasks.spawn(sqs::serve(
            listeners.sqs,
            queues.clone(),
            traffic,
            shutdown.clone().cancelled_owned(),
        ));
        tasks.spawn(gateway::serve(listeners.gateway, gateway, shutdown.clone()));
        for function in &template.functions {
            let together = Arc::new(Semaphore::new(
                events.min(functions.concurrency(&function.name)),
            ));
            for source in &function.queues {
                let poller = QueuePoller {
                    queues: queues.clone(),
                    functions: functions.clone(),
                    function: function.name.clone(),
                    source: source.clone(),
                    together: Arc::clone(&together),
                };
                tasks.spawn(poller.run(shutdown.clone()));
            }
        }
        for schedule in &template.schedules {
            tasks.spawn(run_schedule(
                functions.clone(),
                schedule.clone(),
                shutdown.clone(),
            ));
        }

        let queue_url =
            |name: &str| format!("{}/{}/{name}", endpoints.sqs, crate::identity::ACCOUNT);
        let named = |name: &String| (name.clone(), name.clone());
        let addresses = Addresses {
            gateway: listeners.address,
            s3: endpoints.s3.clone(),
            dynamodb: endpoints.dynamodb.clone(),
            sqs: endpoints.sqs.clone(),
            buckets: template
                .buckets
                .iter()
                .map(|bucket| (bucket.logical_id.clone(), bucket.name.clone()))
                .collect(),
            tables: template
                .tables
                .iter()
                .map(|table| named(&table.name))
                .collect(),
            queues: template
                .queues
                .iter()
                .map(|queue| (queue.name.clone(), queue_url(&queue.name)))
                .collect(),
            data: data.clone(),
            pid: std::process::id(),
        };
        let running = Running {
            addresses,
            division,
            functions,
            queues,
            control,
            tasks,
            shutdown,
            addresses_file,
            _lock: lock,
        };
        if let Err(source) = running.write_addresses() {
            let path = running.addresses_file.clone();
            running.stop().await;
            return Err(StackError::File { path, source });
        }
        Ok(running)
    }
}

/// A running stack.
#[derive(Debug)]
pub struct Running {
    addresses: Addresses,
    division: Division,
    functions: Functions,
    queues: Queues,
    control: Control,
    tasks: JoinSet<()>,
    shutdown: CancellationToken,
    addresses_file: PathBuf,
    _lock: FolderLock,
}

impl Running {
    /// Returns the addresses.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Returns the machine's resources and the share of each function.
    pub fn division(&self) -> &Division {
        &self.division
    }

    /// Returns the functions.
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Returns the queues.
    pub fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Returns the state that `/_local/` serves.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Stops at once: accepts nothing new and kills the function processes. Stored data remains.
    /// The next stack on the same folder delivers the messages in flight again.
    pub async fn stop(mut self) {
        let _ = std::fs::remove_file(&self.addresses_file);
        self.shutdown.cancel();
        self.functions.stop().await;
        // Requests in progress may end; a client that never ends its request does not delay the
        // stop.
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_REQUESTS, ended).await.is_err() {
            self.tasks.shutdown().await;
        }
    }

    fn write_addresses(&self) -> io::Result<()> {
        let folder = self.addresses_file.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        let mut json = serde_json::to_vec_pretty(&self.addresses)?;
        json.push(b'\n');
        file.write_all(&json)?;
        file.persist(&self.addresses_file)
            .map_err(|error| error.error)?;
        Ok(())
    }
}

/// Returns how many queue events a function processes at the same time, and the shares of its
/// processes.
fn share_out(machine: Machine, template: &Template, options: &Options) -> (usize, Division) {
    let is_set = |variable: &str| {
        options.environment.contains_key(variable) || options.inherited.contains_key(variable)
    };
    let shares = |function: &Function| {
        let shares = function.shares.clone().into_iter();
        shares
            .filter(|share| !is_set(&share.variable))
            .collect::<Vec<_>>()
    };
    let is_fed_by_queues_alone = |function: &Function| {
        !function.queues.is_empty()
            && template.http_api.as_ref() != Some(&function.name)
            && !template
                .schedules
                .iter()
                .any(|schedule| schedule.function == function.name)
    };
    let events = options.event_concurrency.unwrap_or_else(|| {
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let fed = template
            .functions
            .iter()
            .filter(|one| is_fed_by_queues_alone(one));
        let shares: Vec<_> = fed.flat_map(shares).collect();
        machine::affordable_events(&machine, &shares, (2 * cores).max(4))
    });
    let claims = template.functions.iter().flat_map(|function| {
        let concurrency = function.reserved_concurrency.unwrap_or(options.concurrency);
        let processes = if is_fed_by_queues_alone(function) {
            concurrency.min(events)
        } else {
            concurrency
        };
        shares(function).into_iter().map(move |share| Claim {
            function: function.name.clone(),
            share,
            processes,
        })
    });
    let claims: Vec<Claim> = claims.collect();
    let allotments = machine::divide(&machine, &claims);
    (
        events,
        Division {
            machine,
            allotments,
        },
    )
}

/// Returns how to run the template's functions, with the overrides of the options.
fn specs(template: &Template, options: &Options) -> Result<Vec<FunctionSpec>, StackError> {
    for name in options.timeouts.keys() {
        if template.function(name).is_none() {
            let known = template
                .functions
                .iter()
                .map(|function| function.name.as_str())
                .collect::<Vec<_>>()
                .join(", ");
            return Err(StackError::UnknownFunction {
                name: name.clone(),
                known,
            });
        }
    }
    for name in options.environment.keys() {
        if !template
            .functions
            .iter()
            .any(|function| function.environment.contains_key(name))
        {
            tracing::warn!(
                variable = %name,
                "override has no effect: no function of the template has this variable"
            );
        }
    }
    let specs = template.functions.iter().map(|function| {
        let mut environment = function.environment.clone();
        for (name, value) in &mut environment {
            if let Some(inherited) = options.inherited.get(name) {
                // The value is not logged: it may be a credential.
                tracing::info!(variable = %name, "variable taken from the environment");
                value.clone_from(inherited);
            }
        }
        environment.extend(options.environment.clone());
        let timeout = options
            .timeouts
            .get(&function.name)
            .or_else(|| options.timeouts.get(&function.logical_id));
        FunctionSpec {
            name: function.name.clone(),
            binary: options.functions.join(&function.name),
            memory_mb: function.memory_mb,
            timeout: timeout.copied().unwrap_or(function.timeout),
            concurrency: function
                .reserved_concurrency
                .unwrap_or(options.concurrency)
                .max(1),
            log_format: function.log_format.clone(),
            log_group: function.log_group.clone(),
            environment,
        }
    });
    Ok(specs.collect())
}
