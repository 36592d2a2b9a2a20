//! Sends telemetry to a collector. The operator chooses its address, which may be private.

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, Url};

use super::clients::client;
use super::short::bytes_within;
use crate::domain::chain;

/// The maximum number of bytes that are read of a response.
const RESPONSE_BYTES: usize = 16 * 1024;

/// A collector that receives JSON by HTTP.
#[derive(Debug)]
pub struct HttpCollector {
    client: Client,
    endpoint: Url,
}

impl HttpCollector {
    /// Returns a collector at an address. Each request has the headers, and ends after
    /// `time_limit`.
    ///
    /// # Errors
    ///
    /// Why there is no client, as on a machine without root certificates.
    pub fn new(
        endpoint: Url,
        mut headers: HeaderMap,
        time_limit: Duration,
    ) -> Result<Self, String> {
        let json = HeaderValue::from_static("application/json");
        headers.insert(CONTENT_TYPE, json);
        let client = client()
            .default_headers(headers)
            .timeout(time_limit)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { client, endpoint })
    }

    /// Sends a body. Returns the response, or nothing if it has more than 16 KiB.
    ///
    /// # Errors
    ///
    /// Why the collector has not accepted it, without the address, which may contain a credential.
    pub async fn send(&self, body: Vec<u8>) -> Result<Vec<u8>, String> {
        let request = self.client.post(self.endpoint.clone()).body(body);
        let response = request.send().await.map_err(described)?;
        let status = response.status();
        if !status.is_success() {
            return Err(format!("the collector answered {status}"));
        }
        // A connection is used again only if its response was read to its end.
        let read = bytes_within(response, RESPONSE_BYTES).await;
        Ok(read.map_err(described)?.unwrap_or_default())
    }
}

fn described(error: reqwest::Error) -> String {
    if error.is_timeout() {
        "the collector did not answer in time".to_owned()
    } else {
        chain(&error.without_url())
    }
}
