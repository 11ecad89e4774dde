#!/usr/bin/env bash
# Packages every chart into bin/ (or OUT) with the version stamped in. A version that is none, such as a commit, becomes 0.0.0-g<commit>.
# Beside them goes the shim for machines in Verified mode, with the checksum that people compare before they install it.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${VERSION:?run this as: make package}"
export GOTOOLCHAIN=auto GOFLAGS="${GOFLAGS:--trimpath -buildvcs=false}"
out=${OUT:-bin}

version=${VERSION#v}
if [[ ! $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]]; then
  version=0.0.0-g$(tr -c '0-9A-Za-z\n' - <<<"$version")
fi
mkdir -p "$out"
for chart in charts/*/Chart.yaml; do
  go run helm.sh/helm/v3/cmd/helm@v3.19.4 package "${chart%/*}" --version "$version" --app-version "$version" --destination "$out"
done
install -m 755 shim/kpssh-shim "$out/kpssh-shim"
(cd "$out" && sha256sum kpssh-shim >kpssh-shim.sha256)
