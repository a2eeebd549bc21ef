# shows: what a frame costs dom0 in instructions, by Linux's netback and by `pregrant back` with each way to its tap: 60 and 1500 bytes, TCP, request and response
# icount: yes
# workers: 1
# seconds: 600
bridge
netback
modprobe -a pktgen vhost_net || fail "dom0 has no pktgen, or no vhost_net"
linux_guest one 2
id=$(xl domid one) vif=vif$(xl domid one).0
ask one "iperf3 -s -D" || fail "iperf3 does not serve"
ask one "modprobe pktgen" || fail "the guest has no pktgen"
FRAMES=${FRAMES:-6000} MBYTES=${MBYTES:-12} PINGS=${PINGS:-100}
mac=$(cat /sys/class/net/xenbr0/address) guest_mac=00:16:3e:00:00:02
mkfifo /run/never

# rest SECONDS: without a process, which would be counted.
rest() { read -t "$1" _nothing <> /run/never || true; }
# from SIZE: that many bytes in frames of the guest's pktgen, which is told before the counting begins. to SIZE: of dom0's, straight into
# the vif, 200 and a pause, so that none finds its queue full.
from_soon() { ask one "(sleep 2; SIZE=$1 small_frames $FRAMES $mac) > /tmp/frames 2>&1 &"; }
from() { rest 5; }
to_soon() {
	_pktgen=/proc/net/pktgen
	echo rem_device_all > $_pktgen/kpktgend_0
	echo "add_device $vif" > $_pktgen/kpktgend_0 || return 1
	for _line in "count 200" "pkt_size $1" "delay 0" "dst 10.9.0.2" "dst_mac $guest_mac" "clone_skb 0"; do echo "$_line" > "$_pktgen/$vif"; done
}
to() {
	_left=$FRAMES
	while [ $_left -gt 0 ]; do
		echo start > /proc/net/pktgen/pgctrl
		_left=$((_left - 200))
	done
}
tcp_from() { iperf3 -c 10.9.0.2 -R -n "${MBYTES}M" > /run/iperf; }
tcp_to() { iperf3 -c 10.9.0.2 -n "${MBYTES}M" > /run/iperf; }
both_ways() { ping -q -c "$PINGS" -i 0.01 -W 5 10.9.0.2 > /run/ping; }

# told NAME: a counter of our process, 0 where there is none. switches: how often the threads that serve the vif went to sleep.
told() { [ -n "$BACK_PID" ] && pregrant top --prometheus - | awk -v name="pregrant_back_$1" 'index($1, name) == 1 { sum += $2 } END { print sum + 0 }' || echo 0; }
switches() {
	for _task in /proc/"${BACK_PID:-none}"/task/* /proc/[0-9]*; do
		case "$(cat "$_task/comm" 2>/dev/null)" in
		worker*|vhost-*|vif"$id".*) awk '/^voluntary_ctxt/ { print $2 }' "$_task/status" ;;
		esac
	done | awk '{ sum += $1 } END { print sum + 0 }'
}
# calls: reads and writes that our process has made, those of events and of a worker that is woken among them; io_uring's are not.
calls() { [ -n "$BACK_PID" ] && awk '/^sysc[rw]/ { sum += $2 } END { print sum + 0 }' "/proc/$BACK_PID/io" || echo 0; }
# row BACK WHAT DIR COMMAND...: how much of everything a frame of the vif took. DIR: rx is what the guest sends.
row() {
	_back=$1 _what=$2 _rows=$3; shift 3
	_frames=$(count "$vif" "$_rows" packets) _bytes=$(count "$vif" "$_rows" bytes)
	_before="$(told grant_operations) $(told system_calls) $(told notifications) $(calls) $(switches)"
	_began=$(domain_time 0 "$id") || fail "domain_time"
	"$@" || fail "$_back, $_what: $ANSWER"
	_ended=$(domain_time 0 "$id")
	_after="$(told grant_operations) $(told system_calls) $(told notifications) $(calls) $(switches)"
	_frames=$(($(count "$vif" "$_rows" packets) - _frames)) _bytes=$(($(count "$vif" "$_rows" bytes) - _bytes))
	[ $_frames -gt 0 ] || fail "$_back, $_what: no frame"
	echo $_began $_ended $_before $_after | awk -v back="$_back" -v what="$_what" -v frames="$_frames" -v bytes="$_bytes" -v idle="${IDLE:-0}" '{
		dom0 = $3 - $1 - idle
		printf "%s | %s | %d | %.0f | %.0f | %.2f | %.0f | %.2f | %.2f | %.2f | %.2f | %.3f\n", what, back, frames, bytes / frames, dom0 / frames, dom0 / bytes,
			($4 - $2) / frames, ($10 - $5) / frames, ($11 - $6) / frames, ($12 - $7) / frames, ($13 - $8) / frames, ($14 - $9) / frames }' >> /run/rows
	note "$(tail -n 1 /run/rows)"
}
# rows BACK: all of them.
rows() {
	# The first of a kind has caches to fill.
	both_ways
	_a=$(domain_time 0); from; _b=$(domain_time 0)
	IDLE=$((_b - _a))
	say "$1: five seconds of rest, and looking at the clock, are $IDLE instructions; Xen's seconds for dom0: $(dom0_seconds), $(domain_time 0) ns"
	for _size in 60 1514; do
		from_soon $_size
		row "$1" "$_size B from the guest" rx from
		[ $_frames -ge "$FRAMES" ] || fail "$1: of $FRAMES frames of $_size bytes $_frames came"
	done
	IDLE=0
	for _size in 60 1514; do
		to_soon $_size
		row "$1" "$_size B to the guest" tx to
	done
	echo rem_device_all > /proc/net/pktgen/kpktgend_0
	row "$1" "TCP from the guest" rx tcp_from
	row "$1" "TCP to the guest" tx tcp_to
	row "$1" "request and response" rx both_ways
}

note "what | by | frames | bytes a frame | dom0's instructions a frame | a byte | the guest's a frame | grant operations | system calls for these and events | events | reads and writes | sleeps"
BACK_PID=
rows netback
for way in ${WAYS:-burst vhost}; do
	back --tap-way $way --take "$id.0" --give-back "$id.0"
	back_says "vif 0 of domain $id.*connected" || fail "$way: not taken up"
	rows "$way"
	end_back || fail "not given back"
	BACK_PID=
	sleep 1
done
ask one end
over one
