//! Hostile source lines in slices: see `symdepot::debuginfo::hostile`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| symdepot::debuginfo::hostile::source_slice(bytes));
