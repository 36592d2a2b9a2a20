//! Contract tests of the ports: every implementation is tested, in memory and on the embedded
//! endpoints of the local stack. Each test has its own store.
//!
//! If `SYMDEPOT_TEST_ENDPOINT` is set, the same tests run against that endpoint, which must
//! implement the AWS protocols; otherwise they are skipped. Each test creates its own buckets and
//! tables, and does not delete them. `make test-moto` runs the tests against moto, which is
//! independent of our code; `deviations.rs` lists the known differences between moto and AWS.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod aws_only;
mod backends;
mod deviations;
mod newer;
mod script;
mod scripted;
mod secrets;
mod servers;

use backends::Place;
use symdepot_tests::contract;

/// Generates a test of each promise for each place.
macro_rules! promises {
    ($port:ident: $($promise:ident),+ $(,)?) => {
        mod $port {
            use super::{Place, backends, contract, deviations};

            promises!(@place in_memory, Place::Memory, $port: $($promise),+);
            promises!(@place on_the_local_stack, Place::LocalStack, $port: $($promise),+);
            promises!(@place on_the_endpoint, Place::Endpoint, $port: $($promise),+);
        }
    };
    (@place $name:ident, $place:expr, $port:ident: $($promise:ident),+) => {
        mod $name {
            use super::{Place, backends, contract, deviations};

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() {
                    if let Some((port, _keep)) = backends::$port($place).await {
                        let test = contract::$port::$promise(&port);
                        match $place {
                            Place::Endpoint => deviations::check(stringify!($promise), test).await,
                            Place::Memory | Place::LocalStack => test.await,
                        }
                    }
                }
            )+
        }
    };
}

promises!(
    records: an_item_comes_back_as_it_was_written,
    where_nothing_is_stored_nothing_is_found,
    many_keys_are_answered_in_their_order,
    more_than_one_answer_holds_is_loaded,
    a_large_item_is_stored_and_one_too_large_refused,
    a_write_must_name_the_revision_that_is_stored,
    a_repeated_write_is_shown_its_own_effect,
    of_racing_writers_one_wins,
    a_writer_and_a_remover_do_not_both_win,
    a_removal_must_name_the_revision_that_is_stored,
    an_item_that_was_made_again_is_another_one,
    a_partition_is_listed_in_the_order_of_its_sort_keys,
    a_walk_over_the_pages_meets_every_item_once,
    segments_share_out_the_items,
    pages_tell_what_reading_them_consumed,
);

promises!(
    blobs: a_blob_comes_back_as_it_was_written,
    where_no_blob_is_there_is_none,
    a_range_is_cut_to_the_blob,
    a_blob_is_written_once,
    of_racing_writers_one_wins,
    a_large_blob_is_written_once_too,
    a_removed_blob_is_gone,
    many_blobs_are_removed_at_once,
    a_listing_is_in_byte_order,
    listings_continue_each_other,
);

promises!(
    difs: a_dif_is_read_in_exact_ranges,
    a_range_beyond_the_dif_is_a_fault,
    a_dif_that_is_not_there_is_missing,
    a_dif_that_changes_while_it_is_read_is_noticed,
    difs_are_listed_page_by_page,
);
