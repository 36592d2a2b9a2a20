//! Where the address, the scope and the token of a request come from.

use std::sync::{Arc, Mutex};

use axum::http::{HeaderMap, Uri};
use axum::{Json, Router};
use serde_json::json;

use crate::run_with_variables;
use crate::service::Service;

/// A service that notes the address and the token of each request.
fn noting() -> (Service, Arc<Mutex<Vec<String>>>) {
    let requests: Arc<Mutex<Vec<String>>> = Arc::default();
    let notes = Arc::clone(&requests);
    let note = move |uri: Uri, headers: HeaderMap| async move {
        let token = headers.get("authorization").map(|it| it.to_str().unwrap());
        let note = format!("{uri} {}", token.unwrap_or("without a token"));
        notes.lock().unwrap().push(note);
        Json(json!({"wanted": [], "more": 0}))
    };
    (Service::with(Router::new().fallback(note)), requests)
}

#[test]
fn the_configuration_a_profile_and_variables_say_what_is_asked() {
    let (service, requests) = noting();
    let (other, requests_of_other) = noting();
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("symdepot")).unwrap();
    let (url, other_url) = (service.url(), other.url());
    let config = format!(
        "url = '{url}'\nscope = 'acme'\n\n\
         [profile.prod]\nurl = '{url}/prod'\nscope = 'live'\ntoken = 'sdt_file'\n"
    );
    std::fs::write(home.path().join("symdepot/config.toml"), config).unwrap();
    let home = home.path().display().to_string();
    let asked = |arguments: &[&str], variables: &[(&str, &str)]| {
        let of_home = [("XDG_CONFIG_HOME", home.as_str())];
        let arguments = [&["wanted"], arguments].concat();
        let ended = run_with_variables(b"", &arguments, &[&of_home, variables].concat());
        assert_eq!(ended.code, 0, "{arguments:?}, {variables:?}: {}", ended.err);
        requests.lock().unwrap().pop()
    };
    let note = |note: &str| Some(note.to_owned());

    let of_config = note("/wanted?scope=acme without a token");
    assert_eq!(asked(&[], &[]), of_config);
    let of_profile = note("/prod/scope/live/wanted?scope=live Bearer sdt_file");
    assert_eq!(asked(&["--profile", "prod"], &[]), of_profile);
    let profile = ("SYMDEPOT_PROFILE", "prod");
    assert_eq!(asked(&[], &[profile]), of_profile);

    let (scope, token) = (
        ("SYMDEPOT_SCOPE", "beta"),
        ("SYMDEPOT_TOKEN", "sdt_variable"),
    );
    let of_variables = note("/scope/beta/wanted?scope=beta Bearer sdt_variable");
    assert_eq!(asked(&[], &[scope, token]), of_variables);
    // Arguments precede variables, which precede the profile.
    let of_argument = note("/prod/scope/gamma/wanted?scope=gamma Bearer sdt_variable");
    let arguments = ["--scope", "gamma"];
    assert_eq!(asked(&arguments, &[profile, scope, token]), of_argument);
    let no_token = ("SYMDEPOT_TOKEN", "");
    assert_eq!(asked(&[], &[no_token]), of_config);

    // A variable that was set from a file may have its line end, as on Windows.
    let pasted = ("SYMDEPOT_TOKEN", " sdt_variable\r\n");
    assert_eq!(asked(&[], &[scope, pasted]), of_variables);

    let elsewhere = ("SYMDEPOT_URL", other_url.as_str());
    assert_eq!(asked(&[], &[elsewhere]), None);
    let received = requests_of_other.lock().unwrap().pop();
    assert_eq!(received, of_config);
}

#[test]
fn a_token_that_no_header_can_have_is_refused_with_its_place() {
    let (service, requests) = noting();
    let url = service.url();
    for token in ["sdt_a\rb", "sdt_a b", "sdt_ä"] {
        let variables = [("SYMDEPOT_TOKEN", token)];
        let ended = run_with_variables(b"", &["wanted", "--url", &url], &variables);
        assert_eq!(ended.code, 2, "{token:?}: {}", ended.err);
        assert!(
            ended
                .err
                .contains("the access token in SYMDEPOT_TOKEN has a space"),
            "{}",
            ended.err
        );
        assert!(!ended.err.contains("sdt_"), "{}", ended.err);
    }
    assert!(requests.lock().unwrap().is_empty());
}
