# Everything one does with Muster from a checkout. `make` alone lists it.
# Arguments for `run`, `bench` and `soak` go into ARGS: make run ARGS="--replicas 2 --cluster".

SHELL := /bin/bash
export CARGO_TARGET_DIR ?= $(HOME)/.cache/muster/target

ARGS ?=
FUZZ_SECONDS ?= 600
FAILPOINTS := --features muster-gateway/failpoints,muster-scheduler/failpoints,muster-workflow/failpoints
PEERS ?= $(HOME)/.cache/muster/peers
BENCH_FILES := --json docs/benchmarks.json --svg docs/benchmarks.svg --page docs/benchmarks.md
BINARIES := -p muster-cli -p muster-gateway -p muster-scheduler -p muster-workflow

.DEFAULT_GOAL := help
.PHONY: help setup run build dist test fmt lint docs bench bench-peers bench-guard fuzz soak clean-data \
	secrets images images-check compose-up compose-down containers-check

help: ## list what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{ printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install the servers that a stack needs, if they are missing
	@tools/scripts/setup.sh stack

build: ## build the programs, optimised
	cargo build --release $(BINARIES)

run: setup build ## start a whole stack on this machine (Ctrl-C stops it)
	@exec "$$CARGO_TARGET_DIR/release/muster" dev $(ARGS)

test: ## everything that CI checks: format, lints, generated files, all tests, the fast gates
	@tools/scripts/setup.sh test
	cargo fmt --all --check
	cargo clippy --workspace --all-targets $(FAILPOINTS) -- -D warnings
	cargo run --quiet --package muster-codegen -- --check
	cargo build --workspace --all-targets $(FAILPOINTS)
	@tools/scripts/metrics_check.sh
	@$(MAKE) --no-print-directory manifests-check containers-check
	@tools/scripts/test_programs.py $(FAILPOINTS)
	@SEED=1 MUSTER_BIN="$$CARGO_TARGET_DIR/debug" tools/scripts/fuzz_api.sh 150
	@MUSTER_BIN="$$CARGO_TARGET_DIR/debug" $(MAKE) --no-print-directory gate-test

fmt: ## format the code
	cargo fmt --all

lint: ## clippy, as strict as CI
	cargo clippy --workspace --all-targets $(FAILPOINTS) -- -D warnings

docs: ## write what is generated: Lua, typed calls, reference pages
	cargo run --quiet --package muster-codegen
	cargo build --workspace --all-targets $(FAILPOINTS)
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

fuzz: setup build ## try the API with requests made from its document, for FUZZ_SECONDS (600)
	@MUSTER_BIN="$$CARGO_TARGET_DIR/release" EXAMPLES=200 tools/scripts/fuzz_api.sh $(FUZZ_SECONDS)

soak: setup build ## ten minutes of chaos on a stack of its own, ten on a cluster, and every crash within a run of a workflow
	"$$CARGO_TARGET_DIR/release/muster" drill chaos --minutes 10 --replicas 3 $(ARGS)
	"$$CARGO_TARGET_DIR/release/muster" drill chaos --minutes 10 --replicas 3 --cluster $(ARGS)
	MUSTER_RUN_MATRIX=whole cargo test --package muster-workflow --features muster-workflow/failpoints --test it failpoints

clean-data: ## forget the data of the local stack
	@tools/scripts/clean_data.sh .muster

# HA=1 takes the overlay with the second of everything, CLUSTER=1 also six Redis and three NATS nodes.
OVERLAYS = $(if $(HA),--ha) $(if $(CLUSTER),--cluster)

secrets: ## write .env with fresh secrets for the compose stack; refuses to overwrite it
	@tools/scripts/secrets.sh

images: build ## container images of our programs, from binaries built here; SOURCE=1 builds inside a container
	@tools/scripts/images.sh $(if $(SOURCE),--source)

compose-up: ## the stack in containers: HA=1 two of everything, CLUSTER=1 also clustered stores
	@tools/scripts/compose_up.sh $(OVERLAYS)

