//! Loads items for readers: from the instance's memory while they are valid there, else from the
//! store, in one round of reads.
//!
//! The generations of the scopes are read together with the items that they validate. If all
//! remembered items only need validation, the generations are read alone; the items of changed
//! scopes are read after them.
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
const READ_GENERATIONS_FIRST_ABOVE: usize = 200;

/// A query for one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::flows) struct ItemQuery {
    /// The key of the item.
    pub(in crate::flows) key: ItemKey,
    /// The scope whose generation validates the item; `None` if it is not about uploads.
    pub(in crate::flows) scope: Option<Scope>,
    /// For how long a remembered item is good enough without validation, if this is longer than
    /// usual.
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

/// The items of one load, in the order of their queries.
struct ItemReads<'a> {
    finder: CacheFinder<'a>,
    queries: &'a [ItemQuery],
    consistency: Consistency,
    /// What is known of each item so far.
    found: Vec<Recalled>,
    /// The indices of the remembered items that their generations have to validate.
    to_validate: Vec<usize>,
    /// The indices of the items to read.
    unknown: Vec<usize>,
    /// The scopes of the items to validate or to read.
    scopes: BTreeSet<Scope>,
}

impl<'a> ItemReads<'a> {
    /// Recalls the items from the instance's memory.
    fn recall(finder: CacheFinder<'a>, queries: &'a [ItemQuery], consistency: Consistency) -> Self {
        let found: Vec<Recalled> = queries.iter().map(|query| finder.recall(query)).collect();
        let (mut to_validate, mut unknown) = (Vec::new(), Vec::new());
        for (at, recalled) in found.iter().enumerate() {
            match recalled {
                Recalled::Valid(_) => {}
                Recalled::NeedsValidation => to_validate.push(at),
                Recalled::Unknown => unknown.push(at),
            }
        }
        let scopes = to_validate.iter().chain(&unknown);
        let scopes = scopes.filter_map(|at| queries[*at].scope.clone());
        Self {
            scopes: scopes.collect(),
            finder,
            queries,
            consistency,
            found,
            to_validate,
            unknown,
        }
    }

    /// If many items are unknown, reads the generations of their scopes, and leaves out the items
    /// of scopes without uploads.
    async fn drop_empty_scopes(&mut self) -> Result<(), Fault> {
        // Only for strong reads: an eventually consistent read may miss the first generation of a
        // scope, although the waiting request has already seen an upload there.
        let is_strong = self.consistency == Consistency::Strong;
        if !is_strong || self.unknown.len() <= READ_GENERATIONS_FIRST_ABOVE {
            return Ok(());
        }
        let (finder, queries, found) = (self.finder, self.queries, &mut self.found);
        let scopes = self.scopes.clone();
        finder.read_items(&[], scopes, self.consistency).await?;
        let memory = &finder.service.memory;
        self.unknown.retain(|at| {
            let scope = queries[*at].scope.as_ref();
            let generation = scope.and_then(|scope| memory.generation(finder.invocation, scope));
            let is_of_empty_scope = generation == Some(SeenGeneration::NoUploads);
            if is_of_empty_scope {
                found[*at] = Recalled::Valid(None);
            }
            !is_of_empty_scope
        });
        Ok(())
    }

    /// Reads the unknown items, and the generations that may validate the remembered ones.
    async fn read_unknown(&mut self) -> Result<(), Fault> {
        if self.to_validate.is_empty() && self.unknown.is_empty() {
            return Ok(());
        }
        let unknown = std::mem::take(&mut self.unknown);
        let scopes = std::mem::take(&mut self.scopes);
        self.read(unknown, scopes).await
    }

    /// Reads the remembered items that the generations that were just read do not validate.
    async fn read_unconfirmed(&mut self) -> Result<(), Fault> {
        let (finder, queries, found) = (self.finder, self.queries, &mut self.found);
        self.to_validate.retain(|at| {
            found[*at] = finder.recall(&queries[*at]);
            !matches!(found[*at], Recalled::Valid(_))
        });
        if self.to_validate.is_empty() {
            return Ok(());
        }
        let unconfirmed = std::mem::take(&mut self.to_validate);
        self.read(unconfirmed, BTreeSet::new()).await
    }

