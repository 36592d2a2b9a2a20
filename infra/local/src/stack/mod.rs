//! The whole stack in one process: its services, functions and event sources, on one data folder.

mod addresses;
mod error;
mod files;
mod folder;
mod gateway_thread;
mod listeners;
mod lock;
pub mod machine;
mod options;
mod permissions;
mod private;
mod processes;
mod programs;
mod running;
mod services;
mod stores;

pub use addresses::Addresses;
pub use error::StackError;
pub use files::{ACCESS_FILE, ADDRESSES_FILE};
use folder::DataFolder;
use listeners::Listeners;
use machine::Machine;
pub use options::Options;
use processes::Processes;
pub use running::Running;
use services::{Services, Wiring};
use stores::Stores;

use uuid::Uuid;

use crate::template::{Deployment, Template, USUAL_CONCURRENCY};

/// The stack.
#[derive(Debug)]
pub struct Stack;

impl Stack {
    /// Starts a stack in five steps; it serves until [`Running::stop`].
    ///
    /// # Errors
    /// See [`StackError`]. No task or process is left running.
    pub async fn start(mut options: Options) -> Result<Running, StackError> {
        // 1. Two stacks on one data folder would deliver messages twice and kill each other's
        // processes.
        let folder = DataFolder::take(&options.data).await?;
        let data = folder.path();

        // 2. The template is resolved with the addresses of the services.
        let listeners = Listeners::bind(options.port).await?;
        let endpoints = listeners.endpoints.clone();
        let deployment = Deployment {
            stack_name: &options.stack_name,
            sqs_endpoint: &endpoints.sqs,
            parameters: &options.parameters,
            account_concurrency: options.account_concurrency.unwrap_or(USUAL_CONCURRENCY),
        };
        let template = match options.template_text {
            Some(text) => Template::read(text, &deployment)
                .map_err(|error| format!("{}: {error}", options.template.display())),
            None => Template::load(&options.template, &deployment),
        };
        let template = template.map_err(StackError::Template)?;
        if let Some(program) = &options.program {
            options.functions = programs::link(program, &template, data)?;
        }

        let access = permissions::enforce(&template, data)?;

        // 3. Messages that were in flight in an earlier run become visible again.
        let stores = Stores::open(&template, data).await?;

        // 4. The machine is divided among the processes of the functions.
        let machine = match options.machine {
            Some(machine) => machine,
            None => Machine::this(data, stores.stored_bytes(data).await?),
        };
        let processes = Processes::plan(&template, &options, machine)?;
        let functions = processes
            .start(&endpoints, data, options.watchdog.as_deref())
            .await?;

        // 5. The functions are called, and some processes may be started before. The file with the
        // addresses tells scripts that the stack is ready.
        let operator_key = Uuid::new_v4().simple().to_string();
        let gateway = (listeners.address.clone(), operator_key.clone());
        let addresses = Addresses::new(&template, gateway, &endpoints, data);
        let queues = stores.queues.clone();
        let wiring = Wiring {
            operator_key,
            access,
            functions: &functions,
            events: processes.events,
        };
        let services = Services::start(&template, &options, listeners, stores, wiring)
            .map_err(StackError::Thread)?;
        let running = Running {
            addresses,
            division: processes.division,
            functions,
            queues,
            services,
            folder,
        };
        let started = if options.starts_functions {
            running.functions.start_first().await.map_err(Into::into)
        } else {
            Ok(())
        };
        if let Err(error) = started.and_then(|()| running.announce()) {
            running.stop().await;
            return Err(error);
        }
        Ok(running)
    }
}
