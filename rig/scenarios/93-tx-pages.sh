# shows: how few pages a Linux guest sends from: the guest's module counts them (count_tx_pages), under iperf3 with and without sendfile, files by HTTP, bytes by a pipe, datagrams, and small requests; hit rates of tables of 64 to 16384 pages, which go on from row to row
# back: any
# seconds: 300
# module: yes
bridge
back
front_guest one 2 "memory=${MEMORY:-384}"
id=$(xl domid one)
ask one "insmod /rig/pregrant.ko count_tx_pages=1 queues=1 && addresses 2 && within 20 grep -q 1 /sys/class/net/eth0/carrier" || fail "the module does not connect: $ANSWER"
ask one "iperf3 -s -D && (turns serve 5009 > /tmp/turns 2>&1 &)" || fail "no servers: $ANSWER"
# Two sets of files: of 1 MiB, 64 of them; of 16 KiB, 256 of them.
ask one "mkdir -p /tmp/www && for k in \$(seq 64); do dd if=/dev/urandom of=/tmp/www/large\$k bs=64k count=16 2> /dev/null; done; for k in \$(seq 256); do dd if=/dev/urandom of=/tmp/www/small\$k bs=16k count=1 2> /dev/null; done; busybox httpd -p 80 -h /tmp/www" || fail "no httpd: $ANSWER"
# figures: all, new, and hits of five tables, so far.
figures() { ask one "ethtool -S eth0 | awk '/tx_pages/ { printf \"%s \", \$2 }'" && FIGURES=$ANSWER; }
# row WHAT COMMAND...: what that had the guest send from, in percent of the pages of its frames.
row() {
	_what=$1; shift
	figures || fail "no figures"
	_before=$FIGURES
	_bytes=$(count "vif$id.0" rx bytes)
	"$@" || fail "$_what"
	figures || fail "no figures"
	_bytes=$(($(count "vif$id.0" rx bytes) - _bytes))
	# What was never sent from is in no table, a larger table has more of it, and each page holds no more than a page.
	echo "$_before $FIGURES" | awk -v what="$_what" -v bytes="$_bytes" '{
		n = NF / 2
		for (i = 1; i <= n; i++) v[i] = $(i + n) - $i
		if (v[1] <= 0 || v[1] * 4096 < bytes * 0.9) exit 1
		for (i = 3; i <= n; i++) if (v[i] > v[1] - v[2] || (i > 3 && v[i] < v[i - 1] * 0.95)) exit 1
		printf "%-38s | %8d | %5.1f", what, v[1], 100 * v[2] / v[1]
		for (i = 3; i <= n; i++) printf " | %5.1f", 100 * v[i] / v[1]
		printf "\n"
	}' > /run/row || fail "$_what: figures that cannot be: $_before, $FIGURES, $_bytes bytes"
	note "$(cat /run/row)"
}
bulk() { iperf3 -c 10.9.0.2 -R -t "${SECONDS_EACH:-4}" "$@" > /run/iperf; }
sendfile() { iperf3 -c 10.9.0.2 -R -Z -t "${SECONDS_EACH:-4}" > /run/iperf; }
files() { for _k in $(seq "$2"); do wget -q -O /dev/null "http://10.9.0.2/$1$_k" || return 1; done; }
small_twice() { files small 256 && files small 256; }
large_twice() { files large 64 && files large 64; }
# As ssh sends: read to a program's buffer, and written to a socket.
piped() {
	nc -l -p 5011 0<> /run/never | wc -c > /run/piped &
	_listener=$!
	sleep 1
	ask one "cat /tmp/www/large* | nc 10.9.0.1 5011"
	within 30 [ -s /run/piped ]
	kill $_listener 2>/dev/null
	[ "$(cat /run/piped)" = 67108864 ] || { say "of 67108864 bytes $(cat /run/piped) came"; return 1; }
}
requests() { turns ask 10.9.0.2 5009 2000 > /run/turns; }
datagrams() { ask one "iperf3 -c 10.9.0.1 -p 5202 -u -b 20M -l 1400 -t 3 > /dev/null"; }
mkfifo /run/never
iperf3 -s -p 5202 -D -I /run/iperf.pid || fail "iperf3 does not serve"
note "pages of frames that the guest sent, and of them in percent: never sent from before; in a table of so many"
note "what                                   |    pages |   new |    64 |   256 |  1024 |  4096 | 16384"
row "iperf3, one connection" bulk
row "iperf3, eight connections" bulk -P 8
row "iperf3 -Z (sendfile)" sendfile
row "HTTP, 64 files of 1 MiB, twice" large_twice
row "HTTP, 256 files of 16 KiB, twice" small_twice
row "64 MiB by a pipe (as ssh, by read)" piped
row "datagrams of 1400 bytes" datagrams
row "requests of a byte" requests
kill "$(cat /run/iperf.pid)"
ask one end
over one || fail "the guest does not end"
back_well
end_back || fail "the back ends with $?"
