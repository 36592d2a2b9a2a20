//! Errors that keep the stack from starting.

use std::io;
use std::path::{Path, PathBuf};

use crate::functions::FunctionsError;

/// Why the stack did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// Another stack uses the data folder.
    #[error("the data folder {} is in use by the local stack with process id {pid}; stop that process, or choose another folder with --data (make run: DATA=…)", folder.display())]
    Locked {
        /// The folder.
        folder: PathBuf,
        /// The process id of its holder, according to its lock file.
        pid: String,
    },
    /// The path of the data folder is that of a file.
    #[error("{} is a file, not a folder: choose another with --data", .0.display())]
    NotAFolder(PathBuf),
    /// A port is taken.
    #[error(
        "cannot listen on port {port} of 127.0.0.1 for {service}: {source}; choose another port with --port (make run: PORT=…); the stack needs four consecutive ports"
    )]
    Port {
        /// The port.
        port: u16,
        /// The service that the port is for.
        service: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A file of the data folder cannot be read or written.
    #[error("cannot read or write {}: {source}{}", path.display(), remedy(source))]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The stack does not understand the template.
    #[error("{0}")]
    Template(String),
    /// The policies of the template do not allow what AWS requires at a deployment.
    #[error("{0}")]
    Permission(String),
    /// An override names a function that the template does not have.
    #[error("the template has no function {name}; it has {known}")]
    UnknownFunction {
        /// The name.
        name: String,
        /// The existing names.
        known: String,
    },
    /// The thread of the gateway cannot be started.
    #[error("cannot start the thread of the gateway: {0}")]
    Thread(#[source] io::Error),
    /// The functions cannot be started.
    #[error(transparent)]
    Functions(#[from] FunctionsError),
    /// A store cannot be opened or set up.
    #[error("cannot open the stores in {}: {source}", folder.display())]
    Store {
        /// The data folder.
        folder: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Returns what to do about a file that cannot be written.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => "; free space on the disk of the data folder",
        _ => "",
    }
}

impl StackError {
    pub(super) fn file(path: &Path, source: io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            source,
        }
    }
}
