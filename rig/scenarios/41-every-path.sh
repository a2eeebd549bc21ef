# shows: `pregrant front --tap` on `pregrant back` by each path: 10^5 frames, iperf3 both ways, ten kills of the back under traffic, nothing mapped, and no grant in use, more than before
# back: any
# seconds: 2900
. /rig/mapped.sh
bridge
frames_serve
# ONLY: some of them, as `data-ring:zero-copy`.
FRAMES=${FRAMES:-100000} KILLS=${KILLS:-10} ONLY=${ONLY:-}
wanted() { case ":$ONLY:" in "::" | *":$(echo "$1" | tr -d ' '):"*) return 0 ;; *) return 1 ;; esac; }

# each METRIC BEFORE FRAMES: so many more of it than before, for each frame.
each() { echo "$(counted "$1") $2 $3" | awk '{ printf "%.2f", ($1 - $2) / $3 }'; }

# trial NAME COUNTER TX BACK -- FRONT: the two ends with these arguments; the back connects by path TX, and COUNTER has the frames that
# went this way and no other. Gref mappings are there later than the connection is: until then it is by what comes behind them.
trial() {
	_name=$1 _counter=$2 _tx=$3 _back=; shift 3
	wanted "$_name" || return 0
	while [ "$1" != -- ]; do _back="$_back $1"; shift; done
	shift
	# The module offers what the process does by default, and takes no other wish.
	by_module && [ -n "$_back" ] && return
	back $_back
	_empty=$(mapped) _unused=$(in_use)
	[ -n "$_unused" ] || fail "Xen prints no grant tables"
	front one 2 "$@"
	back_says "connected. 1 queue(s), TX.* $_tx" || { back_words | tail -n 5; fail "$_name: not connected, or not by $_tx"; }
	pings 10.9.0.2 20 0.1 || fail "$_name: $LOST of 20 pings lost"
	_first=$(mapped) _by=$(counted "queue_${_counter}_frames" 'dir="tx"')
	_of_ops=$(by_module && echo queue || echo back)_grant_operations
	_ops=$(counted $_of_ops) _calls=$(counted back_system_calls) _began=$(dom0_seconds)
	frames one 10.9.0.1 --count "$FRAMES"
	_rate=$(echo "$ANSWER" | rate)
	_cpu=$(echo "$(dom0_seconds) $_began" | awk '{ printf "%.1f", $1 - $2 }')
	_ops=$(each $_of_ops "$_ops" "$FRAMES") _calls=$(each back_system_calls "$_calls" "$FRAMES")
	_by=$(($(counted "queue_${_counter}_frames" 'dir="tx"') - _by))
	_pages=$(($(mapped) - _empty))
	[ $_pages -ge "$MORE" ] || fail "$_name: after $FRAMES frames $_pages pages are mapped, and are to be $MORE"
	[ $_by -ge "$AT_LEAST" ] || fail "$_name: of $FRAMES frames $_by are counted as $_counter, and are to be $AT_LEAST"
	ask one "iperf3 -s -D" || fail "iperf3 does not serve"
	_down=$(iperf 10.9.0.2) || fail "$_name: iperf3 to the guest"
	_up=$(iperf 10.9.0.2 -R) || fail "$_name: iperf3 from the guest"
	killed "$_name" $_back
	ask one "killall iperf3"
	_again=$(mapped)
	end_front one || fail "$_name: the front does not end"
	within 20 eval '[ $(mapped) -le '"$_empty"' ]' || fail "$_name: $(mapped) pages are mapped after the front's end, $_empty were before it"
	within 20 eval '[ $(in_use) -le '"$_unused"' ]' || fail "$_name: $(in_use) grants are in use after the front's end, $_unused were before it"
	end_back || fail "$_name: the back ends with $?"
	note "$_name: $_rate frames/s, TCP to the guest $_down, from it $_up Mbit/s; $_ops grant operations$(by_module || echo ", $_calls system calls") a frame; dom0 $_cpu s; mapped $_first pages, $_again after $KILLS kills"
}

