//! Measures the start of a function, from the start of its process to its first request for an
//! event, and the size of its binary.

use std::path::PathBuf;

use reqwest::Method;

use super::report::{Report, Row, bytes, milliseconds};
use super::{BenchError, PATIENCE, say};
use crate::stack::{Binaries, LocalStack, checkout};

/// The maximum size of a stripped binary.
const MAX_BYTES: u64 = 15_000_000;

/// Starts each function this many times, and measures the size of the binaries for deployment, if
/// they were built.
///
/// # Errors
/// A function does not respond.
pub async fn measure(
    stack: &LocalStack,
    binaries: &Binaries,
    starts: usize,
    report: &mut Report,
) -> Result<(), BenchError> {
    say("starts", &format!("{starts} cold starts of each function"));
    let client = stack.client();
    client.clear_stats().await?;
    for number in 0..starts.max(1) {
        client.end_functions().await?;
        let request = client.request(Method::GET, "/healthcheck");
        client
            .send("the health check", request)
            .await?
            .expect(200, "the health check")?;
        client.prune(true).await?;
        // An upload that is processed immediately.
        client
            .upload(&format!("global/bench/nothing-{number}"), Vec::new())
            .await?;
        client.idle(PATIENCE).await?;
    }
    let stats = client.stats().await?;
    let group = "Functions";
    for name in ["symbolicate", "derive", "prune"] {
        let init = stats.function(name).init_ms;
        let row = Row::new(
            format!("{name}: start to first event, p50"),
            milliseconds(init.p50),
        );
        report.add(group, row.target("≤ 20 ms", init.p50 <= 20.0));
    }
    for name in ["symbolicate", "derive", "prune"] {
        match deployed(name) {
            Some((path, size)) => {
                let row = Row::new(format!("{name}: size of {}", path.display()), bytes(size));
                report.add(group, row.target("≤ 15 MB", size <= MAX_BYTES));
            }
            None => {
                let size =
                    std::fs::metadata(binaries.get(name)).map_or(0, |metadata| metadata.len());
                report.add(
                    group,
                    Row::new(
                        format!(
                            "{name}: size, not stripped (`make build` builds it for deployment)"
                        ),
                        bytes(size),
                    ),
                );
            }
        }
    }
    Ok(())
}

/// Returns the binary for deployment, relative to the checkout, and its size.
fn deployed(name: &str) -> Option<(PathBuf, u64)> {
    let paths = [
        format!("target/release/{name}"),
        format!("target/lambda/{name}/bootstrap"),
    ];
    paths.iter().find_map(|path| {
        Some((
            PathBuf::from(path),
            std::fs::metadata(checkout().join(path)).ok()?.len(),
        ))
    })
}
