# shows: a Linux guest on `pregrant back --experiment tap-way=vhost`: frames of 74 and 1514 bytes and GSO both ways, whole; the backend is killed in the middle of them, leaves no worker behind, and its successor goes on
# icount: yes
# back: process: its taps are the subject
# seconds: 300
bridge
modprobe vhost_net || fail "dom0 has no vhost_net"
back --experiment tap-way=vhost
linux_guest one 2
id=$(xl domid one) vif=vif$(xl domid one).0
COUNT=${COUNT:-1000}
# helpers PID: how many threads of vhost-net's it has, as threads of the kernel (before Linux 6.4) or of its own.
helpers() { cat /proc/[0-9]*/comm "/proc/$1"/task/*/comm 2>/dev/null | grep -c "^vhost-$1$"; }
[ "$(helpers $BACK_PID)" -ge 1 ] || fail "no vhost worker: $(grep 'tap: ' $BACK_LOG)"
pings 10.9.0.2 20 || fail "$LOST of 20 pings lost"

frames_serve
ask one "pregrant-lab frames --serve > /tmp/frames.log 2>&1 & within 5 grep receiving /tmp/frames.log" || fail "frames --serve in the guest"
# Without the 42 bytes of headers.
for size in 32 1472; do
	frames one 10.9.0.1 --count "$COUNT" --size $size
	note "from the guest, $((size + 42)) bytes: $(echo "$ANSWER" | rate) frames/s of $COUNT, none lost or damaged"
	pregrant-lab frames --to 10.9.0.2 --count "$COUNT" --size $size > /run/to || fail "frames of $size bytes to the guest: $(tail -n 1 /run/to)"
	note "to the guest, $((size + 42)) bytes: $(tail -n 1 /run/to | rate) frames/s of $COUNT, none lost or damaged"
done

ask one "iperf3 -s -D" || fail "iperf3 does not serve"
for way in to from; do
	dir=$([ $way = to ] && echo tx || echo rx)
	bytes=$(count "$vif" $dir bytes) frames=$(count "$vif" $dir packets)
	rate=$(IPERF_SECONDS=2 iperf 10.9.0.2 $([ $way = from ] && echo -R)) || fail "iperf3 $way the guest"
	size=$((($(count "$vif" $dir bytes) - bytes) / ($(count "$vif" $dir packets) - frames)))
	note "TCP $way the guest: $rate Mbit/s, $size bytes a frame"
	[ $size -gt 1600 ] || fail "no GSO $way the guest: $size bytes a frame at MTU 1500"
done

# In the middle of a transfer each way, with checksums.
ask one "(pregrant-lab frames --to 10.9.0.1 --count $((20 * COUNT)); echo \$? > /tmp/sent.status) > /tmp/sent 2>&1 &"
pregrant-lab frames --to 10.9.0.2 --count $((20 * COUNT)) > /run/to 2>&1 & to=$!
iperf3 -c 10.9.0.2 -t 3600 -i 0 > /run/iperf & transfer=$!
for n in 1 2 3; do
	sleep 1
	[ $n -gt 1 ] || kill -0 $to || fail "the frames to the guest were over before the first kill"
	kill -KILL $BACK_PID; wait $BACK_PID
	within 10 eval '[ "$(helpers '$BACK_PID')" = 0 ]' || fail "kill $n: a worker of vhost-net's was left"
	[ -e "/sys/class/net/$vif" ] || fail "kill $n: the tap went"
	back --experiment tap-way=vhost
	back_says "connected, 1 queue" || fail "not taken up after kill $n"
	[ "$(helpers $BACK_PID)" -ge 1 ] || fail "no vhost worker after kill $n"
	sent=$(count "$vif" tx bytes)
	within 30 eval '[ $(count $vif tx bytes) -gt $((sent + 200000)) ]' || fail "kill $n: TCP to the guest does not go on"
done
kill -0 $transfer || fail "the TCP connection did not live"
kill -INT $transfer; wait $transfer
wait $to || fail "to the guest, over three kills: $(tail -n 1 /run/to)"
ASK_SECONDS=240 ask one 'within 200 [ -s /tmp/sent.status ]; cat /tmp/sent; [ "$(cat /tmp/sent.status)" = 0 ]' || fail "from the guest, over three kills: $ANSWER"
note "over three kills, none of $((20 * COUNT)) frames each way lost or damaged"
ask one end
over one
end_back || fail "the back ends with $?"
! grep -E 'ERROR|vhost-net is unavailable|restart.* the vhost-net|cannot measure' $BACK_LOG || fail "the back complains"
