//! Hostile forms as they are sent: see `symbolicate::hostile`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| symbolicate::hostile::multipart(bytes));
