//! The plan of a request: the modules that its frames lie in.

use std::collections::HashMap;

use super::address;
use super::adjust::Adjustment;
use super::modules::AddressSpace;
use crate::api::symbolicator::{Request, Stacktrace};
use crate::domain::{Arch, Kind, ObjectId, ObjectType};

/// The caches that a request needs, and the frames of each module.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub(super) space: AddressSpace,
    caches: Vec<PlannedCache>,
    /// The cache of each module, by the module's index in the request.
    by_module: Vec<Option<PlannedCacheId>>,
    /// The frames that lie in a module, by the module's index in the request: indices of the stack
    /// trace and of the frame in it.
    frames: Vec<Vec<(usize, usize)>>,
    /// The adjustment of the frames of each stack trace that do not specify one. It depends on all
    /// its frames, and each module needs it.
    defaults: Vec<Adjustment>,
}

/// The id of a cache in its plan. The modules that the cache serves have it in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlannedCacheId(usize);

impl PlannedCacheId {
    /// Returns the index of the cache in [`Plan::caches`].
    pub fn index(self) -> usize {
        self.0
    }
}

/// A cache that frames are looked up in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedCache {
    /// The ids that it is looked up by.
    pub object_id: ObjectId,
    /// The kind of cache.
    pub kind: Kind,
    /// The modules that it serves, as ascending indices in the request. There are several if one
    /// file is mapped more than once.
    pub modules: Vec<usize>,
}

/// Returns the plan of a request.
///
/// ```
/// use symdepot::api::symbolicator::parse_request;
/// use symdepot::symbolicate::plan;
///
/// let request = parse_request(br#"{
///     "stacktraces": [{"frames": [{"instruction_addr": "0x2010"}]}],
///     "modules": [{"type": "elf", "image_addr": "0x1000"}, {"type": "elf", "image_addr": "0x2000"}]
/// }"#)?;
/// assert_eq!(plan(&request).caches()[0].modules, [1]);
/// # Ok::<(), symdepot::api::symbolicator::RequestError>(())
/// ```
pub fn plan(request: &Request) -> Plan {
    let space = AddressSpace::new(&request.modules);
    let mut frames = vec![Vec::new(); request.modules.len()];
    for (stacktrace, Stacktrace { frames: of_it, .. }) in request.stacktraces.iter().enumerate() {
        for (index, frame) in of_it.iter().enumerate() {
            if let Some(module) = space.module_of(frame) {
                frames[module].push((stacktrace, index));
            }
        }
    }

    let mut caches: Vec<PlannedCache> = Vec::new();
    let mut by_module = vec![None; request.modules.len()];
    let mut by_object: HashMap<ObjectId, PlannedCacheId> = HashMap::new();
    for (index, module) in request
        .modules
        .iter()
        .enumerate()
        .filter(|(index, _)| !frames[*index].is_empty())
    {
        let object_id = module.object_id();
        let planned = *by_object.entry(object_id).or_insert_with_key(|object_id| {
            let kind = match object_id.object_type {
                ObjectType::PeDotnet => Kind::PpdbCache,
                _ => Kind::SymCache,
            };
            caches.push(PlannedCache {
                object_id: object_id.clone(),
                kind,
                modules: Vec::new(),
            });
            PlannedCacheId(caches.len() - 1)
        });
        caches[planned.0].modules.push(index);
        by_module[index] = Some(planned);
    }
    let defaults = request.stacktraces.iter();
    let defaults = defaults.map(|stacktrace| Adjustment::default_of(&stacktrace.frames));
    Plan {
        space,
        caches,
        by_module,
        frames,
        defaults: defaults.collect(),
    }
}

impl Plan {
    /// Returns the caches that are needed, in the order of the first modules that they serve.
    pub fn caches(&self) -> &[PlannedCache] {
        &self.caches
    }

    /// Returns [`Plan::caches`] with their ids.
    pub fn caches_with_ids(&self) -> impl Iterator<Item = (PlannedCacheId, &PlannedCache)> {
        let caches = self.caches.iter().enumerate();
        caches.map(|(index, cache)| (PlannedCacheId(index), cache))
    }

    /// Returns a cache of this plan; `None` if the id is not of this plan.
    pub fn cache(&self, planned: PlannedCacheId) -> Option<&PlannedCache> {
        self.caches.get(planned.0)
    }

    /// Returns the addresses to look up in a cache of the plan that was derived from an object of
    /// this architecture. Only the parts of the cache that cover them are needed.
    pub fn addresses(&self, request: &Request, planned: PlannedCacheId, arch: Arch) -> Vec<u64> {
        let modules = self.cache(planned).map(|cache| &*cache.modules);
        let mut addresses = Vec::new();
        for module in modules.unwrap_or_default() {
            let frames = self.frames.get(*module);
            addresses.extend(address::addresses(
                request,
                *module,
                frames.map_or(&[], Vec::as_slice),
                &self.defaults,
                arch,
            ));
        }
        addresses
    }

