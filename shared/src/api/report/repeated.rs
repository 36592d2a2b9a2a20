//! Frames of a report that only repeat another one, or what the response says about it.

use std::collections::HashSet;
use std::hash::Hash;

use super::gdb::SIGNAL;
use super::model::{CrashReport, ReportFormat, ReportFrame, ReportStack};
use super::render::FrameName;

impl CrashReport {
    /// Returns of each frame of each stack trace whether it repeats another frame, or one of these
    /// names, which are those of [`CrashReport::names`]. Such frames need not be shown.
    ///
    /// gdb prints the frame alone that it selects, with `frame` or `up`, or when it opens a core
    /// dump: the first frame then is in the text again at the beginning of the stack trace.
    ///
    /// gdb prints one address for all functions that were inlined at a place, in front of the
    /// innermost one. The response names all of them for this address. A function that the response
    /// does not name is not repeated, so that none is lost.
    pub fn repeated(&self, names: &[Vec<Vec<FrameName>>]) -> Vec<Vec<bool>> {
        if self.format != ReportFormat::Gdb {
            let stacks = self.stacks.iter();
            return stacks.map(|it| vec![false; it.frames.len()]).collect();
        }
        let stacks = self.stacks.iter().zip(names).zip(selected(&self.stacks));
        let repeated = stacks.map(|((stack, names), is_selected)| {
            if is_selected {
                vec![true; stack.frames.len()]
            } else {
                of_stack(&stack.frames, names)
            }
        });
        repeated.collect()
    }
}

/// Returns of each stack trace whether it is a selected frame that is in the text once more.
fn selected(stacks: &[ReportStack]) -> Vec<bool> {
    let may_be = |stack: &ReportStack| stack.frames.len() == 1 && stack.thread_id.is_none();
    let whole = stacks.iter().filter(|stack| !may_be(stack));
    let mut known: HashSet<_> = whole.flat_map(|it| &it.frames).map(identity).collect();
    let selected = stacks.iter().map(|stack| {
        let mut frames = stack.frames.iter();
        may_be(stack) && frames.all(|frame| !known.insert(identity(frame)))
    });
    selected.collect()
}

/// Returns what gdb prints for a frame, wherever it does.
fn identity(frame: &ReportFrame) -> impl Eq + Hash {
    let function = frame.function.as_deref();
    let source = (frame.path.as_deref(), frame.line);
    (frame.number, frame.address, function, source)
}

fn of_stack(frames: &[ReportFrame], names: &[Vec<FrameName>]) -> Vec<bool> {
    // The names at the last address that no frame has repeated, from the callee to the caller.
    let mut left: &[FrameName] = &[];
    let mut repeated = Vec::with_capacity(frames.len());
    for (frame, names) in frames.iter().zip(names) {
        let function = frame.function.as_deref().unwrap_or_default();
        let without_generics = without_generics(function);
        if frame.address.is_some() || function == SIGNAL {
            left = names;
        }
        let is_it = |name: &FrameName| {
            is_of(&name.function, function) || is_of(&name.function, without_generics)
        };
        let at = left.iter().position(is_it);
        repeated.push(frame.address.is_none() && at.is_some());
        left = at.map_or(left, |at| &left[at + 1..]);
    }
    repeated
}

/// Returns whether a name is that of a function, which gdb prints without the types of its
/// parameters, and without the type that it returns.
fn is_of(name: &str, function: &str) -> bool {
    let mut found = name.match_indices(function);
    let parameters = name.find('(').unwrap_or(name.len());
    let is_here = |(at, _): (usize, &str)| {
        let (before, after) = (&name[..at], &name[at + function.len()..]);
        let begins = before.is_empty() || before.ends_with(' ') && at <= parameters;
        begins && (after.is_empty() || after.starts_with('('))
    };
    !function.is_empty() && found.any(is_here)
}

