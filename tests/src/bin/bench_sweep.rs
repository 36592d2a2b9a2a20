//! Prunes many records on the embedded endpoints, and reports the time, the memory and the price of
//! the reads in AWS.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_config::{BehaviorVersion, Region};
use aws_sdk_dynamodb::config::Credentials;
use clap::Parser;
use futures::stream::{StreamExt, TryStreamExt};
use local_stack::database::Database;
use local_stack::identity::{ACCOUNT, LOCAL};
use local_stack::meter::Meter;
use local_stack::queues::{QueueSpec, Queues};
use local_stack::{dynamodb, s3, sqs};
use serde_json::json;
use symdepot::adapters::aws::{AwsClients, DynamoRecords, QueueUrls, S3Blobs, S3Difs, SqsQueues};
use symdepot::cache::{Item, Revision, Stored};
use symdepot::flows::prune::{Pruner, Report};
use symdepot::flows::{Invocation, Settings};
use symdepot::ports::{Fault, RecordStore};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// The price of a million read request units of an on-demand table, in US dollars: AWS price list,
/// us-east-1, as of November 2024.
const DOLLARS_PER_MILLION_READ_UNITS: f64 = 0.125;

/// Concurrent writes while the table is filled.
const WRITES_IN_FLIGHT: usize = 32;

const TABLE: &str = "records";

