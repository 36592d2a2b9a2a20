//! Planted mistakes: each is found, by the seed that is named here.

use symdepot_tests::simulate::{Mistake, Plan, run};

/// The most seeds that are searched for a mistake that its seed does not find any more.
const MOST: u64 = 120;

/// The seed that finds each mistake.
const FOUND_BY: &[(Mistake, u64)] = &[
    (Mistake::WritesIgnoreRevisions, 3),
    (Mistake::LostRacesCountAsDone, 12),
    (Mistake::BlobsAreNotStored, 1),
    (Mistake::RevokedStatesStay, 1),
    (Mistake::LeasesNeverExpire, 3),
    (Mistake::LeasesAreNotReturned, 7),
    (Mistake::RevocationsKeepTheLease, 4),
    (Mistake::AttemptsAreNotCounted, 34),
    (Mistake::PlaceholdersNeverExpire, 11),
    (Mistake::BackOffsNeverEnd, 34),
    (Mistake::PresencesAreNotWritten, 2),
    (Mistake::PresencesAreNotRemoved, 1),
    (Mistake::GenerationsAreNotWritten, 2),
    (Mistake::DifsAreNotFiled, 1),
    (Mistake::DifsAreNotRemoved, 7),
    (Mistake::UploadsAreAppliedTooSoon, 3),
    (Mistake::TombstonesAreNotWritten, 1),
    (Mistake::SequencersAreIgnored, 20),
    (Mistake::MessagesNameOtherRequests, 1),
    (Mistake::MessagesAreNotSent, 1),
    (Mistake::RetiredRecordsStay, 2),
    (Mistake::ConsideredFilesAreForgotten, 1),
    (Mistake::TenantsAreMixedUp, 2),
    (Mistake::MemoryIgnoresTheWallClock, 28),
    (Mistake::FilesWithoutRoomAreDropped, 1),
    (Mistake::BadBlobsHaveNoBrake, 1),
    (Mistake::UnreadableItemsFailReads, 6),
    (Mistake::NotModifiedIsNeverSaid, 10),
    (Mistake::UploadAttemptsAreNotCounted, 14),
    (Mistake::AbsentFilesCountAsConsidered, 12),
    (Mistake::FailuresRemoveStates, 16),
    (Mistake::BlobsAreStoredLate, 1),
    (Mistake::PrunersSeeNoRecords, 1),
    (Mistake::OrphansAreNotListed, 1),
    (Mistake::UploadWritesIgnoreRevisions, 3),
    (Mistake::PresencesAreRetired, 6),
    (Mistake::UnreadFilesAreForgotten, 35),
];

/// Mistakes that no seed of `make test` finds: each is a gap in the workload.
const GAPS: &[Mistake] = &[
    Mistake::DirtyMarksAreForgotten,
    Mistake::LargeUploadsAreNotStored,
    Mistake::PublishesClearFailures,
    Mistake::MessagesOutliveTheirRequests,
    Mistake::OutdatedReadersLoop,
    Mistake::RollbacksDoNotRecover,
    Mistake::UrlsOutliveRemovals,
    Mistake::LeasedEntriesAreSpared,
    Mistake::PresencesAreRemovedUnfenced,
    Mistake::ExistingPresencesAreSpared,
    Mistake::NewerItemsAreOverwritten,
];

fn finds(seed: u64, mistake: Mistake) -> bool {
    let mut plan = Plan::of_seed(seed, 1.0);
    plan.mistake = Some(mistake);
    run(&plan, false).failure.is_some()
}

#[test]
fn planted_mistakes_are_found() {
    let left = FOUND_BY
        .iter()
        .filter(|(mistake, seed)| !finds(*seed, *mistake));
    let found: Vec<String> = left
        .map(|(mistake, _)| {
            let by = (1..=MOST).find(|seed| finds(*seed, *mistake));
            format!("{mistake:?} is found by {by:?}")
        })
        .collect();
    assert!(
        found.is_empty(),
        "other seeds find these:\n{}",
        found.join("\n")
    );
}

#[test]
fn each_planted_mistake_is_found_or_named_as_a_gap() {
    let is_found = |mistake: &Mistake| FOUND_BY.iter().any(|(found, _)| found == mistake);
    for mistake in Mistake::ALL {
        assert_ne!(is_found(mistake), GAPS.contains(mistake), "{mistake:?}");
    }
    assert!(FOUND_BY.len() >= 30);
}
