//! Latencies of requests: warm, through the gateway and in the handler, and after a cold start.
//! What warm requests cost beside the handler, and how many there are in a second.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::Value;

use super::program::Program;
use super::report::{Report, Row, milliseconds};
use super::{Arguments, BenchError, PATIENCE, agreement, percentile, say};
use crate::stack::{Client, LocalStack, Process};

/// Frames of a request.
const FRAMES: usize = 30;

/// The number of clients that send requests at the same time.
const CONNECTIONS: usize = 4;

/// The target for the processor time of a warm request beyond the handler's, in milliseconds.
const BESIDE_THE_HANDLER: f64 = 0.6;

/// Measures requests of 30 frames in one module. Returns the mean time in the handler of a warm
/// one, in milliseconds.
///
/// # Errors
/// A request is not completed.
pub async fn measure(
    stack: &LocalStack,
    program: &Program,
    arguments: &Arguments,
    report: &mut Report,
) -> Result<f64, BenchError> {
    say("requests", &format!("{FRAMES} frames in {}", program.name));
    let client = stack.client();
    let request = agreement::request(program, &program.addresses(FRAMES, arguments.seed));
    let group = group(program);

    let mut cold = Vec::new();
    for _ in 0..arguments.cold.max(1) {
        client.end_functions().await?;
        cold.push(timed(client, &request).await?);
    }
    let p50 = percentile(&cold, 50);
    report.add(
        &group,
        Row::new(
            "first request after all functions were stopped, p50",
            milliseconds(p50),
        )
        .target("≤ 100 ms", p50 <= 100.0),
    );
    report.add(
        &group,
        Row::new("the slowest of these", milliseconds(percentile(&cold, 100))),
    );

    // An instance caches records for some seconds: the requests follow a first one immediately.
    client.end_functions().await?;
    timed(client, &request).await?;
    client.clear_stats().await?;
    let logged = stack.log_of("symbolicate").len();
    let mut warm = Vec::new();
    let before = processor_time(stack);
    for _ in 0..arguments.requests.max(1) {
        warm.push(timed(client, &request).await?);
    }
    let used = processor_time(stack).saturating_sub(before);
    let stats = client.stats().await?;
    let handler = handler_times(
        stack
            .log_of("symbolicate")
            .get(logged..)
            .unwrap_or_default(),
    );
    if handler.len() < warm.len() {
        return Err(BenchError::Answer {
            what: "the log of symbolicate",
            found: format!("{} times for {} requests", handler.len(), warm.len()),
        });
    }
    let p50 = percentile(&handler, 50);
    report.add(
        &group,
        Row::new("warm, in the handler, p50", milliseconds(p50)).target("≤ 0.5 ms", p50 <= 0.5),
    );
    report.add(
        &group,
        Row::new(
            "warm, in the handler, p99",
            milliseconds(percentile(&handler, 99)),
        ),
    );
    let p50 = percentile(&warm, 50);
    report.add(
        &group,
        Row::new("warm, through the gateway, p50", milliseconds(p50)).target("≤ 3 ms", p50 <= 3.0),
    );
    report.add(
        &group,
        Row::new(
            "warm, through the gateway, p99",
            milliseconds(percentile(&warm, 99)),
        ),
    );
    let in_handler = handler.iter().sum::<f64>() / handler.len() as f64;
    let beside = used.as_secs_f64() * 1000.0 / warm.len() as f64 - in_handler;
    report.add(
        &group,
        Row::new(
            "warm, processor time of all processes beyond the handler's, with a log line each",
            milliseconds(beside),
        ),
    );
    let calls = stats.aws_calls();
    report.add(
        &group,
        Row::new(
            format!("AWS calls of {} warm requests", warm.len()),
            calls.to_string(),
        )
        .target("0", calls == 0),
    );
    let per_second = per_second(client, &request, arguments.requests).await?;
    report.add(
        &group,
        Row::new(
            format!("warm requests per second, {CONNECTIONS} connections"),
            format!("{per_second:.0}"),
        ),
    );
    Ok(in_handler)
}

/// Measures what the processes of `symdepot serve` use for a warm request beyond `in_handler`, the
/// mean time in the handler in milliseconds. The program logs no request, unlike the stack of
/// [`measure`], which needs the log for the times in the handler.
///
/// # Errors
/// A request is not completed.
pub async fn in_one_program(
    stack: &LocalStack,
    program: &Program,
    arguments: &Arguments,
    in_handler: f64,
    report: &mut Report,
) -> Result<(), BenchError> {
    say("requests", "to `symdepot serve`");
    let client = stack.client();
    let request = agreement::request(program, &program.addresses(FRAMES, arguments.seed));
    // The first request starts the function, and those after it warm up.
    let requests = arguments.requests.max(1);
    for _ in 0..requests.div_ceil(10) {
        timed(client, &request).await?;
    }
    let before = processor_time(stack);
    for _ in 0..requests {
        timed(client, &request).await?;
    }
    let used = processor_time(stack).saturating_sub(before);
    let beside = used.as_secs_f64() * 1000.0 / requests as f64 - in_handler;
    let group = group(program);
    report.add(
        &group,
        Row::new(
            "warm, processor time of `symdepot serve` beyond the handler's",
            milliseconds(beside),
        )
        .target("≤ 0.6 ms", beside <= BESIDE_THE_HANDLER),
    );
    let per_second = per_second(client, &request, requests).await?;
    report.add(
        &group,
        Row::new(
            format!("warm requests per second to it, {CONNECTIONS} connections"),
            format!("{per_second:.0}"),
        ),
    );
    Ok(())
}

