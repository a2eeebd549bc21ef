# shows: guests are destroyed in mid-traffic: Xen's own grant tables show nothing of them any more, and the backend keeps no fd, thread, mapping or tap; the module no channel, vif or page
# back: any
# seconds: 240
bridge
back
. /rig/mapped.sh
# held: what the backend's process has: descriptors, threads, mapped grants; and the taps. Of the module what dom0's kernel has.
held() {
	by_module && { echo "$(lsevtchn 0 | grep -c .) channels, $(ls -d $BACK_DRIVER/vif-* 2>/dev/null | grep -c .) vifs, $(mapped) pages, $(ls /sys/class/net | grep -c '^vif') interfaces"; return; }
	echo "$(ls /proc/$BACK_PID/fd | wc -l) fds, $(ls /proc/$BACK_PID/task | wc -l) threads," \
		"$(grep -c /dev/xen/gntdev /proc/$BACK_PID/maps) mappings, $(ls /sys/class/net | grep -c '^vif') taps"
}
# victim NUMBER: a guest with TCP both ways is destroyed.
victim() {
	linux_guest "victim$1" 2
	_vif=vif$(xl domid "victim$1").0
	ask "victim$1" "iperf3 -s -D; iperf3 -s -D -p 5202" || fail "iperf3 does not serve"
	iperf3 -c 10.9.0.2 -t 60 > /run/to 2>&1 & _to=$!
	iperf3 -c 10.9.0.2 -p 5202 -R -t 60 > /run/from 2>&1 & _from=$!
	within 10 eval '[ $(count '"$_vif"' tx packets) -gt 1000 ] && [ $(count '"$_vif"' rx packets) -gt 1000 ]' || fail "no traffic"
	[ "$1" = 1 ] && in_use=$(tables) && say "in traffic: $(held); $in_use"
	xl destroy "victim$1" || fail "xl destroy"
	within 20 eval '! xl list | grep -q "(null)"' || { xl list; fail "the domain is not gone: somebody maps its pages"; }
	within 10 [ ! -e "/sys/class/net/$_vif" ] || fail "$_vif stays"
	kill $_to $_from; wait $_to $_from
}
# A worker opens what it needs when its first vif comes, and keeps it. One that comes alone goes to the first worker.
victim 0
before=$(held) tables_before=$(tables)
for n in 1 2 3 4 5; do
	victim $n
	after=$(held)
	say "after $n: $after"
	[ "$after" = "$before" ] || fail "the backend held $before; it holds $after"
done
tables_after=$(tables)
[ "$tables_after" = "$tables_before" ] || { cat /run/tables; fail "Xen knew $tables_before; it knows $tables_after"; }
# While a grant copy runs its grant is in use too.
by_module || [ "${in_use#*, }" = "4 grants in use" ] || fail "Xen's tables showed in traffic: $in_use; expected are the console's, xenstore's and two rings"
note "5 guests destroyed in mid-traffic; the backend has $after as before; Xen: $tables_after, in traffic: $in_use"
back_well
end_back || fail "the back ends with $?"
