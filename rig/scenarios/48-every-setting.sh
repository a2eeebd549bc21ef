# shows: settings of `pregrant front --tap` and `pregrant back`, both ends ours, in turns in one boot: rings of several pages, long lists, 4096 as first slot and alone, GSO, lengths by direction, RX alone, two queues, heads, RX by reference, coalescing: 10^4 numbered frames each way by what was asked for, as the back reports it
# back: process: its settings are those of `pregrant back`
# seconds: 1500
bridge
frames_serve
# ONLY: some of them, as `rx-only:two-queues`.
FRAMES=${FRAMES:-10000} FRAMES_SECONDS=${FRAMES_SECONDS:-800} ONLY=${ONLY:-}

# known NAME DIR [QUEUE]: what the back tells of a direction of queue 0: chain, data_len_bytes, staging_buffers, ring pages.
known() {
	case $1 in
	chain) pregrant top --prometheus - | sed -n "s/^pregrant_queue_chain_info{.*queue=\"${3:-0}\",dir=\"$2\",chain=\"\([^\"]*\)\".*/\1/p" ;;
	pages) _order=$(xenstore-read "/local/domain/$(xl domid one)/device/vif/0/$2-ring-page-order" 2>/dev/null); echo $((1 << ${_order:-0})) ;;
	*) pregrant top --prometheus - | sed -n "s/^pregrant_queue_$1{.*queue=\"${3:-0}\",dir=\"$2\"} //p" ;;
	esac
}
# state: of both directions, in a line.
state() {
	for _dir in tx rx; do
		_len=$(known data_len_bytes $_dir) _buffers=$(known staging_buffers $_dir)
		printf '%s %s%s, ring of %s page(s); ' "$(echo $_dir | tr a-z A-Z)" "$(known chain $_dir)" "${_len:+ ($_buffers buffers of $_len)}" "$(known pages $_dir)"
	done
}
# has WHAT IS WANTED: fails where it is another.
has() { [ "$2" = "$3" ] || fail "$name: $1 is $2, and is to be $3"; }
# lists DIR LENGTH [BUFFERS]: what is known of its buffers.
lists() { has "the data length of $1" "$(known data_len_bytes "$1")" "$2"; [ -z "$3" ] || has "the number of buffers of $1" "$(known staging_buffers "$1")" "$3"; }
# took METRIC DIR: so many since the setting began.
took() { echo $(($(counted "queue_$1" "dir=\"$2\"") - $(eval echo \$"$1_$2"))); }

# begin NAME TX RX [BACK...] -- FRONT...: the two ends with these arguments; TX and RX are the chains. False: it is not wanted.
begin() {
	name=$1 _tx=$2 _rx=$3 _back=; shift 3
	case ":$ONLY:" in "::" | *":$name:"*) ;; *) return 1 ;; esac
	while [ "$1" != -- ]; do _back="$_back $1"; shift; done
	shift
	back $_back
	case "$*" in *--queues*) ;; *) set -- --queues 1 "$@" ;; esac
	# A buffer for each slot, unless the setting is about more.
	case "$*" in *--buffers*) ;; *"--path staging"*) set -- --buffers 256 "$@" ;; esac
	front one 2 "$@"
	back_says "connected, [12] queue(s), TX ${_tx%%,*}, RX ${_rx%%,*}" || { tail -5 $BACK_LOG; fail "$name: not connected, or not by $_tx and $_rx"; }
	has "the chain of TX" "$(known chain tx)" "$_tx"
	has "the chain of RX" "$(known chain rx)" "$_rx"
	for _dir in tx rx; do
		for _metric in frames staged_frames persistent_frames notifications grant_operations; do eval "${_metric}_$_dir=$(counted queue_$_metric "dir=\"$_dir\"")"; done
	done
}
# staged DIR: of its frames nine of ten were in staging buffers.
staged() {
	[ $(($(took staged_frames "$1") * 10)) -ge $(($(took frames "$1") * 9)) ] || fail "$name: of $(took frames "$1") frames $(took staged_frames "$1") are staged, $1"
}
# end TEXT: both ends; the line. In SAID what the front says at its end.
end() {
	for _dir in tx rx; do [ "$(took frames $_dir)" -ge "$FRAMES" ] || fail "$name: the back counts $(took frames $_dir) frames, $_dir"; done
	_state=$(state)
	ask one 'kill $(cat /tmp/front.pid); within 10 [ ! -e /sys/class/net/eth0 ]; cat /tmp/front.log; grep "by reference" /tmp/front.log' ; SAID=$ANSWER
	ask one '[ ! -e /sys/class/net/eth0 ] && ! grep -E "ERROR|panicked" /tmp/front.log' || fail "$name: the front: $ANSWER"
	end_back || fail "$name: the back ends with $?"
	note "$name: $_state$_numbered${1:+; $1}"
}
# mtu BYTES: of all that is between the two programs.
mtu() {
	for _link in xenbr0 "vif$(xl domid one).0"; do ip link set "$_link" mtu "$1" || fail "$name: $_link: MTU $1"; done
	ask one "ip link set eth0 mtu $1" || fail "$name: MTU $1: $ANSWER"
}