/// Prunes many records on the embedded endpoints
#[derive(Debug, Parser)]
struct Arguments {
    /// The number of records
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    match measure(Arguments::parse().records).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            anstream::eprintln!("bench_sweep: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(records: u64) -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let mut tasks = JoinSet::new();
    let pruner = serve(folder.path(), &mut tasks).await?;
    let began = Instant::now();
    fill(&*pruner.records, records).await?;
    anstream::println!(
        "filled      {records} records in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    let filled = peak_bytes()?;
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let invocation = Invocation::new(
        "sweep".to_owned(),
        epoch,
        Duration::from_secs(86_400),
        [7; 32],
    );
    let began = Instant::now();
    let report = Box::pin(pruner.prune(&invocation, false)).await?;
    tell(&report, began.elapsed(), filled, peak_bytes()?);
    if let Some(failure) = report.failure() {
        Err(failure.into())
    } else if report.complete {
        Ok(())
    } else {
        Err("the pass was not completed".into())
    }
}

fn tell(report: &Report, took: Duration, filled: u64, peak: u64) {
    let units = f64::from(u32::try_from(report.read_units).unwrap_or(u32::MAX));
    let met: u64 = report.items.values().sum();
    anstream::println!("pruned      {met} items in {:.1} s", took.as_secs_f64());
    anstream::println!(
        "peak memory {} MB, {} MB after filling (store and pruner in one process)",
        peak >> 20,
        filled >> 20
    );
    anstream::println!(
        "read units  {units}, {:.4} dollars at {DOLLARS_PER_MILLION_READ_UNITS} per million",
        units * DOLLARS_PER_MILLION_READ_UNITS / 1e6
    );
}

/// Starts the embedded endpoints, and returns the pruner with clients of them.
async fn serve(
    folder: &std::path::Path,
    tasks: &mut JoinSet<()>,
) -> Result<Pruner, Box<dyn Error>> {
    let database = Database::open(folder)?;
    let queues = Queues::new(database.clone());
    let store = s3::Store::open(folder, database, queues.clone(), Vec::new()).await?;
    let tables = dynamodb::Tables::open(folder).await?;
    let end = std::future::pending;
    let (listener, s3_url) = listen().await?;
    tasks.spawn(s3::serve(listener, store, Meter::default(), end()));
    let (listener, dynamodb_url) = listen().await?;
    tasks.spawn(dynamodb::serve(
        listener,
        tables.clone(),
        Meter::default(),
        end(),
    ));
    let (listener, sqs_url) = listen().await?;
    tasks.spawn(sqs::serve(
        listener,
        queues.clone(),
        Meter::default(),
        end(),
    ));
    let text = |name: &str| json!({"AttributeName": name, "AttributeType": "S"});
    let key = |name: &str, kind: &str| json!({"AttributeName": name, "KeyType": kind});
    let properties = json!({
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [text("partition"), text("sort")],
        "KeySchema": [key("partition", "HASH"), key("sort", "RANGE")],
    });
    tables.create(TABLE, &properties).await?;
    let (s3, dynamodb, sqs) = (
        clients(&s3_url).await.s3,
        clients(&dynamodb_url).await.dynamodb,
        clients(&sqs_url).await.sqs,
    );
    let mut urls = Vec::new();
    for queue in ["eager", "uploads", "refresh"] {
        queues.create(QueueSpec::named(queue)).await?;
        urls.push(format!("{sqs_url}/{ACCOUNT}/{queue}"));
    }
    for bucket in ["caches", "uploads"] {
        s3.create_bucket().bucket(bucket).send().await?;
    }
    let [eager, uploads, refresh] = urls.try_into().map_err(|_| "three queues")?;
    let queues = QueueUrls {
        eager,
        uploads,
        refresh,
    };
    let difs = Arc::new(S3Difs::new(s3.clone(), "uploads"));
    Ok(Pruner {
        records: Arc::new(DynamoRecords::new(dynamodb, TABLE)),
        caches: Arc::new(S3Blobs::new(s3, "caches")),
        uploads: difs.clone(),
        listing: difs,
        queues: Arc::new(SqsQueues::new(sqs, queues)),
        settings: settings(),
    })
}

/// Returns the default settings without a rate limit, because the embedded table is slower than
/// AWS.
fn settings() -> Settings {
    Settings {
        sweep_read_units: 0,
        ..Settings::default()
    }
}

/// Writes this many entries, of which every tenth is outdated.
async fn fill(store: &dyn RecordStore, records: u64) -> Result<(), Box<dyn Error>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let writes = (0..records).map(|number| async move {
        let item = entry(number, now).map_err(|error| format!("{number}: {error}"))?;
        let key = item.key().ok_or("an entry has a key")?;
        let stored = Stored {
            revision: Revision::from_random(number),
            item,
        };
        let replaced = store.replace(&key, None, &stored).await;
        replaced.map(drop).map_err(|error: Fault| error.to_string())
    });
    futures::stream::iter(writes)
        .buffer_unordered(WRITES_IN_FLIGHT)
        .try_collect::<()>()
        .await?;
    Ok(())
}

/// Returns an entry of about 1 KB, as a build publishes it.
fn entry(number: u64, now: u64) -> Result<Item, serde_json::Error> {
    let features = json!({
        "has_debug_info": true, "has_unwind_info": true, "has_symbols": true, "has_sources": false, "srcsrv_vcs": "",
    });
    let dif = json!({"location": format!("global/builds/{number:012}/app.debug"), "etag": format!("{number:032x}")});
    let module = format!(
        "debug_id:{:08x}-0000-4000-8000-{number:012x}",
        number % 0xffff
    );
    let blob = json!({"path": format!("derived/symcache/v1/{number}/symcache/1"), "bytes": 100_000, "checksum": number});
    serde_json::from_value(json!({
        "type": "entry", "kind": "symcache", "last_used_at": now - number % 500_000,
        "module": {"scope": "global", "source": "uploads", "module": module},
        "ready": {
            "version": 1, "quality": "preferred", "rank": 0, "features": features, "arch": "x86_64",
            "file_type": "elf_debug", "blob": blob, "made_from": [dif], "derived_at": now,
            "converter": u32::from(!number.is_multiple_of(10)),
        },
        "considered": [dif],
        "candidates": [{
            "source": "uploads", "location": dif["location"], "size": 1_000_000, "duration_ms": 30,
            "download": {"status": "ok", "features": features},
        }],
    }))
}

async fn listen() -> Result<(TcpListener, String), std::io::Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    Ok((listener, url))
}

async fn clients(url: &str) -> AwsClients {
    let (id, secret) = (LOCAL.access_key_id, LOCAL.secret_access_key);
    let config = aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new(id, secret, None, None, "bench"))
        .endpoint_url(url)
        .load()
        .await;
    AwsClients::from_sdk_config(&config)
}

/// Returns the peak memory of this process.
fn peak_bytes() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .ok_or("/proc/self/status has no VmHWM")?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes << 10)
}
