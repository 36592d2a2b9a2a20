# All tasks of the project. `make` without a target lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PORT ?= 3021
DATA ?= .data
RECORDS ?= 1000000
FUZZ_SECONDS ?= 60
KERNEL ?=
SEED ?= 1
SEEDS ?=
HOURS ?= 1
DAYS ?=
YEARS ?= 1
CASES ?= ../shared/conformance
PROFILE_FOLDER = target/fast
# With DEPLOYED=1, the programs of the functions are those of `make build`, as they are deployed; the
# local stack and the benchmarks themselves stay those of the profile `fast`.
FUNCTIONS_FOLDER = $(if $(filter 1,$(DEPLOYED)),target/deployed,$(PROFILE_FOLDER))
# Override these to use other programs; the scripts receive them in their environment.
CARGO ?= cargo
PYTHON ?= python3
BINARIES = -p symbolicate -p derive -p prune -p local-stack -p symdepot-cli

.PHONY: help
help: ## lists the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  \033[1mmake %-18s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST) \
	  | if [ -t 1 ] && [ -z "$${NO_COLOR:-}" ]; then cat; else sed 's/\x1b\[[0-9;]*m//g'; fi

.PHONY: doctor
doctor: ## checks the tools; installs missing ones where it can
	@infra/doctor

.PHONY: run
run: doctor ## runs the whole service on this machine and symbolicates a first crash (PORT=3021 DATA=.data LATENCY=aws)
	@infra/run --port "$(PORT)" --data "$(DATA)"

.PHONY: check
check: fmt-check clippy docs layers check-core check-spelling check-template scan-template check-deploy check-dependencies ## checks format, lints, docs, layers, features, spelling, template, deployment and dependencies; run it before every commit

.PHONY: fmt-check
fmt-check:
	$(CARGO) fmt --all --check

.PHONY: clippy
clippy:
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

.PHONY: docs
docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items --locked --quiet

.PHONY: layers
layers: ## checks the architecture rules: layers, documents, settings, structure
	$(CARGO) test --locked --workspace --test tidy

.PHONY: test
test: doctor ## runs all tests except the long ones, then checks that the functions needed each grant of the template
	$(CARGO) build --locked --workspace --bins --tests
	rm -rf target/access
	SYMDEPOT_BINARIES="$(CURDIR)/target/debug" SYMDEPOT_ACCESS="$(CURDIR)/target/access" \
	  $(CARGO) test --locked --workspace --no-fail-fast
	target/debug/grants --records target/access

.PHONY: test-moto
test-moto: ## runs the contract tests of the stores against moto, an independent implementation (needs Python)
	@CARGO="$(CARGO)" PYTHON="$(PYTHON)" infra/check/moto

.PHONY: test-readers
test-readers: doctor ## compares plain SymCaches and answers to crash files with readers from PyPI (needs Python)
	@CARGO="$(CARGO)" PYTHON="$(PYTHON)" infra/check/readers

.PHONY: test-api
test-api: doctor ## sends generated requests to the stack, and checks the responses against docs/openapi.json (needs Python; SECONDS_MAX=240 EXAMPLES=60 SEED=)
	@CARGO="$(CARGO)" PYTHON="$(PYTHON)" infra/check/api

.PHONY: openapi
openapi: ## writes docs/openapi.json, and the examples in it, again: after a change of a route or of a type of the API
	SYMDEPOT_WRITE_API=1 $(CARGO) test --locked --workspace --test flows documented
	SYMDEPOT_WRITE_API=1 $(CARGO) test --locked --workspace --test tidy openapi

# The cases are not part of the project. Without them nothing is built, and the script reports that.
.PHONY: conformance
conformance: $(if $(wildcard $(CASES)/conformance.py),fast-binaries) ## compares responses with Symbolicator's and docs/conformance.md; skipped without the cases (CASES=../shared/conformance)
	@SYMDEPOT_BINARIES="$(CURDIR)/$(PROFILE_FOLDER)" $(PYTHON) infra/check/conformance --cases "$(CASES)"

