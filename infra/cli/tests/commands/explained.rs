//! What `explain` takes a subject for.

use crate::run;
use crate::service::{CUT_ID, Service};

#[test]
fn of_an_id_that_is_cut_the_answer_that_says_so_is_shown() {
    let service = Service::new();
    let url = service.url();
    let ended = run(&["explain", CUT_ID, "--url", &url]);
    assert_eq!(ended.code, 3, "{}", ended.err);
    assert!(ended.out.contains("code_id_length: why"), "{}", ended.out);
    assert!(!ended.out.contains("build_id_as_debug_id"), "{}", ended.out);
}

#[test]
fn an_id_is_the_same_with_the_prefix_of_hexadecimal_numbers() {
    let service = Service::new();
    let url = service.url();
    let id = "8f3a8f3a8f3a8f3a8f3a8f3a8f3a8f3a";
    let prefixed = format!("0x{id}");
    let [plain, prefixed] = [id, &prefixed].map(|id| run(&["explain", id, "--url", &url]));
    assert_eq!((plain.code, prefixed.code), (0, 0), "{}", prefixed.err);
    assert_eq!(plain.out, prefixed.out);
}
