//! Which items a warm instance considers valid, and for how long.

use super::*;
use crate::cache::{Applied, Change, Kind, ModuleKey, Policy, Queue, Revision, Seen, Token, apply};
use crate::domain::{Cause, Missing, ModuleId};

const HOUR: Duration = Duration::from_secs(3600);

/// Returns an invocation that begins this many seconds after the first one, by the wall clock.
fn invocation(seconds: u64) -> Invocation {
    Invocation::new(
        "1".to_owned(),
        Duration::from_secs(1_000_000 + seconds),
        Duration::from_secs(9),
        [1; 32],
    )
}

fn just_read(invocation: &Invocation, by: ReadBy) -> ItemRead {
    by.at(Moment::now(invocation))
}

fn memory() -> Memory {
    Memory::new(1000, HOUR)
}

fn stored(item: Item) -> Option<Arc<Stored>> {
    Some(Arc::new(Stored {
        revision: Revision::from_random(1),
        item,
    }))
}

fn module() -> ModuleKey {
    let id = ModuleId::Debug("502fc0a5-1ec1-3e47-9998-684fa139dca7".parse().unwrap());
    ModuleKey::uploads(Scope::Global, &id)
}

fn entry(changes: impl FnOnce(&Invocation) -> Vec<Change>) -> (ItemKey, Option<Arc<Stored>>) {
    let (invocation, module) = (invocation(0), module());
    let mut entry = Entry::new(module.clone(), Kind::SymCache, invocation.now());
    for change in changes(&invocation) {
        match apply(&entry, &change, invocation.now(), &Policy::default()) {
            Ok(Applied::Changed(next)) => entry = next,
            other => panic!("{other:?}"),
        }
    }
    (module.entry(Kind::SymCache), stored(Item::Entry(entry)))
}

fn failed() -> (ItemKey, Option<Arc<Stored>>) {
    entry(|invocation| {
        let (token, missing) = (invocation.token(), Missing::new(Cause::NotFound, "no"));
        vec![
            take(invocation, &token),
            Change::Fail {
                token,
                missing,
                seen: Seen::default(),
            },
        ]
    })
}

fn take(invocation: &Invocation, token: &Token) -> Change {
    Change::TakeLease {
        holder: "1".to_owned(),
        token: token.clone(),
        deadline: invocation.deadline(),
    }
}

/// Returns a generation that began this many seconds before the first invocation.
fn generation(seconds: u64) -> Generation {
    Generation {
        scope: Scope::Global,
        change: Token::from_random(7),
        began_at: Timestamp::from_secs(1_000_000 - seconds),
    }
}

#[tokio::test(start_paused = true)]
async fn a_miss_that_no_generation_validates_is_believed_for_two_seconds() {
    for (key, item) in [failed(), (ItemKey::request("1"), None)] {
        let memory = memory();
        let invocation = invocation(0);
        let read = just_read(&invocation, ReadBy::Unvalidated);
        memory.remember(&invocation, key.clone(), item.clone(), read);
        assert_eq!(memory.recall(&invocation, &key), Recalled::Valid(item));
        tokio::time::advance(GENERATION_LIFETIME).await;
        assert_eq!(memory.recall(&invocation, &key), Recalled::Unknown);
    }
}

#[tokio::test(start_paused = true)]
async fn a_miss_is_believed_while_the_generation_before_it_is_unchanged_and_for_an_hour_at_most() {
    let (memory, invocation) = (memory(), invocation(0));
    let (key, item) = failed();
    let seen = SeenGeneration::Change(Token::from_random(7));
    memory.remember_generation(Moment::now(&invocation), Scope::Global, seen.clone());
    let read = just_read(
        &invocation,
        ReadBy::AfterGeneration(Scope::Global, seen.clone()),
    );
    memory.remember(&invocation, key.clone(), item.clone(), read);
    let valid = Recalled::Valid(item);
    assert_eq!(memory.recall(&invocation, &key), valid);
    tokio::time::advance(GENERATION_LIFETIME).await;
    assert_eq!(memory.recall(&invocation, &key), Recalled::NeedsValidation);
    memory.remember_generation(Moment::now(&invocation), Scope::Global, seen.clone());
    assert_eq!(memory.recall(&invocation, &key), valid);
    memory.remember_generation(
        Moment::now(&invocation),
        Scope::Global,
        SeenGeneration::Change(Token::from_random(8)),
    );
    assert_eq!(memory.recall(&invocation, &key), Recalled::Unknown);

    tokio::time::advance(HOUR).await;
    memory.remember_generation(Moment::now(&invocation), Scope::Global, seen);
    assert_eq!(memory.recall(&invocation, &key), Recalled::Unknown);
}

