//! Hostile minidumps: see `symdepot::unwind::hostile`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| symdepot::unwind::hostile::dump(bytes));
