//! PDBs that link to their sources.

use bytes::Bytes;

use super::fixtures::fixture;

/// The address that the sample links to, and the id of embedded sources in its heap of GUIDs:
/// "Portable PDB v1.0 Format Specification", "Embedded Source".
const LINKED: &[u8] = b"https://example.com/books/raw/0123abc/*";
const EMBEDDED_SOURCE: [u8; 16] = [
    0x1b, 0x57, 0x8a, 0x0e, 0x26, 0x69, 0x6e, 0x46, 0xb4, 0xad, 0x8a, 0xb0, 0x46, 0x11, 0xf5, 0xfe,
];

/// Returns the sample's portable PDB without its embedded source, and with links to addresses that
/// begin so.
///
/// # Panics
///
/// If the beginning is longer than the one in the sample.
pub fn linked_pdb(begin: &str) -> Bytes {
    let mut pdb = fixture("dotnet/Ledger.pdb").to_vec();
    let room = LINKED.len() - 1;
    assert!(begin.len() <= room, "{begin} has more than {room} bytes");
    let padding = "x".repeat(room - begin.len());
    let link = format!("{begin}{padding}*");
    let mut replace = |from: &[u8], to: &[u8]| {
        let mut places = pdb.windows(from.len());
        let at = places.position(|bytes| bytes == from);
        let at = at.expect("the sample has it");
        pdb[at..at + to.len()].copy_from_slice(to);
    };
    replace(LINKED, link.as_bytes());
    replace(&EMBEDDED_SOURCE, &[0; 16]);
    pdb.into()
}

/// Returns the address that such a PDB links a source file to, by its path below `/build/app/`.
pub fn linked_to(begin: &str, path: &str) -> String {
    let padding = "x".repeat(LINKED.len() - 1 - begin.len());
    format!("{begin}{padding}{path}")
}

/// Returns a PDB with one more named stream.
///
/// Source of the format: LLVM, "The MSF File Format" and "The PDB Info Stream". Everything that
/// changes is written again behind the file, and the superblock refers to it.
///
/// # Panics
///
/// If the bytes are not a PDB.
pub fn pdb_with_stream(pdb: &[u8], name: &str, content: &[u8]) -> Bytes {
    let word = |bytes: &[u8], at: usize| {
        let bytes: [u8; 4] = bytes[at..at + 4].try_into().expect("four bytes");
        u32::from_le_bytes(bytes)
    };
    let mut file = pdb.to_vec();
    let page_bytes = word(pdb, 32) as usize;
    let pages_of = |bytes: usize| bytes.div_ceil(page_bytes);
    let page = |number: u32| &pdb[number as usize * page_bytes..][..page_bytes];
    let joined = |pages: &[u32], bytes: usize| {
        let all: Vec<u8> = pages
            .iter()
            .flat_map(|number| page(*number))
            .copied()
            .collect();
        all[..bytes].to_vec()
    };
    let words =
        |bytes: &[u8]| -> Vec<u32> { (0..bytes.len() / 4).map(|at| word(bytes, at * 4)).collect() };
    let bytes_of =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let mut append = |bytes: &[u8]| -> Vec<u32> {
        let first = file.len() / page_bytes;
        file.extend_from_slice(bytes);
        file.resize(file.len().next_multiple_of(page_bytes), 0);
        let pages = first..first + pages_of(bytes.len());
        pages
            .map(|number| u32::try_from(number).expect("a small file"))
            .collect()
    };

    // The directory: the sizes of all streams, then their pages.
    let length = word(pdb, 44) as usize;
    let map = words(page(word(pdb, 52)));
    let directory = words(&joined(&map[..pages_of(length)], length));
    let count = directory[0] as usize;
    let (mut sizes, mut rest) = (directory[1..=count].to_vec(), &directory[1 + count..]);
    let mut streams: Vec<Vec<u32>> = Vec::new();
    for size in &sizes {
        let size = if *size == u32::MAX { 0 } else { *size as usize };
        let (pages, following) = rest.split_at(pages_of(size));
        streams.push(pages.to_vec());
        rest = following;
    }

    // The names of streams, in stream 1, behind version, signature, age and GUID.
    let info = joined(&streams[1], sizes[1] as usize);
    let (head, table) = info.split_at(28);
    let names_end = 4 + word(table, 0) as usize;
    let mut names = table[4..names_end].to_vec();
    let offset = u32::try_from(names.len()).expect("a small file");
    names.extend_from_slice(name.as_bytes());
    names.push(0);
    let table = words(&table[names_end..]);
    let (entries, present) = (table[0], table[2] as usize);
    let deleted = table[3 + present] as usize;
    let pairs_at = 4 + present + deleted;
    let (pairs, features) = table[pairs_at..].split_at(2 * entries as usize);
    let number = u32::try_from(count).expect("a small file");
    let all = (1_u32 << (entries + 1)) - 1;
    let table = [
        &[entries + 1, (entries + 1) * 2, 1, all, 0],
        pairs,
        &[offset, number],
        features,
    ];
    let size = u32::try_from(names.len())
        .expect("a small file")
        .to_le_bytes();
    let info = [head, &size, &names, &bytes_of(&table.concat())].concat();

    (sizes[1], streams[1]) = (
        u32::try_from(info.len()).expect("a small file"),
        append(&info),
    );
    sizes.push(u32::try_from(content.len()).expect("a small file"));
    streams.push(append(content));
    let directory = [vec![number + 1], sizes, streams.concat()].concat();
    let directory = bytes_of(&directory);
    let directory_pages = append(&directory);
    let map = append(&bytes_of(&directory_pages));
    let page_count = file.len() / page_bytes;
    for (at, value) in [
        (40, page_count),
        (44, directory.len()),
        (52, map[0] as usize),
    ] {
        let value = u32::try_from(value).expect("a small file");
        file[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    file.into()
}
