#!/usr/bin/env bash
# Installs the Debian packages that the tests, the e2e suite and `make verify` need, and only those that are missing.
set -euo pipefail

cd "$(dirname "$0")/../.."

# What real machines need is listed beside the code that boots them; tests compare with ssh-keygen, the shim is tested in busybox too, and shellcheck
# is for make verify.
mapfile -t packages <test/lab/machine/apt-packages.txt
packages+=(openssh-client busybox shellcheck)
missing=()
for package in "${packages[@]}"; do
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  echo "all packages are there: ${packages[*]}"
  exit 0
fi
if ((EUID != 0)); then
  echo "missing: ${missing[*]}. Run this as root, or: sudo apt-get install ${missing[*]}" >&2
  exit 1
fi
echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends "${missing[@]}"
