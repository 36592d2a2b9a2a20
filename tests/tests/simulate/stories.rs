//! Faults that the simulation found in earlier versions of the product: each story is a test.
//! `make keep-story SEED=… NAME=…` adds one.

use std::fs;

use symdepot_tests::simulate::{Plan, keep_story, run, story};

/// Defines a test for each story.
macro_rules! stories {
    ($($name:ident,)*) => {
        $(#[test]
        fn $name() {
            let text = include_str!(concat!("stories/", stringify!($name), ".json"));
            let told = run(&story(text), true);
            assert_eq!(told.failure, None, "\n{}", told.lines.join("\n"));
        })*
    };
}

#[test]
fn a_story_that_is_kept_is_stored_and_listed_once_and_is_the_same_plan() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("stories.rs");
    fs::write(&list, "stories! {}\n").unwrap();
    let (first, second) = (Plan::contested(40), Plan::weeks(1));
    keep_story(folder.path(), "first", &first).unwrap();
    let path = keep_story(folder.path(), "second", &first).unwrap();
    // A story with a known name replaces the former one.
    assert_eq!(keep_story(folder.path(), "second", &second).unwrap(), path);
    let listed = fs::read_to_string(&list).unwrap();
    assert_eq!(listed, "stories! {\n    first,\n    second,\n}\n");
    assert_eq!(story(&fs::read_to_string(path).unwrap()), second);

    for name in ["", "With Capitals", "../elsewhere"] {
        assert!(keep_story(folder.path(), name, &first).is_err(), "{name}");
    }
    fs::write(&list, "no list\n").unwrap();
    assert!(keep_story(folder.path(), "third", &first).is_err());
}

stories! {
    an_older_release_renews_a_state_that_was_left_behind_once,
}
