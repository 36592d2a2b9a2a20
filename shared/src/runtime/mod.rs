//! The runtime of the functions: settings, clients, log, invocations, and child processes.

mod app;
mod arrivals;
mod config;
mod config_error;
pub mod demangler;
mod given;
#[cfg(test)]
mod logged;
mod metrics;
mod otlp;
pub mod parser;
mod run;
pub mod sandbox;
mod stored_values;
mod summary;
mod telemetry;
mod trace_settings;
mod traces;
pub mod transcoder;

pub use crate::domain::chain;
pub use app::{App, Reports};
pub use config::{Config, RawEnv, SourceUse};
pub use config_error::ConfigError;
pub use metrics::{KIND, Metric, Metrics, NAMESPACE, STACK};
pub use run::{diagnostic, exit_code, invocation, millis, run};
pub use summary::{MessageSummary, RequestSummary, RunSummary};
pub use telemetry::log_places_of_panics;
pub use trace_settings::TraceSettings;
pub use traces::Traces;
