//! The architecture as a test: plain reading of the project's files. Each failure names a file, a
//! rule and a remedy.

#![expect(
    clippy::unwrap_used,
    reason = "a file that these tests read is there, or they fail"
)]

mod documents;
mod fixtures;
mod glossary;
mod layers;
mod permissions;
mod project;
mod prose;
mod settings;
mod shown;
mod spelling;
mod structure;
mod tour;
