//! Compares derived SymCaches with the oracle `symbolic`.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use symbolic::debuginfo::Object;
use symbolic::symcache::{SourceLocation, SymCache};

use super::*;
use crate::cache::Kind;
use crate::debuginfo::auxiliary::{LineMap, Maps};
use crate::debuginfo::blob::{self, AlignedBytes};
use crate::debuginfo::derive::symcache::Sym;
use crate::debuginfo::slices::SliceIndex;
use crate::debuginfo::tests::fixture;

const FILES: [&str; 2] = ["pe/x64/crash.pdb", "pe/x86/crash.pdb"];

const SMALL: Bounds = Bounds {
    ranges: 7,
    raw_bytes: 1 << 20,
};

fn encoded(
    dif: &[u8],
    links: Option<&LinkStreams>,
    other: &OtherFiles<'_, '_>,
    (run_bytes, workers, bounds): (u64, usize, Bounds),
) -> Result<EncodedCache, Failure> {
    let Ok(Object::Pdb(pdb)) = Object::parse(dif) else {
        return Err(malformed("not a PDB".to_owned()));
    };
    let contents = blob::unfiled(Kind::SymCache, pdb.arch(), Some(pdb.debug_id()));
    encode_runs(&pdb, links, other, run_bytes, workers, &contents, bounds)
}

/// Returns the SymCache that the slices of a blob form together.
fn joined(blob: &[u8]) -> AlignedBytes {
    let joined = SliceIndex::of_blob(blob).unwrap().join(blob).unwrap();
    AlignedBytes::copied(&joined).unwrap()
}

/// The frames at an address, the innermost first: function, entry, file, place on a source server,
/// line. Of a function, an underscore in front is left out: `symbolic` takes it for a decoration on
/// all machines.
type Answer = (String, u32, Option<[Option<String>; 3]>, u32);

fn answers(cache: &SymCache<'_>, address: u64) -> Vec<Answer> {
    let answer = |location: SourceLocation<'_, '_>| {
        let function = location.function();
        let file = location.file().map(|file| {
            let revision = file.srcsrv_revision().map(str::to_owned);
            [Some(file.full_path()), file.full_srcsrv_path(), revision]
        });
        let name = function.name();
        let name = name.strip_prefix('_').unwrap_or(name).to_owned();
        let entry = function.entry_pc();
        (name, entry, file, location.line())
    };
    cache.lookup(address).map(answer).collect()
}

/// Returns whether an answer has all frames of another one, in their order. If a type is damaged,
/// `symbolic` leaves out the inlined call, or the parameters, that it asks for first; here, all are
/// as it has them from then on. Where a call begins that no line of its caller covers, and behind
/// it, the line of the caller is unknown; `symbolic` has the line before.
fn has_all(found: &[Answer], expected: &[Answer]) -> bool {
    let without_parameters = |(name, entry, place, line): &Answer| {
        let name = name.split('(').next().unwrap_or_default().to_owned();
        (name, *entry, place.clone(), *line)
    };
    let mut found = found.iter().map(without_parameters);
    let mut expected = expected.iter().map(without_parameters);
    expected.all(|frame| found.any(|other| other == frame || other == without_line(&frame)))
}

/// Returns whether an answer is the same, or has calls that were inlined into a function without
/// lines, which `symbolic` leaves out.
fn is_same_with_calls(found: &[Answer], expected: &[Answer]) -> bool {
    let has_no_line = expected.iter().all(|frame| *frame == without_line(frame));
    found == expected || (!expected.is_empty() && has_no_line && found.ends_with(expected))
}

/// Returns a frame of the same function without a file and line.
fn without_line((name, entry, ..): &Answer) -> Answer {
    (name.clone(), *entry, None, 0)
}

/// Compares a blob with a SymCache at each start of a range and the address before. Returns the
/// number of addresses.
fn assert_same(blob: &[u8], plain: &[u8], what: &str) -> usize {
    assert_answers(blob, plain, what, <[Answer]>::eq)
}

