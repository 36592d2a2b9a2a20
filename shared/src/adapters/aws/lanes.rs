//! Lanes as SQS standard queues.
//!
//! Messages of one scope and source form a group: SQS then lets the groups take turns where one of them has a backlog
//! (SQS developer guide, "Amazon SQS fair queues").

use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_sqs::Client;
use sha2::{Digest, Sha256};

use super::error::store_error;
use crate::cache::{Lane, ModuleKey};
use crate::ports::{LaneMessage, Lanes, StoreError, StoreErrorKind};

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
}

#[async_trait]
impl Lanes for SqsLanes {
    async fn send(&self, message: &LaneMessage, delay: Duration) -> Result<(), StoreError> {
        let url = match message.lane {
            Lane::Eager => &self.urls.eager,
            Lane::Uploads => &self.urls.uploads,
            Lane::Refresh => &self.urls.refresh,
        };
        let context = || format!("SQS SendMessage to {url}");
        let body = serde_json::to_string(message)
            .map_err(|error| StoreError::new(StoreErrorKind::Bug, context()).caused_by(error))?;
        let sent = self
            .client
            .send_message()
            .queue_url(url)
            .message_body(ascii(&body))
            .delay_seconds(delay_seconds(delay))
            .message_group_id(group(&message.module))
            .send()
            .await;
        sent.map(drop)
            .map_err(|error| store_error(context(), &error))
    }
}

/// Returns whole seconds, never fewer than asked for unless more than SQS allows.
fn delay_seconds(delay: Duration) -> i32 {
    let seconds = delay
        .as_secs()
        .saturating_add(u64::from(delay.subsec_nanos() > 0));
    i32::try_from(seconds.min(MAX_DELAY_SECONDS)).unwrap_or_default()
}

/// Names the group of a module's messages, in characters that SQS allows.
fn group(module: &ModuleKey) -> String {
    let hash = Sha256::digest(format!(
        "scope: {}\nsource: {}\n",
        module.scope, module.source
    ));
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
    use crate::cache::{Converter, Kind, Token};

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
        let group = |scope, module| group(&message(scope, module).module);
        assert_eq!(group("acme", "a"), group("acme", "b"));
        assert_ne!(group("acme", "a"), group("global", "a"));
        assert_eq!(group("acme", "a").len(), 32);
    }
}
