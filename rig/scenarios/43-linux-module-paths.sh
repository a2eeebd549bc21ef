# shows: the kernel module of linux/ on netback and on `pregrant back` by each of its paths (as the back counts frames), beside xen-netfront: numbered frames both ways, iperf3 both ways by IPv4 and IPv6 with its segments, MTU 1500, 9000 and 65517, 1 and 2 queues; a vif attached and detached live, thirteen that connect at once; netconsole, and multicast that the back leaves out
# back: any
# seconds: 900
# module: yes
. /rig/module.sh
bridge
frames_serve
FRAMES=${FRAMES:-20000} FRAMES_SECONDS=${FRAMES_SECONDS:-800}
# PATHS: on `pregrant back`, with colons between them.
PATHS=$(echo "${PATHS:-copy:staging:data-ring:gref-mapping:persistent}" | tr : " ")

# console: what the guest's kernel says comes here, while frames travel.
console() {
	_mac=$(cat /sys/class/net/xenbr0/address)
	datagrams 6666 > /run/console & _listener=$!
	ask one "modprobe netconsole netconsole=6665@10.9.0.2/eth0,6666@10.9.0.1/$_mac" || fail "no netconsole: $ANSWER"
	ask one "(seq 50 | while read n; do echo \"<1>rig says \$n\" > /dev/kmsg; done) > /dev/null & pregrant-lab frames --to 10.9.0.1 --count 2000" || fail "$1: netconsole: $ANSWER"
	within 10 eval '[ "$(grep -c "rig says" /run/console)" -ge 50 ]' || fail "$1: netconsole: of 50 lines $(grep -c 'rig says' /run/console)"
	ask one "rmmod netconsole" || fail "$1: netconsole stays"
	kill $_listener
	note "$1: netconsole: 50 lines while frames travel"
}
multicast_port

# on_netback: all that netback has of it.
on_netback() {
	netback
	front_guest one 2 vcpus=2 memory=256
	vif=vif$(xl domid one).0
	module auto queues=1
	trial "module on netback"
	pieces "module on netback" auto
	says "module on netback" "copy: staging absent"
	segments "module on netback" $vif
	long "module on netback" $vif
	console "module on netback"
	multicast "module on netback"
	combined 2
	both_ways "module on netback, 2 queues" "$FRAMES"
	note "module on netback, 2 queues: $_numbered"
	attached "module on netback"
	ask one "modprobe xen-netfront" || fail "no xen-netfront"
	moved pregrant vif
	trial "xen-netfront on netback, the vif moved live"
	moved vif pregrant
	both_ways "module on netback, the vif moved back" 2000
	unload
	ask one end
	over one || fail "the guest does not end"
	no_netback
}
by_module || on_netback

back
front_guest one 2 vcpus=2 memory=256
vif=vif$(xl domid one).0
for path in $PATHS; do
	module "$path" queues=1
	trial "module on pregrant back, $path"
	pieces "$path" "$path"
	says "$path" "$path: path=$path"
	carried "$path"
	segments "$path" $vif
	long "$path" $vif
	ask one "ip link set eth0 mtu 1500"
	unload
	module "$path" queues=2
	combined 2
	both_ways "$path, 2 queues" "$FRAMES"
	ask one "iperf3 -s -D" || fail "iperf3 does not serve"
	_down=$(iperf 10.9.0.2 -P 2) || fail "$path, 2 queues: iperf3 to the guest"
	_up=$(iperf 10.9.0.2 -P 2 -R) || fail "$path, 2 queues: iperf3 from the guest"
	ask one "killall iperf3"
	note "$path, 2 queues: two connections to the guest $_down, from it $_up Mbit/s; $_numbered"
	unload
done
module auto
console "module on pregrant back"
multicast "module on pregrant back"
# One queue by ethtool: it connects again.
combined 2
ask one "ethtool -L eth0 combined 1" || fail "ethtool -L: $ANSWER"
ask one "within 20 eval 'ethtool -S eth0 | grep -q \"connects: 2\" && grep -q 1 /sys/class/net/eth0/carrier'" || fail "it does not connect again"
combined 1
both_ways "one queue by ethtool -L" 2000
attached "module on pregrant back"
many "module on pregrant back" 12 "path=auto queues=1"
unload
back_well
ask one end
over one || fail "the guest does not end"
end_back || fail "the back ends with $?"
ip link del mc0
