//! Hostile links to source files, and rules for them: see `symdepot::symbolicate::hostile`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| symdepot::symbolicate::hostile::link(bytes));
