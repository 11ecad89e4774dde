#!/usr/bin/env bash
# Runs the unit and integration tests. Arguments are packages; default: all but the suites that have a target of their own.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=hack/section.sh
source hack/section.sh
export GOTOOLCHAIN=auto GOFLAGS="${GOFLAGS:--trimpath -buildvcs=false}"

judge "unit and integration tests"

prepare_control_plane

packages=("$@")
if ((${#packages[@]} == 0)); then
  # Not mapfile: macOS has bash 3. Not a process substitution: a failing go list must fail the run.
  list=$(go list ./... | grep -vE '/test/(e2e|bench|chaos)(/|$)')
  while IFS= read -r package; do packages+=("$package"); done <<<"$list"
fi

prepare_helm

section "compile ${#packages[@]} package(s) and their tests (first time: minutes)"
go vet "${packages[@]}"

section "unit and integration tests"
go run gotest.tools/gotestsum@v1.13.0 --format pkgname-and-test-fails --hide-summary=output -- \
  -count=1 -timeout 20m ${RUN:+-run "$RUN"} "${packages[@]}"
