# shows: an unmodified Linux guest on `pregrant back` with a tap: ping, iperf3 with GSO both ways, MTU 9000, IPv6
# seconds: 180
# ci: yes
bridge
back
linux_guest one 2
vif=vif$(xl domid one).0
pings 10.9.0.2 20 || fail "$LOST of 20 pings lost"
pings fd09::2 5 || fail "IPv6: $LOST of 5 pings lost"
ask one "iperf3 -s -D" || fail "iperf3 does not serve"
for way in to from; do
	dir=$([ $way = to ] && echo tx || echo rx)
	bytes=$(count "$vif" $dir bytes) frames=$(count "$vif" $dir packets)
	rate=$(iperf 10.9.0.2 $([ $way = from ] && echo -R)) || fail "iperf3 $way the guest"
	size=$((($(count "$vif" $dir bytes) - bytes) / ($(count "$vif" $dir packets) - frames)))
	note "TCP $way the guest: $rate Mbit/s, $size bytes a frame"
	[ $size -gt 3000 ] || fail "no GSO $way the guest: $size bytes a frame at MTU 1500"
done
ip link set "$vif" mtu 9000 && ip link set xenbr0 mtu 9000 || fail "no MTU of 9000 in dom0"
ask one "ip link set eth0 mtu 9000" || fail "the guest takes no MTU of 9000"
bytes=$(count "$vif" tx bytes) frames=$(count "$vif" tx packets)
ping -q -c 5 -s 8900 10.9.0.2 > /run/ping || fail "no frames of 8900 bytes"
frames=$(($(count "$vif" tx packets) - frames)) bytes=$(($(count "$vif" tx bytes) - bytes))
[ $frames -lt 15 ] && [ $bytes -gt 44000 ] || fail "pings of 8900 bytes were cut: $bytes bytes in $frames frames"
rate=$(iperf 10.9.0.2 -R) || fail "iperf3 at MTU 9000"
note "TCP from the guest at MTU 9000: $rate Mbit/s"
ask one end
over one || fail "the guest does not end"
end_back || fail "the back ends with $?"
! grep -E 'WARN|ERROR' $BACK_LOG || fail "the back complains"
