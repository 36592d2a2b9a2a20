//! From a minidump to the stack traces of its threads.
//!
//! 1. *Point*: the words of all stacks say which modules the walks may reach
//!    (`crate::unwind::pointed_at`).
//! 2. *Look up* the CFI caches and SymCaches of these modules, in one round of reads (`modules`).
//! 3. *Prefetch* the slices of the CFI caches that are ready.
//! 4. *Walk* each stack (`walks`). A walk that reaches a module for which a build could still make
//!    a cache ends there. So does one that needs a cache whose blob cannot be read; it is reported
//!    as suspect, and its replacement is waited for. No walk continues with less.
//! 5. *Request builds* for the modules that the walks reached, of both kinds at once, and of no
//!    others: the words of a stack point into many modules that no walk reaches. The minidump is
//!    stored first.
//! 6. Repeat from step 2, with these modules and the walks that ended, until all walks are
//!    complete or the time is up. If it is up, the response is `pending`.
//!
//! The result is a request like any other one, and is answered and stored like one.

mod large;
mod modules;
mod stored;
mod walks;

use std::collections::{BTreeMap, BTreeSet};

use self::modules::WalkModules;
pub use self::stored::{MinidumpForm, decode_dump};
pub use self::walks::WalkStats;
use self::walks::Walks;
use super::HttpService;
use super::lookup::CacheFinder;
use super::parsing::parsed;
use super::requests::{CallState, RequestStage, RequestToStore, is_overdue};
use super::waiting::{AfterRound, WaitOutcome};
use super::{Error, Invocation};
use crate::api::crash::form::CrashFields;
use crate::api::crash::rewrite::RewriteRules;
use crate::api::crash::{ReadCrash, first_module};
use crate::api::symbolicator::{Module, Request};
use crate::domain::ResponseFormat;
pub use crate::unwind::dump::{DUMP_BYTES, DumpBytes};
use crate::unwind::dump::{Dump, DumpFile, ReportHead};
use crate::unwind::{KnownUnwinding, StackWalker};

/// A minidump to walk.
#[derive(Debug)]
pub struct MinidumpRequest<'a> {
    /// The file.
    pub file: DumpBytes,
    /// How it is symbolicated.
    pub fields: &'a CrashFields,
    /// The state of the call.
    pub call: CallState<'a>,
}

/// The outcome of walking a minidump.
#[derive(Debug)]
pub enum WalkOutcome {
    /// All walks are complete.
    Walked(Box<ReadCrash>, WalkStats),
    /// The walks wait for builds, and the minidump is stored under its id.
    Pending,
    /// The minidump cannot be read; the message says why.
    Failed(String),
}

impl HttpService {
    /// Walks the stacks of a minidump, or stores it if builds take longer than it may wait here.
    ///
    /// # Errors
    ///
    /// [`Error`] if a store fails, or if the sources that the request selects do not exist.
    pub async fn walk_minidump(
        &self,
        invocation: &Invocation,
        request: MinidumpRequest<'_>,
    ) -> Result<WalkOutcome, Error> {
        let file = match parsed("minidump", || DumpFile::open(&request.file)) {
            Ok(file) => file,
            Err(message) => return Ok(WalkOutcome::Failed(message)),
        };
        let dump = match parsed("minidump", || Dump::read(&file)) {
            Ok(dump) => dump,
            Err(message) => return Ok(WalkOutcome::Failed(message)),
        };
        let head = match request.fields.format {
            ResponseFormat::Symbolicator => None,
            ResponseFormat::Stackwalk => {
                match parsed("minidump", || ReportHead::read(&request.file, &file, &dump)) {
                    Ok(head) => Some(head),
                    Err(message) => return Ok(WalkOutcome::Failed(message)),
                }
            }
        };
        let finder = CacheFinder::new(self, invocation);
        let sources = finder.select_sources(&request.fields.sources).await?;
        let reads_all = request.fields.options.dif_candidates;
        let listed = renamed(dump.request_modules(), &request.fields.rewrite_first_module);
        let mut rounds = WalkRounds {
            dump: &dump,
            modules: WalkModules::new(finder, sources, request.call.scope, listed, reads_all),
            walks: Walks::new(&dump, request.file.stacks_unread),
            known: KnownUnwinding::default(),
            is_stored: request.call.found.is_some(),
            request,
        };
        Ok(match rounds.run().await? {
            WaitOutcome::Complete(()) => {
                let (crash, stats) = rounds.into_crash(head);
                WalkOutcome::Walked(Box::new(crash), stats)
            }
            WaitOutcome::Pending => WalkOutcome::Pending,
        })
    }
}

