#!/usr/bin/env bash
# Writes what is generated in the charts: the CRDs of the CRD chart (this project's, from the main chart, and karpenter's, from its module),
# and the READMEs. Argument: the directory of the charts.
set -euo pipefail
cd "$(dirname "$0")/../.."
export GOTOOLCHAIN=auto GOFLAGS="${GOFLAGS:--trimpath -buildvcs=false}"
charts=${1:-charts}
files=$charts/karpenter-provider-ssh-crd/files

rm -rf "$files"
mkdir -p "$files/provider" "$files/karpenter"
cp "$charts"/karpenter-provider-ssh/crds/*.yaml "$files/provider/"
cp "$(go list -m -f '{{.Dir}}' sigs.k8s.io/karpenter)"/pkg/apis/crds/karpenter.sh_*.yaml "$files/karpenter/"
# What comes from the module cache is read-only.
chmod u+w "$files"/*/*.yaml
go run github.com/norwoodj/helm-docs/cmd/helm-docs@v1.14.2 --chart-search-root "$charts" --sort-values-order file --log-level warning
