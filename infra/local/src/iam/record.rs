//! The record of what the roles of a stack were allowed and denied, in memory and in a file.
//!
//! A use is recorded once for each action and each set of grants that allow it, with the first
//! request as an example; a denial once for each action and resource. So the record is small, and
//! has everything that says which grants are needed: a grant is, if it is the only one of a use.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::decision::Grant;

/// The maximum number of recorded uses. Denials of invented resources do not fill the memory.
const MAX_USES: usize = 4096;

/// What a role or a service did, or was denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// The name of the role, or of the service.
    pub by: String,
    /// The action: `s3:GetObject`.
    pub action: String,
    /// The ARN of the first resource.
    pub resource: String,
    /// Every grant that allows it; empty if it was denied.
    pub grants: Vec<Grant>,
    /// Why it was denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied: Option<String>,
    /// How often. In the file, it is 1.
    pub calls: u64,
}

/// What distinguishes uses. The resource is that of a denial.
type Key = (String, String, Vec<Grant>, Option<String>);

/// The record. A file has one [`Use`] as JSON in each line, which is written before the response is
/// sent: a stack that is killed has lost none.
#[derive(Debug, Default)]
pub struct AccessRecord {
    uses: Mutex<BTreeMap<Key, Use>>,
    file: Option<Mutex<File>>,
}

impl AccessRecord {
    /// Returns an empty record that appends to a file.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn in_file(path: &Path) -> io::Result<Self> {
        let file = File::options()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)?;
        Ok(Self {
            uses: Mutex::default(),
            file: Some(Mutex::new(file)),
        })
    }

    /// Returns the uses, in a stable order.
    #[must_use]
    pub fn uses(&self) -> Vec<Use> {
        self.lock().values().cloned().collect()
    }

    /// Records a use with its number of calls as 1.
    pub(super) fn note(&self, it: Use) {
        let resource = it.denied.is_some().then(|| it.resource.clone());
        let key = (
            it.by.clone(),
            it.action.clone(),
            it.grants.clone(),
            resource,
        );
        let mut uses = self.lock();
        if let Some(known) = uses.get_mut(&key) {
            known.calls += 1;
            return;
        }
        if uses.len() >= MAX_USES {
            return;
        }
        if let Some(file) = &self.file {
            let mut line = serde_json::json!(it).to_string();
            line.push('\n');
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = file.write_all(line.as_bytes()) {
                tracing::warn!(%error, "cannot write the record of permissions");
            }
        }
        uses.insert(key, it);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Key, Use>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(resource: &str, denied: Option<&str>) -> Use {
        let grant = Grant {
            holder: "Role".to_owned(),
            action: "s3:GetObject".to_owned(),
            resource: "arn:aws:s3:::b/*".to_owned(),
        };
        Use {
            by: "Role".to_owned(),
            action: "s3:GetObject".to_owned(),
            resource: resource.to_owned(),
            grants: if denied.is_some() {
                Vec::new()
            } else {
                vec![grant]
            },
            denied: denied.map(str::to_owned),
            calls: 1,
        }
    }

    #[test]
    fn a_use_is_written_once_and_counted_and_every_denied_resource_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.jsonl");
        let record = AccessRecord::in_file(&path).unwrap();
        for key in ["a", "b", "a"] {
            record.note(used(&format!("arn:aws:s3:::b/{key}"), None));
            record.note(used(&format!("arn:aws:s3:::b/{key}"), Some("no")));
        }
        let calls: Vec<u64> = record.uses().iter().map(|it| it.calls).collect();
        assert_eq!(calls, [2, 1, 3]);
        let lines = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Use> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let expected = [
            used("arn:aws:s3:::b/a", None),
            used("arn:aws:s3:::b/a", Some("no")),
            used("arn:aws:s3:::b/b", Some("no")),
        ];
        assert_eq!(lines, expected);
    }
}