# SYMDEPOT_CHAOS_SEED sets the random seed, which the test prints.
.PHONY: chaos
chaos: doctor ## kills functions and parsers at 200 random moments; reports the coverage (takes minutes)
	$(CARGO) build --locked --workspace --bins --tests
	SYMDEPOT_BINARIES="$(CURDIR)/target/debug" SYMDEPOT_CHAOS_KILLS=200 SYMDEPOT_CHAOS_MODULES=20 \
	  $(CARGO) test --locked --workspace --test e2e chaos -- --nocapture

.PHONY: check-template
check-template: ## translates infra/template.yaml as AWS does, lints the translation, makes plain CloudFormation of it, and plants mistakes (needs Python, and PyPI once)
	@PYTHON="$(PYTHON)" infra/doctor python
	$(PYTHON) infra/check/template.py
	$(PYTHON) infra/check/template.py --self-test
	$(PYTHON) infra/check/plain.py

.PHONY: scan-template
scan-template: ## scans the translation of infra/template.yaml with checkov, and validates the template with the SAM CLI (needs Python, and PyPI once)
	@PYTHON="$(PYTHON)" infra/doctor venv scan
	@PYTHON="$(PYTHON)" infra/doctor venv deploy
	$(PYTHON) infra/check/template.py --print | target/scan/bin/python infra/check/scan.py
	SAM_CLI_TELEMETRY=0 AWS_DEFAULT_REGION=eu-central-1 target/deploy/bin/sam validate --lint --template infra/template.yaml

.PHONY: check-deploy
check-deploy: ## tests `make deploy` and `make remove` with programs that stand in for aws, sam and rustup (needs Python)
	$(PYTHON) infra/check/stand_ins.py

STACK ?= symdepot
ARCHITECTURE ?= arm64
# Without REGION, it is AWS_REGION, AWS_DEFAULT_REGION, or that of the profile, for all commands.
IN_REGION = $(if $(REGION),--region "$(REGION)")

.PHONY: deploy
deploy: ## builds the functions for AWS and deploys them (STACK=symdepot REGION= PARAMETERS="AlarmAddress=me@example.com" ARGUMENTS="--tags team=crashes" of sam deploy; needs an account)
	@PYTHON="$(PYTHON)" infra/deploy "$(STACK)" $(IN_REGION) $(PARAMETERS) $(if $(ARGUMENTS),-- $(ARGUMENTS))

.PHONY: remove
remove: ## empties the caches of a deployed stack and removes it, except for the uploads (STACK=symdepot REGION=; needs an account)
	@PYTHON="$(PYTHON)" infra/remove "$(STACK)" $(IN_REGION)

.PHONY: package
package: ## makes what is released: zips, plain CloudFormation for Terraform and CDK, licences (ARCHITECTURE=arm64)
	@PYTHON="$(PYTHON)" infra/doctor venv deploy
	@infra/doctor about
	$(PYTHON) infra/check/package.py --architecture "$(ARCHITECTURE)"

.PHONY: test-deploy
test-deploy: doctor ## builds what `make deploy` deploys, checks its size and libraries, and sends it the events of infra/events (half an hour on two cores; for other processors a program stands in for cargo: COMPILE=arm64 compiles for them, too)
	@PYTHON="$(PYTHON)" infra/doctor venv deploy
	$(CARGO) build --locked --workspace --bins
	$(PYTHON) infra/check/deploy.py --local-stack target/debug/local-stack $(if $(COMPILE),--compile $(COMPILE))

.PHONY: check-dependencies
check-dependencies: ## checks licences, bans, sources and advisories of all dependencies (ADVISORIES=required fails without the database)
	@PYTHON="$(PYTHON)" infra/doctor tools
	@infra/check/dependencies

.PHONY: check-spelling
check-spelling: ## checks the spelling of all files except generated ones (.typos.toml)
	@PYTHON="$(PYTHON)" infra/doctor tools
	PATH="$(CURDIR)/target/tools/bin:$$PATH" typos

.PHONY: check-core
check-core: ## checks that the crate builds without its AWS and HTTP clients, and the program for the terminal without the service
	$(CARGO) check --locked -p symdepot --no-default-features
	$(CARGO) check --locked -p symdepot-cli --no-default-features

.PHONY: ci
ci: test check ## runs exactly what CI runs

