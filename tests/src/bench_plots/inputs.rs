//! The programs: several languages, compilers and formats, as large as possible.

use std::path::PathBuf;

use super::Arguments;
use crate::bench_real::packages::{self, JVM, SOURCES, Source};
use crate::bench_real::program::Program;
use crate::bench_real::{BenchError, detail};
use crate::stack::checkout;

/// A program whose SymCache is cut.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// Its short name.
    pub name: &'static str,
    /// Its language and format.
    pub what: &'static str,
    origin: Origin,
}

#[derive(Clone, Copy, Debug)]
enum Origin {
    /// Debian's packages.
    Debian(Source),
    /// Debian's debug package of the kernel, on request.
    Kernel,
    /// A file that is built here: its path in the checkout, and the command that builds it.
    Built(&'static str, &'static str),
}

/// The programs.
pub const INPUTS: [Input; 6] = [
    Input {
        name: SOURCES[0].name,
        what: "C, DWARF by gcc",
        origin: Origin::Debian(SOURCES[0]),
    },
    Input {
        name: SOURCES[1].name,
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
];

impl Input {
    /// Returns the program and the version of its package. If it is not available, prints why, and
    /// returns `None`.
    ///
    /// # Errors
    /// The program exists and cannot be read.
    pub fn open(&self, arguments: &Arguments) -> Result<Option<(Program, String)>, BenchError> {
        let Some((debug, version)) = self.file(arguments) else {
            return Ok(None);
        };
        Ok(Some((Program::read(self.name, &debug)?, version)))
    }

    fn file(&self, arguments: &Arguments) -> Option<(PathBuf, String)> {
        let cache = arguments.cache();
        let found = match self.origin {
            Origin::Debian(source) => {
                packages::files(&cache, source).map(|files| (files.debug, files.version))
            }
            Origin::Kernel if arguments.kernel => packages::kernel(&cache),
            Origin::Kernel => {
                detail("skipped: a download of 1 GB; `make bench-plots KERNEL=1` includes it");
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
