#!/usr/bin/env bash
# What needs databases and schemas from the internet: known vulnerabilities in what is linked, insecure code, and manifests held against the
# schemas of Kubernetes. Runs every check, then reports.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=.ci/steps/section.sh
source .ci/steps/section.sh
export GOTOOLCHAIN=auto GOFLAGS="${GOFLAGS:--trimpath -buildvcs=false}"

judge "scan"
failed=()
check() {
  section "$1"
  "${@:2}" || failed+=("$1")
}

vulnerabilities() {
  local module
  for module in . .ci/image; do
    go run -C "$module" golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./... || return
  done
}

# Off: what golangci-lint judges better (errors that are not looked at), and commands and files that are what this project is for.
insecure_code() {
  go run github.com/securego/gosec/v2/cmd/gosec@v2.30.0 -quiet -exclude=G104,G204,G304 ./apis/... ./cmd/... ./pkg/...
}

# Kinds of no schema are this project's and karpenter's: those are held against the real CRDs by tests.
manifests() {
  local values
  for values in instance.name=default instance.name=rack-1,poolNamespace=kp-rack-1; do
    go run helm.sh/helm/v3/cmd/helm@v3.19.4 template kpssh charts/karpenter-provider-ssh --kube-version 1.35.0 --set "$values" |
      go run github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0 -strict -summary -ignore-missing-schemas -kubernetes-version 1.35.0 - || return
  done
  go run github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0 -strict -summary -ignore-missing-schemas -kubernetes-version 1.35.0 examples
}

check "known vulnerabilities" vulnerabilities
check "insecure code" insecure_code
check "manifests against Kubernetes' schemas" manifests
section "result"
if ((${#failed[@]} > 0)); then
  printf 'failed: %s\n' "${failed[@]}"
  exit 1
fi
