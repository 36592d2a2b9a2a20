//! Names in, readable names out, over the pipes of a child process.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::{COMMAND, MAX_LINE_BYTES};
use crate::domain::IsolatedName;
use crate::ports::Demangler;

/// Time for all names of a request.
const MAX_TIME: Duration = Duration::from_secs(2);

/// Processes that may end over the names of a request. What is left then stays mangled.
const MAX_DEATHS: usize = 16;

/// Hands names to processes of its own.
#[derive(Clone, Debug)]
pub struct ProcessDemangler {
    executable: Arc<PathBuf>,
}

impl ProcessDemangler {
    /// Returns the demangler that starts `executable` with [`COMMAND`] as its only argument.
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

    /// Asks one process for names until it ends; adds its answers to `readable`.
    async fn ask(
        &self,
        names: &[IsolatedName],
        readable: &mut Vec<Option<String>>,
    ) -> io::Result<()> {
        let mut child = self.start()?;
        let (Some(mut questions), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("the process has no pipes"));
        };
        let build_request = async {
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
                let mut limited = (&mut answers).take(MAX_LINE_BYTES);
                limited.read_until(b'\n', &mut line).await?;
                readable.push(serde_json::from_slice(&line)?);
            }
            Ok::<(), io::Error>(())
        };
        let (asked, listened) = tokio::join!(build_request, listen);
        // Whoever dies over a name does not read the others: what it answered says more.
        listened.and(asked)
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
                    tracing::warn!(name, %error, answered = readable.len() - before, "a demangler ended over a name");
                    readable.push(None);
                }
                Err(_) => {
                    tracing::warn!(left = left.len(), "names were not made readable in time");
                    break;
                }
            }
        }
        readable.resize(names.len(), None);
        readable
    }
}
