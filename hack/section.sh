# shellcheck shell=bash
# Sourced by the scripts beside it: headers with elapsed time, so that a log tells where the minutes went.
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
