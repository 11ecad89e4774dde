#!/usr/bin/env bash
# Runs the end-to-end suite: real control plane, real machines (systemd-nspawn), network namespaces as segments.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=.ci/steps/section.sh
source .ci/steps/section.sh
export GOTOOLCHAIN=auto GOFLAGS="${GOFLAGS:--trimpath -buildvcs=false}"

if ((EUID != 0)); then
  echo "make e2e needs root: it makes network namespaces and boots machines with systemd-nspawn. Nothing outlives the run." >&2
  exit 1
fi
judge "end-to-end tests"

prepare_control_plane
prepare_helm

section "end-to-end tests"
if [[ -z ${RUN:-} ]]; then
  go test -tags e2e -count=1 -timeout 15m ./test/lab/machine
fi
go test -tags e2e -count=1 -timeout 40m -v ./test/e2e/... ${RUN:+-ginkgo.focus "$RUN"}
