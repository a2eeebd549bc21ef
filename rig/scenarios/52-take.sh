# shows: a running guest's vif goes from Linux's netback to `pregrant back` and back again, under ping and under iperf3, and the guest notices nothing
# seconds: 240
bridge
netback
linux_guest one 2
id=$(xl domid one)
ask one "iperf3 -s -D" || fail "iperf3 does not serve"
ask one "dmesg > /tmp/before"
there() {
	back --take "$id.0" --give-back "$id.0"
	within 20 grep -q "vif 0 of domain $id.*connected" $BACK_LOG || fail "not taken up"
}
back_again() {
	end_back || fail "not given back"
	grep -q "given to the kernel" $BACK_LOG || fail "not given back"
}
# pinged WHAT COMMAND: runs it while both ends ping each other; the guest's answers of 50 in ANSWERED.
pinged() {
	ask one "ping -q -i 0.2 -c 50 -W 10 10.9.0.1 > /tmp/ping &"
	ping -q -i 0.2 -c 50 -W 10 10.9.0.2 > /run/ping &
	_pinging=$!
	sleep 2
	$2
	wait $_pinging
	ASK_SECONDS=90 ask one "while pidof ping; do sleep 1; done; grep received /tmp/ping"
	ANSWERED=$(echo "$ANSWER" | sed 's/.* \([0-9]*\) packets received.*/\1/')
	note "$1: of 50 pings of the guest $ANSWERED were answered; of dom0's, whose bridge has no port for a moment, $(sed -n 's/.* \([0-9]*\) packets received.*/\1/p' /run/ping)"
}
pinged "taken" there
[ "$ANSWERED" = 50 ] || fail "the guest noticed"
pinged "given back" back_again
[ "$ANSWERED" = 50 ] || fail "the guest noticed"

iperf3 -J -c 10.9.0.2 -t 15 > /run/iperf.json &
transfer=$!
sleep 2
there
sleep 4
back_again
wait $transfer || { grep error /run/iperf.json; fail "the TCP connection did not live"; }
note "TCP throughout: $(mbits /run/iperf.json) Mbit/s"
ask one "news" || fail "the guest's kernel said: $ANSWER"
ask one end
over one
