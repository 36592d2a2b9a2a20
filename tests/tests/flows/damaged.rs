//! Files of which a part cannot be read.

use serde_json::json;
use symdepot::domain::ObjectId;
use symdepot_tests::harness::{World, fixture, in_module};

use crate::companions::{answered, upload};
use crate::first_hour::explained_module;

#[tokio::test(start_paused = true)]
async fn a_unit_or_a_module_that_cannot_be_read_is_reported_and_explained() {
    // The header of a unit of DWARF 5, after its length. Its first byte is the version.
    const UNIT: &[u8] = &[5, 0, 1, 8, 0, 0, 0, 0];
    // The version of the symbols of a module, and the kind of their first record, S_OBJNAME, after
    // its length.
    const MODULE: &[u8] = &[4, 0, 0, 0];
    const OBJECT_NAME: &[u8] = &[1, 0x11];
    for (file, format, debug_id, expected) in [
        (
            "elf/crash.debug",
            "elf",
            "bc6e45ac-487f-f425-3672-08b89f51ad48",
            "units of its debug information cannot be read",
        ),
        (
            "pe/x64/crash.pdb",
            "pe",
            "c7d4c24f-1fb8-5408-4c4c-44205044422e-1",
            "modules of the PDB cannot be read",
        ),
    ] {
        let mut damaged = fixture(file).to_vec();
        let is_unit = |bytes: &[u8]| bytes.starts_with(UNIT);
        let is_module =
            |bytes: &[u8]| bytes.starts_with(MODULE) && bytes.get(6..8) == Some(OBJECT_NAME);
        let mut places = damaged.windows(UNIT.len());
        let place = match format {
            "elf" => places.position(is_unit),
            _ => places.position(is_module),
        };
        damaged[place.unwrap()] = 0x77;

        let world = World::new();
        upload(&world, "global/damaged", damaged).await;
        let crash = in_module(json!({"type": format, "debug_id": debug_id}), &[0x1000]);
        let (_, detail) = answered(&world, &crash).await;
        let detail = detail.unwrap();
        assert!(
            detail.starts_with("1 of the ") && detail.contains(expected),
            "{detail}"
        );
        let module = ObjectId {
            debug_id: Some(debug_id.parse().unwrap()),
            ..ObjectId::default()
        };
        let explained = explained_module(&world, &module).await;
        let explained = serde_json::to_string(&explained).unwrap();
        let detail = serde_json::to_string(&detail).unwrap();
        assert!(
            explained.contains(&format!("\"lacks\":{detail}")),
            "{explained}"
        );
        world.check();
    }
}
