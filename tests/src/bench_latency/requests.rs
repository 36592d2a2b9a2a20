//! The rows of the table: which modules are requested, in which state of the functions.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use serde_json::Value;

use super::measure::{Limits, Modules, Run, add, unexpected};
use super::server::SymbolServers;
use crate::bench_real::report::Report;
use crate::bench_real::{BenchError, PATIENCE, say};
use crate::made_up::{MadeUp, MadeUpCrash, crash_in, is_symbolicated};
use crate::stack::Client;

/// The default number of modules in a request.
const MODULES: u32 = 40;

/// Functions of a small module.
const FEW_FUNCTIONS: usize = 20;

/// Functions of a module whose file has 200 kB.
const MANY_FUNCTIONS: usize = 1_700;

/// A scope other than the global one.
const SCOPE: &str = "acme";

/// A query that gives access to two scopes: this one, and the global one.
const TWO_SCOPES: &str = "scope=acme";

/// Longer than an instance caches that a module is unknown.
const UNTIL_IT_IS_READ_AGAIN: Duration = Duration::from_secs(3);

/// Concurrent uploads.
const UPLOADS_AT_A_TIME: usize = 8;

/// The benchmark of one stack.
#[derive(Debug)]
pub struct Bench<'a> {
    /// A client of the stack.
    pub client: &'a Client,
    /// Generates the modules.
    pub modules: &'a Modules,
    /// The number of measurements of each row.
    pub runs: usize,
    /// Receives the numbers.
    pub report: &'a mut Report,
}

