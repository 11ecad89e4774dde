# shellcheck shell=bash disable=SC2154
# The remote half of one phase. It reads nothing but what the k_ variables at its end say, runs the script in a session of its
# own, and sees to it that no process of the script outlives a deadline, a cancellation or the connection.
#
# To the client it speaks in marker lines on both streams; from the client it takes lines on descriptor 7: "go", "stop", and
# empty ones that only show that somebody is still there.
#
# Made for Linux, with bash 4.4 or newer. A machine without /proc, or with the bash 3.2 that macOS has, is good enough to try things
# out: what needs more than that is in pairs, told apart by BASH_VERSINFO and by what can be read.

unset -v p BASH_ENV ENV
export LC_ALL=C LANG=C
PATH=${PATH:-/usr/local/bin:/usr/bin:/bin}:/usr/local/sbin:/usr/sbin:/sbin
exec 7<&0 0</dev/null
trap : PIPE # a client that is gone must not end this shell before it has cleaned up

k_say() {
	printf '@kpssh-%s %s\n' "$k_nonce" "$1" 2>/dev/null
	printf '@kpssh-%s %s\n' "$k_nonce" "$1" >&2 2>/dev/null
}

k_finish() {
	k_say "$1"
	exit "${2:-75}"
}

# Hundredths of a second since boot: the wall clock jumps when a fresh machine first hears of NTP.
k_clock() {
	if { read -r k_now _ </proc/uptime; } 2>/dev/null; then
		k_now=${k_now/./}
	else
		k_now=$((SECONDS * 100))
	fi
}

