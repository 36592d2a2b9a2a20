//! `demo`: the first crash. The debug file of a sample program is uploaded, and a crash of the
//! program is symbolicated.

use std::path::Path;
use std::time::Duration;

use local_stack::identity::{LOCAL, REGION};
use local_stack::stack::ADDRESSES_FILE;
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use symdepot::api::report::CrashReport;
use tokio::time::Instant;

use super::issue_token;
use crate::arguments::{DemoArguments, Format};
use crate::body::Body;
use crate::client::{Client, HttpResponse};
use crate::credentials::Signer;
use crate::error::{self, CliError};
use crate::settings::{self, Settings, Token};
use crate::symbolicate::{self, shown};
use crate::waiting::Waiting;
use crate::{Exit, Output};

/// The debug file of the sample program, and a crash of it.
const DEBUG_FILE: &[u8] = include_bytes!("../../../../tests/fixtures/elf/crash.debug");
const CRASH: &[u8] = include_bytes!("../../../../tests/fixtures/crash.json");

/// The key that the debug file is uploaded under.
const KEY: &str = "global/sample/crash.debug";

/// The logical id of the bucket for uploads.
const UPLOADS: &str = "UploadsBucket";

/// How often the state of the upload is read, and for how long.
const POLL: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(60);

/// The part of the address file that the demo needs.
#[derive(Deserialize)]
struct StackAddresses {
    gateway: String,
    s3: String,
    buckets: std::collections::BTreeMap<String, String>,
}

pub(crate) async fn run(arguments: &DemoArguments) -> Result<Output, CliError> {
    let stack = read(&arguments.data)?;
    let how = |which: &str| issue_token(which, &stack.gateway, &arguments.data);
    let settings = settings_of(&stack, &how("the first one")).await?;
    let client = Client::new(&settings).await?;
    upload(&stack).await?;
    wait(&client, &how("another one")).await?;
    let report = CrashReport::read(CRASH);
    let report = report.map_err(|error| CliError::Serve(error.to_string()))?;
    let waiting = Waiting::new(&client, &settings, PATIENCE);
    let body = symbolicate::body(&report)?;
    let completed = waiting.completed("/symbolicate", body).await?;
    Ok(match completed {
        Some(completed) => shown(Format::Human, CRASH, &report, &completed),
        None => Output::ended("", Exit::Pending),
    })
}

/// Reads the addresses of the stack whose data is in this folder.
fn read(data: &Path) -> Result<StackAddresses, CliError> {
    let found = settings::read_addresses(&data.join(ADDRESSES_FILE))?;
    found.ok_or_else(|| {
        CliError::Serve(format!(
            "no stack runs on the data folder {}: start one with `symdepot serve`, or name the folder of one with --data",
            error::shown(data)
        ))
    })
}

/// Returns the settings for requests to the stack: with the access token of this process, if the
/// stack requires one. `how` says how to get one.
async fn settings_of(stack: &StackAddresses, how: &str) -> Result<Settings, CliError> {
    let open = Settings::at(&stack.gateway)?;
    let client = Client::new(&open).await?;
    let path = "/about";
    let answer = client.send(Method::GET, path, &[], Vec::new()).await?;
    if answer.status != StatusCode::UNAUTHORIZED {
        return Ok(open);
    }
    match Token::of_process()? {
        Some(token) => Ok(Settings {
            token: Some(token),
            ..open
        }),
        None => Err(refused(&client, path, &answer, how)),
    }
}

/// Returns the error for a response to a credential that does not suffice.
fn refused(client: &Client, path: &str, answer: &HttpResponse, how: &str) -> CliError {
    let error = client.refused(path, answer);
    CliError::Serve(format!("{error}\n{how}"))
}

/// Uploads the debug file to the stack.
async fn upload(stack: &StackAddresses) -> Result<(), CliError> {
    let failed = |cause: String| CliError::Connection {
        url: stack.s3.clone(),
        cause,
    };
    let bucket = stack.buckets.get(UPLOADS);
    let bucket = bucket.ok_or_else(|| failed("it has no bucket for uploads".to_owned()))?;
    let url = format!("{}/{bucket}/{KEY}", stack.s3);
    let url = url.parse::<url::Url>();
    let url = url.map_err(|error| failed(error.to_string()))?;
    let signer = Signer::of_s3(LOCAL.access_key_id, LOCAL.secret_access_key, REGION);
    let client = Client::signed(url, signer)?;
    let body = Body::of_type("application/octet-stream".to_owned(), DEBUG_FILE.to_vec());
    let answer = client.put(body).await?;
    match answer.status {
        StatusCode::OK => Ok(()),
        _ => Err(client.refused(KEY, &answer)),
    }
}

/// Waits until the upload is used. `how` says how to get an access token.
async fn wait(client: &Client, how: &str) -> Result<(), CliError> {
    let end = Instant::now() + PATIENCE;
    loop {
        let query = [("key", KEY)];
        let answer = client
            .send(Method::GET, "/explain", &query, Vec::new())
            .await?;
        if matches!(
            answer.status,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
        ) {
            return Err(refused(client, "/explain", &answer, how));
        }
        let explained: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let is_applied = explained.get("state").is_some_and(|it| it == "applied");
        if answer.status == StatusCode::OK && is_applied {
            return Ok(());
        }
        if Instant::now() >= end {
            return Err(CliError::Serve(format!(
                "{KEY} was uploaded but not read: {explained}"
            )));
        }
        tokio::time::sleep(POLL).await;
    }
}
