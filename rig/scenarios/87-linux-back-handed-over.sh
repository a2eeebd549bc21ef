# shows: a running guest's vif goes from netback to the module of linux/back, to `pregrant back`, to a module that is loaded again, and back, unseen by the guest: under ping, numbered frames and iperf3; ten times the module lets go of it and takes it up, ten times it is unloaded and loaded; with the guest's module by each path; at the end it is closed on demand
# seconds: 700
# module: yes
. /rig/module.sh
bridge
frames_serve
ROUNDS=${ROUNDS:-10} PATHS=$(echo "${PATHS:-staging:gref-mapping:persistent}" | tr : " ")
TAKES=/sys/bus/xen-backend/drivers
state() { xenstore-read "/local/domain/0/backend/vif/$id/0/state"; }
driver() { basename "$(readlink "/sys/bus/xen-backend/devices/vif-$id-0/driver")"; }
# left TEXT: no driver has the vif, and its guest is not to notice.
left() {
	[ "$(state)" = 4 ] || fail "$1: the back's state is $(state)"
	[ ! -e "/sys/class/net/vif$id.0" ] || fail "$1: vif$id.0 stays"
}
# plugged TEXT: what holds the guest's frames lets go of them, once its interface forwards.
plugged() { pregrant back --give-back "$id.0" > /run/give.log 2>&1 || { cat /run/give.log; dmesg | tail -n 10; fail "$1: not plugged in"; }; }
hold() { xenstore-write "/local/domain/0/backend/vif/$id/0/rate" 1,100000000 && sleep 0.2; }
load() { insmod /rig/pregrant_back.ko || { dmesg | tail -n 20; fail "$1: the module does not load"; }; }
unload_back() { rmmod pregrant_back || fail "$1: the module stays"; }
# has TEXT DRIVER
has() { [ "$(driver)" = "$2" ] && within 5 eval '[ "$(state)" = 4 ]' || { dmesg | tail -n 10; fail "$1: $(driver) has it, the state is $(state)"; }; }

from_netback() {
	load "from netback"
	hold
	echo "vif-$id-0" > $TAKES/vif/unbind || fail "netback keeps it"
	left "netback"
	echo "vif-$id-0" > $TAKES/pregrant_back/bind || { dmesg | tail; fail "the module does not take it"; }
	plugged "from netback"
	has "from netback" pregrant_back
}
to_process() {
	back --take "$id.0" --give-back "$id.0"
	back_says "vif 0 of domain $id.*connected" || fail "not taken up"
	back_said "taken from the kernel's module" || fail "not taken from the module"
}
# sent_by_path: the process has frames of the guest by the path that they went by before.
sent_by_path() { within 10 eval '[ "$(by "$path" tx)" -gt 0 ]' || fail "$path: the process has $(by "$path" tx) frames of the guest by this path"; }
from_process() {
	end_back || fail "not given back"
	back_said "given to the kernel's module" || fail "not given to the module"
	has "from the process" pregrant_back
}
new_load() {
	unload_back "new load"
	left "new load"
	load "new load"
	plugged "new load"
	has "new load" pregrant_back
}
to_netback() {
	unload_back "to netback"
	left "to netback"
	plugged "to netback"
	has "to netback" vif
}
process_from_netback() {
	back --take "$id.0" --give-back "$id.0"
	back_says "vif 0 of domain $id.*connected" || fail "not taken up"
}
netback_to_module_by_process() {
	load "by the process"
	from_process
}
# pinged TEXT COMMAND: as in 52: of the guest's 50 pings meanwhile none is lost, as its kernel counts them.
pinged() {
	ask one "echoes > /tmp/echoes; ping -q -i 0.2 -c 50 -W 10 10.9.0.1 > /tmp/ping & echo"
	sleep 2
	$2
	ASK_SECONDS=90 ask one "while pidof ping; do sleep 1; done; echo \$(cat /tmp/echoes) \$(echoes)"
	ANSWERED=$(echo "$ANSWER" | awk '{ print ($3 - $1 == 50) ? $4 - $2 : "none" }')
	note "$1: of 50 pings of the guest $ANSWERED were answered"
	[ "$ANSWERED" = 50 ] || { dmesg | tail -n 20; fail "$1: the guest noticed"; }
}
# news: the guest's kernel has said nothing, as in 52.
quiet() { ask one "news" || fail "$1: the guest's kernel said: $ANSWER"; }
# numbered TEXT COMMAND...: frames from the guest meanwhile, none lost for good, none damaged, and how often one was sent again.
numbered() {
	_text=$1; shift
	ask one "rm -f /tmp/stop; (until [ -e /tmp/stop ]; do pregrant-lab frames --to 10.9.0.1 --count 2000 || exit; done; echo whole) > /tmp/beside 2>&1 & echo"
	sleep 1
	for _do; do $_do; sleep 1; done
	ASK_SECONDS=90 ask one "touch /tmp/stop; within 60 grep -q whole /tmp/beside" || { ask one "tail -n 3 /tmp/beside"; fail "$_text: $ANSWER"; }
	ask one "grep -c 'lost 0' /tmp/beside"; _runs=$ANSWER
	ask one "grep -v 'damaged 0' /tmp/beside | grep -c lost; true"
	[ "$ANSWER" = 0 ] || fail "$_text: damaged frames in $ANSWER runs"
	ask one "tail -n 2 /tmp/beside | head -n 1"
	note "$_text: $((_runs * 2000)) numbered frames meanwhile, none lost or damaged; the last run: $ANSWER"
}

