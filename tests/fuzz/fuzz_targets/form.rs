//! Hostile forms of crash files: see `symdepot::api::crash::hostile`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| symdepot::api::crash::hostile::form(bytes));