/// Compares with a function that says whether the first answer, of the blob, is as good as the
/// second.
fn assert_answers(
    blob: &[u8],
    plain: &[u8],
    what: &str,
    is_as_good: fn(&[Answer], &[Answer]) -> bool,
) -> usize {
    let (plain, joined) = (AlignedBytes::copied(plain).unwrap(), joined(blob));
    let expected = SymCache::parse(plain.as_slice()).unwrap();
    let found = SymCache::parse(joined.as_slice()).unwrap();
    assert_eq!(found.arch(), expected.arch());
    assert_eq!(found.debug_id(), expected.debug_id());
    let mut addresses: Vec<_> = [plain.as_slice(), joined.as_slice()]
        .into_iter()
        .flat_map(slices::starts_of)
        .flat_map(|start| [start.saturating_sub(1), start])
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    for address in &addresses {
        let address = u64::from(*address);
        let (found, expected) = (answers(&found, address), answers(&expected, address));
        let is_as_good = is_as_good(&found, &expected);
        assert!(
            is_as_good,
            "{what} at {address:#x}: {found:#?} for {expected:#?}"
        );
    }
    addresses.len()
}

#[test]
fn every_address_of_a_pdb_has_the_same_answer_as_in_symbolic() {
    let mut compared = 0;
    for file in FILES {
        let dif = fixture(file);
        let mut plain = Vec::new();
        Sym::write(&Object::parse(&dif).unwrap(), None, &mut plain).unwrap();
        let mut blobs = Vec::new();
        for how in [
            (1, 1, SMALL),
            (1, 3, SMALL),
            (u64::MAX, 2, SMALL),
            (u64::MAX, 1, Bounds::CURRENT),
        ] {
            let encoded = encoded(&dif, None, &OtherFiles::default(), how).unwrap();
            assert_eq!(encoded.lacks, None);
            compared += assert_answers(&encoded.blob, &plain, file, is_same_with_calls);
            blobs.push(encoded.blob);
        }
        assert!(
            blobs[0] == blobs[1],
            "{file}: the blob depends on the number of workers"
        );
    }
    assert!(compared > 1_000, "{compared}");
}

#[test]
fn the_runs_have_all_modules_that_are_listed() {
    for file in FILES {
        let dif = fixture(file);
        let mut pdb = pdb::PDB::open(std::io::Cursor::new(&dif)).unwrap();
        let stream = pdb.raw_stream(StreamIndex(modules::STREAM)).unwrap();
        let sizes = modules::sizes(&stream.unwrap());
        let about = pdb.debug_information().unwrap();
        let listed = about.modules().unwrap().collect::<Vec<_>>().unwrap();
        assert_eq!(sizes.len(), listed.len(), "{file}");
        for (size, module) in sizes.iter().zip(&listed) {
            let stream = pdb.module_info(module).unwrap();
            assert_eq!(*size > 4, stream.is_some(), "{file}: {module:?}");
        }
    }
}

/// As a script for Perforce writes it.
const PERFORCE: &str = r"SRCSRV: ini ------------------------------------------------
VERSION=1
VERCTRL=Perforce
SRCSRV: variables ------------------------------------------
SRCSRVTRG=%targ%\%var2%\%var3%
SRCSRVCMD=p4.exe print %var3%
SRCSRV: source files ---------------------------------------
FILE*depot*//depot/src/FILE_IN_DEPOT*4711
SRCSRV: end ------------------------------------------------
";

