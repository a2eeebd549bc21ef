# What guests do on a disk. Sourced by the job `orders`.

# verified DEVICE MB [ARGUMENT...]: fio writes all of the first MB, in any order and in blocks of 4 to 256 KiB, and reads it back: each
# block carries its checksum.
verified() {
	_on=$1 _mb=$2; shift 2
	fio --name=verified --filename="$_on" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bsrange=4k-256k --size="${_mb}M" \
		--verify=crc32c --verify_fatal=1 --minimal "$@" > /tmp/fio 2>&1 || { cat /tmp/fio; return 1; }
	awk -F';' 'NF > 100 { print $47 / 1024 " MiB written, " $6 / 1024 " read back, error " $5; exit $5 }' /tmp/fio
}
# iops DEVICE RW BS DEPTH [SECONDS]: how many a second.
iops() {
	fio --name=iops --filename="$1" --direct=1 --ioengine=libaio --rw="$2" --bs="$3" --iodepth="$4" --runtime="${5:-3}" --time_based \
		--minimal > /tmp/fio 2>&1 || { cat /tmp/fio; return 1; }
	awk -F';' 'NF > 100 { print int($8 + $49) }' /tmp/fio
}

# file_system DEVICE DIRECTORY: makes an ext4 and mounts it. mounted DEVICE DIRECTORY: one that is there.
# The shell takes its own mke2fs, which makes an ext2, where no path stands.
file_system() { /sbin/mke2fs -q -F -t ext4 "$1" && mounted "$@"; }
mounted() { modprobe -q crc32c_generic; modprobe ext4; mkdir -p "$2"; mount -t ext4 "$1" "$2"; }
# clean DEVICE: what e2fsck finds, with the blocks' checksums; nothing.
clean() { e2fsck -f -n "$1"; }
# tree DIRECTORY: all of this guest's files, and two hundred small ones; their checksums are with them. same DIRECTORY: they are the same yet.
tree() {
	for _part in bin sbin lib lib64 usr rig init; do cp -a "/$_part" "$1/" || return 1; done
	mkdir -p "$1/small"
	for _n in $(seq 200); do echo "file $_n" > "$1/small/$_n" || return 1; done
	( cd "$1" && find . -type f ! -name sums -exec sha256sum {} + > sums && sync && wc -l < sums )
}
same() { ( cd "$1" && sha256sum -c sums > /tmp/sums 2>&1 || { grep -v OK /tmp/sums; exit 1; } ) && wc -l < "$1/sums"; }
# size DEVICE: MiB.
size() { echo $(($(cat "/sys/block/$1/size") / 2048)); }
# requests DEVICE: how many were answered to this kernel.
requests() { awk '{ print $1 + $5 }' "/sys/block/$1/stat"; }
# goes_on DEVICE: fifty more are answered, and `verified_again` is not over.
goes_on() { within 60 more "$1" $(($(requests "$1") + 50)) && [ ! -e /tmp/over ]; }
more() { [ "$(requests "$1")" -ge "$2" ]; }
# verified_again DEVICE MB: `verified` in the background, again and again. verified_last: ends after the one that runs; how many there were.
verified_again() {
	rm -f /tmp/enough /tmp/over
	(
		_n=0
		while verified "$@"; do
			_n=$((_n + 1))
			[ -e /tmp/enough ] && { echo "verified $_n times, no error" > /tmp/over; exit; }
		done
		echo "an error after $_n times" > /tmp/over
	) > /tmp/again 2>&1 &
}
verified_last() { touch /tmp/enough; within 180 [ -e /tmp/over ]; cat /tmp/over && grep -q "no error" /tmp/over; }
# marked DEVICE N: writes N blocks of 4 KiB from the 8th MiB on, each full of its number, each flushed before the key is written.
marked() {
	for _n in $(seq "$2"); do
		yes "block $_n" | head -c 4096 > /tmp/mark
		dd if=/tmp/mark of="$1" bs=4096 seek=$((2048 + _n)) conv=notrunc,fsync 2>/dev/null || return 1
		xenstore-write data/flushed "$_n"
	done
}
