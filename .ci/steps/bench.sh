#!/usr/bin/env bash
# Runs the Go benchmarks of all packages, then the scale suite where there is one.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=.ci/steps/section.sh
source .ci/steps/section.sh
export GOTOOLCHAIN=auto GOFLAGS="${GOFLAGS:--trimpath -buildvcs=false}"
trap section_end EXIT

prepare_control_plane

section "Go benchmarks"
packages=()
while IFS= read -r package; do packages+=("$package"); done \
  < <(git grep -l '^func Benchmark' -- 'apis/*_test.go' 'pkg/*_test.go' | xargs -n1 dirname | sort -u | sed 's|^|./|')
if ((${#packages[@]} > 0)); then
  go test -run '^$' -bench . -benchmem "${packages[@]}"
else
  echo "no package has benchmarks"
fi

section "cost of other instances: one controller, a growing fleet"
go test -tags bench -run '^TestCost' -count=1 -timeout 30m -v ./test/integration
