//! Roles of AWS as credentials of buckets, against a script in place of STS.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_s3::config::Credentials;
use futures::future::join_all;
use serde_json::{Value, json};
use symdepot::adapters::aws::StsRoles;
use symdepot::adapters::http::HttpServers;
use symdepot::domain::{AwsRole, Cause, ConfiguredSource, HttpSource, Location, S3Keys, SourceKey};
use symdepot::ports::{AwsRoles, FileQuery, RoleError, ServerFailure, SymbolServers};

use crate::script::{Script, answer};

const ARN: &str = "arn:aws:iam::123456789012:role/symbols";

/// 2027-01-15T08:00:00Z
const BEGIN: u64 = 1_800_000_000;

/// The configuration of a function whose services are all at one address.
pub(crate) async fn config(url: &str) -> SdkConfig {
    aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new(
            "AKIAOFTHEFUNCTION",
            "key",
            None,
            None,
            "test",
        ))
        .endpoint_url(url)
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .load()
        .await
}

fn role() -> AwsRole {
    AwsRole::Assumed {
        arn: ARN.to_owned(),
        external_id: Some("our-secret-handshake".to_owned()),
    }
}

/// Returns a response of STS with credentials that end at this time.
fn assumed(access_key: &str, until: &str) -> String {
    let body = format!(
        r#"<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>
        <Credentials><AccessKeyId>{access_key}</AccessKeyId><SecretAccessKey>sesame</SecretAccessKey>
        <SessionToken>a+token/</SessionToken><Expiration>{until}</Expiration></Credentials></AssumeRoleResult>
        <ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></AssumeRoleResponse>"#
    );
    answer("200 OK", "content-type: text/xml\r\n", body.len(), &body)
}

fn denied() -> String {
    let body = format!(
        r#"<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>
        <Code>AccessDenied</Code><Message>User: arn:aws:sts::999999999999:assumed-role/derive is not authorized to
        perform: sts:AssumeRole on resource: {ARN}</Message></Error><RequestId>1</RequestId></ErrorResponse>"#
    );
    answer(
        "403 Forbidden",
        "content-type: text/xml\r\n",
        body.len(),
        &body,
    )
}

#[tokio::test]
async fn a_role_is_assumed_once_for_all_callers_and_again_before_it_ends() {
    static NOW: AtomicU64 = AtomicU64::new(BEGIN);
    let script = Script::play(vec![
        assumed("ASIAFIRST", "2027-01-15T09:00:00Z"),
        assumed("ASIASECOND", "2027-01-15T10:00:00Z"),
    ])
    .await;
    let now = || Duration::from_secs(NOW.load(Ordering::SeqCst));
    let roles = StsRoles::new(config(&script.url).await, now);
    let role = role();
    for keys in join_all((0..20).map(|_| roles.credentials(&role))).await {
        let expected = S3Keys {
            access_key: "ASIAFIRST".to_owned(),
            secret_key: "sesame".to_owned(),
            session_token: Some("a+token/".to_owned()),
        };
        assert!(keys.unwrap() == expected);
    }
    let asked = script.asked().await;
    assert_eq!(asked.len(), 1);
    let (head, body) = (&asked[0].head, &asked[0].body);
    assert!(head.contains("credential=akiaofthefunction/"), "{head}");
    assert!(head.contains("/us-east-1/sts/aws4_request"), "{head}");
    for parameter in [
        "Action=AssumeRole",
        "RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2Fsymbols",
        "ExternalId=our-secret-handshake",
        "RoleSessionName=symdepot",
    ] {
        assert!(body.contains(parameter), "{body}");
    }

    NOW.store(BEGIN + 39 * 60, Ordering::SeqCst);
    assert_eq!(
        roles.credentials(&role).await.unwrap().access_key,
        "ASIAFIRST"
    );
    NOW.store(BEGIN + 41 * 60, Ordering::SeqCst);
    for keys in join_all((0..20).map(|_| roles.credentials(&role))).await {
        assert_eq!(keys.unwrap().access_key, "ASIASECOND");
    }
    assert_eq!(script.asked().await.len(), 2);
}

#[tokio::test]
async fn a_denied_role_is_requested_once_a_minute_and_its_detail_names_no_account() {
    static NOW: AtomicU64 = AtomicU64::new(BEGIN);
    let script = Script::play(vec![denied(), assumed("ASIA", "2027-01-15T09:00:00Z")]).await;
    let now = || Duration::from_secs(NOW.load(Ordering::SeqCst));
    let roles = StsRoles::new(config(&script.url).await, now);
    for _ in 0..5 {
        let error = roles.credentials(&role()).await.unwrap_err();
        let expected = "the role of the source cannot be assumed: AccessDenied";
        assert_eq!(error, RoleError::Denied(expected.to_owned()));
    }
    assert_eq!(script.asked().await.len(), 1);
    NOW.store(BEGIN + 61, Ordering::SeqCst);
    assert_eq!(roles.credentials(&role()).await.unwrap().access_key, "ASIA");
}

