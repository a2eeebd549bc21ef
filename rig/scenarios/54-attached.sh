# shows: a vif that comes and goes while its guest runs: by xl network-attach and network-detach, and by nodes that are written by hand
# back: any
# seconds: 180
bridge
back
linux_guest one 2
id=$(xl domid one)
# works DEVICE VIF: the guest's new interface, with an address for itself, answers.
works() {
	ask one "within 20 [ -e /sys/class/net/$1 ]" || { xenstore-ls -p "/local/domain/$id/device/vif"; xenstore-ls -p "/local/domain/0/backend/vif/$id"; ask one "dmesg | tail -n 5"; fail "the guest has no $1"; }
	ask one "ip link set $1 up; ip addr add 10.9.1.2/24 dev $1" || fail "$1 gets no address"
	ip addr add 10.9.1.1/24 dev xenbr0
	within 10 ping -q -c 1 -W 5 10.9.1.2
	pings 10.9.1.2 20 0.1 || fail "$1: $LOST of 20 pings lost"
	[ "$(count "$2" rx packets)" -ge 20 ] || fail "they did not come through $2"
	ip addr del 10.9.1.1/24 dev xenbr0
}
# gone_from DEVICE VIF: neither end has it any more.
gone_from() {
	ask one "within 20 [ ! -e /sys/class/net/$1 ]" || fail "the guest keeps $1"
	within 10 [ ! -e "/sys/class/net/$2" ] || fail "dom0 keeps $2"
}
for n in 1 2 3; do
	xl network-attach one mac=00:16:3e:00:00:12 bridge=xenbr0 script=/rig/vif-script || fail "xl network-attach"
	works eth1 "vif$id.1"
	xl network-detach one 1 || fail "xl network-detach"
	gone_from eth1 "vif$id.1"
done
note "attached and detached by xl 3 times; no ping lost"

# By hand: what docs/protocol 2.8 says a toolstack writes, and no more.
front=/local/domain/$id/device/vif/2 back=/local/domain/0/backend/vif/$id/2
xenstore-write $front "" $back ""
xenstore-chmod $front "n$id" r0
xenstore-chmod $back n0 "r$id"
xenstore-write $back/frontend $front $back/frontend-id "$id" $back/online 1 $back/handle 2 $back/bridge xenbr0 \
	$back/mac 00:16:3e:00:00:13 $back/hotplug-status "" $back/state 1 \
	$front/backend $back $front/backend-id 0 $front/handle 2 $front/mac 00:16:3e:00:00:13 $front/state 1
within 10 [ -e "/sys/class/net/vif$id.2" ] || fail "no tap for nodes by hand"
# We are the script, too.
within 10 eval '[ "$(xenstore-read '$back'/state)" = 2 ]' && sleep 2 && [ "$(xenstore-read $back/state)" = 2 ] || fail "state $(xenstore-read $back/state), where the script has not answered"
brctl addif xenbr0 "vif$id.2" && ip link set "vif$id.2" up || fail "vif$id.2 does not join the bridge"
xenstore-write $back/hotplug-status connected
works eth1 "vif$id.2"
xenstore-write $back/online 0 $back/state 5
within 20 eval '[ "$(xenstore-read '$back'/state)" = 6 ]' || fail "not closed: state $(xenstore-read $back/state)"
xenstore-rm $front
xenstore-rm $back
gone_from eth1 "vif$id.2"
note "nodes by hand: connected after hotplug-status, 20 pings, closed to 6, gone"
# Nodes that make no sense do no harm.
xenstore-write /local/domain/0/backend/vif/$id/9/state 1 /local/domain/0/backend/vif/77/x/state 1 \
	/local/domain/0/backend/vif/78/0/frontend /local/domain/78/device/vif/0
sleep 1
pings 10.9.0.2 10 0.1 || fail "$LOST of 10 pings lost beside nodes that make no sense"
back_runs || fail "the back is gone"
xenstore-rm /local/domain/0/backend/vif/$id/9; xenstore-rm /local/domain/0/backend/vif/77; xenstore-rm /local/domain/0/backend/vif/78
back_well
ask one end
over one
end_back
