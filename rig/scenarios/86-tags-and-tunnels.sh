# shows: 802.1Q, QinQ, VXLAN, GRE, fragments and IPv6 with extension headers, each with TCP and UDP, between dom0 and a guest, and between two: by an untouched xen-netfront, by the kernel module of linux/ and by `pregrant front --tap`, on netback and on `pregrant back`; and frames whose checksum is blank inside a tag or a tunnel, each whole at the other end
# seconds: 300
# module: yes
bridge
modprobe -a 8021q vxlan ip_gre
# FRONTS and BACKS: those that are played, with colons between them; the tap last, for behind it xen-netfront stood
# still: the vif is left at state 6, and Linux, which did not write that, seems to take it to be at 1 still. PARCELS: of each kind. FRAMES: numbered ones each way by each interface.
FRONTS=$(echo "${FRONTS:-netfront:module:tap}" | tr : " ") PARCELS=${PARCELS:-3} FRAMES=${FRAMES:-200}
IPERF_SECONDS=${IPERF_SECONDS:-1} WRONG=
# Linux finishes these before xen-netfront or netback sends them. Of the others those drivers tell the other end "blank" alone, which
# takes the outermost sum for it, or drops the frame: they are lost with each receiver.
FINISHED="ipv4 ipv4-options ipv6 ipv6-extensions 802.1q 802.1ad qinq qinq-ipv6 qinq-vxlan mpls pppoe icmp"
OTHERS="vxlan vxlan-sum gre ipip 6in4 fragment fragment-ipv6"

# starts FRONT NAME NUMBER, stops FRONT NAME: the driver of a guest's vif.
starts() {
	case $1 in
	netfront) ask "$2" "modprobe xen-netfront && within 20 [ -e /sys/class/net/eth0 ] && addresses $3" ;;
	module) ask "$2" "insmod /rig/pregrant.ko && addresses $3" ;;
	tap) front "$2" "$3" ;;
	esac || { ask "$2" "dmesg | tail -n 20"; fail "$_play: $2 has no interface: $ANSWER"; }
	ask "$2" "within 20 grep -q 1 /sys/class/net/eth0/carrier" || fail "$_play: $2 is not connected"
	within 20 ping -q -c 1 -W 5 "10.9.0.$3" || fail "$_play: $2 does not answer"
}
stops() {
	case $1 in
	netfront) ask "$2" "echo vif-0 > /sys/bus/xen/drivers/vif/unbind && rmmod xen_netfront" ;;
	module) ask "$2" "echo vif-0 > /sys/bus/xen/drivers/pregrant/unbind && rmmod pregrant" ;;
	tap) end_front "$2" ;;
	esac || fail "$_play: $2 keeps its interface: $ANSWER"
}

# at WHO COMMAND: in dom0 or in a guest; its last line in ANSWER.
at() {
	[ "$1" = dom0 ] || { ask "$@"; return; }
	( eval "$2" ) > /run/output 2>&1
	set -- $?
	cat /run/output
	ANSWER=$(tail -n 1 /run/output)
	return "$1"
}
# parcels_from SENDER RECEIVER [KIND...]: true when each came whole; ANSWER says which did not. Dom0 sends by the vif itself, as
# from a bridge behind it, and receives there.
parcels_from() {
	_sender=$1 _receiver=$2; shift 2
	case $_receiver in
	dom0) _to=$(cat /sys/class/net/xenbr0/address) _take=vif$(xl domid "$_sender").0 ;;
	one) _to=00:16:3e:00:00:02 _take=eth0 ;;
	two) _to=00:16:3e:00:00:03 _take=eth0 ;;
	esac
	_send=eth0
	[ "$_sender" != dom0 ] || _send=vif$(xl domid "$_receiver").0
	at "$_receiver" "rm -f /tmp/parcels; parcels take $_take $PARCELS $* > /tmp/parcels 2>&1 & within 10 grep taking /tmp/parcels" || fail "$_play: no one takes parcels in $_receiver: $ANSWER"
	at "$_sender" "parcels send $_send $_to $PARCELS $*" || fail "$_play: parcels of $_sender: $ANSWER"
	ASK_SECONDS=150 at "$_receiver" "within 90 grep whole /tmp/parcels; cat /tmp/parcels"
	echo "$ANSWER" | grep -q '^\([0-9]*\) of \1 whole$'
}
# parcels_of SENDER RECEIVER DRIVER: whole, but for what a driver of Linux's does not tell.
parcels_of() {
	_way="$_play, parcels from $1 to $2"
	case $3 in
	netfront | netback)
		parcels_from "$1" "$2" $FINISHED || WRONG="$WRONG; $_way: $ANSWER"
		_finished=$ANSWER
		parcels_from "$1" "$2" $OTHERS
		note "$_way: $_finished; of those that $3 does not tell: $ANSWER"
		;;
	*)
		parcels_from "$1" "$2" || WRONG="$WRONG; $_way: $ANSWER"
		note "$_way: $ANSWER"
		;;
	esac
}

