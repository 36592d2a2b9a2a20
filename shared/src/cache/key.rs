//! Keys: readable text, hashed. The text is stored beside what it leads to.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_64;

use super::{Kind, Token};
use crate::domain::{
    CodeId, DebugId, FileType, Location, ModuleId, ObjectId, ObjectType, Scope, SourceKey,
};

/// What the entries of one module in one source, for one scope, have in common: they share a partition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ModuleKey {
    /// Who may see it.
    pub scope: Scope,
    /// Where its DIFs are.
    pub source: SourceKey,
    /// The text that decides what can be found: for uploads, the id it is filed under; for a symbol server, [`Sought`].
    #[serde(rename = "module")]
    pub id: String,
}

/// What is sought of a symbol server. Because the locations decide what can be found, a request that lacks the name of a
/// file never answers for one that has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sought {
    /// What kind of module it is.
    pub object_type: ObjectType,
    /// Identity of the debug file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debug_id: Option<DebugId>,
    /// Identity of the code file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_id: Option<CodeId>,
    /// Where its DIFs may be, in the order in which they are tried.
    pub locations: Vec<(FileType, Location)>,
    /// Whether it is sought to be transcoded, and for nothing else.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub to_transcode: bool,
}

impl Sought {
    /// Returns what is sought for a module at these locations.
    pub fn new(module: &ObjectId, locations: Vec<(FileType, Location)>) -> Self {
        Self {
            object_type: module.object_type,
            debug_id: module.debug_id,
            code_id: module.code_id.clone(),
            locations,
            to_transcode: false,
        }
    }

    /// Returns the PDB that is sought to be transcoded.
    pub fn to_transcode(pdb: &ObjectId, locations: Vec<(FileType, Location)>) -> Self {
        let is_pdb = |(file_type, _): &(FileType, Location)| *file_type == FileType::Pdb;
        Self {
            to_transcode: true,
            ..Self::new(pdb, locations.into_iter().filter(is_pdb).collect())
        }
    }

    /// Tells whether a cache of this kind may come of it.
    pub fn may_yield(&self, kind: Kind) -> bool {
        let is_dotnet = self.object_type == ObjectType::PeDotnet;
        let mut types = self.locations.iter().map(|(file_type, _)| *file_type);
        (self.to_transcode == kind.is_opaque())
            && (is_dotnet == (kind == Kind::PpdbCache))
            && types.any(|file_type| kind.comes_of(file_type))
    }
}

impl ModuleKey {
    /// Returns the key of a module in the uploads of a scope.
    pub fn uploads(scope: Scope, module: &ModuleId) -> Self {
        Self {
            scope,
            source: SourceKey::uploads(),
            id: module.to_string(),
        }
    }

    /// Returns the key of a module in a symbol server.
    pub fn server(scope: Scope, source: SourceKey, sought: &Sought) -> Self {
        Self {
            scope,
            source,
            id: serde_json::to_string(sought).unwrap_or_default(),
        }
    }

    /// Returns what is sought of a symbol server; `None` for a module in the uploads.
    pub fn sought(&self) -> Option<Sought> {
        serde_json::from_str(&self.id).ok()
    }

    /// Tells whether it is what a file and its companion have in common, and no module of a crash.
    pub fn is_of_companions(&self) -> bool {
        self.id.starts_with(ModuleId::COMPANION_PREFIX)
    }

    /// Returns the readable text, one field a line.
    pub fn text(&self) -> String {
        format!(
            "scope: {}\nsource: {}\nmodule: {}\n",
            self.scope, self.source, self.id
        )
    }

    /// Returns the partition that this module's items share.
    pub fn partition(&self) -> String {
        hash(&self.text())
    }

    /// Returns the key of the entry of a kind.
    pub fn entry(&self, kind: Kind) -> ItemKey {
        ItemKey {
            partition: self.partition(),
            sort: kind.to_string(),
        }
    }

    /// Returns the key of the alias that leads from this id of an object to its other one.
    pub fn alias(&self) -> ItemKey {
        ItemKey {
            partition: self.partition(),
            sort: "alias".to_owned(),
        }
    }

    /// Returns the key of the item that stands for one uploaded DIF of this module.
    pub fn dif(&self, location: &Location) -> ItemKey {
        ItemKey {
            partition: self.partition(),
            sort: format!("{}{}", ItemKey::DIF_PREFIX, hash(location.as_str())),
        }
    }