# xl waits for a back that offers the vif.
back
front_guest one 2 vcpus=2
end_back || fail "the back ends with $?"
ask one "echo 8192 > /sys/module/xen_gntalloc/parameters/limit" || fail "gntalloc has no limit: $ANSWER"

begin rings staging,copy staging,copy -- --path staging --data-len 256 --ring-pages 4 && {
	for dir in tx rx; do
		has "pages of the ring of $dir" "$(known pages $dir)" 4
		lists $dir 256 1024
	done
	both_ways "$name" "$FRAMES" --window 512 --size 64..200
	staged tx; staged rx
	end
}
begin list-pages staging,copy staging,copy -- --path staging --data-len 256 --buffers 2000 && {
	for dir in tx rx; do lists $dir 256 2000; done
	both_ways "$name" "$FRAMES" --size 64..200
	staged tx; staged rx
	end "lists of 4 pages"
}
begin first-slot staging,copy staging,copy -- --path staging --data-len 4096 && {
	for dir in tx rx; do lists $dir 4096; done
	mtu 9000
	both_ways "$name" "$FRAMES" --size 8900 --window 16
	# Of three slots two are copied; a few frames are sent again.
	for dir in tx rx; do
		ops=$(took grant_operations $dir)
		[ "$ops" -ge $((FRAMES * 19 / 10)) ] && [ "$ops" -le $((FRAMES * 25 / 10)) ] || fail "$name: $ops grant operations for $FRAMES frames of three slots, $dir"
	done
	mtu 1500
	end "frames of 8900 bytes: $(took grant_operations tx) and $(took grant_operations rx) grant copies"
}
# pages: granted by the front, each a page of a mapping of gntalloc's.
pages() {
	ask one 'n=0; for r in $(grep gntalloc /proc/$(cat /tmp/front.pid)/maps | cut -d" " -f1); do n=$((n + (0x${r#*-} - 0x${r%-*}) / 4096)); done; echo $n'
	echo "$ANSWER"
}
begin no-sg staging,copy staging,copy --no-sg -- --path staging --data-len 4096 --no-sg && {
	for dir in tx rx; do lists $dir 4096; done
	has "the number of granted pages" "$(pages)" 516
	mtu 4082
	both_ways "$name" "$FRAMES" --size 64..4000
	mtu 1500
	staged tx; staged rx
	for dir in tx rx; do has "the number of grant operations of $dir" "$(took grant_operations $dir)" 0; done
	end "516 pages are granted: buffers, rings, lists"
}
begin gso staging staging -- --path staging --data-len 65535 && {
	for dir in tx rx; do lists $dir 65535; done
	vif=vif$(xl domid one).0
	ask one "iperf3 -s -D" || fail "iperf3 does not serve"
	for way in rx tx; do
		bytes=$(count $vif $way bytes) packets=$(count $vif $way packets)
		iperf 10.9.0.2 $([ $way = rx ] && echo -R) > /run/mbits || fail "$name: iperf3, $way of the vif"
		bytes=$((($(count $vif $way bytes) - bytes) / ($(count $vif $way packets) - packets)))
		[ $bytes -gt 3000 ] || fail "$name: segments have $bytes bytes, $way of the vif"
		sizes="$sizes${sizes:+ and }$bytes"
	done
	ask one "killall iperf3"
	mtu 65517
	both_ways "$name" $((FRAMES / 10)) --size 60000 --window 4
	mtu 1500
	both_ways "$name" "$FRAMES"
	staged tx; staged rx
	for dir in tx rx; do has "the number of grant operations of $dir" "$(took grant_operations $dir)" 0; done
	end "TCP from and to the guest by segments of $sizes bytes, $((FRAMES / 10)) frames of 60000 bytes each way: no grant operation"
}
begin two-lengths staging,copy staging,copy -- --path staging --experiment tx-data-len=256 --rx-data-len 2048 && {
	lists tx 256; lists rx 2048
	both_ways "$name" "$FRAMES"
	staged rx
	end
}
begin rx-only copy staging,copy -- --path staging --experiment rx-only=on --rx-data-len 2048 && {
	lists tx ""; lists rx 2048
	both_ways "$name" "$FRAMES"
	staged rx
	has "the number of staged frames of tx" "$(took staged_frames tx)" 0
	end
}
begin two-queues staging,copy staging,copy -- --path staging --data-len 2048 --queues 2 && {
	back_said "connected, 2 queue(s)" || fail "$name: not two queues"
	both_ways "$name" "$FRAMES"
	staged tx; staged rx
	# A flow has one of the two: with eight, and as many back, neither rests.
	ask one "iperf3 -s -D" || fail "iperf3 does not serve"
	iperf 10.9.0.2 -P 8 > /run/mbits || fail "$name: iperf3 to the guest"
	iperf 10.9.0.2 -P 8 -R > /run/mbits || fail "$name: iperf3 from the guest"
	ask one "killall iperf3"
	each=
	for queue in 0 1; do for dir in tx rx; do
		n=$(pregrant top --prometheus - | sed -n "s/^pregrant_queue_staged_frames_total{.*queue=\"$queue\",dir=\"$dir\".*} //p")
		[ "${n:-0}" -ge 100 ] || fail "$name: queue $queue has $n staged frames, $dir"
		each="$each${each:+, }$n"
	done; done
	end "staged by queue, TX and RX: $each"
}
begin heads-copy staging+copy,copy staging+copy,copy --experiment path=staging+copy -- --path staging --data-len 256 && {
	lists tx 256; lists rx 256
	both_ways "$name" "$FRAMES" --size 300..1472
	end "$(took grant_operations tx) and $(took grant_operations rx) grant copies, of rests alone"
}
begin heads-map staging+map,map,copy staging+copy,copy --experiment path=staging+map -- --path staging --data-len 256 && {
	both_ways "$name" "$FRAMES" --size 300..1472
	end
}
begin copy-below map,copy copy --path map --experiment copy-below=2048 -- --path copy && {
	both_ways "$name" "$FRAMES"
	maps=$(counted queue_grant_operations 'op="map"')
	has "the number of pages that are mapped for frames" "$maps" 0
	end "no page is mapped for a frame of up to 2048 bytes"
}
# referred: most of the frames to the guest were written from their pages.
referred() {
	_by=$(echo "$SAID" | sed -n 's/.*, \([0-9]*\) of them by reference.*/\1/p')
	[ "${_by:-0}" -ge $((FRAMES * 9 / 10)) ] || fail "$name: the front says: $SAID"
	note "$name: $SAID"
}
begin by-reference copy copy -- --path copy --rx reference && {
	both_ways "$name" "$FRAMES" --size 300..1472
	end
	referred
}
begin head persistent,copy persistent,copy -- --path persistent --rx reference --experiment rx-head=14 && {
	both_ways "$name" "$FRAMES" --size 300..1472
	end
	referred
}
# Here frames come further apart than a front waits for the next: the figures are shown, and not compared.
for number in off 32 load; do
	begin coalesce-$number staging,copy staging,copy -- --path staging --data-len 2048 --mode event --experiment rx-coalesce=$number && {
		both_ways "$name" "$FRAMES"
		staged tx; staged rx
		end "$((1000 * $(took notifications rx) / $(took frames rx))) events for 1000 frames to the guest"
	}
done

ask one end
over one || fail "the guest does not end"
! grep -E 'ERROR|panicked' $BACK_LOG || fail "the back complains"
