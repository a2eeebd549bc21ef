# shows: the kernel module of linux/ in a guest, on `pregrant back`: ping, IPv6, TCP and numbered frames; TCP lives over a back that is killed, and one that ends; loaded again, no grant is left
# back: any
# seconds: 300
# ci: yes
# module: yes
. /rig/module.sh
bridge
frames_serve
FRAMES=${FRAMES:-2000}
IPERF_SECONDS=${IPERF_SECONDS:-2}

back
front_guest one 2
id=$(xl domid one)
module auto
trial "module on pregrant back"
pieces "module on pregrant back" mapped
says "module on pregrant back" "staging+gref: path=auto"
ask one "ethtool -i eth0; ethtool -l eth0; ethtool -g eth0; ethtool -S eth0" || fail "ethtool: $ANSWER"
outlives "vif$id.0"
unload
before=$(tables)
module auto
both_ways "loaded again" "$FRAMES"
unload
module auto lend_from=4096
trial "long frames in their own pages"
pieces "long frames in their own pages" auto
unload
after=$(tables)
[ "$before" = "$after" ] || fail "grants before the second load: $before; after: $after"
note "pregrant back is killed, and ends: one connection lives; unloaded: $after"
back_well
ask one end
over one || fail "the guest does not end"
end_back || fail "the back ends with $?"
