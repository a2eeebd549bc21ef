# shows: under iperf3 netback closes and `pregrant back` is killed, again and again: the kernel module's one TCP connection lives, beside xen-netfront in another guest; loaded and unloaded under traffic, the guest's memory, its grants and its event channels are as before
# seconds: 300
# module: yes
. /rig/module.sh
bridge
CLOSES=${CLOSES:-5} KILLS=${KILLS:-10} LOADS=${LOADS:-100}
now() { cut -d' ' -f1 /proc/uptime; }

netback
front_guest one 2
id=$(xl domid one)
module auto
linux_guest two 3
beside=$(xl domid two)
transfer
lives "vif$id.0" || fail "no traffic"
_without=
for _round in $(seq "$CLOSES"); do
	sleep 2
	_closed=$(now)
	closes_netback "$id"
	[ "$_round" -gt 1 ] || closes_netback "$beside"
	within 10 eval '[ "$(xenstore-read /local/domain/0/backend/vif/$id/0/state)" = 4 ] && grep -q 1 "/sys/class/net/vif$id.0/carrier"' || fail "netback closes, $_round: not connected"
	_without="$_without $(echo "$(now) $_closed" | awk '{ printf "%d", ($1 - $2) * 1000 }')"
	lives "vif$id.0" || fail "netback closes, $_round: the TCP connection is gone"
done
end_transfer
netfront="answers"
ping -q -c 3 -W 3 10.9.0.3 > /run/ping || netfront="does not answer"
note "netback closes $CLOSES times: one connection lives, connected again after$_without ms; the guest with xen-netfront, whose vif closed once, $netfront"
unload
for _guest in one two; do ask $_guest end; done
over one || fail "the guest does not end"
over two || fail "the other guest does not end"
no_netback

back
front_guest one 2
id=$(xl domid one)
module auto
linux_guest two 3
beside=$(xl domid two)
ask two "iperf3 -s -D" || fail "iperf3 does not serve"
iperf3 -c 10.9.0.3 -t 3600 -i 0 > /run/iperf &
_beside=$!
transfer
lives "vif$id.0" || fail "no traffic"
for _round in $(seq "$KILLS"); do
	sleep 1
	kill -KILL $BACK_PID; wait $BACK_PID
	back
	lives "vif$id.0" || fail "killed, $_round: the TCP connection is gone"
	kill -0 $_beside || fail "killed, $_round: the connection of xen-netfront is gone"
done
_sent=$(count "vif$beside.0" tx bytes)
within 30 eval '[ $(count vif'"$beside"'.0 tx bytes) -gt $((_sent + 1000000)) ]' || fail "xen-netfront's connection stands still"
kill -INT $_beside
ask one "ethtool -S eth0 | grep ' connects:'"
note "pregrant back is killed $KILLS times: one connection lives, and xen-netfront's beside it; $ANSWER"
end_transfer
ask two end
over two || fail "the other guest does not end"
unload

# left: pages, and what dom0 and Xen have of the guest.
left() {
	ask one "echo 3 > /proc/sys/vm/drop_caches; awk '/^MemFree/ { print \$2 }' /proc/meminfo"
	FREE=$ANSWER
	HAS="$(tables), $(lsevtchn "$id" | grep -c .) channels"
}
# The first two have caches to fill.
for _load in 1 2; do module auto; unload; done
left
before=$HAS free=$FREE
ping -q -i 0.05 10.9.0.2 > /dev/null 2>&1 &
_ping=$!
ask one "(while :; do datagrams 10.9.0.1 200 1000; sleep 0.05; done) > /dev/null 2>&1 & echo \$! > /tmp/stream"
_began=$(now)
for _load in $(seq "$LOADS"); do
	module auto
	within 10 eval '[ "$(ask one "cat /sys/class/net/eth0/statistics/rx_packets"; echo "$ANSWER")" -gt 3 ]' || fail "load $_load: no traffic"
	unload
done
kill $_ping
ask one 'kill $(cat /tmp/stream)'
left
[ "$before" = "$HAS" ] || fail "before $LOADS loads: $before; after: $HAS"
_lost=$((free - FREE))
[ $_lost -lt 2048 ] || fail "after $LOADS loads $_lost KiB of memory are gone"
note "loaded and unloaded $LOADS times under traffic in $(echo "$(now) $_began" | awk '{ printf "%d", $1 - $2 }') s: $HAS, as before; $_lost KiB less memory free"
! grep -E 'ERROR|panicked' $BACK_LOG || fail "the back complains"
ask one end
over one || fail "the guest does not end"
end_back || fail "the back ends with $?"
