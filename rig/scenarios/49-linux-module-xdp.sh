# shows: XDP programs on the kernel module of linux/, on netback and on `pregrant back`: what they pass, drop, send back and redirect, as counted at both ends; bytes that they put ahead of frames of up to 3516 bytes or take off either end, where the frames come to; TCP whose large segments they see cut; attached and detached 100 times under traffic; refused where a frame fits no page; no grant is left
# seconds: 300
# module: yes
. /rig/module.sh
bridge
frames_serve
FRAMES=${FRAMES:-2000} CYCLES=${CYCLES:-100} DATAGRAMS=${DATAGRAMS:-1000}
IPERF_SECONDS=${IPERF_SECONDS:-2} RULERS=${RULERS:-60}

# decides PROGRAM [N]: attached to the guest's eth0. free: detached again.
decides() {
	ask one "xdp eth0 $* > /tmp/xdp 2>&1 & echo \$! > /tmp/xdp.pid; within 10 grep attached /tmp/xdp" || { ask one "cat /tmp/xdp"; fail "$1: not attached: $ANSWER"; }
	PROGRAM=$1
	counts
}
free() { ask one 'kill $(cat /tmp/xdp.pid); within 10 eval "! pidof xdp"' || fail "$PROGRAM: not detached"; }
# counts: the verdicts so far. said VERDICT: how many more there were.
counts() { ask one "ethtool -S eth0 | awk '/xdp_/ { sub(\"xdp_\", \"\"); sub(\":\", \"=\"); printf \"%s%s \", \$1, \$2 }'"; COUNTS=$ANSWER; }
said() {
	_was=$COUNTS
	counts
	_all=$COUNTS COUNTS=$_was
	echo "$_was $_all" | tr ' ' '\n' | awk -F= -v of="$1" '$1 == of { n = $2 - last; last = $2 } END { print n + 0 }'
}
# kernel_saw NAME: what the guest's stack has counted, of /proc/net/snmp.
kernel_saw() {
	ask one "awk -v of=$1 '{ for (i = 2; i <= NF; i++) if (\$i ~ /^[0-9]+\$/) v[at[i]] = \$i; else at[i] = \$1 \$i } END { print v[of] + 0 }' /proc/net/snmp"
	echo "$ANSWER"
}
# to_it COUNT BYTES: datagrams to a port without a listener; how many dom0's interface took.
to_it() {
	_sent=$(count "$vif" tx packets)
	datagrams 10.9.0.2 "$1" "$2" || fail "datagrams"
	sleep 1
	echo $(($(count "$vif" tx packets) - _sent))
}

