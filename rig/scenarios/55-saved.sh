# shows: a guest on `pregrant back` is saved and restored by xl, reboots, crashes, and another begins; on the network each time
# back: any
# seconds: 300
. /rig/saved.sh
bridge
back
linux_guest one 2
ask one "echo here > /tmp/mark"
for n in 1 2; do
	old=$(xl domid one)
	saved one
	new=$(xl domid one)
	within 20 ping -q -c 1 -W 5 10.9.0.2 || fail "not on the network after xl restore"
	pings 10.9.0.2 20 0.1 || fail "$LOST of 20 pings lost"
	ask one "grep here /tmp/mark" || fail "it is not the same guest"
	ask one "iperf3 -s -D -1" || fail "iperf3 does not serve"
	mbit=$(iperf 10.9.0.2) || fail "iperf3"
	note "saved as domain $old, restored as $new: 20 pings of 20, TCP $mbit Mbit/s"
done
# It reboots: xl makes a new domain from the same configuration.
old=$(xl domid one)
renewed() { _now=$(xl domid one) && [ "$_now" != "$old" ]; }
ask one "(sleep 1; reboot -f) &"
within 60 renewed || fail "no new domain after the reboot"
up one || fail "it does not come up after the reboot"
within 10 [ ! -e "/sys/class/net/vif$old.0" ] || fail "vif$old.0 stays after the reboot"
ask one "addresses 2" || fail "no network after the reboot"
within 6 ping -q -c 1 -W 5 10.9.0.2 || fail "not on the network after the reboot"
pings 10.9.0.2 20 0.1 || fail "$LOST of 20 pings lost after the reboot"
note "rebooted as domain $(xl domid one): 20 pings of 20"
# It crashes.
old=$(xl domid one)
ask one "(sleep 1; echo c > /proc/sysrq-trigger) &"
over one || fail "a crashed guest does not end"
within 10 [ ! -e "/sys/class/net/vif$old.0" ] || fail "vif$old.0 stays after the crash"
xenstore-exists "/local/domain/0/backend/vif/$old" && fail "the crashed guest's directory stays"
# Another of its name and address.
linux_guest one 2
pings 10.9.0.2 20 0.1 || fail "$LOST of 20 pings lost after another began"
note "crashed as domain $old: its vif went, and another guest's 20 pings of 20 are answered"
ask one end
over one
back_well
end_back || fail "the back ends with $?"
