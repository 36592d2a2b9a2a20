//! Entry points for fuzzing. Each takes arbitrary bytes as the input of a caller, and panics if
//! they could do harm. The fuzz targets are in `tests/fuzz`.

use serde_json::json;
use url::Url;

use super::{KnownNames, plan, symbolicate_with};
use crate::api::symbolicator::parse_request;
use crate::domain::{ConfiguredSource, HttpSource, ObjectId, ObjectType, SourceLinks, link_target};

/// Languages of names in requests; the first byte of an input selects one.
const LANGUAGES: [&str; 8] = ["", "c", "cpp", "rust", "swift", "objc", "objcpp", "csharp"];

/// Takes bytes as a language and a name in a request. Names that need isolation are not demangled
/// here, because they may end this process.
pub fn name(bytes: &[u8]) {
    let Some((language, name)) = bytes.split_first() else {
        return;
    };
    let language = LANGUAGES[usize::from(*language) % LANGUAGES.len()];
    let frame = json!({
        "instruction_addr": "0x1", "lang": language, "function": String::from_utf8_lossy(name),
    });
    let sent = json!({"stacktraces": [{"frames": [frame]}]});
    request(sent.to_string().as_bytes());
}

/// Takes bytes as the body of a request, and symbolicates it without caches.
pub fn request(bytes: &[u8]) {
    let Ok(request) = parse_request(bytes) else {
        return;
    };
    let plan = plan(&request);
    let (completed, stats, _) = symbolicate_with(&request, &plan, &[], KnownNames::default());
    if !stats.is_too_large() {
        let answer = serde_json::to_vec(&completed).expect("an answer can be written");
        assert!(
            stats.answer_bytes <= answer.len(),
            "more bytes were counted than the answer has"
        );
    }
}

/// Takes bytes as the definition of a source, in a request and in the operator's list, and computes
/// the locations of modules.
///
/// # Panics
///
/// A definition is written differently than it was read, a request may do more than the operator,
/// or a location is outside of the source.
pub fn source(bytes: &[u8]) {
    let configured = serde_json::from_slice::<ConfiguredSource>(bytes);
    let Ok(source) = serde_json::from_slice::<HttpSource>(bytes) else {
        return;
    };
    if let Ok(ConfiguredSource(configured)) = configured {
        assert!(configured == source, "{source:?}");
    }
    let written = serde_json::to_vec(&source).expect("its only map has texts as keys");
    let again: HttpSource = serde_json::from_slice(&written).expect("it was a source");
    assert!(again == source, "{source:?} {again:?}");
    for object_type in [ObjectType::Elf, ObjectType::Pe, ObjectType::Macho] {
        let module = ObjectId {
            debug_id: "502fc0a5-1ec1-3e47-9998-684fa139dca7-1".parse().ok(),
            code_id: "5ab380779000".parse().ok(),
            debug_file: Some("C:\\build\\..\\crash.pdb".to_owned()),
            code_file: Some("/usr/lib/../crash?x#y".to_owned()),
            debug_checksum: None,
            object_type,
        };
        for (_, location) in source.locations(&module) {
            let url = location.as_str().parse().expect("a location is an address");
            assert!(source.is_above(&url), "{location}");
        }
        let path = String::from_utf8_lossy(bytes);
        for path in ["/src/../a.c", &format!("/{path}")] {
            let Some(location) = source.source_file(&module, path) else {
                continue;
            };
            let url = Url::parse(location.as_str()).expect("a location is an address");
            assert!(source.is_above(&url), "{url} is not below {}", source.url);
        }
    }
}

/// Takes the bytes before and after the first line break as rules for links, or as the pattern of
/// one, and as a link, and follows it.
pub fn link(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (rules, link) = text.split_once('\n').unwrap_or((&text, ""));
    let links = serde_json::from_str(rules);
    let links: SourceLinks = links
        .or_else(|_| serde_json::from_value(json!([rules])))
        .unwrap_or_default();
    let Some(target) = link_target(link) else {
        return;
    };
    if let Some(allowed) = links.allowed(&target) {
        assert!(allowed.source.is_above(&target), "{target} of {links:?}");
        let without = links.clone().without_credentials();
        assert!(without.allowed(&target).is_some());
    }
}
