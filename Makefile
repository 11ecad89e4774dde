# Every tool is pinned and run from its Go module; nothing is installed on the machine but what `make e2e-deps` says.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# go.mod asks for a newer toolchain than most machines have: let go fetch it. One set of flags for build, test and lint, so
# that they share one build cache.
export GOTOOLCHAIN := auto
export GOFLAGS := -trimpath -buildvcs=false

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
IMAGE   ?= ghcr.io/kpssh/karpenter-provider-ssh:$(VERSION)
LDFLAGS := -s -w -X sigs.k8s.io/karpenter/pkg/operator.Version=$(VERSION)
CRDS    := charts/karpenter-provider-ssh/crds

GO_VERSION     := $(shell awk '$$1 == "go" {print $$2}' go.mod)
CONTROLLER_GEN := go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.21.0
GOLANGCI_LINT  := GOTOOLCHAIN=go$(GO_VERSION)+auto go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0 run --allow-serial-runners
export CONTROLLER_GEN GOLANGCI_LINT CRDS

.PHONY: help
help: ## Say what every target does.
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Scale simulated machines up and down on this computer: no root, no Docker. KEEP=1 leaves it up to explore.
	KEEP=$(KEEP) go run ./test/demo

.PHONY: test
test: ## Run the unit and integration tests (etcd and kube-apiserver are built on first use). RUN=regexp PKG=./pkg/x narrow it.
	.ci/steps/test.sh $(PKG)

.PHONY: fuzz
fuzz: ## Run every fuzz target for a fixed count: FUZZ=2000. What was found is kept in testdata/fuzz.
	FUZZ='$(FUZZ)' .ci/steps/fuzz.sh

.PHONY: e2e
e2e: ## Run the end-to-end suite on real machines in systemd-nspawn. Needs root; see e2e-deps. RUN=regexp narrows it.
	.ci/steps/e2e.sh

.PHONY: bench
bench: ## Run the benchmarks and the scale suite; print figures.
	.ci/steps/bench.sh

.PHONY: build
build: ## Build the controller and the other commands into bin/.
	CGO_ENABLED=0 go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

.PHONY: generate
generate: ## Write deepcopy functions, CRDs and docs/api.md from apis/, docs/metrics.md, what the charts make of CRDs, values and metrics, and the shim.
	$(CONTROLLER_GEN) object:headerFile=/dev/null paths=./apis/... crd:headerFile=/dev/null output:crd:dir=$(CRDS)
	go run ./.ci/apidoc $(CRDS)/*.yaml >docs/api.md
	go run ./pkg/observability/generate .
	.ci/steps/chart-files.sh charts
	.ci/steps/shim.sh

.PHONY: verify
verify: ## Check generated files, formatting, vet, lint, module files and scripts.
	.ci/steps/verify.sh

.PHONY: lint
lint: ## Run golangci-lint alone (its first build takes minutes).
	$(GOLANGCI_LINT) ./...

.PHONY: image
image: ## Build the container image for amd64 and arm64 into bin/: no engine needed. IMAGE=registry/name:tag names it, PUSH=1 pushes.
	IMAGE='$(IMAGE)' VERSION='$(VERSION)' LDFLAGS='$(LDFLAGS)' GO_VERSION='$(GO_VERSION)' .ci/steps/image.sh

.PHONY: sbom
sbom: ## Write a software bill of materials (CycloneDX) beside each executable of the last `make image`.
	VERSION='$(VERSION)' .ci/steps/sbom.sh

.PHONY: package
package: ## Package the charts into bin/, with the version stamped in, and the shim with its checksum: VERSION=v1.2.3.
	VERSION='$(VERSION)' .ci/steps/package.sh

.PHONY: scan
scan: ## Look for known vulnerabilities, insecure code and manifests that no schema knows. Needs the internet.
	.ci/steps/scan.sh

.PHONY: install
install: ## Install the CRDs into the current kubectl context; karpenter.sh CRDs that exist stay as they are.
	.ci/steps/install-crds.sh all

.PHONY: install-shared
install-shared: ## Install or update this project's own CRDs only.
	.ci/steps/install-crds.sh own

.PHONY: e2e-deps
e2e-deps: ## Install the Debian packages that test, e2e and verify need. Needs root.
	.ci/steps/e2e-deps.sh

.PHONY: clean
clean: ## Remove bin/ and test leftovers; keep the caches.
	rm -rf bin .cache *.test *.out