dmesg -c > /dev/null
before=$(tables)
netback
linux_guest one 2
id=$(xl domid one)
ask one "dmesg > /tmp/before"
pinged "netback to module" from_netback
pinged "module to process" to_process
pinged "process to module" from_process
pinged "module to a new load" new_load
pinged "module to netback" to_netback
pinged "netback to process" process_from_netback
pinged "process to module again" netback_to_module_by_process
quiet "pinged"
numbered "all ways" to_process from_process new_load to_netback from_netback new_load
quiet "numbered"
kernel_well

ask one "iperf3 -s -D --rcv-timeout 3600000" || fail "iperf3 does not serve"
iperf3 -J --bidir --rcv-timeout 3600000 -c 10.9.0.2 -t 3600 > /run/live.json & TRANSFER=$!
lives "vif$id.0" || fail "no traffic"
for round in $(seq "$ROUNDS"); do
	echo "vif-$id-0" > $TAKES/pregrant_back/unbind || fail "round $round: not unbound"
	left "round $round"
	echo "vif-$id-0" > $TAKES/pregrant_back/bind || fail "round $round: not bound"
	plugged "round $round"
	sleep 1
done
lives "vif$id.0" || fail "unbound and bound: TCP does not go on"
note "unbound and bound $ROUNDS times under iperf3 both ways, which lives"
for round in $(seq "$ROUNDS"); do
	new_load
	sleep 1
done
lives "vif$id.0" || fail "unloaded and loaded: TCP does not go on"
end_transfer
note "unloaded and loaded $ROUNDS times under iperf3 both ways, which lives"
quiet "rounds"
kernel_well

# On demand it is closed: the toolstack's `online`.
xenstore-write "/local/domain/0/backend/vif/$id/0/online" 0
echo "vif-$id-0" > $TAKES/pregrant_back/unbind || fail "not unbound"
[ "$(state)" = 6 ] || fail "online = 0, and the back's state is $(state)"
ask one end
over one || fail "the guest does not end"

# The guest's module, by paths whose memory the keys name.
no_netback
front_guest one 2 memory=256
id=$(xl domid one)
for path in $PATHS; do
	module "$path" queues=1
	within 20 eval "ethtool -i vif$id.0 | grep -qx 'firmware-version: $path'" || { ethtool -i "vif$id.0"; fail "$path: not by this path"; }
	# A front that connects again loses its carrier.
	ask one "dmesg > /tmp/before; cat /sys/class/net/eth0/carrier_changes"; changes=$ANSWER
	numbered "$path" new_load to_process sent_by_path from_process
	within 20 eval "ethtool -i vif$id.0 | grep -qx 'firmware-version: $path'" || { ethtool -i "vif$id.0"; fail "$path: taken up, and by another path"; }
	ask one "cat /sys/class/net/eth0/carrier_changes"
	note "$path: the carrier changed $changes times in the guest, afterwards $ANSWER"
	[ "$changes" = "$ANSWER" ] || fail "$path: the guest connected again"
	unload
	kernel_well
done
# A guest that goes while the module does: xenbus takes the vif away twice.
xl destroy one
rmmod pregrant_back || fail "the module stays"
over one || fail "the guest does not end"
within 10 [ ! -e "/sys/class/net/vif$id.0" ] || fail "vif$id.0 stays"
kernel_well
! grep -E 'ERROR|panicked' $BACK_LOG || fail "the back complains"
no_netback
after=$(tables)
[ "$before" = "$after" ] || fail "grants before: $before; after: $after"
note "unloaded: $after"
