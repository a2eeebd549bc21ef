# shows: the kernel module of linux/ in a guest: on Linux's netback and on `pregrant back` by each of its paths (as the back counts frames), ping, IPv6, TCP and numbered frames; unbound and bound live with xen-netfront; TCP lives over a back that closes three times; after an unload no grant is left
# seconds: 300
# module: yes
bridge
frames_serve
# trial TEXT: what travels with this driver and back.
trial() {
	within 20 ping -q -c 1 -W 5 10.9.0.2 || fail "$1: no answer"
	pings 10.9.0.2 10 0.1 || fail "$1: of 10 pings $LOST lost"
	ping -q -c 3 fd09::2 > /run/ping || fail "$1: no IPv6"
	ask one "iperf3 -s -D" || fail "iperf3 does not serve"
	_down=$(iperf 10.9.0.2) || fail "$1: iperf3 to the guest"
	_up=$(iperf 10.9.0.2 -R) || fail "$1: iperf3 from the guest"
	ask one "killall iperf3"
	frames one 10.9.0.1 --count "$FRAMES"
	note "$1: TCP to the guest $_down, from it $_up Mbit/s; $ANSWER"
}
# module PATH [PARAMETER...]: loads it, which takes the device.
module() {
	ask one "insmod /rig/pregrant.ko path=$1 && addresses 2" || { ask one dmesg; fail "the module does not load"; }
	ask one "within 20 grep -q 1 /sys/class/net/eth0/carrier" || { ask one "dmesg | tail -n 40"; fail "$1: not connected"; }
}
# by PATH rx|tx: frames that went so, as the back counts them; by copy those that no other path has.
by() {
	_dir="dir=\"$2\""
	_staged=$(counted queue_staged_frames "$_dir") _mapped=$(counted queue_gref_mapped_frames "$_dir")
	_persistent=$(counted queue_persistent_frames "$_dir")
	case $1 in
	staging) echo $_staged ;;
	gref-mapping) echo $_mapped ;;
	persistent) echo $_persistent ;;
	copy) echo $(($(counted queue_frames "$_dir") - _staged - _mapped - _persistent)) ;;
	esac
}
# carried PATH: of frames each way nine of ten go by it.
carried() {
	_tx=$(by "$1" tx) _rx=$(by "$1" rx) _all_tx=$(counted queue_frames 'dir="tx"') _all_rx=$(counted queue_frames 'dir="rx"')
	frames one 10.9.0.1 --count 2000
	pings 10.9.0.2 100 0.01 || fail "$1: of 100 pings $LOST lost"
	_all_tx=$(($(counted queue_frames 'dir="tx"') - _all_tx)) _all_rx=$(($(counted queue_frames 'dir="rx"') - _all_rx))
	_tx=$(($(by "$1" tx) - _tx)) _rx=$(($(by "$1" rx) - _rx))
	[ $_all_tx -ge 2000 ] && [ $_all_rx -ge 100 ] || fail "$1: the back counts $_all_tx frames from the guest, $_all_rx to it"
	[ $((_tx * 10)) -ge $((_all_tx * 9)) ] || fail "$1: of $_all_tx frames from the guest $_tx by this path"
	[ $((_rx * 10)) -ge $((_all_rx * 9)) ] || fail "$1: of $_all_rx frames to the guest $_rx by this path"
	note "$1: of $_all_tx frames from the guest $_tx, of $_all_rx to it $_rx by this path"
}
# moved FROM TO: the vif, live, to another driver.
moved() {
	ask one "echo vif-0 > /sys/bus/xen/drivers/$1/unbind && echo vif-0 > /sys/bus/xen/drivers/$2/bind" || { ask one "dmesg | tail -n 20"; fail "not moved from $1 to $2"; }
	ask one "within 20 [ -e /sys/class/net/eth0 ] && addresses 2" || fail "$2 has no interface"
	ask one "within 20 grep -q 1 /sys/class/net/eth0/carrier" || { ask one "dmesg | tail -n 40"; fail "$2: not connected"; }
}
# well: the guest's kernel has said nothing bad, and no frame asked for memory where nobody may sleep.
well() {
	ask one "! dmesg | grep -E 'WARNING|BUG|Oops|Call Trace|does not let go|broke the protocol'" || fail "the guest's kernel: $ANSWER"
	ask one "[ \"\$(cat /proc/sys/kernel/tainted)\" = 12288 ]" || fail "the guest's kernel is tainted otherwise"
}
# unload: every grant of the module's is ended.
unload() {
	ask one "ethtool -S eth0 | grep -q 'atomic_allocations: 0$'" || fail "memory was asked for in atomic context"
	ask one "echo vif-0 > /sys/bus/xen/drivers/pregrant/unbind && rmmod pregrant" || { ask one "dmesg | tail -n 30"; fail "the module stays"; }
	well
}
FRAMES=${FRAMES:-20000}
CLOSES=${CLOSES:-3}
LOADS=${LOADS:-4}

