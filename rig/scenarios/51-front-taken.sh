# shows: `pregrant front --path gref-mapping` while its back changes: by mapping on `pregrant back`; then Linux's netback takes the live rings, is unbound and bound, serves at 2 until its hotplug script has run, is taken from and given back: each time that the back's state left 4 the front asks it again, and no frame is lost or damaged
# back: process: it takes vifs, and gives them back
# seconds: 300
bridge
frames_serve
netback
front_guest one 2
id=$(xl domid one)
take() {
	back --take "$id.0" --give-back "$id.0"
	back_says "vif 0 of domain $id.*connected" || fail "the rings are not taken"
}
give() {
	end_back || fail "not given back"
	back_said "given to the kernel" || fail "not given back"
}
# Netback takes hotplug-status with it: a vif without a front would wait for that key.
front one 2
take
end_front one || fail "the front does not end"
front one 2 --path gref-mapping
# said TEXT TIMES: waits until the front's log has it so often.
said() {
	_text=$1 _times=$2
	within 20 eval 'ask one "grep -c \"$_text\" /tmp/front.log"; [ "${ANSWER:-0}" -ge "$_times" ]'
}
# by_mapping: frames of the guest that the back has moved by mapping.
by_mapping() {
	pregrant top --prometheus - | awk 'index($1, "pregrant_queue_gref_mapped_frames_total{") == 1 && /dir="tx"/ { sum += $2 } END { printf "%d", sum }'
}
# kernel unbind|bind: Linux's netback and this vif.
kernel() { echo "vif-$id-0" > "/sys/bus/xen-backend/drivers/vif/$1" || fail "netback: no $1"; }
on_bridge() {
	within 20 [ -e "/sys/class/net/vif$id.0" ] || fail "netback has no interface"
	brctl addif xenbr0 "vif$id.0" 2>/dev/null
	ip link set "vif$id.0" up
}
# Unbinding took it, and netback does not say 4 without it.
plugged() { xenstore-write "/local/domain/0/backend/vif/$id/0/hotplug-status" connected; }
# refused TIMES: netback has said so often that it maps nothing, and frames travel.
refused() {
	said "the backend keeps no page of ours mapped" "$1" || fail "netback was not asked, time $1: $(ask one 'tail -n 3 /tmp/front.log')"
	frames one 10.9.0.1 --count 2000
}
said "the back keeps the pages mapped" 1 || fail "the front's pages are not mapped: $ANSWER"
before=$(by_mapping)
frames one 10.9.0.1 --count 20000
mapped=$(($(by_mapping) - before))
[ "$mapped" -ge 18000 ] || fail "of 20000 frames $mapped went by mapping"
note "on pregrant back: 20000 frames, none lost or damaged, $mapped by mapping"
give
refused 1
# gave_up: how often the front's log says that it waits for a backend.
gave_up() { ask one "grep -c 'waits for a backend' /tmp/front.log; true"; }
gave_up
before=$ANSWER
kernel unbind
kernel bind
on_bridge
# Longer than a front waits for a back that does not answer.
_second=0
while [ $_second -lt 8 ]; do
	frames one 10.9.0.1 --count 200
	sleep 1
	_second=$((_second + 1))
done
[ "$(xenstore-read "/local/domain/0/backend/vif/$id/0/state")" = 2 ] || fail "netback is not at 2"
gave_up
[ "$ANSWER" = "$before" ] || fail "the front gave up rings that netback serves at 2: $(ask one 'tail -n 3 /tmp/front.log')"
note "on netback at 2, whose hotplug script has not run: 8 seconds and more, none of 1600 frames lost or damaged"
plugged
refused 2
note "on netback, and on netback unbound and bound: asked again each time; 2000 frames each, none lost or damaged"
take
frames one 10.9.0.1 --count 2000
give
refused 3
note "taken from netback, whose state stays 4, and given back: 2000 frames each, none lost or damaged"
! grep -E 'ERROR|panicked' $BACK_LOG || fail "the back complains"
end_front one || fail "the front does not end"
ask one end
over one || fail "the guest does not end"
