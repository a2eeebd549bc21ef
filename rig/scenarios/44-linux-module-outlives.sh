# shows: under iperf3 netback closes and `pregrant back` is killed, again and again: the kernel module's one TCP connection lives, beside xen-netfront in another guest; killed while pages of the guest's own are out, every byte of a stream of its comes to dom0; loaded and unloaded under traffic, the guest's memory, its grants and its event channels are as before
# back: any
# seconds: 300
# module: yes
. /rig/module.sh
bridge
CLOSES=${CLOSES:-5} KILLS=${KILLS:-10} LOADS=${LOADS:-100}
# LENDS: parameters lend_from, with colons between them, by which the guest's pages are out when the back is killed.
LENDS=$(echo "${LENDS:-1500:4096}" | tr : " ") PIECES_KILLS=${PIECES_KILLS:-4}
now() { cut -d' ' -f1 /proc/uptime; }

# closed: netback closes the vif, CLOSES times.
closed() {
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
}
by_module || closed

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
	kill_back
	back
	lives "vif$id.0" || fail "killed, $_round: the TCP connection is gone"
	kill -0 $_beside || fail "killed, $_round: the connection of xen-netfront is gone"
done
_sent=$(count "vif$beside.0" tx bytes)
within 30 eval '[ $(count vif'"$beside"'.0 tx bytes) -gt $((_sent + 1000000)) ]' || fail "xen-netfront's connection stands still"
kill -INT $_beside
ask one "ethtool -S eth0 | grep ' connects:'"
note "the back is killed $KILLS times: one connection lives, and xen-netfront's beside it; $ANSWER"
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
# granted: grants of the module's that have not ended.
granted() { ask one "ethtool -S eth0 | awk '\$1 == \"grants:\" { n += \$2 } \$1 == \"grants_ended:\" { n -= \$2 } END { print n }'"; echo "$ANSWER"; }
# killed_in_pieces FROM: numbers go to dom0 while the back is killed, until it was so often with pieces out.
killed_in_pieces() {
	module auto "lend_from=$1"
	within 20 ping -q -c 1 -W 5 10.9.0.2 || fail "lend_from=$1: no answer"
	_stand=$(granted) _kills=0 _outs= _with=0
	# At the end of its input it would end.
	rm -f /run/never
	mkfifo /run/never
	nc -l -p 5010 <> /run/never | md5sum > /run/sum & _listener=$!
	ask one "rm -f /tmp/stop /tmp/copy /tmp/sum; mkfifo /tmp/copy; md5sum < /tmp/copy > /tmp/sum & (n=0; until [ -e /tmp/stop ]; do seq \${n}00000 \${n}99999; n=\$((n + 1)); done | tee /tmp/copy | nc 10.9.0.1 5010) > /dev/null 2>&1 & echo" || fail "lend_from=$1: no stream: $ANSWER"
	transfer
	lives "vif$id.0" || fail "lend_from=$1: no traffic"
	while [ $_with -lt "$PIECES_KILLS" ]; do
		[ $_kills -lt $((PIECES_KILLS * 5)) ] || fail "lend_from=$1: killed $_kills times, with pieces out $_with times:$_outs"
		sleep 1
		_went=$(ethtool_stat tx_in_pieces)
		kill_back
		_kills=$((_kills + 1))
		_out=$(($(granted) - _stand))
		_outs="$_outs $_out"
		[ $_out -le 0 ] || _with=$((_with + 1))
		back
		lives "vif$id.0" || fail "lend_from=$1: killed, $_kills, with $_out pieces out: the TCP connection is gone"
		[ "$(ethtool_stat tx_in_pieces)" -gt "$_went" ] || fail "lend_from=$1: killed, $_kills: no more frames in pieces"
	done
	end_transfer
	ask one "touch /tmp/stop; within 50 [ -s /tmp/sum ] && cat /tmp/sum" || fail "lend_from=$1: the stream does not end: $ANSWER"
	wait $_listener
	[ "$ANSWER" = "$(cat /run/sum)" ] || fail "lend_from=$1: the guest sent $ANSWER, to dom0 came $(cat /run/sum)"
	_went=$(ethtool_stat tx_in_pieces)
	unload
	left
	[ "$before" = "$HAS" ] || fail "lend_from=$1: before: $before; after: $HAS"
	note "lend_from=$1: pieces out when the back was killed:$_outs, of $_went frames; every byte came; unloaded: $HAS"
}
# The first two have caches to fill.
for _load in 1 2; do module auto; unload; done
left
before=$HAS free=$FREE
for _lend in $LENDS; do killed_in_pieces "$_lend"; done
left
free=$FREE
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
back_well
ask one end
over one || fail "the guest does not end"
end_back || fail "the back ends with $?"
