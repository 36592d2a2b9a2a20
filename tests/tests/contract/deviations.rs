//! Known differences between moto and AWS, each with its reason. If moto starts to keep a promise
//! of this list, the test of the promise fails, and the entry must be removed.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;

/// A promise that moto breaks: its name, a part of its test's panic message, and the reason.
struct Deviation {
    promise: &'static str,
    says: &'static str,
    reason: &'static str,
}

/// The deviations of moto 5.2.5.
const OF_MOTO: [Deviation; 4] = [
    Deviation {
        promise: "keys_that_xml_cannot_hold_are_listed",
        says: "PutObject",
        reason: "moto routes by the decoded path and has no route for a path with a line feed: PutObject responds with 404",
    },
    Deviation {
        promise: "pages_report_the_consumed_read_units",
        says: "units for",
        reason: "moto returns the same number for every page",
    },
    Deviation {
        promise: "a_wrong_signature_is_denied_and_does_not_reveal_absence",
        says: "unwrap_err",
        reason: "moto does not check signatures: every caller learns which keys exist",
    },
    Deviation {
        promise: "many_blobs_are_removed_at_once",
        says: "unwrap_err",
        reason: "moto accepts more than 1,000 keys in a DeleteObjects call",
    },
];

/// Tests a promise on the endpoint: it must be kept, or broken in the known way.
pub(crate) async fn check(promise: &str, test: impl Future<Output = ()>) {
    let is_moto = std::env::var("SYMDEPOT_TEST_ENDPOINT_IS").is_ok_and(|name| name == "moto");
    let known = OF_MOTO
        .iter()
        .find(|deviation| is_moto && deviation.promise == promise);
    let Some(Deviation { says, reason, .. }) = known else {
        return test.await;
    };
    match AssertUnwindSafe(test).catch_unwind().await {
        Ok(()) => {
            panic!("moto keeps {promise} now ({reason}): remove it from the list of deviations")
        }
        Err(panic) => {
            let said = text_of(&*panic);
            assert!(
                said.contains(says),
                "moto breaks {promise} in an unknown way (known: {reason}): {said}"
            );
        }
    }
}

/// Returns the message of a panic.
fn text_of(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or_default()
}
