//! Copies of DIFs from symbol servers are usable when the server is gone.

use crate::symbol_server::{DEBUG_FILE, SymbolServer};
use crate::{Running, bytes_of, crash};

#[tokio::test]
async fn a_stored_copy_is_derived_again_when_the_symbol_server_is_gone() {
    let server = SymbolServer::start([(DEBUG_FILE, bytes_of("elf/crash.debug"))]).await;
    let running =
        Running::start_with(|options| server.sought_by(options).variable("DERIVED_MAX_UNUSED", 0))
            .await;
    let client = running.client();
    crash::assert_symbolicated(&running.sample_answer().await);
    running.idle().await;
    drop(server);

    let report = client.prune(false).await.unwrap();
    assert_eq!(report["copies_retired"], 0, "{report:#}");
    let blobs = client.blobs().await.unwrap();
    assert!(
        !blobs.is_empty() && blobs.iter().all(|(path, _)| path.starts_with("copies/")),
        "{blobs:?}"
    );
    client.end_functions().await.unwrap();
    crash::assert_symbolicated(&running.sample_answer().await);
}
