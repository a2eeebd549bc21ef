# shows: `pregrant blkfront`, a loop device on its file and a program that writes to a file system there, all in one memory cgroup of 96 MiB: all is written
# seconds: 800
image one 192
blk
disk_guest one more=rig.blkfront=no "disk='$(vbd /disks/one xvda)'"
group=/tmp/group/way
ask one "modprobe loop; modprobe -q crc32c_generic; modprobe ext4; mkdir /tmp/group && mount -t cgroup2 group /tmp/group && echo +memory > /tmp/group/cgroup.subtree_control && mkdir $group && echo 96M > $group/memory.max" || fail "no memory cgroup: $ANSWER"
# The shell that does this is in the group, and so is all that it starts.
in_group="echo 0 > $group/cgroup.procs"
ask one "modprobe fuse; mkdir -p /mnt /files; (${in_group}; RUST_LOG=info exec pregrant blkfront --mount /mnt) > /tmp/blkfront.log 2>&1 & echo \$! > /tmp/blkfront.pid"
ask one "within 30 [ -e /mnt/disk ]; cat /tmp/blkfront.log; [ -e /mnt/disk ]" || fail "no file: $ANSWER"
ask one '! grep -i "IO_FLUSHER" /tmp/blkfront.log' || fail "it is no IO_FLUSHER: $ANSWER"
ask one "/sbin/mke2fs -q -F -t ext4 /mnt/disk && losetup /dev/loop0 /mnt/disk && mount -t ext4 /dev/loop0 /files" || fail "ext4: $ANSWER"
# Half as much again as the group may have, so that it waits for its own writeback. Outside of it first, for the time that it takes here.
# written NAME [PREFIX]: a file of 144 MiB, and the seconds until it is on the disk.
written() {
	ask one "(${2:+$2; }began=\$(cut -d. -f1 /proc/uptime); yes $1 | head -c 144m > /files/$1 && sync && echo \$((\$(cut -d. -f1 /proc/uptime) - began)) > /tmp/wrote-$1) > /tmp/writer 2>&1 &"
	ASK_SECONDS=320 ask one "within 300 [ -s /tmp/wrote-$1 ]; cat /tmp/wrote-$1" || { ask one "cat /tmp/writer /tmp/blkfront.log $group/memory.events; ps -o pid,stat,comm | grep ' D'; dmesg | tail -n 12"; fail "$1: not written: $ANSWER"; }
	took=$ANSWER
	ask one "yes $1 | head -c 144m | cmp - /files/$1 && rm /files/$1" || fail "$1: other bytes: $ANSWER"
}
written outside
note "144 MiB by a program outside of the group: $took s"
written inside "$in_group"
note "144 MiB by one inside: $took s"
ask one "tr '\n' ' ' < $group/memory.events; cat $group/memory.peak"
note "the group: $ANSWER"
ask one 'umount /files && losetup -d /dev/loop0; kill $(cat /tmp/blkfront.pid); within 20 eval "! kill -0 $(cat /tmp/blkfront.pid)"; cat /tmp/blkfront.log; [ ! -e /mnt/disk ]' || fail "it does not end: $ANSWER"
ask one '! grep -E "WARN|ERROR|panicked" /tmp/blkfront.log' || fail "it complains: $ANSWER"
ask one end
over one || fail "the guest does not end"
end_blk || fail "the daemon ends with $?"
