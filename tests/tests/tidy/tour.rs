//! The tour: its walks enter files that exist, in the order in which one uses the other.

use crate::project::{Problems, files, read};
use crate::structure::Graph;

const TOUR: &str = "docs/a-tour.md";

/// The maximum number of files that a walk enters.
const MAX_STEPS: usize = 25;

/// Returns the walks: each heading, with the files of its numbered steps.
fn walks() -> Vec<(String, Vec<String>)> {
    let mut walks: Vec<(String, Vec<String>)> = Vec::new();
    for line in read(TOUR).unwrap().lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            walks.push((heading.to_owned(), Vec::new()));
        }
        let is_step = line
            .split_once(". `")
            .filter(|(number, _)| number.parse::<u32>().is_ok());
        if let Some((_, step)) = is_step {
            let file = step.split('`').next().unwrap_or_default();
            walks.last_mut().unwrap().1.push(file.to_owned());
        }
    }
    walks
}

#[test]
fn each_walk_of_the_tour_enters_few_files_that_exist() {
    let mut problems = Problems::default();
    let (all, walks) = (files(), walks());
    let headings: Vec<&str> = walks.iter().map(|(heading, _)| &**heading).collect();
    let expected = [
        "A crash",
        "A pending request",
        "An upload",
        "A build",
        "A run",
        "A minidump",
        "`symdepot upload --wait`",
        "`make run`",
    ];
    assert_eq!(headings, expected);
    for (heading, steps) in walks {
        if steps.len() > MAX_STEPS {
            let rule = format!("enters {} files, more than {MAX_STEPS}", steps.len());
            problems.add(format!("{TOUR}: {heading}"), rule, "keep the path short");
        }
        for file in steps.iter().filter(|file| !all.contains(file)) {
            let rule = format!("enters `{file}`, which does not exist");
            problems.add(format!("{TOUR}: {heading}"), rule, "follow the code");
        }
    }
    problems.report();
}

/// A file follows another one if that uses it, or uses another file in its folder: methods of one
/// type are spread over the files of a folder.
#[test]
fn each_file_of_the_tour_follows_from_an_earlier_one() {
    let mut problems = Problems::default();
    let graph = Graph::of("shared/src");
    for (heading, steps) in walks() {
        let is_of_crate = |file: &&String| file.starts_with("shared/");
        let texts: Vec<String> = steps.iter().filter_map(|file| read(file)).collect();
        for (at, file) in steps
            .iter()
            .enumerate()
            .filter(|(_, file)| is_of_crate(file))
        {
            let earlier = steps[..at].iter().filter(is_of_crate);
            let mut used = earlier.flat_map(|earlier| graph.used_by(earlier));
            // The functions, and callers of whole modules, name a module by its path.
            let module = folder(file).replace("shared/src/", "").replace('/', "::");
            let is_named = texts[..at.min(texts.len())]
                .iter()
                .any(|text| text.contains(&module));
            if !is_named && !used.any(|used| folder(used) == folder(file)) {
                let rule = format!("step {} `{file}` follows from no earlier step", at + 1);
                problems.add(format!("{TOUR}: {heading}"), rule, "follow the code");
            }
        }
    }
    problems.report();
}

fn folder(file: &str) -> &str {
    file.rsplit_once('/').map_or(file, |(folder, _)| folder)
}
