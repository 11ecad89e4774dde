#!/usr/bin/env bash
# Writes shim/kpssh-shim (or the file given): its template with the supervisor and the probe that machines without a shim get too, so
# that there is one of each.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-shim/kpssh-shim}

# embed NAME FILE...: a function that prints the files.
embed() {
  printf '%s() {\n\tcat <<'"'KPSSH_END'"'\n' "$1"
  cat "${@:2}"
  printf 'KPSSH_END\n}\n\n'
}

{
  sed '/^@embedded@$/,$d' shim/kpssh-shim.in
  printf '# ---- Made of pkg/ssh/remote/supervisor.sh and pkg/controllers/probe/probe.sh by make generate: change those -------------------\n\n'
  embed supervisor pkg/ssh/remote/supervisor.sh
  embed probe_script pkg/controllers/probe/probe.sh
  sed '1,/^@embedded@$/d' shim/kpssh-shim.in
} >"$out"
chmod 755 "$out"
