//! Tests of maps: of their readers with hostile files, and of SymCaches with the same names and
//! lines as `symbolic` makes.

use std::collections::BTreeSet;

use symbolic::debuginfo::Object;
use symbolic::il2cpp::LineMapping;
use symbolic::symcache::{SourceLocation, SymCache, SymCacheConverter};

use super::*;
use crate::cache::Kind;
use crate::debuginfo::tests::{Opened, fixture};
use crate::debuginfo::{MemberPlace, SymCaches, blob, slices};

const HIDDEN: &str = "maps/crash.dSYM/Contents/Resources/DWARF/crash";
const UUID_MAP: &str =
    "maps/crash.dSYM/Contents/Resources/F9D1D247-0CA9-55DF-AB9D-50D65C32A93D.plist";
const SYMBOL_MAP: &str = "maps/4C4C445C-5555-3144-A106-EFEF076DFA3C.bcsymbolmap";
const BEFORE: &str = "macho/arm64/crash.dSYM/Contents/Resources/DWARF/crash";
const LINE_MAP: &str = "maps/crash.il2cpp";

/// Returns the id in the name of a fixture.
fn named(fixture: &str) -> Option<DebugId> {
    AuxiliaryFile::named(fixture)?.1
}

/// Opens fixtures that complete each other.
fn together(names: &[&str]) -> Opened {
    let files: Vec<Vec<u8>> = names.iter().map(|name| fixture(name)).collect();
    let files: Vec<_> = names
        .iter()
        .zip(&files)
        .map(|(name, bytes)| (bytes.as_slice(), named(name)))
        .collect();
    Opened::together(&files)
}

/// Returns the name, path and line of each frame.
fn told<'c>(frames: impl Iterator<Item = SourceLocation<'c, 'c>>) -> Vec<(String, String, u32)> {
    let told = frames.map(|frame| {
        let path = frame.file().map(|file| file.full_path());
        let name = frame.function().name().to_owned();
        (name, path.unwrap_or_default(), frame.line())
    });
    told.collect()
}

/// The SymCache that `symbolic` makes, with and without maps.
struct Oracle(blob::AlignedBytes);

impl Oracle {
    fn of<'m>(object: &Object<'_>, maps: impl FnOnce(&mut SymCacheConverter<'m>)) -> Self {
        let mut converter = SymCacheConverter::new();
        maps(&mut converter);
        converter.process_object(object).unwrap();
        let mut raw = Vec::new();
        converter.serialize(&mut raw).unwrap();
        Self(blob::AlignedBytes::copied(&raw).unwrap())
    }

    fn cache(&self) -> SymCache<'_> {
        SymCache::parse(self.0.as_slice()).unwrap()
    }

    fn starts(&self) -> Vec<u32> {
        slices::starts_of(self.0.as_slice())
    }
}

/// Compares a SymCache that was made with maps with that of `symbolic`, at each address at which
/// the two agree without maps. Returns the number of frames that the maps changed.
fn compared(
    (plain, mapped): (&SymCaches<'_>, &SymCaches<'_>),
    (expected_plain, expected): (&Oracle, &Oracle),
) -> usize {
    let starts: BTreeSet<u32> = expected_plain
        .starts()
        .into_iter()
        .chain(expected.starts())
        .collect();
    let (mut compared, mut changed) = (0, 0);
    for address in starts.iter().map(|start| u64::from(*start)) {
        let before = told(plain.lookup(address));
        if before != told(expected_plain.cache().lookup(address)) {
            continue;
        }
        let found = told(mapped.lookup(address));
        assert_eq!(
            found,
            told(expected.cache().lookup(address)),
            "{address:#x}"
        );
        changed += found.iter().zip(&before).filter(|(a, b)| a != b).count();
        compared += 1;
    }
    assert!(
        compared * 10 > starts.len() * 9,
        "{compared} of {}",
        starts.len()
    );
    changed
}

#[test]
fn hidden_names_are_resolved_as_symbolic_resolves_them() {
    let (dif, symbol_map) = (fixture(HIDDEN), fixture(SYMBOL_MAP));
    let object = Object::parse(&dif).unwrap();
    let expected_plain = Oracle::of(&object, |_| {});
    let names = BcSymbolMap::parse(&symbol_map).unwrap();
    let expected = Oracle::of(&object, |converter| converter.add_transformer(names));
    let plain = together(&[HIDDEN]).sliced(0, Kind::SymCache);
    let mapped = together(&[HIDDEN, UUID_MAP, SYMBOL_MAP]).sliced(0, Kind::SymCache);
    let maps = (&plain.sym_caches(), &mapped.sym_caches());
    assert!(compared(maps, (&expected_plain, &expected)) > 200);
}

