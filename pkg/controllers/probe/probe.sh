# Read-only: tells what the machine is, one fact a line, as kpssh.<key>=<value>. Everything else on stdout is ignored, so a banner
# does no harm; a line that starts like a fact and is not one fails the probe.
say() { printf 'kpssh.%s=%s\n' "$1" "$2"; }

printf '\n' # a banner may end without one
say cpu "$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)"
while read -r key value _; do
  if [ "$key" = MemTotal: ]; then say memory "$value"; fi
done </proc/meminfo
say arch "$(uname -m)"
say time "$(date +%s)"
say boot "$(cat /proc/sys/kernel/random/boot_id 2>/dev/null || true)"

owner="${KPSSH_STATE_DIR:-/var/lib/kpssh}/owner"
if [ -e "$owner" ]; then
  say owner "$(tr '\n' ' ' <"$owner")"
else
  say owner ""
fi

index=0
for unit in $KPSSH_KUBELET_UNITS; do
  active=absent enabled=""
  if command -v systemctl >/dev/null; then
    if shown="$(systemctl show --property=ActiveState,UnitFileState -- "$unit" 2>&1)"; then
      while IFS== read -r key value; do
        case "$key" in
          ActiveState) active="$value" ;;
          UnitFileState) enabled="$value" ;;
        esac
      done < <(printf '%s\n' "$shown")
    elif [ -d /run/systemd/system ]; then # systemd runs, so its answer matters
      printf 'systemctl show %s: %s\n' "$unit" "$shown" >&2
      exit 1
    fi
  fi
  say "unit.$index" "$active/$enabled"
  index=$((index + 1))
done
