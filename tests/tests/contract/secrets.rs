//! Tests of the adapter to AWS secrets, against a server on loopback with scripted responses.

use std::time::Duration;

use aws_config::{BehaviorVersion, Region};
use aws_sdk_s3::config::Credentials;
use serde_json::json;
use symdepot::adapters::aws::AwsSecrets;
use symdepot::ports::{SecretName, Secrets};

use crate::script::{Script, answer};

const SECRET: &str = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:sources-AbCdEf";
const PARAMETER: &str = "arn:aws:ssm:eu-central-1:123456789012:parameter/symdepot/sources";

async fn read(script: &Script, arn: &str) -> Result<String, String> {
    let config = aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new("AKIA", "key", None, None, "test"))
        .endpoint_url(&script.url)
        .load()
        .await;
    let secrets = AwsSecrets::new(config, || Duration::from_secs(1_800_000_000));
    let name = SecretName::parse(arn).unwrap();
    secrets.read(&name).await.map_err(|error| error.to_string())
}

fn answered(status: &str, body: &serde_json::Value) -> String {
    let body = body.to_string();
    answer(
        status,
        "content-type: application/x-amz-json-1.1\r\n",
        body.len(),
        &body,
    )
}

/// Reads a secret or parameter with one signed request, in the region of its ARN.
#[tokio::test]
async fn a_secret_and_a_parameter_are_read_by_one_signed_request_each() {
    for (arn, value, target, asked) in [
        (
            SECRET,
            json!({"Name": "sources", "SecretString": "[1]"}),
            "secretsmanager.getsecretvalue",
            json!({"SecretId": SECRET}),
        ),
        (
            PARAMETER,
            json!({"Parameter": {"Name": "sources", "Value": "[1]"}}),
            "amazonssm.getparameter",
            json!({"Name": PARAMETER, "WithDecryption": true}),
        ),
    ] {
        let script = Script::play(vec![answered("200 OK", &value)]).await;
        assert_eq!(read(&script, arn).await, Ok("[1]".to_owned()));
        let request = script.asked().await.remove(0);
        assert!(request.head.starts_with("post / http/1.1"), "{request:?}");
        assert!(
            request.head.contains(&format!("x-amz-target: {target}")),
            "{request:?}"
        );
        let service = arn.split(':').nth(2).unwrap();
        // The region comes from the ARN of the secret, not from the function.
        let scope = format!("credential=akia/20270115/eu-central-1/{service}/aws4_request");
        assert!(request.head.contains(&scope), "{request:?}");
        let body: serde_json::Value = serde_json::from_str(&request.body).unwrap();
        assert_eq!(body, asked);
    }
}

/// A denied request fails at once; throttling and server errors are retried.
#[tokio::test]
async fn a_denied_secret_is_requested_once_and_a_throttled_one_is_retried() {
    let denied = json!({"__type": "com.amazonaws#AccessDeniedException", "Message": "not you"});
    let script = Script::play(vec![answered("400 Bad Request", &denied); 3]).await;
    let problem = read(&script, SECRET).await.unwrap_err();
    assert_eq!(
        problem,
        "secretsmanager responded with 400 Bad Request AccessDeniedException: not you"
    );
    assert_eq!(script.asked().await.len(), 1);

    let throttled = json!({"__type": "ThrottlingException", "message": "slowly"});
    let value = json!({"Parameter": {"Value": "[1]"}});
    let script = Script::play(vec![
        answered("400 Bad Request", &throttled),
        answer("500 Oh", "", 0, ""),
        answered("200 OK", &value),
    ])
    .await;
    assert_eq!(read(&script, PARAMETER).await, Ok("[1]".to_owned()));
    assert_eq!(script.asked().await.len(), 3);
}

/// A secret that contains no text is an error.
#[tokio::test]
async fn a_secret_without_text_is_an_error() {
    let binary = json!({"Name": "sources", "SecretBinary": "AAEC"});
    let script = Script::play(vec![answered("200 OK", &binary)]).await;
    let problem = read(&script, SECRET).await.unwrap_err();
    assert_eq!(
        problem,
        "the response of secretsmanager contains no string value"
    );
}
