# shows: a guest with the kernel module of linux/ is saved and restored by xl, on netback and on `pregrant back`: its interface and its TCP connection live, numbered frames travel, and no grant is left; also where its back's directory cannot be read, or is gone, when it goes on, where it was saved after all, and where it is saved while its front waits for a back
# back: any
# seconds: 400
# module: yes
. /rig/module.sh
. /rig/saved.sh
bridge
frames_serve
FRAMES=${FRAMES:-2000}

# What is done to the back's directory of domain $1 before it runs, and undone.
hidden() { xenstore-chmod -r "/local/domain/0/backend/vif/$1/0" n0 || fail "xenstore-chmod"; }
shown() { xenstore-chmod -r "/local/domain/0/backend/vif/$1/0" n0 "r$1" || fail "xenstore-chmod"; }
removed() { xenstore-rm "/local/domain/0/backend/vif/$1/0" || fail "xenstore-rm"; }

# without_back TEXT: the guest runs, its interface is there, and no back is.
without_back() {
	sleep 4
	ask one "[ -e /sys/class/net/eth0 ] && [ \"\$(cat /sys/class/net/eth0/carrier)\" = 0 ]" || { ask one "dmesg | tail -n 30"; fail "$1: the interface: $ANSWER"; }
	ask one "! dmesg | grep -E 'WARNING|BUG|Oops|Call Trace'" || fail "$1: the guest's kernel: $ANSWER"
}

# lost TEXT: the connection lives over a back that is not found at first.
lost() {
	PAUSED=hidden
	saved one
	without_back "$1: a directory that cannot be read"
	shown "$(xl domid one)"
	within 20 ping -q -c 1 -W 5 10.9.0.2 || { ask one "dmesg | tail -n 30"; fail "$1: a directory that cannot be read: not found later"; }
	PAUSED=removed
	saved one
	PAUSED=
	without_back "$1: a directory that is gone"
	# The toolstack makes the vif again: the interface has waited for it.
	xl network-detach one 0 || fail "$1: xl network-detach"
	ask one "within 20 [ ! -e /sys/bus/xen/devices/vif-0 ]" || fail "$1: a directory that is gone: the vif stays"
	xl network-attach one mac=00:16:3e:00:00:02 bridge=xenbr0 script=/rig/vif-script || fail "$1: xl network-attach"
	within 20 ping -q -c 1 -W 5 10.9.0.2 || { ask one "dmesg | tail -n 30"; fail "$1: a directory that is gone: no other is taken"; }
	note "$1: a back's directory that cannot be read, or is gone, after the restore: the guest goes on, and finds it, or the next"
}

# stays TEXT: an image is written, and the guest goes on where it is.
stays() {
	xl save -c one /dev/null || fail "$1: xl save -c"
	pings 10.9.0.2 20 0.1 || { ask one "dmesg | tail -n 20"; fail "$1: not saved after all: $LOST of 20 pings lost"; }
}

# goes_on: `pregrant back`, which stood still.
goes_on() { kill -CONT $BACK_PID; }

# waits TEXT: saved while its front waits for a back that stands still.
waits() {
	kill -STOP $BACK_PID
	ask one "ethtool -L eth0 combined 1" || { goes_on; fail "$1: ethtool -L: $ANSWER"; }
	SAVED=goes_on
	saved one
	SAVED=
	within 20 ping -q -c 1 -W 5 10.9.0.2 || { ask one "dmesg | tail -n 20"; fail "$1: saved while it waits: not on the network"; }
	combined 1
	note "$1: saved while the front waits for a back that stands still"
}

# restored TEXT
restored() {
	lives_over saved "$1"
	saved one
	within 20 ping -q -c 1 -W 5 10.9.0.2 || { ask one "dmesg | tail -n 20"; fail "$1: not on the network after the second time"; }
	pings 10.9.0.2 20 0.1 || fail "$1: $LOST of 20 pings lost after the second time"
	stays "$1"
	lost "$1"
	[ -z "$BACK_PID" ] || waits "$1"
	unload
	# Of another domain now: how many, and not whose.
	note "$1: saved and restored: one connection lives; $_numbered; before: $FIRST; after: $(tables)"
}
on_backs restored vcpus=2
