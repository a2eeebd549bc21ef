# shows: two guests of ours on the built-in switch, MTU 9000: FRAMES frames above 4096 bytes each way, all bytes compared, copied once, from one guest's pages to the other's; mapped pages and grants in use are as before, also where one guest is destroyed while frames are lent
# workers: 1 2
# back: process: its switch is the subject
# seconds: 1200
. /rig/mapped.sh
# WAYS: what the fronts ask for, by name.
FRAMES=${FRAMES:-2000} FRAMES_SECONDS=${FRAMES_SECONDS:-500} WAYS=${WAYS:-staging:persistent}
back --port switch

# as_before TEXT: no more of either than EMPTY and UNUSED.
as_before() {
	within 20 eval '[ "$(mapped)" -le "$EMPTY" ]' || fail "$1: $(mapped) pages are mapped, $EMPTY were before"
	within 20 eval '[ "$(in_use)" -le "$UNUSED" ]' || fail "$1: $(in_use) grants are in use, $UNUSED were before"
}
lent() { counted queue_lent_frames 'dir="rx"'; }
# join WAY: both guests' fronts.
join() {
	_way="--path $1"
	[ "$1" != staging ] || _way="$_way --data-len 65535 --buffers 256"
	for _guest in one two; do
		front $_guest $([ $_guest = one ] && echo 2 || echo 3) "$_way --queues 1"
		ask $_guest "ip link set eth0 mtu 9000" || fail "$_guest: MTU 9000: $ANSWER"
		ask $_guest "pregrant-lab frames --serve > /tmp/frames.log 2>&1 & echo \$! > /tmp/serve"
	done
	ask one "within 60 ping -q -c 1 -W 5 10.9.0.3" || fail "two does not answer"
}

for guest in one two; do
	front_guest $guest $([ $guest = one ] && echo 2 || echo 3)
	ask $guest "echo 8192 > /sys/module/xen_gntalloc/parameters/limit" || fail "gntalloc has no limit: $ANSWER"
done
EMPTY=$(mapped) UNUSED=$(in_use)
[ -n "$UNUSED" ] || fail "Xen prints no grant tables"
for way in $(echo "$WAYS" | tr : ' '); do
	join $way
	before=$(lent)
	frames one 10.9.0.3 --count "$FRAMES" --size 4200..8900 --window 16
	there=$(echo "$ANSWER" | rate)
	frames two 10.9.0.2 --count "$FRAMES" --size 4200..8900 --window 16
	lent=$(($(lent) - before))
	[ $lent -gt 0 ] || fail "$way: no frame was lent"
	note "$way: $FRAMES frames each way intact, $there and $(echo "$ANSWER" | rate) a second; $lent of them lent; mapped $(mapped) pages"
	for guest in one two; do
		ask $guest 'kill $(cat /tmp/serve)'
		end_front $guest || fail "$way: the front of $guest does not end"
	done
	as_before "$way"
done

join staging
before=$(lent)
ask one "pregrant-lab frames --to 10.9.0.3 --count 1000000 --size 4200..8900 --window 16 > /tmp/to.log 2>&1 & echo \$! > /tmp/to"
ask two "pregrant-lab frames --to 10.9.0.2 --count 1000000 --size 4200..8900 --window 16 > /tmp/to.log 2>&1 &"
within 60 eval '[ $(($(lent) - before)) -gt 200 ]' || fail "$(($(lent) - before)) frames were lent before the end"
both=$(mapped)
xl destroy two || fail "xl destroy"
within 20 eval '! xl list | grep -q "(null)"' || { xl list; fail "the domain is not gone: somebody maps its pages"; }
within 20 eval '[ "$(mapped)" -lt "$both" ]' || fail "of $both pages $(mapped) are mapped still"
note "one guest destroyed after $(($(lent) - before)) lent frames: mapped $both pages, then $(mapped)"
ask one 'kill $(cat /tmp/to) $(cat /tmp/serve)'
end_front one || fail "the front of the other does not end"
as_before "at the end"
ask one end
over one || fail "the other guest does not end"
end_back || fail "the back ends with $?"
! grep -E 'ERROR|panicked' $BACK_LOG || fail "the back complains"