/// Returns modules by their indices, with the names under which they are looked up: the first one,
/// and all others with its debug id, are renamed if a rule says so.
fn renamed(mut modules: Vec<(usize, Module)>, rules: &RewriteRules) -> BTreeMap<usize, Module> {
    let first = first_module(modules.iter().map(|(_, module)| module));
    if let Some((first, debug_file)) = rules.renamed(first) {
        let debug_id = modules[first].1.debug_id;
        for (at, (_, module)) in modules.iter_mut().enumerate() {
            if at == first || (debug_id.is_some() && module.debug_id == debug_id) {
                module.debug_file = Some(debug_file.clone());
            }
        }
    }
    modules.into_iter().collect()
}

/// A minidump, and its state across the rounds.
struct WalkRounds<'a> {
    request: MinidumpRequest<'a>,
    /// Whether the minidump is stored under the id of the request.
    is_stored: bool,
    dump: &'a Dump<'a>,
    modules: WalkModules<'a>,
    walks: Walks<'a>,
    known: KnownUnwinding,
}

impl WalkRounds<'_> {
    /// Repeats rounds until all walks are complete, or the time is up. Then, stores the minidump.
    async fn run(&mut self) -> Result<WaitOutcome<()>, Error> {
        let call = self.request.call;
        let CacheFinder {
            service,
            invocation,
            ..
        } = self.modules.finder;
        let mut waiting = service.wait_for_builds(invocation, call);
        let mut to_look_up: BTreeSet<usize> = self.walks.pointed_at().keys().copied().collect();
        // Before the first walk, all modules are new.
        let mut reached_new_module = true;
        loop {
            let (is_last, consistency) = waiting.begin_round();
            self.modules.add(&to_look_up);
            let looked_up = self
                .modules
                .look_up(&to_look_up, !is_last, consistency)
                .await;
            let any_decided = match looked_up {
                // Nothing is awaited any longer.
                Err(error) if !self.modules.has_given_up() && waiting.tolerates(&error) => false,
                looked_up => looked_up?,
            };
            if any_decided || reached_new_module {
                to_look_up = self.walk().await?;
                if to_look_up.is_empty() {
                    self.modules.touch(self.walks.needed_modules()).await;
                    self.request_better().await?;
                    return Ok(WaitOutcome::Complete(()));
                }
                // A walk may reach a module that no word of a stack points into.
                reached_new_module = to_look_up
                    .iter()
                    .any(|module| !self.modules.is_known(*module));
                if reached_new_module {
                    continue;
                }
            }
            self.request_builds(&to_look_up).await?;
            let only_queued = !self.modules.is_in_progress(&to_look_up);
            match waiting.after_round(only_queued) {
                AfterRound::Pause => waiting.pause().await,
                AfterRound::TimeIsUp if is_overdue(call.age) => self.modules.give_up(),
                AfterRound::TimeIsUp => {
                    self.store_dump().await?;
                    service.memory.note_pending(invocation, call.id);
                    return Ok(WaitOutcome::Pending);
                }
            }
        }
    }

    /// Walks the stacks whose walks are not complete. Returns the modules that walks reached
    /// although they are not decided, or no longer, because a cache of them cannot be read. If the
    /// store failed, the walks have less than there is, and the client repeats the request.
    async fn walk(&mut self) -> Result<BTreeSet<usize>, Error> {
        let (dump, modules) = (self.dump, &self.modules);
        let service = modules.finder.service;
        let _span = modules.finder.invocation.span("walk stacks");
        let undecided = modules.undecided(dump.modules.iter().count());
        let reader = service.unwinding(modules.caches()).without(undecided);
        let walker = StackWalker::new(&reader, &dump.modules, &dump.system)
            .continuing(&self.known)
            .within(dump);
        let addresses = self.walks.pointed_at().iter();
        let addresses = addresses.filter(|(module, _)| modules.is_decided(**module));
        let addresses = addresses.map(|(module, addresses)| (*module, addresses.clone()));
        walker.prefetch(addresses.collect()).await;
        let reached = self.walks.run(&walker).await;
        drop(walker);
        let unreadable = reader.into_unreadable()?;
        self.modules.report_unreadable(&unreadable).await?;
        Ok(reached)
    }

    /// Requests the builds for these modules, after storing the minidump.
    async fn request_builds(&mut self, reached: &BTreeSet<usize>) -> Result<(), Error> {
        let to_request = self.modules.builds_of(reached);
        if to_request.is_empty() {
            return Ok(());
        }
        self.store_dump().await?;
        Ok(self.modules.request(to_request).await?)
    }

    /// Requests the builds that could make better caches than those that the complete walks used.
    async fn request_better(&mut self) -> Result<(), Error> {
        let to_request = self.modules.builds_of(self.walks.needed_modules());
        Ok(self.modules.request(to_request).await?)
    }

    /// Stores the minidump, unless it is already stored.
    async fn store_dump(&mut self) -> Result<(), Error> {
        if self.is_stored {
            return Ok(());
        }
        let MinidumpRequest { file, fields, call } = &self.request;
        let body = stored::encode(file, fields)?;
        let to_store = RequestToStore {
            stage: RequestStage::Minidump,
            format: fields.format,
            body: &body,
        };
        let CacheFinder {
            service,
            invocation,
            ..
        } = self.modules.finder;
        service
            .store_request(invocation, call.id, call.scope, to_store)
            .await?;
        self.is_stored = true;
        Ok(())
    }

    /// Returns the crash with the stack traces that were walked.
    fn into_crash(self, head: Option<ReportHead>) -> (ReadCrash, WalkStats) {
        let Self {
            request,
            is_stored: _,
            dump,
            mut modules,
            walks,
            known,
        } = self;
        let frames_in = walks.frames_in();
        let listed = dump.request_modules().into_iter();
        // Without an id, nothing can be found for a module.
        let listed = listed.filter(|(_, module)| {
            let has_id = module.code_id.is_some() || module.debug_id.is_some();
            has_id || frames_in.contains(&module.image_addr.0)
        });
        // A module that has only a code id is identified by the file that unwinds it.
        let listed = listed.map(|(index, module)| {
            let debug_id = module.debug_id.or_else(|| modules.debug_id(index));
            (index, Module { debug_id, ..module })
        });
        let (indices, listed): (Vec<usize>, Vec<Module>) = listed.unzip();
        let unwinding = indices.iter().map(|index| {
            let is_used = walks.needed_modules().contains(index);
            is_used.then(|| modules.take_unwinding(*index)).flatten()
        });
        let unwinding = unwinding.collect();
        let stackwalk = head.map(|head| walks.stackwalk_report(head));
        let (stacktraces, stats) = walks.into_stacktraces();
        let stats = WalkStats {
            reads_cut: known.reads_refused(),
            ..stats
        };
        let crash = ReadCrash {
            facts: dump.facts.clone(),
            request: Request {
                stacktraces,
                modules: listed,
                ..Request::default()
            },
            unwinding,
            renamed: None,
            stackwalk,
        };
        (crash.with_fields(request.fields.clone()), stats)
    }
}
