# shows: two guests, one with Linux's netfront and one with `pregrant front --tap`, on the built-in switch: ping, iperf3 both ways, frames
# workers: 1 2
# back: process: its switch is the subject
# seconds: 300
back --port switch
# The vifs have no interface in dom0: no bridge to join, and dom0 reaches no guest.
guest one job=orders "vif=$(vif_line 2)" || fail "xl create one"
up one || fail "one does not come up"
ask one "addresses 2" || fail "one has no network"
front_guest two 3
front two 3
ask one "within 60 ping -q -c 1 -W 5 10.9.0.3" || fail "two does not answer"
ask one "pings 10.9.0.3 20 0.1 || { echo \$LOST; false; }" || fail "$ANSWER of 20 pings lost"
ask two "iperf3 -s -D" || fail "iperf3 does not serve"
for way in to from; do
	ask one "iperf3 -J -c 10.9.0.3 -t 4 $([ $way = from ] && echo -R) > /tmp/iperf.json; mbits /tmp/iperf.json" || fail "iperf3 $way: $ANSWER"
	[ "${ANSWER:-0}" -gt 0 ] || fail "iperf3 $way the pregrant front: $ANSWER"
	note "TCP between the guests, $way the pregrant front: $ANSWER Mbit/s"
done
ask two "pregrant-lab frames --serve > /tmp/frames.log 2>&1 &"
frames one 10.9.0.3 --count 5000
note "frames between the guests: $ANSWER"
end_front two || fail "the front does not end"
for who in one two; do
	ask $who end
	over $who || fail "$who does not end"
done
end_back || fail "the back ends with $?"
! grep -E 'WARN|ERROR' $BACK_LOG || fail "the back complains"