# Fills k_live with the processes of this run: those that carry its token in their environment, their descendants, and
# whoever shares a session with one of them. Neither a double fork nor a new session nor a cleaned environment alone is a way out.
k_survivors() {
	local pid line changed own=''
	local -a parent session mark
	k_live=()
	k_read_proc || k_read_ps || return 1
	changed=1
	while ((changed)); do
		changed=0
		for pid in "${!mark[@]}"; do
			line=${session[$pid]}
			[[ $line != "$own" ]] && k_sessions[line]=1
		done
		for pid in "${!parent[@]}"; do
			[[ -n ${mark[$pid]-} ]] && continue
			if [[ -n ${mark[${parent[$pid]}]-} || -n ${k_sessions[${session[$pid]}]-} ]]; then
				mark[pid]=1
				changed=1
			fi
		done
	done
	k_live=("${!mark[@]}")
	((${#k_live[@]}))
}

# For k_survivors: every process's parent and session, a mark on those that are known to be of this run, and the own session.
k_read_proc() {
	local dir
	local -a vars
	{ IFS= read -r line </proc/self/stat; } 2>/dev/null || return 1
	# shellcheck disable=SC2086 # split: state, parent, process group, session, ...
	set -- ${line##*) }
	own=$4
	for dir in /proc/[0-9]*; do
		pid=${dir#/proc/}
		{ IFS= read -r line <"$dir/stat"; } 2>/dev/null || continue
		# shellcheck disable=SC2086
		set -- ${line##*) }
		# Neither the dead, which have session -1 towards the end, nor the kernel's own threads.
		[[ $1 == [ZXx] || $2 == 2 || $4 == -* ]] && continue
		parent[pid]=$2 session[pid]=$4
		if [[ -n ${k_sessions[$4]-} ]]; then
			mark[pid]=1
		elif { mapfile -d '' -t vars <"$dir/environ"; } 2>/dev/null; then
			for line in "${vars[@]}"; do
				if [[ $line == "KPSSH_RUN=$k_token" ]]; then
					mark[pid]=1
					break
				fi
			done
		fi
	done
}

# The same without /proc. There is no looking into environments, and process groups take the place of sessions: what has left its
# group, its parent and this shell all three gets away.
k_read_ps() {
	local above group state command
	while read -r pid above group state command; do
		[[ $state == [ZXx]* ]] && continue
		parent[pid]=$above session[pid]=$group
		[[ $pid == "${k_self:-$$}" ]] && own=$group
		[[ " $command " == *" $k_token "* || -n ${k_sessions[$group]-} ]] && mark[pid]=1
	done < <(ps -A -ww -o pid= -o ppid= -o pgid= -o stat= -o args= 2>/dev/null)
	[[ -n $own ]] || return 1
	for pid in "${!parent[@]}"; do
		[[ ${parent[$pid]} == "$$" && ${session[$pid]} != "$own" ]] && mark[pid]=1
	done
	return 0
}

# Ends every process of this run: politely for two seconds, so that a package manager can put its database away, then not.
k_purge() {
	local round
	k_survivors || return 0
	kill -TERM "${k_live[@]}" 2>/dev/null
	kill -CONT "${k_live[@]}" 2>/dev/null
	for ((round = 1; round <= 6; round++)); do
		sleep "0.$round" >/dev/null 2>&1
		k_survivors || return 0
	done
	# Stopped first: what cannot run cannot fork a successor between the look and the kill.
	for ((round = 0; round < 100; round++)); do
		kill -STOP "${k_live[@]}" 2>/dev/null
		k_survivors && kill -KILL "${k_live[@]}" 2>/dev/null
		sleep 0.05 >/dev/null 2>&1
		k_survivors || return 0
	done
	return 1
}

# Watches the client and the deadline in a process of its own. Writes why it acts and the sessions it knows, then kills for as long as the main shell
# lives: the script may not have started yet. Its first word is its process ID.
k_watch() {
	trap '' PIPE # the main shell, which reads this one's word, may have been killed
	local end seen left line reason='' unread=$'\n'
	k_self=${BASHPID-}
	[[ -n $k_self ]] || k_self=$(exec sh -c 'echo "$PPID"')
	printf '%s\n' "$k_self"
	k_clock
	seen=$k_now end=$((k_now + k_limit))
	while [[ -z $reason ]]; do
		k_clock
		left=$((end - k_now))
		((seen + k_silence - k_now < left)) && left=$((seen + k_silence - k_now))
		if ((k_now >= end)); then
			reason=timeout
		elif ((left <= 0)); then
			reason=silence
		else
			if ((BASH_VERSINFO[0] < 4)); then
				left=$(((left + 99) / 100))
			else
				printf -v left '%d.%02d' $((left / 100)) $((left % 100))
			fi
			line=$unread
			if IFS= read -r -t "$left" line <&7; then
				k_clock
				seen=$k_now
				[[ $line == stop ]] && reason=stop
			# Before bash 4 a time-out looks like an end of file, but for the variable, which it leaves alone.
			elif (($? <= 128)) && [[ $line != "$unread" ]]; then
				reason=gone
			fi
		fi
	done
	k_survivors
	printf '%s\n' "$reason ${!k_sessions[*]}" 2>/dev/null
	while :; do
		k_purge
		kill -0 $$ 2>/dev/null || break
		sleep 0.2 >/dev/null 2>&1
	done
}

# Lock, owner, epoch: the machine's own say in who may change it.
k_claim() {
	local key value stored=0 cluster='' instance='' host='' claim='' epoch='' found
	k_lock
	if [[ -s $k_dir/owner ]]; then
		while IFS='=' read -r key value; do
			case $key in
			cluster) cluster=$value ;;
			instance) instance=$value ;;
			host) host=$value ;;
			claim) claim=$value ;;
			epoch) epoch=$value ;;
			esac
		done <"$k_dir/owner"
		found="cluster=$cluster instance=$instance host=$host claim=$claim"
		found=${found//[^[:print:]]/?}
		if [[ $cluster != "$k_cluster" || $host != "$k_host" ]] && [[ $found != "$k_takeover" ]]; then
			k_finish "owned ${found:0:2000}"
		fi
	fi
	{ read -r stored <"$k_dir/epoch.$k_host"; } 2>/dev/null
	[[ $stored =~ ^[0-9]{1,18}$ ]] || stored=0
	((k_epoch < stored)) && k_finish "stale $stored"
	k_bury
	((k_epoch > stored)) && k_store "epoch.$k_host" "$k_epoch"
	if [[ $k_phase != leave || $cluster != "$k_cluster" || $host != "$k_host" ]]; then
		found="cluster=$cluster instance=$instance host=$host claim=$claim epoch=$epoch"
		if [[ $found != "cluster=$k_cluster instance=$k_instance host=$k_host claim=$k_claim_uid epoch=$k_epoch" ]]; then
			k_store owner "cluster=$k_cluster"$'\n'"instance=$k_instance"$'\n'"host=$k_host"$'\n'"claim=$k_claim_uid"$'\n'"epoch=$k_epoch"
		fi
	fi
	k_note
}

# Sets k_dir and takes the machine's lock, on descriptor 9.
k_lock() {
	local value=''
	k_dir=${KPSSH_STATE_DIR:-/var/lib/kpssh}
	[[ $k_dir == /* ]] || k_dir=$PWD/$k_dir
	# Nobody else may look inside, so that what is inside needs no modes of its own.
	# shellcheck disable=SC2174 # its parent is a system's directory
	[[ -d $k_dir ]] || mkdir -p -m 700 -- "$k_dir" 2>/dev/null || k_finish "broken cannot create $k_dir"
	command -v flock >/dev/null 2>&1 || k_finish 'broken flock (package util-linux) is missing'
	: 2>/dev/null >>"$k_dir/lock" || k_finish "broken cannot write $k_dir/lock"
	exec 9>>"$k_dir/lock"
	if ! flock -w "$k_wait" 9; then
		{ read -r _ value <"$k_dir/run"; } 2>/dev/null
		k_finish "busy ${value:-another phase}"
	fi
}

# A holder of the lock that was killed outright left its script running.
k_bury() {
	local token=$k_token
	if { read -r k_left _ <"$k_dir/run"; } 2>/dev/null && [[ -n $k_left ]]; then
		k_token=$k_left
		k_purge || k_finish 'busy an earlier phase whose processes cannot be killed'
		k_token=$token k_sessions=()
	fi
}

# What k_bury of the next phase needs. Not worth a rename: half a token is nobody's.
k_note() {
	printf '%s\n' "$k_token $k_phase" 2>/dev/null >"$k_dir/run" || k_finish "broken cannot write $k_dir/run"
}

# Whole or not at all: a machine that loses power keeps the old file.
k_store() {
	if ! printf '%s\n' "$2" 2>/dev/null >"$k_dir/.$1.new" || ! mv -f -- "$k_dir/.$1.new" "$k_dir/$1" 2>/dev/null; then
		k_finish "broken cannot write $k_dir/$1"
	fi
}

k_main() {
	local code reason='' line='' watch between='' k_self=''
	# shellcheck disable=SC2016 # for the other bash
	local take='IFS= read -rN "$1" k_env <&3 && IFS= read -rN "$2" k_body <&3'
	local -a k_sessions
	k_sessions=()
	if ((BASH_VERSINFO[0] < 4)); then
		take='IFS= read -r -d "" k_env <&3 && IFS= read -r -d "" k_body <&3'
		between='\0'
	fi
	k_say begin
	[[ -n $k_host ]] && k_claim
	[[ -r /proc/self/stat ]] || command -v ps >/dev/null 2>&1 || k_finish 'broken /proc is not mounted'
	command -v setsid >/dev/null 2>&1 || k_finish 'broken setsid (package util-linux) is missing'
	k_say ready
	# Nothing starts for a client that was cut off while this waited for the lock.
	while [[ $line != go ]]; do
		IFS= read -r -t 60 line <&7 || k_finish 'stopped gone'
		[[ $line == stop ]] && k_finish 'stopped stop'
	done
	exec 8< <(k_watch 2>/dev/null)
	read -r watch <&8 || k_finish 'broken no process can be started'
	# shellcheck disable=SC2059 # a format indeed
	exec 3< <(printf "%s$between%s$between" "$k_env" "$k_body")
	# One line, so that the line numbers in bash's messages are the script's own.
	# shellcheck disable=SC2016 # for the other bash
	KPSSH_RUN=$k_token setsid bash --norc -c \
		"$take"' || exit 125; exec 3<&-; set --; eval "$k_env"; unset -v k_env; set -euo pipefail; eval "unset -v k_body; $k_body"' \
		"kpssh-$k_phase" "${#k_env}" "${#k_body}" "$k_token" 7<&- 8<&- 9>&-
	code=$?
	exec 3<&-
	# The watcher's word is read after it is dead, so that it cannot change its mind.
	kill -KILL "$watch" 2>/dev/null
	read -r reason line <&8
	if [[ -n $reason ]]; then
		# It may have been killed while it was killing; without /proc, what is left would not be found.
		for watch in $line; do k_sessions[watch]=1; done
		k_purge || k_finish "stuck $reason"
		[[ -n $k_host ]] && : >"$k_dir/run"
		k_finish "stopped $reason"
	fi
	if [[ -n $k_host ]]; then
		[[ $k_phase == leave && $code == 0 || $k_claim_uid == none ]] && rm -f -- "$k_dir/owner"
		: >"$k_dir/run"
	fi
	k_finish "exit $code" "$code"
}
