//! Queues are independent: builds that a request waits for are not delayed by the uploads queue.

use futures::{StreamExt, stream};

use crate::made_up::MadeUp;
use crate::symbol_server::{DEBUG_FILE, SymbolServer};
use crate::{Running, bytes_of, crash};

/// Uploads of other modules before the crash.
const UPLOADS: u32 = 2000;

/// Uploads in flight at the same time.
const UPLOADS_AT_A_TIME: usize = 16;

#[tokio::test]
async fn a_crash_is_symbolicated_while_2000_uploads_of_other_modules_wait() {
    let server = SymbolServer::start([(DEBUG_FILE, bytes_of("elf/crash.debug"))]).await;
    let running = Running::start_with(|options| server.sought_by(options)).await;
    let client = running.client();
    let uploads = (1..=UPLOADS).map(|number| async move {
        let module = MadeUp::new(number, 3);
        client.upload(&module.key(), module.file()).await.unwrap();
    });
    stream::iter(uploads)
        .buffer_unordered(UPLOADS_AT_A_TIME)
        .collect::<()>()
        .await;

    // The first request completes; it is not pending in between.
    crash::assert_symbolicated(&running.sample_answer().await);
    let stats = client.stats().await.unwrap();
    let waiting = stats.queue("UploadsQueue").visible;
    assert!(
        waiting > u64::from(UPLOADS) / 2,
        "only {waiting} uploads are in the queue: {stats:#?}"
    );
    assert_eq!(server.asked_for(DEBUG_FILE), 1);
    // The remaining uploads are not needed.
    running.stack.stop().await.unwrap();
}
