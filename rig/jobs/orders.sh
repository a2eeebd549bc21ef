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

# steps DEVICE: when each of these first is so, by /proc/uptime: it is there; it has carrier; it forwards; the bridge has carrier; it
# has sent to its guest; its guest has sent. It asks every 20 ms, and starts no process for that.
steps() {
	mkfifo /tmp/never
	_seen=" " _left=6
	while [ $_left -gt 0 ]; do
		for _file in $1/ifindex $1/carrier $1/brport/state xenbr0/carrier $1/statistics/tx_packets $1/statistics/rx_packets; do
			case $_seen in *" $_file "*) continue ;; esac
			[ -e /sys/class/net/$_file ] && read -r _now < /sys/class/net/$_file || continue
			case $_file=$_now in */ifindex=*|*/state=3|*/carrier=1|*_packets=[1-9]*) ;; *) continue ;; esac
			read -r _up _ < /proc/uptime
			echo "$_file $_up"
			_seen="$_seen$_file " _left=$((_left - 1))
		done
		read -r -t 0.02 _ <> /tmp/never
	done 2> /dev/null
	rm /tmp/never
}
# since DOMAIN LOG FILE...: milliseconds from the log's last line that this one is connected to the line that its pages are mapped, and to
# each line "WHAT UPTIME" of the files.
since() {
	_of="domain $1, .*: " _log=$2; shift 2
	{ grep "${_of}connected, " $_log | tail -n 1; grep "${_of}.*page(s) mapped at" $_log | tail -n 1 | sed 's/^/mapped /'; cat "$@"; } | awk '
		function uptime(text, at) { split(text, at, "[^0-9]+"); return mktime(at[2] " " at[3] " " at[4] " " at[5] " " at[6] " " at[7]) + at[8] / 1000 - booted }
		BEGIN { while ((getline < "/proc/timer_list") > 0) if (/offset:/ && $2 > 0) { booted = $2 / 1e9; break } }
		NR == 1 { zero = uptime($0); next }
		{ printf "%s %d, ", $1, (($1 == "mapped" ? uptime($2) : $2) - zero) * 1000 }'
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
