#!/usr/bin/env bash
# Checks that what is generated is up to date, and what machines can judge about the rest. Runs every check, then reports.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=.ci/steps/section.sh
source .ci/steps/section.sh
export GOTOOLCHAIN=auto GOFLAGS="${GOFLAGS:--trimpath -buildvcs=false}"
: "${CONTROLLER_GEN:?run this as: make verify}" "${GOLANGCI_LINT:?}" "${CRDS:?}"

scratch=$(mktemp -d)
failed=()
judge "verify"

# check NAME COMMAND...: runs a check and remembers its name when it fails.
check() {
  section "$1"
  "${@:2}" || failed+=("$1")
}

generated() {
  mkdir -p "$scratch/crds" "$scratch/deepcopy"
  $CONTROLLER_GEN object:headerFile=/dev/null paths=./apis/... output:object:dir="$scratch/deepcopy" \
    crd:headerFile=/dev/null output:crd:dir="$scratch/crds" || return
  go run ./pkg/observability/generate "$scratch/observability" || return
  .ci/steps/shim.sh "$scratch/kpssh-shim" || return
  if ! diff -u apis/v1beta1/zz_generated.deepcopy.go "$scratch/deepcopy/zz_generated.deepcopy.go" ||
    ! diff -ru "$CRDS" "$scratch/crds" ||
    ! go run ./.ci/apidoc "$CRDS"/*.yaml | diff -u docs/api.md - ||
    ! diff -u shim/kpssh-shim "$scratch/kpssh-shim" ||
    ! diff -u docs/metrics.md "$scratch/observability/docs/metrics.md" ||
    ! diff -ru charts/karpenter-provider-ssh/files/dashboards "$scratch/observability/charts/karpenter-provider-ssh/files/dashboards"; then
    echo "generated files are out of date: run make generate and commit" >&2
    return 1
  fi
}

chart_files() {
  cp -r charts "$scratch/charts" && .ci/steps/chart-files.sh "$scratch/charts" || return
  if ! diff -ru charts "$scratch/charts"; then
    echo "generated files of the charts are out of date: run make generate and commit" >&2
    return 1
  fi
}

helm_lint() {
  go run helm.sh/helm/v3/cmd/helm@v3.19.4 lint --strict charts/*
}

formatted() {
  local files
  files=$(git ls-files -z '*.go' | xargs -0 gofmt -l)
  [[ -z $files ]] || {
    printf 'run gofmt -w on:\n%s\n' "$files" >&2
    return 1
  }
}

tidy() {
  local module
  for module in . test/lab/kubebin .ci/image test/chart/names test/alerts; do
    go mod tidy -C "$module" -diff || return
  done
}

lint() {
  # The variable holds a command line with its environment.
  bash -c "$GOLANGCI_LINT ./..."
}

# People without Linux run the demo and the kubectl plugin, and nobody here would notice that it no longer compiles for them. Kubernetes takes too long to
# compile twice: that every package has files for macOS has to do.
for_macos() {
  GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 go vet ./cmd/... ./test/demo/... ./test/lab/... &&
    (cd test/lab/kubebin && GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 go list -deps . >/dev/null)
}

scripts() {
  if ! command -v shellcheck >/dev/null; then
    echo "shellcheck is not installed (make e2e-deps): not checked"
    return
  fi
  # Files that say they are scripts. Pieces of one, put together at run time, say nothing in themselves.
  local file first
  while IFS= read -r -d '' file; do
    IFS= read -r first <"$file" || true
    [[ ! $first =~ ^(#!/.*sh$|#\ shellcheck\ shell=) ]] || printf '%s\0' "$file"
  done < <(git ls-files -z '*.sh' .ci '*/bin/*' '*/sbin/*' shim/kpssh-shim) | xargs -0 shellcheck -x
}

check "generated files" generated
check "generated files of the charts" chart_files
check "helm lint" helm_lint
check "gofmt" formatted
check "go vet of the tagged suites too" go vet -tags=e2e,bench ./...
check "what the demo and the plugin need, for macOS (its first build takes minutes)" for_macos
check "go mod tidy" tidy
check "shellcheck" scripts
check "workflows" go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
check "golangci-lint (its first build takes minutes)" lint
rm -r "$scratch"
section "result"
if ((${#failed[@]} > 0)); then
  printf 'failed: %s\n' "${failed[@]}"
  exit 1
fi
