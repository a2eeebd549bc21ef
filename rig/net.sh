# What dom0's scenarios do with networks: a bridge, backends, guests that obey. Sourced after domain.sh; by guests too, for
# `bridge`, `pings` and `mbits`.

# bridge: xenbr0, where dom0 is 10.9.0.1 and fd09::1.
bridge() {
	brctl addbr xenbr0 2>/dev/null || return 0
	ip addr add 10.9.0.1/24 dev xenbr0
	echo 0 > /proc/sys/net/ipv6/conf/xenbr0/accept_dad
	ip -6 addr add fd09::1/64 dev xenbr0
	ip link set xenbr0 up
}

# Who serves vifs where a scenario says `back`: `pregrant back`, or with `cargo xtask rig --back module` linux/back's module of this
# kernel. Where a scenario's own steps differ, by_module asks.
#
#               the process                              the module
#   back        is started, and is ready                 is loaded; the scripts of vifs that are there run again
#   end_back    TERM: leaves its vifs connected          vifs are unbound, which leaves them so too, and it is unloaded
#   kill_back   KILL                                     the same: it has no way to die alone
#   back_said   its log                                  the kernel's, since it was loaded
#   back_well   no error in that                         no complaint in that
by_module() { [ "$BACK" = module ]; }
# back [ARGUMENT...]: `pregrant back` has WORKERS worker threads if that is set; its log is BACK_LOG. The module takes no arguments.
BACK_LOG=/run/back.log
back() {
	if by_module; then
		[ $# = 0 ] || fail "the module has no $*"
		dmesg -c > /dev/null
		kernel_back
		for _bound in $BACK_DRIVER/vif-*; do [ ! -e "$_bound" ] || plugged "${_bound##*/}"; done
		return
	fi
	BACK_FROM=$(($(cat $BACK_LOG 2>/dev/null | wc -l) + 1))
	RUST_LOG=${RUST_LOG:-info} pregrant back ${WORKERS:+--workers $WORKERS} "$@" >> $BACK_LOG 2>&1 &
	BACK_PID=$!
	_ready="process $BACK_PID: ready"
	within 20 grep -q "$_ready" $BACK_LOG || { tail -5 $BACK_LOG; fail "pregrant back $*: not ready"; }
	# A thread gives itself its name.
	[ -z "$WORKERS" ] || within 10 eval '[ "$(workers)" = "$WORKERS" ]' || fail "pregrant back $*: $(workers) workers, and not $WORKERS"
}
# workers: how many worker threads the back has.
workers() { cat "/proc/$BACK_PID"/task/*/comm | grep -c '^worker '; }
back_runs() { if by_module; then [ -d /sys/module/pregrant_back ]; else kill -0 $BACK_PID; fi; }
# back_said PATTERN: whether the back that was started last has said so. back_says PATTERN: waits for it.
back_words() { if by_module; then dmesg; else tail -n "+$BACK_FROM" $BACK_LOG; fi; }
back_said() { back_words | grep -q "$1"; }
back_says() { within "${2:-20}" back_said "$1"; }
# back_well [strictly]: the scenario's backs have logged no error; strictly: no warning either.
back_well() {
	if by_module; then
		kernel_well
		[ -z "$1" ] || ! dmesg -r | grep -E '^<[0-4]>.*(pregrant_back vif-|pregrant: )' || fail "the back warns"
	else
		! grep -E "ERROR|panicked${1:+|WARN}" $BACK_LOG || fail "the back complains"
	fi
}
# end_back [SIGNAL]: ends it and waits for its end.
end_back() {
	if by_module; then
		kernel_well
		# That of a guest that has ended goes by itself, a moment later.
		for _bound in $BACK_DRIVER/vif-*; do [ ! -e "$_bound" ] || echo "${_bound##*/}" > $BACK_DRIVER/unbind || [ ! -e "$_bound" ] || return; done
		within 10 rmmod pregrant_back || return
		kernel_well
	else
		kill -${1:-TERM} $BACK_PID; wait $BACK_PID
	fi
}
kill_back() { if by_module; then end_back || fail "the module stays"; else end_back KILL; fi; }
# said_last: what a failure of a scenario shows of it.
said_last() {
	if by_module; then say "the last lines of the kernel:"; dmesg | tail -n 20; return; fi
	[ -s $BACK_LOG ] && { say "the last lines of pregrant back:"; tail -n 12 $BACK_LOG; }
}

