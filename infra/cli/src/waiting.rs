//! Sends a request to symbolicate, and waits until it is complete.

use std::time::Duration;

use indicatif::ProgressBar;
use reqwest::Method;
use symdepot::api::symbolicator::{Completed, Response};
use tokio::time::Instant;

use crate::body::Body;
use crate::client::{Client, JsonRequest};
use crate::error::CliError;
use crate::retry::WaitLimit;
use crate::settings::Settings;

/// The longest time for which one request waits; the service waits no longer.
const ROUND: Duration = Duration::from_secs(25);

/// The time from one request to the next. A request whose builds are in queues is answered at once.
const PACE: Duration = Duration::from_secs(1);

/// Sends requests for as long as the user waits.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    client: &'a Client,
    scope: Option<&'a str>,
    limit: WaitLimit,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(client: &'a Client, settings: &'a Settings, wait: Duration) -> Self {
        Self {
            client,
            scope: settings.scope.as_ref().map(|scope| scope.as_str()),
            limit: WaitLimit::of(wait),
        }
    }

    /// Returns the scope of the requests.
    pub(crate) fn scope(&self) -> Option<&'a str> {
        self.scope
    }

    /// Posts a body to a path, and returns the response; `None` if it is still pending after the
    /// time to wait.
    pub(crate) async fn completed(
        &self,
        path: &str,
        body: Body,
    ) -> Result<Option<Completed>, CliError> {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(100));
        bar.set_message("symbolicating");
        let timeout = self.round();
        let mut query = vec![("timeout", timeout.as_str())];
        query.extend(self.scope.map(|scope| ("scope", scope)));
        let request = JsonRequest {
            method: Method::POST,
            path,
            query: &query,
            body,
        };
        let mut answer = self.client.request_json(&request, &self.limit).await?;
        let mut next = Instant::now();
        loop {
            answer = match answer {
                Response::Completed(completed) => {
                    bar.finish_and_clear();
                    return Ok(Some(completed));
                }
                Response::Pending { .. } if self.limit.left().is_zero() => {
                    bar.finish_and_clear();
                    anstream::eprintln!(
                        "the service is still preparing modules: run the same command again, or wait longer with --wait"
                    );
                    return Ok(None);
                }
                Response::Pending { request_id, .. } => {
                    bar.set_message("the service prepares modules");
                    tokio::time::sleep_until(next).await;
                    next = Instant::now() + PACE;
                    let path = format!("/requests/{request_id}");
                    let timeout = self.round();
                    let request = JsonRequest {
                        method: Method::GET,
                        path: &path,
                        query: &[("timeout", timeout.as_str())],
                        body: Body::json(Vec::new()),
                    };
                    self.client.request_json(&request, &self.limit).await?
                }
                Response::Failed { message } => return Err(self.failed(message)),
                Response::Timeout => return Err(self.failed("it took too long".to_owned())),
                Response::InternalError => {
                    return Err(self.failed("an internal error".to_owned()));
                }
            };
        }
    }

    /// Returns the seconds for which the next request waits.
    fn round(&self) -> String {
        self.limit.left().min(ROUND).as_secs().to_string()
    }

    fn failed(&self, cause: String) -> CliError {
        CliError::Failed {
            url: self.client.shown(),
            cause,
        }
    }
}