#[test]
fn a_symbol_map_gives_back_the_names_that_were_hidden() {
    let before = together(&[BEFORE]).sliced(0, Kind::SymCache);
    let before = before.sym_caches();
    let whole = together(&[HIDDEN, SYMBOL_MAP, UUID_MAP]);
    assert!(whole.inspection.objects[0].hides_names);
    assert_eq!(whole.derive(0, Kind::SymCache).unwrap().lacks, None);
    let cache = whole.sliced(0, Kind::SymCache);
    let dif = fixture(BEFORE);
    let starts = Oracle::of(&Object::parse(&dif).unwrap(), |_| {}).starts();
    assert!(starts.len() > 100);
    for address in starts.into_iter().map(u64::from) {
        let found = told(cache.sym_caches().lookup(address));
        assert_eq!(found, told(before.lookup(address)), "{address:#x}");
    }
    assert!(!together(&[BEFORE]).inspection.objects[0].hides_names);
}

#[test]
fn a_cache_with_hidden_names_says_which_file_has_them() {
    let lacks = |names: &[&str]| {
        let derived = together(names).derive(0, Kind::SymCache).unwrap();
        derived.lacks.unwrap()
    };
    let without = lacks(&[HIDDEN]);
    assert!(without.contains("upload its UUID map, f9d1d247-0ca9-55df-ab9d-50d65c32a93d.plist"));
    let with_uuid_map = lacks(&[HIDDEN, UUID_MAP]);
    let expected = "upload its symbol map, 4c4c445c-5555-3144-a106-efef076dfa3c.bcsymbolmap";
    assert!(with_uuid_map.contains(expected), "{with_uuid_map}");
    // Without its UUID map, the symbol map could be that of any file.
    assert_eq!(lacks(&[HIDDEN, SYMBOL_MAP]), without);
    let of_another = Opened::together(&[
        (&fixture(HIDDEN), None),
        (&fixture(UUID_MAP), named(UUID_MAP)),
        (&fixture(SYMBOL_MAP), named(UUID_MAP)),
    ]);
    assert_eq!(
        of_another.derive(0, Kind::SymCache).unwrap().lacks,
        Some(with_uuid_map)
    );
    let unwinding = together(&[HIDDEN]).derive(0, Kind::CfiCache).unwrap();
    assert_eq!(unwinding.lacks, None);
}

/// Returns the line map of the fixtures for another debug file.
fn line_map_for(id: DebugId) -> String {
    let json = String::from_utf8(fixture(LINE_MAP)).unwrap();
    let of_elf = "bc6e45ac-487f-f425-3672-08b89f51ad48";
    assert!(json.contains(of_elf));
    json.replace(of_elf, &id.to_string())
}

#[test]
fn generated_lines_are_mapped_as_symbolic_maps_them_in_every_format() {
    for name in [
        "elf/crash.debug",
        "elf/crash.zstd.debug",
        BEFORE,
        "pe/x64/crash.pdb",
        "breakpad/crash.sym",
    ] {
        let dif = fixture(name);
        let object = Object::parse(&dif).unwrap();
        let json = line_map_for(object.debug_id());
        let lines = LineMapping::parse(json.as_bytes()).unwrap();
        let expected_plain = Oracle::of(&object, |_| {});
        let expected = Oracle::of(&object, |converter| converter.add_transformer(lines));
        let plain = together(&[name]).sliced(0, Kind::SymCache);
        let mapped = Opened::together(&[(&dif, None), (json.as_bytes(), None)]);
        let mapped = mapped.sliced(0, Kind::SymCache);
        let maps = (&plain.sym_caches(), &mapped.sym_caches());
        let changed = compared(maps, (&expected_plain, &expected));
        assert!(changed > 100, "{name}: {changed}");
    }
}

#[test]
fn a_line_map_of_another_debug_file_is_not_used() {
    let dif = fixture("elf/crash.debug");
    let of_another = line_map_for(named(UUID_MAP).unwrap());
    let plain = together(&["elf/crash.debug"]).derive(0, Kind::SymCache);
    let beside = Opened::together(&[(&dif, None), (of_another.as_bytes(), None)]);
    assert_eq!(beside.derive(0, Kind::SymCache), plain);
}

const UUID: &str = "2d10c42f-591d-3265-b147-78ba0868073f";
const OTHER: &str = "c8374b6d-6e96-34d8-ae38-efaa5fec424f";

fn member(name: &str) -> Member {
    Member {
        name: name.to_owned(),
        place: MemberPlace::Whole,
        id: None,
        fault: None,
    }
}

fn plist(body: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \
         \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n\
         <plist version=\"1.0\">{body}</plist>\n"
    )
}

fn uuid_map(symbol_map: &str) -> String {
    plist(&format!(
        "<dict><key>DBGOriginalUUID</key><string>{symbol_map}</string></dict>"
    ))
}

