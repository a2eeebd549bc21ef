# shows: what a frame costs dom0 in instructions, by Linux's netback, by linux/back's module and by `pregrant back` with each way to its tap, and with `pregrant front` and the kernel module, whose guest's own count too: 60 and 1514 bytes, TCP, request and response by TCP
# icount: yes
# workers: 1
# seconds: 900
# module: yes
FRAMES=${FRAMES:-6000} MBYTES=${MBYTES:-96} TURNS=${TURNS:-400}
# WAYS: netback, kernel (linux/back's module in its place), a way to the tap, map/WAY (pages mapped for each batch), front/PATH/WAY, or
# module/PATH/WAY, the guest's kernel module (WAY may be netback or kernel), with colons between them.
WAYS=$(echo "${WAYS:-netback:burst:vhost}" | tr : " ")
# ROWS: some of them; also `busy`: requests where both ends' sockets poll for 50 us before they sleep (SO_BUSY_POLL), by the clock; and with the
# module `lengths`: TCP from the guest by frames of each of MTUS, no longer segments.
ROWS=${ROWS:-from:to:tcp:requests}
BUSY=50
MTUS=$(echo "${MTUS:-1500:2500:4096:6000:9000}" | tr : " ")
# PROGRAMS: XDP programs of rig/xdp.c for the module's guest, which a frame to it meets beside the stack, that drops it.
PROGRAMS=$(echo "${PROGRAMS:-}" | tr : " ")
# With the module, or OWN=1, the guest's own instructions count: its loop of orders, which polls ten times a second, rests,
# and its frames are those of a sender that sleeps while the queue is full, which pktgen does not.
OWN=${OWN:-}
case "$WAYS" in *module/*) OWN=1 ;; esac
modprobe -a pktgen vhost_net dummy || fail "dom0 lacks pktgen, vhost_net or dummy"
bridge
# A frame for all goes to the newest of a bridge's ports first, as a clone, and itself to the oldest: this one, which drops it at once. For
# pktgen waits behind its last frame until no one has that, and waits by spinning.
ip link add stub0 type dummy && ip link set stub0 up && brctl addif xenbr0 stub0 || fail "no stub0"
# A task that a frame wakes runs when the burst is over.
for _task in /proc/[0-9]*; do
	[ "$(cat "$_task/comm" 2>/dev/null)" != kpktgend_0 ] || chrt -f -p 1 "${_task##*/}" || fail "kpktgend_0 keeps its policy"
done
mkfifo /run/never
# Xen emulates the TSC of guests in QEMU, which says of none that it is invariant: some 350 instructions of a frame to the module.
clock='config=tsc_mode = "native"'

# meet NAME NUMBER: the guest whose vif is measured from now on.
meet() {
	# A bridge has the least of its interfaces' addresses.
	mac=$(cat /sys/class/net/xenbr0/address)
	who=$1 ip=10.9.0.$2 id=$(xl domid "$1")
	vif=vif$id.0
	ask "$who" "iperf3 -s -D" || fail "iperf3 does not serve"
	# Their ports, 5009 and 5010, as the kernel lists them.
	ask "$who" "turns serve 5009 > /tmp/turns 2>&1 & turns serve 5010 --busy $BUSY > /tmp/turns-busy 2>&1 & within 10 grep -q ':1391 ' /proc/net/tcp && within 10 grep -q ':1392 ' /proc/net/tcp" || fail "turns does not serve: $ANSWER"
	ask "$who" "modprobe pktgen" || fail "the guest has no pktgen"
	[ -z "$OWN" ] || ask "$who" "touch /tmp/rarely"
}

