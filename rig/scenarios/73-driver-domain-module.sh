# shows: the kernel module of linux/back in a PVH guest as driver domain, where memory is translated, with that of linux/ in its guest, by each path: pings, numbered frames and TCP both ways, 2 queues with rings of 16 pages; nothing stays mapped
# icount: yes
# module: yes
# seconds: 400
# unproven: not played yet
FRAMES=${FRAMES:-2000}
PATHS=$(echo "${PATHS:-copy:staging:gref-mapping:persistent}" | tr : " ")
guest driver "type=${DRIVER:-pvh}" job=orders memory=256 config="driver_domain = 1" || fail "xl create driver"
up driver || fail "the driver domain does not come up"
ask driver "modprobe bridge; bridge; insmod /rig/pregrant_back.ko" || { ask driver "dmesg | tail -n 20"; fail "the module does not load: $ANSWER"; }
guest two job=orders vcpus=2 memory=256 more=rig.netfront=no "vif='mac=00:16:3e:00:00:03,bridge=xenbr0,backend=driver'" || fail "xl create two"
up two || fail "two does not come up"
two=$(xl domid two)
vif=vif$two.0
# No toolstack runs its script there.
ask driver "within 20 [ -e /sys/class/net/$vif ] && ip link set $vif up && brctl addif xenbr0 $vif && xenstore-write backend/vif/$two/0/hotplug-status connected" || fail "no $vif: $ANSWER"
ask driver "pregrant-lab frames --serve > /dev/null 2>&1 & echo"

# connected PATH [PARAMETER...]: by this path. gone PATH: unloaded.
connected() {
	ask two "insmod /rig/pregrant.ko path=$* && addresses 3 && within 20 grep -q 1 /sys/class/net/eth0/carrier" || { ask two "dmesg | tail -n 20"; ask driver "dmesg | tail -n 20"; fail "$1: not connected"; }
	ask driver "within 20 eval 'ethtool -i $vif | grep -q \"version: $1\$\"'" || { ask driver "ethtool -i $vif"; fail "$1: not by this path"; }
}
gone() {
	ask two "echo vif-0 > /sys/bus/xen/drivers/pregrant/unbind && rmmod pregrant" || fail "$1: the guest's module stays"
	ask driver "within 10 eval 'ethtool -S $vif | grep -q \"guest_pages: 0\$\"'" || { ask driver "ethtool -S $vif | head -n 10"; fail "$1: pages stay mapped"; }
}
# numbered PATH: frames both ways.
numbered() {
	ASK_SECONDS=240 ask two "pregrant-lab frames --to 10.9.0.1 --count $FRAMES" || fail "$1: frames from the guest: $ANSWER"
	ask two "pregrant-lab frames --serve > /dev/null 2>&1 & echo \$! > /tmp/serve"
	ASK_SECONDS=240 ask driver "pregrant-lab frames --to 10.9.0.3 --count $FRAMES" || fail "$1: frames to the guest: $ANSWER"
	ask two 'kill $(cat /tmp/serve)'
}
# sum PATTERN: of the vif's counters.
sum() { ask driver "ethtool -S $vif | awk '/$1:/ { sum += \$2 } END { print sum + 0 }'" && echo "$ANSWER"; }
for path in $PATHS; do
	connected "$path" queues=1
	ask driver "pings 10.9.0.3 20 0.1 || { echo \$LOST; false; }" || fail "$path: $ANSWER of 20 pings lost"
	_by=$(sum "by_$(echo "$path" | tr - _)") _ops=$(sum 'grant_(copies|maps)')
	numbered "$path"
	_by=$(($(sum "by_$(echo "$path" | tr - _)") - _by)) _ops=$(($(sum 'grant_(copies|maps)') - _ops))
	[ $((_by * 10)) -ge $((FRAMES * 16)) ] || fail "$path: of $((2 * FRAMES)) frames $_by by this path"
	case $path in staging|gref-mapping) [ $_ops = 0 ] || fail "$path: $_ops grant operations" ;; esac
	ask two "iperf3 -s -D" || fail "iperf3 does not serve"
	for way in to from; do
		ask driver "iperf3 -J -c 10.9.0.3 -t 2 $([ $way = from ] && echo -R) > /tmp/iperf.json; mbits /tmp/iperf.json" || fail "$path: iperf3 $way: $ANSWER"
		[ "${ANSWER:-0}" -gt 0 ] || fail "$path: iperf3 $way the guest: $ANSWER"
	done
	ask two "killall iperf3"
	note "$path: of $((2 * FRAMES)) frames both ways $_by by this path, $_ops grant operations; $(sum guest_pages) pages are mapped"
	gone "$path"
	connected "$path" queues=2 pages=16
	numbered "$path, 2 queues"
	note "$path, 2 queues, rings of 16 pages: $((2 * FRAMES)) frames; $(sum guest_pages) pages are mapped"
	gone "$path, 2 queues"
done
ask driver "echo vif-$two-0 > /sys/bus/xen-backend/drivers/pregrant_back/unbind; rmmod pregrant_back" || fail "the module stays: $ANSWER"
ask driver "! dmesg | grep -E 'WARNING|BUG|Oops|unable to handle|stay mapped|could not be unmapped'" || fail "the driver domain's kernel complains: $ANSWER"
ask two end
over two || fail "two does not end"
ask driver end
over driver || fail "the driver domain does not end"
