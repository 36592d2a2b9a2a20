//! Keys of items and paths of blobs.
//!
//! A partition key is the hash of a readable text. The item itself stores the fields that the text
//! is made of.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_64;

use super::{Kind, Token};
use crate::domain::{
    CodeId, CompanionId, DebugId, FileType, Location, ModuleId, ObjectId, ObjectType, Scope,
    SourceKey,
};

/// The number of wanted PDBs that are stored per scope.
pub(super) const MAX_WANTED: u64 = 4096;

/// The key that all entries of one module in one source and scope have in common. They share a
/// partition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ModuleKey {
    /// The scope of the requests that may see the entries.
    pub scope: Scope,
    /// The source of the DIFs.
    pub source: SourceKey,
    /// The text that determines which DIFs can be found: a [`ModuleRef`].
    #[serde(rename = "module")]
    pub id: String,
}

/// What the id of a [`ModuleKey`] refers to. The key itself has the text, which must stay the same
/// byte by byte, whichever version of the code wrote it, because it is hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModuleRef {
    /// The id that uploads are filed under.
    Filed(ModuleId),
    /// A query to a symbol server.
    Search(ServerSearch),
}

/// A query to a symbol server. The locations are part of the key because they determine what can be
/// found: the result for a request without a file name is never used for a request with one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSearch {
    /// The type of the module.
    pub object_type: ObjectType,
    /// The debug id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debug_id: Option<DebugId>,
    /// The code id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_id: Option<CodeId>,
    /// The checksum of the debug file, as the crash names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// The possible locations of its DIFs, in a fixed order.
    pub locations: Vec<(FileType, Location)>,
    /// Whether the source lists the locations, so that they are not known here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_listed: bool,
    /// Whether the source may have a line map of the module: the module may be of Unity.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_have_line_map: bool,
    /// Whether the DIF is only fetched to be transcoded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub to_transcode: bool,
    /// Whether the location is that of one source file, and not of a DIF.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_source_file: bool,
}

impl ServerSearch {
    /// Returns the query for a module at these locations.
    pub fn new(module: &ObjectId, locations: Vec<(FileType, Location)>) -> Self {
        Self {
            object_type: module.object_type,
            debug_id: module.debug_id,
            code_id: module.code_id.clone(),
            checksum: module.debug_checksum.clone(),
            locations,
            is_listed: false,
            may_have_line_map: false,
            to_transcode: false,
            is_source_file: false,
        }
    }

    /// Returns the query for the source file at a location. Whichever module the file belongs to,
    /// the query is the same.
    pub fn source_file(location: Location) -> Self {
        Self {
            is_source_file: true,
            ..Self::new(
                &ObjectId::default(),
                vec![(FileType::SourceBundle, location)],
            )
        }
    }

    /// Returns the query for a companion at these locations. Only the copy of the companion is
    /// stored under it.
    pub fn companion(id: &CompanionId, locations: Vec<Location>) -> Self {
        let (debug_id, code_id) = match id {
            CompanionId::Shared(id) => (None, Some(id.clone())),
            CompanionId::Unit(id) => (None, Some(CodeId::new(id.clone()))),
            CompanionId::SymbolMap(id) => (Some(*id), None),
        };
        let companion = ObjectId {
            debug_id,
            code_id,
            ..ObjectId::default()
        };
        let locations = locations.into_iter();
        let locations = locations.map(|location| (FileType::ElfDebug, location));
        Self::new(&companion, locations.collect())
    }

    /// Returns the query for a PDB to transcode.
    pub fn to_transcode(pdb: &ObjectId, locations: Vec<(FileType, Location)>) -> Self {
        let is_pdb = |(file_type, _): &(FileType, Location)| *file_type == FileType::Pdb;
        Self {
            to_transcode: true,
            ..Self::new(pdb, locations.into_iter().filter(is_pdb).collect())
        }
    }

    /// Returns whether a cache of this kind can be made from the result.
    pub fn may_yield(&self, kind: Kind) -> bool {
        let is_dotnet = self.object_type == ObjectType::PeDotnet;
        let listed: &[FileType] = if self.is_listed {
            self.object_type.file_types()
        } else {
            &[]
        };
        let located = self.locations.iter().map(|(file_type, _)| *file_type);
        let mut types = located.chain(listed.iter().copied());
        (self.to_transcode == kind.is_opaque())
            && (kind == Kind::SourceCode || is_dotnet == (kind == Kind::PpdbCache))
            && types.any(|file_type| kind.comes_of(file_type))
    }
}

impl ModuleKey {
    /// Returns the key of a module in the uploads of a scope.
    pub fn uploads(scope: Scope, module: &ModuleId) -> Self {
        Self {
            scope,
            source: SourceKey::Uploads,
            id: module.to_string(),
        }
    }

