//! Who may do what: every route, with every right, scope and kind of caller.

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use proptest::prelude::*;
use serde_json::{Value, json};
use symbolicate::testing::{Answer, answer};
use symdepot::flows::Invocation;
use symdepot_tests::harness::World;

const ID: &str = "bc6e45ac-487f-f425-3672-08b89f51ad48";

/// Where a request names its scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Query,
    Body,
    /// The key of an upload begins with it.
    Key,
    /// Nowhere but in the path.
    Path,
    /// It has none: it is about the service, or about the caller's tokens.
    Nowhere,
}

/// A route: its method, a request to it, where that names its scope, and the rights of which one is
/// enough. `admin` is enough for all, and `any` is no right in particular.
type Row = (&'static str, &'static str, Named, &'static [&'static str]);

const ROUTES: [Row; 18] = [
    ("POST", "/symbolicate", Named::Query, &["symbolicate"]),
    ("POST", "/minidump", Named::Query, &["symbolicate"]),
    ("POST", "/applecrashreport", Named::Query, &["symbolicate"]),
    ("POST", "/symbolicate-any", Named::Query, &["symbolicate"]),
    ("POST", "/symbolicate/v5", Named::Query, &["symbolicate"]),
    ("POST", "/attachments", Named::Query, &["symbolicate"]),
    (
        "GET",
        "/requests/bc6e45ac-487f-f425-3672-08b89f51ad48",
        Named::Query,
        &["symbolicate"],
    ),
    ("POST", "/uploads", Named::Body, &["upload"]),
    (
        "GET",
        "/explain?key=SCOPE/a.debug",
        Named::Key,
        &["symbolicate", "upload"],
    ),
    (
        "GET",
        "/explain?debug_id=bc6e45ac-487f-f425-3672-08b89f51ad48",
        Named::Query,
        &["symbolicate", "upload"],
    ),
    (
        "GET",
        "/symcache?debug_id=bc6e45ac-487f-f425-3672-08b89f51ad48",
        Named::Query,
        &["download"],
    ),
    ("GET", "/wanted", Named::Query, &["upload"]),
    (
        "GET",
        "/v3.1.0/a.pdb/ee78a075f42847b888239eed88fa9c34/1",
        Named::Path,
        &["download"],
    ),
    ("GET", "/rollout", Named::Nowhere, &["admin of every scope"]),
    ("GET", "/tokens", Named::Nowhere, &[]),
    ("DELETE", "/tokens/00", Named::Nowhere, &[]),
    ("GET", "/about", Named::Nowhere, &["any"]),
    ("GET", "/healthcheck", Named::Nowhere, &["any"]),
];

/// A request, and what the gateway found out about its sender.
#[derive(Clone, Debug, Default)]
struct Sent {
    method: String,
    path: String,
    /// The path as it was sent, if the gateway decodes it.
    sent_path: Option<&'static str>,
    query: String,
    body: Option<Value>,
    headers: Vec<(&'static str, String)>,
    authorizer: Option<Value>,
}

impl Sent {
    fn new(method: &str, target: &str) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Self {
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            ..Self::default()
        }
    }

    fn with_body(self, body: Value) -> Self {
        let body = Some(body);
        Self { body, ..self }
    }

    fn with_header(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }

    fn with_bearer(self, token: &str) -> Self {
        self.with_header("authorization", format!("Bearer {token}"))
    }

    fn below(self, prefix: &str) -> Self {
        let path = format!("{prefix}{}", self.path);
        Self { path, ..self }
    }

    /// Sent by a principal of the account.
    fn signed(self) -> Self {
        let arn = "arn:aws:iam::123456789012:user/operator";
        let authorizer = Some(json!({"iam": {"userArn": arn, "accountId": "123456789012"}}));
        Self { authorizer, ..self }
    }

    fn with_claims(self, claims: Value) -> Self {
        let authorizer = Some(json!({"jwt": {"claims": claims, "scopes": null}}));
        Self { authorizer, ..self }
    }

