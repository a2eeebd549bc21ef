# shows: a guest is destroyed in mid-write: nothing of it stays mapped, its image has all that was flushed, and the daemon serves the other guest on
# seconds: 300
image other 32
blk
disk_guest other "disk='$(vbd /disks/other xvda)'"
ask other "within 20 [ -b /dev/xvda ] && verified_again /dev/xvda 8" || fail "the other guest has no disk: $ANSWER"
# held: what the daemon's process has. mapped grants are of the other guest's pages, which stay.
# The kernel's own threads of io_uring come and go as it likes.
held() { echo "$(ls /proc/$BLK_PID/fd | wc -l) fds, $(cat /proc/$BLK_PID/task/*/comm | grep -vc '^iou-') threads"; }
# victim NUMBER: a guest that writes and flushes is destroyed.
victim() {
	image "victim$1" 32
	disk_guest "victim$1" "disk='$(vbd "/disks/victim$1" xvda)'"
	_id=$(xl domid "victim$1")
	ask "victim$1" "within 20 [ -b /dev/xvda ] && verified_again /dev/xvda 8 && { marked /dev/xvda 1000 > /tmp/marked 2>&1 & }" || fail "no disk: $ANSWER"
	_flushed=/local/domain/$_id/data/flushed
	within 60 eval '[ "$(xenstore-read $_flushed)" -ge 20 ]' || fail "nothing is flushed"
	_n=$(xenstore-read $_flushed)
	xl destroy "victim$1" || fail "xl destroy"
	within 20 eval '! xl list | grep -q "(null)"' || { xl list; fail "the domain is not gone: somebody maps its pages"; }
	tables > /dev/null
	! grep -q "grant-table for remote d$_id " /run/tables || fail "Xen has a grant table of domain $_id yet"
	_at=1
	while [ $_at -le "$_n" ]; do
		yes "block $_at" | head -c 4096 > /run/mark
		dd if="/disks/victim$1" bs=4096 skip=$((2048 + _at)) count=1 2>/dev/null | cmp -s - /run/mark || fail "block $_at of $_n that were flushed is not in the image"
		_at=$((_at + 1))
	done
	rm "/disks/victim$1"
	say "victim $1: $_n flushed blocks are in the image; the daemon has $(held)"
}
# descriptors: where each descriptor of the daemon leads, one a line.
descriptors() { for _fd in /proc/$BLK_PID/fd/*; do readlink "$_fd"; done | sed 's/\[.*\]//' | sort; }
victim 0
before=$(held)
descriptors > /run/descriptors
for n in 1 2; do
	victim $n
	after=$(held)
	[ "$after" = "$before" ] || {
		descriptors | diff /run/descriptors -
		fail "the daemon held $before; it holds $after"
	}
done
ASK_SECONDS=200 ask other "verified_last" || fail "the other guest: $ANSWER"
note "3 guests destroyed in mid-write, each image with all that was flushed; the daemon has $after as before; the other guest: $ANSWER"
ask other end
over other || fail "the other guest does not end"
end_blk || fail "the daemon ends with $?"
! grep -E 'ERROR|panicked' $BLK_LOG || fail "the daemon complains"
