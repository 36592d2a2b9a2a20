//! What the tests of the running stack share: a plain HTTP client, a folder with functions, and waiting for a process's state.

#![expect(dead_code, reason = "each test binary uses some of it")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// A template with one probe function behind everything: requests, a lane with a dead-letter queue, a schedule.
pub(crate) const TEMPLATE: &str = r#"
Transform: AWS::Serverless-2016-10-31
Globals:
  Function:
    Runtime: provided.al2023
    Handler: bootstrap
    LoggingConfig:
      LogFormat: JSON
    Environment:
      Variables:
        LANE_URL: !Ref Lane
        TABLE: !Ref Records
        NUMBER: "7"
Resources:
  Api:
    Type: AWS::Serverless::HttpApi
  Uploads:
    Type: AWS::S3::Bucket
    Properties:
      BucketName: !Sub "${AWS::StackName}-uploads-${AWS::AccountId}"
      NotificationConfiguration:
        QueueConfigurations:
          - Event: s3:ObjectCreated:*
            Queue: !GetAtt Lane.Arn
  Records:
    Type: AWS::DynamoDB::Table
    Properties:
      BillingMode: PAY_PER_REQUEST
      AttributeDefinitions:
        - AttributeName: id
          AttributeType: S
      KeySchema:
        - AttributeName: id
          KeyType: HASH
  Lane:
    Type: AWS::SQS::Queue
    Properties:
      VisibilityTimeout: 60
      RedrivePolicy:
        deadLetterTargetArn: !GetAtt Dead.Arn
        maxReceiveCount: 1
  Dead:
    Type: AWS::SQS::Queue
  Probe:
    Type: AWS::Serverless::Function
    Metadata:
      BuildProperties:
        Binary: probe-function
    Properties:
      Timeout: 30
      Events:
        Every:
          Type: HttpApi
          Properties:
            ApiId: !Ref Api
            Path: $default
            Method: ANY
        Messages:
          Type: SQS
          Properties:
            Queue: !GetAtt Lane.Arn
            BatchSize: 2
            FunctionResponseTypes: [ReportBatchItemFailures]
  Sweeper:
    Type: AWS::Serverless::Function
    Metadata:
      BuildProperties:
        Binary: sweeper
    Properties:
      ReservedConcurrentExecutions: 1
      Events:
        Hourly:
          Type: ScheduleV2
          Properties:
            ScheduleExpression: rate(1 hour)
"#;

/// The probe function's binary.
pub(crate) fn probe() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_probe-function"))
}

/// Writes the template and the functions that it names into `folder`; returns their paths.
pub(crate) fn write_project(folder: &Path) -> (PathBuf, PathBuf) {
    let template = folder.join("template.yaml");
    std::fs::write(&template, TEMPLATE).unwrap();
    let functions = folder.join("functions");
    std::fs::create_dir(&functions).unwrap();
    for name in ["probe-function", "sweeper"] {
        std::os::unix::fs::symlink(probe(), functions.join(name)).unwrap();
    }
    (template, functions)
}

/// Sends a request to `base` (`http://127.0.0.1:…`) over a connection of its own.
pub(crate) async fn send(base: &str, request: Request<Bytes>) -> Response<Bytes> {
    let address = base.strip_prefix("http://").unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let (mut parts, body) = request.into_parts();
    parts.headers.entry("host").or_insert_with(|| address.parse().unwrap());
    let response = sender.send_request(Request::from_parts(parts, Full::new(body))).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    drop(sender);
    let _ = connection.await;
    Response::from_parts(parts, body)
}

/// Sends a request without headers or body; returns status and JSON.
pub(crate) async fn ask(base: &str, method: &str, path: &str) -> (u16, Value) {
    let response = send(base, Request::builder().method(method).uri(path).body(Bytes::new()).unwrap()).await;
    let json = serde_json::from_slice(response.body()).unwrap_or_default();
    (response.status().as_u16(), json)
}

/// The state of a process as `/proc` has it: `R`, `S`, `T` and so on; `None` if it is gone or a zombie that nobody reaps.
pub(crate) fn state(pid: u64) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = stat.rsplit_once(") ")?.1.chars().next()?;
    (!matches!(state, 'Z' | 'X')).then_some(state)
}

/// Waits until `condition` holds of something outside of this process, which cannot be awaited.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let mut looks = tokio::time::interval(Duration::from_millis(5));
    let seen = async {
        while !condition() {
            looks.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), seen).await.unwrap_or_else(|_| panic!("never happened: {what}"));
}
