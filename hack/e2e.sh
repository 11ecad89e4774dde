#!/usr/bin/env bash
# Runs the end-to-end suite: real control plane, real machines (systemd-nspawn), network namespaces as segments.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=hack/section.sh
source hack/section.sh
export GOTOOLCHAIN=auto GOFLAGS="${GOFLAGS:--trimpath -buildvcs=false}"

if ((EUID != 0)); then
  echo "make e2e needs root: it makes network namespaces and boots machines with systemd-nspawn. Nothing outlives the run." >&2
  exit 1
fi
judge "end-to-end tests"

prepare_control_plane
prepare_helm

section "end-to-end tests"
go test -tags e2e -count=1 -timeout 40m -v ./test/e2e/... ${RUN:+-ginkgo.focus "$RUN"}
