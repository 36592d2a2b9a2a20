//! The demangler's parent process: writes names to a child process and reads readable names from
//! it.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::{COMMAND, LONGEST_ANSWER};
use crate::domain::IsolatedName;
use crate::ports::Demangler;

/// Time limit for all names of a request.
const MAX_TIME: Duration = Duration::from_secs(2);

/// Time limit for a name, including the start of the process, so that a slow name does not take the
/// time of the others.
const MAX_TIME_OF_NAME: Duration = Duration::from_millis(300);

/// The maximum number of processes that may die on the names of a request. The remaining names then
/// stay mangled.
const MAX_DEATHS: usize = 16;

/// Demangles names in child processes.
#[derive(Clone, Debug)]
pub struct ProcessDemangler {
    executable: Arc<PathBuf>,
}

impl ProcessDemangler {
    /// Returns a demangler that starts `executable` with [`COMMAND`] as its only argument.
    pub fn new(executable: impl Into<PathBuf>) -> Self {
        Self {
            executable: Arc::new(executable.into()),
        }
    }

    fn start(&self) -> io::Result<Child> {
        Command::new(&*self.executable)
            .arg(COMMAND)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
    }

    /// Sends names to one process until it ends; adds its replies to `readable`.
    async fn ask(
        &self,
        names: &[IsolatedName],
        readable: &mut Vec<Option<String>>,
    ) -> io::Result<()> {
        let mut child = self.start()?;
        let (Some(mut questions), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("the process has no pipes"));
        };
        let request = async {
            let mut lines = Vec::new();
            for name in names {
                let question = (name.language.name(), name.symbol.as_str());
                serde_json::to_writer(&mut lines, &question)?;
                lines.push(b'\n');
            }
            questions.write_all(&lines).await?;
            drop(questions);
            Ok::<(), io::Error>(())
        };
        let listen = async {
            let mut answers = BufReader::new(answers);
            for _ in names {
                let mut line = Vec::new();
                let mut limited = (&mut answers).take(LONGEST_ANSWER as u64);
                let reply = limited.read_until(b'\n', &mut line);
                tokio::time::timeout(MAX_TIME_OF_NAME, reply).await??;
                readable.push(serde_json::from_slice(&line)?);
            }
            Ok::<(), io::Error>(())
        };
        // A process that ends or is slow does not read the rest of the names, so the error of
        // reading its replies is the more specific one, and writing ends with it.
        tokio::pin!(request, listen);
        tokio::select! {
            biased;
            listened = &mut listen => listened,
            asked = &mut request => match listen.await {
                Ok(()) => asked,
                failed => failed,
            },
        }
    }
}

#[async_trait]
impl Demangler for ProcessDemangler {
    async fn demangle(&self, names: &[IsolatedName]) -> Vec<Option<String>> {
        let until = Instant::now() + MAX_TIME;
        let mut readable = Vec::with_capacity(names.len());
        for _ in 0..=MAX_DEATHS {
            let left = names.get(readable.len()..).unwrap_or_default();
            if left.is_empty() {
                break;
            }
            let before = readable.len();
            match tokio::time::timeout_at(until, self.ask(left, &mut readable)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    let name = names.get(readable.len()).map(|name| name.symbol.as_str());
                    tracing::warn!(name, %error, answered = readable.len() - before, "demangler process ended on a name");
                    readable.push(None);
                }
                Err(_) => {
                    tracing::warn!(left = left.len(), "demangling timed out");
                    break;
                }
            }
        }
        readable.resize(names.len(), None);
        readable
    }
}
