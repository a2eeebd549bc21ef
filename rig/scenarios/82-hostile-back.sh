# shows: what a back may do wrong to the kernel module: each case ends as on the loopback, without a splat or more than a line; the guest's other vif, on Linux's netback, goes on
# seconds: 1200
# module: yes
. /rig/module.sh
# FROM: the first case that is played, by its number. ONLY: a pattern of their names.
FROM=${FROM:-1}
# seen: in LINES those of the guest's log, in FAULTS those that complain, beyond what each new back is, has and keeps.
seen() {
	ask one "echo \$(dmesg | grep -c .) \$(dmesg | grep -E 'pregrant|vif|g\\.e\\.' | grep -cvE 'connected: |the back (is gone|keeps|has no|does not (offer|take))|were asked for|renamed|carrier|link')"
	LINES=${ANSWER% *} FAULTS=${ANSWER#* }
}
# holds CASE: the pages that a back has mapped when it has closed, and those that the driver keeps then, where memory is short.
holds() {
	case $1 in *pool-kept-at-the-end|*pages-that-are-kept) ;; *) return ;; esac
	within 60 grep -q HOLDS /run/case || return
	_maps=$(sed -n 's/^HOLDS //p' /run/case)
	within 30 eval '[ "$(ethtool_stat kept_pages)" = $_maps ]'
	echo "$_maps $(ethtool_stat kept_pages)" > /run/held
}
# of_pool CASE DEFERRED: what the driver says of its RX pages that come and go; so many grants were left to the kernel before.
of_pool() {
	# First: it waits for the rest of them, for half a minute.
	ask one "grep '^FRAG:' /proc/net/sockstat"
	case $1:$ANSWER in *-at-the-end:*|*" inuse "[1-9]*) ;; *) fail "$1: the stack holds no frame" ;; esac
	_holds=$ANSWER
	[ "$(ethtool_stat rx_in_place)" -gt 0 ] || fail "$1: no frame went up in its pages"
	_grown=$(ethtool_stat rx_pool_grown) _adds=$(ethtool_stat rx_pool_adds) _dels=$(ethtool_stat rx_pool_dels)
	[ "$_grown" -gt 0 ] || fail "$1: the pool does not grow"
	case $1 in
	*adds-refused|*adds-not-answered) [ "$_adds" = 0 ] ;;
	*dels-refused|*dels-not-answered) [ "$_adds" -gt 0 ] && [ "$_dels" = 0 ] ;;
	*fault*|*again) [ "$_adds" -gt 0 ] ;;
	*) [ "$_adds" -gt 0 ] && [ "$_dels" -gt 0 ] ;;
	esac || fail "$1: $_adds pages added, $_dels deleted"
	[ "$(ethtool_stat grants_deferred)" = "$2" ] || fail "$1: grants are left to the kernel"
	say "$1: $_holds; $_grown pages came, $_adds were added, $_dels deleted; grants: $(($(ethtool_stat grants) - $(ethtool_stat grants_ended)))"
}
# searched CASE TRUSTED PARAMETER FRONT: the back reads all that is granted to it, while the guest sends frames from pages that have more in them; by the toolstack's key and the module's parameter as they are then.
searched() {
	xenstore-write "/local/domain/$id/device/vif/0/trusted" "$2"
	ask one "echo $3 > /sys/module/pregrant/parameters/trusted" || fail "$1: the parameter: $ANSWER"
	_went=$(ethtool_stat tx_in_pieces)
	hostile_back "$id" "$1" > /run/search 2>&1
	_went=$(($(ethtool_stat tx_in_pieces) - _went))
	grep -qx "CASE $1 front=$4" /run/search || { cat /run/search; ask one "dmesg | tail -n 20"; fail "$1: trusted=$2, parameter $3: not $4"; }
	case $4 in serves) [ $_went = 0 ] ;; *) [ $_went -gt 0 ] ;; esac || fail "$1: trusted=$2, parameter $3: $_went frames in pieces"
	say "trusted=$2, parameter $3, $_went frames in pieces: $(grep 'are granted' /run/search)"
}
bridge
netback
front_guest one 2 "vif=$(vif_line 2), $(vif_line 3)"
id=$(xl domid one)
# Long frames go in the guest's own pages, where the back maps others, too; and come up in those in which they came.
module auto lend_from=4096 rx_in_place=2049
ip addr add 10.9.1.1/24 dev xenbr0
# Else each of its vifs answers for both addresses, and pings go to the one that netback leaves, until dom0 asks again.
ask one "echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore; ip link set eth1 up && ip addr add 10.9.1.2/24 dev eth1"
within 20 ping -q -c 1 -W 5 10.9.1.2 || fail "the other vif does not answer"
echo "vif-$id-0" > /sys/bus/xen-backend/drivers/vif/unbind || fail "netback keeps the vif"
# It sends all the time, to an address that no one has to be asked for; some frames so long that their payload is in pages.
# Memory is short each time: spare pages go back. The kernel says so once.
ask one "echo 4 > /proc/sys/vm/drop_caches; (while :; do echo 2 > /proc/sys/vm/drop_caches; ip link set eth0 up; ip addr add 10.9.0.2/24 dev eth0; arp -i eth0 -s 10.9.0.1 00:16:3e:00:00:ff; ip link set eth0 mtu 65000; ping -q -c 20 -i 0.05 -W 1 10.9.0.1 || sleep 0.1; ping -q -c 5 -i 0.05 -s 20000 -W 1 10.9.0.1; done) > /dev/null 2>&1 & echo \$! > /tmp/sender" || fail "nothing sends: $ANSWER"
ping -q -i 0.2 -W 5 10.9.1.2 > /run/ping & _ping=$!
rm -f /run/cases
for _case in $(hostile_back | tail -n +"$FROM" | grep -E "${ONLY:-.}"); do
	case $_case in *all-that-is-granted)
		ask one "(until beside 10.9.0.1; do sleep 0.2; done) > /tmp/beside 2>&1 & echo \$! > /tmp/beside.pid; within 30 grep -q sends /tmp/beside" || fail "$_case: nothing is sent from pages with more in them: $ANSWER"
		# That there is something to see; then by the parameter, and as the other cases by the key.
		searched "$_case" 1 Y shows-what-is-beside-its-frames
		searched "$_case" 1 N serves
		searched "$_case" 0 Y serves ;;
	esac
	_sent=$(ethtool_stat tx_in_pieces) _deferred=$(ethtool_stat grants_deferred) _connects=$(ethtool_stat connects)
	seen; _lines=$LINES _faults=$FAULTS
	rm -f /run/case /run/held
	holds "$_case" | hostile_back "$id" "$_case" > /run/case 2>&1 || { cat /run/case; ask one "dmesg | tail -n 20"; fail "$_case: $(tail -n 1 /run/case)"; }
	cat /run/case >> /run/cases
	seen
	# Each connection says what the back has.
	_connects=$(($(ethtool_stat connects) - _connects))
	[ $((LINES - _lines)) -le $((_connects > 1 ? 8 * _connects : 8)) ] || { ask one "dmesg | tail -n 40"; fail "$_case: $((LINES - _lines)) lines in the guest's log by $_connects connections"; }
	_wanted=0; grep -qE "front=(closed|refuses)" /run/case && _wanted=1
	# Of a page that is kept in spite of its answer the kernel complains, once: such a back gets no more of them.
	# And the device is closed, which is one line more.
	case $_case in *pieces-kept-after-answers) _wanted=2 ;; esac
	[ $((FAULTS - _faults)) = $_wanted ] || { ask one "dmesg | tail -n 20"; fail "$_case: the guest's log has $((FAULTS - _faults)) lines about it, not $_wanted"; }
	ask one "! dmesg | grep -v 'WARNING: g\.e\. .* still in use' | grep -E 'WARNING|BUG|Oops|Call Trace'" || fail "$_case: the guest's kernel: $ANSWER"
	case $_case in *pool*) of_pool "$_case" "$_deferred" ;; esac
	case $_case in *pool-kept-at-the-end|*pages-that-are-kept)
		read -r _maps _kept < /run/held || fail "$_case: the back holds no pages"
		[ "$_kept" = "$_maps" ] || fail "$_case: the back has $_maps pages, the driver keeps $_kept"
		say "$_case: the back has $_maps pages, and the driver keeps these" ;;
	esac
	case $_case in *pieces*) [ "$(ethtool_stat tx_in_pieces)" -gt "$_sent" ] || fail "$_case: no frame in pieces" ;; esac
	! grep -q front=closed /run/case || says "$_case" "none: the back broke protocol"
	case $_case in *pieces-kept-after-answers) says "$_case" "none: the back broke protocol" ;; esac
	case $_case in *all-that-is-granted)
		ask one 'kill $(cat /tmp/beside.pid) $(pidof beside)'
		xenstore-write "/local/domain/$id/device/vif/0/trusted" 1 ;;
	esac
	# One that broke the protocol is served again only once the device is bound again.
	ask one "echo vif-0 > /sys/bus/xen/drivers/pregrant/unbind && echo vif-0 > /sys/bus/xen/drivers/pregrant/bind" || { ask one "dmesg | tail -n 20"; fail "$_case: not bound again"; }
	# It has let go of all.
	ask one "! dmesg | grep 'stay granted'" || fail "$_case: $ANSWER"
done
kill -INT $_ping; wait $_ping
_seen=$(grep received /run/ping)
echo "$_seen" | grep -q ' 0% packet loss' || fail "the other vif lost pings: $_seen"
ask one 'kill $(cat /tmp/sender)'
ask one "[ \"\$(cat /proc/sys/kernel/tainted)\" = 12288 ]" || fail "the guest's kernel is tainted otherwise"
note "$(grep -c ^CASE /run/cases) cases end as on the loopback: $(grep -c 'front=serves' /run/cases) are survived, $(grep -c 'front=closed' /run/cases) close the vif; the other vif meanwhile: ${_seen%%, time*}"
ask one end
over one || fail "the guest does not end"
