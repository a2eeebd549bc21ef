# shows: a driver domain that runs `xl devd` and both of our daemons with `--hotplug toolstack`, beside the kernel's netback and blkback for the same guest: devd runs each script once and removes directories; ours serves its devices, over a kill, and removes none; or the module, which has both vifs
# back: any
# seconds: 300
cat /rig/guest.cpio /rig/driver.cpio > /run/driver.cpio
guest driver job=orders memory=288 ramdisk=/run/driver.cpio config="driver_domain = 1" || fail "xl create driver"
up driver || fail "the driver domain does not come up"
driver=$(xl domid driver) two=$(($(xl domid driver) + 1))
ours=$two.0 kernels=$two.1

ask driver "modprobe -a bridge xen-blkback loop; dmesg -c > /dev/null; $(by_module && echo kernel_back || echo netback); bridge; ip addr add 10.9.1.1/24 dev xenbr0" || fail "no bridge: $ANSWER"
ask driver "mkdir -p /disks /var/run/xen /var/log/xen; mount -t tmpfs images /disks && truncate -s 24M /disks/one /disks/two && losetup /dev/loop0 /disks/one" || fail "no images: $ANSWER"
ask driver "xl devd -F > /tmp/devd.log 2>&1 & echo \$! > /tmp/devd.pid; sleep 2; cat /tmp/devd.log; kill -0 \$(cat /tmp/devd.pid)" || fail "xl devd: $ANSWER"
# start: both daemons.
start() {
	by_module || ask driver "RUST_LOG=info pregrant back --hotplug toolstack --vif $ours >> /tmp/back.log 2>&1 & echo \$! > /tmp/back.pid"
	ask driver "RUST_LOG=info pregrant blkback --hotplug toolstack --vbd $two.$(vbd_number xvdb) >> /tmp/blkback.log 2>&1 & echo \$! > /tmp/blkback.pid"
	for _log in $(by_module || echo back) blkback; do
		ask driver "within 20 grep 'process '\$(cat /tmp/$_log.pid)': ready' /tmp/$_log.log" || { ask driver "cat /tmp/$_log.log"; fail "pregrant $_log is not ready"; }
	done
}
start

disk() { echo "'format=raw,vdev=$1,access=rw,backendtype=phy,backend=driver,script=$2,target=$3'"; }
vif() { echo "'mac=00:16:3e:00:00:1$1,bridge=xenbr0,script=/rig/vif-script,backend=driver,untrusted'"; }
disk_guest two "vif=$(vif 2), $(vif 3)" \
	"disk=$(disk xvda /rig/block-script /dev/loop0), $(disk xvdb /etc/xen/scripts/block-pregrant /disks/two)"
[ "$(xl domid two)" = $two ] || fail "the guest is domain $(xl domid two), and not $two"
ask two "addresses 2 && ip link set eth1 up && ip addr add 10.9.1.2/24 dev eth1" || fail "no two networks: $ANSWER"
ask two "within 20 [ -b /dev/xvda ] && within 20 [ -b /dev/xvdb ]" || fail "no two disks: $ANSWER"

# Who serves what.
if by_module; then
	for _n in 0 1; do ask driver "[ -e $BACK_DRIVER/vif-$two-$_n ]" || fail "vif$two.$_n is not the module's"; done
else
	ask driver "[ -e /sys/class/net/vif$ours/tun_flags ] && [ ! -e /sys/bus/xen-backend/drivers/vif/vif-$two-0 ]" || fail "vif$ours is not ours"
	ask driver "[ ! -e /sys/class/net/vif$kernels/tun_flags ] && [ -e /sys/bus/xen-backend/drivers/vif/vif-$two-1 ]" || fail "vif$kernels is not the kernel's"
fi
ask driver "[ -e /sys/bus/xen-backend/drivers/vbd/vbd-$two-$(vbd_number xvda) ] && [ ! -e /sys/bus/xen-backend/drivers/vbd/vbd-$two-$(vbd_number xvdb) ]" || fail "disks are not one the kernel's and one ours"
# works WHEN: all four.
works() {
	for _to in 10.9.0.2 10.9.1.2; do
		ask driver "within 10 ping -q -c 1 -W 5 $_to; pings $_to 20 0.1 || { echo \$LOST; false; }" || fail "$1: $_to: $ANSWER of 20 pings lost"
	done
	for _disk in xvda xvdb; do
		ASK_SECONDS=120 ask two "verified /dev/$_disk 4" || fail "$1: fio on $_disk: $ANSWER"
	done
}
works "at first"
# runs EXPECTED WHEN: the scripts that devd has run, in any order; one of ours that ran another would be here too. The block script
# of ours writes no line.
runs() {
	ask driver "sort /run/scripts.log | awk '{ printf \"%s;\", \$0 }'"
	[ "$ANSWER" = "$1" ] || { ask driver "cat /tmp/devd.log /run/scripts.log"; fail "$2: scripts were run: $ANSWER"; }
}
plugged="vbd $(vbd_number xvda) add;vif$ours online;vif$kernels online;"
runs "$plugged" "at first"

ask driver 'kill -KILL $(cat /tmp/back.pid /tmp/blkback.pid); sleep 1'
start
works "after a kill of both daemons"
runs "$plugged" "after a kill"
note "two vifs and two disks of one guest, one of each the kernel's and one ours$(by_module && echo ", or both vifs the module's"), with xl devd: 20 of 20 pings each, fio with verify, also after our daemons were killed; no script ran twice"

# Away by hand: devd runs the script and removes the directory. xl waits ten seconds for that, and a slow machine may take longer.
xl network-detach two 0 || say "xl did not wait for it"
within 60 eval '! xenstore-exists /local/domain/$driver/backend/vif/$two/0' || {
	xenstore-ls -p "/local/domain/$driver/backend/vif/$two"
	ask driver "cat /tmp/devd.log /run/scripts.log; tail -n 5 /tmp/back.log"
	fail "devd keeps the directory of vif$ours"
}
ask driver "within 10 [ ! -e /sys/class/net/vif$ours ]" || fail "the driver domain keeps vif$ours"
ask driver "within 10 grep 'vif$ours offline' /run/scripts.log" || fail "devd did not run the script for the end of vif$ours"
ask two end
over two || fail "two does not end"
within 60 eval '! xenstore-exists /local/domain/$driver/backend/vif/$two && ! xenstore-exists /local/domain/$driver/backend/vbd/$two' || {
	xenstore-ls -p "/local/domain/$driver/backend"
	fail "directories of $two stay"
}
unplugged=$(printf '%s\n' "vbd $(vbd_number xvda) add" "vbd $(vbd_number xvda) remove" "vif$ours offline" "vif$ours online" "vif$kernels offline" "vif$kernels online" | sort | tr '\n' ';')
runs "$unplugged" "at the end"
note "each script ran once with its end too, and devd removed the directories"
ask driver 'kill $(cat /tmp/*.pid); cat /tmp/*.log'
by_module && { ask driver "within 10 rmmod pregrant_back && kernel_well" || fail "the module: $ANSWER"; }
ask driver '! grep -E "WARN|ERROR|panicked" /tmp/back.log /tmp/blkback.log' || fail "ours complains: $ANSWER"
ask driver end
over driver || fail "the driver domain does not end"
