//! Faults that the simulation found in earlier versions of the product: each story is a test.
//! `make keep-story SEED=… NAME=…` adds one.

use symdepot_tests::simulate::{run, story};

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

stories! {    an_older_build_renews_a_state_that_was_left_behind_once,
}