#[tokio::test(start_paused = true)]
async fn a_generation_that_was_read_at_the_same_time_validates_only_if_it_is_old() {
    let settled = SETTLED_AFTER.as_secs();
    for (generation, validates) in [
        (None, true),
        (Some(generation(settled)), true),
        (Some(generation(settled - 1)), false),
    ] {
        let (memory, invocation) = (memory(), invocation(0));
        let (key, item) = failed();
        let seen = SeenGeneration::of(generation.as_ref());
        memory.remember_generation(Moment::now(&invocation), Scope::Global, seen);
        let read_by = ReadBy::WithGeneration(Scope::Global, generation.clone());
        let read = just_read(&invocation, read_by);
        memory.remember(&invocation, key.clone(), item, read);
        tokio::time::advance(GENERATION_LIFETIME).await;
        let recalled = memory.recall(&invocation, &key);
        let expected = if validates {
            Recalled::NeedsValidation
        } else {
            Recalled::Unknown
        };
        assert_eq!(recalled, expected, "{generation:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_read_is_as_old_as_the_call_that_read_it() {
    let (memory, invocation) = (memory(), invocation(0));
    let (key, item) = failed();
    let read = just_read(&invocation, ReadBy::Unvalidated);
    // The call to the store is slow, or the sandbox is frozen meanwhile.
    tokio::time::advance(GENERATION_LIFETIME).await;
    memory.remember_generation(read.at, Scope::Global, SeenGeneration::NoUploads);
    memory.remember(&invocation, key.clone(), item, read);
    assert_eq!(memory.generation(&invocation, &Scope::Global), None);
    assert_eq!(memory.recall(&invocation, &key), Recalled::Unknown);
}

#[tokio::test(start_paused = true)]
async fn remembered_values_expire_by_either_clock() {
    let (key, item) = failed();
    // The sandbox was frozen for ten minutes, and its monotonic clock with it.
    let memory = memory();
    let first = invocation(0);
    let read = just_read(&first, ReadBy::Unvalidated);
    memory.remember(&first, key.clone(), item.clone(), read);
    assert_eq!(memory.recall(&invocation(600), &key), Recalled::Unknown);
    // The wall clock moves back an hour. It alone does not extend the validity of an item.
    let ahead = invocation(3600);
    let read = just_read(&ahead, ReadBy::Unvalidated);
    memory.remember(&ahead, key.clone(), item, read);
    tokio::time::advance(GENERATION_LIFETIME).await;
    assert_eq!(memory.recall(&invocation(0), &key), Recalled::Unknown);
}

#[tokio::test(start_paused = true)]
async fn states_that_are_about_to_change_are_not_remembered() {
    let asked = entry(|invocation| {
        vec![Change::RequestBuild {
            id: invocation.token(),
            queue: Queue::Eager,
        }]
    });
    let leased = entry(|invocation| vec![take(invocation, &invocation.token())]);
    for (key, item) in [asked, leased] {
        let (memory, invocation) = (memory(), invocation(0));
        let read = just_read(&invocation, ReadBy::Unvalidated);
        memory.remember(&invocation, key.clone(), item, read);
        assert_eq!(memory.recall(&invocation, &key), Recalled::Unknown);
    }
}

#[tokio::test(start_paused = true)]
async fn evicted_values_are_read_again() {
    let (memory, invocation) = (memory(), invocation(0));
    let key = ItemKey::request("1");
    let read = just_read(&invocation, ReadBy::Unvalidated);
    memory.remember(&invocation, key.clone(), None, read);
    memory.forget(&key);
    assert_eq!(memory.recall(&invocation, &key), Recalled::Unknown);
}

#[tokio::test]
async fn a_cache_that_cannot_be_opened_is_not_remembered() {
    let memory = memory();
    let part = BlobRange {
        path: "path".to_owned(),
        slice: None,
    };
    for attempt in 0..2 {
        let opened = memory
            .opened(&part, async { Err::<Opened, i32>(attempt) })
            .await;
        assert_eq!(opened.unwrap_err(), attempt, "each attempt reads it again");
    }
    assert_eq!(memory.bytes(), 0);
}
