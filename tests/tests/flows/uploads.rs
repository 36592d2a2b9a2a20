//! Uploads: the effects of an event of the bucket.

use std::time::Duration;

use symdepot::cache::{Converter, Item, ItemKey, Kind, UploadState};
use symdepot::domain::{Cause, Location, Quality, Sequencer};
use symdepot_tests::harness::{
    World, archive, archive_of, breakpad, breakpad_id, fixture, function_names, in_module,
    manifest, sample_crash,
};

use crate::first_hour::explained;
use crate::{CHECKSUM, CRASH, CRASH_ARM64, CRASH_PE};

#[tokio::test(start_paused = true)]
async fn an_upload_becomes_caches_of_every_kind() {
    let world = World::new();
    let upload = world.upload("global/crash.debug", "elf/crash.debug").await;
    assert_eq!((upload.state, upload.size), (UploadState::Applied, 151_344));
    world.check();
    insta::assert_snapshot!(world.summary());
    assert_eq!(world.orphans(), Vec::<String>::new());
    assert_eq!(
        (world.derivations.opened(), world.derivations.derived()),
        (1, 2)
    );
}

#[tokio::test(start_paused = true)]
async fn a_second_delivery_derives_nothing_and_changes_nothing() {
    let world = World::new();
    let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
    world.deliver(&event).await.unwrap();
    let (items, blobs) = (world.records.items(), world.caches.paths());
    world.deliver(&event).await.unwrap();
    assert_eq!(
        (world.derivations.opened(), world.derivations.derived()),
        (1, 2)
    );
    assert_eq!(
        (world.records.items(), world.caches.paths()),
        (items, blobs)
    );
    assert_eq!(
        world.uploads.calls().of("read"),
        1,
        "a file is not read twice"
    );
}

#[tokio::test(start_paused = true)]
async fn a_file_that_kills_its_parser_is_ignored_after_three_deliveries() {
    let world = World::new();
    let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
    world.derivations.kill_next_readers(3);
    for _ in 0..2 {
        let failed = world.deliver(&event).await;
        assert!(failed.is_err(), "the message must be retried: {failed:?}");
        assert_eq!(
            world.upload_item("global/crash.debug").state,
            UploadState::Pending
        );
    }
    world.deliver(&event).await.unwrap();
    let upload = world.upload_item("global/crash.debug");
    assert!(
        matches!(&upload.state, UploadState::Ignored { reason } if reason.contains("killed")),
        "{upload:?}"
    );
    // The same file, uploaded again, is read by a new parser.
    let upload = world.upload("global/crash.debug", "elf/crash.debug").await;
    assert_eq!(upload.state, UploadState::Applied);
}

#[tokio::test(start_paused = true)]
async fn an_archived_file_is_ignored_with_the_reason_until_it_is_uploaded_again() {
    let world = World::new();
    let key = "global/crash.debug";
    let event = world.put(key, fixture("elf/crash.debug"));
    world.uploads.archive(&Location::new(key));
    world.deliver(&event).await.unwrap();
    let reason = format!("{key} is archived");
    assert_eq!(
        world.upload_item(key).state,
        UploadState::Ignored { reason }
    );
    let upload = world.upload(key, "elf/crash.debug").await;
    assert_eq!(upload.state, UploadState::Applied);
}

#[tokio::test(start_paused = true)]
async fn a_parser_that_is_killed_twice_only_costs_time() {
    let world = World::new();
    let event = world.put("global/crash.debug", fixture("elf/crash.debug"));
    world.derivations.kill_next_readers(2);
    for _ in 0..2 {
        assert!(world.deliver(&event).await.is_err());
    }
    world.deliver(&event).await.unwrap();
    let upload = world.upload_item("global/crash.debug");
    assert_eq!(upload.state, UploadState::Applied, "{upload:?}");
}

#[tokio::test(start_paused = true)]
async fn the_same_bytes_written_again_derive_nothing() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let blobs = world.caches.paths();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    assert_eq!(world.derivations.derived(), 2);
    assert_eq!(world.caches.paths(), blobs);
}

