# shows: `pregrant front --path gref-mapping` on Linux's netback, then on `pregrant back` that takes its rings, on netback again, and again taken: each time its pages are mapped where the back maps, and no frame is lost or damaged
# seconds: 300
bridge
frames_serve
netback
front_guest one 2
front one 2 --path gref-mapping
id=$(xl domid one)
said() { within 20 eval 'ask one "grep -c \"$1\" /tmp/front.log" && [ "$ANSWER" -ge '"$2"' ]'; }
# by_mapping: frames that the back has moved by mapping, both ways.
by_mapping() {
	pregrant top --prometheus - | awk 'index($1, "pregrant_queue_gref_mapped_frames_total{") == 1 { sum += $2 } END { printf "%d", sum }'
}
said "the back keeps no page mapped" 1 || fail "netback does not say that it maps nothing: $ANSWER"
frames one 10.9.0.1 --count 2000
note "on netback: $(echo "$ANSWER" | rate) frames/s, by grants"
for n in 1 2; do
	back --take "$id.0" --give-back "$id.0"
	back_says "vif 0 of domain $id.*connected" || fail "taking $n: the rings are not taken"
	back_says "page(s) mapped at the guest's request" || fail "taking $n: the front does not ask for its pages: $(ask one 'tail -n 3 /tmp/front.log')"
	said "the back keeps the pages mapped" "$n" || fail "taking $n: the front does not know: $ANSWER"
	before=$(by_mapping)
	frames one 10.9.0.1 --count 20000
	mapped=$(($(by_mapping) - before))
	[ "$mapped" -ge 36000 ] || fail "taking $n: of 20000 frames each way $mapped went by mapping"
	note "taken, $n: 20000 frames each way, none lost or damaged, $mapped by mapping"
	end_back || fail "taking $n: not given back"
	back_said "given to the kernel" || fail "taking $n: not given back"
	said "the back keeps no page mapped" $((n + 1)) || fail "given back, $n: $ANSWER"
	frames one 10.9.0.1 --count 2000
	note "given back, $n: $(echo "$ANSWER" | rate) frames/s, by grants"
done
# The kernel's own, unbound and bound under the front.
echo "vif-$id-0" > /sys/bus/xen-backend/drivers/vif/unbind || fail "netback is not unbound"
echo "vif-$id-0" > /sys/bus/xen-backend/drivers/vif/bind || fail "netback is not bound"
within 20 [ -e "/sys/class/net/vif$id.0" ] || fail "netback has no interface"
brctl addif xenbr0 "vif$id.0" 2>/dev/null; ip link set "vif$id.0" up
said "the back keeps no page mapped" 4 || fail "netback, bound again, was not asked: $ANSWER"
frames one 10.9.0.1 --count 2000
note "netback unbound and bound: $(echo "$ANSWER" | rate) frames/s"
! grep -E 'ERROR|panicked' $BACK_LOG || fail "the back complains"
end_front one || fail "the front does not end"
ask one end
over one || fail "the guest does not end"
