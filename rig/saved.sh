# A guest of dom0's scenarios that is saved and restored, or migrated, by xl. Sourced by those, after net.sh.

# saved NAME: it is another domain afterwards, and its vif went meanwhile. Where they are set, SAVED is called then, and PAUSED with
# the new domain's number before that runs.
saved() {
	_old=$(xl domid "$1")
	# The image goes through a pipe and gzip: dom0 has no disk.
	mkfifo /run/image
	gzip -1 < /run/image > /run/image.gz & _packing=$!
	xl save "$1" /run/image || fail "xl save"
	wait $_packing
	$SAVED
	within 10 [ ! -e "/sys/class/net/vif$_old.0" ] || fail "vif$_old.0 stays"
	say "saved: $(wc -c < /run/image.gz) bytes packed"
	gzip -dc < /run/image.gz > /run/image & _packing=$!
	xl restore ${PAUSED:+-p} /run/image || fail "xl restore"
	wait $_packing
	rm /run/image /run/image.gz
	[ -z "$PAUSED" ] || { $PAUSED "$(xl domid "$1")"; xl unpause "$1" || fail "xl unpause"; }
	[ "$(xl domid "$1")" != "$_old" ] || fail "the same domain"
}

# migrated NAME: to this host, while it runs.
migrated() {
	_old=$(xl domid "$1")
	# An empty -s: the host's name is what is run there.
	xl -v migrate -s "" "$1" "xl migrate-receive" > /run/migrate.log 2>&1 || { cat /run/migrate.log; fail "xl migrate: $(grep -m 1 'xc: error' /run/migrate.log)"; }
	cat /run/migrate.log
	[ "$(xl domid "$1")" != "$_old" ] || fail "the same domain"
	within 10 [ ! -e "/sys/class/net/vif$_old.0" ] || fail "vif$_old.0 stays"
}

# lives_over saved|migrated TEXT: a guest `one` with the kernel module; TCP both ways meanwhile, numbered frames then. In FIRST the grants before.
lives_over() {
	FIRST=$(tables)
	module auto
	transfer
	lives "vif$(xl domid one).0" || fail "$2: no traffic"
	$1 one
	lives "vif$(xl domid one).0" || { ask one "dmesg | tail -n 20"; fail "$2: $1: the TCP connection is gone"; }
	end_transfer
	pings 10.9.0.2 20 0.1 || fail "$2: $LOST of 20 pings lost"
	both_ways "$2" "$FRAMES"
}