netback
front_guest one 2
id=$(xl domid one)
module auto
trial "module on netback"
ask one "ethtool -i eth0; ethtool -l eth0; ethtool -g eth0; ethtool -S eth0" || fail "ethtool: $ANSWER"
ask one "modprobe xen-netfront" || fail "no xen-netfront"
moved pregrant vif
trial "xen-netfront on netback, the vif moved live"
moved vif pregrant
trial "module on netback, the vif moved back"

# The back closes: the interface stays, and so does the connection.
ask one "iperf3 -s -D" || fail "iperf3 does not serve"
timeout 60 iperf3 -J -c 10.9.0.2 -t $((CLOSES * 6 + 4)) > /run/live.json &
_iperf=$!
_lived=0
for _round in $(seq "$CLOSES"); do
	sleep 3
	xenstore-write "/local/domain/0/backend/vif/$id/0/state" 5
	sleep 2
	within 10 ping -q -c 1 -W 2 10.9.0.2 && _lived=$((_lived + 1))
done
wait $_iperf || fail "netback closes: iperf3's connection is gone"
[ "$_lived" = "$CLOSES" ] || fail "netback closes: the guest answers after $_lived of $CLOSES"
note "netback closes $CLOSES times: one connection lives, $(mbits /run/live.json) Mbit/s"
ask one "killall iperf3"
unload
ask one end
over one || fail "the guest does not end"
no_netback

back
front_guest one 2 vcpus=2
id=$(xl domid one)
for path in copy staging gref-mapping persistent; do
	module "$path queues=1"
	trial "module on pregrant back, $path"
	carried "$path"
	unload
done
# Loaded and unloaded under pings: the guest's grants are then as before.
before=$(tables)
ping -q -i 0.05 10.9.0.2 > /dev/null 2>&1 &
_ping=$!
for _load in $(seq "$LOADS"); do
	module auto
	unload
done
kill $_ping
after=$(tables)
[ "$before" = "$after" ] || fail "grants before $LOADS loads: $before; after: $after"
note "loaded and unloaded $LOADS times: $after"
# A queue for each processor; then one, for which it connects again; long frames; both ends in the same moment.
module auto
combined() { ask one "ethtool -l eth0 | tail -n 1 | grep -q 'Combined:[[:space:]]*$1$'" || fail "not $1 queues"; }
combined 2
frames one 10.9.0.1 --count 2000
ask one "ethtool -L eth0 combined 1" || fail "ethtool -L: $ANSWER"
ask one "within 20 eval 'ethtool -S eth0 | grep -q \"connects: 2\" && grep -q 1 /sys/class/net/eth0/carrier'" || fail "it does not connect again"
combined 1
for _link in xenbr0 "vif$id.0"; do ip link set "$_link" mtu 9000; done
ask one "ip link set eth0 mtu 9000 && ping -q -c 3 -s 8900 10.9.0.1" || fail "MTU 9000: $ANSWER"
ping -q -c 3 -s 8900 10.9.0.2 > /run/ping || fail "MTU 9000, to the guest"
frames one 10.9.0.1 --count 2000
note "two queues, one by ethtool -L, frames of 8942 bytes"
ask one "iperf3 -s -D" || fail "iperf3 does not serve"
timeout 60 iperf3 -J -c 10.9.0.2 -t $((CLOSES * 6 + 4)) > /run/live.json &
_iperf=$!
_lived=0
for _round in $(seq "$CLOSES"); do
	sleep 3
	end_back || say "the back ends with $?"
	sleep 1
	back
	within 10 ping -q -c 1 -W 2 10.9.0.2 && _lived=$((_lived + 1))
done
wait $_iperf || fail "pregrant back is restarted: iperf3's connection is gone"
[ "$_lived" = "$CLOSES" ] || fail "pregrant back is restarted: the guest answers after $_lived of $CLOSES"
for _round in $(seq "$CLOSES"); do
	xenstore-write "/local/domain/0/backend/vif/$id/0/state" 5
	sleep 2
	within 10 ping -q -c 1 -W 2 10.9.0.2 || fail "pregrant back's vif closes: no answer"
done
note "pregrant back ends and is started $CLOSES times: one connection lives, $(mbits /run/live.json) Mbit/s"
ask one "killall iperf3"
unload
! grep -E 'ERROR|panicked' $BACK_LOG || fail "the back complains"
ask one end
over one || fail "the guest does not end"
end_back || fail "the back ends with $?"
