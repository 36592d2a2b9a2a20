//! Planted mistakes: each is found, by the seed that is named here.

use std::ops::ControlFlow;

use symdepot_tests::simulate::{Mistake, Plan, run, run_all};

use super::cores;

/// The most seeds that are searched for a mistake that its seed does not find any more.
const MOST: u64 = 120;

/// The seeds of weeks and of deploys that are searched for such a mistake.
const MOST_OTHERS: u64 = 2;

/// What finds a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// An hour of trouble with this seed.
    Seed(u64),
    /// Three weeks with this seed.
    Weeks(u64),
    /// An hour with this seed in which builders are deployed before readers.
    Deploys(u64),
    /// An hour with this seed in which events of uploads are lost.
    Unannounced(u64),
}

use By::{Deploys, Seed, Unannounced, Weeks};

/// What finds each mistake.
const FOUND_BY: &[(Mistake, By)] = &[
    (Mistake::WritesIgnoreRevisions, Seed(3)),
    (Mistake::LostRacesCountAsDone, Seed(12)),
    (Mistake::BlobsAreNotStored, Seed(1)),
    (Mistake::RevokedStatesStay, Seed(1)),
    (Mistake::LeasesNeverExpire, Seed(14)),
    (Mistake::LeasesAreNotReturned, Seed(7)),
    (Mistake::RevocationsKeepTheLease, Seed(60)),
    (Mistake::AttemptsAreNotCounted, Seed(34)),
    (Mistake::PlaceholdersNeverExpire, Seed(41)),
    (Mistake::BackOffsNeverEnd, Seed(34)),
    (Mistake::PresencesAreNotWritten, Seed(1)),
    (Mistake::PresencesAreNotRemoved, Seed(1)),
    (Mistake::GenerationsAreNotWritten, Seed(2)),
    (Mistake::DifsAreNotFiled, Seed(1)),
    (Mistake::DifsAreNotRemoved, Seed(7)),
    (Mistake::UploadsAreAppliedTooSoon, Seed(15)),
    (Mistake::TombstonesAreNotWritten, Seed(1)),
    (Mistake::SequencersAreIgnored, Seed(12)),
    (Mistake::MessagesNameOtherRequests, Seed(3)),
    (Mistake::MessagesAreNotSent, Seed(3)),
    (Mistake::RetiredRecordsStay, Seed(5)),
    (Mistake::ConsideredFilesAreForgotten, Seed(1)),
    (Mistake::TenantsAreMixedUp, Seed(2)),
    (Mistake::MemoryIgnoresTheWallClock, Seed(110)),
    (Mistake::FilesWithoutRoomAreDropped, Seed(1)),
    (Mistake::BadBlobsHaveNoBrake, Seed(2)),
    (Mistake::UnreadableItemsFailReads, Seed(23)),
    (Mistake::NotModifiedIsNeverSaid, Seed(1)),
    (Mistake::UploadAttemptsAreNotCounted, Seed(2)),
    (Mistake::AbsentFilesCountAsConsidered, Seed(29)),
    (Mistake::FailuresRemoveStates, Seed(16)),
    (Mistake::BlobsAreStoredLate, Seed(1)),
    (Mistake::PrunersSeeNoRecords, Seed(1)),
    (Mistake::OrphansAreNotListed, Seed(1)),
    (Mistake::UploadWritesIgnoreRevisions, Seed(2)),
    (Mistake::PresencesAreRetired, Seed(20)),
    (Mistake::LeftFilesAreForgotten, Seed(695)),
    (Mistake::DirtyMarksAreForgotten, Seed(1)),
    (Mistake::UrlsOutliveRemovals, Seed(7)),
    (Mistake::FailedMessagesWaitForTheirTimeout, Seed(2)),
    (Mistake::AliasesAreNotRemoved, Seed(1)),
    (Mistake::GivingUpBeginsAgain, Seed(34)),
    (Mistake::SlowServersAreMalformed, Seed(20)),
    (Mistake::UnknownServersHaveNothing, Seed(41)),
    (Mistake::SuspectsOfOthersAreRemoved, Seed(70)),
    (Mistake::UploadedKindsAreNotMarked, Seed(4)),
    (Mistake::RollbacksDoNotRecover, Seed(45)),
    (Mistake::LargeUploadsAreNotStored, Seed(139)),
    (Mistake::PublishesClearFailures, Seed(207)),
    (Mistake::LeasedEntriesAreSpared, Seed(186)),
    (Mistake::PresencesAreRemovedUnfenced, Seed(145)),
    (Mistake::ExistingPresencesAreSpared, Seed(145)),
    (Mistake::UsesAreNotRecorded, Weeks(1)),
    (Mistake::MessagesOutliveTheirRequests, Deploys(1)),
    (Mistake::OutdatedReadersLoop, Deploys(1)),
    (Mistake::NewerItemsAreTrusted, Seed(5)),
    (Mistake::ChangedFilesAreReadForever, Unannounced(7)),
];

