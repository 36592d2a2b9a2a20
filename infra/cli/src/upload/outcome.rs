//! What became of a file, and how it is printed.

use std::fmt::Write as _;

use indicatif::BinaryBytes;
use symdepot::api::uploads::RequestedFileState;

use super::choose::Chosen;
use super::usage::ServiceState;
use crate::visible::visible;

/// What became of a file.
pub(super) struct Outcome {
    pub(super) file: Chosen,
    pub(super) key: String,
    pub(super) fate: Fate,
}

pub(super) enum Fate {
    /// It would be sent.
    Wanted,
    /// It was not sent as a whole: the command failed before, or the service did not say how.
    Unsent,
    /// It was sent, as so many bytes.
    Sent(u64, ServiceState),
    /// The service had it already.
    Present(ServiceState),
}

/// Returns the state of a file that the service has.
pub(super) fn service_state(state: RequestedFileState) -> Option<ServiceState> {
    match state {
        RequestedFileState::Absent | RequestedFileState::Upload(_) => None,
        RequestedFileState::Pending => Some(ServiceState::Pending),
        RequestedFileState::Applied => Some(ServiceState::Applied),
        RequestedFileState::Ignored { reason } => Some(ServiceState::Ignored(reason)),
    }
}

impl Outcome {
    pub(super) fn state(&self) -> Option<&ServiceState> {
        match &self.fate {
            Fate::Wanted | Fate::Unsent => None,
            Fate::Sent(_, state) | Fate::Present(state) => Some(state),
        }
    }

    pub(super) fn set_state(&mut self, new: ServiceState) {
        match &mut self.fate {
            Fate::Wanted | Fate::Unsent => {}
            Fate::Sent(_, state) | Fate::Present(state) => *state = new,
        }
    }

    pub(super) fn was_sent(&self) -> bool {
        matches!(self.fate, Fate::Sent(..))
    }

    pub(super) fn is_pending(&self) -> bool {
        self.state() == Some(&ServiceState::Pending)
    }

    /// Returns whether requests may use the file, or another upload of the same program.
    pub(super) fn may_be_used(&self) -> bool {
        matches!(
            self.state(),
            Some(
                ServiceState::Applied
                    | ServiceState::InUse
                    | ServiceState::InPart(_)
                    | ServiceState::NotNeeded(_)
            )
        )
    }

    /// Returns whether requests do not use all that is in the file, although they should.
    pub(super) fn is_incomplete(&self) -> bool {
        match self.state() {
            None => matches!(self.fate, Fate::Unsent),
            Some(
                ServiceState::InPart(_)
                | ServiceState::Unused(_)
                | ServiceState::Ignored(_)
                | ServiceState::Removed,
            ) => true,
            Some(
                ServiceState::Pending
                | ServiceState::Applied
                | ServiceState::InUse
                | ServiceState::NotNeeded(_),
            ) => false,
        }
    }

    /// Returns what became of the file, as a line.
    pub(super) fn line(&self) -> String {
        let path = visible(&self.file.path.display().to_string());
        let mut line = format!("{:10} {path}", self.label());
        let whole = BinaryBytes(self.file.bytes);
        match self.fate {
            Fate::Wanted | Fate::Unsent => {
                let _ = write!(line, "  {whole}");
            }
            Fate::Sent(bytes, _) => {
                let _ = write!(line, "  {whole}, sent as {}", BinaryBytes(bytes));
            }
            Fate::Present(_) => {}
        }
        match self.state() {
            Some(ServiceState::Ignored(reason) | ServiceState::Unused(reason)) => {
                let _ = write!(line, ": {}", visible(reason));
            }
            Some(ServiceState::InPart(reason)) => {
                let _ = write!(line, "  in use in part: {}", visible(reason));
            }
            Some(ServiceState::NotNeeded(other)) => {
                let other = visible(other);
                let _ = write!(line, "  not needed, {other} of the same program is in use");
            }
            Some(ServiceState::Pending) => line.push_str("  is being processed"),
            Some(ServiceState::Applied) => line.push_str("  applied"),
            Some(ServiceState::InUse) => line.push_str("  in use"),
            Some(ServiceState::Removed) => {
                line.push_str("  was removed from the service meanwhile: upload it again");
            }
            None => {}
        }
        let _ = writeln!(line, "  {}", visible(&self.key));
        line
    }

    /// Returns the words for what became of the file.
    pub(super) fn label(&self) -> &'static str {
        match (&self.fate, self.state()) {
            (_, Some(ServiceState::Ignored(_))) => "ignored",
            (_, Some(ServiceState::Unused(_))) => "unused",
            (_, Some(ServiceState::Removed)) => "removed",
            (Fate::Wanted, _) => "would send",
            (Fate::Unsent, _) => "not sent",
            (Fate::Sent(..), _) => "sent",
            (Fate::Present(_), _) => "present",
        }
    }
}
