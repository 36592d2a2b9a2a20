//! Marks the entries of modules dirty, after a file was filed or withdrawn.

use super::changes::UploadChanges;
use super::event::ToBuild;
use super::filing::FiledModule;
use crate::cache::{Change, Token};
use crate::domain::DifRef;
use crate::ports::Fault;

impl UploadChanges<'_> {
    /// Invalidates the entries that this DIF may serve.
    pub(super) async fn invalidate(
        &self,
        module: &FiledModule,
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
    pub(super) async fn revoke_made(
        &self,
        module: &FiledModule,
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
        module: &FiledModule,
        change: impl FnOnce(Token) -> Change,
    ) -> Result<(), Fault> {
        let change = change(self.token());
        self.update()
            .apply_all(&module.key, &module.kinds, &change, &module.entries)
            .await
    }
}
