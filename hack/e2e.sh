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
verdict() {
  local code=$?
  section_end
  if ((code == 0)); then
    printf '\nPASS: e2e, %s\n' "$(elapsed 0)"
  else
    printf '\nFAIL: e2e, %s\n' "$(elapsed 0)"
  fi
}
trap verdict EXIT

section "etcd, kube-apiserver, kubelet ...: from Go modules, cached"
KUBEBUILDER_ASSETS=${KUBEBUILDER_ASSETS:-$(go run ./test/lab/cmd/lab binaries)}
export KUBEBUILDER_ASSETS

section "end-to-end tests"
go test -tags e2e -count=1 -timeout 40m -v ${RUN:+-run "$RUN"} ./test/e2e/...
