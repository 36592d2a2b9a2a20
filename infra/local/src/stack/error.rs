//! Why the stack does not start.

use std::io;
use std::path::PathBuf;

use crate::functions::FunctionsError;

/// Why the stack does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// Another stack uses the data folder.
    #[error("the data folder {} is in use by the local stack with process id {pid}; stop that one, or choose another folder with DATA=", folder.display())]
    Locked {
        /// The folder.
        folder: PathBuf,
        /// Who uses it, as far as its lock file says.
        pid: String,
    },
    /// A port is taken.
    #[error(
        "port {port} of 127.0.0.1 ({service}) cannot be used: {source}; choose another with PORT= (four ports in a row are needed)"
    )]
    Port {
        /// The port.
        port: u16,
        /// What would listen there.
        service: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A file of the data folder cannot be read or written.
    #[error("cannot use {}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The template is not one that the stack understands.
    #[error("{0}")]
    Template(String),
    /// An override names a function that the template does not have.
    #[error("there is no function {name} in the template, only {known}")]
    UnknownFunction {
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The functions cannot be started.
    #[error(transparent)]
    Functions(#[from] FunctionsError),
    /// A store cannot be opened or filled.
    #[error("cannot open the stores in {}: {source}", folder.display())]
    Store {
        /// The data folder.
        folder: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
