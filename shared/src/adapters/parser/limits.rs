//! The limits of the parser process.

/// The resources that the parser of a DIF may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParserLimits {
    /// Memory that it may allocate, in bytes. The DIF and its unpacked members are mapped and do
    /// not count.
    pub memory_bytes: u64,
    /// CPU time that it may use for one command, in seconds.
    pub cpu_seconds: u64,
    /// Whether to refuse to parse where system calls cannot be filtered.
    pub needs_seccomp: bool,
}