#[tokio::test]
async fn an_sts_that_fails_is_a_failure_and_no_refusal() {
    let script = Script::play(vec![answer("500 Oh", "", 0, ""); 3]).await;
    let roles = StsRoles::new(config(&script.url).await, || Duration::from_secs(BEGIN));
    let error = roles.credentials(&role()).await.unwrap_err();
    assert!(matches!(error, RoleError::Failed(_)), "{error:?}");
    assert_eq!(script.asked().await.len(), 3);
}

/// Returns a source of the operator's list at this endpoint.
pub(crate) fn source(endpoint: &str, more: Value) -> HttpSource {
    let mut json = json!({
        "type": "s3", "id": "a", "bucket": "symbols", "region": ["us-east-1", endpoint],
    });
    let more = more.as_object().unwrap().clone();
    json.as_object_mut().unwrap().extend(more);
    let ConfiguredSource(source) = serde_json::from_value(json).unwrap();
    source
}

async fn get(
    servers: &HttpServers,
    key: &SourceKey,
    source: &HttpSource,
) -> Result<(), ServerFailure> {
    let location = Location::new("s3://symbols/ab/cd");
    let query = FileQuery {
        key,
        source,
        location: &location,
        checksum: None,
    };
    servers.get(query).await.map(|_| ())
}

#[tokio::test]
async fn a_bucket_is_read_with_the_credentials_of_its_role() {
    let file = || answer("200 OK", "", 4, "file");
    let bucket = Script::play(vec![file(), file()]).await;
    let sts = Script::play(vec![assumed("ASIAROLE", "2027-01-15T09:00:00Z")]).await;
    let now = || Duration::from_secs(BEGIN);
    let roles = Arc::new(StsRoles::new(config(&sts.url).await, now));
    let servers = HttpServers::new(true)
        .with_wall_clock(now)
        .with_roles(roles);
    for (more, access_key) in [
        (
            json!({"role_arn": ARN, "external_id": "our-secret-handshake"}),
            "asiarole",
        ),
        (
            json!({"aws_credentials_provider": "container"}),
            "akiaofthefunction",
        ),
    ] {
        let source = source(&bucket.url, more);
        get(&servers, &source.configured_key(), &source)
            .await
            .unwrap();
        let head = &bucket.asked().await.pop().unwrap().head;
        let expected = format!("x-amz-credential={access_key}%2f20270115%2fus-east-1%2fs3%2f");
        assert!(head.contains(&expected), "{head}");
        let has_token = head.contains("x-amz-security-token=a%2btoken%2f");
        assert_eq!(has_token, access_key == "asiarole", "{head}");
    }
}

/// Even if a definition of a request had a role, it would not be used.
#[tokio::test]
async fn a_source_of_a_request_uses_no_role() {
    let bucket = Script::play(vec![answer("200 OK", "", 4, "file")]).await;
    let sts = Script::play(vec![assumed("ASIAROLE", "2027-01-15T09:00:00Z")]).await;
    let now = || Duration::from_secs(BEGIN);
    let roles = Arc::new(StsRoles::new(config(&sts.url).await, now));
    let servers = HttpServers::new(true)
        .with_wall_clock(now)
        .with_roles(roles);
    for more in [
        json!({"role_arn": ARN}),
        json!({"aws_credentials_provider": "container"}),
    ] {
        let source = source(&bucket.url, more);
        let key = source.defined_key("hash".to_owned());
        let refused = get(&servers, &key, &source).await.unwrap_err();
        assert_eq!(refused.missing.cause, Cause::DownloadFailed);
        assert!(refused.missing.detail.contains("no role"), "{refused:?}");
    }
    assert!(bucket.asked().await.is_empty() && sts.asked().await.is_empty());
}

#[tokio::test]
async fn a_bucket_whose_role_is_denied_is_a_refusal_that_is_retried_in_a_minute() {
    let sts = Script::play(vec![denied()]).await;
    let now = || Duration::from_secs(BEGIN);
    let roles = Arc::new(StsRoles::new(config(&sts.url).await, now));
    let servers = HttpServers::new(true)
        .with_wall_clock(now)
        .with_roles(roles);
    let source = source("http://127.0.0.1:1", json!({"role_arn": ARN}));
    let refused = get(&servers, &source.configured_key(), &source)
        .await
        .unwrap_err();
    assert_eq!(refused.missing.cause, Cause::PermissionDenied);
    assert_eq!(refused.retry_after, Some(Duration::from_secs(60)));
    assert!(
        !refused.missing.detail.contains("123456789012"),
        "{refused:?}"
    );
}