# sends_back TEXT [BUFFERS]: what programs send back; of the frames so many of a hundred in the buffers in which they came.
sends_back() {
	decides echo
	_echos=$(kernel_saw Icmp:InEchos)
	pings 10.9.0.2 200 0.02 || fail "$1: echo: of 200 pings $LOST lost"
	ping -q -c 20 -i 0.05 -s 1400 -W 5 10.9.0.2 > /run/ping || fail "$1: echo: of long ones some are lost"
	_tx=$(said tx) _buffers=$(said tx_buffers)
	[ $((_tx * $2)) -le $((_buffers * 100)) ] && [ "$_tx" -ge 220 ] && [ "$(kernel_saw Icmp:InEchos)" = "$_echos" ] || fail "$1: echo: $_tx sent back, $_buffers in their buffers"
	free
	note "$1: echo: 220 pings answered by the program, of 56 and 1400 bytes, $_buffers in their buffers"

	decides tx
	_back=$(count "$vif" rx packets)
	_came=$(to_it "$DATAGRAMS" 200)
	_back=$(($(count "$vif" rx packets) - _back)) _tx=$(said tx) _full=$(said tx_full) _buffers=$(said tx_buffers)
	[ $((_tx * $2)) -le $((_buffers * 100)) ] && [ "$_came" -ge $((DATAGRAMS / 2)) ] && [ $((_tx + _full)) -ge $((_came - 20)) ] && [ "$_back" -ge "$_tx" ] || fail "$1: tx: of $_came $_tx sent back, $_buffers in their buffers, $_full without room, $_back arrived"
	free
	note "$1: tx: of $_came datagrams $_tx sent back, $_buffers in their buffers, $_full without room; $_back arrived"
}
# moves TEXT PROGRAM HEAD TAIL LAST: rulers of 80 to LAST bytes. Each of their bytes is looked at where they come to: the guest's
# stack, or dom0's bridge, to which move-tx sends them back.
moves() {
	_moved="$1: $2 $3 $4" _take="rulers take" _buffers=
	decides "$2" "$3" "$4"
	if [ "$2" = move ]; then
		ask one "$_take eth0 $3 $4 $RULERS > /tmp/rulers 2>&1 & within 10 grep taking /tmp/rulers" || fail "$_moved: no one takes: $ANSWER"
	else
		$_take xenbr0 "$3" "$4" "$RULERS" > /run/rulers 2>&1 &
		within 10 grep taking /run/rulers || fail "$_moved: no one takes"
	fi
	rulers send xenbr0 00:16:3e:00:00:02 "$RULERS" 80 "$5" || fail "$_moved: not sent"
	if [ "$2" = move ]; then
		_verdict=pass
		ask one "within 40 grep came /tmp/rulers; cat /tmp/rulers"
	else
		_verdict=tx
		within 40 grep came /run/rulers
		cat /run/rulers
		ANSWER=$(tail -n 1 /run/rulers)
	fi
	_came=$ANSWER
	case $_came in "$RULERS of $RULERS came, "*" 0 wrong, 0 twice") ;; *) fail "$_moved: $_came" ;; esac
	_decided=$(said $_verdict) _buffers=$(said tx_buffers)
	[ "$_decided" -ge "$RULERS" ] && [ "$(said aborted)" = 0 ] || fail "$_moved: the program moved $_decided"
	free
	note "$_moved: $_came; $_buffers in their buffers"
}
# moves_both_ways TEXT PROGRAM: bytes put ahead, taken off, left out and added at the end; up to the longest frame that a page has.
moves_both_ways() {
	moves "$1" "$2" 0 0 3516
	moves "$1" "$2" -200 -20 3516
	moves "$1" "$2" -4 4 3516
	moves "$1" "$2" 18 100 3400
}
# mtu N: of all that frames of the first vif come through.
mtu() {
	for _link in xenbr0 "$vif"; do ip link set $_link mtu "$1"; done
	ask one "ip link set eth0 mtu $1" || fail "MTU $1: $ANSWER"
}
# long_frames TEXT: longer than what is copied for the stack, to the longest that a program sees.
long_frames() {
	decides pass
	mtu 3502
	both_ways "$1: MTU 3502" "$((FRAMES / 4))" --size 64..3474
	ask one "iperf3 -s -D" || fail "iperf3 does not serve"
	_down=$(iperf 10.9.0.2) || fail "$1: MTU 3502: iperf3"
	ask one "killall iperf3"
	_passed=$(said pass)
	[ "$_passed" -ge "$((FRAMES / 4))" ] && [ "$(said drop)" = 0 ] && [ "$(said aborted)" = 0 ] || fail "$1: MTU 3502: pass: $COUNTS"
	free
	note "$1: MTU 3502: pass: $_passed frames, TCP to the guest $_down Mbit/s; $_numbered"
	for _program in move move-tx; do moves_both_ways "$1" $_program; done
	# There is no room at the end.
	decides move 0 1000
	rulers send xenbr0 00:16:3e:00:00:02 20 2600 3516 || fail "$1: not sent"
	within 20 eval '[ "$(said aborted)" = 20 ]' || fail "$1: of 20 frames without room at their end $(said aborted) are aborted"
	free
	note "$1: 20 frames without room at their end are aborted"
	mtu 1500
}
# programs TEXT: all of them.
programs() {
	trial "$1: no program"
	decides pass
	ask one "cat /sys/class/net/eth0/statistics/rx_dropped"
	_lost=$ANSWER
	trial "$1: pass"
	ask one "cat /sys/class/net/eth0/statistics/rx_dropped"
	[ "$ANSWER" -le $((_lost + 10)) ] || fail "$1: pass: $((ANSWER - _lost)) frames dropped"
	_passed=$(said pass)
	[ "$_passed" -ge "$FRAMES" ] && [ "$(said drop)" = 0 ] && [ "$(said aborted)" = 0 ] || fail "$1: pass: $COUNTS"
	free
	note "$1: pass: $_passed frames"

	decides filter
	_udp=$(kernel_saw Udp:NoPorts)
	_came=$(to_it "$DATAGRAMS" 200)
	_came=$((_came + $(to_it 200 1400)))
	_dropped=$(said drop)
	[ "$_came" -ge $((DATAGRAMS / 2)) ] && [ "$_dropped" -ge $((_came - 20)) ] || fail "$1: filter: of $_came datagrams $_dropped dropped"
	[ "$(kernel_saw Udp:NoPorts)" = "$_udp" ] || fail "$1: filter: datagrams came to the stack"
	pings 10.9.0.2 20 0.05 || fail "$1: filter: of 20 pings $LOST lost"
	ask one "iperf3 -s -D" || fail "iperf3 does not serve"
	_down=$(iperf 10.9.0.2) && _up=$(iperf 10.9.0.2 -R) || fail "$1: filter: iperf3"
	ask one "killall iperf3"
	free
	note "$1: filter: of $_came datagrams $_dropped dropped; TCP to the guest $_down, from it $_up Mbit/s"

	sends_back "$1" 0

	# Its own vif, off the bridge: what it sends would come again.
	xl network-attach one mac=00:16:3e:00:00:12 bridge=xenbr0 script=/rig/vif-script || fail "$1: xl network-attach"
	ask one "within 20 [ -e /sys/class/net/eth1 ] && ip link set eth1 up && within 20 grep -q 1 /sys/class/net/eth1/carrier && cat /sys/class/net/eth1/ifindex" || fail "$1: no second vif"
	_index=$ANSWER
	_other=vif$(xl domid one).1
	within 10 brctl delif xenbr0 "$_other" || fail "$1: $_other is on no bridge"
	decides redirect "$_index"
	_there=$(count "$_other" rx packets)
	_came=$(to_it "$DATAGRAMS" 200)
	_there=$(($(count "$_other" rx packets) - _there)) _redirected=$(said redirect)
	ask one "ethtool -S eth1 | sed -n 's/ *xdp_xmit: //p'"
	_xmit=$ANSWER
	[ "$_came" -ge $((DATAGRAMS / 2)) ] && [ "$_redirected" -ge $((_came - 20)) ] && [ "$_there" -ge "$_xmit" ] && [ "$_xmit" -ge $((_redirected / 2)) ] ||
		fail "$1: redirect: of $_came $_redirected redirected, $_xmit sent, $_there arrived"
	free
	note "$1: redirect: of $_came datagrams $_redirected went to the other vif, which sent $_xmit; $_there arrived"
	xl network-detach one 1 || fail "$1: xl network-detach"
	ask one "within 20 [ ! -e /sys/class/net/eth1 ]" || fail "$1: the second vif stays"

	transfer
	lives "$vif" || fail "$1: no traffic"
	ask one "xdp eth0 cycle $CYCLES" || fail "$1: attached and detached: $ANSWER"
	lives "$vif" || fail "$1: attached and detached: the TCP connection is gone"
	end_transfer
	note "$1: attached and detached $CYCLES times: the TCP connection lives"

	long_frames "$1"

	# What fits no page: refused, whichever comes first.
	ask one "ip link set eth0 mtu 9000 && ! xdp eth0 pass 2> /tmp/xdp && grep 'Invalid argument' /tmp/xdp && ip link set eth0 mtu 1500" || fail "$1: a program at MTU 9000: $ANSWER"
	decides pass
	ask one "! ip link set eth0 mtu 9000 && ip link set eth0 mtu 3502 && ip link set eth0 mtu 1500" || fail "$1: MTU 9000 under a program: $ANSWER"
	free
	pings 10.9.0.2 20 0.05 || fail "$1: of 20 pings $LOST lost"
}

