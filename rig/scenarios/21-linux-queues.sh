# shows: a Linux guest with 2 vCPUs and 2 queues on `pregrant back`, both used; 10^5 frames, each acknowledged, none lost or damaged
# workers: 1 2
# back: any
# seconds: 400
bridge
frames_serve
back
linux_guest one 2 vcpus=2 more=rig.queues=2
back_said "connected. 2 queue(s)" || { back_words; fail "not 2 queues"; }
pings 10.9.0.2 10 || fail "$LOST of 10 pings lost"
FRAMES_SECONDS=350
frames one 10.9.0.1 --count 100000
note "from the guest: $ANSWER"
# The guest chooses a queue by the flow; all of 8 and more on the same one is unlikely.
ask one "iperf3 -s -D" || fail "iperf3 does not serve"
rate=$(iperf 10.9.0.2 -R -P 8) || fail "iperf3 from the guest"
for q in 0 1; do
	ask one "awk '/-q$q-tx/ { print \$2 + \$3 }' /proc/interrupts"
	say "queue $q: $ANSWER"
	[ "${ANSWER:-0}" -gt 10 ] || fail "TX queue $q: $ANSWER interrupts"
	events="$events${events:+, }$ANSWER"
done
note "8 TCP connections from the guest: $rate Mbit/s; TX interrupts by queue: $events"
ask one end
over one || fail "the guest does not end"
back_well strictly
end_back || fail "the back ends with $?"
