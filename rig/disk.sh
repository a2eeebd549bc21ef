# What dom0's scenarios do with disks: images, vbds by xl, guests that have one. Sourced after net.sh.

# images: /disks, in memory, where a file may have holes.
images() { [ -d /disks ] || { mkdir /disks; mount -t tmpfs -o size=256m images /disks; }; }
# image NAME MB: an empty one.
image() { images; truncate -s "$2M" "/disks/$1"; }
# held_kib NAME: the memory that an image takes: holes take none.
held_kib() { du -k "/disks/$1" | cut -f 1; }

# vbd TARGET DEVICE [MORE]: a disk in xl's syntax, for guest's disk= and for xl block-attach. Of a `phy` disk with a script xl starts
# no backend, and does not read the target. BLOCK_SCRIPT: `pregrant blkback`'s, or the kernel's blkback's.
BLOCK_SCRIPT=/etc/xen/scripts/block-pregrant
vbd() { echo "format=raw,vdev=$2,access=rw,backendtype=phy,script=$BLOCK_SCRIPT,${3:+$3,}target=$1"; }
# vbd_number DEVICE: as the store has it.
vbd_number() { case $1 in xvda) echo 51712 ;; xvdb) echo 51728 ;; xvdc) echo 51744 ;; esac; }

# QUEUES, RING_ORDER: queues of each disk, and pages of a ring as the exponent of 2, at both ends, of any drivers; a queue needs
# a vCPU at both. None: a queue and a page, and what the kernel's drivers take.
# has_rings NAME DEVICE: the front has written so many.
has_rings() {
	_dir=/local/domain/$(xl domid "$1")/device/vbd/$(vbd_number "$2") _at=
	[ "${QUEUES:-1}" = 1 ] || {
		[ "$(xenstore-read "$_dir/multi-queue-num-queues")" = "$QUEUES" ] || { _stores "$1" "$2"; fail "not $QUEUES queues"; }
		_at=queue-$((QUEUES - 1))/
	}
	[ "${RING_ORDER:-0}" = 0 ] || {
		[ "$(xenstore-read "$_dir/ring-page-order")" = "$RING_ORDER" ] &&
			has_key "$_dir/${_at}ring-ref$(((1 << RING_ORDER) - 1))" || { _stores "$1" "$2"; fail "no rings of order $RING_ORDER"; }
	}
	note "${QUEUES:-1} queue(s), rings of order ${RING_ORDER:-0}"
}

# blkback: the kernel's. block_device IMAGE: makes one of it for the kernel's, in DEVICE.
blkback() {
	modprobe xen-blkback ${QUEUES:+max_queues=$QUEUES} ${RING_ORDER:+max_ring_page_order=$RING_ORDER} || fail "no xen-blkback"
}
block_device() {
	modprobe loop
	DEVICE=$(losetup -f) && losetup "$DEVICE" "/disks/$1" || fail "no loop device for $1"
}

# blk [ARGUMENT...]: starts `pregrant blkback` and waits until it is ready; its log is BLK_LOG.
BLK_LOG=/run/blkback.log
blk() {
	BLK_FROM=$(($(cat $BLK_LOG 2>/dev/null | wc -l) + 1))
	RUST_LOG=${RUST_LOG:-info} pregrant blkback ${WORKERS:+--workers $WORKERS} "$@" >> $BLK_LOG 2>&1 &
	BLK_PID=$!
	_ready="process $BLK_PID: ready"
	within 20 grep -q "$_ready" $BLK_LOG || { tail -5 $BLK_LOG; fail "pregrant blkback $*: not ready"; }
}
# blk_said PATTERN: whether the one that was started last has said so. blk_says PATTERN: waits for it.
blk_said() { tail -n "+$BLK_FROM" $BLK_LOG | grep -q "$1"; }
blk_says() { within "${2:-20}" blk_said "$1"; }
# end_blk [SIGNAL]: ends it and waits for its end.
end_blk() { kill -${1:-TERM} $BLK_PID; wait $BLK_PID; }

# blk_shows: what a failure shows of it.
blk_shows() {
	tail -n 12 $BLK_LOG
	pregrant top --once --json
	for _task in "/proc/$BLK_PID"/task/*; do echo "$(cat "$_task/comm"): $(cat "$_task/wchan"), $(grep ctxt "$_task/status" | tr '\n\t' '  ')"; done
}

# disk_guest NAME [KEY=VALUE...]: a guest with what one needs on a disk, that obeys `ask`.
disk_guest() {
	_who=$1; shift
	cat /rig/guest.cpio /rig/disk.cpio > /run/disk-guest.cpio
	_rings="${QUEUES:+rig.disk_queues=$QUEUES} ${RING_ORDER:+rig.ring_order=$RING_ORDER}"
	# Its larger file system is in memory, twice while it is unpacked.
	guest "$_who" job=orders memory=256 ramdisk=/run/disk-guest.cpio more="$_rings" "$@" || fail "xl create $_who"
	up "$_who" || fail "$_who does not come up"
}
# attach NAME TARGET DEVICE [MORE]: by xl; the guest has it then. detach NAME DEVICE: and not any more.
attach() {
	xl block-attach "$1" "$(vbd "$2" "$3" "$4")" || { _stores "$1" "$3"; fail "xl block-attach $1 $3"; }
	ask "$1" "within 20 [ -b /dev/$3 ]" || { _stores "$1" "$3"; ask "$1" "dmesg | tail -n 5"; fail "$1 has no /dev/$3"; }
}
detach() {
	xl block-detach "$1" "$2" || { _stores "$1" "$2"; fail "xl block-detach $1 $2"; }
	ask "$1" "within 20 [ ! -e /dev/$2 ]" || fail "$1 keeps /dev/$2"
}
# _stores NAME DEVICE: the two directories of a vbd.
_stores() {
	_dom=$(xl domid "$1") _dev=$(vbd_number "$2")
	xenstore-ls -p "/local/domain/$_dom/device/vbd/$_dev"
	xenstore-ls -p "/local/domain/0/backend/vbd/$_dom/$_dev"
}
