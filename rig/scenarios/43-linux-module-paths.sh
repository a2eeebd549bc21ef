# shows: the kernel module of linux/ on netback and on `pregrant back` by each of its paths (as the back counts frames), beside xen-netfront: numbered frames both ways, iperf3 both ways by IPv4 and IPv6 with its segments, MTU 1500, 9000 and 65517, 1 and 2 queues; a vif attached and detached live, thirteen that connect at once; netconsole, and multicast that the back leaves out
# seconds: 900
# module: yes
. /rig/module.sh
bridge
frames_serve
FRAMES=${FRAMES:-20000} FRAMES_SECONDS=${FRAMES_SECONDS:-800}
# PATHS: on `pregrant back`, with colons between them.
PATHS=$(echo "${PATHS:-copy:staging:gref-mapping:persistent}" | tr : " ")

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
# came_to GROUP: of 20 frames to a multicast group, how many come to the guest.
came_to() {
	_file=/sys/class/net/eth0/statistics/rx_packets
	ask one "cat $_file"; _was=$ANSWER
	ping -q -c 20 -i 0.05 -W 1 "$1" > /dev/null 2>&1
	ask one "cat $_file"; echo $((ANSWER - _was))
}
# multicast TEXT: what the guest has joined comes, and nothing else. Every interface joins 224.0.0.1.
multicast() {
	unload
	module auto multicast=Y
	sleep 2
	_joined=$(came_to 224.0.0.1) _other=$(came_to 224.1.2.4)
	[ "$_joined" -ge 20 ] && [ "$_other" -lt 10 ] || fail "$1: of 20 frames to its group $_joined came, of another's $_other"
	unload
	module auto
	_all=$(came_to 224.1.2.4)
	[ "$_all" -ge 20 ] || fail "$1: without the parameter $_all of 20 came"
	note "$1: multicast: of 20 frames to its group $_joined come, of another's $_other; without the parameter $_all"
}
# Multicast comes from another of the bridge's ports: netback lets pass what dom0 itself sends.
modprobe veth || fail "dom0 has no veth"
ip link add mc0 type veth && brctl addif xenbr0 mc0 || fail "no veth"
# BusyBox's ip gives the other end no name.
for _link in /sys/class/net/*; do [ "$(cat $_link/ifindex)" != "$(cat /sys/class/net/mc0/iflink)" ] || _peer=${_link##*/}; done
ip link set "$_peer" name mc1
for _link in mc0 mc1; do ip link set $_link up; done
ip addr add 10.8.0.1/24 dev mc1 && ip route add 224.0.0.0/4 dev mc1 || fail "no route for multicast"
echo 0 > /sys/class/net/xenbr0/bridge/multicast_snooping

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
! grep -E 'ERROR|panicked' $BACK_LOG || fail "the back complains"
ask one end
over one || fail "the guest does not end"
end_back || fail "the back ends with $?"
ip link del mc0
