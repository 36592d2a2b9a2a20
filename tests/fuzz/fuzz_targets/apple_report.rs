//! Hostile crash reports, in text and in JSON.

#![no_main]

use libfuzzer_sys::fuzz_target;
use symdepot::api::crash::apple::parse_report;

fuzz_target!(|bytes: &[u8]| drop(parse_report(bytes)));
