//! Tests of the architecture, which read the project's files as text. Each failure names a file, a
//! rule and a remedy.

#![expect(
    clippy::unwrap_used,
    reason = "these tests fail if a file that they read does not exist"
)]

mod documents;
mod fixtures;
mod glossary;
mod layers;
mod licences;
mod metrics;
mod openapi;
mod permissions;
mod profiles;
mod project;
mod prose;
mod settings;
mod shown;
mod spelling;
mod structure;
mod summaries;
mod tour;