    /// Returns the key of the gateway's route for this path, which the gateway compares as it was
    /// sent.
    fn route(&self) -> &'static str {
        let is_jwt = self
            .authorizer
            .as_ref()
            .is_some_and(|it| it["jwt"].is_object());
        let path = self.sent_path.unwrap_or(&self.path);
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        match *segments {
            ["tokens"] => "ANY /tokens",
            ["tokens", _] => "ANY /tokens/{id}",
            ["rollout"] => "ANY /rollout",
            ["t", ..] => "ANY /t/{proxy+}",
            ["scope", ..] => "ANY /scope/{proxy+}",
            // Only there if an issuer is set.
            ["o", ..] if is_jwt => "ANY /o/{proxy+}",
            _ => "$default",
        }
    }

    fn event(&self) -> Value {
        let route = self.route();
        let headers: serde_json::Map<String, Value> = self
            .headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone().into()))
            .chain([("content-type".to_owned(), "application/json".into())])
            .collect();
        let mut event = json!({
            "version": "2.0", "routeKey": route, "rawPath": self.path, "rawQueryString": self.query,
            "headers": headers, "isBase64Encoded": false,
            "requestContext": {
                "accountId": "1", "apiId": "abc", "domainName": "abc", "domainPrefix": "abc",
                "requestId": "1", "routeKey": route, "stage": "$default",
                "time": "12/Mar/2020:19:03:58 +0000", "timeEpoch": 1,
                "http": {"method": self.method, "path": self.path, "protocol": "HTTP/1.1", "sourceIp": "1.2.3.4", "userAgent": "a"}
            }
        });
        if let Some(authorizer) = &self.authorizer {
            event["requestContext"]["authorizer"] = authorizer.clone();
        }
        if let Some(body) = &self.body {
            event["body"] = body.to_string().into();
        }
        event
    }

    async fn to(&self, world: &World) -> Answer {
        self.as_invocation(world, world.invocation(Duration::from_secs(29)))
            .await
    }

    async fn as_invocation(&self, world: &World, invocation: Invocation) -> Answer {
        let service = world.service().clone();
        answer(service, invocation, &self.event()).await.unwrap()
    }
}

fn json_of(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap_or_default()
}

/// Issues a token as the operator; returns the token and its id.
async fn issue(world: &World, scope: &str, rights: &[&str]) -> (String, String) {
    let body = json!({"name": "of a test", "scope": scope, "rights": rights});
    let sent = Sent::new("POST", "/tokens").with_body(body).signed();
    let issued = sent.to(world).await;
    assert_eq!(issued.status, 201, "{issued:?}");
    let text = |name: &str| json_of(&issued)[name].as_str().unwrap().to_owned();
    (text("token"), text("id"))
}

/// Returns a request to a route in a scope; `None`: it names none. In the path, if `in_path`.
fn request(row: &Row, scope: Option<&str>, in_path: bool) -> Sent {
    let (method, target, named, _) = *row;
    let target = target.replace("SCOPE", scope.unwrap_or("global"));
    let mut sent = Sent::new(method, &target);
    if named == Named::Body {
        sent = sent.with_body(json!({"files": []}));
    } else if method == "POST" {
        sent = sent.with_body(json!({"stacktraces": [], "modules": []}));
    }
    let Some(scope) = scope else {
        return sent;
    };
    if in_path || matches!(named, Named::Path | Named::Nowhere) {
        return sent.below(&format!("/scope/{scope}"));
    }
    match named {
        Named::Query => {
            let separator = if sent.query.is_empty() { "" } else { "&" };
            sent.query = format!("{}{separator}scope={scope}", sent.query);
        }
        Named::Body => sent.body = Some(json!({"scope": scope, "files": []})),
        Named::Key | Named::Path | Named::Nowhere => {}
    }
    sent
}

/// Returns whether a caller with these rights in this scope may send a request in a scope.
fn is_allowed(
    row: &Row,
    granted: &str,
    rights: &[&str],
    (scope, in_path): (Option<&str>, bool),
) -> bool {
    let (_, _, named, enough) = *row;
    let is_admin = rights.contains(&"admin");
    let has_right = match enough {
        ["admin of every scope"] => is_admin && granted == "*",
        ["any"] => true,
        enough => is_admin || enough.iter().any(|right| rights.contains(right)),
    };
    let in_scope = match (named, scope) {
        (_, None) => true,
        // The global uploads are read by all.
        (Named::Key, Some("global")) if !in_path => true,
        (_, Some(scope)) => granted == "*" || granted == scope,
    };
    has_right && in_scope
}