.PHONY: model
model: ## checks the protocol's models exhaustively within large bounds; prints their numbers of states (takes minutes)
	SYMDEPOT_MODEL_BOUNDS=large $(CARGO) test --locked --profile fast -p symdepot-tests --test model -- --nocapture

# Without SEEDS, it simulates YEARS: the weeks of a busy team, and seeds of trouble. KIND is the kind
# of the trouble of the seeds: aged, contested, deploys, doubted, served, unannounced or weeks.
PLANS = --seed $(SEED) --hours $(HOURS) $(if $(DAYS),--days $(DAYS)) $(if $(KIND),--$(KIND))

.PHONY: simulate
simulate: ## simulates a year of a fleet with random faults; prints the story of each failure and what never happened (YEARS=1; SEED=1 SEEDS=2000 HOURS=1; SEED=1 SEEDS=1 DAYS=7; SEED=1 SEEDS=100 KIND=contested)
	$(CARGO) build --locked --profile fast -p symdepot-tests --bin simulate
	$(PROFILE_FOLDER)/simulate $(if $(SEEDS),$(PLANS) --seeds $(SEEDS),--seed $(SEED) --years $(YEARS))

.PHONY: keep-story
keep-story: ## turns a seed that fails into a regression test (SEED=7 NAME=a_file_that_was_removed_stays HOURS=1 DAYS= KIND=)
	$(CARGO) build --locked --profile fast -p symdepot-tests --bin simulate
	$(PROFILE_FOLDER)/simulate $(PLANS) --seeds 1 --keep $(NAME) --into tests/tests/simulate

.PHONY: zoo
zoo: ## builds programs with many compilers for many machines and compares with llvm-symbolizer and eu-addr2line (as root it installs missing compilers, up to 1.5 GB)
	tests/tests/zoo/build.sh target/zoo
	SYMDEPOT_ZOO="$(CURDIR)/target/zoo" $(CARGO) test --locked --workspace --test zoo -- --nocapture

# Needs nightly Rust and cargo-fuzz. Findings are kept in target/fuzz.
.PHONY: fuzz
fuzz: ## fuzzes files, crash files, requests, reports, names, sources and blobs, each for FUZZ_SECONDS=60 (needs cargo-fuzz)
	@for target in footer index slice cfi_slice source_slice source_links listing archive map breakpad dwarf name request report source link minidump apple_report form multipart rewrite; do \
	  mkdir -p target/fuzz/corpus/$$target target/fuzz/found; \
	  $(CARGO) +nightly fuzz run --fuzz-dir tests/fuzz --target-dir target/fuzz $$target \
	    target/fuzz/corpus/$$target tests/fuzz/seeds/$$target -- \
	    -max_total_time=$(FUZZ_SECONDS) -max_len=65536 -artifact_prefix=target/fuzz/found/ -print_final_stats=1; \
	done

.PHONY: hostile
hostile: fast-binaries ## parses ten thousand hostile files as uploads; prints the results (SYMDEPOT_HOSTILE_SEED=1)
	SYMDEPOT_BINARIES="$(CURDIR)/$(PROFILE_FOLDER)" $(PROFILE_FOLDER)/hostile

.PHONY: bench
bench: ## runs the benchmarks of the core and of deriving (DEPLOYED=1: in the profile of symbolicate as it is deployed)
	$(CARGO) bench --locked --profile $(if $(filter 1,$(DEPLOYED)),release,fast) -p symdepot-tests

# In one command: separate builds would compile dependencies once per set of features.
.PHONY: fast-binaries
fast-binaries: doctor
	$(CARGO) build --locked --profile fast --no-default-features --bins $(BINARIES) -p symdepot-tests --features symdepot-tests/bench,symdepot-cli/serve

# What benchmarks run: DEPLOYED=1 builds the functions for it, which takes more than a quarter of an hour.
.PHONY: measured-binaries
measured-binaries: fast-binaries $(if $(filter 1,$(DEPLOYED)),build)
	$(if $(filter 1,$(DEPLOYED)),mkdir -p target/deployed && ln -f target/release/symbolicate target/release/derive target/release/prune $(PROFILE_FOLDER)/local-stack target/deployed/)

