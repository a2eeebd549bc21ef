# shows: the kernel module of linux/back in dom0, with that of linux/ in the guest, by each path, as the back counts frames and grant operations: numbered frames both ways, iperf3 by IPv4 and IPv6, 1 and 2 queues, rings of 16 pages, multicast that the back leaves out; nothing stays mapped
# back: module
# seconds: 900
# module: yes
. /rig/module.sh
bridge
frames_serve
FRAMES=${FRAMES:-2000} FRAMES_SECONDS=${FRAMES_SECONDS:-800}
# PATHS: with colons between them.
PATHS=$(echo "${PATHS:-copy:staging:data-ring:gref-mapping:persistent}" | tr : " ")

# sum DIR NAME: a counter of all of the vif's queues. all NAME: one of the vif. tx is what the guest sends.
sum() { ethtool -S "$vif" | awk -v name="$1[0-9]+_$2:" '$1 ~ name { sum += $2 } END { print sum + 0 }'; }
all() { ethtool -S "$vif" | awk -v name="$1:" '$1 == name { print $2 }'; }
# settled PATH: the back has what the guest shares for it.
settled() { within 20 eval "ethtool -i $vif | grep -qx 'firmware-version: $1'" || { ethtool -i "$vif"; dmesg | tail -n 20; fail "$1: not by this path"; }; }
operations() { echo $(($(sum "$1" grant_copies) + $(sum "$1" grant_maps))); }
# carried_by PATH: of frames each way nine of ten go by it; where memory stands, without a grant operation.
carried_by() {
	for _side in tx rx; do
		_frames=$(sum $_side frames) _by=$(sum $_side "by_$(echo "$1" | tr - _)") _ops=$(operations $_side)
		case $_side in
		tx) frames one 10.9.0.1 --count 2000 ;;
		rx)
			ask one "pregrant-lab frames --serve > /dev/null 2>&1 & echo \$! > /tmp/serve"
			pregrant-lab frames --to 10.9.0.2 --count 2000 > /run/frames_to || { cat /run/frames_to; fail "$1: frames to the guest"; }
			ask one 'kill $(cat /tmp/serve)'
			;;
		esac
		_frames=$(($(sum $_side frames) - _frames)) _by=$(($(sum $_side "by_$(echo "$1" | tr - _)") - _by)) _ops=$(($(operations $_side) - _ops))
		note "$1: $_side: of $_frames frames $_by by this path, $_ops grant operations"
		[ $_frames -ge 2000 ] || fail "$1: $_side: $_frames frames"
		[ $((_by * 10)) -ge $((_frames * 9)) ] || { ethtool -S "$vif"; fail "$1: $_side: of $_frames frames $_by by this path"; }
		case $1 in
		staging|data-ring|gref-mapping) [ $_ops = 0 ] || fail "$1: $_side: $_ops grant operations" ;;
		persistent) [ $((_ops * 10)) -lt $_frames ] || fail "$1: $_side: $_ops grant operations" ;;
		esac
	done
}
# unmapped TEXT: the guest's module is unloaded, and none of its pages is mapped.
unmapped() {
	unload
	within 10 eval '[ "$(all own_pages) $(all guest_pages)" = "0 0" ]' || { ethtool -S "$vif" | head -n 12; fail "$1: pages stay mapped"; }
}

dmesg -c > /dev/null
before=$(tables)
kernel_back
front_guest one 2 vcpus=2 memory=256
vif=vif$(xl domid one).0
multicast_port
for path in $PATHS; do
	module "$path" queues=1
	settled "$path"
	trial "$path"
	# The first frames of each page go by copies where pages are mapped at their first use.
	carried_by "$path"
	pieces "$path" "$path"
	says "$path" "$path: path=$path"
	counts_as "$path"
	segments "$path" "$vif"
	note "$path: $(all own_pages) pages of the vif's, $(all guest_pages) of its guest's are mapped"
	unmapped "$path"
	module "$path" queues=2 pages=16
	combined 2
	settled "$path"
	both_ways "$path, 2 queues" "$FRAMES"
	note "$path, 2 queues, rings of 16 pages: $_numbered; $(all guest_pages) pages of its guest's are mapped"
	[ "$(all guest_pages)" -ge 64 ] || fail "$path: rings of 16 pages, and $(all guest_pages) pages are mapped"
	unmapped "$path, 2 queues"
	kernel_well
done
module auto
multicast "auto"
unmapped "auto"

# A guest that is destroyed with its memory mapped.
module auto queues=2
settled staging
xl destroy one || fail "destroyed"
over one || fail "destroyed, and it stays"
within 10 [ ! -e "/sys/class/net/$vif" ] || fail "destroyed, and $vif stays"
ip link del mc0
within 10 rmmod pregrant_back || fail "the module stays"
kernel_well
after=$(tables)
[ "$before" = "$after" ] || fail "grants before: $before; after: $after"
note "unloaded: $after"
