# shows: a guest with the kernel module of linux/ is migrated live, to the same host, under TCP both ways, on netback and on `pregrant back`: its interface and its TCP connection live, numbered frames travel, and no grant is left
# unproven: Debian's Xen keeps no log of what a PV guest writes: xl migrate ends with "Failed to enable logdirty: 95", before it stops the guest
# seconds: 500
# module: yes
. /rig/module.sh
. /rig/saved.sh
bridge
frames_serve
FRAMES=${FRAMES:-2000}

# moves TEXT: there is traffic all the time.
moves() {
	_first=$(tables)
	module auto
	transfer
	lives "vif$(xl domid one).0" || fail "$1: no traffic"
	migrated one
	lives "vif$(xl domid one).0" || { ask one "dmesg | tail -n 20"; fail "$1: migrated: the TCP connection is gone"; }
	end_transfer
	pings 10.9.0.2 20 0.1 || fail "$1: $LOST of 20 pings lost"
	both_ways "$1" "$FRAMES"
	unload
	# Of another domain now: how many, and not whose.
	_after=$(tables)
	[ "$_first" = "$_after" ] || fail "$1: grants before: $_first; after: $_after"
	note "$1: migrated live, $MIGRATED rounds of pages; one connection lives; $_numbered; grants: $_after, as before"
}

# BACKS: netback, back or both.
for _back_end in $(echo "${BACKS:-netback:back}" | tr : " "); do
	$_back_end
	front_guest one 2 vcpus=2
	moves "module on $_back_end"
	ask one end
	over one || fail "the guest does not end"
	if [ $_back_end = back ]; then
		! grep -E 'ERROR|panicked' $BACK_LOG || fail "the back complains"
		end_back || fail "the back ends with $?"
	else
		no_netback
	fi
done
