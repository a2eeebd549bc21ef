# shows: under iperf3 a vif is unbound from the module of linux/back and bound again, and the module is unloaded and loaded: the one TCP connection of a guest with linux/'s module lives, xen-netfront beside it does not see its vif go; loaded a hundred times under traffic, dom0's memory, its channels and Xen's grants are as before
# back: module
# seconds: 400
# module: yes
. /rig/module.sh
BACK=module
bridge
BINDS=${BINDS:-10} RELOADS=${RELOADS:-10} LOADS=${LOADS:-100}
now() { cut -d' ' -f1 /proc/uptime; }
before=$(tables)
back
front_guest one 2
id=$(xl domid one)
module auto
linux_guest two 3
other=vif-$(xl domid two)-0
ask two "cat /sys/class/net/eth0/carrier_changes"
_carrier=$ANSWER
# bound_again DEVICE: by the same module. Like any driver it waits for the script.
bound_again() {
	echo "$1" > $BACK_DRIVER/unbind || fail "$1 is not unbound"
	echo "$1" > $BACK_DRIVER/bind || fail "$1 is not bound"
	plugged "$1"
}
# goes_on WHAT: the connection lives; how long it had no back, of which $_began is the begin, to _pauses.
goes_on() {
	within 20 grep -q 1 "/sys/class/net/vif$id.0/carrier" || fail "$1: not connected"
	_pauses="$_pauses $(echo "$(now) $_began" | awk '{ printf "%d", ($1 - $2) * 1000 }')"
	lives "vif$id.0" || fail "$1: the TCP connection is gone"
}
transfer
lives "vif$id.0" || fail "no traffic"
_pauses=
for _round in $(seq "$BINDS"); do
	_began=$(now)
	bound_again "vif-$id-0"
	goes_on "unbound and bound, $_round"
done
note "unbound and bound $BINDS times under traffic: one connection lives; connected again after$_pauses ms"
kernel_well
_pauses=
for _round in $(seq "$RELOADS"); do
	_began=$(now)
	end_back || fail "unloaded, $_round: the module stays"
	back
	goes_on "unloaded and loaded, $_round"
done
end_transfer
note "unloaded and loaded $RELOADS times under traffic: one connection lives; connected again after$_pauses ms"

pings 10.9.0.3 20 0.1 || fail "xen-netfront: $LOST of 20 pings lost"
bound_again $other
# What comes before its carrier is back is lost.
within 20 ping -q -c 1 -W 5 10.9.0.3 || fail "xen-netfront, its vif unbound and bound: no answer"
pings 10.9.0.3 20 0.1 || fail "xen-netfront, its vif unbound and bound: $LOST of 20 pings lost"
ask two "cat /sys/class/net/eth0/carrier_changes"
[ "$ANSWER" = "$_carrier" ] || fail "the carrier of xen-netfront changed $_carrier times, after all that $ANSWER"
note "xen-netfront, whose module went $RELOADS times and whose vif was unbound once, lost none of 40 pings since; its carrier changed $_carrier times, as before"
ask two end
over two || fail "the second guest does not end"

# left: what dom0 and Xen have, the module being unloaded: memory in KiB, and counts.
left() {
	echo 3 > /proc/sys/vm/drop_caches
	sleep 1
	MEMORY=$(awk '/^(MemFree|SUnreclaim|VmallocUsed|Percpu):/ { printf "%s%s ", $1, $2 }' /proc/meminfo)
	FREE=$(awk '/^MemFree/ { print $2 }' /proc/meminfo)
	HAS="$(tables), $(lsevtchn 0 | grep -c .) channels"
}
ask one "(while :; do datagrams 10.9.0.1 200 1000; sleep 0.05; done) > /dev/null 2>&1 & echo \$! > /tmp/stream"
ping -q -i 0.05 10.9.0.2 > /dev/null 2>&1 &
_ping=$!
# loads N: so many, each of which serves the guest before it goes.
loads() {
	for _load in $(seq "$1"); do
		back
		within 20 eval '[ "$(count vif'"$id"'.0 rx packets)" -gt 3 ] && [ "$(count vif'"$id"'.0 tx packets)" -gt 3 ]' || fail "load $_load: no traffic"
		end_back || fail "load $_load: the module stays"
	done
}
end_back || fail "the module stays"
# The first ones fill caches.
loads 5
left
_had=$HAS _free=$FREE
say "before: $MEMORY$HAS"
_began=$(now)
loads "$LOADS"
_took=$(echo "$(now) $_began" | awk '{ printf "%d", $1 - $2 }')
left
say "after: $MEMORY$HAS"
[ "$_had" = "$HAS" ] || fail "before $LOADS loads: $_had; after: $HAS"
_lost=$((_free - FREE))
[ $_lost -lt 2048 ] || fail "after $LOADS loads $_lost KiB of memory are gone: $MEMORY"
note "loaded and unloaded $LOADS times under traffic in $_took s: $HAS, as before; $_lost KiB less memory free"
kill $_ping
back
within 20 ping -q -c 1 -W 5 10.9.0.2 || fail "the guest does not answer after all"
ask one 'kill $(cat /tmp/stream)'
unload
ask one end
over one || fail "the guest does not end"
within 10 [ ! -e "/sys/class/net/vif$id.0" ] || fail "vif$id.0 stays"
end_back || fail "the module stays"
after=$(tables)
[ "$before" = "$after" ] || fail "grants before: $before; after: $after"
