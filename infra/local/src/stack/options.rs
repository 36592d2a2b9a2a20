//! The configuration of a stack.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::machine::Machine;
use crate::gateway;
use crate::guard::HostName;
use crate::latency::Latency;

/// Configuration of a stack.
#[derive(Clone, Debug)]
pub struct Options {
    /// The SAM template.
    pub template: PathBuf,
    /// The text of the template, if a program contains it: the file is then not read, and its path
    /// only names it.
    pub template_text: Option<&'static str>,
    /// The value of `AWS::StackName`, from which a template may make the names of its buckets. The
    /// default is the name of the template's file, without its extension.
    pub stack_name: String,
    /// Values of the template's parameters; the others have their defaults.
    pub parameters: BTreeMap<String, String>,
    /// The folder with the functions' binaries.
    pub functions: PathBuf,
    /// A program that contains all functions, and obeys the name under which it is started: links
    /// to it in the data folder replace the folder with the binaries.
    pub program: Option<PathBuf>,
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
    /// the machine's memory or disk does not suffice ([`machine`](super::machine)).
    pub event_concurrency: Option<usize>,
    /// How many invocations of all functions the account runs at the same time, as in AWS; `None`:
    /// no limit. New accounts have 10. It is also the template's parameter `AccountConcurrency`,
    /// which without a limit is 1,000.
    pub account_concurrency: Option<usize>,
    /// The machine to divide among the processes of the functions; `None`: this machine.
    pub machine: Option<Machine>,
    /// The timeout of a request; [`gateway::INTEGRATION_TIMEOUT`] in AWS.
    pub integration_timeout: Duration,
    /// Whether a process of each function is started before the stack is ready, so that a wrong
    /// setting is an error of the start, and not of each request.
    pub starts_functions: bool,
    /// The latency of the services towards the functions.
    pub latency: Latency,
    /// A program that, started with `watchdog FOLDER`, watches over the function processes
    /// ([`ledger::watch_over`](crate::functions::ledger::watch_over)): it ends them if this process
    /// is killed.
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
            template_text: None,
            parameters: BTreeMap::new(),
            program: None,
            functions: functions.into(),
            port: 0,
            data: data.into(),
            host_names: Vec::new(),
            inherited: BTreeMap::new(),
            environment: BTreeMap::new(),
            timeouts: BTreeMap::new(),
            concurrency: 64,
            event_concurrency: None,
            account_concurrency: None,
            machine: None,
            integration_timeout: gateway::INTEGRATION_TIMEOUT,
            starts_functions: false,
            latency: Latency::default(),
            watchdog: None,
        }
    }
}