# killed NAME BACK...: KILLS times, under one connection, which lives; each back has no more mapped than the one before.
killed() {
	_of=$1; shift
	iperf3 -c 10.9.0.2 -t 3600 -i 0 > /run/iperf & _transfer=$!
	_vif=vif$(xl domid one).0
	for _n in $(seq "$KILLS"); do
		_sent=$(count "$_vif" tx bytes)
		within 30 eval '[ $(count '"$_vif"' tx bytes) -gt '$((_sent + 300000))' ]' || fail "$_of: no traffic before kill $_n"
		kill -0 $_transfer || fail "$_of: the TCP connection did not live"
		kill_back
		back "$@"
		back_says "connected. 1 queue" || fail "$_of: not taken up after kill $_n"
	done
	_sent=$(count "$_vif" tx bytes)
	within 30 eval '[ $(count '"$_vif"' tx bytes) -gt '$((_sent + 300000))' ]' || fail "$_of: no traffic after the kills"
	kill -INT $_transfer; wait $_transfer
}

# hooked: zero copy. A hook answers echo requests in the buffers that they came in, also with another back in between.
hooked() {
	wanted zero-copy || return 0
	back
	_empty=$(mapped) _unused=$(in_use)
	front one 2 --path staging --data-len 2048 --experiment hook=tx
	back_says "connected. 1 queue(s), TX.* staging" || { back_words | tail -n 5; fail "zero copy: not connected"; }
	_by=$(counted queue_staged_frames 'dir="tx"')
	pings 10.9.0.2 1000 0.002 || fail "zero copy: $LOST of 1000 pings lost"
	_by=$(($(counted queue_staged_frames 'dir="tx"') - _by))
	[ $_by -ge 1000 ] || fail "zero copy: of 1000 answers $_by came in staging buffers"
	kill_back
	back
	back_says "connected. 1 queue" || fail "zero copy: not taken up"
	pings 10.9.0.2 1000 0.002 || fail "zero copy: $LOST of 1000 pings lost after a kill"
	ask one 'kill $(cat /tmp/front.pid); within 10 grep "hook: " /tmp/front.log; grep "hook: " /tmp/front.log' || fail "zero copy: the front does not end"
	_said=$ANSWER
	_on=$(echo "$_said" | sed -n 's/.* \([0-9]*\) sent on in their buffers.*/\1/p')
	[ "${_on:-0}" -ge 2000 ] || fail "zero copy: $_said"
	within 20 eval '[ $(mapped) -le '"$_empty"' ]' || fail "zero copy: $(mapped) pages are mapped after the front's end, $_empty were before it"
	within 20 eval '[ $(in_use) -le '"$_unused"' ]' || fail "zero copy: $(in_use) grants are in use after the front's end, $_unused were before it"
	end_back || fail "zero copy: the back ends with $?"
	note "zero copy    : $_said"
}

# xl waits for a back that offers the vif.
back
front_guest one 2
end_back || fail "the back ends with $?"
AT_LEAST=0 MORE=0
trial "copy         " staged copy -- --path copy
trial "staging+copy " staged staging --experiment path=staging+copy -- --path staging --data-len 256
trial "staging+map  " staged staging --experiment path=staging+map -- --path staging --data-len 256
# All but the first ones of a page, which is mapped for the next.
AT_LEAST=$((FRAMES * 9 / 10))
# With as many pages as the back keeps mapped (mapped-pages-max), 448 of a direction: more than both rings have slots, 512.
ask one "echo 8192 > /sys/module/xen_gntalloc/parameters/limit" || fail "gntalloc has no limit: $ANSWER"
MORE=600
trial "persistent   " persistent persistent -- --path persistent --buffers 448
trial "gref-mapping " gref_mapped copy -- --path gref-mapping --buffers 448
MORE=0
trial "staging      " staged staging -- --path staging
trial "data-ring    " data_ring data-ring -- --path data-ring
hooked
ask one end
over one || fail "the guest does not end"
back_well