    /// Returns the key of the item that says that this module has files among the uploads.
    pub fn presence(&self) -> ItemKey {
        ItemKey {
            partition: self.partition(),
            sort: "files".to_owned(),
        }
    }

    /// Returns the key of the list of the uploads that this module has no room for. Only those who
    /// remove or add files read it: it has a partition of its own.
    pub fn overflow(&self) -> ItemKey {
        ItemKey {
            partition: hash(&format!("overflow of\n{}", self.text())),
            sort: "overflow".to_owned(),
        }
    }

    /// Returns the key of our copy of a DIF of this module, which a symbol server had.
    pub fn copy(&self, location: &Location) -> ItemKey {
        ItemKey {
            partition: self.partition(),
            sort: format!("copy-{}", hash(location.as_str())),
        }
    }
}

/// The primary key of an item.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ItemKey {
    /// SHA-256 of a readable text, in hex.
    pub partition: String,
    /// What the item is within its partition.
    pub sort: String,
}

impl ItemKey {
    /// How the sort keys of DIF items begin.
    pub const DIF_PREFIX: &'static str = "dif#";

    /// Returns the key of the item that tells what became of an upload.
    pub fn upload(location: &Location) -> Self {
        Self {
            partition: hash(&format!("upload: {location}\n")),
            sort: "upload".to_owned(),
        }
    }

    /// Returns the key of some of the objects of an upload, beside the item that tells what became
    /// of it.
    pub fn objects(location: &Location, token: &Token, number: u32) -> Self {
        Self {
            sort: format!("objects#{token}#{number:05}"),
            ..Self::upload(location)
        }
    }

    /// Returns the partition of what the clients of a scope want and nothing here can make.
    pub fn wanted_partition(scope: &Scope) -> String {
        hash(&format!("wanted: {scope}\n"))
    }

    /// Returns the key of a PDB whose SymCache is wanted. A scope has [`Wanted::MAX_ITEMS`] of these keys, so clients
    /// cannot lengthen the list without end: each is of many PDBs, of which one is stored.
    ///
    /// [`Wanted::MAX_ITEMS`]: super::Wanted::MAX_ITEMS
    pub fn wanted(scope: &Scope, pdb: DebugId) -> Self {
        let slot = xxh3_64(pdb.to_string().as_bytes()) % super::Wanted::MAX_ITEMS;
        Self {
            partition: Self::wanted_partition(scope),
            sort: format!("wanted#{slot:04}"),
        }
    }

    /// Returns the key of a pending request.
    pub fn request(id: &str) -> Self {
        Self {
            partition: hash(&format!("request: {id}\n")),
            sort: "request".to_owned(),
        }
    }

    /// Returns the key of an item of the sweep's own.
    pub fn sweep(item: SweepItem) -> Self {
        Self {
            partition: hash("sweep\n"),
            sort: item.to_string(),
        }
    }

    /// Returns the key of the last change to the uploads of a scope.
    pub fn generation(scope: &Scope) -> Self {
        Self {
            partition: hash(&format!("generation: {scope}\n")),
            sort: "generation".to_owned(),
        }
    }

    /// Returns the key of the definition of a source.
    pub fn source(source: &SourceKey) -> Self {
        Self {
            partition: hash(&format!("source: {source}\n")),
            sort: "source".to_owned(),
        }
    }

    /// Returns the key of what is known of a source's health.
    pub fn health(source: &SourceKey) -> Self {
        Self {
            partition: hash(&format!("health: {source}\n")),
            sort: "health".to_owned(),
        }
    }

    /// Returns the key of the count of losses.
    pub fn losses() -> Self {
        Self {
            partition: hash("losses\n"),
            sort: "losses".to_owned(),
        }
    }

    /// Returns the path of a part of the copy that this is the key of.
    pub fn chunk(&self, token: &Token, number: u64) -> String {
        format!(
            "copies/v1/{}/{}/{token}/{number:05}",
            self.partition, self.sort
        )
    }

    /// Returns the path of the blob that the build with this token makes for this entry.
    ///
    /// Only that build ever writes it; the entry's key can be read off it.
    pub fn blob(&self, kind: Kind, version: u32, token: &Token) -> String {
        format!(
            "derived/{kind}/v{version}/{}/{}/{token}",
            self.partition, self.sort
        )
    }