/// Returns the name of a function without the types that it is generic over: names of Rust may lack
/// them.
fn without_generics(function: &str) -> &str {
    let mut depth = 0_usize;
    if !function.ends_with('>') {
        return function;
    }
    for (at, bracket) in function.rmatch_indices(['<', '>']) {
        match bracket {
            ">" if !function[..at].ends_with('-') => depth += 1,
            "<" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return function[..at].trim_end_matches("::");
        }
    }
    function
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::report::tests::read;

    fn frame(address: Option<u64>, function: &str) -> ReportFrame {
        ReportFrame {
            address,
            function: Some(function.to_owned()),
            ..ReportFrame::default()
        }
    }

    fn names(functions: &[&str]) -> Vec<FrameName> {
        let name = |function: &&str| FrameName {
            function: (*function).to_owned(),
            path: None,
            line: None,
        };
        functions.iter().map(name).collect()
    }

    #[test]
    fn inlined_functions_that_the_response_names_are_repeated() {
        let frames = [
            frame(None, "top"),
            frame(Some(0x10), "inner"),
            frame(None, "middle"),
            frame(None, "outer<int>"),
            frame(None, SIGNAL),
            frame(None, "outer<int>"),
            frame(Some(0x20), "main"),
        ];
        let of_call = names(&["inner(int)", "middle", "void outer<int>(int)"]);
        let none = Vec::new;
        let of_all = [
            none(),
            of_call,
            none(),
            none(),
            none(),
            none(),
            names(&["main"]),
        ];
        let expected = [false, false, true, true, false, false, false];
        assert_eq!(of_stack(&frames, &of_all), expected);
    }

    #[test]
    fn a_function_that_the_response_does_not_name_is_not_lost() {
        let frames = [
            frame(Some(0x10), "inner"),
            frame(None, "middle"),
            frame(None, "outer"),
            frame(None, "outer"),
        ];
        let none = Vec::new;
        let without_inlined = [names(&["outer"]), none(), none(), none()];
        let repeated = of_stack(&frames, &without_inlined);
        assert_eq!(repeated, [false, false, true, false]);
        let unknown = [none(), none(), none(), none()];
        assert_eq!(of_stack(&frames, &unknown), [false; 4]);
    }

    #[test]
    fn names_of_rust_may_lack_the_types_that_a_function_is_generic_over() {
        let call = "core::FnOnce::call_once<fn() -> i32, alloc::Vec<u8>>";
        let frames = [
            frame(Some(0x10), "inner"),
            frame(None, call),
            frame(None, "get<u8>"),
        ];
        let of_call = names(&["inner", "core::FnOnce::call_once", "get<u16>"]);
        let of_all = [of_call, Vec::new(), Vec::new()];
        assert_eq!(of_stack(&frames, &of_all), [false, true, false]);
        assert_eq!(without_generics("a::b::<c>"), "a::b");
        assert_eq!(without_generics("operator>"), "operator>");
        assert_eq!(without_generics("<a as b>::c"), "<a as b>::c");
    }

    #[test]
    fn a_frame_that_gdb_selects_is_part_of_a_stack_trace() {
        let core = "\
Program terminated with signal SIGSEGV, Segmentation fault.
#0  0x0000555555555182 in bad (p=0x0) at bad.c:4
4\tvoid bad(int *p) { *p = 1; }
[Current thread is 1 (Thread 0x7ffff7dd1740 (LWP 30241))]
";
        let whole = "\
#0  0x0000555555555182 in bad (p=0x0) at bad.c:4
#1  0x00005555555551c4 in main () at bad.c:5
";
        let repeated = |text: &str| {
            let report = read(text);
            let stacks = report.stacks.iter();
            let names: Vec<_> = stacks.map(|it| vec![Vec::new(); it.frames.len()]).collect();
            report.repeated(&names)
        };
        let other = "#0  0x0000555555555190 in other () at bad.c:9\n";
        let thread = format!("Thread 1 (Thread 0x7ffff7dd1740 (LWP 30241)):\n{whole}");
        let up = "#1  0x00005555555551c4 in main () at bad.c:5\n5\tint main() {\n";
        let is_whole = vec![false; 2];
        let check = |text: String, expected: &[Vec<bool>]| {
            assert_eq!(repeated(&text), expected, "{text}");
        };
        check(format!("{core}{whole}"), &[vec![true], is_whole.clone()]);
        check(format!("{core}{thread}"), &[vec![true], is_whole.clone()]);
        check(format!("{whole}{up}"), &[is_whole.clone(), vec![true]]);
        check(format!("{core}{core}"), &[vec![false], vec![true]]);
        check(format!("{other}{whole}"), &[vec![false], is_whole]);
    }

    #[test]
    fn a_name_is_compared_without_types() {
        assert!(is_of("f", "f") && is_of("f(int)", "f"));
        assert!(is_of(
            "(anonymous namespace)::f()",
            "(anonymous namespace)::f"
        ));
        assert!(!is_of("of", "f") && !is_of("fg()", "f") && !is_of("a::f()", "f"));
        assert!(!is_of("g(int, f(*)(int))", "f") && !is_of("f", ""));
        assert!(is_of("f f(f f)", "f") && !is_of("fn() f", "f"));
        assert!(is_of("void (anonymous)", "(anonymous)"));
    }
}
