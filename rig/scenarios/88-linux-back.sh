# shows: the kernel module of linux/back in dom0, with an unmodified Linux guest: ping, IPv6, iperf3 with GSO both ways, numbered frames, MTU 9000; guests destroyed under traffic and made again, a guest closed and connected again, a vif closed on demand, the module unloaded and loaded under a guest: nothing stays mapped, dom0's kernel does not complain
# back: module
# seconds: 400
# module: yes
# ci: yes
bridge
frames_serve
FRAMES=${FRAMES:-20000} ROUNDS=${ROUNDS:-2}
GSO=1600
# has VIF WORDS: a counter of the module is not 0.
has() { ethtool -S "$1" | grep -E "$2: [1-9]" > /dev/null || { ethtool -S "$1"; fail "$1 has no $2"; }; }
# flows VIF DIR: more than 1 MB goes through it in a second. DIR: tx to the guest, rx from it.
flows() {
	_before=$(count "$1" "$2" bytes) && sleep 1 && _flow=$(($(count "$1" "$2" bytes) - _before)) && [ "$_flow" -gt 1000000 ]
}
# serves_tcp: guest one has an iperf3 that waits for clients, of port 5201, and none that still serves one who went.
serves_tcp() {
	ask one "killall -q iperf3; sleep 1; iperf3 -s -D && within 20 grep -q ':1451 0*:0000 0A' /proc/net/tcp6" || fail "iperf3 does not serve: $ANSWER"
}
dmesg -c > /dev/null
before=$(tables)
kernel_back
# Not `vif`: `guest` sets that.
linux_guest one 2
id=$(xl domid one) own=vif$(xl domid one).0
grep -q fe:ff:ff:ff:ff:ff "/sys/class/net/$own/address" || fail "$own has another address"
ethtool -i "$own" | grep -q 'driver: pregrant_back' || fail "$own is another driver's"
# As udev needs it, where a toolstack leaves its scripts to that.
for variable in "vif=$own" "script=/rig/vif-script" "XENBUS_PATH=backend/vif/$id/0"; do
	grep -qxF "$variable" "/sys/bus/xen-backend/devices/vif-$id-0/uevent" || { cat "/sys/bus/xen-backend/devices/vif-$id-0/uevent"; fail "no $variable in the uevent"; }
done
pings 10.9.0.2 20 || fail "$LOST of 20 pings lost"
pings fd09::2 5 || fail "IPv6: $LOST of 5 pings lost"
ask one "ping -q -c 10 -i 0.2 10.9.0.1" || fail "the guest's pings: $ANSWER"
ask one "iperf3 -s -D" || fail "iperf3 does not serve"
for way in to from; do
	dir=$([ $way = to ] && echo tx || echo rx)
	bytes=$(count "$own" $dir bytes) frames=$(count "$own" $dir packets)
	rate=$(iperf 10.9.0.2 $([ $way = from ] && echo -R)) || fail "iperf3 $way the guest: $rate"
	size=$((($(count "$own" $dir bytes) - bytes) / ($(count "$own" $dir packets) - frames)))
	note "TCP $way the guest: $rate Mbit/s, $size bytes a frame"
	[ $size -gt $GSO ] || fail "no GSO $way the guest: $size bytes a frame at MTU 1500"
done
has "$own" tx0_grant_copies
has "$own" rx0_grant_copies
both_ways "numbered frames" "$FRAMES"
note "$_numbered"
for link in xenbr0 "$own"; do ip link set "$link" mtu 9000 || fail "no MTU of 9000 in dom0"; done
ask one "ip link set eth0 mtu 9000 && ping -q -c 5 -s 8900 10.9.0.1" || fail "MTU 9000: $ANSWER"
both_ways "MTU 9000" "$((FRAMES / 10))" --size 64..8972
note "MTU 9000: $_numbered"
# Its figures beside those of processes, of which none runs.
files=/sys/bus/xen-backend/drivers/pregrant_back/vif-$id-0/pregrant
cat "$files/vif" "$files/queue0"
pregrant top --prometheus - > /run/top.log || fail "pregrant top"
for series in "pregrant_vif_link{domain=\"0\",daemon=\"pregrant_back\",vif=\"$id.0\"} 1" "pregrant_module_lost_pages_total{domain=\"0\",daemon=\"pregrant_back\"} 0"; do
	grep -qxF "$series" /run/top.log || { cat /run/top.log; fail "pregrant top has no $series"; }
done
for dir in tx rx; do
	frames=$(sed -n "s/^pregrant_queue_frames_total{.*,vif=\"$id.0\",queue=\"0\",dir=\"$dir\",path=\"copy\"} //p" /run/top.log)
	[ "${frames:-0}" -ge "$FRAMES" ] || { cat /run/top.log; fail "pregrant top has ${frames:-no} frames of $dir"; }
done
pregrant top --once > /run/top.log && grep "^$id.0  *tx .*Connected .*copy" /run/top.log || { cat /run/top.log; fail "pregrant top has no line of the vif"; }
pregrant doctor > /run/doctor.log 2>&1
for line in "ok     the kernel's module pregrant_back is loaded (guest_pages=16384, queues=0) and has 1 vif(s), 1 of them connected" "ok     vif $id.0 (one): the kernel's pregrant_back serves it by the interface $own, back 4 (Connected), front 4 (Connected)"; do
	grep -F "$line" /run/doctor.log || { cat /run/doctor.log; fail "pregrant doctor does not say: $line"; }
