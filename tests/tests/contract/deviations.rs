//! What moto is known to do otherwise than AWS, each with its reason. A promise that moto breaks no
//! more fails its test: then it belongs off this list, and moto has become the better witness.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;

/// A promise that moto breaks: its name, what its test then says, and why.
struct Deviation {
    promise: &'static str,
    says: &'static str,
    reason: &'static str,
}

/// The deviations of moto 5.2.5.
const OF_MOTO: [Deviation; 3] = [
    Deviation {
        promise: "keys_that_xml_cannot_hold_are_listed",
        says: "PutObject",
        reason: "it routes by the decoded path, and finds no route for one with a line feed: PutObject answers 404",
    },
    Deviation {
        promise: "pages_tell_what_reading_them_consumed",
        says: "units for",
        reason: "it says the same number for every page",
    },
    Deviation {
        promise: "who_may_not_read_is_denied_and_learns_nothing_of_absence",
        says: "unwrap_err",
        reason: "it looks at no signature: whoever asks is told what is there and what is not",
    },
];

/// Tests a promise on the endpoint: it must be kept, or else be broken as is known.
pub(crate) async fn check(promise: &str, test: impl Future<Output = ()>) {
    let is_moto = std::env::var("SYMDEPOT_TEST_ENDPOINT_IS").is_ok_and(|name| name == "moto");
    let known = OF_MOTO
        .iter()
        .find(|deviation| is_moto && deviation.promise == promise);
    let Some(Deviation { says, reason, .. }) = known else {
        return test.await;
    };
    match AssertUnwindSafe(test).catch_unwind().await {
        Ok(()) => panic!("moto keeps {promise} now ({reason}): take it off the list"),
        Err(panic) => {
            let said = text_of(&*panic);
            assert!(
                said.contains(says),
                "moto breaks {promise} in another way than is known ({reason}): {said}"
            );
        }
    }
}

/// Returns what a panic said.
fn text_of(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or_default()
}
