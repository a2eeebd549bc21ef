# shows: an unmodified Linux guest's disk on `pregrant blkback`: persistent grants and lists of segments, mkfs.ext4, a tree of files, e2fsck, fio with verify, discard, resize
# seconds: 240
# ci: yes
image one 72
blk
disk_guest one
attach one /disks/one xvda discard
ask one "dmesg | grep 'blkfront: xvda'" || fail "blkfront says nothing of xvda"
echo "$ANSWER" | grep -q 'flush diskcache: enabled; persistent grants: enabled; indirect descriptors: enabled' || fail "$ANSWER"
ask one "cat /sys/block/xvda/queue/max_segments" && note "blkfront: persistent grants and indirect descriptors, $ANSWER segments a request"
[ "${ANSWER:-0}" -gt 11 ] || fail "$ANSWER segments: no lists of them"
has_rings one xvda
ask one "ls /sys/block/xvda/mq | wc -l" && [ "$ANSWER" = "${QUEUES:-1}" ] || fail "$ANSWER queues in the guest"
blk_said "connected, ${QUEUES:-1} queue(s)" || fail "not so many at the back"

ask one "file_system /dev/xvda /mnt" || fail "no ext4: $ANSWER"
ask one "tree /mnt" || fail "no tree: $ANSWER"
ask one "umount /mnt && clean /dev/xvda" || fail "e2fsck: $ANSWER"
note "e2fsck: $ANSWER"
# Nothing of it is in the guest's memory any more.
ask one "mounted /dev/xvda /mnt && same /mnt" || fail "the tree is not the same: $ANSWER"
full=$(held_kib one)
note "$ANSWER files with the checksums that they had"
ask one "rm -r /mnt/usr && sync && fstrim -v /mnt && umount /mnt" || fail "fstrim: $ANSWER"
less=$(held_kib one)
[ $((full - less)) -gt 10000 ] || fail "fstrim: the image took $full KiB and takes $less"
ask one "blkdiscard /dev/xvda" || fail "blkdiscard: $ANSWER"
none=$(held_kib one)
[ "$none" -lt 100 ] || fail "blkdiscard: the image takes $none KiB"
note "the image in dom0 takes $full KiB, after rm and fstrim $less, after blkdiscard $none"

ask one "verified /dev/xvda 16" || fail "fio: $ANSWER"
note "fio with verify: $ANSWER"
# A disk grows while it is in use.
ask one "verified_again /dev/xvda 4"
truncate -s 96M /disks/one
ask one "within 20 eval '[ \$(size xvda) = 96 ]'; size xvda" && [ "$ANSWER" = 96 ] || fail "the disk has $ANSWER MiB, and its image 96"
ask one "verified_last" || fail "fio while the disk grows: $ANSWER"
ask one "verified /dev/xvda 4 --offset=80M" || fail "fio behind the old end: $ANSWER"
note "grown from 72 to 96 MiB under fio: the guest has it, and fio passes behind the old end"
detach one xvda
ask one end
over one || fail "the guest does not end"
end_blk || fail "the daemon ends with $?"
! grep -E 'WARN|ERROR|panicked' $BLK_LOG || fail "the daemon complains"
