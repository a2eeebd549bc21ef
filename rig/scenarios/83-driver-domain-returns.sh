# shows: two guests with the kernel module on `pregrant back` in a PV driver domain, which is destroyed and made again, twice: their interfaces stay with index, addresses and routes, the TCP connection between them lives, grants are as before; also of a guest that is paused while its vif is detached and attached. A plain detach takes the interface; one that waits is found in another network namespace, and goes after its time, or with the module
# seconds: 700
# module: yes
. /rig/module.sh
FRAMES=${FRAMES:-500}

# driver: a driver domain that serves vifs, each time by the same address, as of one card.
driver() {
	guest driver job=orders memory=256 config="driver_domain = 1" || fail "xl create driver"
	up driver || fail "the driver domain does not come up"
	ask driver "modprobe bridge; bridge; ip link set xenbr0 address 00:16:3e:00:00:ff; pregrant back > /tmp/back.log 2>&1 & echo \$! > /tmp/back.pid" || fail "no bridge: $ANSWER"
	ask driver "within 20 grep ready /tmp/back.log" || { ask driver "cat /tmp/back.log"; fail "pregrant back is not ready"; }
}
# detach NAME [DEVID]: where its driver domain is gone xl says that there is no such back, and takes the vif away.
detach() { xl network-detach "$1" "${2:-0}" || say "xl network-detach $1: $?"; }
# attach NAME NUMBER
attach() { xl network-attach "$1" "mac=00:16:3e:00:00:0$2" bridge=xenbr0 backend=driver untrusted || fail "xl network-attach $1"; }
# connected NAME
connected() { ask "$1" "within 30 grep -q 1 /sys/class/net/eth0/carrier" || { ask "$1" "ip addr; dmesg | tail -n 20"; fail "$1: not connected"; }; }
# identity NAME FILE: what its stack has of the interface, in that file of its.
identity() { ask "$1" "(cat /sys/class/net/eth0/ifindex; ip addr show eth0; ip route) > /tmp/$2"; }
# same NAME TEXT
same() {
	identity "$1" after
	ask "$1" "diff /tmp/before /tmp/after" || fail "$2: $1's interface is not what it was"
	ask "$1" "ethtool -i eth0 | grep -q 'driver: pregrant' && [ -e /sys/class/net/eth0/device/nodename ]" || fail "$2: $1's interface has no device"
}
# granted: how many pages the module has granted, of all guests'.
granted() {
	_sum=
	for _guest in one two; do
		ask $_guest "ethtool -S eth0 | awk '/ grants:/ { n += \$2 } / grants_(ended|deferred):/ { n -= \$2 } END { print n }'"
		_sum="$_sum $ANSWER"
	done
	echo $_sum
}
# lives_on: TCP from `one` to `two` is the connection that it was, and its bytes go on. A retransmission comes no earlier than after
# as long again as there was no network, 120 s at most: the iperf3 that receives gives up no earlier.
lives_on() {
	ask two "cat /sys/class/net/eth0/statistics/rx_bytes"
	ASK_SECONDS=300 ask two "within 150 eval '[ \$(cat /sys/class/net/eth0/statistics/rx_bytes) -gt $((ANSWER + 1000000)) ]'" && ask one 'kill -0 $(cat /tmp/iperf)'
}
# stalled: what both kernels know of the connection.
stalled() {
	for _name in one two; do
		ask $_name 'date; cat /proc/net/tcp /proc/net/arp; ip addr show eth0; ip route; ethtool -S eth0 | grep -v " 0$"; grep . /sys/class/net/eth0/statistics/[rt]x_[pbd]* /sys/class/net/eth0/queues/tx-*/byte_queue_limits/*; grep -A1 Tcp: /proc/net/snmp; dmesg | tail -n 20'
	done
	ask one "tail -n 3 /tmp/iperf.log; ping -q -c 3 10.9.0.3"
	ask driver "bridge link; ip neigh; cat /proc/net/dev; ping -q -c 2 10.9.0.2; ping -q -c 2 10.9.0.3"
}
# awaits: the driver domain notes what comes before the guest answers, and when that is.
awaits() {
	_id=$(xl domid one)
	_ping='(ping -i 0.05 10.9.0.2 | { while read -r l; do case $l in *seq=*) break ;; esac; done; read -r up _ < /proc/uptime; echo "answered $up" > /tmp/answered; }) > /dev/null 2>&1 &'
	ask driver "arp -s 10.9.0.2 00:16:3e:00:00:02; (steps vif$_id.0 > /tmp/steps) & $_ping echo"
}
# answered: STEPS: milliseconds from the back's line that it is connected, by the wall clock, to those.
answered() {
	ask driver "within 30 [ -s /tmp/answered ] && since $_id /tmp/back.log /tmp/steps /tmp/answered" || { ask one "ip addr; dmesg | tail -n 20"; fail "one does not answer"; }
	STEPS=${ANSWER%, }
}

