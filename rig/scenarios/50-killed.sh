# shows: the backend is killed ten times and dies once at each crash point under iperf3; the connection lives and the guest's kernel says nothing
# back: process: it dies at its crash points; 91 is the module's
# seconds: 240
bridge
back
linux_guest one 2
id=$(xl domid one)
ask one "iperf3 -s -D" || fail "iperf3 does not serve"
ask one "dmesg > /tmp/before"
iperf3 -c 10.9.0.2 -t 3600 -i 0 > /run/iperf &
transfer=$!
# lives: the connection is there, and its bytes go on.
lives() {
	_sent=$(count "vif$id.0" tx bytes)
	within 30 eval '[ $(count vif'"$id"'.0 tx bytes) -gt $(('"$_sent"' + 1000000)) ]' && kill -0 $transfer
}
lives || fail "no traffic"

# up_again WHAT: a back starts; how long the vif was without one, since $died.
now() { cut -d' ' -f1 /proc/uptime; }
up_again() {
	back
	back_says "connected, 1 queue" || fail "not taken up after $1"
	pause=$(echo "$(now) $died" | awk '{ printf "%d", ($1 - $2) * 1000 }')
	lives || fail "$1: the TCP connection did not live"
	say "$1: $pause ms until the vif was served again"
	echo "$pause" >> /run/pauses
}

for n in 1 2 3 4 5 6 7 8 9 10; do
	died=$(now)
	kill -KILL $BACK_PID; wait $BACK_PID
	up_again "kill $n"
done
kill -KILL $BACK_PID; wait $BACK_PID
for point in after-copy mid-frame in-responses before-publish before-notify; do
	PREGRANT_CRASH=$point:50 back
	back_says "connected, 1 queue" || fail "not taken up before $point"
	within 30 eval '! kill -0 $BACK_PID' || fail "it does not die at $point"
	wait $BACK_PID
	_status=$?
	[ $_status = 134 ] || fail "it ended with $_status at $point, and not by abort"
	died=$(now)
	up_again "died at $point"
	kill -KILL $BACK_PID; wait $BACK_PID
done
died=$(now)
up_again "the last one"
end_back && died=$(now) && up_again "SIGTERM"
kill -INT $transfer; wait $transfer
median=$(sort -n /run/pauses | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }')
note "$(wc -l < /run/pauses) deaths; without a back for $median ms (median; a process starts in emulated time), $(sort -n /run/pauses | tail -n 1) ms at most"
ask one "news" || fail "the guest's kernel said: $ANSWER"
! grep -E "ERROR" $BACK_LOG || fail "the back complains"
ask one end
over one
end_back
