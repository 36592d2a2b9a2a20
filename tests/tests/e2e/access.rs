//! Access tokens on a stack that requires a credential.

use reqwest::Method;
use serde_json::{Value, json};

use crate::secrets::files_below;
use crate::{Running, bytes_of, crash};

/// Issues a token; returns it, and its id.
pub(crate) async fn issue(running: &Running, scope: &str, rights: &[&str]) -> (String, String) {
    let operator = running.client().as_operator();
    let body = json!({"name": "of a test", "scope": scope, "rights": rights});
    let request = operator.request(Method::POST, "/tokens").json(&body);
    let issued = operator.send("a token", request).await.unwrap();
    let issued = issued.expect(201, "a token").unwrap().body;
    let text = |name: &str| issued[name].as_str().unwrap().to_owned();
    (text("token"), text("id"))
}

#[tokio::test]
async fn with_auth_nobody_enters_without_a_credential_and_a_token_appears_nowhere() {
    let running = Running::start_with(|options| options.variable("AUTH", "token")).await;
    running
        .upload("acme/crash.debug", bytes_of("elf/crash.debug"))
        .await;
    let client = running.client();
    let status = async |request: reqwest::RequestBuilder| {
        client.send("a request", request).await.unwrap().status
    };
    for path in [
        "/healthcheck",
        "/about",
        "/rollout",
        "/wanted",
        "/t/x/about",
        "/nowhere",
    ] {
        assert_eq!(
            status(client.request(Method::GET, path)).await,
            401,
            "{path}"
        );
    }
    let refused = client.request(Method::GET, "/about").send().await.unwrap();
    assert!(refused.headers().contains_key("www-authenticate"));

    let (token, id) = issue(&running, "acme", &["symbolicate", "download"]).await;
    let crash_at = |path: String| client.request(Method::POST, &path).json(&crash::sample());
    for request in [
        crash_at(format!("/t/{token}/symbolicate")),
        crash_at(format!("/t/{token}/scope/acme/symbolicate")),
        crash_at("/scope/acme/symbolicate".to_owned()).bearer_auth(&token),
        crash_at("/symbolicate?scope=acme".to_owned()).basic_auth("user", Some(&token)),
    ] {
        let reply = client.send("a crash", request).await.unwrap();
        crash::assert_symbolicated(&reply.expect(200, "a crash").unwrap().body);
    }
    // The redirect to S3 needs no credential, and has none.
    let module = crash::sample_module();
    let debug_id = module["debug_id"].as_str().unwrap();
    let path = format!("/t/{token}/symcache?debug_id={debug_id}");
    let file = client.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(file.status(), 200);
    assert!(!file.url().as_str().contains(&token), "{}", file.url());
    let elsewhere = client.request(Method::GET, "/scope/other/wanted");
    assert_eq!(status(elsewhere.bearer_auth(&token)).await, 403);

    let operator = client.as_operator();
    let revoke = operator.request(Method::DELETE, &format!("/tokens/{id}"));
    assert_eq!(status(revoke).await, 204);
    // Another instance may know the token for some more seconds.
    client.end_functions().await.unwrap();
    assert_eq!(
        status(crash_at(format!("/t/{token}/symbolicate"))).await,
        401
    );

    // Logs, records and blobs have the hash of the token at most.
    let folder = running.stop().await;
    let (mut has_hash, mut callers) = (false, 0);
    for file in files_below(folder.path()) {
        let bytes = std::fs::read(&file).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains(&token), "{}", file.display());
        has_hash |= text.contains(&id);
        for line in text.lines().filter(|line| line.contains("request served")) {
            let line: Value = serde_json::from_str(line).unwrap_or_default();
            callers += usize::from(line["caller"].as_str().is_some_and(|name| name.len() == 16));
        }
    }
    assert!(has_hash && callers > 5, "{has_hash} {callers}");
}
