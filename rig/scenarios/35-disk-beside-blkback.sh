# shows: one guest with a disk on Linux's blkback and one on `pregrant blkback`, block devices in dom0's memory: IOPS in turns, dom0's CPU time
# seconds: 300
ROUNDS=${ROUNDS:-3} SECONDS_EACH=${SECONDS_EACH:-3}
modprobe brd rd_nr=2 rd_size=32768 || fail "no brd"
blkback
disk_guest one
id=$(xl domid one)
blk --vbd "$id.$(vbd_number xvdb)"
( BLOCK_SCRIPT=/rig/block-script; attach one /dev/ram0 xvda ) || exit 1
attach one /dev/ram1 xvdb
blk_says "connected" || { cat $BLK_LOG; fail "xvdb is not ours"; }
[ -e "/sys/bus/xen-backend/drivers/vbd/vbd-$id-$(vbd_number xvda)" ] || fail "the kernel's blkback has not xvda"
ask one "verified /dev/xvda 8 && verified /dev/xvdb 8" || fail "fio: $ANSWER"
# row DISK KIND RW BS DEPTH: a line of figures.
row() {
	_began=$(dom0_seconds)
	ask one "iops /dev/$1 $3 $4 $5 $SECONDS_EACH" || fail "fio $2 on $1: $ANSWER"
	echo "$1 $2 $ANSWER $(echo "$(dom0_seconds) $_began" | awk '{ printf "%.1f", $1 - $2 }')" >> /run/rows
	say "$(tail -n 1 /run/rows)"
}
round=0
while [ $round -lt "$ROUNDS" ]; do
	# Who comes first may have it better.
	disks=$([ $((round % 2)) = 0 ] && echo "xvda xvdb" || echo "xvdb xvda")
	for disk in $disks; do row $disk read-4k-1 randread 4k 1; done
	for disk in $disks; do row $disk read-4k-32 randread 4k 32; done
	for disk in $disks; do row $disk write-4k-32 randwrite 4k 32; done
	for disk in $disks; do row $disk read-256k-8 randread 256k 8; done
	for disk in $disks; do row $disk write-256k-8 randwrite 256k 8; done
	round=$((round + 1))
done
# values DISK KIND COLUMN: sorted. cell DISK KIND COLUMN: median and range.
values() { awk -v disk="$1" -v kind="$2" -v at="$3" '$1 == disk && $2 == kind { print $at }' /run/rows | sort -n; }
median() { values "$@" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
cell() { values "$@" | awk '{ v[NR] = $1 } END { printf "%s (%s..%s)", v[int((NR + 1) / 2)], v[1], v[NR] }'; }
note "medians (ranges) of $ROUNDS rounds in turns, $SECONDS_EACH s each, requests a second | blkback | pregrant | ratio | dom0's CPU seconds, blkback | pregrant"
for kind in read-4k-1 read-4k-32 write-4k-32 read-256k-8 write-256k-8; do
	ratio=$(echo "$(median xvdb $kind 3) $(median xvda $kind 3)" | awk '{ if ($2 > 0) printf "%.2f", $1 / $2; else print "-" }')
	note "$kind | $(cell xvda $kind 3) | $(cell xvdb $kind 3) | $ratio | $(cell xvda $kind 4) | $(cell xvdb $kind 4)"
done
! grep -E 'ERROR|panicked' $BLK_LOG || fail "the daemon complains"
ask one end
over one || fail "the guest does not end"
end_blk || fail "the daemon ends with $?"