# decided TEXT: a guest's programs; with `pregrant back` buffers that are sent on, too.
decided() {
	vif=vif$(xl domid one).0
	# What a module has granted is no longer when it is unloaded.
	module auto
	ping -q -c 1 -W 5 10.9.0.2 > /run/ping
	unload
	before=$(tables)
	module auto
	within 20 ping -q -c 1 -W 5 10.9.0.2 || fail "no answer"
	programs "$1"
	unload
	if [ "$1" = "module on back" ]; then
		module auto send_on=Y
		within 20 ping -q -c 1 -W 5 10.9.0.2 || fail "send_on: no answer"
		sends_back "send_on" 99
		mtu 3502
		moves "send_on" move-tx -200 -20 3516
		moves "send_on" move-tx -4 4 3516
		moves "send_on" move-tx 18 0 3516
		[ "$_buffers" -gt 0 ] || fail "send_on: nothing is moved in its buffer"
		moves "send_on" move-tx 18 100 3400
		moves "send_on" move-tx 0 -20 3516
		[ "$_buffers" -gt 0 ] || fail "send_on: nothing is cut in its buffer"
		mtu 1500
		both_ways "send_on" "$FRAMES"
		unload
	fi
	after=$(tables)
	[ "$before" = "$after" ] || fail "$1: grants before: $before; after: $after"
	note "$1, unloaded: $after"
}
on_backs decided
