#!/usr/bin/env bash
# Runs every fuzz target for a fixed count: the corpus that is kept under testdata/fuzz, then inputs that the fuzzer makes of it. FUZZ=n changes the count.
set -euo pipefail
cd "$(dirname "$0")/../.."
export GOTOOLCHAIN=auto GOFLAGS="${GOFLAGS:--trimpath -buildvcs=false}"

targets=$(git grep -oE '^func Fuzz[A-Za-z0-9]+' -- '*_test.go')
while IFS=: read -r file func; do
  go test "./$(dirname "$file")" -run '^$' -fuzz "^${func#func }\$" -fuzztime "${FUZZ:-2000}x" </dev/null
done <<<"$targets"
