//! The programs: several languages, compilers and formats, as large as possible.

use std::path::{Path, PathBuf};

use super::deriving::Targets;
use super::detail;
use super::packages::{self, JVM, SOURCES, Source};
use crate::stack::checkout;

/// A program with its debug information.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// Its short name.
    pub name: &'static str,
    /// Its language and format.
    pub what: &'static str,
    origin: Origin,
}

/// The names of Debian's first two programs.
pub const LIBC: &str = SOURCES[0].name;
/// See [`LIBC`].
pub const CEPH: &str = SOURCES[1].name;

#[derive(Clone, Copy, Debug)]
enum Origin {
    /// Debian's packages.
    Debian(Source),
    /// Debian's debug package of the kernel, on request.
    Kernel,
    /// A file that is built here: its path in the checkout, and the command that builds it.
    Built(&'static str, &'static str),
}

/// The number of programs that `make bench-plots` plots.
pub const PLOTTED: usize = 6;

/// The programs.
pub const INPUTS: [Input; 8] = [
    Input {
        name: LIBC,
        what: "C, DWARF by gcc",
        origin: Origin::Debian(SOURCES[0]),
    },
    Input {
        name: CEPH,
        what: "C++, DWARF by gcc",
        origin: Origin::Debian(SOURCES[1]),
    },
    Input {
        name: JVM.name,
        what: "C++, DWARF by gcc",
        origin: Origin::Debian(JVM),
    },
    Input {
        name: "derive",
        what: "Rust, DWARF by rustc",
        origin: Origin::Built(
            "target/symbols/derive",
            "cargo build --profile symbols --no-default-features -p derive",
        ),
    },
    Input {
        name: "ldb",
        what: "C++, PDB by clang and lld",
        origin: Origin::Built(
            "target/bench-real/rocksdb/ldb.pdb",
            "tests/src/bench_plots/large-pdb.sh target/bench-real/rocksdb",
        ),
    },
    Input {
        name: "vmlinux",
        what: "C, DWARF by gcc",
        origin: Origin::Kernel,
    },
    Input {
        name: "lto",
        what: "C and C++, DWARF 5 by clang with link-time optimisation",
        origin: Origin::Built(
            "target/bench-real/lto/lto.so",
            "tests/src/bench_real/clang-lto.sh target/bench-real/lto",
        ),
    },
    Input {
        name: "compile",
        what: "Go, DWARF 4",
        origin: Origin::Built(
            "target/bench-real/go/compile",
            "tests/src/bench_real/go-program.sh target/bench-real/go",
        ),
    },
];

impl Input {
    /// Returns the targets of deriving its caches.
    pub fn targets(&self) -> Targets {
        let time = match self.name {
            CEPH => 0.20,
            LIBC => 1.1,
            "ldb" => 0.65,
            "compile" => return Targets::default(),
            _ => 0.35,
        };
        let is_ceph = self.name == CEPH;
        Targets {
            time: Some(time),
            memory: is_ceph.then_some(0.60),
            processor: is_ceph.then_some(0.36),
            stored: is_ceph.then_some(0.335),
        }
    }

    /// Returns the debug file and the version of its package. If it is not available, prints why,
    /// and returns `None`. The kernel is only downloaded if `with_kernel` is set.
    pub fn file(&self, cache: &Path, with_kernel: bool) -> Option<(PathBuf, String)> {
        let found = match self.origin {
            Origin::Debian(source) => {
                packages::files(cache, source).map(|files| (files.debug, files.version))
            }
            Origin::Kernel if with_kernel => packages::kernel(cache),
            Origin::Kernel => {
                detail("skipped: a download of 1 GB, which KERNEL=1 includes");
                return None;
            }
            Origin::Built(path, how) => {
                let path = checkout().join(path);
                if !path.is_file() {
                    detail(&format!("skipped: not built; run {how}"));
                    return None;
                }
                Ok((path, self.name.to_owned()))
            }
        };
        found
            .inspect_err(|error| detail(&format!("skipped: {error}")))
            .ok()
    }
}
