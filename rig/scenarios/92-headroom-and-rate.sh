# shows: an XDP program of Linux's own xen-netfront, which asks its back for headroom at work, takes it off, drops frames and sends them back; and a vif's `rate`, which is set and changed while the guest sends
# back: any
# seconds: 240
# module: yes
bridge
frames_serve
FRAMES=${FRAMES:-2000}
back
linux_guest one 2
id=$(xl domid one)
front=/local/domain/$id/device/vif/0
# attach PROGRAM: on the guest's eth0, in its driver. detach: away with it.
attach() {
	ask one "xdp eth0 $1 > /tmp/xdp 2>&1 & echo \$! > /tmp/xdp.pid; within 20 grep attached /tmp/xdp" || { ask one "cat /tmp/xdp"; fail "$1: not attached: $ANSWER"; }
}
detach() { ask one 'kill $(cat /tmp/xdp.pid); within 20 eval "! pidof xdp"' || fail "not detached: $ANSWER"; }
# asks BYTES: for headroom, and both ends are connected.
asks() {
	within 10 eval '[ "$(xenstore-read $front/xdp-headroom)" = '"$1"' ]' || fail "the guest asks for $(xenstore-read $front/xdp-headroom), and not $1"
	for _state in "$front/state" "/local/domain/0/backend/vif/$id/0/state"; do
		within 10 eval '[ "$(xenstore-read '"$_state"')" = 4 ]' || fail "headroom of $1: $_state is $(xenstore-read "$_state")"
	done
}
for program in pass tx filter; do
	attach $program
	asks 256
	pings 10.9.0.2 10 || fail "$program: $LOST of 10 pings lost"
	case $program in
	pass)
		both_ways "$program" "$FRAMES" --size 64..1472
		note "XDP pass: $_numbered"
		;;
	tx) # A stack would answer six of these to a port without a listener, by ICMP, and one a second.
		before=$(count "vif$id.0" rx packets)
		pregrant-lab frames --to 10.9.0.2 --port 5999 --count 200 --window 200 --patience 5 > /run/tx.log 2>&1 &
		sender=$!
		within 20 eval '[ $(($(count "vif$id.0" rx packets) - before)) -ge 150 ]' || fail "tx: of 200 datagrams $(($(count "vif$id.0" rx packets) - before)) came back"
		kill $sender 2>/dev/null
		wait $sender
		;;
	filter) ! ping -q -c 2 -W 2 fd09::2 > /run/ping || fail "filter: IPv6 goes through" ;;
	esac
	detach
	asks 0
done
pings fd09::2 5 || fail "without a program: IPv6: $LOST of 5 pings lost"
note "headroom of 256 asked for at work and taken back 3 times; none of 10 pings after each was lost"

# flow: what comes from the guest, bytes a second by dom0's clock, in FLOW.
ask one "iperf3 -s -D" || fail "iperf3 does not serve"
flow() {
	_began=$(cut -d ' ' -f 1 /proc/uptime) _bytes=$(count "vif$id.0" rx bytes)
	iperf 10.9.0.2 -R > /dev/null || fail "iperf3 from the guest"
	FLOW=$(echo "$_began $_bytes $(cut -d ' ' -f 1 /proc/uptime) $(count "vif$id.0" rx bytes)" | awk '{ printf "%.0f", ($4 - $2) / ($3 - $1) }')
}
rate=/local/domain/0/backend/vif/$id/0/rate
flow
free=$FLOW
# A half and a quarter of what this machine can: it would send more.
for part in 4 2; do
	limit=$((free / part))
	xenstore-write "$rate" "$((limit / 20)),50000"
	sleep 1
	flow
	note "without a rate $free bytes a second; with one of $limit: $FLOW"
	# A credit that was saved before.
	[ "$FLOW" -le $((limit + limit / 10)) ] || fail "of $limit bytes a second $FLOW came"
done
xenstore-rm "$rate"
sleep 1
flow
note "without a rate again: $FLOW"
[ "$FLOW" -gt $((limit + limit / 10)) ] || fail "the rate of $limit stays: $FLOW"
ask one end
over one || fail "the guest does not end"
back_well
end_back || fail "the back ends with $?"
