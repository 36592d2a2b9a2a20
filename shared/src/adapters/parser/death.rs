//! Explains how a parser process ended: a property of the DIF, or a fault of the service.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use syscalls::Sysno;

use super::limits::ParserLimits;
use super::wire::REFUSED_CALL;
use crate::domain::{Cause, Missing};
use crate::ports::{Fault, FaultKind, ParseError};

/// Signal numbers. They are the same on every supported Linux architecture: `man 7 signal`.
mod signal {
    pub(super) const HUP: i32 = 1;
    pub(super) const INT: i32 = 2;
    pub(super) const ABRT: i32 = 6;
    pub(super) const KILL: i32 = 9;
    pub(super) const TERM: i32 = 15;
    pub(super) const XCPU: i32 = 24;
    pub(super) const XFSZ: i32 = 25;
    pub(super) const SYS: i32 = 31;
}

/// Classifies a death: a reason in the DIF, which is stored, or a fault of the service.
///
/// `last_words` is the end of what the process wrote to standard error.
pub(super) fn explain(
    status: ExitStatus,
    last_words: &str,
    limits: ParserLimits,
    scratch_bytes: u64,
) -> ParseError {
    let last_line = last_words.trim().lines().next_back().unwrap_or_default();
    let words = if last_line.is_empty() {
        String::new()
    } else {
        format!(": {last_line}")
    };
    let missing = match status.signal() {
        None => {
            let context = format!("the parser process exited unexpectedly ({status}{words})");
            return Fault::new(FaultKind::Bug, context).into();
        }
        Some(signal @ (signal::HUP | signal::INT | signal::TERM)) => {
            let context = format!("the parser process received signal {signal}");
            return Fault::new(FaultKind::Transient, context).into();
        }
        Some(signal::XCPU) => Missing::malformed(format!(
            "parsing it exceeded {} s of CPU time",
            limits.cpu_seconds
        )),
        Some(signal::XFSZ) => Missing::new(
            Cause::TooLarge {
                limit: scratch_bytes,
            },
            format!("unpacked, it does not fit into {scratch_bytes} bytes of scratch space"),
        ),
        Some(signal::ABRT) if last_words.contains("memory allocation of") => {
            out_of_memory(limits.memory_bytes)
        }
        Some(signal::ABRT) if last_words.contains("has overflowed its stack") => {
            Missing::malformed("the parser overflowed its stack")
        }
        Some(signal @ signal::ABRT) => {
            Missing::malformed(format!("the parser aborted (signal {signal}){words}"))
        }
        Some(signal::SYS) => {
            let call = refused_call(last_words);
            let detail = format!("the parser made {call}, which its sandbox refuses");
            Missing::new(Cause::Crashed, detail)
        }
        // The kernel sends this signal when memory is exhausted. The parent sends it only after the
        // pipes broke, to a process that is stuck.
        Some(signal @ signal::KILL) => {
            let detail = format!(
                "the parser was killed (signal {signal}), probably because memory ran out{words}"
            );
            Missing::new(Cause::Crashed, detail)
        }
        Some(signal) => Missing::malformed(format!("the parser crashed (signal {signal}){words}")),
    };
    ParseError::Missing(missing)
}

/// Returns the name of the refused system call that ended a process, read from its last words.
fn refused_call(last_words: &str) -> String {
    let number = last_words
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix(REFUSED_CALL)?.parse().ok());
    match number.map(|number| (number, Sysno::new(number))) {
        Some((_, Some(call))) => format!("the system call `{call}`"),
        Some((number, None)) => format!("the system call {number}"),
        None => "a system call".to_owned(),
    }
}

/// Returns the reason for a DIF that needs more memory than the parser may use.
pub(super) fn out_of_memory(limit: u64) -> Missing {
    Missing::new(
        Cause::TooLarge { limit },
        format!("parsing it needs more than {limit} bytes of memory"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ParserLimits = ParserLimits {
        memory_bytes: 1000,
        cpu_seconds: 7,
        needs_seccomp: true,
    };

    fn missing(signal: i32, last_words: &str) -> Missing {
        match explain(ExitStatus::from_raw(signal), last_words, LIMITS, 500) {
            ParseError::Missing(missing) => missing,
            ParseError::Fault(error) => panic!("{error}"),
        }
    }

    #[test]
    fn each_death_has_its_reason() {
        assert_eq!(
            missing(24, ""),
            Missing::malformed("parsing it exceeded 7 s of CPU time")
        );
        assert_eq!(
            missing(6, "memory allocation of 99 bytes failed\n").cause,
            Cause::TooLarge { limit: 1000 }
        );
        let overflow = "\nthread 'main' has overflowed its stack\nfatal runtime error: stack overflow, aborting\n";
        assert_eq!(
            missing(6, overflow).detail,
            "the parser overflowed its stack"
        );
        assert_eq!(
            missing(6, "free(): invalid pointer\n").detail,
            "the parser aborted (signal 6): free(): invalid pointer"
        );
        assert_eq!(missing(11, "").detail, "the parser crashed (signal 11)");
        assert_eq!(missing(9, "").cause, Cause::Crashed);
        assert_eq!(
            missing(31, "noise\nrefused system call 41\n"),
            Missing::new(
                Cause::Crashed,
                "the parser made the system call `socket`, which its sandbox refuses"
            )
        );
        assert_eq!(
            missing(31, "").detail,
            "the parser made a system call, which its sandbox refuses"
        );
        assert_eq!(missing(25, "").cause, Cause::TooLarge { limit: 500 });
    }

    #[test]
    fn failures_unrelated_to_the_dif_are_not_cached() {
        for (status, kind) in [
            (15, FaultKind::Transient),
            (1 << 8, FaultKind::Bug),
            (0, FaultKind::Bug),
        ] {
            let error = explain(ExitStatus::from_raw(status), "", LIMITS, 500);
            assert!(matches!(error, ParseError::Fault(error) if error.kind() == kind));
        }
    }
}
