# shows: two guests at once, or four (`--set GUESTS=4`), on Linux's netback and on `pregrant back` with one worker and with two, or the module, in turns: the sum of their TCP both ways, TCP from one to another, dom0's CPU time, which with `--icount` is counted in instructions; with two workers both are used
# back: any
# seconds: 300
bridge
netback
ROUNDS=${ROUNDS:-3} SECONDS_EACH=${SECONDS_EACH:-4} GUESTS=${GUESTS:-2}
# NUMBERS: their names are guest2 and so on, by the last bytes of their addresses.
NUMBERS=$(seq 2 $((GUESTS + 1)))
for _n in $NUMBERS; do
	linux_guest "guest$_n" "$_n"
	ask "guest$_n" "iperf3 -s -D" || fail "iperf3 does not serve in guest$_n"
done

# both [-R]: iperf3 at all guests at once; their Mbit/s in SUM, and in SLOWEST what the slowest one had, in percent of an equal part.
both() {
	_runs=
	for _n in $NUMBERS; do
		iperf3 -J -c "10.9.0.$_n" -t "$SECONDS_EACH" "$@" > "/run/iperf-$_n.json" &
		_runs="$_runs $!"
	done
	for _run in $_runs; do wait "$_run" || { grep -h '"error"' /run/iperf-*.json; return 1; }; done
	SUM=0 _least=
	for _n in $NUMBERS; do
		_mbits=$(mbits "/run/iperf-$_n.json")
		[ "${_mbits:-0}" -gt 0 ] || return 1
		SUM=$((SUM + _mbits))
		[ "${_least:-$_mbits}" -lt "$_mbits" ] || _least=$_mbits
	done
	SLOWEST=$((100 * GUESTS * _least / SUM))
}
# between: iperf3 from the first guest to the second; its Mbit/s in BETWEEN.
between() {
	ask guest2 "iperf3 -J -c 10.9.0.3 -t $SECONDS_EACH > /tmp/iperf.json; mbits /tmp/iperf.json" || return 1
	BETWEEN=$ANSWER
	[ "${BETWEEN:-0}" -gt 0 ]
}
# row BACK: a line of figures.
row() {
	_began=$(dom0_seconds)
	both || fail "$1: iperf3 to the guests"
	_to=$SUM _slowest_to=$SLOWEST _half=$(dom0_seconds)
	both -R || fail "$1: iperf3 from the guests"
	_end=$(dom0_seconds)
	between || fail "$1: iperf3 between the guests: $ANSWER"
	_last=$(dom0_seconds)
	# CPU seconds for each gigabit: what comes through differs.
	echo "$_began $_half $_end $_to $SUM $SECONDS_EACH $BETWEEN $_last" | awk -v back="$1" -v a="$_slowest_to" -v b="$SLOWEST" \
		'{ print back, $4, $5, ($2 - $1) * 1000 / ($4 * $6), ($3 - $2) * 1000 / ($5 * $6), a, b, $3 - $1, $7, ($8 - $3) * 1000 / ($7 * $6) }' >> /run/rows
	say "$(tail -n 1 /run/rows)"
}
# ticks: by worker, the processor's ticks that it has used.
ticks() {
	for _task in "/proc/$BACK_PID"/task/*; do
		grep -q '^worker ' "$_task/comm" && awk '{ print $(NF - 38) + $(NF - 37) }' "$_task/stat"
	done
}
# ours WORKERS: all vifs, with so many.
ours() {
	WORKERS=$1
	_takes= _ids=
	for _n in $NUMBERS; do
		_ids="$_ids $(xl domid "guest$_n")"
		_takes="$_takes --take ${_ids##* }.0 --give-back ${_ids##* }.0"
	done
	back $_takes
	for _id in $_ids; do back_says "vif 0 of domain $_id.*connected" || fail "domain $_id is not taken up"; done
	row "workers-$1"
	_ticks=$(ticks | tr '\n' ' ')
	_missed=$(pregrant top --prometheus - | awk '/^pregrant_back_missed_wakeups_total/ { print $2 }')
	say "$1 workers, ticks of each: $_ticks; wake-ups missed: ${_missed:-unknown}"
	for _n in $_ticks; do [ "$_n" -gt 20 ] || fail "of $1 workers one did nothing; ticks of each: $_ticks"; done
	end_back || fail "not given back"
	sleep 1
}
# all_handed FROM TO
all_handed() { for _n in $NUMBERS; do handed "guest$_n" "$_n" "$1" "$2"; done; }
# by_the_module: all vifs, by linux/back's.
by_the_module() {
	[ -d /sys/module/pregrant_back ] || back
	all_handed vif pregrant_back
	row module
	all_handed pregrant_back vif
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
note "$GUESTS guests at once; medians (ranges) of $ROUNDS rounds in turns, iperf3 for $SECONDS_EACH s each way"
by_module && ours="module | module to netback" || ours="1 worker | 2 workers | 1 to netback | 2 to netback"
note "                                           | netback | $ours"
line "TCP to the guests, sum, Mbit/s             " 2 %d
line "TCP from the guests, sum, Mbit/s           " 3 %d
line "dom0's CPU seconds a gigabit to them       " 4 %.3f
line "dom0's CPU seconds a gigabit from them     " 5 %.3f
line "dom0's CPU seconds, both ways              " 8 %.1f
line "TCP from one to another, Mbit/s            " 9 %d
line "dom0's CPU seconds a gigabit between them  " 10 %.3f
line "the slowest, % of an equal part, to        " 6 %d
line "the slowest, % of an equal part, from      " 7 %d
for _n in $NUMBERS; do
	ask "guest$_n" end
	over "guest$_n" || fail "guest$_n does not end"
done
back_well
! by_module || end_back || fail "the back ends with $?"
