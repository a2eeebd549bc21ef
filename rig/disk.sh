# What dom0's scenarios do with disks: images, vbds by xl, guests that have one. Sourced after net.sh.

# images: /disks, in memory, where a file may have holes.
images() { [ -d /disks ] || { mkdir /disks; mount -t tmpfs -o size=256m images /disks; }; }
# image NAME MB: an empty one.
image() { images; truncate -s "$2M" "/disks/$1"; }
# held_kib NAME: the memory that an image takes: holes take none.
held_kib() { du -k "/disks/$1" | cut -f 1; }

# vbd TARGET DEVICE [MORE]: a disk in xl's syntax, for guest's disk= and for xl block-attach. Of a `phy` disk with a script xl starts
# no backend, and does not look at the target.
vbd() { echo "format=raw,vdev=$2,access=rw,backendtype=phy,script=/rig/block-script,${3:+$3,}target=$1"; }
# vbd_number DEVICE: as the store has it.
vbd_number() { case $1 in xvda) echo 51712 ;; xvdb) echo 51728 ;; xvdc) echo 51744 ;; esac; }

# blkback: the kernel's, in its place. no_blkback: away with it. block_device IMAGE: makes one of it for the kernel's, in DEVICE.
blkback() { modprobe xen-blkback || fail "no xen-blkback"; }
no_blkback() { rmmod xen-blkback 2>/dev/null; }
block_device() {
	modprobe loop
	DEVICE=$(losetup -f) && losetup "$DEVICE" "/disks/$1" || fail "no loop device for $1"
}

# disk_guest NAME [KEY=VALUE...]: a guest with what one needs on a disk, that obeys `ask`.
disk_guest() {
	_who=$1; shift
	cat /rig/guest.cpio /rig/disk.cpio > /run/disk-guest.cpio
	guest "$_who" job=orders ramdisk=/run/disk-guest.cpio "$@" || fail "xl create $_who"
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
