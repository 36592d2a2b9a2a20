//! Requests to symbolicate.

use serde_json::{Value, json};
use symdepot::api::symbolicator::{AddrMode, Completed, Hex, Request, parse_request};
use symdepot::flows::HttpService;
use symdepot::flows::requests::FoundRequest;
use symdepot::flows::{Error, Invocation};

use super::fixtures::{Fixture, fixture_text};

/// A symbolication request with its modules.
pub type Crash = Request;

/// Address at which the module of a request is mapped.
const IMAGE: u64 = 0x1_0000_0000;

/// Returns the sample crash.
pub fn sample_crash() -> Crash {
    parse(&fixture_text("crash.json"))
}

/// Returns a crash in one module, at these instruction addresses relative to the module.
///
/// `module` has the type and the ids. It receives an address unless it has one.
pub fn in_module(module: Value, addresses: &[u64]) -> Crash {
    let mut module = module;
    if module.get("image_addr").is_none() {
        module["image_addr"] = format!("{IMAGE:#x}").into();
    }
    let frames: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"instruction_addr": format!("{:#x}", IMAGE + address), "adjust_instruction_addr": false}))
        .collect();
    parse(&json!({"stacktraces": [{"frames": frames}], "modules": [module]}).to_string())
}

/// Returns a crash in the module that a fixture belongs to.
///
/// WASM modules are not mapped into an address space: their frames are offsets from the start of
/// the file, as browsers report them.
pub fn of_fixture(fixture: &Fixture, addresses: &[u64]) -> Crash {
    let kind = match fixture.format.as_deref() {
        Some("pdb" | "pe") => "pe",
        Some("breakpad") | None => "elf",
        Some(format) => format,
    };
    let module = json!({"type": kind, "debug_id": fixture.debug_id, "code_id": fixture.code_id});
    let mut crash = in_module(module, addresses);
    if kind == "wasm" {
        crash.modules[0].image_addr = Hex(0);
        for (frame, address) in crash.stacktraces[0].frames.iter_mut().zip(addresses) {
            (frame.addr_mode, frame.instruction_addr) = (AddrMode::Rel(0), Hex(*address));
        }
    }
    crash
}

/// Returns a pending request and its body, as the function that continues it reads them.
///
/// # Errors
///
/// A store failed.
pub async fn stored_request(
    service: &HttpService,
    invocation: &Invocation,
    id: &str,
) -> Result<Option<(FoundRequest, Vec<u8>)>, Error> {
    let Some(found) = service.find_request(invocation, id).await? else {
        return Ok(None);
    };
    let body = service.stored_body(&found).await?;
    Ok(body.map(|body| (found, body)))
}

/// Returns the names of the functions in a response, stack by stack, innermost first; `?` for a
/// frame without a name.
pub fn function_names(completed: &Completed) -> Vec<String> {
    let frames = completed
        .stacktraces
        .iter()
        .flat_map(|stacktrace| &stacktrace.frames);
    frames
        .map(|frame| frame.frame.function.as_deref().unwrap_or("?").to_owned())
        .collect()
}

fn parse(body: &str) -> Crash {
    parse_request(body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"))
}