/// Returns the heading of the numbers about requests for a program.
fn group(program: &Program) -> String {
    format!("Requests of {FRAMES} frames, one module ({})", program.name)
}

/// Returns the processor time that the processes of a stack have used. The client is not one of
/// them.
fn processor_time(stack: &LocalStack) -> Duration {
    stack.processes().iter().map(Process::cpu_time).sum()
}

/// Sends requests over several connections at the same time, and returns their number per second.
async fn per_second(client: &Client, request: &Value, requests: usize) -> Result<f64, BenchError> {
    let each = requests.div_ceil(CONNECTIONS).max(1);
    let send = async |count: usize| -> Result<(), BenchError> {
        for _ in 0..count {
            timed(client, request).await?;
        }
        Ok(())
    };
    // As many instances as there are connections, each of which has answered.
    let at_once =
        |count: usize| futures::future::try_join_all((0..CONNECTIONS).map(|_| send(count)));
    at_once(each.div_ceil(10)).await?;
    let began = Instant::now();
    at_once(each).await?;
    Ok((each * CONNECTIONS) as f64 / began.elapsed().as_secs_f64())
}

/// Measures requests of one client for a ready Microsoft SymCache.
///
/// # Errors
/// It is not served.
pub async fn ms_symcache(
    stack: &LocalStack,
    requests: usize,
    report: &mut Report,
) -> Result<(), BenchError> {
    let client = stack.client();
    let id = "ee78a075f42847b888239eed88fa9c34";
    let key = format!("global/symcache/bench.pdb/{id}1/bench.pdb-v3.1.0.symcache");
    client
        .upload(&key, b"stands for a SymCache".to_vec())
        .await?;
    client.idle(PATIENCE).await?;
    client.end_functions().await?;
    let path = format!("/v3.1.0/bench.pdb/{id}/1");
    // The redirect to S3 is not measured: the request names a file that the client already has.
    let ask = async || {
        let request = client.request(Method::GET, &path.replace("3.1.0", "3.2.0"));
        let request = request.header("if-version-exceeds", "3.1.0");
        let began = Instant::now();
        let reply = client.send("a Microsoft SymCache", request).await?;
        let took = began.elapsed().as_secs_f64() * 1000.0;
        match reply.status {
            304 => Ok(took),
            status => Err(BenchError::Answer {
                what: "a request for a Microsoft SymCache",
                found: format!("{status} {}", reply.text),
            }),
        }
    };
    ask().await?;
    client.clear_stats().await?;
    let mut warm = Vec::new();
    for _ in 0..requests.max(1) {
        warm.push(ask().await?);
    }
    let group = "Requests for a Microsoft SymCache";
    let p50 = percentile(&warm, 50);
    let row = Row::new("warm, through the gateway, p50", milliseconds(p50));
    report.add(group, row.target("≤ 3 ms", p50 <= 3.0));
    let calls = client.stats().await?.aws_calls();
    let row = Row::new(
        format!("AWS calls of {} such requests", warm.len()),
        calls.to_string(),
    );
    report.add(group, row.target("0", calls == 0));
    Ok(())
}

/// Sends a request, and returns the time until the complete response is received, in milliseconds.
async fn timed(client: &Client, request: &Value) -> Result<f64, BenchError> {
    let began = Instant::now();
    let answer = client.completed("", request).await?;
    let took = began.elapsed();
    if answer["modules"][0]["debug_status"] != "found" {
        return Err(BenchError::Answer {
            what: "the module of the response",
            found: answer["modules"].to_string(),
        });
    }
    Ok(took.as_secs_f64() * 1000.0)
}

/// Returns the times that the function itself measured, in milliseconds.
fn handler_times(log: &str) -> Vec<f64> {
    let time = |line: &str| {
        let line: Value = serde_json::from_str(line).ok()?;
        let field = line.get("handler_us")?;
        // The time is measured in 128 bits, which the log writes as text.
        field.as_f64().or_else(|| field.as_str()?.parse().ok())
    };
    log.lines()
        .filter_map(time)
        .map(|microseconds| microseconds / 1000.0)
        .collect()
}
