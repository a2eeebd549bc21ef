# shows: a PVH guest has its root on a disk of `pregrant blkback`, which a PV guest filled: each file is what it was
# seconds: 300
image root 96
blk
disk_guest one
attach one /disks/root xvda
ask one "file_system /dev/xvda /mnt && tree /mnt" || fail "no tree: $ANSWER"
made=$ANSWER
ask one "umount /mnt" || fail "umount: $ANSWER"
ask one end
over one || fail "the guest that fills the disk does not end"
disk_guest two type=pvh "disk='$(vbd /disks/root xvda)'" more=rig.root=/dev/xvda
ask two "grep '^/dev/xvda / ' /proc/mounts" || fail "the root is not on the disk: $ANSWER"
ask two "echo here > /mark && same /" || fail "not what was written: $ANSWER"
[ "$ANSWER" = "$made" ] || fail "$ANSWER files, and not $made"
note "a PVH guest with its root on the disk: $ANSWER files, each as it was written"
ask two sync
ask two end
over two || fail "the PVH guest does not end"
end_blk || fail "the daemon ends with $?"
! grep -E 'ERROR|panicked' $BLK_LOG || fail "the daemon complains"
