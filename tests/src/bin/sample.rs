//! The first crash: uploads the debug file of a sample program, sends a crash of it, and prints the
//! stack before and after symbolication.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use clap::Parser;
use serde_json::Value;
use symdepot_tests::stack::{Addresses, Client, StackError, checkout, fixture, until};

/// The key that the sample's debug file is uploaded under.
const KEY: &str = "global/sample/crash.debug";

const TITLE: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const ADDRESS: Style = AnsiColor::Yellow.on_default();
const FUNCTION: Style = AnsiColor::Green.on_default().bold();
const PLACE: Style = AnsiColor::Cyan.on_default();
const COMMAND: Style = AnsiColor::Blue.on_default();

/// Uploads a sample program's debug file, sends a crash of it, and prints the stack before and
/// after symbolication
#[derive(Debug, Parser)]
struct Arguments {
    /// The stack.json in the data directory of the stack
    #[arg(long, default_value = ".data/stack.json")]
    stack: PathBuf,
    /// The process id of the stack, if it was just started: the file of another process is ignored
    #[arg(long)]
    pid: Option<u32>,
    /// How long to wait for the stack, in seconds
    #[arg(long, default_value_t = 60)]
    wait_seconds: u64,
}

#[derive(Debug, thiserror::Error)]
enum SampleError {
    #[error(transparent)]
    Stack(#[from] StackError),
    #[error("the stack is not running: {} does not exist after {waited} s; start it with `make run`", path.display())]
    NotUp { path: PathBuf, waited: u64 },
    #[error("{} is the file of a stack that no longer responds at {gateway}; start it with `make run`", path.display())]
    Stale { path: PathBuf, gateway: String },
    #[error("cannot read {}: {source}; run this from the checkout", path.display())]
    Fixture {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{KEY} was uploaded, but its state is {state}; `curl {explain}` shows why")]
    NotApplied { state: String, explain: String },
    #[error("the response has no stack trace: {0}")]
    NoStack(String),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let red = AnsiColor::Red.on_default().bold();
            anstream::eprintln!("{red}sample:{red:#} {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), SampleError> {
    let client = connect(&arguments).await?;
    let crash = read_json("crash.json")?;
    let upload = upload(&client).await?;
    let first = Instant::now();
    let answer = client.completed("", &crash).await?;
    let first = first.elapsed();
    let warm = Instant::now();
    client.completed("", &crash).await?;
    let warm = warm.elapsed();

    print_before(&crash);
    print_after(&crash, &answer)?;
    print_numbers(upload, first, warm);
    print_commands(client.addresses());
    Ok(())
}

/// Waits until the stack is ready.
async fn connect(arguments: &Arguments) -> Result<Client, SampleError> {
    let path = &arguments.stack;
    let mut said = false;
    let ready = until(
        "the start of the stack",
        Duration::from_secs(arguments.wait_seconds.max(1)),
        async || {
            let started_now =
                |addresses: &Addresses| arguments.pid.is_none_or(|pid| pid == addresses.pid);
            let addresses = Addresses::read(path).ok().filter(started_now);
            if addresses.is_none() && !said {
                anstream::eprintln!("{DIM}waiting for the stack …{DIM:#}");
                said = true;
            }
            addresses
        },
    );
    let Ok(addresses) = ready.await else {
        return Err(SampleError::NotUp {
            path: path.clone(),
            waited: arguments.wait_seconds.max(1),
        });
    };
    let gateway = addresses.gateway.clone();
    let client = Client::new(addresses)?.as_operator();
    // The file of a stack that was killed still exists.
    client.stats().await.map_err(|_| SampleError::Stale {
        path: path.clone(),
        gateway,
    })?;
    Ok(client)
}

/// Uploads the debug file unless it exists. Returns the time until it was ready to use.
async fn upload(client: &Client) -> Result<Option<Duration>, SampleError> {
    let path = fixture("elf/crash.debug");
    let uploaded = client.etag(KEY).await?;
    let explained = client.explain(KEY).await?;
    let same = |name: &str| {
        explained
            .body
            .get(name)
            .and_then(Value::as_str)
            .map(|text| text.trim_matches('"').to_owned())
    };
    if uploaded.is_some()
        && uploaded == same("etag")
        && same("state").as_deref() == Some("applied")
        && is_same(&path, uploaded.as_deref())?
    {
        return Ok(None);
    }
    anstream::eprintln!(
        "{DIM}uploading {} to s3://{}/{KEY} …{DIM:#}",
        shown(&path),
        client.addresses().uploads()
    );
    let began = Instant::now();
    client.upload_file(KEY, &path).await?;
    client.idle(Duration::from_secs(60)).await?;
    let took = began.elapsed();
    let explained = client.explain(KEY).await?;
    match explained.body.get("state").and_then(Value::as_str) {
        Some("applied") => Ok(Some(took)),
        state => {
            let reason = explained.body.get("reason").and_then(Value::as_str);
            let state = [state, reason]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(": ");
            let state = if state.is_empty() {
                "nothing".to_owned()
            } else {
                state
            };
            let explain = format!("{}/explain?key={KEY}", client.addresses().gateway);
            Err(SampleError::NotApplied { state, explain })
        }
    }
}

/// Returns whether an upload has the bytes of a file: the ETag of an upload in one part is its MD5.
fn is_same(path: &Path, etag: Option<&str>) -> Result<bool, SampleError> {
    let bytes = std::fs::read(path).map_err(|source| SampleError::Fixture {
        path: path.to_owned(),
        source,
    })?;
    Ok(etag == Some(&format!("{:x}", <md5::Md5 as md5::Digest>::digest(&bytes))))
}

fn read_json(name: &str) -> Result<Value, SampleError> {
    let path = fixture(name);
    let unreadable = |source| SampleError::Fixture {
        path: path.clone(),
        source,
    };
    let bytes = std::fs::read(&path).map_err(unreadable)?;
    serde_json::from_slice(&bytes).map_err(|error| unreadable(error.into()))
}

/// Prints the stack of the request.
fn print_before(crash: &Value) {
    let module = &crash["modules"][0];
    let name = base_name(text(module, "code_file"));
    let base = number(module, "image_addr");
    anstream::println!(
        "\n{TITLE}Before{TITLE:#} {DIM}the crash as reported: signal {}, addresses{DIM:#}\n",
        crash["signal"]
    );
    for (number, frame) in frames(&crash["stacktraces"][0]).iter().enumerate() {
        let address = text(frame, "instruction_addr");
        let offset = self::number(frame, "instruction_addr").saturating_sub(base);
        anstream::println!(
            "  {DIM}#{number:<2}{DIM:#} {ADDRESS}{address}{ADDRESS:#} {DIM}{name}+0x{offset:x}{DIM:#}"
        );
    }
}

/// Prints the stack of the response. Inlined calls are marked, and share the address of their
/// frame.
fn print_after(crash: &Value, answer: &Value) -> Result<(), SampleError> {
    let sent = frames(&crash["stacktraces"][0]);
    let frames = frames(&answer["stacktraces"][0]);
    if frames.is_empty() {
        return Err(SampleError::NoStack(answer.to_string()));
    }
    let places: Vec<String> = frames.iter().map(place).collect();
    let width = places
        .iter()
        .map(|place| place.chars().count())
        .max()
        .unwrap_or_default();
    let status = answer["modules"][0]["debug_status"]
        .as_str()
        .unwrap_or_default();
    anstream::println!(
        "\n{TITLE}After{TITLE:#} {DIM}symbolicated with its debug file: {status}{DIM:#}\n"
    );
    let mut number = 0;
    for (at, (frame, place)) in frames.iter().zip(&places).enumerate() {
        let index = &frame["original_index"];
        let is_inlined = frames
            .get(at + 1)
            .is_some_and(|caller| !index.is_null() && caller["original_index"] == *index);
        let is_first = at == 0 || frames[at - 1]["original_index"] != *index;
        // The address from the request, because the response has the address of the call, one less.
        let original = index
            .as_u64()
            .and_then(|index| sent.get(usize::try_from(index).ok()?));
        let address = if is_first {
            text(original.unwrap_or(frame), "instruction_addr")
        } else {
            ""
        };
        let function = match text(frame, "function") {
            "" => text(frame, "status"),
            name => name,
        };
        let mark = if is_inlined { "inlined" } else { "" };
        let shown = if is_first {
            format!("#{number:<2}")
        } else {
            "   ".to_owned()
        };
        number += usize::from(is_first);
        anstream::println!(
            "  {DIM}{shown}{DIM:#} {ADDRESS}{address:<14}{ADDRESS:#} {PLACE}{place:<width$}{PLACE:#} {DIM}{mark:<7}{DIM:#} {FUNCTION}{function}{FUNCTION:#}"
        );
    }
    Ok(())
}

fn print_numbers(upload: Option<Duration>, first: Duration, warm: Duration) {
    anstream::println!();
    let line =
        |what: &str, value: String| anstream::println!("  {DIM}{what:<34}{DIM:#} {value:>9}");
    match upload {
        Some(took) => line("debug file uploaded and derived in", milliseconds(took)),
        None => line("uploaded", "before".to_owned()),
    }
    line("first response after", milliseconds(first));
    line("next response after", milliseconds(warm));
}

fn print_commands(addresses: &Addresses) {
    let Addresses { gateway, s3, .. } = addresses;
    let crash = shown(&fixture("crash.json"));
    anstream::println!("\n{TITLE}Try{TITLE:#}\n");
    let show = |what: &str, command: &str| {
        anstream::println!("  {DIM}# {what}{DIM:#}\n  {COMMAND}{command}{COMMAND:#}\n");
    };
    show(
        "the same crash again",
        &format!("curl -s {gateway}/symbolicate -d @{crash}"),
    );
    show(
        "your own debug file: ELF, Mach-O and dSYM, PE, PDB, Breakpad, WASM, uncompressed or in zip, gz, zst, cab",
        &format!(
            "AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local AWS_REGION=us-east-1 aws --endpoint-url {s3} s3 cp app.debug s3://{}/global/app.debug",
            addresses.uploads()
        ),
    );
    show(
        "its state",
        &format!("curl -s '{gateway}/explain?key=global/app.debug'"),
    );
    show(
        "the cost so far: calls, bytes, times",
        &format!("curl -s {gateway}/_local/stats"),
    );
}

/// Returns a path relative to the current directory if that is the checkout.
fn shown(path: &Path) -> String {
    let here = std::env::current_dir().ok();
    let relative = here
        .filter(|here| *here == checkout())
        .and_then(|here| path.strip_prefix(here).ok());
    relative.unwrap_or(path).display().to_string()
}

fn place(frame: &Value) -> String {
    match (
        text(frame, "filename"),
        text(frame, "abs_path"),
        frame["lineno"].as_u64(),
    ) {
        ("", "", _) => String::new(),
        ("", path, line) => format!("{}:{}", base_name(path), line.unwrap_or(0)),
        (name, _, line) => format!("{}:{}", base_name(name), line.unwrap_or(0)),
    }
}

fn frames(stacktrace: &Value) -> &[Value] {
    stacktrace["frames"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn number(value: &Value, name: &str) -> u64 {
    u64::from_str_radix(text(value, name).trim_start_matches("0x"), 16).unwrap_or(0)
}

fn base_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

fn milliseconds(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1000.0)
}
