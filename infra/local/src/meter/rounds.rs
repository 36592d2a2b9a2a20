//! Dependent rounds: the largest number of calls of a function process that were made one after the
//! other.
//!
//! Two calls that overlap in time do not depend on each other. The largest set of calls of which no
//! two overlap is found greedily: the calls are visited in the order of their responses, and a call
//! is selected if it began after the response to the last selected call. Responses are recorded in
//! that order anyway, so one timestamp and one number per process suffice.
//!
//! Without latency ([`crate::latency`]) calls are short, so that independent calls may happen not
//! to overlap.

use std::collections::BTreeMap;

use tokio::time::Instant;

use crate::identity::FunctionProcess;

/// The maximum number of processes that are tracked at the same time, far more than run at the same
/// time. Beyond it, the process with the oldest response is dropped, and only its function's
/// maximum is kept.
const MAX_PROCESSES: usize = 1024;

/// The maximum number of functions that are tracked. It exceeds that of any template; clients may
/// invent names.
const MAX_FUNCTIONS: usize = 64;

/// The rounds of all processes since the start or the last reset.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// By process: `(function, process)`.
    chains: BTreeMap<(String, String), Chain>,
    /// The maximum of the rounds of dropped processes, by function.
    earlier: BTreeMap<String, u64>,
}

/// The selected calls of one process.
#[derive(Clone, Copy, Debug)]
struct Chain {
    rounds: u64,
    /// When the response to the last selected call began.
    taken_until: Instant,
    /// When the last response began, of any call.
    latest: Instant,
}

impl Rounds {
    /// Records a call that began at `begun` and whose response begins now, at `answered`.
    pub(super) fn answered(
        &mut self,
        FunctionProcess { function, process }: FunctionProcess<'_>,
        begun: Instant,
        answered: Instant,
    ) {
        let key = (function.to_owned(), process.to_owned());
        match self.chains.get_mut(&key) {
            Some(chain) => {
                if begun >= chain.taken_until {
                    chain.rounds += 1;
                    chain.taken_until = answered;
                }
                chain.latest = answered;
            }
            None => {
                if self.chains.len() >= MAX_PROCESSES {
                    self.forget_one();
                }
                let first = Chain {
                    rounds: 1,
                    taken_until: answered,
                    latest: answered,
                };
                self.chains.insert(key, first);
            }
        }
    }

    /// Returns the maximum of the rounds of one process, by function.
    pub(super) fn by_function(&self) -> BTreeMap<String, u64> {
        let mut most = self.earlier.clone();
        for ((function, _), chain) in &self.chains {
            let rounds = most.entry(function.clone()).or_default();
            *rounds = (*rounds).max(chain.rounds);
        }
        most
    }

    fn forget_one(&mut self) {
        let oldest = self.chains.iter().min_by_key(|(_, chain)| chain.latest);
        let Some((key, chain)) = oldest.map(|(key, chain)| (key.clone(), *chain)) else {
            return;
        };
        self.chains.remove(&key);
        let (function, _) = key;
        if self.earlier.len() < MAX_FUNCTIONS || self.earlier.contains_key(&function) {
            let rounds = self.earlier.entry(function).or_default();
            *rounds = (*rounds).max(chain.rounds);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const READER: FunctionProcess<'static> = FunctionProcess {
        function: "reader",
        process: "1",
    };

    /// Returns the rounds of one process with calls of these times, in milliseconds.
    fn rounds_of(calls: &[(u64, u64)]) -> u64 {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut answered = calls.to_vec();
        answered.sort_unstable_by_key(|(_, end)| *end);
        let mut rounds = Rounds::default();
        for (begin, end) in answered {
            rounds.answered(READER, at(begin), at(end));
        }
        rounds.by_function().get("reader").copied().unwrap_or(0)
    }

    #[test]
    fn parallel_calls_are_one_round_and_sequential_calls_are_many() {
        assert_eq!(rounds_of(&[]), 0);
        assert_eq!(rounds_of(&[(0, 5), (1, 6), (2, 7)]), 1);
        assert_eq!(rounds_of(&[(0, 5), (5, 10), (11, 16)]), 3);
        // Three waves of eight parallel calls.
        let waves: Vec<(u64, u64)> = (0..24)
            .map(|call| (call / 8 * 20 + call % 8, call / 8 * 20 + 15))
            .collect();
        assert_eq!(rounds_of(&waves), 3);
    }

    #[test]
    fn a_long_call_does_not_hide_parallel_short_calls() {
        assert_eq!(rounds_of(&[(0, 100), (0, 5), (6, 11), (12, 17)]), 3);
    }

    #[test]
    fn the_rounds_of_a_function_are_the_maximum_of_its_processes() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut rounds = Rounds::default();
        for (process, calls) in [("1", 2_u64), ("2", 4)] {
            for call in 0..calls {
                let process = FunctionProcess { process, ..READER };
                rounds.answered(process, at(call * 10), at(call * 10 + 5));
            }
        }
        assert_eq!(
            rounds.by_function(),
            BTreeMap::from([("reader".to_owned(), 4)])
        );
    }

    #[test]
    fn any_number_of_processes_takes_bounded_memory_and_the_maximum_of_rounds_is_kept() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut rounds = Rounds::default();
        for call in 0..3 {
            rounds.answered(READER, at(call), at(call));
        }
        for number in 0..2 * MAX_PROCESSES as u64 {
            let (function, process) = (format!("made-up-{}", number % 200), number.to_string());
            let process = FunctionProcess {
                function: &function,
                process: &process,
            };
            rounds.answered(process, at(10 + number), at(11 + number));
        }
        assert_eq!(rounds.chains.len(), MAX_PROCESSES);
        assert_eq!(rounds.earlier.len(), MAX_FUNCTIONS);
        assert_eq!(rounds.by_function()["reader"], 3);
    }
}
