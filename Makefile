# Everything one does with Muster from a checkout. `make` alone lists it.
# Arguments for `run`, `bench` and `soak` go into ARGS: make run ARGS="--replicas 2 --cluster".

SHELL := /bin/bash
export CARGO_TARGET_DIR ?= $(HOME)/.cache/muster/target

ARGS ?=
FAILPOINTS := --features muster-gateway/failpoints,muster-scheduler/failpoints
PEERS ?= $(HOME)/.cache/muster/peers
BENCH_FILES := --json docs/benchmarks.json --svg docs/benchmarks.svg --page docs/benchmarks.md
BINARIES := -p muster-cli -p muster-gateway -p muster-scheduler

.DEFAULT_GOAL := help
.PHONY: help setup run build dist test fmt lint docs bench bench-peers bench-guard soak clean-data

help: ## list what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{ printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install the servers that a stack needs, if they are missing
	@tools/scripts/setup.sh stack

build: ## build the programs, optimised
	cargo build --release $(BINARIES)

run: setup build ## start a whole stack on this machine (Ctrl-C stops it)
	@exec "$$CARGO_TARGET_DIR/release/muster" dev $(ARGS)

test: ## everything that CI checks: format, lints, generated files, all tests
	@tools/scripts/setup.sh test
	cargo fmt --all --check
	cargo clippy --workspace --all-targets $(FAILPOINTS) -- -D warnings
	cargo run --quiet --package muster-codegen -- --check
	cargo build --workspace $(FAILPOINTS)
	@tools/scripts/test_programs.py $(FAILPOINTS)

fmt: ## format the code
	cargo fmt --all

lint: ## clippy, as strict as CI
	cargo clippy --workspace --all-targets $(FAILPOINTS) -- -D warnings

docs: ## write what is generated: Lua, typed calls, reference pages
	cargo run --quiet --package muster-codegen
	cargo build -p muster-gateway -p muster-scheduler $(FAILPOINTS)
	@tools/scripts/settings_page.sh "$$CARGO_TARGET_DIR/debug" > docs/reference/settings.md
	@tools/scripts/loops_page.sh "$$CARGO_TARGET_DIR/debug" > docs/reference/loops.md

dist: ## build the programs as they are shipped: optimised across crates, which takes longer
	cargo build --profile dist $(BINARIES)

bench: setup dist ## measure everything and write docs/benchmarks.md; with ARGS only what they say
	@$(MAKE) --no-print-directory bench-peers || echo "hint:  going on without the other queues" >&2
	@"$$CARGO_TARGET_DIR/dist/muster" bench --peers "$(PEERS)/release" $(if $(ARGS),$(ARGS),$(BENCH_FILES))

bench-peers: ## build the queues that Muster is compared with
	CARGO_TARGET_DIR="$(PEERS)" cargo build --release --manifest-path bench/Cargo.toml

bench-guard: setup dist ## what a job costs now, beside the committed baseline
	@"$$CARGO_TARGET_DIR/dist/muster" bench guard $(ARGS)

soak: setup build ## ten minutes of chaos on a stack of its own, and ten on a cluster; every promise is checked afterwards
	"$$CARGO_TARGET_DIR/release/muster" drill chaos --minutes 10 --replicas 3 $(ARGS)
	"$$CARGO_TARGET_DIR/release/muster" drill chaos --minutes 10 --replicas 3 --cluster $(ARGS)

clean-data: ## forget the data of the local stack
	@tools/scripts/clean_data.sh .muster