impl Bench<'_> {
    /// Uploads to the scopes of the requests, because reading an empty scope needs fewer calls.
    ///
    /// # Errors
    /// An upload fails.
    pub async fn uploads_to_both_scopes(&mut self) -> Result<(), BenchError> {
        for module in self.modules.take(1, FEW_FUNCTIONS) {
            for scope in ["global", SCOPE] {
                let key = format!("{scope}/of-another-crash.sym");
                self.client.upload(&key, module.file()).await?;
            }
        }
        Ok(self.client.idle(PATIENCE).await?)
    }

    /// Modules that were never uploaded, in two scopes.
    ///
    /// # Errors
    /// The stack does not respond as expected.
    pub async fn unknown_modules(&mut self) -> Result<(), BenchError> {
        let limits = Limits {
            batch_gets: Some(2),
            writes: Some(0),
            messages: Some(0),
            derive_runs: Some(0),
            ..Limits::default()
        };
        let title =
            format!("{MODULES} modules that were never uploaded, two scopes, functions stopped");
        self.announce(&title);
        let mut runs = Vec::new();
        for _ in 0..self.runs {
            self.client.end_functions().await?;
            runs.push(self.unknown(MODULES, TWO_SCOPES).await?);
        }
        let cold = Limits {
            time: Some(60.0),
            ..limits
        };
        self.add(&title, &runs, &cold);

        let title =
            format!("{MODULES} modules that were never uploaded, two scopes, warm instance");
        self.announce(&title);
        let mut runs = Vec::new();
        for _ in 0..self.runs {
            self.client.end_functions().await?;
            self.unknown(1, TWO_SCOPES).await?;
            runs.push(self.unknown(MODULES, TWO_SCOPES).await?);
        }
        let warm = Limits {
            time: Some(25.0),
            ..limits
        };
        self.add(&title, &runs, &warm);
        Ok(())
    }

    /// Modules that were never uploaded, and that the instance has seen: seconds ago, and just now.
    ///
    /// # Errors
    /// The stack does not respond as expected.
    pub async fn unknown_modules_that_are_remembered(&mut self) -> Result<(), BenchError> {
        let seconds = UNTIL_IT_IS_READ_AGAIN.as_secs();
        let title = format!("{MODULES} unknown modules that the instance saw {seconds} s ago");
        self.announce(&title);
        let (mut later, mut at_once) = (Vec::new(), Vec::new());
        for _ in 0..self.runs {
            self.client.end_functions().await?;
            let modules = self.modules.take(MODULES, FEW_FUNCTIONS);
            self.all_missing(&modules, TWO_SCOPES).await?;
            tokio::time::sleep(UNTIL_IT_IS_READ_AGAIN).await;
            later.push(self.all_missing(&modules, TWO_SCOPES).await?);
            at_once.push(self.all_missing(&modules, TWO_SCOPES).await?);
        }
        let limits = Limits {
            time: Some(10.0),
            batch_gets: Some(1),
            calls: Some(1),
            ..Limits::default()
        };
        self.add(&title, &later, &limits);
        let limits = Limits {
            calls: Some(0),
            ..Limits::default()
        };
        let title = format!("{MODULES} unknown modules that the instance has just seen");
        self.announce(&title);
        self.add(&title, &at_once, &limits);
        Ok(())
    }

    /// Modules whose caches are ready.
    ///
    /// # Errors
    /// An upload fails, or the stack does not respond as expected.
    pub async fn modules_that_are_ready(&mut self) -> Result<(), BenchError> {
        let title = format!("{MODULES} modules that are ready, two scopes, functions stopped");
        self.announce(&title);
        let mut runs = Vec::new();
        for _ in 0..self.runs {
            let modules = self.modules.take(MODULES, FEW_FUNCTIONS);
            let uploads = modules
                .iter()
                .map(async |module| self.client.upload(&module.key(), module.file()).await);
            stream::iter(uploads)
                .buffer_unordered(UPLOADS_AT_A_TIME)
                .try_collect::<()>()
                .await?;
            self.client.idle(PATIENCE).await?;
            self.client.end_functions().await?;
            let (run, answer) = self.request(TWO_SCOPES, &crash_in(&modules)).await?;
            if !is_symbolicated(&modules, &answer) {
                return Err(unexpected("the response with ready modules", &answer));
            }
            runs.push(run);
        }
        let limits = Limits {
            // From a cold start to the first answer.
            time: Some(100.0),
            time_beyond_start: Some(60.0),
            batch_gets: Some(2),
            get_objects: Some(MODULES.into()),
            // The records, then the caches.
            rounds: Some(2),
            ..Limits::default()
        };
        self.add(&title, &runs, &limits);
        Ok(())
    }

    /// A minidump of 30 threads in 20 modules whose caches are ready: after all functions ended,
    /// and again.
    ///
    /// # Errors
    /// An upload fails, or the stack does not respond as expected.
    pub async fn a_crash_file(&mut self) -> Result<(), BenchError> {
        const MODULES: u32 = 20;
        const THREADS: usize = 30;
        const FRAMES: usize = 30;
        let what = format!("a minidump of {THREADS} threads in {MODULES} modules that are ready");
        self.announce(&what);
        let (mut cold, mut warm) = (Vec::new(), Vec::new());
        for _ in 0..self.runs {
            let modules = self.modules.take(MODULES, MANY_FUNCTIONS);
            for module in &modules {
                self.client.upload(&module.key(), module.file()).await?;
            }
            self.client.idle(PATIENCE).await?;
            let crash = MadeUpCrash {
                modules: &modules,
                unreached: 0,
                threads: THREADS,
                frames: FRAMES,
            };
            let dump = crash.dump();
            self.client.end_functions().await?;
            for runs in [&mut cold, &mut warm] {
                let request = async { Ok(self.client.minidump("", &dump).await?) };
                let (run, answer) = Run::of(self.client, request).await?;
                if !crash.is_symbolicated(&answer) {
                    return Err(unexpected("the response to a minidump", &answer));
                }
                runs.push(run);
            }
        }
        let limits = Limits {
            time: Some(1000.0),
            batch_gets: Some(2),
            // The records, then three of caches.
            rounds: Some(4),
            ..Limits::default()
        };
        self.add(&format!("{what}, functions stopped"), &cold, &limits);
        let limits = Limits {
            time: Some(150.0),
            calls: Some(0),
            ..Limits::default()
        };
        self.add(&format!("{what}, warm instance"), &warm, &limits);
        Ok(())
    }

    /// More unknown modules, in a new scope, by a client that does not wait.
    ///
    /// # Errors
    /// The stack does not respond as expected.
    pub async fn many_unknown_modules_of_a_new_scope(&mut self) -> Result<(), BenchError> {
        const MANY: u32 = 200;
        let title = format!("{MANY} unknown modules, a new scope, timeout=0, functions stopped");
        self.announce(&title);
        let mut runs = Vec::new();
        for number in 0..self.runs {
            self.client.end_functions().await?;
            let crash = crash_in(&self.modules.take(MANY, FEW_FUNCTIONS));
            let query = format!("scope=never-seen-{number}&timeout=0");
            let request = async {
                let reply = self.client.symbolicate(&query, &crash).await?;
                Ok(reply.expect(200, "a crash")?)
            };
            runs.push(Run::of(self.client, request).await?.0);
        }
        let limits = Limits {
            time: Some(60.0),
            writes: Some(0),
            messages: Some(0),
            derive_runs: Some(0),
            ..Limits::default()
        };
        self.add(&title, &runs, &limits);
        Ok(())
    }

    /// An upload, until a response contains its names.
    ///
    /// # Errors
    /// The upload fails, or the stack does not respond as expected.
    pub async fn an_upload(&mut self) -> Result<(), BenchError> {
        let kilobytes = MadeUp::new(1, MANY_FUNCTIONS).file().len() / 1000;
        let title = format!(
            "an upload of {kilobytes} kB until a response has its names, functions stopped"
        );
        self.announce(&title);
        let mut runs = Vec::new();
        for _ in 0..self.runs {
            let modules = self.modules.take(1, MANY_FUNCTIONS);
            let crash = crash_in(&modules);
            self.client.end_functions().await?;
            let upload = async {
                for module in &modules {
                    self.client.upload(&module.key(), module.file()).await?;
                }
                // Before the event is processed, a request would not find the module.
                self.client.idle(PATIENCE).await?;
                Ok(self.client.completed("", &crash).await?)
            };
            let (run, answer) = Run::of(self.client, upload).await?;
            if !is_symbolicated(&modules, &answer) {
                return Err(unexpected("the response after an upload", &answer));
            }
            runs.push(run);
        }
        let limits = Limits {
            time: Some(250.0),
            ..Limits::default()
        };
        self.add(&title, &runs, &limits);
        Ok(())
    }

    /// As [`Self::unknown_modules`], with a server that has none of them.
    ///
    /// # Errors
    /// The stack does not respond as expected.
    pub async fn unknown_modules_of_one_server(
        &mut self,
        servers: &SymbolServers,
    ) -> Result<(), BenchError> {
        let limits = Limits {
            time: Some(400.0),
            calls_a_module: Some((5, MODULES.into())),
            messages: Some(4),
            derive_runs: Some(4),
            ..Limits::default()
        };
        self.unknown_modules_of(servers, MODULES, limits).await
    }

    /// More modules, and more servers that have none of them.
    ///
    /// # Errors
    /// The stack does not respond as expected.
    pub async fn unknown_modules_of_many_servers(
        &mut self,
        servers: &SymbolServers,
    ) -> Result<(), BenchError> {
        let limits = Limits {
            time: Some(1500.0),
            derive_runs: Some(24),
            ..Limits::default()
        };
        self.unknown_modules_of(servers, 60, limits).await
    }

    async fn unknown_modules_of(
        &mut self,
        servers: &SymbolServers,
        modules: u32,
        limits: Limits,
    ) -> Result<(), BenchError> {
        let title = format!(
            "{modules} modules that were never uploaded, two scopes, {servers} without them, functions stopped"
        );
        self.announce(&title);
        let mut runs = Vec::new();
        for _ in 0..self.runs {
            self.client.end_functions().await?;
            let asked_before = servers.questions();
            let mut run = self.unknown(modules, TWO_SCOPES).await?;
            run.questions = servers.questions() - asked_before;
            runs.push(run);
        }
        self.add(&title, &runs, &limits);
        Ok(())
    }

    /// Measures a request for new modules that exist nowhere.
    async fn unknown(&self, count: u32, query: &str) -> Result<Run, BenchError> {
        let modules = self.modules.take(count, FEW_FUNCTIONS);
        self.all_missing(&modules, query).await
    }

    /// Measures a request for modules that exist nowhere.
    async fn all_missing(&self, modules: &[MadeUp], query: &str) -> Result<Run, BenchError> {
        let (run, answer) = self.request(query, &crash_in(modules)).await?;
        let answered = answer["modules"].as_array().into_iter().flatten();
        let missing = answered.filter(|module| module["debug_status"] == "missing");
        if missing.count() == modules.len() {
            Ok(run)
        } else {
            Err(unexpected("the response with unknown modules", &answer))
        }
    }

    /// Measures a request until it is completed.
    async fn request(&self, query: &str, crash: &Value) -> Result<(Run, Value), BenchError> {
        let request = async { Ok(self.client.completed_at_last_with(query, crash).await?) };
        Run::of(self.client, request).await
    }

    fn announce(&self, title: &str) {
        say(title, &format!("runs: {}", self.runs));
    }

    fn add(&mut self, title: &str, runs: &[Run], limits: &Limits) {
        add(self.report, title, runs, limits);
    }
}
