//! Support for threads that run parsers: conversion of panics into error texts, and the stack size.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};

use crate::domain::Missing;

/// The stack size of each thread that parses, in bytes. Inlined calls nest, and each level takes
/// stack space.
pub const STACK_BYTES: usize = 32 << 20;

/// The maximum length of the message of a panic in an error, in bytes: what follows it has to fit
/// into the detail of a cause.
const MESSAGE_BYTES: usize = 512;

thread_local! {
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Stops printing panics in this process, and adds their source locations to the errors of
/// [`caught()`]. Intended for processes that only parse.
pub fn keep_panics_quiet() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(shown);
        PLACE.with(|slot| slot.replace(place));
    }));
}

/// Calls a function that may panic.
///
/// # Errors
///
/// The function panicked. The error is its message, with the next step.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // State that a panic leaves inconsistent is dropped together with the parsed object.
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let place = PLACE
            .with(RefCell::take)
            .map(|place| format!(" at {place}"))
            .unwrap_or_default();
        let message = text(&*payload);
        let message = &message[..message.floor_char_boundary(MESSAGE_BYTES)];
        format!("the parser panicked{place}: {message}; {}", Missing::REPORT)
    })
}

/// Returns a place without the folders of the machine that this program was built on.
fn shown(place: &Location<'_>) -> String {
    let (file, line, column) = (within_crate(place.file()), place.line(), place.column());
    format!("{file}:{line}:{column}")
}

/// Returns the path of a source file from the folder of its crate on, or else its last components.
fn within_crate(file: &str) -> &str {
    const SOURCES: &str = "/src/";
    const SHOWN: usize = 2;
    let before = match file.rfind(SOURCES) {
        Some(at) => file[..at].rfind('/'),
        None => file.rmatch_indices('/').map(|(at, _)| at).nth(SHOWN - 1),
    };
    before.map_or(file, |at| &file[at + 1..])
}

fn text(payload: &(dyn Any + Send)) -> &str {
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    owned
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_with_its_message() {
        assert_eq!(caught(|| 1), Ok(1));
        let reason = caught(|| panic!("index {} out of bounds", 7)).unwrap_err();
        let expected = format!(": index 7 out of bounds; {}", Missing::REPORT);
        assert!(
            reason.starts_with("the parser panicked") && reason.ends_with(&expected),
            "{reason}"
        );
    }

    #[test]
    fn a_long_message_leaves_room_for_the_next_step() {
        let message = "ä".repeat(Missing::MAX_DETAIL_BYTES);
        let reason = caught(|| panic!("{message}")).unwrap_err();
        let detail = Missing::malformed(reason).detail;
        assert!(detail.ends_with(Missing::REPORT), "{detail}");
    }

    #[test]
    fn a_place_does_not_show_where_the_program_was_built() {
        let registry = "/build/cargo/registry/src/index.crates.io-1949cf8c6b5b557f";
        for (file, expected) in [
            (
                format!("{registry}/symbolic-debuginfo-13.9.0/src/function_builder.rs"),
                "symbolic-debuginfo-13.9.0/src/function_builder.rs",
            ),
            (
                format!("{registry}/pdb2-0.10.1/src/symbol/mod.rs"),
                "pdb2-0.10.1/src/symbol/mod.rs",
            ),
            (
                "/rustc/0a1b2c/library/core/src/slice/index.rs".to_owned(),
                "core/src/slice/index.rs",
            ),
            (
                "shared/src/debuginfo/pipe.rs".to_owned(),
                "shared/src/debuginfo/pipe.rs",
            ),
            ("/home/me/src/lib.rs".to_owned(), "me/src/lib.rs"),
            ("/home/me/target/out/tables.rs".to_owned(), "out/tables.rs"),
            ("build.rs".to_owned(), "build.rs"),
        ] {
            assert_eq!(within_crate(&file), expected);
        }
    }
}
