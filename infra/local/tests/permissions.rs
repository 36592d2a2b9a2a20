//! Permissions: the services deny what the roles and policies of the template do not allow.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]

mod client;
mod endpoints;
mod project;

use std::path::Path;

use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{Delete, ObjectIdentifier};
use client::ask;
use endpoints::{dynamodb_client, s3_client, sqs_client_of};
use local_stack::identity::{KeyPair, LOCAL};
use local_stack::stack::{ACCESS_FILE, Options, Running, Stack};
use local_stack::template::{DEFAULTS, Deployment, Template, USUAL_CONCURRENCY};
use project::write_project;
use serde_json::Value;

const BUCKET: &str = "template-uploads-000000000000";

/// The keys of a process of the probe, and of the other function, which has no role of its own.
const PROBE: KeyPair = KeyPair {
    access_key_id: "function.probe-function.1",
    secret_access_key: "function",
};
const SWEEPER: KeyPair = KeyPair {
    access_key_id: "function.sweeper.1",
    secret_access_key: "function",
};

fn options(folder: &Path) -> Options {
    let (template, functions) = write_project(folder);
    Options::new(template, functions, folder.join("data"))
}

/// Returns the code of the error, or "done".
fn code<T, E: ProvideErrorMetadata, R>(
    result: Result<T, aws_sdk_s3::error::SdkError<E, R>>,
) -> String {
    match result {
        Ok(_) => "done".to_owned(),
        Err(error) => {
            let error = error
                .as_service_error()
                .and_then(ProvideErrorMetadata::code);
            error.unwrap_or("no code").to_owned()
        }
    }
}