    /// Returns the key of a module in a symbol server.
    pub fn server(scope: Scope, source: SourceKey, sought: &ServerSearch) -> Self {
        Self {
            scope,
            source,
            id: serde_json::to_string(sought).expect("it has no maps"),
        }
    }

    /// Returns what the id refers to; `None` if another version of the code wrote it in a form that
    /// this one cannot read.
    pub fn reference(&self) -> Option<ModuleRef> {
        match self.source {
            SourceKey::Uploads => ModuleId::of_text(&self.id).map(ModuleRef::Filed),
            SourceKey::Configured { .. } | SourceKey::Defined { .. } => {
                serde_json::from_str(&self.id).ok().map(ModuleRef::Search)
            }
        }
    }

    /// Returns the query to a symbol server; `None` for a module in the uploads.
    pub fn sought(&self) -> Option<ServerSearch> {
        match self.reference()? {
            ModuleRef::Search(sought) => Some(sought),
            ModuleRef::Filed(_) => None,
        }
    }

    /// Returns whether the key is that of a companion id, under which files and their companions
    /// are filed, and not that of a module.
    pub fn is_of_companions(&self) -> bool {
        matches!(
            self.reference(),
            Some(ModuleRef::Filed(ModuleId::Companion(_)))
        )
    }

    /// Returns the readable text of the key, with one field per line.
    pub fn text(&self) -> String {
        format!(
            "scope: {}\nsource: {}\nmodule: {}\n",
            self.scope, self.source, self.id
        )
    }

    /// Returns the partition of this module's items.
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

    /// Returns the key of the alias from this id of an object to the module that it is filed under.
    pub fn alias(&self) -> ItemKey {
        ItemKey {
            partition: self.partition(),
            sort: "alias".to_owned(),
        }
    }

    /// Returns the key of the item of one uploaded DIF of this module.
    pub fn dif(&self, location: &Location) -> ItemKey {
        ItemKey {
            partition: self.partition(),
            sort: format!("{}{}", ItemKey::DIF_PREFIX, hash(location.as_str())),
        }
    }

    /// Returns the key of the item that says that this module has uploaded files.
    pub fn presence(&self) -> ItemKey {
        ItemKey {
            partition: self.partition(),
            sort: "files".to_owned(),
        }
    }

    /// Returns the key of the list of uploads that exceed this module's limit of files. The list
    /// has a partition of its own, because only builders that add or remove files read it.
    pub fn overflow(&self) -> ItemKey {
        ItemKey {
            partition: hash(&format!("overflow of\n{}", self.text())),
            sort: "overflow".to_owned(),
        }
    }

    /// Returns the key of the copy of a DIF that was found in a symbol server.
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
    /// The sort key, unique within the partition.
    pub sort: String,
}

impl ItemKey {
    /// The prefix of the sort keys of DIF items.
    pub const DIF_PREFIX: &'static str = "dif#";

    /// The prefix of the paths of chunks of copies.
    pub const COPY_BLOBS: &'static str = "copies/";

    /// The prefix of the paths of derived caches.
    pub const DERIVED_BLOBS: &'static str = "derived/";

    /// The prefix of the paths of plain copies of SymCaches.
    pub const PLAIN_BLOBS: &'static str = "plain/";

    /// Returns the key of the item of an upload.
    pub fn upload(location: &Location) -> Self {
        Self {
            partition: hash(&format!("upload: {location}\n")),
            sort: "upload".to_owned(),
        }
    }

    /// Returns the key of a chunk of the objects of an upload. It shares the partition of the
    /// upload.
    pub fn objects(location: &Location, token: &Token, number: u32) -> Self {
        Self {
            sort: format!("objects#{token}#{number:05}"),
            ..Self::upload(location)
        }
    }

    /// Returns the partition of the wanted items of a scope.
    pub fn wanted_partition(scope: &Scope) -> String {
        hash(&format!("wanted: {scope}\n"))
    }

    /// Returns the key of a PDB whose SymCache is wanted. A scope has only `MAX_WANTED` of these
    /// keys, so that clients cannot grow the list without limit. Several PDBs share a key; one of
    /// them is stored.
    pub fn wanted(scope: &Scope, pdb: DebugId) -> Self {
        let slot = xxh3_64(pdb.to_string().as_bytes()) % MAX_WANTED;
        Self {
            partition: Self::wanted_partition(scope),
            sort: format!("wanted#{slot:04}"),
        }
    }

    /// Returns the partition of all access tokens.
    pub fn issued_tokens() -> String {
        hash("tokens\n")
    }

    /// Returns the key of the access token with this id.
    pub fn issued_token(id: &str) -> Self {
        Self {
            partition: Self::issued_tokens(),
            sort: format!("token#{}", hash(id)),
        }
    }

