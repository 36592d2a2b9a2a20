//! Hostile listings of Sentry: see `symdepot::adapters::http::hostile`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| symdepot::adapters::http::hostile::listing(bytes));
