//! Marks the entries of modules dirty, after a file was filed or withdrawn.

use super::building::ToBuild;
use super::changes::UploadChanges;
use super::filing::ConcernedModule;
use crate::cache::{Change, Token};
use crate::domain::DifRef;
use crate::ports::Fault;

impl UploadChanges<'_> {
    /// Invalidates the entries that this DIF may serve.
    pub(super) async fn invalidate_entries(
        &self,
        module: &ConcernedModule,
        dif: &DifRef,
    ) -> Result<ToBuild, Fault> {
        let dif = dif.clone();
        let invalidate = |mark| Change::Invalidate { dif, mark };
        self.mark(module, invalidate).await?;
        Ok(ToBuild {
            module: module.clone(),
            has_files: true,
        })
    }

    /// Revokes a DIF in the entries of a module.
    pub(super) async fn revoke_in_entries(
        &self,
        module: &ConcernedModule,
        dif: &DifRef,
    ) -> Result<(), Fault> {
        let dif = dif.clone();
        let revoke = |mark| Change::Revoke { dif, mark };
        self.mark(module, revoke).await
    }

    /// Changes the entries of a module with a new dirty mark. Entries without a pending build
    /// request get one whose id is the mark.
    async fn mark(
        &self,
        module: &ConcernedModule,
        change: impl FnOnce(Token) -> Change,
    ) -> Result<(), Fault> {
        let change = change(self.token());
        self.writer()
            .apply_all(&module.key, &module.kinds, &change, &module.entries)
            .await
    }
}
