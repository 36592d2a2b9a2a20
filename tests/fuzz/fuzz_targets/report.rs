//! Hostile crash reports: see `symdepot::api::report::hostile`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| symdepot::api::report::hostile::report(bytes));
