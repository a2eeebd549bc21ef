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
	lives_over saved "$1"
	saved one
	within 20 ping -q -c 1 -W 5 10.9.0.2 || { ask one "dmesg | tail -n 20"; fail "$1: not on the network after the second time"; }
	pings 10.9.0.2 20 0.1 || fail "$1: $LOST of 20 pings lost after the second time"
	unload
	# Of another domain now: how many, and not whose.
	note "$1: saved and restored twice: one connection lives; $_numbered; before: $FIRST; after: $(tables)"
}
on_backs restored vcpus=2
