# shows: an unmodified Linux guest on `pregrant back` with a tap: ping, iperf3 with GSO both ways, MTU 9000, IPv6; and again with `--path map`, its frames written from the mapped pages
# workers: 1 2
# back: any
# seconds: 300
# ci: yes
bridge
frames_serve
back
linux_guest one 2
vif=vif$(xl domid one).0
pings 10.9.0.2 20 || fail "$LOST of 20 pings lost"
pings fd09::2 5 || fail "IPv6: $LOST of 5 pings lost"
ask one "iperf3 -s -D" || fail "iperf3 does not serve"
# A mean above a whole frame's 1514 bytes is of uncut segments. How much above depends on the machine: at a few Mbit/s Linux sends two
# segments at a time, which are 2962 bytes.
GSO=1600
for way in to from; do
	dir=$([ $way = to ] && echo tx || echo rx)
	bytes=$(count "$vif" $dir bytes) frames=$(count "$vif" $dir packets)
	rate=$(iperf 10.9.0.2 $([ $way = from ] && echo -R)) || fail "iperf3 $way the guest: $rate"
	size=$((($(count "$vif" $dir bytes) - bytes) / ($(count "$vif" $dir packets) - frames)))
	note "TCP $way the guest: $rate Mbit/s, $size bytes a frame"
	[ $size -gt $GSO ] || fail "no GSO $way the guest: $size bytes a frame at MTU 1500"
done
ip link set "$vif" mtu 9000 && ip link set xenbr0 mtu 9000 || fail "no MTU of 9000 in dom0"
ask one "ip link set eth0 mtu 9000" || fail "the guest takes no MTU of 9000"
bytes=$(count "$vif" tx bytes) frames=$(count "$vif" tx packets)
ping -q -c 5 -s 8900 10.9.0.2 > /run/ping || fail "no frames of 8900 bytes"
frames=$(($(count "$vif" tx packets) - frames)) bytes=$(($(count "$vif" tx bytes) - bytes))
[ $frames -lt 15 ] && [ $bytes -gt 44000 ] || fail "pings of 8900 bytes were cut: $bytes bytes in $frames frames"
rate=$(iperf 10.9.0.2 -R) || fail "iperf3 at MTU 9000: $rate"
note "TCP from the guest at MTU 9000: $rate Mbit/s"
ask one end
over one || fail "the guest does not end"
back_well strictly
end_back || fail "the back ends with $?"
# The module offers no map.
by_module && exit

# The kernel of the tap takes the payload from the guest's pages, which are mapped for that.
ip link set xenbr0 mtu 1500
back --path map
linux_guest two 3
vif=vif$(xl domid two).0
back_says "connected, .*TX map" || { cat $BACK_LOG; fail "no map"; }
pings 10.9.0.3 20 || fail "map: $LOST of 20 pings lost"
ping -q -c 5 -s 1400 10.9.0.3 > /run/ping || fail "map: no frames of 1442 bytes"
ask two "iperf3 -s -D" || fail "iperf3 does not serve"
bytes=$(count "$vif" rx bytes) frames=$(count "$vif" rx packets)
rate=$(iperf 10.9.0.3 -R) || fail "map: iperf3 from the guest: $rate"
size=$((($(count "$vif" rx bytes) - bytes) / ($(count "$vif" rx packets) - frames)))
note "TCP from the guest, by map: $rate Mbit/s, $size bytes a frame"
[ $size -gt $GSO ] || fail "map: no GSO from the guest: $size bytes a frame at MTU 1500"
ask two "killall iperf3"
frames two 10.9.0.1 --count 20000
note "by map: $(echo "$ANSWER" | rate) frames/s of 20000, none lost or damaged"
ask two end
over two || fail "the second guest does not end"
end_back || fail "the back ends with $? after map"
back_well strictly
