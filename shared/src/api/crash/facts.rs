//! What a crash file says besides its stack traces and modules.

use serde::{Deserialize, Serialize};

use crate::api::symbolicator::{Completed, SystemInfo};

/// The maximum length of a text that a response repeats, in bytes. The rest of a longer text is
/// omitted.
const TEXT_BYTES: usize = 16 * 1024;

/// What a crash file says about the process and its end. The fields are those of [`Completed`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CrashFacts {
    /// When the process crashed, in seconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<u64>,
    /// The system of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_info: Option<SystemInfo>,
    /// Whether the process crashed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crashed: Option<bool>,
    /// Why the process crashed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crash_reason: Option<String>,
    /// Further details of the crash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crash_details: Option<String>,
    /// The assertion that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assertion: Option<String>,
}

impl CrashFacts {
    /// Shortens every text to `TEXT_BYTES`.
    #[must_use]
    pub fn shortened(mut self) -> Self {
        let texts = [
            &mut self.crash_reason,
            &mut self.crash_details,
            &mut self.assertion,
        ];
        texts.into_iter().flatten().for_each(shorten);
        if let Some(system) = &mut self.system_info {
            let SystemInfo {
                os_name,
                os_version,
                os_build,
                cpu_arch,
                device_model,
            } = system;
            [os_name, os_version, os_build, cpu_arch, device_model]
                .into_iter()
                .for_each(shorten);
        }
        self
    }

    /// Adds the facts to the response.
    pub fn add_to(self, completed: &mut Completed) {
        let Self {
            timestamp,
            system_info,
            crashed,
            crash_reason,
            crash_details,
            assertion,
        } = self;
        completed.timestamp = timestamp;
        completed.system_info = system_info;
        completed.crashed = crashed;
        completed.crash_reason = crash_reason;
        completed.crash_details = crash_details;
        completed.assertion = assertion;
    }
}

fn shorten(text: &mut String) {
    text.truncate(text.floor_char_boundary(TEXT_BYTES));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_shortened_between_characters() {
        let facts = CrashFacts {
            crash_details: Some("é".repeat(TEXT_BYTES)),
            crash_reason: Some(format!("a{}", "é".repeat(TEXT_BYTES))),
            system_info: Some(SystemInfo {
                os_name: "é".repeat(TEXT_BYTES),
                ..SystemInfo::default()
            }),
            ..CrashFacts::default()
        };
        let facts = facts.shortened();
        assert_eq!(facts.crash_details.unwrap().len(), TEXT_BYTES);
        assert_eq!(facts.crash_reason.unwrap().len(), TEXT_BYTES - 1);
        assert_eq!(facts.system_info.unwrap().os_name.len(), TEXT_BYTES);
    }
}
