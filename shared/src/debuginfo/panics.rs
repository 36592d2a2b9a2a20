//! What parsers do to the threads they run on: panics, turned into reasons, and stacks.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The stack of each thread that parses, in bytes: inlined calls nest, and each level takes some.
pub const STACK_BYTES: usize = 32 << 20;

thread_local! {
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Makes panics silent in this process, and their places part of the reasons. For processes that
/// only parse.
pub fn keep_panics_quiet() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string);
        PLACE.with(|slot| slot.replace(place));
    }));
}

/// Calls what may panic; returns the reason if it does.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // What a panic leaves behind is dropped with the object that was parsed.
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
    fn a_panic_becomes_a_reason() {
        assert_eq!(caught(|| 1), Ok(1));
        let reason = caught(|| panic!("index {} out of bounds", 7)).unwrap_err();
        assert!(
            reason.starts_with("the parser panicked") && reason.ends_with("index 7 out of bounds"),
            "{reason}"
        );
    }
}
