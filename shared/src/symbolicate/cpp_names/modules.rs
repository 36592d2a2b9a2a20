//! Modules in mangled names: the module that a declaration is attached to is left out.

use super::reader::{NameReader, NameResult, NodeKind, Unreadable};

impl NameReader<'_> {
    /// `[<module-name>]`, which is removed.
    pub(super) fn module(&mut self) -> NameResult<()> {
        if let [b'S', b'_' | b'0'..=b'9' | b'A'..=b'Z', ..] = self.rest() {
            let start = self.parts.len();
            let module = self.substitution()?;
            if !self.is_module(module) {
                return Err(Unreadable);
            }
            self.parts.truncate(start);
        }
        while self.is_next("W") {
            self.steps_left = self.steps_left.checked_sub(1).ok_or(Unreadable)?;
            self.skip(|it| {
                it.module_prefix()?;
                it.source_name()
            })?;
            // A candidate of the name that is read, but not of the one that is written.
            let module = self.node(self.parts.len(), NodeKind::Module);
            self.candidates.push(module);
        }
        Ok(())
    }

    /// `W [P]` before a part of the name of a module, or of a partition.
    pub(super) fn module_prefix(&mut self) -> NameResult<()> {
        self.expect("W")?;
        self.take_if("P").map(|_| ())
    }

    pub(super) fn is_module(&self, candidate: Option<usize>) -> bool {
        candidate.is_some_and(|node| matches!(self.nodes[node].kind, NodeKind::Module))
    }
}
