//! Contract tests of the ports: every implementation is tested, in memory and on the embedded
//! endpoints of the local stack. Each test has its own store.
//!
//! If `SYMDEPOT_TEST_ENDPOINT` is set, the same tests run against that endpoint, which must
//! implement the AWS protocols; otherwise they are skipped. Each test creates its own buckets and
//! tables, and does not delete them. `make test-moto` runs the tests against moto, which is
//! independent of our code; `deviations.rs` lists the known differences between moto and AWS.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

/// Generates a test on the local stack and one on the endpoint for each function.
macro_rules! on_aws {
    ($($promise:ident),+ $(,)?) => {
        mod on_the_local_stack {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                super::$promise(crate::backends::Aws::on_the_local_stack().await).await;
            })+
        }
        mod on_the_endpoint {
            use crate::deviations;

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                if let Some(aws) = crate::backends::Aws::on_the_endpoint().await {
                    deviations::check(stringify!($promise), super::$promise(aws)).await;
                }
            })+
        }
    };
}

mod aws_only;
mod backends;
mod buckets;
mod deviations;
mod fetching;
mod hostile_servers;
mod links;
mod newer;
mod ranges;
mod remote_files;
mod roles;
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
    records: an_item_reads_back_as_written,
    absent_items_are_not_found,
    many_keys_are_loaded_in_order,
    items_that_exceed_one_response_are_loaded,
    a_large_item_is_stored_and_a_larger_one_refused,
    a_write_must_name_the_revision_that_is_stored,
    a_repeated_write_succeeds_until_another_one_replaces_it,
    one_of_several_racing_writers_wins,
    a_writer_and_a_remover_do_not_both_win,
    a_removal_must_name_the_revision_that_is_stored,
    a_recreated_item_rejects_its_old_revision,
    a_partition_is_listed_in_the_order_of_its_sort_keys,
    paging_visits_every_item_once,
    segments_partition_the_items,
    pages_report_the_consumed_read_units,
);

promises!(
    blobs: a_blob_reads_back_as_written,
    an_absent_blob_reads_as_none,
    a_range_is_truncated_to_the_blob,
    a_blob_is_written_once,
    one_of_several_racing_writers_wins,
    a_large_blob_is_written_once,
    a_removed_blob_is_gone,
    many_blobs_are_removed_at_once,
    a_listing_is_in_byte_order,
    listings_continue_each_other,
);

promises!(
    difs: a_dif_is_read_in_exact_ranges,
    a_range_beyond_the_dif_is_a_fault,
    an_absent_dif_is_missing,
    a_dif_change_during_a_read_is_detected,
    difs_are_listed_page_by_page,
);
