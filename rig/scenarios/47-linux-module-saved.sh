# shows: a guest with the kernel module of linux/ is saved and restored by xl, on netback and on `pregrant back`: its interface and its TCP connection live, numbered frames travel, and no grant is left
# seconds: 400
# module: yes
. /rig/module.sh
. /rig/saved.sh
bridge
frames_serve
FRAMES=${FRAMES:-2000}

# restored TEXT
restored() {
	_first=$(tables)
	module auto
	transfer
	lives "vif$(xl domid one).0" || fail "$1: no traffic"
	saved one
	lives "vif$(xl domid one).0" || { ask one "dmesg | tail -n 20"; fail "$1: restored: the TCP connection is gone"; }
	end_transfer
	pings 10.9.0.2 20 0.1 || fail "$1: $LOST of 20 pings lost"
	both_ways "$1" "$FRAMES"
	saved one
	within 20 ping -q -c 1 -W 5 10.9.0.2 || { ask one "dmesg | tail -n 20"; fail "$1: not on the network after the second time"; }
	pings 10.9.0.2 20 0.1 || fail "$1: $LOST of 20 pings lost after the second time"
	unload
	# Of another domain now: how many, and not whose.
	_after=$(tables)
	note "$1: saved and restored twice: one connection lives; $_numbered; before: $_first; after: $_after"
}

netback
front_guest one 2 vcpus=2
restored "module on netback"
ask one end
over one || fail "the guest does not end"
no_netback

back
front_guest one 2 vcpus=2
restored "module on pregrant back"
! grep -E 'ERROR|panicked' $BACK_LOG || fail "the back complains"
ask one end
over one || fail "the guest does not end"
end_back || fail "the back ends with $?"
