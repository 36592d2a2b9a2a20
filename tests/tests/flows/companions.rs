//! A program and the files that complete it, uploaded one by one: split units, packages of them,
//! and the shared files of `dwz`.

use std::io::{Cursor, Read};
use std::time::Duration;

use serde_json::json;
use symdepot::api::symbolicator::{Completed, ModuleStatus};
use symdepot::cache::{Item, Kind, UploadState};
use symdepot::domain::Location;
use symdepot::ports::{RecordStore, Replaced};
use symdepot_tests::harness::{Crash, World, fixture, function_names, in_module};

use crate::first_hour::explained;

/// A program and its companions in one archive of the fixtures; the program is the first member.
pub(crate) struct Together {
    archive: &'static str,
    pub(crate) build_id: &'static str,
}

pub(crate) const PACKAGED: Together = Together {
    archive: "zoo/split-packaged.zip",
    build_id: "08337635558a4d593b6f488eeb56ce483829b366",
};

const PACKAGED_4: Together = Together {
    archive: "zoo/split-packaged-4.zip",
    build_id: "85998e94faf041c7a78b254e954ed8b91bf6fae5",
};

const SINGLE: Together = Together {
    archive: "zoo/split-single.zip",
    ..PACKAGED_4
};

pub(crate) const SHARED: Together = Together {
    archive: "zoo/shared.zip",
    build_id: "0a2b21dc4a70f2d3b6655c3732179c6f3f030162",
};

/// A shared file of DWARF 5, which has no build id.
const SUPPLEMENTARY: Together = Together {
    archive: "zoo/shared-5.zip",
    build_id: "62b46e25cd8f5b3c327c2592c1b6b29025c05006",
};

/// More units than the ids that a package is found by.
const MANY: Together = Together {
    archive: "zoo/split-many.zip",
    build_id: "6746e6f014f3f306b9beca870b9b2c8137b87b13",
};

const APART: Together = Together {
    archive: "zoo/symbols-apart.zip",
    build_id: "5c2ba3ec3e2561fbabde3dab93170f683a2d787b",
};

impl Together {
    /// Returns the program and the other files.
    pub(crate) fn files(&self) -> (Vec<u8>, Vec<Vec<u8>>) {
        let mut archive = zip::ZipArchive::new(Cursor::new(fixture(self.archive))).unwrap();
        let mut files: Vec<Vec<u8>> = (0..archive.len())
            .map(|number| {
                let mut bytes = Vec::new();
                let mut file = archive.by_index(number).unwrap();
                file.read_to_end(&mut bytes).unwrap();
                bytes
            })
            .collect();
        let program = files.remove(0);
        (program, files)
    }

    /// Returns a crash at every address for which llvm-symbolizer was run.
    pub(crate) fn crash(&self) -> Crash {
        let oracle = fixture(&format!("{}.expected", self.archive));
        let oracle = std::str::from_utf8(&oracle).unwrap();
        let address = |line: &str| {
            let address = line.split("  ").next()?.strip_prefix("0x")?;
            u64::from_str_radix(address, 16).ok()
        };
        let addresses: Vec<u64> = oracle.lines().filter_map(address).collect();
        assert!(addresses.len() > 30);
        in_module(json!({"type": "elf", "code_id": self.build_id}), &addresses)
    }

    /// Returns the response if all files are in one archive.
    pub(crate) async fn answer_of_one_archive(&self) -> Vec<String> {
        let world = World::new();
        world.upload("global/all.zip", self.archive).await;
        let answer = world.symbolicate(&self.crash()).await;
        assert_eq!(answer.modules[0].debug_detail, None);
        function_names(&answer)
    }
}

pub(crate) async fn upload(world: &World, key: &str, bytes: Vec<u8>) {
    let event = world.put(key, bytes);
    world.deliver(&event).await.unwrap();
    world.settle().await;
    assert_eq!(world.upload_item(key).state, UploadState::Applied, "{key}");
}

/// Returns the response of a new instance, and what it reports as missing.
pub(crate) async fn answered(world: &World, crash: &Crash) -> (Vec<String>, Option<String>) {
    let answer: Completed = world.another_instance().symbolicate(crash).await;
    let detail = answer.modules[0].debug_detail.clone();
    (function_names(&answer), detail)
}