    /// Returns the key of a pending request.
    pub fn request(id: &str) -> Self {
        Self {
            partition: hash(&format!("request: {id}\n")),
            sort: "request".to_owned(),
        }
    }

    /// Returns the key of an item that the pruner keeps.
    pub fn sweep(item: SweepItem) -> Self {
        Self {
            partition: hash("sweep\n"),
            sort: item.to_string(),
        }
    }

    /// Returns the key of the generation of a scope's uploads.
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

    /// Returns the key of a source's health.
    pub fn health(source: &SourceKey) -> Self {
        Self {
            partition: hash(&format!("health: {source}\n")),
            sort: "health".to_owned(),
        }
    }

    /// Returns the key of the counter of lost blobs.
    pub fn losses() -> Self {
        Self {
            partition: hash("losses\n"),
            sort: "losses".to_owned(),
        }
    }

    /// Returns the path of a chunk of the copy with this key.
    pub fn chunk(&self, token: &Token, number: u64) -> String {
        let (folder, Self { partition, sort }) = (Self::COPY_BLOBS, self);
        format!("{folder}v1/{partition}/{sort}/{token}/{number:05}")
    }

    /// Returns the path of the blob that the build with this token creates for the entry with this
    /// key.
    ///
    /// Only that build writes to the path. [`ItemKey::of_blob`] parses the entry's key from it.
    pub fn blob(&self, kind: Kind, version: u32, token: &Token) -> String {
        let (folder, Self { partition, sort }) = (Self::DERIVED_BLOBS, self);
        format!("{folder}{kind}/v{version}/{partition}/{sort}/{token}")
    }

    /// Returns the path of a plain copy of an entry's blob, for tools that cannot read slices. Each
    /// period has a new one.
    ///
    /// No record names it; the pruner removes it.
    pub fn plain_blob(&self, blob: &str, period: u64) -> String {
        let token = blob.rsplit('/').next().expect("a text has a last part");
        let (folder, Self { partition, sort }) = (Self::PLAIN_BLOBS, self);
        format!("{folder}{partition}/{sort}/{token}.{period}")
    }

    /// Returns the key of the entry that a blob was made for, or of the copy that it is a chunk of.
    pub fn of_blob(path: &str) -> Option<Self> {
        let (folder, rest) = path.split_at(path.find('/')? + 1);
        let segments: Vec<&str> = rest.split('/').collect();
        let (partition, sort) = match (folder, &segments[..]) {
            (Self::DERIVED_BLOBS, [_kind, _version, partition, sort, _token]) => (partition, sort),
            (Self::COPY_BLOBS, [_version, partition, sort, _token, _number]) => (partition, sort),
            (Self::PLAIN_BLOBS, [partition, sort, _name]) => (partition, sort),
            _ => return None,
        };
        Some(Self {
            partition: (*partition).to_owned(),
            sort: (*sort).to_owned(),
        })
    }
}

/// The items that the pruner keeps between runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepItem {
    /// The progress of the pass.
    Cursor,
    /// A numbered item of the list of outdated entries that the current pass has found so far.
    FoundInThisPass(usize),
    /// A numbered item of the list of outdated entries that the last complete pass found.
    FoundInLastPass(usize),
    /// A numbered item of the list of entries whose rebuild this pass has requested.
    Requested(usize),
    /// The counts of the last complete pass.
    Rollout,
}

impl fmt::Display for SweepItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (list, number) = match self {
            SweepItem::Cursor => return f.write_str("cursor"),
            SweepItem::Rollout => return f.write_str("rollout"),
            SweepItem::FoundInThisPass(number) => ("gathering", number),
            SweepItem::FoundInLastPass(number) => ("manifest", number),
            SweepItem::Requested(number) => ("asked", number),
        };
        // Releases that predate the numbers read and write only the first item.
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
        // SHA-256 of the text above.
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
    fn the_first_item_of_a_list_has_the_key_that_older_releases_use() {
        let sort = |item| ItemKey::sweep(item).sort;
        assert_eq!(sort(SweepItem::FoundInLastPass(0)), "manifest");
        assert_eq!(sort(SweepItem::FoundInLastPass(1)), "manifest#01");
        assert_eq!(sort(SweepItem::Requested(15)), "asked#15");
    }

    #[test]
    fn the_path_of_a_blob_gives_the_key_of_its_entry() {
        let entry = module("acme", "502fc0a5-1ec1-3e47-9998-684fa139dca7").entry(Kind::SymCache);
        let path = entry.blob(Kind::SymCache, 1, &Token::from_random(7));
        assert_eq!(ItemKey::of_blob(&path), Some(entry.clone()));
        let plain = entry.plain_blob(&path, 7);
        assert_ne!(plain, entry.plain_blob(&path, 8));
        assert_eq!(ItemKey::of_blob(&plain), Some(entry));
        assert_eq!(ItemKey::of_blob("requests/1"), None);
    }
}
