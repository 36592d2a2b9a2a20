//! The record of permissions that a stack writes: no test may cause a denied call by accident, and
//! all records together show which grants of the template are needed (`grants`).

use std::path::{Path, PathBuf};

use local_stack::iam::Use;
use local_stack::stack::ACCESS_FILE;

/// The variable with the folder that receives a copy of each record. Without it, none is kept.
pub const RECORDS: &str = "SYMDEPOT_ACCESS";

/// Reads a record. A line that is not one, because the stack was killed while it wrote, is skipped.
pub fn uses_in(path: &Path) -> Vec<Use> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let uses = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    uses.collect()
}

/// Keeps the record of a stack when it is dropped, and panics if a function was denied a call.
#[derive(Debug)]
pub(super) struct Watch {
    path: PathBuf,
    expects_denials: bool,
}

impl Watch {
    /// Watches the stack whose data is in this folder.
    pub(super) fn over(data: &Path, expects_denials: bool) -> Self {
        Self {
            path: data.join(ACCESS_FILE),
            expects_denials,
        }
    }

    fn keep(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        let mut builder = tempfile::Builder::new();
        let file = builder
            .prefix("stack-")
            .suffix(".jsonl")
            .tempfile_in(folder)?;
        std::fs::copy(&self.path, file.path())?;
        file.keep().map(drop).map_err(|error| error.error)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.expects_denials {
            return;
        }
        let denied: Vec<String> = uses_in(&self.path)
            .into_iter()
            .filter_map(|it| it.denied)
            .collect();
        if std::thread::panicking() {
            // The first failure is the one that is reported.
            return;
        }
        assert!(
            denied.is_empty(),
            "the template does not allow what the functions do:\n{}",
            denied.join("\n")
        );
        if let Some(folder) = std::env::var_os(RECORDS).filter(|folder| !folder.is_empty()) {
            let kept = self.keep(Path::new(&folder));
            assert!(
                kept.is_ok(),
                "{} is not kept: {kept:?}",
                self.path.display()
            );
        }
    }
}
