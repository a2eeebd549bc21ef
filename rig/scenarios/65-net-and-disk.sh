# shows: a guest has its vif from `pregrant back` and its disk from `pregrant blkback`, each a process: both at work, each is killed and the other goes on
# seconds: 300
bridge
image one 32
back
blk
disk_guest one "vif=$(vif_line 2)" "disk='$(vbd /disks/one xvda)'"
ask one "addresses 2 && within 20 [ -b /dev/xvda ]" || fail "no network, or no disk: $ANSWER"
has_rings one xvda
within 6 ping -q -c 1 -W 5 10.9.0.2 || fail "the guest does not answer"
ask one "iperf3 -s -D" || fail "iperf3 does not serve"
ask one "verified_again /dev/xvda 8" || fail "fio: $ANSWER"
vif=vif$(xl domid one).0
iperf3 -c 10.9.0.2 -t 3600 -i 0 > /run/iperf & transfer=$!
# lives WHAT: frames and requests go on.
lives() {
	_sent=$(count "$vif" tx bytes)
	within 60 eval '[ $(count '"$vif"' tx bytes) -gt '$((_sent + 300000))' ]' && kill -0 $transfer || fail "$1: the TCP connection did not live"
	ask one "goes_on xvda" || fail "$1: fio did not go on: $ANSWER"
}
lives "both at work"
pregrant top --once || fail "top: $?"
kill -KILL $BLK_PID; wait $BLK_PID
blk
lives "blkback killed"
kill -KILL $BACK_PID; wait $BACK_PID
back
lives "back killed"
kill -INT $transfer; wait $transfer
ASK_SECONDS=200 ask one "verified_last" || fail "fio: $ANSWER"
note "a vif under iperf3 and a disk under fio, a process each; each was killed once: the connection lived, $ANSWER"
pings 10.9.0.2 10 || fail "$LOST of 10 pings lost"
ask one end
over one || fail "the guest does not end"
end_back || fail "the back ends with $?"
end_blk || fail "the disk daemon ends with $?"
! grep -E 'ERROR|panicked' $BACK_LOG $BLK_LOG || fail "one complains"
