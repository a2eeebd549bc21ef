# What dom0 and the guests say, and how they wait. Sourced by both.
export PATH=$(echo /usr/lib/xen-*/bin):/rig:/usr/bin:/usr/sbin:/bin:/sbin
export LD_LIBRARY_PATH=/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu

# say TEXT...: a line for the log. note TEXT...: one that is shown beside the scenario's end.
say() { echo "-- $*"; }
note() { echo "RIG note $*"; }
fail() { echo "-- FAIL: $*"; said_last 2>/dev/null; note "failed: $*"; exit 1; }

# argument NAME: rig.NAME= on the kernel's command line.
argument() { sed -n "s/.*\\brig\\.$1=\\([^ ]*\\).*/\\1/p" /proc/cmdline; }

# within SECONDS COMMAND...: tries it again until it succeeds. SLOWER: by how much kernels with checks are.
within() {
	_tries=$(($1 * 5 * ${SLOWER:-1})); shift
	until "$@" >/dev/null 2>&1; do
		_tries=$((_tries - 1))
		[ $_tries -gt 0 ] || { say "not within its time: $*"; return 1; }
		sleep 0.2
	done
}
