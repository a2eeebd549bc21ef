# shows: `pregrant back` in a PV guest, a driver domain without a toolstack daemon, or the module with `xl devd`, which runs its scripts, serves a second guest's netfront: ping, iperf3 both ways
# back: any
# seconds: 300
by_module && cat /rig/guest.cpio /rig/driver.cpio > /run/driver.cpio
guest driver "type=${DRIVER:-pv}" job=orders $(by_module && echo memory=288 ramdisk=/run/driver.cpio || echo memory=256) config="driver_domain = 1" || fail "xl create driver"
up driver || fail "the driver domain does not come up"
ask driver "modprobe bridge; bridge" || fail "no bridge: $ANSWER"
if by_module; then
	ask driver "dmesg -c > /dev/null; kernel_back" || fail "no module: $ANSWER"
	ask driver "mkdir -p /var/run/xen /var/log/xen; xl devd -F > /tmp/devd.log 2>&1 & sleep 2; cat /tmp/devd.log; kill -0 \$!" || fail "xl devd: $ANSWER"
else
	ask driver "pregrant back ${WORKERS:+--workers $WORKERS} > /tmp/back.log 2>&1 & echo \$! > /tmp/back.pid"
	ask driver "within 20 grep ready /tmp/back.log" || { ask driver "cat /tmp/back.log"; fail "pregrant back is not ready"; }
fi
guest two job=orders "vif='mac=00:16:3e:00:00:03,bridge=xenbr0,$(by_module && echo script=/rig/vif-script,)backend=driver,untrusted'" || fail "xl create two"
two=$(xl domid two) driver=$(xl domid driver)
[ "$(xenstore-read "/local/domain/$two/device/vif/0/trusted")" = 0 ] || fail "xl does not say that the driver domain is not trusted"
up two || fail "two does not come up"
ask two "addresses 3" || fail "two has no network: $ANSWER"
ask driver "cat /tmp/*.log"
ask driver "pings 10.9.0.3 20 0.1 || { echo \$LOST; false; }" || fail "$ANSWER of 20 pings lost"
ask two "iperf3 -s -D" || fail "iperf3 does not serve"
for way in to from; do
	ask driver "iperf3 -J -c 10.9.0.3 -t 4 $([ $way = from ] && echo -R) > /tmp/iperf.json; mbits /tmp/iperf.json" || fail "iperf3 $way: $ANSWER"
	[ "${ANSWER:-0}" -gt 0 ] || fail "iperf3 $way the guest: $ANSWER"
	note "TCP $way the guest of the driver domain: $ANSWER Mbit/s"
done
ask two end
over two || fail "two does not end"
# Where no toolstack daemon takes its directory away, the back does.
ask driver "within 20 [ ! -e /sys/class/net/vif$two.0 ]" || fail "the driver domain keeps vif$two.0"
no_directory() { ! xenstore-exists "/local/domain/$driver/backend/vif/$two"; }
if by_module; then within 20 no_directory; else no_directory; fi || fail "the driver domain keeps the directory of $two's vif"
if by_module; then
	ask driver "within 10 rmmod pregrant_back && kernel_well" || fail "the module: $ANSWER"
else
	ask driver 'kill $(cat /tmp/back.pid); cat /tmp/back.log'
	ask driver '! grep -E "WARN|ERROR" /tmp/back.log' || fail "the back complains: $ANSWER"
fi
ask driver end
over driver || fail "the driver domain does not end"
