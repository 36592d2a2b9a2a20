//! How far the current converter is rolled out: what the last whole pass of the sweep counted, and when it will be done.

use std::collections::BTreeMap;

use serde::Serialize;

use super::symbolicate::Symbolicator;
use super::{Error, Invocation};
use crate::cache::{
    Converter, Drained, Estimate, Item, ItemKey, Kind, KindTally, Rollout, SweepItem,
    current_version,
};
use crate::domain::Timestamp;
use crate::ports::Consistency;

/// How far the current converter is rolled out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RolloutReport {
    /// The number of the last whole pass over the records; none before the first came to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass: Option<u64>,
    /// When that pass ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// How long ago that was, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<u64>,
    /// The converter of this build.
    pub converter: Converter,
    /// Each kind, by its text.
    pub kinds: BTreeMap<String, KindRollout>,
    /// Upload items that are not gone.
    pub uploads: u64,
    /// Bytes of derived caches by the hours since their last use: where a bucket begins, and what is in it.
    pub bytes_by_age_hours: Vec<(u64, u64)>,
    /// Copies of DIFs from symbol servers.
    pub copies: u64,
    /// Bytes of these copies.
    pub copy_bytes: u64,
    /// What the refresh lane did with the asks of the pass before.
    pub queue: Drained,
    /// When nothing will be behind any more.
    #[serde(flatten)]
    pub estimate: Estimate,
}

/// How far the current version of a kind is rolled out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KindRollout {
    /// The version of this build.
    pub version: u32,
    /// What was counted.
    #[serde(flatten)]
    pub tally: KindTally,
}

impl RolloutReport {
    /// Returns the report on what a pass counted, at `now`.
    pub fn of(rollout: &Rollout, now: Timestamp) -> Self {
        let tally = &rollout.tally;
        let estimate = if rollout.converter == Converter::CURRENT {
            rollout.drained.estimate(tally.behind(), rollout.at)
        } else {
            Estimate::Unknown {
                reason: format!(
                    "the last pass was made by converter {}: the next one tells",
                    rollout.converter.0
                ),
            }
        };
        Self {
            pass: Some(rollout.pass),
            at: Some(rollout.at),
            age_seconds: Some(now.since(rollout.at).as_secs()),
            converter: Converter::CURRENT,
            kinds: kinds(|kind| tally.kinds.get(&kind.to_string()).cloned()),
            uploads: tally.uploads,
            bytes_by_age_hours: tally.ages.buckets().collect(),
            copies: tally.copies,
            copy_bytes: tally.copy_ages.bytes(),
            queue: rollout.drained,
            estimate,
        }
    }

    /// Returns the report before any pass came to its end.
    pub fn none_yet() -> Self {
        Self {
            pass: None,
            at: None,
            age_seconds: None,
            converter: Converter::CURRENT,
            kinds: kinds(|_| None),
            uploads: 0,
            bytes_by_age_hours: Vec::new(),
            copies: 0,
            copy_bytes: 0,
            queue: Drained::default(),
            estimate: Estimate::Unknown {
                reason: "no pass of the sweep has come to its end yet".to_owned(),
            },
        }
    }
}

fn kinds(tally: impl Fn(Kind) -> Option<KindTally>) -> BTreeMap<String, KindRollout> {
    let rollout = |kind| KindRollout {
        version: current_version(kind),
        tally: tally(kind).unwrap_or_default(),
    };
    Kind::DERIVED
        .map(|kind| (kind.to_string(), rollout(kind)))
        .into()
}

impl Symbolicator {
    /// Tells how far the current converter is rolled out. Changes nothing.
    pub async fn rollout(&self, invocation: &Invocation) -> Result<RolloutReport, Error> {
        let key = ItemKey::sweep(SweepItem::Rollout);
        let loaded = self.records.load(&[key], Consistency::Strong).await?;
        let rollout = loaded
            .into_iter()
            .flatten()
            .find_map(|stored| match stored.item {
                Item::Rollout(rollout) => Some(rollout),
                _ => None,
            });
        Ok(match rollout {
            Some(rollout) => RolloutReport::of(&rollout, invocation.now()),
            None => RolloutReport::none_yet(),
        })
    }
}