# netback: the kernel's, in its place. no_netback: away with it.
netback() { modprobe xen-netback || fail "no xen-netback"; }
no_netback() { rmmod xen-netback 2>/dev/null; }
# kernel_back [PARAMETER...]: linux/back's module, in netback's place.
kernel_back() {
	no_netback
	insmod /rig/pregrant_back.ko "$@" || { dmesg | tail -n 20; fail "the module of a back does not load"; }
}
BACK_DRIVER=/sys/bus/xen-backend/drivers/pregrant_back
# plugged vif-DOMAIN-NUMBER: its script, which the toolstack runs once alone, runs again for the driver that it is bound to now.
plugged() {
	_node=$(cat "/sys/bus/xen-backend/devices/$1/nodename") _name=$(echo "$1" | sed 's/-//; s/-/./')
	within 10 [ -e "/sys/class/net/$_name" ] || fail "$1 has no interface"
	vif=$_name XENBUS_PATH=$_node /rig/vif-script online
}
# handed GUEST NUMBER FROM TO: its vif, from one driver of this kernel to another, unseen by the guest.
handed() {
	_device=vif-$(xl domid "$1")-0
	echo "$_device" > "/sys/bus/xen-backend/drivers/$3/unbind" && echo "$_device" > "/sys/bus/xen-backend/drivers/$4/bind" || fail "$1: not from $3 to $4"
	plugged "$_device"
	within 20 ping -q -c 1 -W 5 "10.9.0.$2" || fail "$1: behind $4 it does not answer"
}
# kernel_well: dom0's kernel has logged nothing bad of it. It prints call traces where `xl create` takes long (domain.sh).
kernel_well() {
	! dmesg | grep -E "$COMPLAINTS|blocked for more than|soft lockup|stay mapped|could not be unmapped" || fail "dom0's kernel complains"
	no_leaks || fail "memory of dom0's kernel without an owner"
}

# VIF: an interface on the bridge, in xl's syntax, for guest's vif=. $1: the last byte of its address.
vif_line() { echo "'mac=00:16:3e:00:00:0$1,bridge=xenbr0,script=/rig/vif-script'"; }
# linux_guest NAME NUMBER [KEY=VALUE...]: a guest with the kernel's netfront, address 10.9.0.NUMBER, that obeys `ask`.
linux_guest() {
	_who=$1 _number=$2; shift 2
	guest "$_who" job=orders "vif=$(vif_line "$_number")" "$@" || fail "xl create $_who"
	up "$_who" || fail "$_who does not come up"
	ask "$_who" "addresses $_number" || fail "$_who has no network"
	within 6 ping -q -c 1 -W 5 "10.9.0.$_number" || fail "$_who does not answer"
}

# front NAME NUMBER [ARGUMENT...]: starts `pregrant front --tap eth0` in a guest that has no netfront, waits until it is
# connected, and gives eth0 its addresses. end_front NAME: ends it, and its log goes to the console.
front() {
	_who=$1 _number=$2; shift 2
	ask "$_who" "pregrant front --tap eth0 $* > /tmp/front.log 2>&1 & echo \$! > /tmp/front.pid" || return 1
	ask "$_who" "within 20 grep 'connected to' /tmp/front.log && addresses $_number" && return 0
	ask "$_who" "cat /tmp/front.log"
	fail "$_who: pregrant front: not connected"
}
end_front() { ask "$1" 'kill $(cat /tmp/front.pid); cat /tmp/front.log; within 10 [ ! -e /sys/class/net/eth0 ]'; }
# front_guest NAME NUMBER [KEY=VALUE...]: a guest without netfront that obeys `ask`.
front_guest() {
	_who=$1 _number=$2; shift 2
	guest "$_who" job=orders more=rig.netfront=no "vif=$(vif_line "$_number")" "$@" || fail "xl create $_who"
	up "$_who" || fail "$_who does not come up"
}

# ask NAME COMMAND: runs it in a guest whose job is `orders`, and returns its status. Its output is on the guest's console,
# and the last line of it in ANSWER.
ask() {
	ANSWER=
	_dir=/local/domain/$(xl domid "$1")/data
	xenstore-write $_dir/did ""
	xenstore-write $_dir/do "$2"
	# Its keys go with it, perhaps before they are read.
	[ "$2" = end ] && return 0
	within "${ASK_SECONDS:-60}" has_key $_dir/did || return 99
	ANSWER=$(xenstore-read $_dir/answer 2>/dev/null)
	_did=$(xenstore-read $_dir/did 2>/dev/null)
	return "${_did:-99}"
}

