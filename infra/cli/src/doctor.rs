//! `doctor`: checks the settings, the connection, the clock and the permissions, one after the
//! other, and says what to do about the first that fails.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use reqwest::{Method, StatusCode};
use symdepot::api::about::ServiceInfo;

use crate::client::{Client, HttpResponse};
use crate::error::CliError;
use crate::settings::Settings;
use crate::{Exit, Output};

/// The difference of clocks from which AWS refuses signatures.
const CLOCK: Duration = Duration::from_secs(5 * 60);

/// What to do if the token is not valid in the scope of requests without one.
const NO_SCOPE: &str = "No scope is set, so this program asks in `global`: set the scope for which the token was issued, with --scope, SYMDEPOT_SCOPE, or `scope` in the configuration";

pub(crate) async fn run(settings: &Settings) -> Result<Output, CliError> {
    let mut text = format!(
        "the service is {} (from {})\n",
        settings.shown_address(),
        settings.from
    );
    let client = match Client::new(settings).await {
        Ok(client) => client,
        Err(error) => return Ok(ended(text, &error.to_string())),
    };
    let answer = match client.send(Method::GET, "/about", &[], Vec::new()).await {
        Ok(answer) => answer,
        Err(error) => return Ok(ended(text, &error.to_string())),
    };
    text.push_str("ok: it answers\n");
    if let Some(problem) = clock(&answer, SystemTime::now()) {
        return Ok(ended(text, &problem));
    }
    if answer.date.is_some() {
        text.push_str("ok: the clocks agree\n");
    }
    match answer.status {
        StatusCode::OK => {}
        StatusCode::FORBIDDEN => {
            let refusal = client.refused("/about", &answer);
            let remedy = match (client.has_token(), &settings.scope) {
                (true, None) => NO_SCOPE,
                (true, Some(_)) => "Set the scope of the token, or ask for one with more rights",
                (false, _) => permission(&refusal, client.is_signed()),
            };
            let refusal = refusal.to_string();
            let refusal = refusal.trim_end_matches('.');
            return Ok(ended(text, &format!("{refusal}. {remedy}")));
        }
        _ => return Ok(ended(text, &client.refused("/about", &answer).to_string())),
    }
    let Ok(about) = serde_json::from_slice::<ServiceInfo>(&answer.body) else {
        let problem = "it is not symdepot: the answer to GET /about is something else";
        return Ok(ended(text, problem));
    };
    let _ = writeln!(
        text,
        "ok: symdepot {}, converter {}",
        about.version, about.converter
    );
    Ok(Output::done(text))
}

fn ended(mut text: String, problem: &str) -> Output {
    let _ = writeln!(text, "FAILED: {problem}");
    Output::ended(text, Exit::Failed)
}

/// Returns the problem if the clock of this machine differs from that of the service too much.
fn clock(answer: &HttpResponse, now: SystemTime) -> Option<String> {
    let date = answer.date?;
    let (difference, word) = match now.duration_since(date) {
        Ok(ahead) => (ahead, "ahead of"),
        Err(error) => (error.duration(), "behind"),
    };
    (difference > CLOCK).then(|| {
        format!(
            "the clock of this machine is {} s {word} that of the service: signatures are refused from {} s on; set the clock",
            difference.as_secs(),
            CLOCK.as_secs()
        )
    })
}

/// Returns what to do about a request that was refused.
fn permission(refusal: &CliError, is_signed: bool) -> &'static str {
    let text = refusal.to_string().to_lowercase();
    if text.contains("expired") {
        "The credentials have expired: log in again"
    } else if !is_signed {
        "The request was not signed, because only addresses of API Gateway (….execute-api.….amazonaws.…) get signed requests: use that address"
    } else if text.contains("security token") {
        "The credentials are not valid: check AWS_ACCESS_KEY_ID, or log in again"
    } else {
        "The credentials need the permission execute-api:Invoke on this API"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_clock_is_named_with_its_difference() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let at = |date: Option<SystemTime>| HttpResponse {
            status: StatusCode::OK,
            date,
            location: None,
            body: Vec::new(),
        };
        assert_eq!(clock(&at(None), now), None);
        assert_eq!(clock(&at(Some(now - CLOCK)), now), None);
        let behind = clock(&at(Some(now + Duration::from_secs(301))), now).unwrap();
        assert!(behind.contains("301 s behind"), "{behind}");
        let ahead = clock(&at(Some(now - Duration::from_secs(400))), now).unwrap();
        assert!(ahead.contains("400 s ahead of"), "{ahead}");
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let refused = |cause: &str, is_signed: bool| {
            let refusal = CliError::Forbidden {
                url: "https://a".to_owned(),
                cause: cause.to_owned(),
            };
            permission(&refusal, is_signed)
        };
        let expired = "The security token included in the request is expired";
        assert!(refused(expired, true).contains("log in"));
        let invalid = "The security token included in the request is invalid.";
        assert!(refused(invalid, true).contains("AWS_ACCESS_KEY_ID"));
        assert!(refused("Forbidden", false).contains("not signed"));
        assert!(refused("Forbidden", true).contains("execute-api:Invoke"));
    }
}
