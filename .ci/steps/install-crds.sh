#!/usr/bin/env bash
# Installs CRDs into the cluster of the current kubectl context. Argument: `own` for this project's three kinds, `all` for
# karpenter's as well. CRDs of karpenter that exist belong to whoever installed them, another provider most likely: never touched.
set -euo pipefail
cd "$(dirname "$0")/../.."
export GOTOOLCHAIN=auto GOFLAGS="${GOFLAGS:--trimpath -buildvcs=false}"
own=charts/karpenter-provider-ssh/crds

kubectl=${KUBECTL:-$(command -v kubectl || true)}
if [[ -z $kubectl ]]; then
  echo "no kubectl on PATH: using the lab's (built from Go modules on first use)" >&2
  kubectl=$(go run ./test/lab/cmd/lab binaries)/kubectl
fi
echo "cluster: $("$kubectl" config view --minify -o 'jsonpath={.clusters[0].cluster.server}')"

# serves_v1 CRD: whether an existing CRD serves version v1.
serves_v1() {
  [[ " $("$kubectl" get crd "$1" -o 'jsonpath={.spec.versions[?(@.served==true)].name}') " == *" v1 "* ]]
}

install_karpenter() {
  local crds existing
  crds=$(go list -m -f '{{.Dir}}' sigs.k8s.io/karpenter)/pkg/apis/crds
  existing=$("$kubectl" get crd -o name | sed -n 's|^customresourcedefinition.apiextensions.k8s.io/\(.*\.karpenter\.sh\)$|\1|p')
  if [[ -z $existing ]]; then
    echo "karpenter.sh CRDs: none here, creating those of karpenter $(go list -m -f '{{.Version}}' sigs.k8s.io/karpenter)"
    local file
    for file in "$crds"/karpenter.sh_*.yaml; do
      "$kubectl" create -f "$file"
    done
    return
  fi
  echo "karpenter.sh CRDs: left as they are, they belong to whoever installed them:"
  printf '  %s\n' "${existing//$'\n'/$'\n  '}"
  local crd
  for crd in nodepools.karpenter.sh nodeclaims.karpenter.sh; do
    if ! grep -qx "$crd" <<<"$existing" || ! serves_v1 "$crd"; then
      echo "$crd v1 is missing. Ask the owner of the CRDs above to bring karpenter to v1 first." >&2
      exit 1
    fi
  done
}

case ${1:-} in
own) ;;
all) install_karpenter ;;
*)
  echo "usage: $0 own|all" >&2
  exit 2
  ;;
esac
# Helm, or whoever created an older version of them, counts as the owner of their fields: what they say is decided here.
"$kubectl" apply --server-side --force-conflicts --field-manager=karpenter-provider-ssh-crds -f "$own"
"$kubectl" wait --for=condition=Established --timeout=60s -f "$own"
