# The kernel module of linux/ in a guest `one` of dom0's scenarios, 10.9.0.2. Sourced by those, after net.sh.

# trial TEXT: what travels with this driver and back.
trial() {
	within 20 ping -q -c 1 -W 5 10.9.0.2 || fail "$1: no answer"
	pings 10.9.0.2 10 0.1 || fail "$1: of 10 pings $LOST lost"
	ping -q -c 3 fd09::2 > /run/ping || fail "$1: no IPv6"
	# Where TCP is slow a kernel makes segments of two frames, below what is worth lending: before 5.18, and on a busy machine.
	ask one 'echo 8 > /proc/sys/net/ipv4/tcp_min_tso_segs && iperf3 -s -D' || fail "iperf3 does not serve"
	_down=$(iperf 10.9.0.2) || fail "$1: iperf3 to the guest"
	_up=$(iperf 10.9.0.2 -R) || fail "$1: iperf3 from the guest"
	ask one "killall iperf3"
	both_ways "$1" "$FRAMES"
	note "$1: TCP to the guest $_down, from it $_up Mbit/s; $_numbered"
}
# segments TEXT VIF: TCP by IPv6, whose segments are longer than a frame.
segments() {
	ask one "ethtool -k eth0 | grep -q 'tx-tcp6-segmentation: on' && iperf3 -s -D" || fail "$1: no segments by IPv6"
	_bytes=$(count "$2" rx bytes) _packets=$(count "$2" rx packets)
	_up=$(iperf fd09::2 -R) || fail "$1: iperf3 from the guest by IPv6"
	_bytes=$(($(count "$2" rx bytes) - _bytes)) _packets=$(($(count "$2" rx packets) - _packets))
	_down=$(iperf fd09::2) || fail "$1: iperf3 to the guest by IPv6"
	ask one "killall iperf3"
	[ $((_bytes / _packets)) -gt 3000 ] || fail "$1: segments by IPv6 have $((_bytes / _packets)) bytes"
	note "$1: IPv6: TCP to the guest $_down, from it $_up Mbit/s by segments of $((_bytes / _packets)) bytes"
}
# long TEXT VIF: frames of 9000 bytes, and a few of 60000.
long() {
	for _link in xenbr0 "$2"; do ip link set "$_link" mtu 9000; done
	ask one "ip link set eth0 mtu 9000 && ping -q -c 3 -s 8900 10.9.0.1" || fail "$1: MTU 9000: $ANSWER"
	ping -q -c 3 -s 8900 10.9.0.2 > /run/ping || fail "$1: MTU 9000, to the guest"
	both_ways "$1" "$((FRAMES / 10))" --size 64..8972
	note "$1: MTU 9000: $_numbered"
	# The longest: a frame is 15 requests.
	for _link in xenbr0 "$2"; do ip link set "$_link" mtu 65517; done
	ask one "ip link set eth0 mtu 65517" || fail "$1: MTU 65517: $ANSWER"
	both_ways "$1" 50 --size 60000
	note "$1: MTU 65517, 60000 bytes: $_numbered"
	for _link in xenbr0 "$2"; do ip link set "$_link" mtu 9000; done
	ask one "ip link set eth0 mtu 9000"
}
# attached TEXT: a second vif, which comes and goes while frames of the first travel.
attached() {
	_dom0=vif$(xl domid one).1
	ask one "rm -f /tmp/stop; (until [ -e /tmp/stop ]; do pregrant-lab frames --to 10.9.0.1 --count 500 || exit; done; echo whole) > /tmp/beside 2>&1 & echo"
	xl network-attach one mac=00:16:3e:00:00:12 bridge=xenbr0 script=/rig/vif-script || fail "$1: xl network-attach"
	ask one "within 20 [ -e /sys/class/net/eth1 ] && ip link set eth1 up && ip addr add 10.9.1.2/24 dev eth1" || { ask one "dmesg | tail -n 20"; fail "$1: no second vif"; }
	ask one "ethtool -i eth1 | grep -q 'driver: pregrant' && within 20 grep -q 1 /sys/class/net/eth1/carrier" || { ask one "dmesg | tail -n 20"; fail "$1: the second vif is not connected"; }
	ip addr add 10.9.1.1/24 dev xenbr0
	within 10 ping -q -c 1 -W 5 10.9.1.2
	pings 10.9.1.2 20 0.1 || fail "$1: of 20 pings by the second vif $LOST lost"
	[ "$(count "$_dom0" rx packets)" -ge 20 ] || fail "$1: they did not come through $_dom0"
	ip addr del 10.9.1.1/24 dev xenbr0
	xl network-detach one 1 || fail "$1: xl network-detach"
	ask one "within 20 [ ! -e /sys/class/net/eth1 ]" || { ask one "dmesg | tail -n 20"; fail "$1: the second vif stays"; }
	within 10 [ ! -e "/sys/class/net/$_dom0" ] || fail "$1: dom0 keeps $_dom0"
	ask one "touch /tmp/stop; within 60 grep -q whole /tmp/beside" || { ask one "tail -n 3 /tmp/beside"; fail "$1: frames of the first vif meanwhile: $ANSWER"; }
	ask one "grep -c 'lost 0' /tmp/beside"
	note "$1: a second vif attached and detached live, 20 pings by it; meanwhile $((ANSWER * 500)) frames by the first, none lost"
}
# multicast_port: multicast comes from another of the bridge's ports: netback lets pass what dom0 itself sends.
multicast_port() {
	modprobe veth || fail "dom0 has no veth"
	ip link add mc0 type veth && brctl addif xenbr0 mc0 || fail "no veth"
	# BusyBox's ip gives the other end no name.
	for _link in /sys/class/net/*; do [ "$(cat $_link/ifindex)" != "$(cat /sys/class/net/mc0/iflink)" ] || _peer=${_link##*/}; done
	ip link set "$_peer" name mc1
	for _link in mc0 mc1; do ip link set $_link up; done
	ip addr add 10.8.0.1/24 dev mc1 && ip route add 224.0.0.0/4 dev mc1 || fail "no route for multicast"
	echo 0 > /sys/class/net/xenbr0/bridge/multicast_snooping
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
# many TEXT COUNT PARAMETERS: so many vifs more, which all connect at once when the module is loaded again.
many() {
	for _n in $(seq "$2"); do
		xl network-attach one mac=00:16:3e:00:01:$(printf %02x "$_n") bridge=xenbr0 script=/rig/vif-script || fail "$1: xl network-attach, $_n"
	done
	ask one "within 60 eval '[ \$(ls -d /sys/bus/xen/drivers/pregrant/vif-* | wc -l) = $(($2 + 1)) ]'" || fail "$1: of $2 vifs more $ANSWER"
	ask one 'for d in /sys/bus/xen/drivers/pregrant/vif-*; do echo ${d##*/} > /sys/bus/xen/drivers/pregrant/unbind || exit; done; rmmod pregrant' || fail "$1: the module stays"
	well
	ask one "insmod /rig/pregrant.ko $3 && addresses 2 && for d in /sys/class/net/eth*; do ip link set \${d##*/} up || exit; done" || fail "$1: loaded again: $ANSWER"
	ask one "within 60 eval '[ \$(cat /sys/class/net/eth*/carrier | grep -c 1) = $(($2 + 1)) ]'" || { ask one "dmesg | tail -n 40; cat /sys/class/net/eth*/carrier | grep -c 1"; fail "$1: of $(($2 + 1)) vifs $ANSWER connect"; }
	pings 10.9.0.2 20 0.1 || fail "$1: of 20 pings beside $2 vifs $LOST lost"
	for _n in $(seq "$2"); do xl network-detach one "$_n" || fail "$1: xl network-detach, $_n"; done
	ask one "within 60 eval '[ \$(ls -d /sys/bus/xen/drivers/pregrant/vif-* | wc -l) = 1 ]'" || fail "$1: vifs stay"
	note "$1: $(($2 + 1)) vifs connect at once; all but one are detached"
}
# module PATH [PARAMETER...]: loads it, which takes the device.
module() {
	ask one "insmod /rig/pregrant.ko path=$* && addresses 2" || { ask one dmesg; fail "the module does not load"; }
	ask one "within 20 grep -q 1 /sys/class/net/eth0/carrier" || { ask one "dmesg | tail -n 40"; fail "$1: not connected"; }
}
# says TEXT WORDS: the path that is used, and why, as the driver has it.
says() { ask one "ethtool -i eth0 | grep -qxF 'firmware-version: $2'" || { ask one "ethtool -i eth0"; fail "$1: not $2"; }; }
# by PATH rx|tx: frames that went so, as the back counts them; by copy those that no other path has.
by() {
	_dir="dir=\"$2\""
	_staged=$(counted queue_staged_frames "$_dir") _mapped=$(counted queue_gref_mapped_frames "$_dir")
	_persistent=$(counted queue_persistent_frames "$_dir") _ringed=$(counted queue_data_ring_frames "$_dir")
	case $1 in
	staging) echo $_staged ;;
	data-ring) echo $_ringed ;;
	gref-mapping) echo $_mapped ;;
	persistent) echo $_persistent ;;
	copy) echo $(($(counted queue_frames "$_dir") - _staged - _mapped - _persistent - _ringed)) ;;
	esac
}
# counts_as PATH: the driver counts frames of one queue's both directions as this path's, and of no other that has pages of its own.
counts_as() {
	for _counter in persistent data_ring; do
		ask one "ethtool -S eth0 | grep -c '_$_counter: [1-9]'"
		case $_counter in "$(echo "$1" | tr - _)") _directions=2 ;; *) _directions=0 ;; esac
		[ "$ANSWER" = $_directions ] || fail "$1: $ANSWER directions count frames as $_counter"
	done
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
	# As the driver has it: its line, and its counters.
	ask one "dmesg | grep -E '(connected|pages mapped): path $1 .path=$1.'" || fail "$1: the log names no path: $(ask one 'dmesg | grep connected:'; echo $ANSWER)"
	counts_as "$1"
	note "$1: of $_all_tx frames from the guest $_tx, of $_all_rx to it $_rx by this path"
}
# ethtool_stat NAME: a counter of the driver's; 0 where it has no device, `none` where it has no such counter.
ethtool_stat() {
	ask one "if [ -e /sys/class/net/eth0 ]; then ethtool -S eth0 | sed -n 's/^ *$1: //p' | grep . || echo none; else echo 0; fi"
	echo "${ANSWER:-none}"
}
# pieces TEXT PATH: TCP from the guest went in the pages of its skbs, unless the back keeps pages mapped.
pieces() {
	_pieces=$(ethtool_stat tx_in_pieces)
	case $2 in
	persistent|gref-mapping|mapped|data-ring) [ "$_pieces" = 0 ] || fail "$1: $_pieces frames in pieces" ;;
	*) [ "$_pieces" -gt 0 ] || fail "$1: no frame in pieces" ;;
	esac
}
# moved FROM TO: the vif, live, to another driver.
moved() {
	ask one "echo vif-0 > /sys/bus/xen/drivers/$1/unbind && echo vif-0 > /sys/bus/xen/drivers/$2/bind" || { ask one "dmesg | tail -n 20"; fail "not moved from $1 to $2"; }
	ask one "within 20 [ -e /sys/class/net/eth0 ] && addresses 2" || fail "$2 has no interface"
	ask one "within 20 grep -q 1 /sys/class/net/eth0/carrier" || { ask one "dmesg | tail -n 40"; fail "$2: not connected"; }
}
# combined N: it has so many queues.
combined() { ask one "ethtool -l eth0 | tail -n 1 | grep -q 'Combined:[[:space:]]*$1$'" || fail "not $1 queues"; }
# well: the guest's kernel has logged nothing bad. It warns once if memory is allocated in atomic context.
well() {
	ask one "! dmesg | grep -E '$COMPLAINTS|Call Trace|does not let go|did not end|broke the protocol'" || fail "the guest's kernel: $ANSWER"
	ask one no_leaks || fail "memory of the guest's kernel without an owner"
	ask one "[ \"\$(cat /proc/sys/kernel/tainted)\" = 12288 ]" || fail "the guest's kernel is tainted otherwise"
}
# unload: no memory was allocated in atomic context, and every grant of the module's is ended.
unload() {
	ask one "ethtool -S eth0 | grep -q 'atomic_allocations: 0$'" || fail "memory was asked for in atomic context"
	ask one "echo vif-0 > /sys/bus/xen/drivers/pregrant/unbind && rmmod pregrant" || { ask one "dmesg | tail -n 30"; fail "the module stays"; }
	well
}
# transfer [SECONDS]: a TCP connection to the guest and one from it, in the background. lives VIF: they are there, and their bytes go on.
transfer() {
	# iperf3 gives up two minutes after the last byte: where emulation is slow a guest is saved for longer.
	ask one "iperf3 -s -D --rcv-timeout 3600000" || fail "iperf3 does not serve"
	iperf3 -J --bidir --rcv-timeout 3600000 -c 10.9.0.2 -t "${1:-3600}" > /run/live.json &
	TRANSFER=$!
}
lives() {
	_sent=$(count "$1" tx bytes) _came=$(count "$1" rx bytes)
	within 30 eval '[ $(count '"$1"' tx bytes) -gt $((_sent + 1000000)) ] && [ $(count '"$1"' rx bytes) -gt $((_came + 1000000)) ]'
	_lives=$?
	kill -0 $TRANSFER || { grep error /run/live.json; return 1; }
	return $_lives
}
# outlives VIF: one connection lives over a back that is killed, and one that ends.
outlives() {
	transfer
	lives "$1" || fail "no traffic"
	kill_back
	back
	lives "$1" || fail "pregrant back is killed: the TCP connection is gone"
	end_back || fail "the back ends with $?"
	# While no back answers: requests stay on the ring, and so do their pages.
	ask one "ip link set eth0 down && ip link set eth0 up" || fail "the link: $ANSWER"
	back
	lives "$1" || fail "pregrant back ends: the TCP connection is gone"
	end_transfer
}
end_transfer() { kill -INT $TRANSFER; wait $TRANSFER; ask one "killall iperf3"; }
# closes_netback ID: the vif, as when its domain is asked to let go of it; the guest's driver answers.
closes_netback() { xenstore-write "/local/domain/0/backend/vif/$1/0/state" 5; }
# on_backs FUNCTION [KEY=VALUE...]: with the name of each of BACKS (netback, back, or both with a colon; of the module as back that alone), on which a guest `one` begins and ends.
on_backs() {
	_each=$1; shift
	for _back_end in $(echo "${BACKS:-$(by_module || echo netback:)back}" | tr : " "); do
		$_back_end
		front_guest one 2 "$@"
		$_each "module on $_back_end"
		ask one end
		over one || fail "the guest does not end"
		if [ $_back_end = back ]; then
			back_well
			end_back || fail "the back ends with $?"
		else
			no_netback
		fi
	done
}