    /// Reads the items with these indices, and the generations of these scopes.
    async fn read(&mut self, indices: Vec<usize>, scopes: BTreeSet<Scope>) -> Result<(), Fault> {
        let queries = indices.iter().map(|at| self.queries[*at].clone());
        let queries: Vec<ItemQuery> = queries.collect();
        let read = self.finder.read_items(&queries, scopes, self.consistency);
        for (at, stored) in indices.into_iter().zip(read.await?) {
            self.found[at] = Recalled::Valid(stored);
        }
        Ok(())
    }

    /// Returns the items; `None` for those that do not exist.
    fn into_items(self) -> Vec<Option<Arc<Stored>>> {
        let stored = |found: Recalled| match found {
            Recalled::Valid(stored) => stored,
            Recalled::NeedsValidation | Recalled::Unknown => None,
        };
        self.found.into_iter().map(stored).collect()
    }
}

impl CacheFinder<'_> {
    /// Loads items, from the instance's memory if they are valid there.
    pub(in crate::flows) async fn load_items(
        &self,
        queries: &[ItemQuery],
        consistency: Consistency,
    ) -> Result<Vec<Option<Arc<Stored>>>, Fault> {
        let mut reads = ItemReads::recall(*self, queries, consistency);
        reads.drop_empty_scopes().await?;
        reads.read_unknown().await?;
        reads.read_unconfirmed().await?;
        Ok(reads.into_items())
    }

    /// Returns what the instance's memory has of an item.
    fn recall(&self, query: &ItemQuery) -> Recalled {
        let memory = &self.service.memory;
        memory.recall_for(self.invocation, &query.key, query.valid_for)
    }

    /// Reads items, and in the same call the generations of these scopes that were not read a
    /// moment ago. Remembers all of them.
    async fn read_items(
        &self,
        queries: &[ItemQuery],
        scopes: BTreeSet<Scope>,
        consistency: Consistency,
    ) -> Result<Vec<Option<Arc<Stored>>>, Fault> {
        let (memory, invocation) = (&self.service.memory, self.invocation);
        let known = |scope: &Scope| memory.generation(invocation, scope);
        let mut before: BTreeMap<Scope, SeenGeneration> = queries
            .iter()
            .filter_map(|query| query.scope.as_ref())
            .filter_map(|scope| Some((scope.clone(), known(scope)?)))
            .collect();
        let scopes: Vec<Scope> = scopes
            .into_iter()
            .filter(|scope| known(scope).is_none())
            .collect();
        let generations = scopes.iter().map(ItemKey::generation);
        let items = queries.iter().map(|query| query.key.clone());
        let keys: Vec<ItemKey> = generations.chain(items).collect();
        invocation.note(|notes| notes.record_reads += keys.len());
        let earlier: Vec<Option<SeenGeneration>> = scopes
            .iter()
            .map(|scope| memory.last_generation(scope))
            .collect();
        let read_at = Moment::now(invocation);
        let records = &self.service.records;
        let mut loaded = records.load(&keys, consistency).await?.into_iter();

        let mut together: BTreeMap<Scope, Option<Generation>> = BTreeMap::new();
        for (scope, earlier) in scopes.into_iter().zip(earlier) {
            let generation = match loaded.next().flatten().map(|stored| stored.item) {
                Some(Item::Generation(generation)) => Some(generation),
                None => None,
                // A newer release wrote it, so it validates nothing.
                Some(_) => continue,
            };
            let seen = SeenGeneration::of(generation.as_ref());
            memory.remember_generation(read_at, scope.clone(), seen.clone());
            if earlier.as_ref() == Some(&seen) {
                // The generation has not changed since it was read before these items.
                before.insert(scope.clone(), seen);
            }
            together.insert(scope, generation);
        }
        let read_by = |scope: &Option<Scope>| match (consistency, scope) {
            (Consistency::Strong, Some(scope)) => match (before.get(scope), together.get(scope)) {
                (Some(seen), _) => ReadBy::AfterGeneration(scope.clone(), seen.clone()),
                (None, Some(read)) => ReadBy::WithGeneration(scope.clone(), read.clone()),
                (None, None) => ReadBy::Unvalidated,
            },
            _ => ReadBy::Unvalidated,
        };
        let remember = |(query, stored): (&ItemQuery, Option<Stored>)| {
            let stored = stored.map(Arc::new);
            let read = read_by(&query.scope).at(read_at);
            memory.remember(invocation, query.key.clone(), stored.clone(), read);
            stored
        };
        Ok(queries.iter().zip(loaded).map(remember).collect())
    }
}
