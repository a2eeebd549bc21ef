# shows: a running guest's vif goes from Linux's netback to `pregrant back` and back again, under ping and under iperf3, and the guest notices nothing
# seconds: 240
bridge
netback
linux_guest one 2
id=$(xl domid one)
ask one "iperf3 -s -D" || fail "iperf3 does not serve"
ask one "dmesg > /tmp/before"
there_and_back() {
	sleep 2
	back --take "$id.0" --give-back "$id.0"
	within 20 grep -q "vif 0 of domain $id.*connected" $BACK_LOG || fail "not taken up"
	sleep 4
	end_back || fail "not given back"
	grep -q "given to the kernel" $BACK_LOG || fail "not given back"
	sleep 2
}
ask one "ping -q -i 0.2 -c 100 -W 10 10.9.0.1 > /tmp/ping &"
ping -q -i 0.2 -c 100 -W 10 10.9.0.2 > /run/ping &
pinging=$!
there_and_back
wait $pinging
note "asked by dom0, whose bridge has no port for a moment: $(grep received /run/ping)"
ASK_SECONDS=90 ask one "while pidof ping; do sleep 1; done; grep received /tmp/ping"
note "asked by the guest: $ANSWER"
answered=$(echo "$ANSWER" | sed 's/.* \([0-9]*\) packets received.*/\1/')
# What the netback had taken from its ring, or was about to deliver, goes with it.
[ "$answered" -ge 95 ] || fail "the guest noticed"

iperf3 -J -c 10.9.0.2 -t 15 > /run/iperf.json &
transfer=$!
there_and_back
wait $transfer || { grep error /run/iperf.json; fail "the TCP connection did not live"; }
note "TCP throughout: $(mbits /run/iperf.json) Mbit/s"
ask one "dmesg | diff /tmp/before -" || fail "the guest's kernel said: $ANSWER"
ask one end
over one