#[tokio::test(start_paused = true)]
async fn only_the_scope_of_a_key_matters_and_not_the_path_under_it() {
    let world = World::new();
    world
        .upload("acme/ac/456ebc/debuginfo", "elf/crash.debug")
        .await;
    assert!(
        world
            .entry("acme", CRASH, Kind::SymCache)
            .unwrap()
            .ready()
            .is_some()
    );
    assert_eq!(world.entry("global", CRASH, Kind::SymCache), None);
}

#[tokio::test(start_paused = true)]
async fn a_key_without_a_scope_is_ignored_and_says_what_to_do() {
    let world = World::new();
    let upload = world.upload("crash.debug", "elf/crash.debug").await;
    let reason = "its key has no scope: copy it to global/… (or to <tenant>/…)".to_owned();
    assert_eq!(upload.state, UploadState::Ignored { reason });
    assert_eq!(
        (world.entries(), world.derivations.opened()),
        (Vec::new(), 0)
    );
}

#[tokio::test(start_paused = true)]
async fn an_object_with_two_ids_is_found_by_either() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let is_alias = |item: &Item| matches!(item, Item::Alias(alias) if alias.target == world.module("global", CRASH));
    assert_eq!(
        world
            .records
            .items()
            .iter()
            .filter(|(_, stored)| is_alias(&stored.item))
            .count(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_removal_before_its_creation_wins() {
    let world = World::new();
    let created = world.put("global/crash.debug", fixture("elf/crash.debug"));
    let removed = world.take_away("global/crash.debug");
    world.deliver(&removed).await.unwrap();
    // The creation arrives late, and finds the file as an outdated listing would.
    world.put("global/crash.debug", fixture("elf/crash.debug"));
    world.deliver(&created).await.unwrap();
    assert_eq!(
        world.upload_item("global/crash.debug").state,
        UploadState::Gone
    );
    assert_eq!(world.entries(), Vec::new());
}

#[tokio::test(start_paused = true)]
async fn sequencers_are_compared_as_numbers_of_one_length() {
    let world = World::new();
    let mut removed = world.take_away("global/crash.debug");
    let mut created = world.put("global/crash.debug", fixture("elf/crash.debug"));
    (created.sequencer, removed.sequencer) = (Sequencer::new("0056"), Sequencer::new("0055FFFF"));
    world.deliver(&created).await.unwrap();
    world.deliver(&removed).await.unwrap();
    assert_eq!(
        world.upload_item("global/crash.debug").state,
        UploadState::Applied
    );
}

#[tokio::test(start_paused = true)]
async fn a_removal_withdraws_names_and_a_pass_removes_the_blobs() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    world.remove("global/crash.debug").await;
    world.check();
    insta::assert_snapshot!(world.summary());
    let answer = world.another_instance().symbolicate(&sample_crash()).await;
    assert!(function_names(&answer).iter().all(|name| name == "?"));
    assert_eq!(world.orphans().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_overwritten_key_serves_the_new_file() {
    let world = World::new();
    world.upload("global/file", "elf/crash.debug").await;
    world.upload("global/file", "elf/crash-arm64.debug").await;
    world.check();
    insta::assert_snapshot!(world.summary());
}

#[tokio::test(start_paused = true)]
async fn a_key_overwritten_with_a_useless_file_serves_nothing() {
    let world = World::new();
    world.upload("global/file", "elf/crash.debug").await;
    world.upload("global/file", "hostile/text.txt").await;
    world.check();
    assert!(
        world
            .entry("global", CRASH, Kind::SymCache)
            .unwrap()
            .ready()
            .is_none()
    );
    assert!(world.upload_item("global/file").objects.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_better_file_replaces_a_fallback_and_the_fallback_returns_when_it_is_removed() {
    let world = World::new();
    let quality = || {
        world
            .entry("global", CRASH, Kind::SymCache)
            .unwrap()
            .ready()
            .unwrap()
            .quality
    };
    let made_from = |kind| {
        let entry = world.entry("global", CRASH, kind).unwrap();
        entry.ready().unwrap().made_from[0].location.to_string()
    };
    world.upload("global/crash", "elf/crash").await;
    assert_eq!(quality(), Quality::Fallback);
    world.upload("global/crash.debug", "elf/crash.debug").await;
    assert_eq!(quality(), Quality::Preferred);
    // Names come from the debug file, unwind information from the program.
    assert_eq!(
        (made_from(Kind::SymCache), made_from(Kind::CfiCache)),
        ("global/crash.debug".into(), "global/crash".into())
    );
    world.remove("global/crash.debug").await;
    assert_eq!(
        (quality(), made_from(Kind::SymCache)),
        (Quality::Fallback, "global/crash".to_owned())
    );
    world.check();
}

#[tokio::test(start_paused = true)]
async fn the_order_of_uploads_does_not_matter() {
    let files = [
        "elf/crash",
        "elf/crash.debug",
        "breakpad/crash.sym",
        "bundle/crash.src.zip",
    ];
    let mut summaries = Vec::new();
    for turn in 0..files.len() {
        let world = World::new();
        for at in 0..files.len() {
            let file = files[(turn + at) % files.len()];
            world.upload(&format!("global/{file}"), file).await;
        }
        world.check();
        summaries.push(world.summary());
    }
    assert!(
        summaries.iter().all(|summary| *summary == summaries[0]),
        "{}",
        summaries.join("\n\n")
    );
    insta::assert_snapshot!(summaries[0]);
}

#[tokio::test(start_paused = true)]
async fn a_malformed_file_with_ids_leaves_placeholders_and_is_not_retried() {
    let world = World::new();
    let upload = world
        .upload("global/flipped.debug", "hostile/bits-flipped.debug")
        .await;
    assert_eq!(upload.state, UploadState::Applied);
    insta::assert_snapshot!(world.summary());
    let derived = world.derivations.derived();
    let crash = in_module(
        serde_json::json!({"type": "elf", "debug_id": CRASH_ARM64}),
        &[0x10494],
    );
    let answer = world.symbolicate(&crash).await;
    insta::assert_json_snapshot!(answer.modules[0]);
    assert_eq!(
        (world.derivations.derived(), world.queues.calls().total()),
        (derived, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_good_file_replaces_the_placeholders_of_a_malformed_one() {
    let world = World::new();
    world
        .upload("global/flipped.debug", "hostile/bits-flipped.debug")
        .await;
    world
        .upload("global/good.debug", "elf/crash-arm64.debug")
        .await;
    let entry = world.entry("global", CRASH_ARM64, Kind::SymCache).unwrap();
    assert_eq!(
        entry.ready().unwrap().made_from[0].location.as_str(),
        "global/good.debug"
    );
    assert_eq!(entry.missing(), None);
}

#[tokio::test(start_paused = true)]
async fn a_file_over_the_limit_is_too_large_until_the_limit_grows() {
    let world = World::with(|settings| settings.dif_max_bytes = 100_000);
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let placeholder = |world: &World| {
        world
            .entry("global", CRASH, Kind::SymCache)
            .unwrap()
            .missing()
            .cloned()
    };
    let missing = placeholder(&world).unwrap().missing;
    assert_eq!(missing.cause, Cause::TooLarge { limit: 100_000 });
    assert_eq!(
        missing.detail,
        "its 151344 bytes exceed the limit of 100000 bytes for a file"
    );
    assert_eq!(world.derivations.derived(), 0);

    let grown = world.deployed_with(|settings| settings.dif_max_bytes = 200_000);
    let answer = grown.symbolicate(&sample_crash()).await;
    assert_eq!(function_names(&answer).len(), 13);
    assert_eq!(placeholder(&grown), None);
}

#[tokio::test(start_paused = true)]
async fn a_file_over_the_scratch_budget_is_too_large_too() {
    let world = World::with(|settings| settings.scratch_bytes = 10_000);
    let upload = world
        .upload("global/crash-arm64.debug", "elf/crash-arm64.debug")
        .await;
    // There is no room for both of its ends either, so its module is unknown.
    let reason = "its 26232 bytes exceed the 10000 bytes of scratch space".to_owned();
    assert_eq!(upload.state, UploadState::Ignored { reason });
    assert_eq!(world.entries(), Vec::new());
}

#[tokio::test(start_paused = true)]
async fn a_file_that_unpacks_to_more_than_the_budget_is_reported() {
    let world = World::with(|settings| settings.scratch_bytes = 20_000);
    world
        .upload(
            "global/crash-arm64.debug.gz",
            "containers/crash-arm64.debug.gz",
        )
        .await;
    insta::assert_snapshot!(world.summary());
}

#[tokio::test(start_paused = true)]
async fn a_compressed_debug_file_is_derived_like_an_uncompressed_one() {
    for (file, id, arch) in [
        ("crash-arm64.debug.gz", CRASH_ARM64, "arm64"),
        ("crash-arm64.debug.zlib", CRASH_ARM64, "arm64"),
        ("crash-arm64.debug.zst", CRASH_ARM64, "arm64"),
        ("several.zip", CRASH_ARM64, "arm64"),
        ("crash.pd_", CRASH_PE, "x86_64"),
    ] {
        let world = World::new();
        let file = format!("containers/{file}");
        world.upload("global/packed", &file).await;
        let entry = world.entry("global", id, Kind::SymCache).unwrap();
        let ready = entry.ready().cloned().unwrap();
        assert_eq!(
            (ready.quality, ready.arch.as_str()),
            (Quality::Preferred, arch),
            "{file}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn every_object_of_an_archive_is_served_from_one_download() {
    let world = World::new();
    let upload = world
        .upload("global/several.zip", "containers/several.zip")
        .await;
    assert_eq!(upload.objects.len(), 3);
    insta::assert_snapshot!(world.summary());
    assert_eq!(
        (world.derivations.opened(), world.uploads.calls().of("read")),
        (1, 1)
    );
    // The program has unwind information, and its PDB has names: both have one id, in one file.
    let features = |kind| {
        world
            .entry("global", CRASH_PE, kind)
            .unwrap()
            .ready()
            .unwrap()
            .features
            .clone()
    };
    assert!(features(Kind::SymCache).has_debug_info && features(Kind::CfiCache).has_unwind_info);
}

#[tokio::test(start_paused = true)]
async fn both_architectures_of_a_fat_file_are_served() {
    for file in [
        "macho/fat/crash.dSYM/Contents/Resources/DWARF/crash",
        "containers/crash.dSYM.zip",
    ] {
        let world = World::new();
        world.upload("global/crash.dSYM", file).await;
        for (id, arch) in [
            ("4c4c44d1-5555-3144-a1ab-5b64cd3ef282", "x86_64"),
            ("4c4c445c-5555-3144-a106-efef076dfa3c", "arm64"),
        ] {
            let ready = world
                .entry("global", id, Kind::SymCache)
                .unwrap()
                .ready()
                .cloned()
                .unwrap();
            assert_eq!(
                (ready.quality, ready.arch.as_str()),
                (Quality::Preferred, arch),
                "{file}"
            );
        }
        assert_eq!(world.derivations.opened(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn every_fixture_is_filed_under_the_ids_that_other_tools_read() {
    for fixture in manifest()
        .into_iter()
        .filter(|fixture| fixture.kind != "hostile" && fixture.kind != "container")
    {
        let world = World::new();
        let upload = world.upload("global/file", &fixture.file).await;
        assert_eq!(upload.state, UploadState::Applied, "{}", fixture.file);
        let found: Vec<(Option<String>, Option<String>)> = upload
            .objects
            .iter()
            .map(|object| {
                (
                    object.debug_id.map(|id| id.to_string()),
                    object.code_id.as_ref().map(|id| id.to_string()),
                )
            })
            .collect();
        let expected: Vec<(Option<String>, Option<String>)> = match fixture.objects.as_slice() {
            [] => vec![(fixture.debug_id.clone(), fixture.code_id.clone())],
            objects => objects
                .iter()
                .map(|object| (Some(object.debug_id.clone()), Some(object.code_id.clone())))
                .collect(),
        };
        if fixture.file == "elf/no-build-id.so" {
            // It has no id of its own; one is computed from its code.
            assert!(found[0].0.is_some());
            continue;
        }
        assert_eq!(found, expected, "{}", fixture.file);
    }
}

#[tokio::test(start_paused = true)]
async fn uploads_without_room_are_reported_and_filed_when_others_are_removed() {
    const ROOM: usize = 256;
    const UPLOADS: usize = 300;
    let world = World::new();
    let key = |number: usize| format!("global/release-{number:03}/checksum");
    for number in 0..UPLOADS {
        let upload = world.upload(&key(number), "elf/checksum").await;
        let is_ignored = matches!(&upload.state, UploadState::Ignored { reason } if reason.contains("the limit of 256 files"));
        let expected = if number < ROOM {
            upload.state == UploadState::Applied
        } else {
            is_ignored
        };
        assert!(expected, "{number}: {upload:?}");
    }
    let difs = || {
        let items = world.records.items().into_iter();
        let difs = items.filter(|(_, stored)| matches!(stored.item, Item::Dif(_)));
        difs.count()
    };
    assert_eq!(difs(), ROOM);
    // A retention rule removes the oldest files first.
    for number in 0..ROOM {
        world.remove(&key(number)).await;
    }
    assert_eq!(difs(), UPLOADS - ROOM);
    for number in ROOM..UPLOADS {
        let upload = world.upload_item(&key(number));
        assert_eq!(
            (upload.state, upload.no_room),
            (UploadState::Applied, None),
            "{number}"
        );
    }
    let ready = world.entry("global", CHECKSUM, Kind::SymCache).unwrap();
    let made_from = &ready.ready().unwrap().made_from[0];
    assert_eq!(made_from.location.as_str(), key(ROOM));
    let is_overflow = |item: &Item| matches!(item, Item::Overflow(_));
    let items = world.records.items();
    assert!(!items.iter().any(|(_, stored)| is_overflow(&stored.item)));
    world.check();
}

#[tokio::test(start_paused = true)]
async fn an_archive_serves_the_modules_with_room_and_names_the_others() {
    let world = World::new();
    let full = breakpad(1);
    for number in 0..256 {
        let event = world.put(&format!("global/{number:03}.sym"), full.clone());
        world.deliver(&event).await.unwrap();
    }
    let archive = archive(&[
        ("a.sym".to_owned(), full),
        ("b.sym".to_owned(), breakpad(2)),
    ]);
    let event = world.put("global/symbols.zip", archive);
    world.deliver(&event).await.unwrap();
    world.settle().await;
    let explain = || async { explained(&world, "global/symbols.zip").await.unwrap() };
    let explained = explain().await;
    assert_eq!(explained.state, UploadState::Applied);
    let note = explained.note.unwrap();
    assert!(note.contains("1 of its 2 modules"), "{note}");
    assert!(note.contains(&breakpad_id(1)), "{note}");
    let other = world.entry("global", &breakpad_id(2), Kind::SymCache);
    assert!(other.unwrap().ready().is_some());
    // When there is room, it serves the other module, too.
    world.remove("global/000.sym").await;
    assert_eq!(explain().await.note, None);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn an_archive_of_thousands_of_objects_is_served_and_can_be_removed() {
    const OBJECTS: usize = 2200;
    let world = World::new();
    let event = world.put("global/symbols.zip", archive_of(0..OBJECTS));
    world.deliver(&event).await.unwrap();
    world.settle().await;
    let upload = world.upload_item("global/symbols.zip");
    assert_eq!(upload.state, UploadState::Applied);
    for number in [0, 999, 1000, OBJECTS - 1] {
        let entry = world.entry("global", &breakpad_id(number), Kind::SymCache);
        assert!(entry.unwrap().ready().is_some(), "{number}");
    }
    let explained = explained(&world, "global/symbols.zip").await.unwrap();
    assert_eq!(
        (explained.objects.len(), explained.further_objects),
        (1000, Some(OBJECTS - 1000))
    );
    world.remove("global/symbols.zip").await;
    world.check();
    assert_eq!(
        world.upload_item("global/symbols.zip").state,
        UploadState::Gone
    );
    let served = world
        .entries()
        .into_iter()
        .filter(|entry| entry.ready().is_some());
    assert_eq!(served.count(), 0);
    let is_left = |item: &Item| {
        matches!(
            item,
            Item::Objects(_) | Item::Dif(_) | Item::Presence(_) | Item::Alias(_)
        )
    };
    let items = world.records.items();
    let left = items.iter().filter(|(_, stored)| is_left(&stored.item));
    assert_eq!(left.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_archive_with_too_many_files_is_ignored_with_the_reason() {
    let world = World::new();
    let event = world.put("global/symbols.zip", archive_of(0..10_001));
    world.deliver(&event).await.unwrap();
    let upload = world.upload_item("global/symbols.zip");
    let reason = "the archive has 10001 files, more than the limit of 10000".to_owned();
    assert_eq!(upload.state, UploadState::Ignored { reason });
}

#[tokio::test(start_paused = true)]
async fn a_program_uploaded_after_its_debug_file_does_not_derive_names_again() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let names = world.entry("global", CRASH, Kind::SymCache).unwrap();
    let before = world.derivations.derived();
    world.upload("global/crash", "elf/crash").await;
    assert_eq!(
        world.derivations.derived() - before,
        1,
        "only unwind information"
    );
    let after = world.entry("global", CRASH, Kind::SymCache).unwrap();
    assert_eq!(after.ready(), names.ready());
    assert_eq!(after.considered().len(), 2);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn an_event_of_overwritten_bytes_leaves_the_key_to_the_next_event() {
    let world = World::new();
    let first = world.put("global/file", fixture("elf/crash.debug"));
    let second = world.put("global/file", fixture("elf/checksum"));
    world.deliver(&first).await.unwrap();
    let announced = world.upload_item("global/file");
    assert_eq!(
        (announced.names_objects(), announced.state),
        (false, UploadState::Pending)
    );
    assert_eq!(
        (world.records.items().len(), world.derivations.derived()),
        (1, 0)
    );
    world.deliver(&second).await.unwrap();
    world.settle().await;
    assert_eq!(world.upload_item("global/file").state, UploadState::Applied);
    assert!(world.entry("global", CRASH, Kind::SymCache).is_none());
    let entry = world.entry("global", CHECKSUM, Kind::SymCache).unwrap();
    assert!(entry.ready().is_some());
}

/// Found by the simulation: the older release completed the message, so after a rollback a file
/// that was removed stayed in use.
#[tokio::test(start_paused = true)]
async fn an_event_of_a_file_that_a_newer_release_filed_is_left_to_a_newer_release() {
    let world = World::new();
    world.upload("global/crash.debug", "elf/crash.debug").await;
    let key = ItemKey::upload(&Location::new("global/crash.debug"));
    let filed = world.records.peek(&key).unwrap();
    world.records.put_newer(&key, filed.revision);
    let removal = world.take_away("global/crash.debug");
    let failed = world.deliver(&removal).await.unwrap_err();
    assert_eq!(
        failed.name(),
        "Newer",
        "the message must be retried: {failed}"
    );
}

/// Found by the simulation: what the older release ignored during a canary was never read again.
#[tokio::test(start_paused = true)]
async fn an_upload_that_an_older_release_could_not_read_is_read_again_by_a_newer_one() {
    let world = World::new();
    let upload = world.upload("global/odd", "manifest.json").await;
    assert!(matches!(upload.state, UploadState::Ignored { .. }));
    world.pass(Duration::from_secs(2 * 3600)).await;
    assert_eq!(world.prune().await.unwrap().reconciled, 0);

    let newer = Converter(Converter::CURRENT.0 + 1);
    let world = world.deployed_with(|settings| settings.policy.numbers.converter = newer);
    assert_eq!(world.prune().await.unwrap().reconciled, 1);
    world.settle().await;
    assert_eq!(world.upload_item("global/odd").ignored_by, Some(newer));
    // Once is enough.
    world.pass(Duration::from_secs(2 * 3600)).await;
    assert_eq!(world.prune().await.unwrap().reconciled, 0);
}