# rest SECONDS: without a process, which would be counted.
rest() { read -t "$1" _nothing <> /run/never || true; }
# from N: as many frames of the guest's sender, which was requested before the counting began (from_soon N SIZE).
from_soon() {
	[ "$1" != 0 ] || return 0
	_sender="SIZE=$2 small_frames $1 $mac"
	[ -z "$OWN" ] || _sender="datagrams 10.9.0.1 $1 $2"
	ask "$who" "(sleep 2; $_sender) > /tmp/frames 2>&1 &"
}
from() { rest 5; }
# to N: as many of dom0's pktgen, by the bridge, 200 at once and a pause, so that none finds its queue full (to_soon N SIZE).
to_soon() {
	_pktgen=/proc/net/pktgen
	echo rem_device_all > $_pktgen/kpktgend_0
	echo "add_device xenbr0" > $_pktgen/kpktgend_0 || fail "pktgen takes no xenbr0"
	for _line in "count 200" "pkt_size $2" "delay 0" "dst $ip" "dst_mac ff:ff:ff:ff:ff:ff" "clone_skb 0"; do
		echo "$_line" > $_pktgen/xenbr0
	done
}
to() {
	_left=$1
	while [ "$_left" -gt 0 ]; do
		echo start > /proc/net/pktgen/pgctrl
		_left=$((_left - 200))
	done
}
tcp_from() { iperf3 -c "$ip" -R -n "$1M" > /run/iperf; }
tcp_to() { iperf3 -c "$ip" -n "$1M" > /run/iperf; }
requests() { turns ask "$ip" 5009 "$1" > /run/turns; }
busy() { turns ask "$ip" 5010 "$1" --busy "$BUSY" > /run/turns; }

