//! Planted mistakes: each is found, by the seed that is named here.

use std::ops::ControlFlow;

use symdepot_tests::simulate::{Mistake, Plan, run, run_all};

use super::cores;

/// The most seeds that are searched for a mistake that its seed does not find any more.
const MOST: u64 = 120;

/// The seeds of weeks and of deploys that are searched for such a mistake.
const MAX_OTHERS: u64 = 2;

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
    /// An hour or a day with this seed in which everything happens to few modules at once.
    Contested(u64),
}

use By::{Contested, Deploys, Seed, Unannounced, Weeks};

/// What finds each mistake.
const FOUND_BY: &[(Mistake, By)] = &[
    (Mistake::WritesIgnoreRevisions, Seed(2)),
    (Mistake::LostRacesCountAsDone, Seed(12)),
    (Mistake::BlobsAreNotStored, Seed(1)),
    (Mistake::RevokedStatesStay, Seed(1)),
    (Mistake::LeasesNeverExpire, Seed(46)),
    (Mistake::LeasesAreNotReturned, Seed(7)),
    (Mistake::RevocationsKeepTheLease, Seed(27)),
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
    (Mistake::MemoryIgnoresTheWallClock, Deploys(1)),
    (Mistake::FilesWithoutRoomAreDropped, Seed(1)),
    (Mistake::BadBlobsHaveNoBrake, Seed(2)),
    (Mistake::UnreadableItemsFailReads, Seed(23)),
    (Mistake::NotModifiedIsNeverSaid, Seed(1)),
    (Mistake::UploadAttemptsAreNotCounted, Seed(2)),
    (Mistake::AbsentFilesCountAsConsidered, Seed(29)),
    (Mistake::FailuresRemoveStates, Seed(2)),
    (Mistake::BlobsAreStoredLate, Seed(1)),
    (Mistake::PrunersSeeNoRecords, Seed(1)),
    (Mistake::OrphansAreNotListed, Seed(1)),
    (Mistake::UploadWritesIgnoreRevisions, Seed(27)),
    (Mistake::PresencesAreRetired, Seed(20)),
    (Mistake::LeftFilesAreForgotten, Seed(1172)),
    (Mistake::DirtyMarksAreForgotten, Seed(1)),
    (Mistake::UrlsOutliveRemovals, Seed(7)),
    (Mistake::FailedMessagesWaitForTheirTimeout, Seed(2)),
    (Mistake::AliasesAreNotRemoved, Seed(1)),
    (Mistake::GivingUpBeginsAgain, Seed(34)),
    (Mistake::SlowServersAreMalformed, Seed(13)),
    (Mistake::UnknownServersHaveNothing, Seed(41)),
    (Mistake::SuspectsOfOthersAreRemoved, Seed(27)),
    (Mistake::UploadedKindsAreNotMarked, Seed(4)),
    (Mistake::RollbacksDoNotRecover, Seed(45)),
    (Mistake::LargeUploadsAreNotStored, Seed(139)),
    (Mistake::PublishesClearFailures, Seed(117)),
    (Mistake::LeasedEntriesAreSpared, Seed(794)),
    (Mistake::PresencesAreRemovedUnfenced, Seed(253)),
    (Mistake::ExistingPresencesAreSpared, Seed(253)),
    (Mistake::UsesAreNotRecorded, Weeks(1)),
    (Mistake::MessagesOutliveTheirRequests, Deploys(1)),
    (Mistake::OutdatedReadersLoop, Deploys(1)),
    (Mistake::NewerItemsAreTrusted, Seed(5)),
    (Mistake::ChangedFilesAreReadForever, Unannounced(7)),
    (Mistake::FilesAreOverlooked, Seed(1)),
    (Mistake::RefusalsAreFinal, Seed(84)),
    (Mistake::ReportsAreForgotten, Contested(23)),
];

