//! Hostile definitions of symbol servers: see `symdepot::symbolicate::hostile`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| symdepot::symbolicate::hostile::source(bytes));
