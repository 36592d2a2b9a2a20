//! The line that a function logs at the end of each invocation, with what it did as fields.
//!
//! `symbolicate` logs a line for each request, `derive` for each message, `prune` for each run. A
//! field without a value is left out. No field has a part of a crash, a credential, or a URL: the
//! log can be read by more people than the service. A test compares the fields with the tables in
//! `docs/operations.md`.

/// Defines a line: its text, and its fields.
macro_rules! summary {
    (
        $(#[$doc:meta])*
        $name:ident = $message:literal {
            $($(#[$field_doc:meta])* $field:ident: $of:ty,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: Option<$of>,)*
        }

        impl $name {
            /// The text of the line.
            pub const MESSAGE: &'static str = $message;

            /// The names of its fields.
            pub const FIELDS: &'static [&'static str] = &[$(stringify!($field)),*];

            /// Writes the line.
            pub fn log(&self) {
                tracing::info!($($field = &self.$field,)* $message);
            }
        }
    };
}

summary! {
    /// A request to `symbolicate`, and its response.
    RequestSummary = "request served" {
        /// The method.
        method: String,
        /// The path of the route, with the names of its parameters; not the path of the request.
        route: &'static str,
        /// The status of the response.
        status: u16,
        /// What the response is: `completed`, `pending` or `failed` of a crash; of a SymCache,
        /// `file`, `not_modified`, `nothing`, `pending` or `unknown`.
        outcome: &'static str,
        /// The debug id of the module whose SymCache is requested.
        module: String,
        /// Who sent the request, as a hash.
        caller: String,
        /// The size of the request's body in bytes.
        request_bytes: usize,
        /// The size of the response's body in bytes.
        response_bytes: usize,
        /// The time of the whole request in microseconds, without waiting for the gateway.
        handler_us: u64,
        /// The part of it in milliseconds that was spent waiting for builds.
        waited_ms: u64,
        /// Items of the table that were read to look modules up, or a stored request; not those in
        /// the memory of this instance.
        record_reads: usize,
        /// Slices and whole caches that were in the memory of this instance.
        memory_hits: u64,
        /// Reads of blobs in S3.
        blob_reads: u64,
        /// The bytes of these reads.
        blob_bytes: u64,
        /// Stack traces of the request.
        stacktraces: usize,
        /// Frames of the request.
        frames: usize,
        /// Those that were symbolicated.
        symbolicated: usize,
        /// Those without a symbol in the cache of their module.
        missing_symbol: usize,
        /// Those outside of all modules.
        unknown_image: usize,
        /// Those whose module has no cache.
        missing: usize,
        /// Those whose module has a debug file that cannot be parsed.
        malformed: usize,
        /// Frames of the response for functions that others are inlined into.
        inlined: usize,
        /// Frames without some outer callers, because there were too many.
        truncated: usize,
        /// Frames that the response leaves out.
        dropped: usize,
        /// Modules of the request.
        modules: usize,
        /// Those that no frame refers to.
        modules_unused: usize,
        /// Those with a cache.
        modules_found: usize,
        /// Threads of a minidump.
        walked_threads: usize,
        /// Frames that were found by walking their stacks.
        walked_frames: usize,
        /// Threads that the response leaves out.
        threads_cut: usize,
        /// Stacks of which a part or nothing was walked.
        stacks_cut: usize,
        /// Stacks whose outer frames the response leaves out.
        stacks_shortened: usize,
        /// Reads of unwind information that the walks had to do without.
        reads_cut: usize,
        /// Walks that ended because the walker panicked.
        panics: usize,
        /// The id of the trace, if it is exported.
        trace_id: String,
    }
}

summary! {
    /// A message to `derive`.
    MessageSummary = "message processed" {
        /// What the message is: `created` or `removed` (an event of the uploads bucket),
        /// `reconcile`, `build`, `newer` (only a newer release can read it).
        work: &'static str,
        /// `done`, or `retried` after an error.
        outcome: &'static str,
        /// The queue of a build: `eager`, `uploads` or `refresh`.
        queue: &'static str,
        /// The key of an upload; the id of a module, or the name of a source file, to build.
        file: String,
        /// The source of a build's files.
        source: String,
        /// The total size of the files that were fetched, in bytes.
        file_bytes: u64,
        /// The kinds of the caches that were published, separated by commas.
        kinds: String,
        /// Why a kind was not built (`not_found`, `malformed`, …), or `ignored` of an upload that
        /// serves no module.
        cause: &'static str,
        /// The name of the error, if the message is retried.
        error: &'static str,
        /// The time in seconds.
        seconds: f64,
        /// How long it waited for builds of other invocations, in milliseconds.
        waited_ms: u64,
        /// How often the message was received.
        receives: u32,
        /// How often it was sent again.
        hops: u32,
        /// The id of the trace, if it is exported.
        trace_id: String,
    }
}

summary! {
    /// A run of `prune`. Its counts are those of [`Report`](crate::flows::prune::Report).
    RunSummary = "run completed" {
        /// Whether it changed nothing.
        dry_run: bool,
        /// Whether every step was completed. The next run continues the others.
        complete: bool,
        /// The number of the pass over the records.
        pass: u64,
        /// Items that were scanned.
        items: u64,
        /// Those that are entries.
        entries: u64,
        /// The read capacity that was consumed, in read units.
        read_units: u64,
        /// Entries that were retired.
        retired: u64,
        /// Those that the byte budget evicted.
        over_budget: u64,
        /// Copies of files of symbol servers that were retired.
        copies_retired: u64,
        /// Expired leases that were cleared.
        leases_cleared: u64,
        /// Older states that were dropped.
        older_dropped: u64,
        /// Items that had expired, and chunks of objects that no upload item names.
        expired: u64,
        /// Rebuilds that were requested.
        requested: u64,
        /// Keys of the uploads bucket that were sent to the uploads queue.
        reconciled: u64,
        /// Keys that seem gone, but are too many to be believed.
        doubtful: u64,
        /// Presence items that were added.
        presences_noted: u64,
        /// Presence items that were removed.
        presences_forgotten: u64,
        /// Aliases that were removed.
        aliases_removed: u64,
        /// Blobs that were checked.
        blobs: u64,
        /// Orphans.
        orphans: u64,
        /// The bytes of deleted blobs.
        bytes_freed: u64,
        /// Calls that failed.
        failed: u64,
        /// The first errors, separated by semicolons.
        errors: String,
        /// The time in seconds.
        seconds: f64,
        /// The id of the trace, if it is exported.
        trace_id: String,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::runtime::logged::logged;

    /// Returns the only line that `log` writes.
    fn line_of(log: impl FnOnce()) -> Value {
        serde_json::from_str(&logged(log)).unwrap()
    }

    #[test]
    fn fields_are_numbers_and_texts_of_one_line_and_those_without_a_value_are_left_out() {
        let summary = RequestSummary {
            route: Some("/symbolicate"),
            status: Some(200),
            caller: Some("0123456789abcdef".to_owned()),
            blob_bytes: Some(7),
            ..RequestSummary::default()
        };
        let line = line_of(|| summary.log());
        assert_eq!(line["message"], RequestSummary::MESSAGE);
        assert_eq!(line["status"], 200);
        assert_eq!(line["route"], "/symbolicate");
        assert_eq!(line["caller"], "0123456789abcdef");
        assert_eq!(line["blob_bytes"], 7);
        let logged = line.as_object().unwrap().keys();
        let ours = logged.filter(|name| RequestSummary::FIELDS.contains(&name.as_str()));
        assert_eq!(ours.count(), 4, "{line:#}");
        let summary = MessageSummary {
            seconds: Some(0.25),
            ..MessageSummary::default()
        };
        assert_eq!(line_of(|| summary.log())["seconds"], 0.25);
    }
}
