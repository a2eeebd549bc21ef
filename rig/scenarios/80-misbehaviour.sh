# shows: what a guest may do wrong on its rings, against Linux's netback, `pregrant back` and the module of linux/back: same answers, same end of the vif
# back: module
# seconds: 500
# module: yes
bridge

# A vif for what is survived, and one for each case that is not: see examples/misbehaviour.
vifs=
for n in 0 1 2 3 4 5 6 7 8 9 a b c; do
	vifs="$vifs${vifs:+, }'mac=00:16:3e:00:01:0$n,bridge=xenbr0,script=/rig/vif-script'"
done

# misbehave NAME: a guest that does, beside one with the kernel's netfront that is pinged all the time. Lines to /run/cases-NAME.
misbehave() {
	linux_guest "good-$1" 2
	ping -i 0.2 -W 5 10.9.0.2 > /run/ping & _ping=$!
	guest "bad-$1" job=misbehaviour more=rig.netfront=no "vif=$vifs" || fail "xl create bad-$1"
	over "bad-$1" 200 || fail "bad-$1 does not end"
	sleep 10 # what is on its way while the domain is taken down comes yet
	kill -INT $_ping; wait $_ping
	grep '^CASE ' "/var/log/xen/console/guest-bad-$1.log" | tr -d '\r' > "/run/cases-$1"
	job_passed "bad-$1" || fail "$1: $(wc -l < "/run/cases-$1") cases were played, not all"
	_seen=$(grep received /run/ping)
	note "$1: $(wc -l < "/run/cases-$1") cases; the other guest meanwhile: ${_seen%% round*}"
	echo "$_seen" | grep -q ' 0% packet loss' || fail "$1: pings of the other guest were lost"
	ask "good-$1" end
	over "good-$1" || fail "good-$1 does not end"
}

# as_listed: takes lines of ours, and makes of those that are to differ what Linux says. Each has its reason.
as_listed() {
	# A fault: Linux serves the vif no more and leaves its state at 4, so that no one learns of it. Ours goes to 6 and writes the
	# reason to the store.
	# A first slot of fewer than 14 bytes: Linux reads what is left for it once the others are taken off, and answers
	# ERROR; the rule is for the whole frame (netif.h says nothing of the first slot), so ours takes it.
	# An address that is added twice takes two of the 64 places of Linux's list, and one of ours.
	# Grant 0 is the console's page, which dom0 may read: Linux sends what is there. To ours 0 names no grant.
	sed -e '/^CASE fatal-/s/vif=dead state=6$/vif=dead state=4/' \
		-e '/^CASE multicast-the-65th /s/answers=0-63:0,64:-1 /answers=0-62:0,63-64:-1 /' \
		-e '/^CASE grant-0 /s/answers=0:-1 /answers=0:0 /' \
		-e '/^CASE xsa-423-432-18-slots-of-a-byte /s/answers=0-17:0 /answers=0-17:-1 /'
}

netback
misbehave netback
no_netback
say "netback is out"
back
misbehave pregrant
end_back
# agree NAME [PATTERN]: its cases, without those of the pattern, are netback's, but for what is listed.
agree() {
	as_listed < "/run/cases-$1" | grep -v "${2:-^$}" > /run/listed
	grep -v "${2:-^$}" /run/cases-netback > /run/wanted
	diff /run/wanted /run/listed > /run/difference && return
	while IFS= read -r line; do say "$line"; done < /run/difference
	fail "$(grep -c '^[-+<>][^-+]' /run/difference) lines differ (of netback, of $1), but for what is listed"
}
agree pregrant
! grep -c ' panicked' $BACK_LOG || fail "the back panicked"
note "$(wc -l < /run/cases-netback) cases agree; $(cat /run/cases-netback /run/cases-pregrant | grep '^CASE fatal' | grep -c 'state=6$') ended with our vif closed where Linux's is only dead"
say "pregrant is out"
dmesg -c > /dev/null
kernel_back
misbehave module
within 10 rmmod pregrant_back || fail "the module stays"
# It offers no multicast control.
agree module '^CASE multicast'
note "the module: $(wc -l < /run/listed) cases agree"
kernel_well
