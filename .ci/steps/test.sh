#!/usr/bin/env bash
# Runs the unit and integration tests. Arguments are packages; default: all but the suites that have a target of their own.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=.ci/steps/section.sh
source .ci/steps/section.sh
export GOTOOLCHAIN=auto GOFLAGS="${GOFLAGS:--trimpath -buildvcs=false}"

judge "unit and integration tests"

prepare_control_plane

packages=("$@")
everything=false
if ((${#packages[@]} == 0)); then
  everything=true
  # Not mapfile: macOS has bash 3. Not a process substitution: a failing go list must fail the run.
  list=$(go list ./... | grep -vE '/test/(e2e|bench)(/|$)')
  while IFS= read -r package; do packages+=("$package"); done <<<"$list"
fi

prepare_helm

section "compile ${#packages[@]} package(s) and their tests (first time: minutes)"
go vet "${packages[@]}"

# The suite that runs hundreds of machines beside a control plane wants the processors for itself.
alone=() together=()
for package in "${packages[@]}"; do
  if [[ $package == */test/integration ]]; then alone+=("$package"); else together+=("$package"); fi
done

gotestsum() {
  go run gotest.tools/gotestsum@v1.13.0 --hide-summary=output "$@"
}

if $everything; then
  section "what builds the container image: a module of its own"
  (cd .ci/image && gotestsum --format pkgname-and-test-fails -- -count=1 ${RUN:+-run "$RUN"} ./...)
  section "alerts and dashboards: a module of its own (promtool's first build takes minutes)"
  (cd test/alerts && gotestsum --format pkgname-and-test-fails -- -count=1 ${RUN:+-run "$RUN"} ./... &&
    go run -tags remove_all_sd github.com/prometheus/prometheus/cmd/promtool test rules rules_test.yaml)
fi
if $everything || [[ " ${packages[*]} " == *"/test/chart "* ]]; then
  # Without vet, which would look at all of helm for minutes; what helm is made of is compiled already.
  section "names of the chart's releases: a module of its own, with helm as a library"
  (cd test/chart/names && gotestsum --format pkgname-and-test-fails -- -vet=off -count=1 ${RUN:+-run "$RUN"} ./...)
fi
if ((${#together[@]} > 0)); then
  # One after the other: many of them measure how processes and connections end, and start a control plane to do so.
  section "unit tests, and tests of one package against a control plane"
  gotestsum --format pkgname-and-test-fails -- -p 1 -count=1 -timeout 20m ${RUN:+-run "$RUN"} "${together[@]}"
fi
# Everything else that many goroutines share is tested so where it is cheap; the filtered watch is what ownership stands on.
if (($# == 0)) && [[ -z ${RUN:-} ]]; then
  section "the filtered watch under the race detector (first time: minutes)"
  gotestsum --format pkgname-and-test-fails -- -race -count=1 -timeout 20m -run 'FilteredWatch|KindsMove|HandOver' ./pkg/ownership
fi
if (($# == 0)) && [[ -z ${RUN:-} ]]; then
  section "fuzz targets, for a fixed count"
  .ci/steps/fuzz.sh
fi
if ((${#alone[@]} > 0)); then
  section "integration tests: controllers, a control plane, simulated machines"
  gotestsum --format standard-verbose -- -count=1 -timeout 45m ${RUN:+-run "$RUN"} "${alone[@]}"
fi