fn plan_of(by: By, mistake: Mistake) -> Plan {
    let mut plan = match by {
        Seed(seed) => Plan::of_seed(seed, 1.0),
        Weeks(seed) => Plan::weeks(seed),
        Deploys(seed) => Plan::deploys(seed),
        Unannounced(seed) => Plan::unannounced(seed),
        Contested(seed) => Plan::contested(seed),
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
            let others = (1..=MAX_OTHERS).flat_map(|seed| {
                let contested = Contested(seed);
                [Weeks(seed), Deploys(seed), Unannounced(seed), contested]
            });
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

/// The findings of the review and of the simulation (`docs/protocol.md`) that are not planted, and
/// why.
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
    (
        "S1",
        "a reader decides it from what it reads, which is right: `cache/decide`",
    ),
    (
        "S3",
        "a removal compares what is filed with its event: `flows/regressions` does it late",
    ),
    (
        "S4",
        "a reader decides it from what it reads, which is right: a kept story shows it",
    ),
    (
        "S6",
        "the pruner repairs an event that nothing was done for: `flows/uploads`",
    ),
    (
        "S9",
        "it concerns the memory of a reader, not the stores: `flows/ms_symcache`",
    ),
    (
        "S10",
        "a builder decides it from what it reads, which is right: `flows/regressions`",
    ),
    (
        "S11",
        "since readers report a blob at most twice, it has no effect that lasts: `cache/change`",
    ),
    (
        "S13",
        "a builder decides it from what it reads, which is right: `flows/regressions`",
    ),
    (
        "S14",
        "a build whose lease was lost writes nothing else; the story of a seed shows it",
    ),
    (
        "S16",
        "what was filed is undone by its item, which is right again: `flows/regressions`",
    ),
    (
        "S17",
        "the pruner decides it from what it reads, which is right: `cache/sweep`",
    ),
    (
        "S18",
        "a reader decides it from what it reads, which is right: `flows/ms_symcache`",
    ),
    (
        "S19",
        "a reader decides it from what it reads, which is right: `cache/decide`",
    ),
    (
        "S20",
        "two clocks and the last seconds of a lease have to meet: `cache/change/tests`",
    ),
    (
        "S21",
        "it is what a build publishes, which a port does not see: `flows/companions`",
    ),
    (
        "S15",
        "a reader decides it from what it reads, which is right: `flows/regressions`",
    ),
];

#[test]
fn each_finding_is_planted_or_has_a_reason() {
    let source = include_str!("../../src/simulate/mistakes.rs");
    let words: Vec<&str> = source.split(|c: char| !c.is_alphanumeric()).collect();
    let findings = (1..=22).map(|number| format!("P{number}"));
    let findings = findings.chain((1..=12).map(|number| format!("L{number}")));
    let documented = include_str!("../../../docs/protocol.md");
    let simulated = (1..).map(|number| format!("S{number}"));
    let simulated = simulated.take_while(|finding| documented.contains(&format!("\n| {finding} ")));
    let findings = findings.chain(simulated);
    for finding in findings {
        let is_planted = words.contains(&finding.as_str());
        let has_reason = NOT_PLANTED.iter().any(|(not, _)| *not == finding);
        assert_ne!(is_planted, has_reason, "{finding}");
    }
}

/// What is planted here in place of each mistake of the models, or why nothing is.
const OF_MODELS: &[(&str, Result<Mistake, &str>)] = &[
    ("AnnouncesFirst", Err(ORDER)),
    (
        "TrustsWhatIsBeside",
        Err("it concerns the memory of a reader, not the stores"),
    ),
    ("NotesBeforeFiling", Err(ORDER)),
    ("ForgetsUnfenced", Ok(Mistake::PresencesAreRemovedUnfenced)),
    ("SparesPresence", Ok(Mistake::ExistingPresencesAreSpared)),
    ("RetiresPresence", Ok(Mistake::PresencesAreRetired)),
    (
        "AppliesBeforeGeneration",
        Ok(Mistake::UploadsAreAppliedTooSoon),
    ),
    (
        "RevokesWithoutGeneration",
        Ok(Mistake::GenerationsAreNotWritten),
    ),
    ("PublishesUnfenced", Ok(Mistake::WritesIgnoreRevisions)),
    ("PublishesFirst", Ok(Mistake::BlobsAreStoredLate)),
    ("FailureRevokes", Ok(Mistake::FailuresRemoveStates)),
    ("HeartbeatOutlives", Ok(Mistake::LeasesNeverExpire)),
    ("ForgetsTheBetterFile", Ok(Mistake::FilesAreOverlooked)),
    ("HidesTheFailure", Ok(Mistake::PublishesClearFailures)),
    ("CountsNoAttempts", Ok(Mistake::AttemptsAreNotCounted)),
    ("ReplacesWithoutLimit", Ok(Mistake::BadBlobsHaveNoBrake)),
    ("ReportsNothingAgain", Ok(Mistake::ReportsAreForgotten)),
    ("BelievesTheFirstReading", Ok(Mistake::PrunersSeeNoRecords)),
    ("RemovesBlobsFirst", Ok(Mistake::RetiredRecordsStay)),
    ("ListsNothing", Ok(Mistake::OrphansAreNotListed)),
    (
        "ForgetsWhatCameBetween",
        Ok(Mistake::UploadWritesIgnoreRevisions),
    ),
    ("SparesTheLeased", Ok(Mistake::LeasedEntriesAreSpared)),
    ("LeavesTheLease", Ok(Mistake::RevocationsKeepTheLease)),
];

const ORDER: &str = "the stores see one write after the other, and cannot exchange them";

/// Returns the mistakes that are seeded into a model, from its source.
fn seeded(source: &str) -> Vec<&str> {
    let (_, body) = source.split_once("enum Mistake {\n").unwrap_or_default();
    let (body, _) = body.split_once("\n}").unwrap_or_default();
    let lines = body.lines().map(str::trim);
    let names = lines.filter(|line| !line.starts_with("///"));
    let names = names.map(|line| line.trim_end_matches(','));
    names.filter(|name| *name != "None").collect()
}

#[test]
fn each_mistake_of_the_models_is_planted_here_or_has_a_reason() {
    let models = [
        include_str!("../model/absence.rs"),
        include_str!("../model/lease.rs"),
        include_str!("../model/outcomes.rs"),
        include_str!("../model/sweep.rs"),
        include_str!("../model/uploads.rs"),
    ];
    let seeded: Vec<&str> = models.iter().flat_map(|source| seeded(source)).collect();
    let known: Vec<&str> = OF_MODELS.iter().map(|(name, _)| *name).collect();
    for name in &seeded {
        assert!(known.contains(name), "{name}");
    }
    for name in &known {
        assert!(seeded.contains(name), "{name}");
    }
}
