//! The progress of the rollout of the current converter: the counts of the last complete pass of
//! the pruner, and an estimate of the end.

use std::collections::BTreeMap;

use serde::Serialize;

use super::HttpService;
use super::{Error, Invocation};
use crate::cache::{
    Converter, Drained, Estimate, ItemKey, Kind, KindTally, ReleaseNumbers, Rollout, SweepItem,
};
use crate::domain::Timestamp;

/// The progress of the rollout of the current converter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct RolloutReport {
    /// The number of the last complete pass; absent before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass: Option<u64>,
    /// When that pass ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// The time since then, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<u64>,
    /// The converter of this release.
    pub converter: Converter,
    /// The kinds, by their text.
    pub kinds: BTreeMap<String, KindRollout>,
    /// The number of uploads that were not removed.
    pub uploads: u64,
    /// The bytes of derived caches by the hours since their last use: the lower bound of each
    /// bucket, and its bytes.
    pub bytes_by_age_hours: Vec<(u64, u64)>,
    /// The number of copies of DIFs from symbol servers.
    pub copies: u64,
    /// The bytes of these copies.
    pub copy_bytes: u64,
    /// What became of the build requests in the refresh queue since the previous pass.
    pub queue: Drained,
    /// The estimate when no entry will be outdated.
    #[serde(flatten)]
    pub estimate: Estimate,
}

/// The progress of the rollout of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct KindRollout {
    /// The version that this release makes.
    pub version: u32,
    /// The counts.
    #[serde(flatten)]
    pub tally: KindTally,
}

impl RolloutReport {
    /// Returns the report on the counts of a pass, at `now`.
    pub fn of(rollout: &Rollout, numbers: &ReleaseNumbers, now: Timestamp) -> Self {
        let tally = &rollout.tally;
        let estimate = if rollout.converter == numbers.converter {
            rollout.drained.estimate(tally.behind(), rollout.at)
        } else {
            Estimate::Unknown {
                reason: format!(
                    "the last pass ran with converter {}; the next one provides an estimate",
                    rollout.converter.0
                ),
            }
        };
        Self {
            pass: Some(rollout.pass),
            at: Some(rollout.at),
            age_seconds: Some(now.since(rollout.at).as_secs()),
            converter: numbers.converter,
            kinds: kinds(numbers, |kind| tally.kinds.get(&kind.to_string()).cloned()),
            uploads: tally.uploads,
            bytes_by_age_hours: tally.ages.buckets().collect(),
            copies: tally.copies,
            copy_bytes: tally.copy_ages.bytes(),
            queue: rollout.drained,
            estimate,
        }
    }

    /// Returns the report of this release before its first complete pass.
    pub fn of_this_release() -> Self {
        Self::none_yet(&ReleaseNumbers::CURRENT)
    }

    /// Returns the report before any pass is complete.
    fn none_yet(numbers: &ReleaseNumbers) -> Self {
        Self {
            pass: None,
            at: None,
            age_seconds: None,
            converter: numbers.converter,
            kinds: kinds(numbers, |_| None),
            uploads: 0,
            bytes_by_age_hours: Vec::new(),
            copies: 0,
            copy_bytes: 0,
            queue: Drained::default(),
            estimate: Estimate::Unknown {
                reason: "no pass is complete yet".to_owned(),
            },
        }
    }
}

fn kinds(
    numbers: &ReleaseNumbers,
    tally: impl Fn(Kind) -> Option<KindTally>,
) -> BTreeMap<String, KindRollout> {
    let rollout = |kind| KindRollout {
        version: numbers.version(kind),
        tally: tally(kind).unwrap_or_default(),
    };
    Kind::DERIVED
        .map(|kind| (kind.to_string(), rollout(kind)))
        .into()
}

impl HttpService {
    /// Returns the progress of the rollout. Changes nothing.
    pub async fn rollout(&self, invocation: &Invocation) -> Result<RolloutReport, Error> {
        let key = ItemKey::sweep(SweepItem::Rollout);
        let rollout: Option<Rollout> = self.records.one(key).await?;
        let numbers = &self.settings.policy.numbers;
        Ok(match rollout {
            Some(rollout) => RolloutReport::of(&rollout, numbers, invocation.now()),
            None => RolloutReport::none_yet(numbers),
        })
    }
}
