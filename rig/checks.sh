# What a kernel says that has found a mistake, and what one with checks can be asked (`cargo xtask linux debug`). Sourced by dom0
# and by guests.

COMPLAINTS='WARNING|BUG|Oops|unable to handle|non-static key|locking dependency|inconsistent lock|suspicious RCU|UBSAN|ODEBUG|corruption|lockdep is turned off|suspected memory leaks'

# has_checks: a kernel of `linux debug`, or one that poisons slabs (`cargo xtask rig --poison`).
has_checks() { [ -e /proc/lockdep_stats ] || [ "$(cat /sys/kernel/slab/kmalloc-64/poison 2>/dev/null)" = 1 ]; }

# no_leaks: no memory of the kernel is without an owner. Others' is shown, or forgotten by `no_leaks clear`.
no_leaks() {
	has_checks || return 0
	mount -t debugfs debug /sys/kernel/debug 2>/dev/null
	_leaks=/sys/kernel/debug/kmemleak
	[ -e $_leaks ] || return 0
	# What is younger than 5 s counts as in use, and what moves while it is looked for, until the next time.
	sleep 6
	echo scan > $_leaks && echo scan > $_leaks || { say "no kmemleak"; return 1; }
	cat $_leaks
	[ -z "$(cat $_leaks)" ] || { echo clear > $_leaks; [ "$1" = clear ]; }
}

# lockdep_on: no lock was held wrongly: the first time turns lockdep off.
lockdep_on() { [ ! -e /proc/lockdep_stats ] || grep -q 'debug_locks:  *1' /proc/lockdep_stats || { say "lockdep is off"; return 1; }; }

# begin_checks, checked: what is found between the two, where dom0's kernel has checks.
begin_checks() {
	has_checks || return 0
	dmesg | grep -E -A 40 "$COMPLAINTS"
	no_leaks clear
	lockdep_on || note "lockdep is off before anything of ours runs"
	dmesg -c > /dev/null
}
checked() {
	has_checks || return 0
	no_leaks; _whole=$?
	! dmesg | grep -E -A 60 "$COMPLAINTS" && lockdep_on && [ $_whole = 0 ] || { note "failed: dom0's kernel has found a mistake"; return 1; }
	note "dom0's kernel, which checks itself, has found no mistake"
}