fn plan_of(by: By, mistake: Mistake) -> Plan {
    let mut plan = match by {
        Seed(seed) => Plan::of_seed(seed, 1.0),
        Weeks(seed) => Plan::weeks(seed),
        Deploys(seed) => Plan::deploys(seed),
        Unannounced(seed) => Plan::unannounced(seed),
    };
    plan.mistake = Some(mistake);
    plan
}

#[test]
fn planted_mistakes_are_found() {
    let plans = FOUND_BY.iter().map(|(mistake, by)| plan_of(*by, *mistake));
    let mut left = Vec::new();
    run_all(plans, false, cores(), |plan, run| {
        left.extend(plan.mistake.filter(|_| run.failure.is_none()));
        ControlFlow::Continue(())
    });
    let found: Vec<String> = left
        .into_iter()
        .map(|mistake| {
            let others =
                (1..=MOST_OTHERS).flat_map(|seed| [Weeks(seed), Deploys(seed), Unannounced(seed)]);
            let mut each = (1..=MOST).map(Seed).chain(others);
            let by = each.find(|by| run(&plan_of(*by, mistake), false).failure.is_some());
            format!("{mistake:?} is found by {by:?}")
        })
        .collect();
    assert!(found.is_empty(), "others find these:\n{}", found.join("\n"));
}

#[test]
fn each_planted_mistake_has_what_finds_it() {
    for mistake in Mistake::ALL {
        let found = FOUND_BY.iter().filter(|(found, _)| found == mistake);
        assert_eq!(found.count(), 1, "{mistake:?}");
    }
}

/// The findings of the review (`docs/protocol.md`) that are not planted, and why.
const NOT_PLANTED: &[(&str, &str)] = &[
    (
        "P18",
        "how often a waiting request reads is a cost: `flows/requests` counts it",
    ),
    (
        "P19",
        "the number of messages is a cost: `flows/servers` counts them",
    ),
    (
        "P20",
        "what one pass leaves, the next one does: when the trouble has ended, nothing is wrong",
    ),
    (
        "P21",
        "the number of messages is a cost: `flows/uploads` counts them",
    ),
    (
        "P22",
        "a manifest has more entries than there are in a simulation: `flows/sweeping`",
    ),
    (
        "L6",
        "the lists are longer than those of a simulation: `flows/sweeping`, `flows/ms_symcache`",
    ),
    (
        "L7",
        "messages are parsed at the edge of `derive`; here they are values",
    ),
    ("L9", "settings are checked when a function starts"),
    ("L10", "it concerns the text of a log line"),
    (
        "L11",
        "a file that is fetched for each spelling of its name is a cost",
    ),
    ("L12", "it is documented, and was not changed"),
];

#[test]
fn each_finding_of_the_review_is_planted_or_has_a_reason() {
    let source = include_str!("../../src/simulate/mistakes.rs");
    let words: Vec<&str> = source.split(|c: char| !c.is_alphanumeric()).collect();
    let findings = (1..=22).map(|number| format!("P{number}"));
    let findings = findings.chain((1..=12).map(|number| format!("L{number}")));
    for finding in findings {
        let is_planted = words.contains(&finding.as_str());
        let has_reason = NOT_PLANTED.iter().any(|(not, _)| *not == finding);
        assert_ne!(is_planted, has_reason, "{finding}");
    }
}
