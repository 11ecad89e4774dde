#!/usr/bin/env bash
# Writes a software bill of materials for each executable of `make image`, from what the compiler wrote into it: the modules that are
# really linked, and no others.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${VERSION:?run this as: make sbom}"

shopt -s nullglob
executables=(bin/linux-*/controller)
if ((${#executables[@]} == 0)); then
  echo "no executable in bin/linux-*: run make image first" >&2
  exit 1
fi
for executable in "${executables[@]}"; do
  platform=$(basename "$(dirname "$executable")")
  # The tool runs on this machine, whatever the executable is for, and is not part of what is built reproducibly.
  env -u GOOS -u GOARCH GOTOOLCHAIN=auto GOFLAGS="-trimpath -buildvcs=false" \
    go run github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0 \
    bin -json -noserial -version "$VERSION" -output "bin/sbom-$platform.json" "$executable"
  echo "bin/sbom-$platform.json: $(grep -c '"bom-ref"' "bin/sbom-$platform.json") components"
done
