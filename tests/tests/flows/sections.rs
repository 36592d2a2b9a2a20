//! Of a large ELF file, only the sections that are needed are fetched.

use serde_json::json;
use symdepot_tests::harness::{World, fixture, in_module};

/// The size of the added section, in bytes.
const FILLER_BYTES: usize = 40 << 20;

/// Appends a large section to a 64-bit little-endian program.
fn with_large_section(mut program: Vec<u8>, name: &str) -> Vec<u8> {
    const HEADER_BYTES: usize = 64;
    let word = |bytes: &[u8], at: usize| {
        let bytes: [u8; 8] = bytes[at..at + 8].try_into().unwrap();
        usize::try_from(u64::from_le_bytes(bytes)).unwrap()
    };
    let half =
        |bytes: &[u8], at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (table, count) = (word(&program, 0x28), half(&program, 0x3c));
    let names_header = table + half(&program, 0x3e) * HEADER_BYTES;
    let mut headers = program[table..table + count * HEADER_BYTES].to_vec();
    let (names_at, names_bytes) = (
        word(&program, names_header + 0x18),
        word(&program, names_header + 0x20),
    );
    let mut names = program[names_at..names_at + names_bytes].to_vec();
    let name_at = u32::try_from(names.len()).unwrap();
    names.extend(name.as_bytes());
    names.push(0);

    let mut large = headers[..HEADER_BYTES].to_vec();
    large.fill(0);
    large[..4].copy_from_slice(&name_at.to_le_bytes());
    large[4] = 1;
    large[0x18..0x20].copy_from_slice(&(program.len() as u64).to_le_bytes());
    large[0x20..0x28].copy_from_slice(&(FILLER_BYTES as u64).to_le_bytes());
    program.resize(program.len() + FILLER_BYTES, 0xa5);
    let of_names = names_header - table;
    headers[of_names + 0x18..of_names + 0x20]
        .copy_from_slice(&(program.len() as u64).to_le_bytes());
    headers[of_names + 0x20..of_names + 0x28].copy_from_slice(&(names.len() as u64).to_le_bytes());
    program.extend(names);
    program.resize(program.len().next_multiple_of(8), 0);
    let new_table = program.len() as u64;
    program[0x28..0x30].copy_from_slice(&new_table.to_le_bytes());
    program[0x3c..0x3e].copy_from_slice(&(u16::try_from(count).unwrap() + 1).to_le_bytes());
    program.extend(headers);
    program.extend(large);
    program
}

/// Uploads a program. Returns the response to a crash in it, and the number of reads.
async fn uploaded(program: Vec<u8>) -> (Vec<String>, u64) {
    let world = World::new();
    let event = world.put("global/program", program);
    world.deliver(&event).await.unwrap();
    world.settle().await;
    let object = &world.upload_item("global/program").objects[0];
    let module = json!({"type": "elf", "debug_id": object.debug_id});
    let addresses: Vec<u64> = (0..0x2000).step_by(16).collect();
    let completed = world.symbolicate(&in_module(module, &addresses)).await;
    let frames = completed.stacktraces[0].frames.iter();
    let names = frames.filter_map(|frame| {
        let frame = &frame.frame;
        Some(format!("{}:{:?}", frame.function.as_deref()?, frame.lineno))
    });
    (names.collect(), world.uploads.calls().of("read"))
}

#[tokio::test(start_paused = true)]
async fn sections_that_nothing_reads_are_not_fetched() {
    let program = fixture("zoo/cold-parts").to_vec();
    let (expected, _) = uploaded(program.clone()).await;
    assert!(expected.len() > 20, "{expected:?}");
    let (names, reads) = uploaded(with_large_section(program.clone(), ".debug_loclists")).await;
    assert_eq!((&names, reads), (&expected, 2), "both ends");
    let (names, reads) = uploaded(with_large_section(program, ".debug_rnglists.of-others")).await;
    assert_eq!(
        (&names, reads),
        (&expected, 7),
        "both ends, and five ranges"
    );
}
