//! Tables and buckets with prepared contents, and stores that count or delay calls.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};
use symdepot::cache::{
    Converter, Item, ItemKey, Kind, ModuleKey, Revision, Stored, Token, current_version,
};
use symdepot::domain::{ModuleId, Scope};
use symdepot::flows::requests::RequestToStore;
use symdepot::ports::{
    BlobPage, BlobStore, Consistency, Created, Cursor, Fault, FaultKind, NotDeleted, Page,
    RecordStore, Removed, Replaced, Segment,
};
use symdepot_tests::harness::{World, travel};

/// Keeps this number of requests.
pub(crate) async fn keep_requests(world: &World, requests: u32) {
    let invocation = world.invocation(Duration::from_secs(29));
    for id in 0..requests {
        world
            .service()
            .store_request(
                &invocation,
                &id.to_string(),
                &Scope::Global,
                RequestToStore::received(b"{}"),
            )
            .await
            .unwrap();
    }
}

/// Returns a module of the global uploads.
pub(crate) fn module(number: u32) -> ModuleKey {
    let id = format!("{number:08x}-0000-4000-8000-000000000000");
    ModuleKey::uploads(Scope::Global, &ModuleId::Debug(id.parse().unwrap()))
}

/// Writes an item that does not exist.
pub(crate) async fn put(world: &World, key: &ItemKey, item: Value) {
    let stored = Stored {
        revision: Revision::from_random(world.records.calls().total()),
        item: serde_json::from_value(item).unwrap(),
    };
    let replaced = world.records.replace(key, None, &stored).await.unwrap();
    assert_eq!(replaced, Replaced::Done, "{key:?}");
}

/// Writes the SymCache entry of a module as a build leaves it, and its blob. Returns its key.
pub(crate) async fn put_entry(
    world: &World,
    number: u32,
    change: impl FnOnce(&mut Value),
) -> ItemKey {
    let module = module(number);
    let key = module.entry(Kind::SymCache);
    let version = current_version(Kind::SymCache);
    let token = Token::from_random(u128::from(number));
    let path = key.blob(Kind::SymCache, version, &token);
    let now = world.now().as_secs();
    let features = json!({
        "has_debug_info": true, "has_unwind_info": true, "has_symbols": true, "has_sources": false,
        "srcsrv_vcs": "",
    });
    let dif = json!({"location": format!("global/{number}/app.debug"), "etag": "1"});
    let mut entry = json!({
        "type": "entry", "kind": "symcache", "last_used_at": now, "module": module,
        "ready": {
            "version": version, "quality": "preferred", "rank": 0, "features": features,
            "arch": "x86_64", "file_type": "elf_debug",
            "blob": {"path": path, "bytes": 4, "checksum": number}, "made_from": [dif],
            "derived_at": now, "converter": Converter::CURRENT,
        },
        "considered": [dif],
    });
    change(&mut entry);
    let _ = world.caches.create(&path, "blob".into()).await.unwrap();
    put(world, &key, entry).await;
    key
}

/// Writes the item of an uploaded DIF of a module, as releases before presence items left it.
pub(crate) async fn put_dif(world: &World, module: &ModuleKey, location: &str) {
    let location = symdepot::domain::Location::new(location);
    let features = json!({
        "has_debug_info": true, "has_unwind_info": true, "has_symbols": true, "has_sources": false,
        "srcsrv_vcs": "",
    });
    let dif = json!({
        "type": "dif", "module": module, "dif": {"location": location, "etag": "1"},
        "sequencer": "1", "size": 1, "file_type": "elf_debug", "features": features,
    });
    put(world, &module.dif(&location), dif).await;
}

/// The calls to a store of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reads {
    /// Keys that were read with eventual consistency, without the items of the pruner itself.
    pub(crate) eventual: usize,
    /// Keys that were read with strong consistency, without the items of the pruner itself.
    pub(crate) strong: usize,
    /// Partitions that were read.
    pub(crate) queries: usize,
    /// Items that were written or removed, without the items of the pruner itself.
    pub(crate) writes: usize,
}

/// Records with a latency, which count the calls.
#[derive(Debug)]
pub(crate) struct MeteredRecords {
    inner: Arc<dyn RecordStore>,
    latency: Duration,
    /// Whether reads with eventual consistency see nothing yet.
    pub(crate) is_behind: bool,
    reads: Mutex<Reads>,
}