# interfaces WHO OWN OTHER: of 10.9.N.OWN, as another at 10.9.N.OTHER has them.
interfaces() {
	_on=eth0
	[ "$1" != dom0 ] || _on=xenbr0
	# A line: xenstore-read makes two characters of its end.
	_make="ip link add link $_on name tag type vlan id 5 && ip link add link $_on name outer type vlan protocol 802.1ad id 7"
	_make="$_make && ip link set outer up && ip link add link outer name inner type vlan id 5 && ip link set inner mtu 1496"
	_make="$_make && parcels vxlan vx 9 10.9.0.$2 10.9.0.$3 $_on && ip tunnel add gr mode gre local 10.9.0.$2 remote 10.9.0.$3"
	at "$1" "$_make && for d in tag inner vx gr; do n=\$((n + 1)); ip link set \$d up && ip addr add 10.9.\$n.$2/24 dev \$d || exit; done" || fail "$_play: interfaces of $1: $ANSWER"
}
no_interfaces() { at "$1" "for d in inner outer tag vx; do ip link del \$d; done; ip tunnel del gr"; }
# streams FROM TO TEXT ADDRESS_FROM ADDRESS_TO: TCP each way, by one connection each, and numbered datagrams each way. None serves longer.
streams() {
	_failed=
	at "$2" "iperf3 -s -D; pregrant-lab frames --serve > /dev/null 2>&1 & echo \$! > /tmp/serve; sleep 0.5"
	for _reverse in "" -R; do
		at "$1" "iperf3 -J -c $5 -t $IPERF_SECONDS --connect-timeout 5000 $_reverse > /tmp/iperf.json; mbits /tmp/iperf.json"
		[ "${ANSWER:-0}" -gt 0 ] || _failed="$_failed TCP${_reverse:+ back}"
		_rates="$_rates${_reverse:+/}${ANSWER:-0}"
	done
	at "$1" "pregrant-lab frames --to $5 --count $FRAMES $6" || _failed="$_failed UDP (${ANSWER})"
	at "$2" 'killall iperf3; kill $(cat /tmp/serve)'
	at "$1" "pregrant-lab frames --serve > /dev/null 2>&1 & echo \$! > /tmp/serve"
	at "$2" "pregrant-lab frames --to $4 --count $FRAMES $6" || _failed="$_failed UDP back (${ANSWER})"
	at "$1" 'kill $(cat /tmp/serve)'
	[ -z "$_failed" ] || WRONG="$WRONG; $_play, $3 from $1 to $2:$_failed"
}
# travels FROM OWN TO OTHER: by each interface between two.
travels() {
	interfaces "$1" "$2" "$4"
	interfaces "$3" "$4" "$2"
	_rates="" _n=0
	for _kind in 802.1Q QinQ VXLAN GRE; do
		_n=$((_n + 1)) _rates="$_rates, $_kind "
		streams "$1" "$3" "$_kind" "10.9.$_n.$2" "10.9.$_n.$4"
	done
	_rates="$_rates, UDP in fragments beside TCP "
	streams "$1" "$3" fragments "10.9.0.$2" "10.9.0.$4" "--size 4000"
	no_interfaces "$1"
	no_interfaces "$3"
	_of="IPv6 with extension headers"
	at "$3" "parcels listen 5007 200000 $FRAMES > /tmp/listen 2>&1 & within 10 grep listening /tmp/listen"
	at "$1" "parcels talk fd09::$4 5007 200000 $FRAMES" || WRONG="$WRONG; $_play, $_of from $1 to $3: $ANSWER"
	at "$3" "within 30 grep datagrams /tmp/listen; cat /tmp/listen"
	case $ANSWER in "200000 of 200000 bytes, $FRAMES of $FRAMES datagrams") ;; *) WRONG="$WRONG; $_play, $_of from $1 to $3: $ANSWER" ;; esac
	note "$_play, $1 and $3, TCP to and from, Mbit/s, and $FRAMES datagrams each way: ${_rates#, }; $_of: $ANSWER"
}

# played BACK FRONT: all of it.
played() {
	_play="$2 on $1"
	starts "$2" one 2
	starts "$2" two 3
	_back=back
	[ "$1" = back ] || _back=netback
	parcels_of dom0 one $_back
	parcels_of one dom0 "$2"
	parcels_of one two "$2"
	travels dom0 1 one 2
	travels one 2 two 3
	stops "$2" one
	stops "$2" two
}
for back_end in $(echo "${BACKS:-netback:back}" | tr : " "); do
	$back_end
	front_guest one 2
	front_guest two 3
	for _guest in one two; do ask $_guest "modprobe -a 8021q vxlan ip_gre"; done
	for front_end in $FRONTS; do played $back_end $front_end; done
	for _guest in one two; do ask $_guest end; done
	over one && over two || fail "a guest does not end"
	if [ $back_end = back ]; then
		! grep -E 'ERROR|panicked' $BACK_LOG || WRONG="$WRONG; the back complains"
		end_back || fail "the back ends with $?"
	else
		no_netback
	fi
done
[ -z "$WRONG" ] || { echo "$WRONG" | sed 's/^; //; s/; \([a-z]* on \)/\n\1/g' | while read -r _line; do note "lost: $_line"; done; fail "frames were lost"; }
