# Everything there is to do here. `make` alone lists it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PORT ?= 3021
DATA ?= .data
RECORDS ?= 1000000
FUZZ_SECONDS ?= 60
KERNEL ?=
CASES ?= ../shared/conformance
PROFILE_FOLDER = target/release
# What CARGO sees everywhere; an empty value in the environment means the same.
CARGO ?= cargo
PYTHON ?= python3
BINARIES = -p symbolicate -p derive -p prune -p local-stack

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  \033[1mmake %-18s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST) \
	  | if [ -t 1 ] && [ -z "$${NO_COLOR:-}" ]; then cat; else sed 's/\x1b\[[0-9;]*m//g'; fi

.PHONY: doctor
doctor: ## are the tools here? installs what is missing, where it can
	@infra/doctor

.PHONY: run
run: doctor ## the whole service on this machine, with a first crash symbolicated (PORT=3021 DATA=.data LATENCY=aws)
	@infra/run --port "$(PORT)" --data "$(DATA)"

.PHONY: check
check: fmt-check clippy docs layers check-core check-spelling check-template check-dependencies ## format, lints, docs, layers, spelling, template, dependencies: before every commit

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
layers: ## does every module use only what it may?
	$(CARGO) test --locked --workspace --test tidy

.PHONY: test
test: doctor ## everything but the long runs
	$(CARGO) build --locked --workspace --bins --tests
	SYMDEPOT_BINARIES="$(CURDIR)/target/debug" $(CARGO) test --locked --workspace --no-fail-fast

.PHONY: test-moto
test-moto: ## what the stores must do, asked of moto, which shares no mistake with the local stack (needs Python)
	@CARGO="$(CARGO)" PYTHON="$(PYTHON)" infra/check/moto

.PHONY: test-readers
test-readers: doctor ## plain SymCaches, opened by PyPI's `symbolic`, which is not ours (needs Python)
	@CARGO="$(CARGO)" PYTHON="$(PYTHON)" infra/check/readers

# The cases are no part of the project: where they are not, nothing is built, and the script says so.
.PHONY: conformance
conformance: $(if $(wildcard $(CASES)/conformance.py),release-binaries) ## answers held against Symbolicator's and docs/conformance.md; skipped where the cases are not (CASES=../shared/conformance)
	@SYMDEPOT_BINARIES="$(CURDIR)/$(PROFILE_FOLDER)" $(PYTHON) infra/check/conformance --cases "$(CASES)"

# Chance comes from SYMDEPOT_CHAOS_SEED, which the test prints.
.PHONY: chaos
chaos: doctor ## kills functions and parsers at random moments, 200 times; says what that covered (minutes)
	$(CARGO) build --locked --workspace --bins --tests
	SYMDEPOT_BINARIES="$(CURDIR)/target/debug" SYMDEPOT_CHAOS_KILLS=200 SYMDEPOT_CHAOS_MODULES=20 \
	  $(CARGO) test --locked --workspace --test e2e chaos -- --nocapture

.PHONY: check-template
check-template: ## translates infra/template.yaml as AWS does, and lints the translation (needs Python, and PyPI once)
	@PYTHON="$(PYTHON)" infra/doctor python
	$(PYTHON) infra/check/template.py

.PHONY: check-dependencies
check-dependencies: ## licences, bans, sources and advisories of all dependencies (ADVISORIES=required fails without the database)
	@PYTHON="$(PYTHON)" infra/doctor tools
	@infra/check/dependencies

.PHONY: check-spelling
check-spelling: ## spelling of everything that a person wrote (.typos.toml)
	@PYTHON="$(PYTHON)" infra/doctor tools
	PATH="$(CURDIR)/target/tools/bin:$$PATH" typos

.PHONY: check-core
check-core: ## the crate without its AWS and HTTP clients
	$(CARGO) check --locked -p symdepot --no-default-features

.PHONY: ci
ci: test check ## what CI runs, and no more

.PHONY: model
model: ## the protocol, exhaustively within large bounds; prints the number of states of each model (minutes)
	SYMDEPOT_MODEL_BOUNDS=large $(CARGO) test --locked --release -p symdepot-tests --test model -- --nocapture