#[tokio::test(start_paused = true)]
async fn companions_complete_a_program_in_any_order_until_they_are_removed() {
    for together in [
        PACKAGED,
        PACKAGED_4,
        SINGLE,
        SHARED,
        SUPPLEMENTARY,
        APART,
        MANY,
    ] {
        let whole = together.answer_of_one_archive().await;
        let crash = together.crash();
        let (program, companions) = together.files();
        for is_program_first in [true, false] {
            let world = World::new();
            if is_program_first {
                upload(&world, "global/program", program.clone()).await;
                let (alone, detail) = answered(&world, &crash).await;
                assert_ne!(alone, whole);
                // Names that are in missing files are left out.
                assert!(!alone.contains(&String::new()), "{alone:?}");
                let says_so = together.archive != APART.archive;
                assert_eq!(detail.is_some(), says_so, "{}", together.archive);
            }
            for (number, companion) in companions.iter().enumerate() {
                upload(
                    &world,
                    &format!("global/companion-{number}"),
                    companion.clone(),
                )
                .await;
            }
            if !is_program_first {
                upload(&world, "global/program", program.clone()).await;
            }
            let completed = (whole.clone(), None);
            assert_eq!(
                answered(&world, &crash).await,
                completed,
                "{}",
                together.archive
            );
            world.check();

            let program_alone = {
                let world = World::new();
                upload(&world, "global/program", program.clone()).await;
                answered(&world, &crash).await
            };
            for number in 0..companions.len() {
                world.remove(&format!("global/companion-{number}")).await;
            }
            assert_eq!(answered(&world, &crash).await, program_alone);
            world.remove("global/program").await;
            let gone = world.another_instance().symbolicate(&crash).await;
            assert_eq!(gone.modules[0].debug_status, ModuleStatus::Missing);
            world.check();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_is_completed_later_if_the_parser_of_its_companion_was_killed() {
    let (day, world) = (Duration::from_secs(24 * 3600), World::new());
    let (crash, whole) = (PACKAGED.crash(), PACKAGED.answer_of_one_archive().await);
    let (program, companions) = PACKAGED.files();
    upload(&world, "global/program", program).await;
    for companion in companions {
        upload(&world, "global/companion", companion).await;
    }
    world.pass(30 * day).await;
    world.prune().await.unwrap();
    assert_eq!(world.entries(), Vec::new());
    world.derivations.kill_next_readers(1);
    let (names, detail) = world.with_derive_at_work(answered(&world, &crash)).await;
    assert_ne!(names, whole);
    assert!(detail.is_some());
    // A companion may kill its parser each time, so it is not tried again at once.
    let opened = world.derivations.opened();
    answered(&world, &crash).await;
    world.settle().await;
    assert_eq!(world.derivations.opened(), opened);
    world.pass(2 * day).await;
    answered(&world, &crash).await;
    world.settle().await;
    assert_eq!(answered(&world, &crash).await, (whole, None));
    world.check();
}

#[tokio::test(start_paused = true)]
async fn each_unit_is_completed_by_its_own_file() {
    let world = World::new();
    let (crash, whole) = (SINGLE.crash(), SINGLE.answer_of_one_archive().await);
    let (program, companions) = SINGLE.files();
    let [shop, till] = <[Vec<u8>; 2]>::try_from(companions).unwrap();
    upload(&world, "global/program", program).await;
    let (alone, detail) = answered(&world, &crash).await;
    assert!(detail.unwrap().contains("of 2 of 2 units"));
    upload(&world, "global/till.dwo", till).await;
    let (with_one, detail) = answered(&world, &crash).await;
    let detail = detail.unwrap();
    assert!(
        detail.contains("of 1 of 2 units are in split DWARF files, the first in shop.dwo"),
        "{detail}"
    );
    assert!(with_one != alone && with_one != whole);
    upload(&world, "global/shop.dwo", shop).await;
    assert_eq!(answered(&world, &crash).await, (whole, None));
    let entry = world
        .entry("global", &debug_id(&world).await, Kind::SymCache)
        .unwrap();
    let mut made_from = entry.ready().unwrap().made_from.clone();
    made_from[1..].sort_unstable_by_key(|dif| dif.location.to_string());
    let made_from: Vec<Location> = made_from.into_iter().map(|dif| dif.location).collect();
    let expected = ["global/program", "global/shop.dwo", "global/till.dwo"];
    assert_eq!(made_from, expected.map(Location::new));
}

/// The function that filed a companion was killed while the file was removed, so its item is left.
#[tokio::test(start_paused = true)]
async fn a_companion_that_was_removed_without_an_event_leaves_the_others_in_use() {
    let world = World::new();
    let (crash, whole) = (SINGLE.crash(), SINGLE.answer_of_one_archive().await);
    let (program, companions) = SINGLE.files();
    let [shop, till] = <[Vec<u8>; 2]>::try_from(companions).unwrap();
    upload(&world, "global/shop.dwo", shop).await;
    upload(&world, "global/till.dwo", till.clone()).await;
    let items_of_till = || {
        let mut items = world.records.items();
        items.retain(|(_, stored)| {
            let file = Location::new("global/till.dwo");
            matches!(&stored.item, Item::Dif(dif) if dif.file.location == file)
        });
        items
    };
    let filed = items_of_till();
    assert!(!filed.is_empty());
    world.remove("global/till.dwo").await;
    for (key, stored) in &filed {
        let again = world.records.replace(key, None, stored).await;
        assert_eq!(again.unwrap(), Replaced::Done);
    }
    upload(&world, "global/program", program).await;
    let (_, detail) = answered(&world, &crash).await;
    let detail = detail.unwrap();
    assert!(
        detail.contains("of 1 of 2 units are in split DWARF files, the first in till.dwo"),
        "{detail}"
    );
    assert_eq!(items_of_till(), []);
    // The same bytes are used when they return.
    upload(&world, "global/till.dwo", till).await;
    assert_eq!(answered(&world, &crash).await, (whole, None));
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_package_that_is_found_by_several_ids_is_one_companion() {
    let world = World::new();
    let (program, companions) = PACKAGED.files();
    upload(&world, "global/program", program).await;
    upload(&world, "global/program.dwp", companions[0].clone()).await;
    let entry = world.entry("global", &debug_id(&world).await, Kind::SymCache);
    let made_from = entry.unwrap().ready().unwrap().made_from.clone();
    let made_from: Vec<Location> = made_from.into_iter().map(|dif| dif.location).collect();
    assert_eq!(
        made_from,
        ["global/program", "global/program.dwp"].map(Location::new)
    );
}

/// Returns the debug id of the program.
async fn debug_id(world: &World) -> String {
    let program = explained(world, "global/program").await.unwrap();
    program.objects[0].debug_id.unwrap().to_string()
}

#[tokio::test(start_paused = true)]
async fn only_a_package_of_the_same_build_is_used_even_after_a_replacement() {
    let world = World::new();
    let (program, _) = PACKAGED_4.files();
    let (_, of_another) = PACKAGED.files();
    let (_, package) = PACKAGED_4.files();
    let (crash, whole) = (PACKAGED_4.crash(), PACKAGED_4.answer_of_one_archive().await);
    upload(&world, "global/program", program).await;
    let alone = answered(&world, &crash).await;
    upload(&world, "global/program.dwp", of_another[0].clone()).await;
    assert_eq!(answered(&world, &crash).await, alone);
    upload(&world, "global/program.dwp", package[0].clone()).await;
    assert_eq!(answered(&world, &crash).await, (whole, None));
    upload(&world, "global/program.dwp", of_another[0].clone()).await;
    assert_eq!(answered(&world, &crash).await, alone);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn explain_lists_the_missing_and_the_used_companions_of_a_program() {
    let world = World::new();
    let (program, companions) = SINGLE.files();
    upload(&world, "global/program", program).await;
    upload(&world, "global/shop.dwo", companions[0].clone()).await;
    let program = explained(&world, "global/program").await.unwrap();
    let [object] = program.objects.as_slice() else {
        panic!("{program:?}")
    };
    let needs = object.needs.iter().map(ToString::to_string);
    let needs: Vec<String> = needs.collect();
    assert_eq!(needs.len(), 2);
    assert!(program.completes.is_empty());
    let companion = explained(&world, "global/shop.dwo").await.unwrap();
    assert_eq!(
        (companion.objects.len(), companion.further_objects),
        (0, None)
    );
    let completes = companion.completes.iter().map(ToString::to_string);
    let completes: Vec<String> = completes.collect();
    assert_eq!(completes, ["unit:b2ba7b9c6f282e2c"]);
    assert!(needs.contains(&completes[0]));
}

#[tokio::test(start_paused = true)]
async fn a_companion_of_another_scope_is_not_used() {
    let world = World::new();
    let (program, companions) = PACKAGED.files();
    let crash = PACKAGED.crash();
    upload(&world, "global/program", program).await;
    let alone = answered(&world, &crash).await;
    upload(&world, "tenant/program.dwp", companions[0].clone()).await;
    assert_eq!(answered(&world, &crash).await, alone);
}

/// Returns a file in which an id has been replaced by another one.
fn with_id(file: &[u8], id: &str, other: &str) -> Vec<u8> {
    let [id, other] = [id, other].map(|id| hex::decode(id).unwrap());
    let mut file = file.to_vec();
    let places: Vec<usize> = file
        .windows(id.len())
        .enumerate()
        .filter_map(|(at, bytes)| (*bytes == id).then_some(at))
        .collect();
    assert_eq!(places.len(), 1);
    file[places[0]..places[0] + id.len()].copy_from_slice(&other);
    file
}

#[tokio::test(start_paused = true)]
async fn links_that_lead_in_circles_end() {
    const SHARED_ID: &str = "b7960ddcedd4e2e125922e00f0888450ce10f0ac";
    const SECOND_ID: &str = "1111111111111111111111111111111111111111";
    let (program, companions) = SHARED.files();
    let crash = SHARED.crash();

    // A program that names itself as its shared file.
    let world = World::new();
    let own = with_id(&program, SHARED_ID, SHARED.build_id);
    upload(&world, "global/program", own).await;
    let (names, _) = answered(&world, &crash).await;
    assert!(!names.is_empty());
    world.check();

    // A program with the build id of the shared file that it names: it is no shared file.
    let world = World::new();
    let both = with_id(&program, SHARED.build_id, SHARED_ID);
    upload(&world, "global/program", both.clone()).await;
    upload(&world, "global/again", both).await;
    world.check();

    // A shared file that names the program, or itself, as its own shared file. The program still
    // has all names.
    for link in [SHARED.build_id, SHARED_ID, SECOND_ID] {
        let world = World::new();
        let linked = with_link(&companions[0], link);
        upload(&world, "global/program", program.clone()).await;
        upload(&world, "global/shared", linked).await;
        let whole = (SHARED.answer_of_one_archive().await, None);
        assert_eq!(answered(&world, &crash).await, whole, "{link}");
        world.remove("global/shared").await;
        world.check();
    }
}

/// Returns an ELF file with a further section: the link to a shared file. The names of sections
/// and the table of sections are written again at the end of the file.
fn with_link(elf: &[u8], id: &str) -> Vec<u8> {
    const ENTRY: usize = 64;
    let word = |at: usize| u64::from_le_bytes(elf[at..at + 8].try_into().unwrap()) as usize;
    let half = |at: usize| usize::from(u16::from_le_bytes(elf[at..at + 2].try_into().unwrap()));
    let (table, count, names) = (word(0x28), half(0x3c), half(0x3e));
    let mut headers = elf[table..table + count * ENTRY].to_vec();
    let mut file = elf.to_vec();
    let mut add = |bytes: &[u8]| {
        file.resize(file.len().next_multiple_of(16), 0);
        let at = file.len();
        file.extend_from_slice(bytes);
        [at as u64, bytes.len() as u64]
    };
    let (at, size) = (
        word(table + names * ENTRY + 24),
        word(table + names * ENTRY + 32),
    );
    let texts = [&elf[at..at + size], b".gnu_debugaltlink\0"].concat();
    let [texts_at, texts_size] = add(&texts);
    let link = [b"other\0".as_slice(), &hex::decode(id).unwrap()].concat();
    let [link_at, link_size] = add(&link);
    let place = names * ENTRY + 24;
    headers[place..place + 8].copy_from_slice(&texts_at.to_le_bytes());
    headers[place + 8..place + 16].copy_from_slice(&texts_size.to_le_bytes());
    // Name, type (program data), then flags, address, offset, size, link and info, alignment, and
    // entry size.
    let header = [size as u64 | 1 << 32, 0, 0, link_at, link_size, 0, 1, 0];
    headers.extend(header.iter().flat_map(|word| word.to_le_bytes()));
    let [table, _] = add(&headers);
    file[0x28..0x30].copy_from_slice(&table.to_le_bytes());
    file[0x3c..0x3e].copy_from_slice(&(count as u16 + 1).to_le_bytes());
    file
}

#[tokio::test(start_paused = true)]
async fn many_split_units_are_found_one_by_one_for_a_bounded_number_of_calls() {
    let (program, companions) = MANY.files();
    let units = companions.len() as u64;
    assert!(units > 40);
    let world = World::new();
    for (number, companion) in companions.iter().enumerate() {
        upload(&world, &format!("global/{number}.dwo"), companion.clone()).await;
    }
    let before = world.calls();
    upload(&world, "global/program", program.clone()).await;
    let calls = world.calls() - before;
    let whole = (MANY.answer_of_one_archive().await, None);
    assert_eq!(answered(&world, &MANY.crash()).await, whole);
    let entry = world.entry("global", &debug_id(&world).await, Kind::SymCache);
    let made_from = entry.unwrap().ready().unwrap().made_from.len() as u64;
    assert_eq!(made_from, units + 1);
    // For each unit: a query, two writes and a check to file the program, a query and a read for
    // the build.
    assert!(calls <= 6 * units + 40, "{calls} calls for {units} units");
    // An entry has no room for all companions, but for each file that it could be made from.
    upload(&world, "global/again", program).await;
    let entry = world.entry("global", &debug_id(&world).await, Kind::SymCache);
    let considered = entry.unwrap().considered().to_vec();
    let first = considered[..2].iter().map(|dif| dif.location.as_str());
    let first: Vec<&str> = first.collect();
    assert_eq!(first, ["global/again", "global/program"]);
}