async fn denied(running: &Running) -> Vec<String> {
    let (_, report) = ask(&running.addresses().gateway, "GET", "/_local/access").await;
    let uses = report["uses"].as_array().unwrap().clone();
    let denied = uses.iter().filter(|it| it["denied"].is_string());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    denied
        .map(|it| format!("{} {}", text(&it["by"]), text(&it["action"])))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_service_denies_what_the_role_of_the_signer_does_not_allow() {
    let folder = tempfile::tempdir().unwrap();
    let running = Stack::start(options(folder.path())).await.unwrap();
    let addresses = running.addresses().clone();
    let by = |keys| s3_client(&addresses.s3, keys);
    let (probe, local) = (by(PROBE), by(LOCAL));
    for key in ["own/a", "own/b", "others/a"] {
        let put = local.put_object().bucket(BUCKET).key(key);
        put.body(ByteStream::from_static(b"x"))
            .send()
            .await
            .unwrap();
    }
    let get = async |client: &aws_sdk_s3::Client, key: &str| {
        code(client.get_object().bucket(BUCKET).key(key).send().await)
    };
    assert_eq!(get(&probe, "own/a").await, "done");
    assert_eq!(get(&probe, "others/a").await, "AccessDenied");
    assert_eq!(get(&by(SWEEPER), "own/a").await, "AccessDenied");
    // Without the permission to list, it is not said that an object is absent.
    assert_eq!(get(&probe, "own/absent").await, "AccessDenied");
    assert_eq!(get(&local, "own/absent").await, "NoSuchKey");
    let head = probe
        .head_object()
        .bucket(BUCKET)
        .key("own/absent")
        .send()
        .await;
    assert_eq!(
        head.unwrap_err().raw_response().unwrap().status().as_u16(),
        403
    );
    let put = probe.put_object().bucket(BUCKET).key("own/c");
    assert_eq!(code(put.send().await), "AccessDenied");
    let copy = probe.copy_object().bucket(BUCKET).key("own/c");
    let copied = copy.copy_source(format!("{BUCKET}/others/a")).send().await;
    assert_eq!(code(copied), "AccessDenied");

    // Each key of a batch is judged alone.
    let ids =
        ["own/b", "others/a"].map(|key| ObjectIdentifier::builder().key(key).build().unwrap());
    let batch = Delete::builder()
        .set_objects(Some(ids.to_vec()))
        .build()
        .unwrap();
    let answer = probe
        .delete_objects()
        .bucket(BUCKET)
        .delete(batch)
        .send()
        .await
        .unwrap();
    let deleted: Vec<_> = answer
        .deleted()
        .iter()
        .filter_map(|one| one.key())
        .collect();
    let errors: Vec<_> = answer
        .errors()
        .iter()
        .map(|one| (one.key(), one.code()))
        .collect();
    assert_eq!(deleted, ["own/b"]);
    assert_eq!(errors, [(Some("others/a"), Some("AccessDenied"))]);
    let only =
        Delete::builder().objects(ObjectIdentifier::builder().key("others/a").build().unwrap());
    let batch = probe
        .delete_objects()
        .bucket(BUCKET)
        .delete(only.build().unwrap());
    assert_eq!(batch.send().await.unwrap().errors().len(), 1);
    assert_eq!(get(&local, "others/a").await, "done");

    let table = dynamodb_client(&addresses.dynamodb, PROBE);
    let id = || AttributeValue::S("1".to_owned());
    let got = table
        .get_item()
        .table_name("Records")
        .key("id", id())
        .send()
        .await;
    assert_eq!(code(got), "done");
    let put = table
        .put_item()
        .table_name("Records")
        .item("id", id())
        .send()
        .await;
    assert_eq!(code(put), "AccessDeniedException");
    assert_eq!(
        code(table.scan().table_name("Records").send().await),
        "AccessDeniedException"
    );
    let stranger = KeyPair {
        access_key_id: "AKIAOFANOTHERACCOUNT",
        secret_access_key: "secret",
    };
    let unknown = dynamodb_client(&addresses.dynamodb, stranger);
    let scanned = unknown.scan().table_name("Records").send().await;
    assert_eq!(code(scanned), "UnrecognizedClientException");

    let queues = sqs_client_of(&addresses.sqs, PROBE);
    let (orders, dead) = (&addresses.queues["Orders"], &addresses.queues["Dead"]);
    let attributes = queues.get_queue_attributes().queue_url(orders).send().await;
    assert_eq!(code(attributes), "done");
    let received = queues.receive_message().queue_url(dead).send().await;
    assert_eq!(code(received), "AccessDenied");
    let sent = queues
        .send_message()
        .queue_url(orders)
        .message_body("x")
        .send()
        .await;
    assert_eq!(code(sent), "AccessDenied");

    let expected = [
        "ProbeRole dynamodb:PutItem",
        "ProbeRole dynamodb:Scan",
        "ProbeRole s3:DeleteObject",
        "ProbeRole s3:GetObject",
        "ProbeRole s3:ListBucket",
        "ProbeRole s3:PutObject",
        "ProbeRole s3:PutObject",
        "ProbeRole sqs:ReceiveMessage",
        "ProbeRole sqs:SendMessage",
        "SweeperRole s3:GetObject",
    ];
    let mut found = denied(&running).await;
    found.dedup();
    let mut expected = expected.to_vec();
    expected.dedup();
    assert_eq!(found, expected);
    running.stop().await;
    let record = std::fs::read_to_string(folder.path().join("data").join(ACCESS_FILE)).unwrap();
    assert!(record.lines().count() >= expected.len(), "{record}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_aws_would_not_deploy_is_refused_at_the_start() {
    for (old, new, expected) in [
        (
            "sqs:ReceiveMessage, ",
            "",
            "Probe cannot be deployed: User: arn:aws:sts::000000000000:assumed-role/ProbeRole/lambda is not authorized to perform: sqs:ReceiveMessage",
        ),
        (
            "lambda.amazonaws.com",
            "ec2.amazonaws.com",
            "cannot be assumed by Lambda: ProbeRole",
        ),
        (
            "Principal: { Service: s3.amazonaws.com }",
            "Principal: { Service: sns.amazonaws.com }",
            "Uploads cannot be deployed: its events cannot be sent: User: s3.amazonaws.com is not authorized",
        ),
        (
            "-uploads-${AWS::AccountId}\" }",
            "-other-${AWS::AccountId}\" }",
            "Uploads cannot be deployed",
        ),
        (
            "!GetAtt ProbeRole.Arn",
            "arn:aws:iam::000000000000:role/other",
            "is not a role of this template",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path());
        let text = std::fs::read_to_string(&options.template).unwrap();
        assert!(text.contains(old), "{old}");
        std::fs::write(&options.template, text.replacen(old, new, 1)).unwrap();
        let error = Stack::start(options).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// A policy that is evaluated by half would be worse than none.
#[test]
fn what_of_a_policy_is_not_supported_is_an_error_with_its_line() {
    let deployment = Deployment {
        stack_name: "template",
        sqs_endpoint: "http://127.0.0.1:1",
        parameters: &DEFAULTS,
        account_concurrency: USUAL_CONCURRENCY,
    };
    let text = include_str!("project/template.yaml");
    for (old, new, expected) in [
        (
            "Action: dynamodb:GetItem",
            "NotAction: dynamodb:GetItem",
            "NotAction of a statement is not supported",
        ),
        (
            "ArnLike: {",
            "IpAddress: {",
            "operator IpAddress is not supported",
        ),
        (
            "aws:SourceArn",
            "aws:SourceVpce",
            "key aws:SourceVpce is not supported",
        ),
        (
            "Action: [s3:GetObject, s3:DeleteObject]",
            "Action: [s3:ListBucket]",
            "in this statement has no effect",
        ),
        (
            "      Policies:\n",
            "      ManagedPolicyArns: [arn:aws:iam::aws:policy/ReadOnlyAccess]\n      Policies:\n",
            "managed policies are not evaluated",
        ),
        (
            "Version: \"2012-10-17\"",
            "Version: \"2008-10-17\"",
            "2008-10-17",
        ),
    ] {
        assert!(text.contains(old), "{old}");
        let error = Template::read(&text.replacen(old, new, 1), &deployment).unwrap_err();
        assert!(error.message.contains(expected), "{error}");
        assert!(error.line > 0, "{error}");
    }
}