# Two programs are built in some minutes. The two of `bench-plots` that take longer are skipped unless
# they were built; the benchmark prints the commands. KERNEL=1 adds Debian's kernel, a download of 1 GB.
.PHONY: bench-real
bench-real: measured-binaries ## benchmarks Debian's libc, ceph-osd and libjvm and programs of other compilers; compares a million answers with symbolic, and others with eu-addr2line (KERNEL=1 DEPLOYED=1)
	@CARGO="$(CARGO)" tests/src/bench_real/clang-lto.sh target/bench-real/lto
	@tests/src/bench_real/go-program.sh target/bench-real/go
	SYMDEPOT_BINARIES="$(CURDIR)/$(FUNCTIONS_FOLDER)" $(PROFILE_FOLDER)/bench_real $(if $(filter 1,$(KERNEL)),--kernel)

.PHONY: bench-latency
bench-latency: measured-binaries ## benchmarks requests and uploads with the latencies of AWS; fails if a limit is exceeded (DEPLOYED=1)
	SYMDEPOT_BINARIES="$(CURDIR)/$(FUNCTIONS_FOLDER)" $(PROFILE_FOLDER)/bench_latency

# Two of the programs are built, once: `derive` with all debug information, and RocksDB for Windows.
# They take about fifteen and twenty-five minutes of one core. KERNEL=1 adds Debian's kernel, a
# download of 1 GB.
.PHONY: bench-plots
bench-plots: fast-binaries ## compares slice sizes for the SymCaches of six real programs: tables, and the plots in docs/plots (KERNEL=1)
	@if [ ! -x target/symbols/derive ]; then \
	  $(CARGO) build --locked --profile symbols --no-default-features -p derive --bin derive; fi
	@CARGO="$(CARGO)" tests/src/bench_plots/large-pdb.sh target/bench-real/rocksdb
	$(PROFILE_FOLDER)/bench_plots $(if $(filter 1,$(KERNEL)),--kernel)

.PHONY: bench-sweep
bench-sweep: ## prunes a million records in the embedded store once; prints time, memory and AWS's price (RECORDS=1000000)
	$(CARGO) build --locked --profile fast -p symdepot-tests --bin bench_sweep
	$(PROFILE_FOLDER)/bench_sweep --records "$(RECORDS)"

.PHONY: build
build: ## builds the three functions as they are deployed: small, and slow to link
	$(CARGO) build --locked --release -p symbolicate -p prune
	cd functions/derive && $(CARGO) build --locked --release
	@ls -l target/release/symbolicate target/release/derive target/release/prune

# The debug file of ceph-osd has 230 MB. Its package, a download of 512 MB, is fetched once.
CEPH = target/cost/ceph-osd.debug
$(CEPH):
	mkdir -p target/cost/package
	cd target/cost/package && apt-get download ceph-osd-dbg && dpkg-deb --extract ceph-osd-dbg_*.deb .
	cp "$$(find target/cost/package/usr/lib/debug/.build-id -name '*.debug' -size +200M -size -260M | head -n 1)" $(CEPH)
	rm -r target/cost/package

.PHONY: cost
cost: measured-binaries $(CEPH) ## counts what a run on the local stack calls, and computes what it costs in AWS; writes the tables and plots of docs/cost.md (DEPLOYED=1)
	$(PYTHON) infra/cost --functions $(FUNCTIONS_FOLDER) --file $(CEPH) --write docs/cost.md

.PHONY: redrive
redrive: ## shows the dead letters, and moves them back to their queues (QUEUE= the output DeadLetters of a stack in AWS; default: the stack of make run; DRY_RUN=1)
	@$(CARGO) run --locked --quiet --profile local --no-default-features -p symdepot-cli -- \
	  redrive $(if $(QUEUE),--queue "$(QUEUE)") $(if $(filter 1,$(DRY_RUN)),--dry-run)

.PHONY: smoke
smoke: ## checks a deployed service: uploads the sample, reads the response, names what failed (ENDPOINT=https://… BUCKET=…)
	@$(PYTHON) infra/smoke --endpoint "$(ENDPOINT)" --bucket "$(BUCKET)"

.PHONY: fixtures
fixtures: ## rebuilds the test programs (needs gdb, elfutils, gcab, and clang, lld and llvm of version 19)
	tests/fixtures/build.sh
	tests/fixtures/zoo.sh