# counter NAME: a counter of our process or, of grant operations, of the kernel's module, 0 where there is none. switches: how often the threads that serve the vif went to sleep.
counter() {
	if [ "$1" = grant_operations ] && grep -q '^pregrant_back ' /proc/modules; then
		ethtool -S "$vif" | awk '/grant_(copies|maps):/ { sum += $2 } END { print sum + 0 }'
		return
	fi
	[ -n "$BACK_PID" ] && pregrant top --prometheus - | awk -v name="pregrant_back_$1" 'index($1, name) == 1 { sum += $2 } END { print sum + 0 }' || echo 0
}
switches() {
	for _task in /proc/"${BACK_PID:-none}"/task/* /proc/[0-9]*; do
		case "$(cat "$_task/comm" 2>/dev/null)" in
		worker*|vhost-*|vif"$id".*) awk '/^voluntary_ctxt/ { print $2 }' "$_task/status" ;;
		esac
	done | awk '{ sum += $1 } END { print sum + 0 }'
}
# calls: reads and writes that our process has made, those of events and of a worker that is woken among them; io_uring's are not.
calls() { [ -n "$BACK_PID" ] && awk '/^sysc[rw]/ { sum += $2 } END { print sum + 0 }' "/proc/$BACK_PID/io" || echo 0; }
counters() { echo "$(count "$vif" "$1" packets) $(count "$vif" "$1" bytes) $(counter grant_operations) $(counter system_calls) $(counter notifications) $(calls) $(switches)"; }

# cost DIR COMMAND...: what that took, in COST: dom0's instructions, the guest's, and counters. DIR: rx is what the guest sends.
cost() {
	_rows=$1; shift
	_before=$(counters "$_rows")
	_began=$(domain_time 0 "$id") || fail "domain_time"
	"$@" || return 1
	_ended=$(domain_time 0 "$id")
	COST=$(echo $_began $_before $_ended $(counters "$_rows") | awk '{ for (i = 1; i <= NF / 2; i++) printf "%.0f ", $(i + NF / 2) - $i }')
}
# row BACK WHAT DIR COMMAND LITTLE MUCH [SIZE]: what each frame of MUCH beyond those of LITTLE took, since each COMMAND has a beginning and an end
# that have nothing to do with frames.
row() {
	_back=$1 _what=$2 _side=$3 _command=$4 _least=$5 _most=$6 _size=$7
	for _n in $_least $_most; do
		# Its loop of orders rests from now on.
		[ -z "$OWN" ] || ask "$who" true || fail "$who does not answer"
		[ -z "$_size" ] || ${_command}_soon "$_n" "$_size"
		_first=$COST
		cost "$_side" $_command "$_n" || fail "$_back, $_what: $ANSWER"
	done
	echo $_first $COST | awk -v back="$_back" -v what="$_what" '{
		for (i = 1; i <= NF / 2; i++) took[i] = $(i + NF / 2) - $i
		frames = took[3]; bytes = took[4]
		if (frames <= 0) exit 1
		printf "%s | %s | %d | %.0f | %.0f | %.2f | %.0f | %.2f | %.2f | %.2f | %.2f | %.3f\n", what, back, frames, bytes / frames, took[1] / frames,
			took[1] / bytes, took[2] / frames, took[5] / frames, took[6] / frames, took[7] / frames, took[8] / frames, took[9] / frames
	}' > /run/row || fail "$_back, $_what: no frame"
	note "$(cat /run/row)"
	CAME=$(echo $COST | cut -d ' ' -f 3)
}
# came: all of pktgen's, in the long run.
came() { [ "$CAME" -ge "$_most" ] || fail "$_back, $_what: of $_most frames $CAME came"; }
# has KIND: whether such rows are wanted.
has() { case ":$ROWS:" in *":$1:"*) ;; *) return 1 ;; esac; }
# lengths BACK: by lengths of frames.
lengths() {
	ask "$who" "ethtool -K eth0 tso off" || fail "the guest cuts no segments"
	for _mtu in $MTUS; do
		for _link in xenbr0 "$vif"; do ip link set "$_link" mtu "$_mtu"; done
		ask "$who" "ip link set eth0 mtu $_mtu" || fail "MTU $_mtu: $ANSWER"
		row "$1" "TCP from the guest, MTU $_mtu" rx tcp_from 4 $((MBYTES + 4))
	done
	for _link in xenbr0 "$vif"; do ip link set "$_link" mtu 1500; done
	ask "$who" "ip link set eth0 mtu 1500 && ethtool -K eth0 tso on" || fail "the guest cuts segments again: $ANSWER"
}
# rows BACK: all of these.
rows() {
	# The first of a kind has caches to fill.
	requests 50 || fail "$1: no answer to turns"
	! has from || for _bytes in 60 1514; do
		row "$1" "$_bytes B from the guest" rx from $((${OWN:-0} * 200)) $((FRAMES + ${OWN:-0} * 200)) $_bytes
		came
	done
	! has to || for _bytes in 60 1514; do
		row "$1" "$_bytes B to the guest" tx to 200 $((FRAMES + 200)) $_bytes
		came
	done
	echo rem_device_all > /proc/net/pktgen/kpktgend_0
	if has tcp; then
		row "$1" "TCP from the guest" rx tcp_from 4 $((MBYTES + 4))
		row "$1" "TCP to the guest" tx tcp_to 4 $((MBYTES + 4))
	fi
	! has lengths || lengths "$1"
	! has requests || { row "$1" "request and response" rx requests 50 $((TURNS + 50)); note "$1: $(cat /run/turns) ns a request and response"; }
	! has busy || { row "$1" "request and response, busy polling" rx busy 50 $((TURNS + 50)); note "$1: $(cat /run/turns) ns a request and response, busy polling"; }
}

# With --profile (xtask/src/rig/profile), on the console: the names of what dom0's kernel executes; where the program of our process is.
names() { [ -z "$PROFILE" ] || awk '$2 ~ /^[tTwW]$/ { print $1, $3, $4 }' /proc/kallsyms | gzip | base64 | sed 's/^/RIG names /'; }
# guest_names BY: of the modules of the guest that is measured, which has dom0's kernel.
guest_names() {
	[ -z "$PROFILE" ] || ask "$who" "awk '\$2 ~ /^[tTwW]\$/ && NF > 3 { print \$1, \$3, \$4 }' /proc/kallsyms | gzip | base64 | sed 's,^,RIG guest_names $1 ,'" || fail "$who says no names"
}
# module_names BY: of dom0's modules, once that of a back is loaded.
module_names() { [ -z "$PROFILE" ] || awk '$2 ~ /^[tTwW]$/ && NF > 3 { print $1, $3, $4 }' /proc/kallsyms | gzip | base64 | sed "s,^,RIG module_names $1 ,"; }
placed() { [ -z "$PROFILE" ] || echo "RIG placed $1 $(grep -m 1 ' r-xp .*/pregrant' "/proc/$BACK_PID/maps")"; }

# decided BACK: rows of frames to the guest, on which programs decide.
decided() {
	for _program in $PROGRAMS; do
		ask "$who" "xdp eth0 $_program > /tmp/xdp 2>&1 & echo \$! > /tmp/xdp.pid; within 10 grep attached /tmp/xdp" || fail "$_program: not attached"
		for _bytes in 60 1514; do
			row "$1" "$_bytes B to the guest, XDP $_program" tx to 200 $((FRAMES + 200)) $_bytes
			came
		done
		echo rem_device_all > /proc/net/pktgen/kpktgend_0
		if [ "$_program" = pass ] && has tcp; then
			row "$1" "TCP from the guest, XDP pass" rx tcp_from 4 $((MBYTES + 4))
			row "$1" "TCP to the guest, XDP pass" tx tcp_to 4 $((MBYTES + 4))
		fi
		ask "$who" 'kill $(cat /tmp/xdp.pid)'
	done
}

# taken NAME WAY [ARGUMENT...]: the rows of a Linux guest whose vif is taken from netback, and given back.
taken() {
	_name=$1 _way=$2; shift 2
	back --experiment tap-way="$_way" "$@" --take "$id.0" --give-back "$id.0"
	back_says "vif 0 of domain $id.*connected" || fail "$_name: not taken up"
	placed "$_name"
	rows "$_name"
	end_back || fail "not given back"
	BACK_PID=
	sleep 1
}
mapped_frames() { pregrant top --prometheus - | awk 'index($1, "pregrant_queue_gref_mapped_frames_total{") == 1 { sum += $2 } END { print sum + 0 }'; }
# fronted PATH WAY: those of a guest with `pregrant front`.
fronted() {
	[ -z "$(xl domid one 2>/dev/null)" ] || { ask one end; over one; }
	no_netback
	back --experiment tap-way="$2"
	front_guest two 3 "$clock"
	front two 3 --path "$1"
	# Gref mappings are there later than the connection is.
	back_says "connected, .*TX $(echo "$1" | sed s/gref-mapping/copy/)" || { cat $BACK_LOG; fail "no $1"; }
	meet two 3
	placed "front/$1/$2"
	rows "front/$1/$2"
	[ "$1" != gref-mapping ] || [ "$(mapped_frames)" -ge $((2 * FRAMES)) ] || fail "only $(mapped_frames) frames by gref mappings"
	end_front two || fail "the front does not end"
	ask two end
	over two
	end_back || fail "the back ends with $?"
	BACK_PID=
}

# no_kernel_back: the vif goes a moment after its guest, when its pages are unmapped.
no_kernel_back() {
	within 20 [ ! -e "/sys/class/net/$vif" ] || fail "$vif stays"
	within 10 rmmod pregrant_back || fail "the module of a back stays"
}
# on_kernel: the rows of a Linux guest on it.
on_kernel() {
	[ -z "$(xl domid one 2>/dev/null)" ] || { ask one end; over one; }
	kernel_back
	linux_guest one 2 "$clock"
	meet one 2
	guest_names kernel
	module_names kernel
	rows kernel
	ask one end
	over one
	no_kernel_back
	netback
}

# moduled PATH[+PARAMETER...] WAY: those of a guest with the kernel module.
moduled() {
	[ -z "$(xl domid one 2>/dev/null)" ] || { ask one end; over one; }
	case $2 in
	netback) netback ;;
	kernel) kernel_back ;;
	*)
		no_netback
		back --experiment tap-way="$2"
		;;
	esac
	front_guest two 3 "$clock"
	ask two "insmod /rig/pregrant.ko path=$(echo $1 | tr + " ") && addresses 3 && within 20 grep -q 1 /sys/class/net/eth0/carrier" || fail "the module does not connect"
	meet two 3
	case $2 in
	netback) ;;
	kernel) module_names "module/$1/$2" ;;
	*) placed "module/$1/$2" ;;
	esac
	guest_names "module/$1/$2"
	rows "module/$1/$2"
	decided "module/$1/$2"
	ask two "echo vif-0 > /sys/bus/xen/drivers/pregrant/unbind && rmmod pregrant" || fail "the module stays"
	ask two end
	over two
	case $2 in
	netback) ;;
	kernel) no_kernel_back ;;
	*) end_back || fail "the back ends with $?" ;;
	esac
	BACK_PID=
}

note "what | by | frames | bytes a frame | dom0's instructions a frame | a byte | the guest's a frame | grant operations | system calls for these and events | events | reads and writes | sleeps"
BACK_PID=
case $WAYS in
front/*|module/*|kernel*) ;;
*)
	netback
	linux_guest one 2 "$clock"
	meet one 2
	;;
esac
names
for way in $WAYS; do
	case $way in
	netback)
		[ -n "$(xl domid one 2>/dev/null)" ] || { netback; linux_guest one 2 "$clock"; meet one 2; }
		guest_names netback
		rows netback
		;;
	kernel) on_kernel ;;
	front/*) fronted $(echo "${way#front/}" | tr / " ") ;;
	module/*) moduled $(echo "${way#module/}" | tr / " ") ;;
	map/*) taken "$way" "${way#map/}" --path map ;;
	*) taken "$way" "$way" ;;
	esac
done
[ -z "$(xl domid one 2>/dev/null)" ] || { ask one end; over one; }
ip link del stub0
