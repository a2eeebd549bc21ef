# Does what dom0 asks: runs the line in data/do; status to data/did, the last line of output to data/answer.
. /rig/net.sh
. /rig/on-disk.sh

# addresses N [DEVICE]: 10.9.0.N and fd09::N.
addresses() {
	_dev=${2:-eth0}
	echo 0 > "/proc/sys/net/ipv6/conf/$_dev/accept_dad"
	ip link set "$_dev" up && ip addr add "10.9.0.$1/24" dev "$_dev" && ip -6 addr add "fd09::$1/64" dev "$_dev"
}

# news: what the kernel has said since /tmp/before was written, but for its remarks on emulated clocks; true when nothing.
news() {
	[ -s /tmp/before ] || { echo "there is no /tmp/before"; return 1; }
	! dmesg | diff /tmp/before - | grep '^[+>]' | grep -v '^+++' | grep -v -E '\] (clocksource|hrtimer|rcu|sched_clock|tsc): '
}

# small_frames COUNT MAC [DEVICE]: as fast as the device takes them, from the kernel's pktgen; says frames a second. SIZE: bytes of
# each, without the check sequence.
small_frames() {
	_dev=${3:-eth0} _pktgen=/proc/net/pktgen
	echo rem_device_all > $_pktgen/kpktgend_0
	echo "add_device $_dev" > $_pktgen/kpktgend_0 || return 1
	for _line in "count $1" "pkt_size ${SIZE:-60}" "delay 0" "dst 10.9.0.1" "dst_mac $2" "clone_skb 0"; do
		echo "$_line" > "$_pktgen/$_dev"
	done
	echo start > $_pktgen/pgctrl
	grep -A1 '^Result: OK' "$_pktgen/$_dev" | sed -n 's/^ *\([0-9]*\)pps.*/\1/p' | grep .
}

while :; do
	order=$(xenstore-read data/do 2>/dev/null)
	if [ -z "$order" ]; then
		# A count of this guest's instructions makes that file, and gives an order before each: so none is awaited meanwhile.
		if [ -e /tmp/rarely ]; then sleep 20; else sleep 0.1; fi
		continue
	fi
	xenstore-write data/do ""
	[ "$order" = end ] && break
	( eval "$order" ) > /tmp/output 2>&1
	status=$?
	cat /tmp/output
	xenstore-write -- data/answer "$(tail -n 1 /tmp/output)"
	xenstore-write data/did $status
done
