# shows: a guest with the kernel module of linux/ is migrated live, to the same host, under TCP both ways, on netback and on `pregrant back`: its interface and its TCP connection live, numbered frames travel, and no grant is left
# unproven: Debian's Xen keeps no log of what a PV guest writes: xl migrate ends with "Failed to enable logdirty: 95", before it stops the guest; a PVH guest (KIND=pvh) ends in a triple fault under TCP, as in 71, before it is migrated
# seconds: 500
# module: yes
. /rig/module.sh
. /rig/saved.sh
bridge
frames_serve
FRAMES=${FRAMES:-2000}

# moves TEXT
moves() {
	lives_over migrated "$1"
	unload
	# Of another domain now: how many, and not whose.
	_after=$(tables)
	[ "$FIRST" = "$_after" ] || fail "$1: grants before: $FIRST; after: $_after"
	note "$1: migrated live, $MIGRATED rounds of pages; one connection lives; $_numbered; grants: $_after, as before"
}
# KIND: of guest.
on_backs moves vcpus=2 type="${KIND:-pv}"