#[test]
fn places_on_source_servers_and_line_maps_are_those_that_symbolic_gives() {
    let dif = fixture(FILES[0]);
    let object = Object::parse(&dif).unwrap();
    let session = object.debug_session().unwrap();
    let files = session.files().map(|file| file.unwrap().abs_path_str());
    let path = files
        .into_iter()
        .find(|path| path.ends_with(".c") || path.ends_with(".cpp"));
    let path = path.unwrap();

    let perforce = PERFORCE
        .replace("FILE_IN_DEPOT", "a.c")
        .replace("FILE", &path);
    let source_link = format!(r#"{{"documents": {{{path:?}: "https://git.test/1/a.c"}}}}"#);
    for (srcsrv, source_link, expected) in [
        (perforce.as_str(), "", ["depot/src/a.c", "4711"]),
        ("", source_link.as_str(), ["https://git.test/1/a.c", ""]),
    ] {
        let links = LinkStreams::with(srcsrv.as_bytes(), source_link.as_bytes());
        let how = (1, 2, SMALL);
        let blob = encoded(&dif, Some(&links), &OtherFiles::default(), how)
            .unwrap()
            .blob;
        let joined = joined(&blob);
        let cache = SymCache::parse(joined.as_slice()).unwrap();
        let places = slices::starts_of(joined.as_slice()).into_iter();
        let places = places.flat_map(|start| answers(&cache, start.into()));
        let places: Vec<_> = places.filter_map(|(_, _, file, _)| file).collect();
        let (of_file, others): (Vec<_>, Vec<_>) = places
            .iter()
            .partition(|[file, ..]| file.as_deref() == Some(&path));
        assert!(!of_file.is_empty() && !others.is_empty());
        for [_, place, revision] in of_file {
            let found = [place, revision].map(|text| text.as_deref().unwrap_or_default());
            assert_eq!(found, expected);
        }
        assert!(others.iter().all(|[_, place, _]| place.is_none()));
    }

    let map = format!(r#"{{{path:?}: {{"Game.cs": {{"1": 100}}}}}}"#);
    let lines = LineMap::read(map.as_bytes()).unwrap();
    let mut plain = Vec::new();
    Sym::write(&object, Some(&lines), &mut plain).unwrap();
    let other = OtherFiles {
        maps: Maps::read(None, Some(map.as_bytes())),
        ..OtherFiles::default()
    };
    let blob = encoded(&dif, None, &other, (1, 2, SMALL)).unwrap().blob;
    assert_same(&blob, &plain, "with a line map");
    assert!(
        joined(&blob)
            .as_slice()
            .windows(7)
            .any(|bytes| bytes == b"Game.cs")
    );
}

/// Returns the place of the stream of a module in a PDB whose streams are not fragmented there, and
/// the number of modules with symbols.
fn module_with_functions(dif: &[u8]) -> (usize, usize) {
    let mut pdb = pdb::PDB::open(std::io::Cursor::new(dif)).unwrap();
    let about = pdb.debug_information().unwrap();
    let modules = about.modules().unwrap().collect::<Vec<_>>().unwrap();
    let mut places = Vec::new();
    let mut count = 0;
    for module in modules {
        let Some(info) = pdb.module_info(&module).unwrap() else {
            continue;
        };
        count += 1;
        let mut symbols = info.symbols().unwrap();
        while let Some(symbol) = symbols.next().unwrap() {
            if let Ok(pdb::SymbolData::Procedure(_)) = symbol.parse() {
                let record = symbol.raw_bytes();
                let mut found = dif.windows(record.len()).enumerate();
                places.extend(found.find(|(_, bytes)| *bytes == record).map(|(at, _)| at));
                break;
            }
        }
    }
    (places[0], count)
}

#[test]
fn an_unreadable_module_loses_its_functions_and_is_reported() {
    let dif = fixture(FILES[0]);
    let (at, modules) = module_with_functions(&dif);
    let mut bad = dif.clone();
    // The length of the first record of a function: the records after it cannot be found.
    bad[at - 2..at].copy_from_slice(&u16::MAX.to_le_bytes());
    let object = Object::parse(&bad).unwrap();
    Sym::write(&object, None, &mut Vec::new()).expect_err("symbolic refuses the file");
    let ranges = |blob: &[u8]| slices::starts_of(joined(blob).as_slice()).len();
    let whole = encoded(&dif, None, &OtherFiles::default(), (1, 1, SMALL)).unwrap();
    for workers in [1, 3] {
        let encoded = encoded(&bad, None, &OtherFiles::default(), (1, workers, SMALL)).unwrap();
        let lacks = encoded.lacks.unwrap();
        let expected = format!("1 of the {modules} modules of the PDB cannot be read");
        assert!(lacks.starts_with(&expected), "{lacks}");
        let left = ranges(&encoded.blob);
        assert!(left > 50 && left < ranges(&whole.blob), "{left}");
    }
}

/// Marks the lines of functions as parts that readers ignore. Returns their number. Those of
/// inlined calls are in other records.
fn ignore_lines(pdb: &mut [u8]) -> usize {
    const LINES: u32 = 0xf2;
    const IGNORED: u32 = 0x8000_0000;
    let word = |pdb: &[u8], at: usize| u32::from_le_bytes(*pdb[at..].first_chunk().unwrap());
    // Its kind and length; an offset, a section and flags, the length of the code; a file, the
    // number of its lines, and the length of these three fields and the lines.
    let is_lines = |pdb: &[u8], at: usize| {
        let lengths = [word(pdb, at + 4), word(pdb, at + 28)];
        let of_lines = word(pdb, at + 24).checked_mul(8);
        let of_lines = of_lines.and_then(|length| length.checked_add(12));
        word(pdb, at) == LINES
            && of_lines == Some(lengths[1])
            && lengths[1].checked_add(12) == Some(lengths[0])
    };
    let places = (0..pdb.len() - 32).step_by(4);
    let places: Vec<usize> = places.filter(|at| is_lines(pdb, *at)).collect();
    for at in &places {
        pdb[*at..at + 4].copy_from_slice(&IGNORED.to_le_bytes());
    }
    places.len()
}

/// MSVC writes such functions: implicit destructors, for example, have inlined calls, and no lines.
#[test]
fn functions_without_lines_have_their_inlined_calls() {
    for file in FILES {
        let dif = fixture(file);
        let mut without_lines = dif.clone();
        assert!(ignore_lines(&mut without_lines) > 10);
        let [expected, found] = [&dif, &without_lines].map(|dif| {
            let how = (1, 2, SMALL);
            joined(
                &encoded(dif, None, &OtherFiles::default(), how)
                    .unwrap()
                    .blob,
            )
        });
        let starts = slices::starts_of(expected.as_slice());
        let [expected, found] =
            [&expected, &found].map(|raw| SymCache::parse(raw.as_slice()).unwrap());
        let mut inlined = 0;
        for start in starts {
            let address = u64::from(start);
            let [expected, found] = [&expected, &found].map(|cache| answers(cache, address));
            let Some((outermost, calls)) = expected.split_last() else {
                continue;
            };
            let expected = [calls, &[without_line(outermost)]].concat();
            assert_eq!(found, expected, "{file} at {address:#x}");
            inlined += calls.len();
        }
        assert!(inlined > 50, "{file}: {inlined}");
    }
}

/// The property below found it: the calls inlined from a damaged type had a name or were left out,
/// depending on what had been asked before.
#[test]
fn calls_of_a_function_whose_type_is_damaged_are_in_every_answer() {
    const CALL: u64 = 0x16dd;
    let mut dif = fixture(FILES[0]);
    let at = (0.849_621_912_632_951 * dif.len() as f64) as usize;
    dif[at] = 2;
    let mut plain = Vec::new();
    Sym::write(&Object::parse(&dif).unwrap(), None, &mut plain).unwrap();
    let plain = AlignedBytes::copied(&plain).unwrap();
    let expected = answers(&SymCache::parse(plain.as_slice()).unwrap(), CALL);
    assert!(expected[0].0.starts_with("<missing type "), "{expected:?}");
    for workers in 1..4 {
        let how = (1, workers, SMALL);
        let joined = joined(
            &encoded(&dif, None, &OtherFiles::default(), how)
                .unwrap()
                .blob,
        );
        let found = answers(&SymCache::parse(joined.as_slice()).unwrap(), CALL);
        assert_eq!(found, expected, "{workers}");
    }
}

proptest! {
    // The types of a mutated file may refer to each other in circles, which the formatter of their
    // names follows until the process of the parser ends. So the files are always the same: those
    // of a seed without such a file.
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    /// A file that `symbolic` reads has the answers that it has there, or better ones, and a file
    /// that it refuses is read in parts or refused.
    #[test]
    fn a_mutated_pdb_has_the_answers_of_symbolic_or_is_read_in_parts(
        file in 0_usize..2,
        changes in vec((0.0..1.0, any::<u8>()), 1..12),
    ) {
        let mut dif = fixture(FILES[file]);
        for (place, byte) in changes {
            let at = (place * dif.len() as f64) as usize;
            dif[at] = byte;
        }
        let by_symbolic = crate::debuginfo::caught(|| {
            let mut plain = Vec::new();
            let object = Object::parse(&dif).ok()?;
            let written = Sym::write(&object, None, &mut plain);
            written.ok().map(|()| plain)
        });
        let found = crate::debuginfo::caught(|| {
            let parts = encoded(&dif, None, &OtherFiles::default(), (1, 2, SMALL));
            parts.map(|encoded| encoded.blob)
        });
        if let (Ok(Some(plain)), Ok(Ok(blob))) = (&by_symbolic, &found) {
            assert_answers(blob, plain, "mutated", has_all);
        }
        if let Ok(Some(_)) = by_symbolic {
            prop_assert!(matches!(found, Ok(Ok(_))), "{:?}", found.map(|found| found.is_ok()));
        }
        // Several workers and one give the same bytes.
        if let Ok(Ok(blob)) = found {
            let alone = encoded(&dif, None, &OtherFiles::default(), (1, 1, SMALL)).unwrap().blob;
            prop_assert!(alone == blob);
        }
    }
}
