# shows: two guests at once on Linux's netback and on `pregrant back` with one worker and with two, or the module, in turns: the sum of their TCP both ways, dom0's CPU time; with two workers both are used
# back: any
# seconds: 300
bridge
netback
linux_guest one 2
linux_guest two 3
one=$(xl domid one) two=$(xl domid two)
for who in one two; do ask $who "iperf3 -s -D" || fail "iperf3 does not serve in $who"; done
ROUNDS=${ROUNDS:-3} SECONDS_EACH=${SECONDS_EACH:-4}

# both [-R]: iperf3 at both guests at once; their Mbit/s in SUM, and the slower one's percentage of that in SLOWER.
both() {
	iperf3 -J -c 10.9.0.2 -t "$SECONDS_EACH" "$@" > /run/iperf-2.json & _first=$!
	iperf3 -J -c 10.9.0.3 -t "$SECONDS_EACH" "$@" > /run/iperf-3.json
	_status=$?
	wait $_first && [ $_status = 0 ] || { grep -h '"error"' /run/iperf-2.json /run/iperf-3.json; return 1; }
	_a=$(mbits /run/iperf-2.json) _b=$(mbits /run/iperf-3.json)
	[ "${_a:-0}" -gt 0 ] && [ "${_b:-0}" -gt 0 ] || return 1
	SUM=$((_a + _b)) SLOWER=$((100 * (_a < _b ? _a : _b) / (_a + _b)))
}
# row BACK: a line of figures.
row() {
	_began=$(dom0_seconds)
	both || fail "$1: iperf3 to the guests"
	_to=$SUM _slower_to=$SLOWER _half=$(dom0_seconds)
	both -R || fail "$1: iperf3 from the guests"
	_end=$(dom0_seconds)
	# CPU seconds for each gigabit: what comes through differs.
	echo "$_began $_half $_end $_to $SUM $SECONDS_EACH" | awk -v back="$1" -v a="$_slower_to" -v b="$SLOWER" \
		'{ print back, $4, $5, ($2 - $1) * 1000 / ($4 * $6), ($3 - $2) * 1000 / ($5 * $6), a, b, $3 - $1 }' >> /run/rows
	say "$(tail -n 1 /run/rows)"
}
# ticks: by worker, the processor's ticks that it has used.
ticks() {
	for _task in "/proc/$BACK_PID"/task/*; do
		grep -q '^worker ' "$_task/comm" && awk '{ print $(NF - 38) + $(NF - 37) }' "$_task/stat"
	done
}
# ours WORKERS: both vifs, with so many.
ours() {
	WORKERS=$1
	back --take "$one.0" --take "$two.0" --give-back "$one.0" --give-back "$two.0"
	for _id in "$one" "$two"; do back_says "vif 0 of domain $_id.*connected" || fail "domain $_id is not taken up"; done
	row "workers-$1"
	_ticks=$(ticks | tr '\n' ' ')
	_missed=$(pregrant top --prometheus - | awk '/^pregrant_back_missed_wakeups_total/ { print $2 }')
	say "$1 workers, ticks of each: $_ticks; wake-ups missed: ${_missed:-unknown}"
	for _n in $_ticks; do [ "$_n" -gt 20 ] || fail "of $1 workers one did nothing; ticks of each: $_ticks"; done
	end_back || fail "not given back"
	sleep 1
}
# by_the_module: both vifs, by linux/back's.
by_the_module() {
	[ -d /sys/module/pregrant_back ] || back
	handed one 2 vif pregrant_back
	handed two 3 vif pregrant_back
	row module
	handed one 2 pregrant_back vif
	handed two 3 pregrant_back vif
}
round=0
while [ $round -lt "$ROUNDS" ]; do
	row netback
	# Who comes first may have it better.
	if by_module; then by_the_module
	elif [ $((round % 2)) = 0 ]; then ours 1 && ours 2; else ours 2 && ours 1; fi
	round=$((round + 1))
done

# values BACK COLUMN: sorted. median BACK COLUMN. cell BACK COLUMN: median and range.
values() { awk -v back="$1" -v at="$2" '$1 == back { print $at }' /run/rows | sort -n; }
median() { values "$@" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
cell() { values "$@" | awk -v f="$3" '{ v[NR] = $1 } END { printf f " (" f ".." f ")", v[int((NR + 1) / 2)], v[1], v[NR] }'; }
ratio() { echo "$(median "$1" "$3") $(median "$2" "$3")" | awk '{ printf "%.2f", $1 / $2 }'; }
line() {
	by_module && { note "$1 | $(cell netback "$2" "$3") | $(cell module "$2" "$3") | $(ratio module netback "$2")"; return; }
	note "$1 | $(cell netback "$2" "$3") | $(cell workers-1 "$2" "$3") | $(cell workers-2 "$2" "$3") | $(ratio workers-1 netback "$2") | $(ratio workers-2 netback "$2")"
}
note "two guests at once; medians (ranges) of $ROUNDS rounds in turns, iperf3 for $SECONDS_EACH s each way"
by_module && ours="module | module to netback" || ours="1 worker | 2 workers | 1 to netback | 2 to netback"
note "                                           | netback | $ours"
line "TCP to the guests, sum, Mbit/s             " 2 %d
line "TCP from the guests, sum, Mbit/s           " 3 %d
line "dom0's CPU seconds a gigabit to them       " 4 %.2f
line "dom0's CPU seconds a gigabit from them     " 5 %.2f
line "dom0's CPU seconds, both ways              " 8 %.1f
line "the slower guest's percentage, to          " 6 %d
line "the slower guest's percentage, from        " 7 %d
for who in one two; do
	ask $who end
	over $who || fail "$who does not end"
done
back_well
! by_module || end_back || fail "the back ends with $?"
