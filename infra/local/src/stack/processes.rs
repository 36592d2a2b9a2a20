//! The processes of the functions, and the share of the machine for each of them.

use std::path::Path;

use super::error::StackError;
use super::machine::{self, Claim, Division, Machine};
use super::options::Options;
use crate::functions::{AccountLimit, Endpoints, FunctionSpec, Functions};
use crate::template::{Function, Template};

/// How the functions of a template run on this machine.
pub(super) struct Processes {
    /// The functions.
    pub(super) specs: Vec<FunctionSpec>,
    /// The machine's resources and the share of each function.
    pub(super) division: Division,
    /// The number of queue events that one function processes at the same time.
    pub(super) events: usize,
    account: Option<AccountLimit>,
}

impl Processes {
    /// Applies the overrides of `options`, and divides `machine`.
    pub(super) fn plan(
        template: &Template,
        options: &Options,
        machine: Machine,
    ) -> Result<Self, StackError> {
        let mut specs = specs(template, options)?;
        let (events, division) = share_out(machine, template, options);
        for allotment in &division.allotments {
            let values = specs
                .iter_mut()
                .filter_map(|spec| spec.environment.get_mut(&allotment.variable));
            for value in values {
                *value = allotment.bytes.to_string();
            }
        }
        let reserved = template.functions.iter().filter_map(|function| {
            let own = function.reserved_concurrency?;
            Some((function.name.clone(), own))
        });
        let account = options
            .account_concurrency
            .map(|runs| AccountLimit::new(runs, reserved));
        Ok(Self {
            specs,
            division,
            events,
            account,
        })
    }

    /// Prepares the functions for invocations.
    pub(super) async fn start(
        &self,
        endpoints: &Endpoints,
        data: &Path,
        watchdog: Option<&Path>,
    ) -> Result<Functions, StackError> {
        let (specs, endpoints) = (self.specs.clone(), endpoints.clone());
        let (folder, watchdog) = (data.to_owned(), watchdog.map(Path::to_owned));
        let functions = tokio::task::spawn_blocking(move || {
            Functions::start(specs, &endpoints, &folder, watchdog.as_deref())
        })
        .await
        .map_err(|error| StackError::file(data, error.into()))??;
        Ok(match self.account.clone() {
            Some(account) => functions.within(account),
            None => functions,
        })
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

/// The variable that says whether requests need a credential.
const AUTH: &str = "AUTH";

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
        // The gateway here checks no signatures, and only this machine reaches it.
        if let Some(auth) = environment.get_mut(AUTH)
            && !options.inherited.contains_key(AUTH)
        {
            "open".clone_into(auth);
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
            wait_for_idle: FunctionSpec::WAIT_FOR_IDLE,
            allows_recursion: function.allows_recursion,
            log_format: function.log_format.clone(),
            log_group: function.log_group.clone(),
            environment,
        }
    });
    Ok(specs.collect())
}
