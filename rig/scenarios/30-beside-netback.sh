# shows: one guest on Linux's netback and on `pregrant back`, or the module, in turns: iperf3 both ways, small frames from pktgen, dom0's CPU time
# workers: 1 2
# back: any
# seconds: 600
bridge
netback
linux_guest one 2
id=$(xl domid one) vif=vif$(xl domid one).0
ask one "iperf3 -s -D" || fail "iperf3 does not serve"
ask one "modprobe pktgen" || fail "the guest has no pktgen"
FRAMES=${FRAMES:-10000} ROUNDS=${ROUNDS:-3}

# small: frames of 60 bytes (64 with the check sequence) from the guest's pktgen, a second of its clock.
small() {
	ask one "small_frames $FRAMES $(cat /sys/class/net/xenbr0/address)"
	set -- $?
	echo "$ANSWER"
	return "$1"
}
# row BACK: a line of figures.
row() {
	# Debian 13's server ends after some dozen clients.
	ask one "pidof iperf3 || iperf3 -s -D" || fail "iperf3 does not serve any more"
	began=$(dom0_seconds)
	to=$(iperf 10.9.0.2) && from=$(iperf 10.9.0.2 -R) || fail "iperf3 on $1: to the guest $to, from it $from"
	iperf_cpu=$(echo "$(dom0_seconds) $began" | awk '{ printf "%.1f", $1 - $2 }')
	began=$(dom0_seconds) frames=$(count "$vif" rx packets)
	pps=$(small) || fail "pktgen on $1: $pps"
	frames=$(($(count "$vif" rx packets) - frames))
	small_cpu=$(echo "$(dom0_seconds) $began" | awk '{ printf "%.1f", $1 - $2 }')
	[ $frames -ge "$FRAMES" ] || fail "$1: of $FRAMES small frames $frames came"
	echo "$1 $to $from $pps $iperf_cpu $small_cpu" >> /run/rows
	say "$(tail -n 1 /run/rows)"
}
ops() { pregrant top --once --json | grep '"dir":"tx"' | sed 's/.*"frames":\([0-9]*\).*"grant_ops":\([0-9]*\).*/\1 \2/'; }

# taken: the vif is ours. given_back: and is netback's again. From one of the kernel's drivers it goes to another by a new connection.
taken() {
	if by_module; then
		[ -d /sys/module/pregrant_back ] || back
		handed one 2 vif pregrant_back
		return
	fi
	back --take "$id.0" --give-back "$id.0"
	back_says "vif 0 of domain $id.*connected" || fail "not taken up"
}
given_back() {
	by_module && { handed one 2 pregrant_back vif; return; }
	missed=$(pregrant top --prometheus - | awk '/^pregrant_back_missed_wakeups_total/ { print $2 }')
	# On a busy machine a guest's processor may stand still between a request and its event: that counts too.
	[ "$missed" = 0 ] || fail "wake-ups missed: ${missed:-unknown}"
	end_back || fail "not given back"
	sleep 1
}
round=0
while [ $round -lt "$ROUNDS" ]; do
	row netback
	taken
	row pregrant
	ops > /run/ops
	given_back
	round=$((round + 1))
done
# middle BACK COLUMN: median, lower and upper quartile.
middle() { awk -v back="$1" -v at="$2" '$1 == back { print $at }' /run/rows | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)], v[int((NR + 3) / 4)], v[int((3 * NR + 3) / 4)] }'; }
note "medians (and quartiles) of $ROUNDS rounds in turns, one guest  | netback | pregrant | ratio of medians"
line() {
	echo "$(middle netback "$2") $(middle pregrant "$2")" | awk '{ printf "%s (%s..%s) | %s (%s..%s) | ", $1, $2, $3, $4, $5, $6; if ($1 > 0) printf "%.2f", $4 / $1; else print "-" }' > /run/line
	note "$1 | $(cat /run/line)"
}
line "TCP to the guest, Mbit/s                      " 2
line "TCP from the guest, Mbit/s                    " 3
line "frames of 64 bytes from the guest, a second  " 4
line "dom0's CPU seconds for the TCP runs           " 5
line "dom0's CPU seconds for the small frames       " 6
note "grant operations a frame of ours, from the guest: $(awk '{ if ($1 > 0) printf "%.2f of %d frames", $2 / $1, $1; else print "none" }' /run/ops)"
ask one end
over one
! by_module || end_back || fail "the back ends with $?"