fn refused(name: &str, data: &[u8]) -> String {
    read(&member(name), data).unwrap().unwrap_err()
}

#[test]
fn the_facts_about_an_auxiliary_file_come_from_its_name_and_its_contents() {
    let id = |text: &str| text.parse().unwrap();
    let facts = |name: &str, data: &str| {
        let file = read(&member(name), data.as_bytes()).unwrap().unwrap();
        (file.file_type, file.id, file.symbol_map)
    };
    assert_eq!(
        facts(
            &format!("a.dSYM/Contents/Resources/{UUID}.plist"),
            &uuid_map(OTHER)
        ),
        (
            FileType::UuidMap,
            AuxiliaryId::Known(id(UUID)),
            Some(id(OTHER))
        )
    );
    // A map to itself names a symbol map with the same id.
    assert_eq!(
        facts("", &uuid_map(UUID)),
        (FileType::UuidMap, AuxiliaryId::InName, Some(id(UUID)))
    );
    assert_eq!(
        facts(
            &format!("{OTHER}.bcsymbolmap"),
            "BCSymbolMap Version: 2.0\n_main\n"
        ),
        (FileType::BcSymbolMap, AuxiliaryId::Known(id(OTHER)), None)
    );
    let lines = format!("{{\"__debug-id__\": {{\"{UUID}\": {{}}}}}}");
    assert_eq!(
        facts("", &lines),
        (FileType::Il2Cpp, AuxiliaryId::Known(id(UUID)), None)
    );
    assert!(refused(&format!("{OTHER}.il2cpp"), lines.as_bytes()).contains("although"));
    assert!(read(&member("a.debug"), b"\x7fELF").is_none());
}

#[test]
fn a_hostile_uuid_map_is_refused_with_a_reason() {
    let bomb = "<!DOCTYPE plist [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;\">]>\
                <plist version=\"1.0\"><dict><key>DBGOriginalUUID</key><string>&b;</string>\
                </dict></plist>";
    let nested = plist(&"<dict>".repeat(MAX_UUID_MAP_TAGS - 5));
    let levels = (MAX_UUID_MAP_TAGS - 5) / 2;
    let closed = format!("{}{}", "<a>".repeat(levels), "</a>".repeat(levels));
    let not_a_uuid = uuid_map("not a uuid");
    let nil = uuid_map("00000000-0000-0000-0000-000000000000");
    for plist in [bomb, &nested, &plist(&closed), &not_a_uuid, &nil, "<?xml"] {
        let reason = refused("", plist.as_bytes());
        assert!(reason.contains("not a UUID map"), "{reason}");
        assert!(!reason.contains("aaaa") && !reason.contains("not a uuid"));
    }
    let deep = plist(&"<dict>".repeat(2000));
    assert!(refused("", deep.as_bytes()).contains("more than 512 tags"));
    let long = plist(&" ".repeat(MAX_UUID_MAP_BYTES));
    assert!(refused("", long.as_bytes()).contains("more than the limit of 16384 bytes"));
    assert!(refused("a.plist", uuid_map(OTHER).as_bytes()).contains("without a UUID"));
}

#[test]
fn a_hostile_symbol_map_is_refused_with_a_reason() {
    let mut many = b"BCSymbolMap Version: 2.0".to_vec();
    many.resize(many.len() + MAX_NAMES + 1, b'\n');
    assert!(refused("", &many).contains("more than 8388608 names"));
    many.resize(MAX_MAP_BYTES + 1, b' ');
    assert!(refused("", &many).contains("more than the limit of"));
    for data in [
        &b"BCSymbolMap Version: 2.0\n\xff\xfe"[..],
        b"BCSymbolMap Version: 2.01\n_main",
    ] {
        assert!(refused("", data).contains("cannot be read"));
    }
}

#[test]
fn members_of_archives_are_unpacked_if_their_names_suggest_it() {
    let (map, json) = (&b"BCSymbolMap Version: 2.0\n"[..], &b" {}"[..]);
    let xml = &b"<?xml version=\"1.0\"?>"[..];
    for (name, head, expected) in [
        ("", map, true),
        ("", json, true),
        ("", xml, true),
        ("", &b"\x7fELF"[..], false),
        ("odd", map, true),
        (&format!("a/{UUID}.plist"), xml, true),
        (&format!("a/{UUID}.plist"), json, false),
        ("a/version.plist", xml, false),
        ("a/package.json", json, false),
        (&format!("a/{UUID}.json"), json, true),
        (
            "ac/456ebc487ff425367208b89f51ad48c2e1c0ffee/il2cpp",
            json,
            true,
        ),
    ] {
        assert_eq!(may_be_auxiliary(name, head), expected, "{name}");
    }
}
