//! Hostile UUID maps, symbol maps and line maps: see `symdepot::debuginfo::hostile`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| symdepot::debuginfo::hostile::map(bytes));
