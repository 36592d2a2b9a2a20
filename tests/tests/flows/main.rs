//! The three sentences on ports in memory: an upload becomes derived caches, a request becomes a
//! response, a schedule removes what is no longer used.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails if a required value is absent"
)]

mod access;
mod attachments;
mod bodies;
mod candidates;
mod companions;
mod companions_of_servers;
mod continued;
mod copies;
mod counts;
mod crash_fields;
mod crash_file_costs;
mod crash_file_faults;
mod crash_files;
mod damaged;
mod documented;
mod failing_locations;
mod faults;
mod first_hour;
mod folder_tiers;
mod health;
mod hostile;
mod hostile_dumps;
mod maps;
mod minidump;
mod mozilla;
mod ms_symcache;
mod oracles;
mod outages;
mod pruning;
mod reference;
mod regressions;
mod reports;
mod requests;
mod scans;
mod sections;
mod servers;
mod slices;
mod source_files;
mod source_lines;
mod source_order;
mod stackwalk;
mod sweeping;
mod tables;
mod traces;
mod unusual_frames;
mod unwinding;
mod updates;
mod upload_requests;
mod uploads;
mod walk_oracle;

/// The debug id of elf/crash, of its debug file, and of its Breakpad symbols.
const CRASH: &str = "bc6e45ac-487f-f425-3672-08b89f51ad48";

/// The debug id of elf/inventory.
const INVENTORY: &str = "080b9ccd-2c9c-c04d-1b7e-a5e21b840cc7";

/// The debug id of elf/checksum.
const CHECKSUM: &str = "c822ad25-152b-3674-5149-86d333144792";

/// The debug id of elf/crash-arm64 and of its debug file.
const CRASH_ARM64: &str = "10311f21-a03f-9405-1950-37650303f4a9";

/// The debug id of pe/x64/crash.exe and of its PDB.
const CRASH_PE: &str = "c7d4c24f-1fb8-5408-4c4c-44205044422e-1";
