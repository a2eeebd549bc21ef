# shows: a back that cycles 2, 4, 5, 6 two hundred times and unmaps nothing gets one connection's pages of `pregrant front`; the next back serves the vif
# seconds: 900
bridge
back
front_guest one 2
front one 2
pings 10.9.0.2 5 || fail "$LOST of 5 pings lost"
# It leaves the vif without a peer.
end_back || fail "the back ends with $?"
{ cycling_back "$(xl domid one)" 200 2>&1; echo $? > /run/status; } | tee /run/cycles
[ "$(cat /run/status)" = 0 ] || { ask one "tail -n 5 /tmp/front.log; ps | grep 'pregrant front'"; fail "$(tail -n 1 /run/cycles)"; }
note "$(tail -n 1 /run/cycles)"
back
back_says "connected, .*TX staging, RX staging" 30 || { cat $BACK_LOG; fail "the front does not come back"; }
within 20 ping -q -c 1 -W 5 10.9.0.2 || fail "the guest does not answer"
pings 10.9.0.2 20 || fail "$LOST of 20 pings lost"
ask one 'grep -c "connected to" /tmp/front.log' && say "the front has connected $ANSWER times"
ask one 'kill $(cat /tmp/front.pid); within 10 [ ! -e /sys/class/net/eth0 ]' || fail "the front does not end"
ask one end
over one || fail "the guest does not end"
end_back || fail "the back ends with $?"
