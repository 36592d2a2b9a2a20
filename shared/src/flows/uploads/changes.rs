//! The contexts of upload events: what one invocation changes, and the file that an event is about.

use crate::cache::Token;
use crate::domain::{DifRef, Scope, Sequencer};
use crate::flows::build::Builder;
use crate::flows::invocation::Invocation;
use crate::flows::presence;
use crate::flows::update::{KnownItem, RecordWriter};
use crate::ports::Fault;

/// The changes of one invocation to the items of uploads and their modules.
#[derive(Clone, Copy, Debug)]
pub(super) struct UploadChanges<'a> {
    pub(super) builder: &'a Builder,
    pub(super) invocation: &'a Invocation,
}

impl<'a> UploadChanges<'a> {
    /// Returns the means to change records.
    pub(super) fn writer(&self) -> RecordWriter<'a> {
        self.builder.writer(self.invocation)
    }

    /// Returns a new token.
    pub(super) fn token(&self) -> Token {
        self.invocation.token()
    }
}

impl Builder {
    /// Returns the means to change the items of uploads.
    pub(super) fn changes<'a>(&'a self, invocation: &'a Invocation) -> UploadChanges<'a> {
        UploadChanges {
            builder: self,
            invocation,
        }
    }
}

/// An event that is being applied, and the file that it is about.
pub(super) struct EventContext<'a> {
    pub(super) changes: UploadChanges<'a>,
    pub(super) key: &'a str,
    pub(super) sequencer: &'a Sequencer,
    pub(super) scope: &'a Scope,
    /// The bytes at the key now; for a removal, the former ones.
    pub(super) dif: DifRef,
    /// The number of messages that have continued the event so far.
    pub(super) hops: u32,
    /// The generation of the scope as it was read at the beginning.
    pub(super) generation: KnownItem,
}

impl EventContext<'_> {
    /// Gives the scope of the file a new generation.
    pub(super) async fn write_generation(&self) -> Result<(), Fault> {
        let known = self.generation.clone();
        presence::write_generation(self.changes.writer(), self.scope, known).await?;
        Ok(())
    }
}
