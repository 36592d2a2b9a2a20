//! `prune`: removes unused data on a schedule.

mod handler;

use symdepot::runtime::{self, App, SourceUse};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    runtime::sandbox::hide()?;
    let pruner = App::from_env(SourceUse::Nothing).await?.pruner();
    runtime::run(|invocation, event| handler::handle(&pruner, invocation, event)).await
}