done
for link in xenbr0 "$own"; do ip link set "$link" mtu 1500; done
kernel_well

# Another guest beside it, with two queues: frames from guest to guest, by the bridge.
linux_guest two 3 vcpus=2
other=vif$(xl domid two).0
ethtool -l "$other" | tail -n 1 | grep -q 'Combined:[[:space:]]*2$' || { ethtool -l "$other"; fail "the second guest has not two queues"; }
ask two "ping -q -c 20 -i 0.1 10.9.0.2" || fail "from guest to guest: $ANSWER"
ask two "iperf3 -c 10.9.0.2 -t 3 -P 8" || fail "TCP from guest to guest: $ANSWER"
ask two "iperf3 -c 10.9.0.2 -t 3 -P 8 -R" || fail "TCP from guest to guest, the other way: $ANSWER"
for queue in tx0 tx1 rx0 rx1; do has "$other" "${queue}_frames"; done

# A vif comes and goes; another is unbound under traffic.
xl network-attach two mac=00:16:3e:00:00:13 bridge=xenbr0 script=/rig/vif-script || fail "xl network-attach"
ask two "within 20 [ -e /sys/class/net/eth1 ] && ip link set eth1 up && within 20 grep -q 1 /sys/class/net/eth1/carrier" || fail "the second vif: $ANSWER"
xl network-detach two 1 || fail "xl network-detach"
within 10 [ ! -e "/sys/class/net/${other%.0}.1" ] || fail "detached, and ${other%.0}.1 stays"
ask two "iperf3 -c 10.9.0.2 -t 60 -P 2 > /dev/null 2>&1 & echo"
within 20 flows "$other" rx || fail "no traffic before the vif is unbound: $_flow bytes in a second"
note "unbound at $_flow bytes a second"
# One that is to go is closed, and not left to another back (87).
xenstore-write "/local/domain/0/backend/vif/$(xl domid two)/0/online" 0
echo "vif-$(xl domid two)-0" > /sys/bus/xen-backend/drivers/pregrant_back/unbind || fail "not unbound under traffic"
[ ! -e "/sys/class/net/$other" ] || fail "unbound, and $other stays"
state=$(xenstore-read "/local/domain/0/backend/vif/$(xl domid two)/0/state")
[ "$state" = 6 ] || fail "closed, and the back's state is $state"
ask two end
over two || fail "the second guest does not end"

# Guests that are destroyed under traffic.
serves_tcp
for round in $(seq "$ROUNDS"); do
	iperf3 -c 10.9.0.2 -t 60 > /run/iperf 2>&1 & _iperf=$!
	within 20 flows "$own" tx || { cat /run/iperf; fail "destroyed, $round: no traffic before: $_flow bytes in a second"; }
	note "destroyed at $_flow bytes a second"
	xl destroy one || fail "destroyed, $round"
	kill $_iperf
	over one || fail "destroyed, $round: the guest stays"
	within 10 [ ! -e "/sys/class/net/$own" ] || fail "destroyed, $round: $own stays"
	linux_guest one 2
	id=$(xl domid one) own=vif$(xl domid one).0
	serves_tcp
done
note "destroyed under traffic and made again $ROUNDS times"
kernel_well

# The guest's driver lets go, and comes back; the vif stays.
ask one "echo vif-0 > /sys/bus/xen/drivers/vif/unbind && sleep 1 && echo vif-0 > /sys/bus/xen/drivers/vif/bind && within 20 [ -e /sys/class/net/eth0 ] && addresses 2" || fail "the guest's driver: $ANSWER"
within 20 ping -q -c 1 -W 5 10.9.0.2 || fail "the guest's driver is back, and does not answer"
pings 10.9.0.2 10 || fail "after that $LOST of 10 pings lost"

# Unbound and unloaded, with the guest there; and loaded again.
echo "vif-$id-0" > /sys/bus/xen-backend/drivers/pregrant_back/unbind || fail "not unbound"
rmmod pregrant_back || fail "the module stays"
[ ! -e "/sys/class/net/$own" ] || fail "unloaded, and $own stays"
state=$(xenstore-read "/local/domain/0/backend/vif/$id/0/state")
[ "$state" = 4 ] || fail "unloaded, and the back's state is $state"
kernel_well
kernel_back
within 20 [ -e "/sys/class/net/$own" ] || fail "loaded again: no $own"
vif=$own XENBUS_PATH=/local/domain/0/backend/vif/$id/0 /rig/vif-script online
within 20 ping -q -c 1 -W 5 10.9.0.2 || fail "loaded again, and the guest does not answer"
pings 10.9.0.2 10 || fail "loaded again: $LOST of 10 pings lost"
both_ways "loaded again" "$((FRAMES / 10))"
ask one end
over one || fail "the guest does not end"
within 10 [ ! -e "/sys/class/net/$own" ] || fail "$own stays"
within 10 rmmod pregrant_back || fail "the module stays"
kernel_well
after=$(tables)
[ "$before" = "$after" ] || fail "grants before: $before; after: $after"
note "unloaded: $after"
