//! Loads items for readers: from the instance's cache while they are valid there, else from the
//! store, in one round of reads.
//!
//! The generations of the scopes are read together with the items that they validate. If all cached
//! items only need validation, the generations are read alone; the items of changed scopes are read
//! after them.
//!
//! A scope without a generation has no uploads, so its items need not be read. A request for many
//! items reads the generations first. A nonexistent scope then costs one read, regardless of the
//! number of modules in the request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::finder::CacheFinder;
use crate::cache::{Generation, Item, ItemKey, ModuleKey, Stored};
use crate::domain::Scope;
use crate::flows::memory::{ReadBy, Recalled, SeenGeneration};
use crate::flows::moment::Moment;
use crate::ports::{Consistency, Fault};

/// If more items than this are unknown, the generations are read first, in a round of their own, to
/// leave out the items of empty scopes. Two calls of the store read this many items.
const MANY: usize = 200;

/// A query for one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::flows) struct ItemQuery {
    /// The key of the item.
    pub(in crate::flows) key: ItemKey,
    /// The scope whose generation validates the item; `None` if it is not about uploads.
    pub(in crate::flows) scope: Option<Scope>,
    /// For how long a cached item is good enough without validation, if this is longer than usual.
    pub(in crate::flows) valid_for: Duration,
}

impl ItemQuery {
    /// Returns a query for an item in the partition of a module.
    pub(in crate::flows) fn of(module: &ModuleKey, key: ItemKey) -> Self {
        let is_upload = module.source.is_uploads();
        Self {
            key,
            scope: is_upload.then(|| module.scope.clone()),
            valid_for: Duration::ZERO,
        }
    }

    /// Returns a query for an item that no generation validates.
    pub(in crate::flows) fn alone(key: ItemKey) -> Self {
        Self {
            key,
            scope: None,
            valid_for: Duration::ZERO,
        }
    }
}

impl CacheFinder<'_> {
    /// Loads items, from the instance's cache if they are valid there.
    pub(in crate::flows) async fn load_items(
        &self,
        wanted: &[ItemQuery],
        consistency: Consistency,
    ) -> Result<Vec<Option<Arc<Stored>>>, Fault> {
        let (memory, invocation) = (&self.service.memory, self.invocation);
        let recall =
            |wanted: &ItemQuery| memory.recall_for(invocation, &wanted.key, wanted.valid_for);
        let mut found: Vec<Recalled> = wanted.iter().map(recall).collect();
        let (mut to_validate, mut unknown) = (Vec::new(), Vec::new());
        for (at, recalled) in found.iter().enumerate() {
            match recalled {
                Recalled::Valid(_) => {}
                Recalled::NeedsValidation => to_validate.push(at),
                Recalled::Unknown => unknown.push(at),
            }
        }
        let scopes = to_validate.iter().chain(&unknown);
        let scopes: BTreeSet<Scope> = scopes.filter_map(|at| wanted[*at].scope.clone()).collect();
        // Only for strong reads: an eventually consistent read may miss the first generation of a
        // scope, although the waiting request has already seen an upload there.
        if consistency == Consistency::Strong && unknown.len() > MANY {
            self.read_items(&[], scopes.clone(), consistency).await?;
            unknown.retain(|at| {
                let scope = wanted[*at].scope.as_ref();
                let generation = scope.and_then(|scope| memory.generation(invocation, scope));
                let is_of_empty_scope = generation == Some(SeenGeneration::NoUploads);
                if is_of_empty_scope {
                    found[*at] = Recalled::Valid(None);
                }
                !is_of_empty_scope
            });
        }
        let to_read = |numbers: &[usize]| -> Vec<ItemQuery> {
            numbers.iter().map(|at| wanted[*at].clone()).collect()
        };
        if !to_validate.is_empty() || !unknown.is_empty() {
            let read = self
                .read_items(&to_read(&unknown), scopes, consistency)
                .await?;
            for (at, stored) in unknown.into_iter().zip(read) {
                found[at] = Recalled::Valid(stored);
            }
        }
        // What the generations that were just read do not confirm is read, too.
        to_validate.retain(|at| {
            found[*at] = recall(&wanted[*at]);
            !matches!(found[*at], Recalled::Valid(_))
        });
        if !to_validate.is_empty() {
            let to_read = to_read(&to_validate);
            let read = self
                .read_items(&to_read, BTreeSet::new(), consistency)
                .await?;
            for (at, stored) in to_validate.into_iter().zip(read) {
                found[at] = Recalled::Valid(stored);
            }
        }
        let stored = |found: Recalled| match found {
            Recalled::Valid(stored) => stored,
            Recalled::NeedsValidation | Recalled::Unknown => None,
        };
        Ok(found.into_iter().map(stored).collect())
    }

    /// Reads items, and in the same call the generations of these scopes that were not read a
    /// moment ago. Caches all of them.
    async fn read_items(
        &self,
        wanted: &[ItemQuery],
        scopes: BTreeSet<Scope>,
        consistency: Consistency,
    ) -> Result<Vec<Option<Arc<Stored>>>, Fault> {
        let (memory, invocation) = (&self.service.memory, self.invocation);
        let known = |scope: &Scope| memory.generation(invocation, scope);
        let mut before: BTreeMap<Scope, SeenGeneration> = wanted
            .iter()
            .filter_map(|wanted| wanted.scope.as_ref())
            .filter_map(|scope| Some((scope.clone(), known(scope)?)))
            .collect();
        let scopes: Vec<Scope> = scopes
            .into_iter()
            .filter(|scope| known(scope).is_none())
            .collect();
        let generations = scopes.iter().map(ItemKey::generation);
        let items = wanted.iter().map(|wanted| wanted.key.clone());
        let keys: Vec<ItemKey> = generations.chain(items).collect();
        invocation.note(|notes| notes.record_reads += keys.len());
        let earlier: Vec<Option<SeenGeneration>> = scopes
            .iter()
            .map(|scope| memory.last_generation(scope))
            .collect();
        let read_at = Moment::now(invocation);
        let records = &self.service.records;
        let mut loaded = records.load(&keys, consistency).await?.into_iter();

        let mut beside: BTreeMap<Scope, Option<Generation>> = BTreeMap::new();
        for (scope, earlier) in scopes.into_iter().zip(earlier) {
            let generation = match loaded.next().flatten().map(|stored| stored.item) {
                Some(Item::Generation(generation)) => Some(generation),
                None => None,
                // A newer build wrote it, so it validates nothing.
                Some(_) => continue,
            };
            let seen = SeenGeneration::of(generation.as_ref());
            memory.remember_generation(read_at, scope.clone(), seen.clone());
            if earlier.as_ref() == Some(&seen) {
                // The generation has not changed since it was read before these items.
                before.insert(scope.clone(), seen);
            }
            beside.insert(scope, generation);
        }
        let read_by = |scope: &Option<Scope>| match (consistency, scope) {
            (Consistency::Strong, Some(scope)) => match (before.get(scope), beside.get(scope)) {
                (Some(seen), _) => ReadBy::After(scope.clone(), seen.clone()),
                (None, Some(generation)) => ReadBy::Beside(scope.clone(), generation.clone()),
                (None, None) => ReadBy::Otherwise,
            },
            _ => ReadBy::Otherwise,
        };
        let remember = |(wanted, stored): (&ItemQuery, Option<Stored>)| {
            let stored = stored.map(Arc::new);
            let read = read_by(&wanted.scope).at(read_at);
            memory.remember(invocation, wanted.key.clone(), stored.clone(), read);
            stored
        };
        Ok(wanted.iter().zip(loaded).map(remember).collect())
    }
}
