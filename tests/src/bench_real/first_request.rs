//! The first request of a new build, whose debug file a symbol server on the same machine has.

use std::path::Path;
use std::time::Instant;

use serde_json::json;

use super::program::Program;
use super::report::{Report, Row};
use super::{BenchError, agreement, percentile};
use crate::hostile_server::{Behavior, HostileServer};
use crate::stack::{Binaries, LocalStack, Options};

/// Frames of the request.
const FRAMES: usize = 30;

/// Sends a request to a service that has nothing, as often as `runs` says, each time to another
/// one. Adds the median of the time until it is answered with names.
///
/// # Errors
/// It is not answered with names.
pub async fn measure(
    binaries: &Binaries,
    program: &Program,
    debug: &Path,
    (runs, seed): (usize, u64),
    report: &mut Report,
) -> Result<(), BenchError> {
    let file = std::fs::read(debug).map_err(BenchError::file(debug))?;
    let server = HostileServer::start(vec![(".debug", Behavior::file("", &file))]).await;
    let server = server.map_err(BenchError::file(debug))?;
    drop(file);
    let sources = json!([{"id": "server", "type": "http", "url": server.url()}]);
    let request = agreement::request(program, &program.addresses(FRAMES, seed));
    let cache = debug.parent().unwrap_or(debug);
    let mut seconds = Vec::new();
    for _ in 0..runs.max(1) {
        let folder = tempfile::TempDir::new_in(cache).map_err(BenchError::file(cache))?;
        let options = Options::new(binaries.clone(), folder.path())
            .variable("SOURCES", &sources)
            .variable("ALLOW_PRIVATE_SOURCES", 1);
        let stack = LocalStack::start(options).await?;
        let began = Instant::now();
        let completed = stack.client().completed("", &request).await?;
        seconds.push(began.elapsed().as_secs_f64());
        stack.stop().await?;
        let status = &completed["stacktraces"][0]["frames"][0]["status"];
        if status != "symbolicated" {
            return Err(BenchError::Answer {
                what: "the first frame",
                found: completed.to_string(),
            });
        }
    }
    let group = format!("First request of a new build of {}", program.name);
    let what = "from a symbol server on this machine";
    let median = percentile(&seconds, 50);
    report.add(&group, Row::new(what, format!("{median:.2} s")));
    Ok(())
}