    /// Returns the path of a plain copy of a blob of this entry, for tools that read no slices; a new one each period.
    ///
    /// No record ever names it: the sweep removes it.
    pub fn plain_blob(&self, blob: &str, period: u64) -> String {
        let token = blob.rsplit('/').next().unwrap_or_default();
        format!("plain/{}/{}/{token}.{period}", self.partition, self.sort)
    }

    /// Returns the key of the entry that a blob was made for, or of the copy that it is a part of.
    pub fn of_blob(path: &str) -> Option<Self> {
        let segments: Vec<&str> = path.split('/').collect();
        let (partition, sort) = match segments[..] {
            ["derived", _kind, _version, partition, sort, _token] => (partition, sort),
            ["copies", _version, partition, sort, _token, _number] => (partition, sort),
            ["plain", partition, sort, _name] => (partition, sort),
            _ => return None,
        };
        Some(Self {
            partition: partition.to_owned(),
            sort: sort.to_owned(),
        })
    }
}

/// What the sweep keeps from one run to the next, an item each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepItem {
    /// Where it is.
    Cursor,
    /// What the pass that is under way found behind so far: the items of this list have numbers.
    Gathering(usize),
    /// What the last whole pass found behind: the items of this list have numbers.
    Manifest(usize),
    /// What this pass asked the refresh lane for: the items of this list have numbers.
    Requested(usize),
    /// What the last whole pass counted.
    Rollout,
}

impl fmt::Display for SweepItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (list, number) = match self {
            SweepItem::Cursor => return f.write_str("cursor"),
            SweepItem::Rollout => return f.write_str("rollout"),
            SweepItem::Gathering(number) => ("gathering", number),
            SweepItem::Manifest(number) => ("manifest", number),
            SweepItem::Requested(number) => ("asked", number),
        };
        // Builds before these lists had numbers read and write the first item alone.
        match number {
            0 => f.write_str(list),
            number => write!(f, "{list}#{number:02}"),
        }
    }
}

fn hash(text: &str) -> String {
    format!("{:x}", Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(scope: &str, id: &str) -> ModuleKey {
        ModuleKey::uploads(
            scope.parse().unwrap(),
            &ModuleId::Debug(id.parse().unwrap()),
        )
    }

    #[test]
    fn the_hash_of_a_key_never_changes() {
        let key = module("global", "502fc0a5-1ec1-3e47-9998-684fa139dca7");
        assert_eq!(
            key.text(),
            "scope: global\nsource: uploads\nmodule: debug_id:502fc0a5-1ec1-3e47-9998-684fa139dca7\n"
        );
        // printf 'scope: global\nsource: uploads\nmodule: debug_id:502fc0a5-1ec1-3e47-9998-684fa139dca7\n' | sha256sum
        assert_eq!(
            key.partition(),
            "a07042e06478c0b3933532b18498c793e17c0699db59173201f34dcd0c21f60b"
        );
    }

    #[test]
    fn each_input_of_a_key_changes_it() {
        let key = module("global", "502fc0a5-1ec1-3e47-9998-684fa139dca7");
        assert_ne!(
            key.partition(),
            module("acme", "502fc0a5-1ec1-3e47-9998-684fa139dca7").partition()
        );
        assert_ne!(
            key.partition(),
            module("global", "502fc0a5-1ec1-3e47-9998-684fa139dca7-1").partition()
        );
        assert_ne!(key.entry(Kind::SymCache), key.entry(Kind::CfiCache));
    }

    #[test]
    fn the_first_item_of_a_list_of_the_sweep_is_the_one_that_older_builds_know() {
        let sort = |item| ItemKey::sweep(item).sort;
        assert_eq!(sort(SweepItem::Manifest(0)), "manifest");
        assert_eq!(sort(SweepItem::Manifest(1)), "manifest#01");
        assert_eq!(sort(SweepItem::Requested(15)), "asked#15");
    }

    #[test]
    fn a_blob_leads_back_to_its_entry() {
        let entry = module("acme", "502fc0a5-1ec1-3e47-9998-684fa139dca7").entry(Kind::SymCache);
        let path = entry.blob(Kind::SymCache, 1, &Token::from_random(7));
        assert_eq!(ItemKey::of_blob(&path), Some(entry.clone()));
        let plain = entry.plain_blob(&path, 7);
        assert_ne!(plain, entry.plain_blob(&path, 8));
        assert_eq!(ItemKey::of_blob(&plain), Some(entry));
        assert_eq!(ItemKey::of_blob("requests/1"), None);
    }
}
