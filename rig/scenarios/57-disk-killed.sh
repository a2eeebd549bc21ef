# shows: `pregrant blkback` is killed five times and dies once at each crash point under fio with verify; no I/O error in the guest, whose kernel says nothing
# seconds: 400
image one 48
blk
disk_guest one "disk='$(vbd /disks/one xvda)'"
ask one "within 20 [ -b /dev/xvda ]" || fail "the guest has no xvda"
has_rings one xvda
ask one "dmesg > /tmp/before; verified_again /dev/xvda 16" || fail "fio does not start: $ANSWER"
# lives: requests are answered, and fio goes on.
lives() { ask one "goes_on xvda"; }
lives || { blk_shows; fail "no requests"; }

now() { cut -d' ' -f1 /proc/uptime; }
# up_again WHAT: a daemon starts; how long the disk was without one, since $died.
up_again() {
	blk
	blk_says "connected" || { tail -n 20 $BLK_LOG; fail "not taken up after $1"; }
	pause=$(echo "$(now) $died" | awk '{ printf "%d", ($1 - $2) * 1000 }')
	lives || { blk_shows; ask one "cat /tmp/over /tmp/fio; dmesg | tail -n 5"; fail "$1: fio did not go on"; }
	say "$1: $pause ms until the disk was served again"
	echo "$pause" >> /run/pauses
}
for n in 1 2 3 4 5; do
	died=$(now)
	kill -KILL $BLK_PID; wait $BLK_PID
	up_again "kill $n"
done
for point in ${POINTS:-mid-frame in-responses before-publish before-notify}; do
	kill -KILL $BLK_PID; wait $BLK_PID
	PREGRANT_CRASH=$point:50 blk
	within 60 eval '! kill -0 $BLK_PID' || fail "it does not die at $point"
	wait $BLK_PID
	_status=$?
	[ $_status = 134 ] || fail "it ended with $_status at $point, and not by abort"
	died=$(now)
	up_again "died at $point"
done
end_blk && died=$(now) && up_again "SIGTERM"
ASK_SECONDS=200 ask one "verified_last" || fail "fio: $ANSWER"
note "$(wc -l < /run/pauses) deaths under fio; $ANSWER"
median=$(sort -n /run/pauses | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }')
note "without a daemon for $median ms (median; a process starts in emulated time), $(sort -n /run/pauses | tail -n 1) ms at most"
ask one "news" || fail "the guest's kernel said: $ANSWER"
! grep -E "ERROR|panicked" $BLK_LOG || fail "the daemon complains"
ask one end
over one || fail "the guest does not end"
end_blk || fail "the daemon ends with $?"
