//! Support for threads that run parsers: conversion of panics into error texts, and the stack size.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The stack size of each thread that parses, in bytes. Inlined calls nest, and each level takes
/// stack space.
pub const STACK_BYTES: usize = 32 << 20;

thread_local! {
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Stops printing panics in this process, and adds their source locations to the errors of
/// [`caught()`]. Intended for processes that only parse.
pub fn keep_panics_quiet() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string);
        PLACE.with(|slot| slot.replace(place));
    }));
}

/// Calls a function that may panic.
///
/// # Errors
///
/// The function panicked. The error is its message.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // State that a panic leaves inconsistent is dropped together with the parsed object.
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let place = PLACE
            .with(RefCell::take)
            .map(|place| format!(" at {place}"))
            .unwrap_or_default();
        format!("the parser panicked{place}: {}", text(&*payload))
    })
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
        assert!(
            reason.starts_with("the parser panicked") && reason.ends_with("index 7 out of bounds"),
            "{reason}"
        );
    }
}