#[tokio::test(start_paused = true)]
async fn each_route_is_open_to_its_rights_in_the_scopes_of_the_caller_alone() {
    let world = World::new();
    let mut refused_without_a_call = 0;
    for granted in ["acme", "global", "*"] {
        for rights in [&["symbolicate"][..], &["upload"], &["download"], &["admin"]] {
            let (token, _) = issue(&world, granted, rights).await;
            // The token is looked up once.
            let known = Sent::new("GET", "/healthcheck").with_bearer(&token);
            assert_eq!(known.to(&world).await.status, 200);
            let claims = json!({
                "iss": "https://issuer.test", "sub": "someone",
                "symdepot_scopes": granted, "symdepot_rights": rights.join(" "),
            });
            for row in &ROUTES {
                for scope in [None, Some("acme"), Some("other"), Some("global")] {
                    for in_path in [false, true] {
                        let expected = is_allowed(row, granted, rights, (scope, in_path));
                        let sent = request(row, scope, in_path);
                        let by_token = sent.clone().with_bearer(&token);
                        let by_path = sent.clone().below(&format!("/t/{token}"));
                        let by_jwt = sent.with_claims(claims.clone()).below("/o");
                        for sent in [by_token, by_path, by_jwt] {
                            let calls = world.calls();
                            let answer = sent.to(&world).await;
                            let what = format!("{granted} {rights:?}: {sent:?}: {answer:?}");
                            let is_refused = matches!(answer.status, 401 | 403);
                            assert_eq!(!is_refused, expected, "{what}");
                            if is_refused {
                                assert_eq!(answer.status, 403, "{what}");
                                assert_eq!(world.calls(), calls, "{what}");
                                refused_without_a_call += 1;
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(refused_without_a_call > 1000, "{refused_without_a_call}");
}

#[tokio::test(start_paused = true)]
async fn a_misspelled_scope_is_refused_before_any_call_by_every_route_that_has_or_lacks_one() {
    let world = World::new();
    // Load balancers add parameters to the health check, and clients to paths of the protocol.
    let is_tolerant = |path: &str| path == "/healthcheck" || path.starts_with("/v3.1.0/");
    let issue_token: Row = ("POST", "/tokens", Named::Nowhere, &[]);
    for row in ROUTES.iter().chain([&issue_token]) {
        let mut sent = request(row, None, false).signed();
        let separator = if sent.query.is_empty() { "" } else { "&" };
        sent.query = format!("{}{separator}scpoe=acme", sent.query);
        let calls = world.calls();
        let answer = sent.to(&world).await;
        if is_tolerant(&sent.path) {
            assert_ne!(answer.status, 400, "{sent:?}: {answer:?}");
            continue;
        }
        assert_eq!(answer.status, 400, "{sent:?}: {answer:?}");
        assert!(
            json_of(&answer)["causes"][0]
                .as_str()
                .is_some_and(|cause| cause.contains("scpoe")),
            "{sent:?}: {answer:?}"
        );
        assert_eq!(world.calls(), calls, "{sent:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_upload_is_in_the_scope_of_its_query_or_body_which_are_the_same() {
    let world = World::new();
    let file = json!({"name": "a.debug", "size": 1, "sha256": "0".repeat(64), "ids": ["ab"]});
    let key = async |query: &str, scope: Option<&str>| {
        let mut body = json!({"files": [file]});
        if let Some(scope) = scope {
            body["scope"] = scope.into();
        }
        let sent = Sent::new("POST", &format!("/uploads?{query}")).with_body(body);
        let answer = sent.signed().to(&world).await;
        match answer.status {
            200 => json_of(&answer)["files"][0]["key"]
                .as_str()
                .map(str::to_owned),
            status => Some(format!("{status}: {}", json_of(&answer)["detail"])),
        }
    };
    let acme = format!("acme/a.debug/ab/{}", "0".repeat(16));
    assert_eq!(key("scope=acme", None).await, Some(acme.clone()));
    assert_eq!(key("scope=acme", Some("acme")).await, Some(acme.clone()));
    assert_eq!(key("", Some("acme")).await, Some(acme));
    for (query, body) in [("scope=acme", "other"), ("scope=acme", "global")] {
        let refused = key(query, Some(body)).await.unwrap();
        assert!(refused.starts_with("400: "), "{refused}");
        assert!(
            refused.contains("the query names the scope acme"),
            "{refused}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_events_in_infra_are_let_in_or_refused_by_what_their_senders_showed() {
    let world = World::new();
    for (text, expected) in [
        (include_str!("../../../infra/events/symbolicate.json"), 200),
        (include_str!("../../../infra/events/jwt.json"), 200),
        (include_str!("../../../infra/events/unsigned.json"), 401),
        (
            include_str!("../../../infra/events/unknown-token.json"),
            401,
        ),
    ] {
        let event: Value = serde_json::from_str(text).unwrap();
        let calls = world.calls();
        let invocation = world.invocation(Duration::from_secs(29));
        let answer = answer(world.service().clone(), invocation, &event);
        let answer = answer.await.unwrap();
        assert_eq!(answer.status, expected, "{event}: {answer:?}");
        let has_token = text.contains("sdt_");
        if expected == 401 && !has_token {
            assert_eq!(world.calls(), calls, "{event}");
        }
    }
    // The claims grant one scope.
    let text =
        include_str!("../../../infra/events/jwt.json").replace("/scope/acme/", "/scope/other/");
    let event: Value = serde_json::from_str(&text).unwrap();
    let invocation = world.invocation(Duration::from_secs(29));
    let refused = answer(world.service().clone(), invocation, &event).await;
    assert_eq!(refused.unwrap().status, 403);
}

#[tokio::test(start_paused = true)]
async fn the_table_of_this_test_has_every_route() {
    let document = symbolicate::openapi::document();
    let paths = document["paths"].as_object().unwrap();
    let documented: BTreeSet<String> = paths
        .iter()
        .filter(|(path, _)| !path.starts_with("/scope/") && !path.starts_with("/symcache/"))
        .flat_map(|(path, item)| {
            let first = path.split('/').nth(1).unwrap_or_default();
            let first = if first.starts_with("v{") {
                "v3.1.0"
            } else {
                first
            };
            let methods = item.as_object().unwrap().keys().cloned();
            methods
                .filter(|method| method != "head")
                .map(move |method| format!("{} {first}", method.to_uppercase()))
                .collect::<Vec<_>>()
        })
        .collect();
    let tested = ROUTES.iter().map(|(method, target, ..)| {
        let first = target.split(['/', '?']).nth(1).unwrap_or_default();
        format!("{method} {first}")
    });
    let mut tested: BTreeSet<String> = tested.collect();
    // The test issues its tokens by this route.
    tested.insert("POST tokens".to_owned());
    assert_eq!(tested, documented);
}

#[tokio::test(start_paused = true)]
async fn without_a_credential_nothing_is_read_and_the_answer_is_a_challenge() {
    let world = World::new();
    let (token, id) = issue(&world, "acme", &["admin"]).await;
    let basic = |pair: &str| format!("Basic {}", BASE64_STANDARD.encode(pair));
    let unknown = format!("sdt_{}", "A".repeat(43));
    for row in &ROUTES {
        for scope in [None, Some("acme")] {
            let plain = request(row, scope, true);
            let malformed = [
                plain.clone(),
                plain.clone().with_bearer("eyJhbGciOi"),
                plain.clone().with_bearer(&id),
                plain
                    .clone()
                    .with_header("authorization", basic("user:secret")),
                plain.clone().below("/t/secret"),
                plain.clone().below("/o"),
            ];
            for sent in malformed {
                let calls = world.calls();
                let answer = sent.to(&world).await;
                assert_eq!(answer.status, 401, "{sent:?}");
                let challenge = answer.headers.get("www-authenticate").unwrap();
                assert!(challenge.to_str().unwrap().starts_with("Basic realm="));
                assert_eq!(world.calls(), calls, "{sent:?}");
            }
        }
    }
    // An unknown token costs one read a minute.
    let calls = world.calls();
    for _ in 0..50 {
        let sent = Sent::new("GET", "/wanted").with_bearer(&unknown);
        assert_eq!(sent.to(&world).await.status, 401);
    }
    assert_eq!(world.calls(), calls + 1);
    world.wait(Duration::from_secs(61)).await;
    let sent = Sent::new("GET", "/wanted").with_bearer(&unknown);
    assert_eq!(sent.to(&world).await.status, 401);
    assert_eq!(world.calls(), calls + 2);
    // The operator needs no token, and neither path nor header make a caller one.
    for sent in [
        Sent::new("GET", "/rollout").with_bearer(&token),
        Sent::new("GET", "/rollout").with_header("x-local-operator", "1".to_owned()),
    ] {
        assert!(
            matches!(sent.to(&world).await.status, 401 | 403),
            "{sent:?}"
        );
    }
    assert_eq!(
        Sent::new("GET", "/rollout")
            .signed()
            .to(&world)
            .await
            .status,
        200
    );
}

/// An IAM policy allows and denies routes: one that denies the routes of administrators would deny
/// nothing if their paths could be reached by another route.
#[tokio::test(start_paused = true)]
async fn a_principal_administers_only_by_the_routes_that_its_policy_can_name() {
    let world = World::new();
    let body = json!({"name": "of a test", "scope": "*", "rights": ["admin"]});
    let (_, id) = issue(&world, "acme", &["upload"]).await;
    let detours = |target: &str, sent_path| {
        [
            Sent::new("GET", target).below("/o"),
            Sent {
                sent_path: Some(sent_path),
                ..Sent::new("GET", target)
            },
        ]
    };
    let revoked = format!("/tokens/{id}");
    for (target, sent_path) in [
        ("/tokens", "/%74okens"),
        ("/rollout", "/roll%6Fut"),
        (&revoked, "/%74okens/00"),
    ] {
        for sent in detours(target, sent_path) {
            let methods = ["GET", "POST", "DELETE"].map(str::to_owned);
            for method in methods {
                let body = (method == "POST").then(|| body.clone());
                let sent = Sent {
                    method,
                    body,
                    ..sent.clone().signed()
                };
                let answer = sent.to(&world).await;
                assert!(matches!(answer.status, 403..=405), "{sent:?}: {answer:?}");
            }
        }
    }
    let listed = Sent::new("GET", "/tokens").signed().to(&world).await;
    assert_eq!(json_of(&listed)["tokens"].as_array().unwrap().len(), 1);
    let wanted = Sent::new("GET", "/wanted?scope=acme").signed();
    assert_eq!(wanted.to(&world).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn on_the_local_stack_anyone_may_enter_but_not_with_an_unknown_token() {
    let world = World::with(|settings| settings.allows_anonymous = true);
    for row in &ROUTES {
        for scope in [None, Some("acme")] {
            let answer = request(row, scope, false).to(&world).await;
            assert!(!matches!(answer.status, 401 | 403), "{row:?}: {answer:?}");
        }
    }
    let about = || Sent::new("GET", "/about");
    let password = format!("Basic {}", BASE64_STANDARD.encode("user:password"));
    for sent in [
        about().with_bearer("wrong"),
        about().with_header("authorization", password),
        about().below("/t/wrong"),
    ] {
        let answer = sent.to(&world).await;
        assert_eq!(answer.status, 200, "{sent:?}: {answer:?}");
    }
    let unknown = about().with_bearer(&format!("sdt_{}", "A".repeat(43)));
    let refused = unknown.to(&world).await;
    assert_eq!(refused.status, 401);
    let detail = json_of(&refused)["detail"].to_string();
    assert!(
        detail.contains("needs no credential (AUTH=open)"),
        "{detail}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_token_is_shown_once_stored_as_a_hash_and_sent_in_three_ways() {
    let world = World::new();
    let (token, id) = issue(&world, "acme", &["upload"]).await;
    let basic = |pair: String| format!("Basic {}", BASE64_STANDARD.encode(pair));
    let plain = || Sent::new("GET", "/wanted");
    for sent in [
        plain().with_bearer(&token),
        plain().with_header("authorization", basic(format!("user:{token}"))),
        plain().with_header("authorization", basic(format!("{token}:"))),
        plain().below(&format!("/t/{token}")),
        plain().below(&format!("/t/{token}/scope/acme")),
    ] {
        let answer = sent.to(&world).await;
        assert_eq!(answer.status, 200, "{sent:?}: {answer:?}");
        assert!(!format!("{answer:?}").contains(&token));
    }
    let stored = format!("{world:?}");
    assert!(stored.contains(&id) && !stored.contains(&token));
    let listed = Sent::new("GET", "/tokens").signed().to(&world).await;
    let tokens = json_of(&listed)["tokens"].clone();
    assert_eq!(
        (&tokens[0]["id"], &tokens[0]["scope"]),
        (&id.into(), &"acme".into())
    );
    assert!(tokens[0].get("token").is_none() && tokens.as_array().unwrap().len() == 1);
    // What no route serves is answered without the token in its path.
    let lost = Sent::new("GET", "/nowhere").below(&format!("/t/{token}"));
    let lost = lost.to(&world).await;
    assert_eq!(lost.status, 404);
    assert!(!String::from_utf8_lossy(&lost.body).contains(&token));
}

#[tokio::test(start_paused = true)]
async fn a_revoked_token_is_refused_by_every_instance_within_a_minute_and_an_expired_one_at_once() {
    let world = World::new();
    let other = world.another_instance();
    let (token, id) = issue(&world, "acme", &["upload"]).await;
    let sent = Sent::new("GET", "/wanted").with_bearer(&token);
    for instance in [&world, &other] {
        assert_eq!(sent.to(instance).await.status, 200);
    }
    let revoke = Sent::new("DELETE", &format!("/tokens/{id}")).signed();
    assert_eq!(revoke.to(&world).await.status, 204);
    assert_eq!(sent.to(&world).await.status, 401);
    // The other instance does not know yet.
    assert_eq!(sent.to(&other).await.status, 200);
    world.wait(Duration::from_secs(31)).await;
    assert_eq!(sent.to(&other).await.status, 401);
    assert_eq!(revoke.to(&world).await.status, 404);
    let listed = Sent::new("GET", "/tokens").signed().to(&world).await;
    assert_eq!(json_of(&listed)["tokens"], json!([]));
    // The pruner keeps the item of a valid token, and removes those that have expired.
    let (token, _) = issue(&world, "acme", &["upload"]).await;
    let sent = Sent::new("GET", "/wanted").with_bearer(&token);
    world.pass(Duration::from_secs(364 * 24 * 3600)).await;
    world.prune().await.unwrap();
    assert_eq!(sent.to(&world).await.status, 200);
    world.pass(Duration::from_secs(24 * 3600)).await;
    assert_eq!(sent.to(&world).await.status, 401);
    world.prune().await.unwrap();
    assert!(!world.summary().contains("token "), "{}", world.summary());
}

#[tokio::test(start_paused = true)]
async fn an_admin_of_a_scope_manages_the_tokens_of_that_scope_alone() {
    let world = World::new();
    let (admin, _) = issue(&world, "acme", &["admin"]).await;
    let (_, of_other) = issue(&world, "other", &["upload"]).await;
    let (_, of_every) = issue(&world, "*", &["upload"]).await;
    let ask = |scope: &str| {
        let body = json!({"name": "x", "scope": scope, "rights": ["admin"]});
        Sent::new("POST", "/tokens")
            .with_body(body)
            .with_bearer(&admin)
    };
    for (scope, status) in [
        ("acme", 201),
        ("other", 403),
        ("*", 403),
        ("global", 403),
        ("a/b", 422),
    ] {
        assert_eq!(ask(scope).to(&world).await.status, status, "{scope}");
    }
    let listed = Sent::new("GET", "/tokens")
        .with_bearer(&admin)
        .to(&world)
        .await;
    let listed = json_of(&listed)["tokens"].as_array().unwrap().clone();
    assert_eq!(listed.len(), 2, "{listed:?}");
    assert!(listed.iter().all(|token| token["scope"] == "acme"));
    // A token of another scope is as unknown as one that does not exist.
    let nothing = Sent::new("DELETE", &format!("/tokens/{}", "0".repeat(64)));
    let nothing = nothing.with_bearer(&admin).to(&world).await;
    for id in [of_other, of_every] {
        let revoke = Sent::new("DELETE", &format!("/tokens/{id}")).with_bearer(&admin);
        assert_eq!(revoke.to(&world).await, nothing);
    }
    for wrong in [
        json!({"name": "", "scope": "acme", "rights": ["upload"]}),
        json!({"name": "x", "scope": "acme", "rights": []}),
        json!({"name": "x", "scope": "acme", "rights": ["upload"], "days": 0}),
        json!({"name": "x", "scope": "acme", "rights": ["upload"], "days": 3651}),
        json!({"name": "x", "scope": "", "rights": ["upload"]}),
    ] {
        let sent = Sent::new("POST", "/tokens")
            .with_body(wrong.clone())
            .signed();
        assert_eq!(sent.to(&world).await.status, 422, "{wrong}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_scope_with_all_its_tokens_leaves_room_for_those_of_other_scopes() {
    let world = World::new();
    for _ in 0..500 {
        issue(&world, "acme", &["upload"]).await;
    }
    let ask = |scope: &str| {
        let body = json!({"name": "x", "scope": scope, "rights": ["upload"]});
        Sent::new("POST", "/tokens").with_body(body).signed()
    };
    let refused = ask("acme").to(&world).await;
    assert_eq!(refused.status, 422);
    let detail = json_of(&refused)["detail"].to_string();
    assert!(detail.contains("500 tokens of this scope"), "{detail}");
    assert_eq!(ask("other").to(&world).await.status, 201);
}

/// The id of the pending request of the other tenant.
const PENDING: &str = "11111111-2222-4333-8444-555555555555";

/// Returns a world with uploads in the global scope and in that of `acme`. With `has_other`, the
/// tenant `other` has used the service, too. Also returns a token of `acme`.
async fn tenants(has_other: bool) -> (World, String) {
    let world = World::new();
    let (token, _) = issue(&world, "acme", &["symbolicate", "upload", "download"]).await;
    world.upload("global/crash.debug", "elf/crash.debug").await;
    if has_other {
        world.upload("other/crash.debug", "elf/crash.debug").await;
        world.upload("other/crash", "elf/crash").await;
        let (theirs, _) = issue(&world, "other", &["admin"]).await;
        let pdb = "/v3.1.0/secret.pdb/ee78a075f42847b888239eed88fa9c34/1";
        for _ in 0..3 {
            let wanted = Sent::new("GET", pdb).with_bearer(&theirs);
            assert_eq!(wanted.to(&world).await.status, 404);
        }
        let body = json!({"stacktraces": [], "modules": []}).to_string();
        let service = world.service();
        let kept = symdepot::flows::requests::RequestToStore::received(body.as_bytes());
        let invocation = world.invocation(Duration::from_secs(29));
        let scope = "other".parse().unwrap();
        service
            .store_request(&invocation, PENDING, &scope, kept)
            .await
            .unwrap();
        let mine = Sent::new("GET", &format!("/requests/{PENDING}")).with_bearer(&theirs);
        assert_eq!(mine.to(&world).await.status, 200);
    }
    (world, token)
}

/// Requests that a tenant might send to learn about another one.
fn probe() -> impl Strategy<Value = Sent> {
    let scope = prop::sample::select(vec!["", "acme", "other", "global", "*", "Other"]);
    let key = prop::sample::select(vec!["crash.debug", "crash", "none"]);
    let row = prop::sample::select(ROUTES.to_vec());
    let pdb = prop::sample::select(vec!["secret.pdb", "a.pdb"]);
    (row, scope, key, pdb, any::<bool>(), any::<bool>()).prop_map(
        |(row, scope, key, pdb, in_path, twice)| {
            let scope = Some(scope).filter(|scope| !scope.is_empty());
            let mut sent = request(&row, scope, in_path);
            sent.query = sent.query.replace("a.debug", key);
            sent.path = sent.path.replace("a.pdb", pdb).replace(ID, PENDING);
            if twice {
                sent = sent.below("/scope/acme");
            }
            if sent.path.ends_with("/symbolicate") {
                let crash = std::fs::read_to_string(symdepot_tests::stack::fixture("crash.json"));
                sent.body = crash
                    .ok()
                    .and_then(|text| serde_json::from_str(&text).ok())
                    .or(sent.body);
                sent.query = format!("{}&timeout=0", sent.query);
            }
            if sent.path.ends_with("/symbolicate/v5") {
                let module = ["crash", "BC6E45AC487FF425367208B89F51AD480"];
                sent.body = Some(json!({"memoryMap": [module], "stacks": [[[0, 0x3950]]]}));
                sent.query = format!("{}&timeout=0", sent.query);
            }
            sent
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// If another tenant has uploads, tokens, pending and wanted things or not makes no difference
    /// to any response: no byte, no name, no existence.
    #[test]
    fn no_response_depends_on_another_tenant(probes in prop::collection::vec(probe(), 1..24)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let answers = |has_other: bool| {
            runtime.block_on(async {
                let (world, token) = tenants(has_other).await;
                let mut answers = Vec::new();
                for (at, sent) in probes.iter().enumerate() {
                    let sent = sent.clone().with_bearer(&token);
                    let seed = [u8::try_from(at).unwrap(); 32];
                    let now = Duration::from_secs(world.now().as_secs());
                    let left = Duration::from_secs(29);
                    let invocation = Invocation::new("a probe".to_owned(), now, left, seed);
                    answers.push(sent.as_invocation(&world, invocation).await);
                }
                answers
            })
        };
        let (alone, beside) = (answers(false), answers(true));
        for ((sent, alone), beside) in probes.iter().zip(alone).zip(beside) {
            prop_assert_eq!(alone, beside, "{:?}", sent);
        }
    }
}

/// Joins an address as Sentry does, with Python's `urljoin`: the last segment of the base is
/// replaced.
fn joined(base: &str, path: &str) -> String {
    let (folder, _) = base.trim_end_matches('/').rsplit_once('/').unwrap();
    format!("{folder}/{path}")
}

#[tokio::test(start_paused = true)]
async fn a_client_that_replaces_the_last_segment_of_its_base_needs_one_after_the_token() {
    let world = World::new();
    let (token, _) = issue(&world, "*", &["symbolicate"]).await;
    for (base, expected) in [
        (format!("/t/{token}/_"), 200),
        (format!("/t/{token}/_/"), 200),
        (format!("/t/{token}"), 401),
        (format!("/t/{token}/"), 401),
        (format!("/t/{token}/scope/42"), 404),
    ] {
        // The scope is the id of a project.
        let path = joined(&base, "symbolicate?timeout=5&scope=42");
        let sent = Sent::new("POST", &path).with_body(json!({"stacktraces": [], "modules": []}));
        let answered = sent.to(&world).await;
        assert_eq!(answered.status, expected, "{base}: {answered:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn empty_segments_of_a_path_change_neither_its_route_nor_its_caller() {
    let world = World::new();
    let (token, _) = issue(&world, "acme", &["symbolicate"]).await;
    for path in [
        format!("/t/{token}//about"),
        format!("//t/{token}//scope/acme//about"),
    ] {
        let answered = Sent::new("GET", &path).to(&world).await;
        assert_eq!(answered.status, 200, "{path}: {answered:?}");
    }
    let (token, _) = issue(&world, "acme", &["download"]).await;
    let file = "v3.1.0/have.pdb/ee78a075f42847b888239eed88fa9c34/1";
    for path in [
        format!("/t/{token}//{file}"),
        format!("/t/{token}/symcache//{file}"),
    ] {
        let answered = Sent::new("GET", &path).to(&world).await;
        // The file does not exist. Without a route, the body would say so.
        assert_eq!((answered.status, answered.body.len()), (404, 0), "{path}");
    }
    // The gateway has compared the path as it was sent, and a principal is an admin only on the
    // routes of admins.
    for path in ["//tokens", "//rollout"] {
        let refused = Sent::new("GET", path).signed().to(&world).await;
        assert_eq!(refused.status, 403, "{path}: {refused:?}");
    }
    let other = Sent::new("GET", &format!("/t/{token}//scope/other/about"));
    assert_eq!(other.to(&world).await.status, 403);
}
