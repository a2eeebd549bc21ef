# shows: `xl block-detach` of a disk in use: `pregrant blkfront`, whose file a program has open, refuses and goes on, over a kill of `pregrant blkback` too, until that program ends; Linux's blkfront (5.14 and later) lets a mounted disk go at once
# seconds: 400
image one 48
image two 48
blk
disk_guest one more=rig.blkfront=no "disk='$(vbd /disks/one xvda)'"
id=$(xl domid one)
# states: of the disk's front and back.
states() { echo "$(xenstore-read "/local/domain/$id/device/vbd/$1/state") $(xenstore-read "/local/domain/0/backend/vbd/$id/$1/state")"; }
xvda=$(vbd_number xvda) xvdb=$(vbd_number xvdb)
ask one "modprobe fuse; mkdir -p /mnt; RUST_LOG=info pregrant blkfront --mount /mnt > /tmp/blkfront.log 2>&1 & echo \$! > /tmp/blkfront.pid"
ask one "within 30 [ -e /mnt/disk ]; cat /tmp/blkfront.log; [ -e /mnt/disk ]" || fail "no file: $ANSWER"
ask one 'sleep 10000 9<>/mnt/disk > /dev/null 2>&1 & echo $! > /tmp/holder'
sleep 1
! xl block-detach one xvda || fail "xl took a disk that is in use"
[ "$(states "$xvda")" = "5 5" ] || fail "front and back at $(states "$xvda")"
pregrant top --once | grep -q "Closing, in use" || { pregrant top --once; fail "top does not show it"; }
ASK_SECONDS=200 ask one "verified /mnt/disk 8" || fail "fio after the detach: $ANSWER"
note "refused by the front that is in use; then $ANSWER"
kill -KILL $BLK_PID; wait $BLK_PID
blk
blk_says "connected" || { tail -n 20 $BLK_LOG; fail "not taken up at 5"; }
ASK_SECONDS=200 ask one "verified /mnt/disk 8" || fail "fio after the kill: $ANSWER"
[ "$(states "$xvda")" = "5 5" ] || fail "front and back at $(states "$xvda")"
note "and by a successor: $ANSWER"
ask one 'kill $(cat /tmp/holder)'
within 20 eval '[ "$(states "$xvda")" = "6 6" ]' || fail "no program has it open, and it is at $(states "$xvda")"
xl block-detach one xvda || { _stores one xvda; fail "xl block-detach of a closed disk"; }
ask one 'within 20 eval "! kill -0 $(cat /tmp/blkfront.pid)"; cat /tmp/blkfront.log; grep -q "has removed the disk" /tmp/blkfront.log' || fail "blkfront stays: $ANSWER"

# The kernel's front does not refuse any more; programs that have it mounted get errors.
ask one "modprobe xen-blkfront" || fail "the guest has no blkfront: $ANSWER"
attach one /disks/two xvdb
ask one "file_system /dev/xvdb /new && echo dirty > /new/file" || fail "no file system: $ANSWER"
xl block-detach one xvdb || { _stores one xvdb; fail "xl block-detach of a disk that Linux has mounted"; }
[ -z "$(xenstore-read "/local/domain/0/backend/vbd/$id/$xvdb/state" 2> /dev/null)" ] || fail "its directory stays"
blk_says "removed" || fail "the daemon keeps it"
note "Linux $(ask one "uname -r"; echo "$ANSWER") lets a mounted disk go, and xl has it at once"
! grep -E 'ERROR|panicked' $BLK_LOG || fail "the daemon complains"
ask one end
over one || fail "the guest does not end"
end_blk || fail "the daemon ends with $?"
