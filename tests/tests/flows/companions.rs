//! A program and the files that complete it, uploaded one by one: split units, packages of them,
//! and the shared files of `dwz`.

use std::io::{Cursor, Read};

use serde_json::json;
use symdepot::api::symbolicator::{Completed, ModuleStatus};
use symdepot::cache::{Kind, UploadState};
use symdepot::domain::Location;
use symdepot_tests::harness::{Crash, World, fixture, function_names, in_module};

use crate::first_hour::explained;

/// A program and its companions in one archive of the fixtures; the program is the first member.
struct Together {
    archive: &'static str,
    build_id: &'static str,
}

const PACKAGED: Together = Together {
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

const SHARED: Together = Together {
    archive: "zoo/shared.zip",
    build_id: "0a2b21dc4a70f2d3b6655c3732179c6f3f030162",
};

const APART: Together = Together {
    archive: "zoo/symbols-apart.zip",
    build_id: "5c2ba3ec3e2561fbabde3dab93170f683a2d787b",
};

impl Together {
    /// Returns the program and the other files.
    fn files(&self) -> (Vec<u8>, Vec<Vec<u8>>) {
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
    fn crash(&self) -> Crash {
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
    async fn answer_of_one_archive(&self) -> Vec<String> {
        let world = World::new();
        world.upload("global/all.zip", self.archive).await;
        let answer = world.symbolicate(&self.crash()).await;
        assert_eq!(answer.modules[0].debug_detail, None);
        function_names(&answer)
    }
}

async fn upload(world: &World, key: &str, bytes: Vec<u8>) {
    let event = world.put(key, bytes);
    world.deliver(&event).await.unwrap();
    world.settle().await;
    assert_eq!(world.upload_item(key).state, UploadState::Applied, "{key}");
}

/// Returns the response of a new instance, and what it reports as missing.
async fn answered(world: &World, crash: &Crash) -> (Vec<String>, Option<String>) {
    let answer: Completed = world.another_instance().symbolicate(crash).await;
    let detail = answer.modules[0].debug_detail.clone();
    (function_names(&answer), detail)
}

#[tokio::test(start_paused = true)]
async fn companions_complete_a_program_in_any_order_until_they_are_removed() {
    for together in [PACKAGED, PACKAGED_4, SINGLE, SHARED, APART] {
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
