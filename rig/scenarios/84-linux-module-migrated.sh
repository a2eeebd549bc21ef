# shows: a PVH guest with the kernel module of linux/ is migrated live, to the same host, under TCP both ways, on netback and on `pregrant back`: its interface and its TCP connection live, numbered frames travel, and grants are as before
# icount: yes
# back: any
# seconds: 500
# module: yes
. /rig/module.sh
. /rig/saved.sh
bridge
frames_serve
FRAMES=${FRAMES:-500}

# moves TEXT
moves() {
	lives_over migrated "$1"
	unload
	# Of another domain now: how many, and not whose.
	_after=$(tables)
	[ "$FIRST" = "$_after" ] || fail "$1: grants before: $FIRST; after: $_after"
	note "$1: migrated live; one connection lives; $_numbered; grants: $_after, as before"
}
# Debian's Xen keeps no log of what a PV guest writes ("Failed to enable logdirty: 95"). By several threads QEMU's SVM ends
# a PVH guest in a triple fault under TCP, as in 71; by one, as with counted instructions, it does not.
on_backs moves vcpus=2 type=pvh