# echoes: how many pings this kernel has sent, and how many answers came to it.
echoes() {
	awk '$1 == "Icmp:" && !named++ { for (i = 2; i <= NF; i++) at[$i] = i; next }
		$1 == "Icmp:" { sent += $at["OutEchos"]; came += $at["InEchoReps"] }
		$1 == "Icmp6OutEchos" { sent += $2 } $1 == "Icmp6InEchoReplies" { came += $2 }
		END { print sent + 0, came + 0 }' /proc/net/snmp /proc/net/snmp6
}
# pings ADDRESS [COUNT [INTERVAL]]: how many were lost, in LOST; true when none was. Where busybox's ping misses answers, those
# that came to the kernel count: its socket has room for few at a time. So nothing else may ping meanwhile.
pings() {
	_before=$(echoes)
	_seen=$(ping -q -c "${2:-10}" -i "${3:-0.2}" -W 5 "$1" | grep "packets received") || { LOST=all; return 1; }
	_sent=${_seen%% *} _got=$(echo "$_seen" | sed 's/.* \([0-9]*\) packets received.*/\1/')
	case $_sent:$_got in *[!0-9:]*) say "ping says: $_seen"; LOST=all; return 1 ;; esac
	LOST=$((_sent - _got))
	[ "$LOST" = 0 ] && return 0
	_counted=$(echo "$_before $(echoes)" | awk '{ print $3 - $1, $4 - $2 }')
	say "ping: of $_sent $_got answered; the kernel counted, sent and answered: $_counted"
	[ "${_counted% *}" = "$_sent" ] && LOST=$((_sent - ${_counted#* }))
	[ "$LOST" = 0 ]
}

# mbits FILE: what an iperf3 run's JSON says was received, in Mbit/s, rounded up: 0 is nothing at all.
mbits() { sed -n '/"sum_received"/,/}/s/.*"bits_per_second":[[:space:]]*\([0-9]*\).*/\1/p' "$1" | awk '{ print int(($1 + 999999) / 1e6) }'; }
# iperf ADDRESS [ARGUMENT...]: Mbit/s from dom0 to a guest that serves; with -R the other way.
iperf() {
	_to=$1; shift
	_tries=0
	until iperf3 -J -c "$_to" -t "${IPERF_SECONDS:-4}" "$@" > /run/iperf.json; do
		# Between two clients the server does not listen for a moment.
		_tries=$((_tries + 1))
		if [ $_tries -gt 4 ] || ! grep -q "Connection refused" /run/iperf.json; then
			grep '"error"' /run/iperf.json >&2
			return 1
		fi
		sleep 1
	done
	_mbits=$(mbits /run/iperf.json)
	echo "$_mbits"
	[ "${_mbits:-0}" -gt 0 ]
}

# frames_serve: receives frames in dom0. frames NAME TO [ARGUMENT...]: sends some from a guest, none lost or damaged; the
# line of results in ANSWER.
frames_serve() {
	pregrant-lab frames --serve > /run/frames.log 2>&1 &
	within 5 grep -q receiving /run/frames.log || fail "frames --serve"
}
frames() {
	_who=$1 _to=$2; shift 2
	ASK_SECONDS=${FRAMES_SECONDS:-240} ask "$_who" "pregrant-lab frames --to $_to $*" || fail "frames of $_who to $_to: $ANSWER"
}
# both_ways TEXT COUNT [ARGUMENT...]: as many numbered frames from the guest `one`, 10.9.0.2, and to it; both lines in _numbered.
both_ways() {
	_of=$1 _count=$2; shift 2
	frames one 10.9.0.1 --count "$_count" "$@"
	_numbered=$(echo "$ANSWER" | sed 's/, out of order.*;/;/; s/, [0-9.]* Mbit.*//')
	ask one "pregrant-lab frames --serve > /dev/null 2>&1 & echo \$! > /tmp/serve"
	pregrant-lab frames --to 10.9.0.2 --count "$_count" "$@" > /run/frames_to || { cat /run/frames_to; fail "$_of: frames to the guest"; }
	ask one 'kill $(cat /tmp/serve)'
	_numbered="from it $_numbered; to it $(sed 's/, out of order.*;/;/; s/, [0-9.]* Mbit.*//' /run/frames_to | tail -n 1)"
}
# counted METRIC [LABEL]: what `pregrant top` has of it, all other labels together.
counted() {
	pregrant top --prometheus - | awk -v name="pregrant_$1_total" -v label="$2" \
		'index($1, name "{") == 1 && (label == "" || index($1, label)) { sum += $2 } END { printf "%d", sum }'
}
# rate: of a line of results, frames a second.
rate() { sed 's/.* s, \([0-9]*\) frames.*/\1/'; }

# count VIF rx|tx bytes|packets: the interface's own counter in dom0. Its rx is what the guest sends.
count() { cat "/sys/class/net/$1/statistics/$2_$3"; }
# dom0_seconds: CPU time that Xen has counted for dom0. With `--icount` a second is 10^9 instructions.
dom0_seconds() { domain_time 0 | awk '{ printf "%.6f", $1 / 1e9 }'; }

# tables: the domains that Xen has grant tables of, and how many of their grants somebody uses.
tables() {
	xl dmesg -c > /dev/null
	xl debug-keys g
	xl dmesg > /run/tables
	grep -q 'gnttab_usage_print_all \] done' /run/tables || { echo "Xen prints no grant tables"; return; }
	echo "$(grep -c 'grant-table for remote' /run/tables) tables, $(grep -c '^(XEN) \[0x' /run/tables) grants in use"
}
