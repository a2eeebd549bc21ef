# shows: `pregrant blkfront` in a guest without blkfront, on Linux's blkback: fio with verify, mkfs.ext4 and e2fsck on the file that the disk is
# seconds: 300
image one 48
blkback
block_device one
BLOCK_SCRIPT=/rig/block-script
RINGS="--queues ${QUEUES:-1} --ring-pages $((1 << ${RING_ORDER:-0}))"
disk_guest one more=rig.blkfront=no "disk='$(vbd "$DEVICE" xvda discard)'"
id=$(xl domid one)
ask one "modprobe fuse; mkdir -p /mnt; echo 4096 > /sys/module/xen_gntalloc/parameters/limit; RUST_LOG=info pregrant blkfront $RINGS --mount /mnt > /tmp/blkfront.log 2>&1 & echo \$! > /tmp/blkfront.pid"
ask one "within 30 [ -e /mnt/disk ]; cat /tmp/blkfront.log; [ -e /mnt/disk ]" || fail "no file: $ANSWER"
[ "$(xenstore-read "/local/domain/$id/device/vbd/51712/feature-persistent")" = 1 ] || fail "not by persistent grants"
has_rings one xvda
dmesg | tail -n 20 | grep "vbd/$id/51712: using ${QUEUES:-1} queues" || fail "blkback: $(dmesg | grep vbd | tail -n 2)"
ask one "ls -l /mnt/disk | awk '{ print \$5 }'" && [ "$ANSWER" = $((48 << 20)) ] || fail "a file of $ANSWER bytes"
ASK_SECONDS=200 ask one "verified /mnt/disk 16" || fail "fio: $ANSWER"
note "fio through the mount: $ANSWER"
for rw in randread randwrite; do
	ask one "iops /mnt/disk $rw 4k 16" || fail "fio $rw: $ANSWER"
	note "$rw of 4 KiB, depth 16: $ANSWER a second"
done
# Last, for it is checked below.
ask one "/sbin/mke2fs -q -F -t ext4 /mnt/disk && clean /mnt/disk" || fail "ext4: $ANSWER"
note "mkfs.ext4 and e2fsck: $ANSWER"
ask one 'kill $(cat /tmp/blkfront.pid); within 20 eval "! kill -0 $(cat /tmp/blkfront.pid)"; cat /tmp/blkfront.log; [ ! -e /mnt/disk ]' || fail "it does not end: $ANSWER"
ask one '! grep -E "WARN|ERROR|panicked" /tmp/blkfront.log' || fail "it complains: $ANSWER"
# The same disk by the kernel's, which checks what was written. It begins with a device at state 1, as the toolstack makes one.
ask one "xenstore-write device/vbd/51712/state 1 && modprobe xen-blkfront && within 20 [ -b /dev/xvda ] && clean /dev/xvda" || fail "what the kernel's blkfront reads: $ANSWER"
note "then the kernel's blkfront has the disk: $ANSWER"
ask one end
over one || fail "the guest does not end"
