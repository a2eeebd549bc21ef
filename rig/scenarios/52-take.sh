# shows: a running guest's vif goes from Linux's netback to `pregrant back` and back again, under ping and under iperf3, and the guest notices nothing
# back: process: it takes a vif, and gives it back
# seconds: 240
bridge
netback
linux_guest one 2
id=$(xl domid one)
ask one "iperf3 -s -D" || fail "iperf3 does not serve"
ask one "dmesg > /tmp/before"
there() {
	back --take "$id.0" --give-back "$id.0"
	back_says "vif 0 of domain $id.*connected" || fail "not taken up"
}
back_again() {
	end_back || fail "not given back"
	back_said "given to the kernel" || fail "not given back"
}
# pinged WHAT COMMAND: runs it while both ends ping each other; the guest's answers of 50 in ANSWERED, as its kernel counts
# them: busybox's ping has room for one or two at a time, and those that waited come together.
pinged() {
	ask one "echoes > /tmp/echoes; ping -q -i 0.2 -c 50 -W 10 10.9.0.1 > /tmp/ping &"
	ping -q -i 0.2 -c 50 -W 10 10.9.0.2 > /run/ping &
	_pinging=$!
	sleep 2
	$2
	wait $_pinging
	ASK_SECONDS=90 ask one "while pidof ping; do cat /proc/net/raw; sleep 1; done; echo \$(cat /tmp/echoes) \$(echoes)"
	ANSWERED=$(echo "$ANSWER" | awk '{ print ($3 - $1 == 50) ? $4 - $2 : "none" }')
	note "$1: of 50 pings of the guest $ANSWERED were answered; of dom0's, whose bridge has no port for a moment, $(sed -n 's/.* \([0-9]*\) packets received.*/\1/p' /run/ping)"
}
pinged "taken" there
[ "$ANSWERED" = 50 ] || fail "the guest noticed"
pinged "given back" back_again
[ "$ANSWERED" = 50 ] || fail "the guest noticed"

iperf3 -J -c 10.9.0.2 -t 30 > /run/iperf.json &
transfer=$!
sleep 2
there
sleep 4
kill -0 $transfer || fail "the transfer was over before the vif was given back"
back_again
wait $transfer || { grep error /run/iperf.json; fail "the TCP connection did not live"; }
note "TCP throughout: $(mbits /run/iperf.json) Mbit/s"
ask one "news" || fail "the guest's kernel said: $ANSWER"
ask one end
over one
