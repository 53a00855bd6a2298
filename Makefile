# Everything this project does by command. `make` lists it.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules --warn-undefined-variables
.DEFAULT_GOAL := help

GO ?= go
NPM ?= npm

# The linter, pinned here and nowhere else.
GOLANGCI_VERSION := v2.15.0
GOLANGCI := .tools/bin/golangci-lint-$(GOLANGCI_VERSION)

BUF := tools/node_modules/.bin/buf
BUF_READY := api/tools/node_modules/.package-lock.json

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# -buildvcs=false: a checkout that git calls "dubious" must build all the same.
BUILD := $(GO) build -trimpath -buildvcs=false -ldflags "-X main.buildVersion=$(VERSION)"

LISTEN ?= 127.0.0.1:8080
DATA ?= ./warifu-data
# Arguments for `go test`: make test ARGS='-run TestDev ./cmd/...'
ARGS ?= ./...
# Flags for the benchmarks: make bench BENCH='-only P1,P4'
BENCH ?=
FUZZTIME ?= 20s
SOAK ?= 30m

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | \
	  while IFS=$$'\t' read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

.PHONY: build
build: ## build bin/warifu
	@mkdir -p bin
	$(BUILD) -o bin/warifu ./cmd/warifu

.PHONY: run
run: build ## build and start `warifu dev` (LISTEN=127.0.0.1:8080 DATA=./warifu-data)
	@exec bin/warifu dev --listen $(LISTEN) --data $(DATA)

.PHONY: test
test: ## everything: make check, then all tests with the race detector
	@.ci/install gcc curl redis-server postgres
	@$(MAKE) --no-print-directory check
	@echo "== tests, race detector on"
	$(GO) test -race -buildvcs=false -timeout 14m $(ARGS)

.PHONY: quick
quick: ## all tests without the race detector
	$(GO) test -buildvcs=false -timeout 10m $(ARGS)

.PHONY: check
check: gen-check api-check sql-check fmt-check mod-check vet lint ## what needs no running: generated code, API, SQL, format, modules, vet, lint

.PHONY: gen
gen: $(BUF_READY) ## generate api/gen from api/warifu
	cd api && $(BUF) generate

# Generates beside the tree, so that a check changes nothing and a change under
# way passes before it is committed.
.PHONY: gen-check
gen-check: $(BUF_READY)
	@echo "== generated code is what the proto files say"
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	  (cd api && $(BUF) generate -o "$$fresh"); \
	  diff -r "$$fresh/gen" api/gen || { echo "api/gen is not current: run 'make gen'" >&2; exit 1; }

.PHONY: api-check
api-check: $(BUF_READY)
	@echo "== the API follows its rules and breaks no released client"
	@cd api && $(BUF) lint && $(BUF) breaking --against released.binpb

# A module of its own: most files of the parser it needs name the licence of the
# server in their headers, so nothing but this check depends on it (its doc.go
# says more). Its first build takes minutes. -count=1: the SQL files are outside
# of that module, so Go would not see that a cached result is out of date.
.PHONY: sql-check
sql-check: ## the SQL is SQL for CockroachDB too, by its parser and our rules
	@echo "== the SQL is SQL for CockroachDB too"
	@cd storage/sqlstore/dialect && $(GO) test -count=1 ./...

.PHONY: release-api
release-api: $(BUF_READY) ## at a release: make today's API the one not to be broken
	cd api && $(BUF) build -o released.binpb

$(BUF_READY): api/tools/package.json api/tools/package-lock.json
	@echo "== npm packages of the code generators"
	@cd api/tools && $(NPM) ci --ignore-scripts --no-audit --no-fund
	@touch $@

.PHONY: fmt-check
fmt-check:
	@echo "== gofmt"
	@bad=$$(gofmt -l $$(find . -name '*.go' -not -path './api/*' -not -path '*/node_modules/*')); \
	  [ -z "$$bad" ] || { printf 'not formatted:\n%s\n' "$$bad" >&2; exit 1; }

.PHONY: mod-check
mod-check:
	@echo "== go.mod is tidy"
	@$(GO) mod tidy -diff

.PHONY: vet
vet:
	@echo "== go vet"
	@$(GO) vet ./...

.PHONY: lint
lint: $(GOLANGCI)
	@echo "== golangci-lint $(GOLANGCI_VERSION)"
	@$(GOLANGCI) run ./...

$(GOLANGCI):
	@echo "== building golangci-lint $(GOLANGCI_VERSION), once"
	@mkdir -p .tools/bin
	@GOBIN=$(CURDIR)/.tools/bin GOFLAGS= $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	@mv .tools/bin/golangci-lint $@

.PHONY: bench
bench: ## the performance budgets, beside Redis from Debian; writes loadtest/RESULTS.md (BENCH='-only P1')
	@.ci/install redis-server postgres
	$(GO) run -buildvcs=false ./loadtest/bench $(BENCH)

.PHONY: fuzz
fuzz: ## every fuzz target for a while (FUZZTIME=20s)
	@for package in $$($(GO) list ./...); do \
	  for target in $$($(GO) test -list '^Fuzz' "$$package" | grep '^Fuzz' || true); do \
	    echo "== $$package $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) "$$package"; \
	  done; \
	done

.PHONY: soak
soak: ## all tests again and again, the long form of those that have one, new seeds each round (SOAK=30m)
	@.ci/install gcc curl redis-server postgres
	@until=$$(( $$(date +%s) + $$(echo $(SOAK) | sed -E 's/h$$/*3600/; s/m$$/*60/; s/s$$//') )); round=0; \
	  while [ $$(date +%s) -lt $$until ]; do \
	    round=$$((round + 1)); echo "== round $$round"; \
	    WARIFU_SOAK=1 $(GO) test -race -count=1 -timeout 60m $(ARGS); \
	  done

.PHONY: clean
clean: ## remove what was built; stored data stays
	rm -rf bin .tools api/tools/node_modules
