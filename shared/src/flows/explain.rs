//! What became of an upload.

use super::Error;
use super::symbolicate::Symbolicator;
use crate::cache::{Item, ItemKey, Upload};
use crate::domain::Location;
use crate::ports::Consistency;

impl Symbolicator {
    /// Tells what became of an upload; `None` where no event of this key was seen. Changes nothing.
    pub async fn explain_upload(&self, key: &str) -> Result<Option<Upload>, Error> {
        let key = ItemKey::upload(&Location::new(key));
        let loaded = self.records.load(&[key], Consistency::Strong).await?;
        Ok(loaded
            .into_iter()
            .flatten()
            .find_map(|stored| match stored.item {
                Item::Upload(upload) => Some(upload),
                _ => None,
            }))
    }
}
