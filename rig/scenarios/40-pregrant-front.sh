# shows: `pregrant front --tap` in a guest, on Linux's netback and on `pregrant back` by staging, by persistent grants and by copy: ping, iperf3, 10^5 frames each
# seconds: 1100
bridge
frames_serve
# trial NAME: what a guest at 10.9.0.2 does; a line of the table.
trial() {
	say "$1: pings"
	pings 10.9.0.2 20 0.1 || fail "$1: $LOST of 20 pings lost"
	_ms=$(ping -q -c 20 -i 0.1 10.9.0.2 | sed -n 's,.*= [0-9.]*/\([0-9.]*\)/.*,\1,p')
	ping -q -c 3 fd09::2 > /run/ping || fail "$1: no IPv6"
	say "$1: $_ms ms; iperf3"
	ask one "iperf3 -s -D" || fail "iperf3 does not serve"
	_down=$(iperf 10.9.0.2) || fail "$1: iperf3 to the guest"
	_up=$(iperf 10.9.0.2 -R) || fail "$1: iperf3 from the guest"
	say "$1: $_down and $_up Mbit/s; frames"
	ask one "killall iperf3"
	frames one 10.9.0.1 --count 100000
	say "$1: $ANSWER"
	note "$1: ping $_ms ms, TCP to the guest $_down, from it $_up Mbit/s, $(echo "$ANSWER" | rate) frames/s of 10^5, none lost or damaged"
}

netback
front_guest one 2
front one 2
trial "on Linux's netback        "
end_front one || fail "the front does not end"
ask one end
over one || fail "the guest does not end"
no_netback

back
front_guest one 2
front one 2 --path staging
back_says "connected, .*TX staging, RX staging" || { cat $BACK_LOG; fail "no staging"; }
trial "on pregrant back, staging "
end_front one || fail "the front does not end"
# The same vif again: it is brought up again.
front one 2 --path persistent
back_says "connected, .*TX persistent, RX persistent" || { cat $BACK_LOG; fail "no persistent grants"; }
trial "on pregrant back, persistent"
end_front one || fail "the front does not end"
front one 2 --path copy
back_says "connected, .*TX copy, RX copy" || { cat $BACK_LOG; fail "no copy"; }
trial "on pregrant back, copy    "
end_front one || fail "the front does not end"
ask one end
over one || fail "the guest does not end"
end_back || fail "the back ends with $?"
! grep -E 'WARN|ERROR' $BACK_LOG || fail "the back complains"