    /// Returns the frames that lie in a module: indices of the stack trace and of the frame in it.
    pub(super) fn frames_of(&self, module: usize) -> &[(usize, usize)] {
        self.frames.get(module).map_or(&[], Vec::as_slice)
    }

    /// Returns the cache for a module, by its index in the request; `None` if no frame lies in the
    /// module.
    pub(super) fn planned_for(&self, module: usize) -> Option<PlannedCacheId> {
        self.by_module.get(module).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::symbolicator::parse_request;

    fn planned(request: &str) -> Vec<(Kind, Vec<usize>)> {
        let plan = plan(&parse_request(request.as_bytes()).unwrap());
        plan.caches()
            .iter()
            .map(|cache| (cache.kind, cache.modules.clone()))
            .collect()
    }

    #[test]
    fn only_modules_that_frames_lie_in_are_planned() {
        let modules = r#"[
            {"type": "elf", "image_addr": "0x2000", "image_size": 16, "code_id": "aa"},
            {"type": "pe_dotnet", "code_id": "bb"},
            {"type": "elf", "image_addr": "0x1000", "image_size": 16, "code_id": "cc"}
        ]"#;
        let check = |frames: &str, want: &[(Kind, Vec<usize>)]| {
            let request = format!(
                r#"{{"modules": {modules}, "stacktraces": [{{"frames": []}}, {{"frames": [{frames}]}}]}}"#
            );
            assert_eq!(planned(&request), want, "{frames}");
        };
        check("", &[]);
        check(
            r#"{"instruction_addr": "0x3000"}, {"instruction_addr": 0, "addr_mode": "rel:3"}"#,
            &[],
        );
        check(
            r#"{"instruction_addr": "0x1008"}, {"instruction_addr": "0x1004"}"#,
            &[(Kind::SymCache, vec![2])],
        );
        check(
            r#"{"instruction_addr": 5, "addr_mode": "rel:1"}, {"instruction_addr": "0x2000"}"#,
            &[(Kind::SymCache, vec![0]), (Kind::PpdbCache, vec![1])],
        );
    }

    #[test]
    fn the_address_of_a_caller_is_looked_up_as_well_unless_the_client_says_where_it_is() {
        let request = r#"{
            "modules": [{"type": "elf", "image_addr": "0x1000"}],
            "stacktraces": [
                {"frames": [{"instruction_addr": "0x1020"}, {"instruction_addr": "0x1040"}]},
                {"frames": [
                    {"instruction_addr": "0x1060"},
                    {"instruction_addr": "0x1080", "adjust_instruction_addr": true},
                    {"instruction_addr": "0x10a0", "adjust_instruction_addr": false}
                ]}
            ]
        }"#;
        let request = parse_request(request.as_bytes()).unwrap();
        let addresses = plan(&request).addresses(&request, PlannedCacheId(0), Arch::Amd64);
        assert_eq!(addresses, [0x20, 0x3f, 0x40, 0x5f, 0x7f, 0xa0]);
    }

    #[test]
    fn every_module_has_the_default_adjustment_of_the_stack_trace() {
        // Only a client that adjusts frames itself sends return addresses in topmost frames.
        let request = r#"{
            "modules": [
                {"type": "elf", "image_addr": "0x1000", "code_id": "aa"},
                {"type": "elf", "image_addr": "0x2000", "code_id": "aa"},
                {"type": "elf", "image_addr": "0x3000", "code_id": "aa"}
            ],
            "stacktraces": [
                {"frames": [{"instruction_addr": "0x1020"}, {"instruction_addr": "0x2020", "adjust_instruction_addr": false}]},
                {"frames": [{"instruction_addr": "0x2040"}, {"instruction_addr": "0x3040", "adjust_instruction_addr": false}]},
                {"frames": [{"instruction_addr": "0x3060"}]}
            ]
        }"#;
        let request = parse_request(request.as_bytes()).unwrap();
        let addresses = plan(&request).addresses(&request, PlannedCacheId(0), Arch::Amd64);
        assert_eq!(addresses, [0x1f, 0x20, 0x3f, 0x40, 0x60]);
    }

    #[test]
    fn a_file_that_is_mapped_twice_is_planned_once() {
        let request = r#"{
            "modules": [
                {"type": "elf", "image_addr": "0x1000", "code_id": "aa"},
                {"type": "elf", "image_addr": "0x2000", "code_id": "bb"},
                {"type": "elf", "image_addr": "0x3000", "code_id": "AA"}
            ],
            "stacktraces": [{"frames": [{"instruction_addr": "0x3001"}, {"instruction_addr": "0x2001"}, {"instruction_addr": "0x1001"}]}]
        }"#;
        assert_eq!(
            planned(request),
            [(Kind::SymCache, vec![0, 2]), (Kind::SymCache, vec![1])]
        );
    }
}