impl MeteredRecords {
    pub(crate) fn new(inner: Arc<dyn RecordStore>, latency: Duration) -> Self {
        Self {
            inner,
            latency,
            is_behind: false,
            reads: Mutex::default(),
        }
    }

    /// Returns the calls so far.
    pub(crate) fn reads(&self) -> Reads {
        *self.reads.lock().unwrap()
    }

    async fn count(&self, count: impl FnOnce(&mut Reads)) {
        count(&mut self.reads.lock().unwrap());
        travel(self.latency).await;
    }
}

fn is_own(key: &ItemKey) -> bool {
    key.partition == ItemKey::sweep(symdepot::cache::SweepItem::Cursor).partition
}

#[async_trait]
impl RecordStore for MeteredRecords {
    async fn load(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
    ) -> Result<Vec<Option<Stored>>, Fault> {
        let count = keys.iter().filter(|key| !is_own(key)).count();
        self.count(|reads| match consistency {
            Consistency::Eventual => reads.eventual += count,
            Consistency::Strong => reads.strong += count,
        })
        .await;
        if self.is_behind && consistency == Consistency::Eventual {
            return Ok(vec![None; keys.len()]);
        }
        self.inner.load(keys, consistency).await
    }

    async fn query(&self, partition: &str) -> Result<Vec<(ItemKey, Stored)>, Fault> {
        self.count(|reads| reads.queries += 1).await;
        self.inner.query(partition).await
    }

    async fn replace(
        &self,
        key: &ItemKey,
        expected: Option<&Revision>,
        next: &Stored,
    ) -> Result<Replaced, Fault> {
        self.count(|reads| reads.writes += usize::from(!is_own(key)))
            .await;
        self.inner.replace(key, expected, next).await
    }

    async fn remove(&self, key: &ItemKey, expected: &Revision) -> Result<Removed, Fault> {
        self.count(|reads| reads.writes += usize::from(!is_own(key)))
            .await;
        self.inner.remove(key, expected).await
    }

    async fn page(&self, segment: Segment, after: Option<&Cursor>) -> Result<Page, Fault> {
        self.count(|_| {}).await;
        self.inner.page(segment, after).await
    }
}

/// Blobs with a latency, some of which cannot be removed.
#[derive(Debug)]
pub(crate) struct SlowBlobs {
    pub(crate) inner: Arc<dyn BlobStore>,
    /// The latency of a call.
    pub(crate) latency: Duration,
    /// The blobs that cannot be removed.
    pub(crate) held: Vec<String>,
}

impl SlowBlobs {
    async fn travel(&self) {
        travel(self.latency).await;
    }
}

#[async_trait]
impl BlobStore for SlowBlobs {
    async fn get(&self, path: &str, range: Option<Range<u64>>) -> Result<Option<Bytes>, Fault> {
        self.travel().await;
        self.inner.get(path, range).await
    }

    async fn create(&self, path: &str, body: Bytes) -> Result<Created, Fault> {
        self.travel().await;
        self.inner.create(path, body).await
    }

    async fn delete_many(&self, paths: &[String]) -> Result<Vec<NotDeleted>, Fault> {
        self.travel().await;
        let (held, others): (Vec<String>, Vec<String>) = paths
            .iter()
            .cloned()
            .partition(|path| self.held.contains(path));
        let mut not_deleted = self.inner.delete_many(&others).await?;
        not_deleted.extend(held.into_iter().map(|path| NotDeleted {
            error: Fault::new(FaultKind::Denied, format!("deleting {path}, which is held")),
            path,
        }));
        Ok(not_deleted)
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<BlobPage, Fault> {
        self.travel().await;
        self.inner.list(prefix, after).await
    }

    async fn presign(
        &self,
        path: &str,
        lifetime: Duration,
        content_type: Option<&str>,
    ) -> Result<String, Fault> {
        self.travel().await;
        self.inner.presign(path, lifetime, content_type).await
    }
}

/// Returns the stored entry of a key.
pub(crate) fn entry_at(world: &World, key: &ItemKey) -> Value {
    let stored = world.records.peek(key).unwrap();
    assert!(matches!(stored.item, Item::Entry(_)), "{key:?}");
    serde_json::to_value(&stored.item).unwrap()
}