driver
for _who in one:2 two:3; do
	_name=${_who%:*} _number=${_who#*:}
	guest $_name job=orders more=rig.netfront=no "vif='mac=00:16:3e:00:00:0$_number,bridge=xenbr0,backend=driver,untrusted'" || fail "xl create $_name"
	up $_name || fail "$_name does not come up"
	ask $_name "insmod /rig/pregrant.ko && addresses $_number && ip route add 10.77.0.$_number/32 via 10.9.0.1" || fail "$_name: $ANSWER"
	connected $_name
	ask $_name "dmesg | grep 'connected: path .*the back is not trusted'" || fail "$_name trusts the driver domain"
	identity $_name before
done
ask two "iperf3 -s -D --rcv-timeout 3600000; pregrant-lab frames --serve > /dev/null 2>&1 &"
ask one "iperf3 -c 10.9.0.3 -t 3600 -i 0 > /tmp/iperf.log 2>&1 & echo \$! > /tmp/iperf"
lives_on || { stalled; ask driver "cat /tmp/back.log"; fail "no traffic"; }
before=$(granted)

# round TEXT: the driver domain is made again, and both guests' vifs.
round() {
	xl destroy driver || fail "xl destroy driver"
	ask one "within 20 grep -q 0 /sys/class/net/eth0/carrier" || fail "$1: the carrier stays"
	# No back has what is kept for the next one.
	ask one "ethtool -S eth0 | grep -q 'kept_pages: [1-9]' && echo 2 > /proc/sys/vm/drop_caches && within 10 eval 'ethtool -S eth0 | grep -q \"kept_pages: 0\"'" || { ask one "ethtool -S eth0 | head -n 20"; fail "$1: where memory is short idle pages stay"; }
	driver
	awaits
	[ "$1" = paused ] && { xl pause one || fail "xl pause"; }
	detach one
	[ "$1" = paused ] || ask one "within 20 eval 'dmesg | grep -q \"the interface waits\"'" || { ask one "dmesg | tail"; fail "no orphan"; }
	attach one 2
	[ "$1" = paused ] && xl unpause one
	detach two; attach two 3
	answered
	for _name in one two; do connected $_name; same $_name "$1"; done
	lives_on || { stalled; fail "$1: the TCP connection is gone"; }
	after=$(granted)
	[ "$before" = "$after" ] || fail "$1: pages granted before: $before; after: $after"
	note "$1: the interfaces and their TCP connection live; in ms after the back is connected: $STEPS; pages granted: $after, as before"
}
round "made again"
round "made again, again"
round paused
ask one "dmesg | grep -q 'its vif has another back'" || note "the paused guest's kernel took the device away itself"
ask one 'kill -INT $(cat /tmp/iperf)'
frames one 10.9.0.3 --count "$FRAMES"
note "numbered frames between them: ${ANSWER%%, out of*}"

# The toolstack wants a vif gone.
attach one 4
ask one "within 20 [ -e /sys/class/net/eth1 ] && ip link set eth1 up && within 20 grep -q 1 /sys/class/net/eth1/carrier" || fail "no second vif: $ANSWER"
detach one 1
ask one "within 20 [ ! -e /sys/class/net/eth1 ]" || { ask one "dmesg | tail"; fail "a detached vif's interface stays"; }
note "a plain detach takes the interface"

# In another namespace, and where the time is short.
ask one 'unshare -n sleep 10000 > /dev/null 2>&1 & echo $! > /tmp/space'
ask one 'ip link set eth0 netns $(cat /tmp/space) && there="nsenter -t $(cat /tmp/space) -n" && $there ip link set eth0 up && $there ip addr add 10.9.0.2/24 dev eth0' || fail "no namespace: $ANSWER"
ask one 'nsenter -t $(cat /tmp/space) -n ip -o link show eth0 | cut -d: -f1'; index=$ANSWER
ask two "echo 3 > /sys/module/pregrant/parameters/keep_orphans"
xl destroy driver
driver
detach two
ask two "within 20 [ ! -e /sys/class/net/eth0 ]" || fail "after its time the interface stays"
detach one
attach one 2
ask one 'within 30 eval "nsenter -t $(cat /tmp/space) -n ip link show eth0 | grep -q LOWER_UP"' || { ask one "dmesg | tail -n 20"; fail "not adopted in its namespace"; }
ask one 'nsenter -t $(cat /tmp/space) -n ip -o link show eth0 | cut -d: -f1'
[ "$ANSWER" = "$index" ] || fail "in its namespace it has index $ANSWER, not $index"
ask driver "within 20 ping -q -c 1 -W 2 10.9.0.2" || fail "no answer from the namespace"
note "adopted in another namespace; after its time an interface goes"

ask driver '! grep -E "ERROR|panicked" /tmp/back.log' || fail "the back complains: $ANSWER"
xl destroy driver
detach one
ask one 'sleep 3; nsenter -t $(cat /tmp/space) -n ip link show eth0' || fail "the interface does not wait"
for _name in one two; do
	ask $_name "rmmod pregrant" || { ask $_name "dmesg | tail"; fail "$_name: the module stays"; }
	ask $_name "! dmesg | grep -E 'WARNING|BUG|Oops|Call Trace|does not let go|did not end|broke the protocol'" || fail "$_name's kernel: $ANSWER"
done
ask one '! nsenter -t $(cat /tmp/space) -n ip link show eth0' || fail "the interface outlives its module"
note "an interface that waits goes with the module"
for _name in one two; do
	ask $_name end
	over $_name || fail "$_name does not end"
done