.PHONY: zoo
zoo: ## programs of many compilers and machines, built and held against llvm-symbolizer and eu-addr2line (as root it installs what is missing of 1.5 GB of compilers)
	tests/tests/zoo/build.sh target/zoo
	SYMDEPOT_ZOO="$(CURDIR)/target/zoo" $(CARGO) test --locked --workspace --test zoo -- --nocapture

# Needs nightly Rust and cargo-fuzz; what it finds is kept in target/fuzz.
.PHONY: fuzz
fuzz: ## hostile bytes for files, requests, names, sources and blobs, each for a while (needs cargo-fuzz; FUZZ_SECONDS=60)
	@for target in footer index slice cfi_slice archive breakpad dwarf name request source; do \
	  mkdir -p target/fuzz/corpus/$$target target/fuzz/found; \
	  $(CARGO) +nightly fuzz run --fuzz-dir tests/fuzz --target-dir target/fuzz $$target \
	    target/fuzz/corpus/$$target tests/fuzz/seeds/$$target -- \
	    -max_total_time=$(FUZZ_SECONDS) -max_len=65536 -artifact_prefix=target/fuzz/found/ -print_final_stats=1; \
	done

.PHONY: hostile
hostile: release-binaries ## ten thousand hostile files, parsed as uploads are; prints what came of them (SYMDEPOT_HOSTILE_SEED=1)
	SYMDEPOT_BINARIES="$(CURDIR)/$(PROFILE_FOLDER)" $(PROFILE_FOLDER)/hostile

.PHONY: bench
bench: ## benchmarks of the core and of deriving
	$(CARGO) bench --locked -p symdepot-tests

# In one go: separate builds would compile dependencies once per set of features.
.PHONY: release-binaries
release-binaries: doctor
	$(CARGO) build --locked --release --no-default-features --bins $(BINARIES) -p symdepot-tests --features symdepot-tests/bench

.PHONY: bench-real
bench-real: release-binaries ## Debian's libc, ceph-osd and libjvm through the stack, held against eu-addr2line and plain symbolic
	SYMDEPOT_BINARIES="$(CURDIR)/$(PROFILE_FOLDER)" $(PROFILE_FOLDER)/bench_real

.PHONY: bench-latency
bench-latency: release-binaries ## requests and uploads while the stores are as far away as in AWS; fails where a limit is missed
	SYMDEPOT_BINARIES="$(CURDIR)/$(PROFILE_FOLDER)" $(PROFILE_FOLDER)/bench_latency

# Two of them are built, once: `derive` with all its debug information, RocksDB for Windows; some fifteen and some twenty-five minutes of one core.
# KERNEL=1 takes in Debian's kernel, a download of 1 GB.
.PHONY: bench-plots
bench-plots: release-binaries ## SymCaches of six real programs, cut within several bounds: tables, and the plots in docs/plots (KERNEL=1)
	@if [ ! -x target/symbols/derive ]; then \
	  $(CARGO) build --locked --profile symbols --no-default-features -p derive --bin derive; fi
	@CARGO="$(CARGO)" tests/src/bench_plots/large-pdb.sh target/bench-real/rocksdb
	$(PROFILE_FOLDER)/bench_plots $(if $(filter 1,$(KERNEL)),--kernel)

.PHONY: bench-sweep
bench-sweep: ## a million records in the embedded store, swept once: time, memory, what AWS would charge (RECORDS=1000000)
	$(CARGO) build --locked --release -p symdepot-tests --bin bench_sweep
	$(PROFILE_FOLDER)/bench_sweep --records "$(RECORDS)"

.PHONY: build
build: ## the three functions as they are deployed: small, and slow to link
	$(CARGO) build --locked --profile lean -p symbolicate -p derive -p prune
	@ls -l target/lean/symbolicate target/lean/derive target/lean/prune

.PHONY: fixtures
fixtures: ## rebuilds the test programs (needs clang, lld, llvm, gdb, elfutils, gcab; clang, lld and llvm 19)
	tests/fixtures/build.sh
	tests/fixtures/zoo.sh
