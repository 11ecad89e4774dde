#!/usr/bin/env bash
# Runs the unit and integration tests. Arguments are packages; default: all but the suites that have a target of their own.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=hack/section.sh
source hack/section.sh
export GOTOOLCHAIN=auto GOFLAGS="${GOFLAGS:--trimpath -buildvcs=false}"

verdict() {
  local code=$?
  section_end
  if ((code == 0)); then
    printf '\nPASS: unit and integration tests, %s\n' "$(elapsed 0)"
  else
    printf '\nFAIL: unit and integration tests, %s. The failures are listed above.\n' "$(elapsed 0)"
  fi
}
trap verdict EXIT

if [[ -z ${KUBEBUILDER_ASSETS:-} ]]; then
  section "etcd, kube-apiserver, kubectl: from Go modules, cached (first time: 10 minutes on 2 cores)"
  KUBEBUILDER_ASSETS=$(go run ./test/lab/cmd/lab binaries)
  export KUBEBUILDER_ASSETS
fi
echo "control plane binaries: $KUBEBUILDER_ASSETS"

packages=("$@")
if ((${#packages[@]} == 0)); then
  # Not mapfile: macOS has bash 3. Not a process substitution: a failing go list must fail the run.
  list=$(go list ./... | grep -vE '/test/(e2e|bench|chaos)(/|$)')
  while IFS= read -r package; do packages+=("$package"); done <<<"$list"
fi

section "helm: from its Go module, cached (first time: 3 minutes)"
go run helm.sh/helm/v3/cmd/helm@v3.19.4 version --short

section "compile ${#packages[@]} package(s) and their tests (first time: minutes)"
go vet "${packages[@]}"

section "unit and integration tests"
go run gotest.tools/gotestsum@v1.13.0 --format pkgname-and-test-fails --hide-summary=output -- \
  -count=1 -timeout 20m ${RUN:+-run "$RUN"} "${packages[@]}"
