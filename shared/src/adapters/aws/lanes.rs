//! Lanes as SQS standard queues.
//!
//! Messages of one scope and source form a group: SQS then lets the groups take turns where one of them has a backlog
//! (SQS developer guide, "Amazon SQS fair queues").

use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_sqs::Client;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::error::store_error;
use crate::cache::Lane;
use crate::domain::SourceKey;
use crate::ports::{LaneMessage, Lanes, ReconcileMessage, StoreError, StoreErrorKind};

/// The longest delay of a message (SQS API reference, `SendMessage`, `DelaySeconds`).
const MAX_DELAY_SECONDS: u64 = 900;

/// The lanes as queues of SQS.
#[derive(Clone, Debug)]
pub struct SqsLanes {
    client: Client,
    urls: LaneUrls,
}

/// The URLs of the queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneUrls {
    /// Of the eager lane.
    pub eager: String,
    /// Of the lane that uploads are announced in.
    pub uploads: String,
    /// Of the refresh lane.
    pub refresh: String,
}

impl SqsLanes {
    /// Returns the lanes behind these URLs.
    pub fn new(client: Client, urls: LaneUrls) -> Self {
        Self { client, urls }
    }

    async fn send_body(
        &self,
        url: &str,
        message: &(impl Serialize + Sync),
        group: String,
        delay: Duration,
    ) -> Result<(), StoreError> {
        let context = || format!("SQS SendMessage to {url}");
        let body = serde_json::to_string(message)
            .map_err(|error| StoreError::new(StoreErrorKind::Bug, context()).caused_by(error))?;
        let sent = self
            .client
            .send_message()
            .queue_url(url)
            .message_body(ascii(&body))
            .delay_seconds(delay_seconds(delay))
            .message_group_id(group)
            .send()
            .await;
        sent.map(drop)
            .map_err(|error| store_error(context(), &error))
    }
}

#[async_trait]
impl Lanes for SqsLanes {
    async fn send(&self, message: &LaneMessage, delay: Duration) -> Result<(), StoreError> {
        let url = match message.lane {
            Lane::Eager => &self.urls.eager,
            Lane::Uploads => &self.urls.uploads,
            Lane::Refresh => &self.urls.refresh,
        };
        let group = group(message.module.scope.as_str(), &message.module.source);
        self.send_body(url, message, group, delay).await
    }

    async fn reconcile(&self, message: &ReconcileMessage) -> Result<(), StoreError> {
        let key = message.reconcile.as_str();
        let scope = key.split_once('/').map_or("", |(scope, _)| scope);
        let group = group(scope, &SourceKey::uploads());
        self.send_body(&self.urls.uploads, message, group, Duration::ZERO)
            .await
    }
}

/// Returns whole seconds, never fewer than asked for unless more than SQS allows.
fn delay_seconds(delay: Duration) -> i32 {
    let seconds = delay
        .as_secs()
        .saturating_add(u64::from(delay.subsec_nanos() > 0));
    i32::try_from(seconds.min(MAX_DELAY_SECONDS)).unwrap_or_default()
}

/// Names the group of the messages of a scope and source, in characters that SQS allows.
fn group(scope: &str, source: &SourceKey) -> String {
    let hash = Sha256::digest(format!("scope: {scope}\nsource: {source}\n"));
    format!("{hash:x}")[..32].to_owned()
}

/// Escapes what is not ASCII in a JSON text, where it can only be within strings: SQS refuses some characters
/// (SQS API reference, `SendMessage`, `MessageBody`), and a key in a bucket may hold any.
fn ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() {
            text.push(character);
        } else {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                text.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Converter, Kind, ModuleKey, Token};

    fn message(scope: &str, module: &str) -> LaneMessage {
        LaneMessage {
            schema: LaneMessage::SCHEMA,
            lane: Lane::Eager,
            module: ModuleKey {
                scope: scope.parse().unwrap(),
                source: crate::domain::SourceKey::uploads(),
                module: module.to_owned(),
            },
            kinds: vec![Kind::SymCache],
            ask: Token::from_random(1),
            min_converter: Converter::CURRENT,
        }
    }

    #[test]
    fn a_message_survives_in_characters_that_sqs_allows() {
        let message = message("größe \u{ffff} 🦀", "debug_id:\"quoted\" \u{7} \\u0041");
        let body = ascii(&serde_json::to_string(&message).unwrap());
        assert!(
            body.bytes().all(|byte| (0x20..0x7f).contains(&byte)),
            "{body}"
        );
        assert_eq!(serde_json::from_str::<LaneMessage>(&body).unwrap(), message);
    }

    #[test]
    fn a_delay_is_whole_seconds_up_to_a_quarter_of_an_hour() {
        assert_eq!(delay_seconds(Duration::ZERO), 0);
        assert_eq!(delay_seconds(Duration::from_millis(1)), 1);
        assert_eq!(delay_seconds(Duration::from_secs(30)), 30);
        assert_eq!(delay_seconds(Duration::MAX), 900);
    }

    #[test]
    fn scopes_are_groups_of_their_own() {
        let group = |scope| group(scope, &SourceKey::uploads());
        assert_eq!(group("acme"), group("acme"));
        assert_ne!(group("acme"), group("global"));
        assert_eq!(group("acme").len(), 32);
    }
}
