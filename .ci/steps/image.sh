#!/usr/bin/env bash
# Builds the controller's image for every platform, without a container engine, and with PUSH=1 pushes it. Run it as: make image
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${IMAGE:?run this as: make image}" "${VERSION:?}" "${LDFLAGS:?}" "${GO_VERSION:?}"
PUSH=${PUSH:-}
# Exactly the compiler that go.mod names, and the default processor of each platform: one commit is to give one digest everywhere.
export GOTOOLCHAIN="go$GO_VERSION" GOFLAGS="-trimpath -buildvcs=false" GOAMD64=v1 GOARM64=v8.0 GOEXPERIMENT='' GOFIPS140=off

out=$PWD/bin/image
arguments=(-layout "$out" -tag "$IMAGE" -license "$PWD/LICENSE" -version "$VERSION" -licenses Apache-2.0
  -source https://github.com/kpssh/karpenter-provider-ssh)
if revision=$(git rev-parse --verify --quiet HEAD); then
  arguments+=(-revision "$revision" -created "${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}")
else
  arguments+=(-created "${SOURCE_DATE_EPOCH:-0}")
fi
case $PUSH in
'' | 0 | false) ;;
*) arguments+=(-push) ;;
esac

for platform in ${PLATFORMS:-linux/amd64 linux/arm64}; do
  executable=$PWD/bin/${platform/\//-}/controller
  echo "compile for $platform (first time: minutes)"
  CGO_ENABLED=0 GOOS=${platform%/*} GOARCH=${platform#*/} go build -ldflags "$LDFLAGS" -o "$executable" ./cmd/controller
  arguments+=(-binary "$platform=$executable")
done
rm -rf "$out" "$out.tar"
go run -C .ci/image . "${arguments[@]}"
.ci/steps/sbom.sh
echo "OCI layout: bin/image; for docker load, podman load and ctr images import: bin/image.tar"