containers-check: ## compose files with Compose 1.29 and 2, Dockerfiles, every shell script
	@timeout 300 tools/scripts/compose2.sh >/dev/null || echo "######## SKIPPED: Compose 2 is not here and could not be fetched ########"
	@PYTHONDONTWRITEBYTECODE=1 "$$(tools/scripts/python_tools.sh)/python" tests/containers/run.py

images-check: ## our images as the engine has them: content, user, size, list of crates; MUSTER_VERSION is their tag (dev)
	@PYTHONDONTWRITEBYTECODE=1 "$$(tools/scripts/python_tools.sh)/python" tests/containers/run.py images

compose-down: ## stop the stack in containers: VOLUMES=1 also removes its data
	@tools/scripts/compose_up.sh --down $(OVERLAYS) $(if $(VOLUMES),--volumes)

.PHONY: dashboards metrics-check grafana-check
GRAFANA_URL ?= http://127.0.0.1:3000

dashboards: ## write the Grafana dashboards from tools/dashboards
	@PYTHONPATH=tools python3 -m dashboards

metrics-check: ## alerts, rules, scrape configurations, dashboards; PROMETHEUS=URL also asks that one every query
	@tools/scripts/metrics_check.sh $(if $(PROMETHEUS),--live $(PROMETHEUS))

grafana-check: ## does the Grafana at GRAFANA_URL take the dashboards and answer their queries?
	@tools/scripts/grafana_check.py $(GRAFANA_URL)

.PHONY: gate gate-setup gate-test compose-test
# The gates that `make test` runs where a container engine is: about five minutes, with the faults of 19.
FAST_GATES := 1 2 7 19 20 22 27

gate-setup:
	@tools/scripts/setup.sh gate

gate: gate-setup build ## the production gate on a compose stack of its own, every gate with every fault; ARGS="--gate 19" only some
	@tools/scripts/production_gate.sh --up --strict --self-test --exact $(ARGS)

gate-test: ## the gate's own tests, then the fast gates and the tests of their images where a container engine is present
	@cd tools && PYTHONDONTWRITEBYTECODE=1 python3 -m unittest discover --start-directory gate/tests --top-level-directory .
	@tools/scripts/production_gate.sh --up --strict --without-engine skip --gate $(FAST_GATES) --self-test 19
	@MUSTER_IMAGES=required MUSTER_VERSION="$${MUSTER_VERSION:-gate}" $(MAKE) --no-print-directory images-check

# STEPS="2 3" runs only some of its steps: tools/scripts/compose_test.sh lists them.
compose-test: gate-setup build ## the stack in containers: outages under load with every fault, both Composes, the command line, images from source, the README
	@tools/scripts/compose_test.sh $(STEPS)

.PHONY: manifests-check manifests-write manifests-rehearse
MANIFESTS = PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=tools "$$(tools/scripts/python_tools.sh)/python"

manifests-check: ## the Kubernetes objects of Kustomize and Helm, and the planted faults that the check must find
	@$(MANIFESTS) -m manifests check
	@$(MANIFESTS) -m unittest discover --start-directory tools/manifests/tests --top-level-directory tools

# Compose's images of the stores; here they may be stand-ins.
REHEARSAL ?= redis:7.2.11-alpine=redis:7.2-alpine nats:2.10.27-alpine=nats:2.10-alpine

manifests-rehearse: images ## run the Kubernetes objects of overlays/ha as containers: jobs, new addresses, stops
	@tools/scripts/standins.sh
	@$(MANIFESTS) -m manifests.rehearse $(REHEARSAL) $(ARGS)

# A chart holds its files itself; they are copies of those that compose and Kustomize use.
CHART_FILES := deploy/helm/muster/files

manifests-write: ## name the Jobs of deploy/k8s by their content and copy the chart's files, after a change of these
	@$(MANIFESTS) -m manifests write
	@cp deploy/redis/{cluster.conf,cluster.sh,plan.awk,redis.conf,start.sh} deploy/k8s/components/stores/nats.conf $(CHART_FILES)/
