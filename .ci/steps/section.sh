# shellcheck shell=bash
# Sourced by the scripts beside it: headers with elapsed time, so that a log tells where the minutes went, and the slow preparations.
section_started=$SECONDS
section_name=
section() {
  section_end
  section_name=$1
  section_started=$SECONDS
  printf '\n=== %s  [%s since start]\n' "$1" "$(elapsed 0)"
}
section_end() {
  [[ -z $section_name ]] || printf '=== %s took %s\n' "$section_name" "$(elapsed "$section_started")"
  section_name=
}
elapsed() { printf '%dm%02ds' $(((SECONDS - $1) / 60)) $(((SECONDS - $1) % 60)); }

# judge NAME: whatever ends the script, its last line says whether NAME passed, and if not, where it failed.
judge() {
  judged=$1
  trap judgement EXIT
  trap 'exit 143' TERM # whoever is ended from outside has not passed
}
judgement() {
  local code=$? last=$section_name
  section_end
  if ((code == 0)); then
    printf '\nPASS: %s, %s\n' "$judged" "$(elapsed 0)"
  else
    printf '\nFAIL: %s, %s, in: %s\n' "$judged" "$(elapsed 0)" "${last:-start}"
  fi
}

# What most suites need is built from Go modules on first use. Said loudly, for it takes minutes then and no time later.
prepare_control_plane() {
  if [[ -z ${KUBEBUILDER_ASSETS:-} ]]; then
    section "etcd, kube-apiserver, kubelet, kubectl: from Go modules, cached (first time: 10 minutes on 2 cores)"
    KUBEBUILDER_ASSETS=$(go run ./test/lab/cmd/lab binaries)
    export KUBEBUILDER_ASSETS
  fi
  echo "control plane binaries: $KUBEBUILDER_ASSETS"
}
prepare_helm() {
  section "helm: from its Go module, cached (first time: 3 minutes on 2 cores)"
  go run helm.sh/helm/v3/cmd/helm@v3.19.4 version --short
}
