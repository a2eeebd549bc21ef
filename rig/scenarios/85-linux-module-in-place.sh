# shows: the kernel module with rx_in_place: long frames go up in their pages, of a pool that grows, by ADD where the back maps pages, and gives them back where memory is short, by DEL; TCP lives over a back that is killed; no grant is left
# seconds: 400
# module: yes
. /rig/module.sh
bridge
frames_serve
FRAMES=${FRAMES:-1000}
IPERF_SECONDS=${IPERF_SECONDS:-4}
# squeezed MOST: memory is short in the guest: as many pages are left.
squeezed() { ask one "within 30 eval 'echo 2 > /proc/sys/vm/drop_caches; [ \$(ethtool -S eth0 | sed -n \"s/^ *rx_pool: //p\") -le $1 ]'"; }
# in_place TEXT VIF [mapped]: what skbs have, and what they give back.
in_place() {
	trial "$1"
	[ "$(ethtool_stat rx_in_place)" -gt 0 ] || fail "$1: no frame went up in its pages"
	_grown=$(ethtool_stat rx_pool_grown)
	[ "$_grown" -gt 0 ] || fail "$1: the pool does not grow"
	_adds=$(ethtool_stat rx_pool_adds)
	long "$1" "$2"
	# A queue keeps a page a slot.
	squeezed 256 || fail "$1: $(ethtool_stat rx_pool) pages stay"
	ask one "within 20 eval 'ethtool -S eth0 | grep -q \"rx_pool_dels: [1-9]\"'"
	_dels=$(ethtool_stat rx_pool_dels)
	if [ "$3" = mapped ]; then
		[ "$_adds" -gt 0 ] && [ "$_dels" -gt 0 ] || fail "$1: $_adds pages added, $_dels deleted"
	else
		[ "$_adds" = 0 ] && [ "$_dels" = 0 ] || fail "$1: $_adds pages added, $_dels deleted"
	fi
	_grown=$(ethtool_stat rx_pool_grown)
	trial "$1, after memory was short"
	[ "$(ethtool_stat rx_pool_grown)" -gt "$_grown" ] || fail "$1: the pool does not grow again"
	note "$1: $(ethtool_stat rx_in_place) frames went up in their pages; $(ethtool_stat rx_pool_grown) pages came, $(ethtool_stat rx_pool_shrunk) went; $(ethtool_stat rx_pool_adds) were added, $(ethtool_stat rx_pool_dels) deleted"
}
netback
front_guest one 2
module auto rx_in_place=2049
in_place "on netback" "vif$(xl domid one).0"
unload
ask one end
over one || fail "the guest does not end"
no_netback

back
front_guest one 2
id=$(xl domid one)
module auto
trial "without"
unload
before=$(tables)
module auto rx_in_place=2049
in_place "on pregrant back" "vif$id.0" mapped
outlives "vif$id.0"
unload
after=$(tables)
[ "$before" = "$after" ] || fail "grants before: $before; after: $after"
! grep -E 'ERROR|panicked' $BACK_LOG || fail "the back complains"
ask one end
over one || fail "the guest does not end"
end_back || fail "the back ends with $?"
