# Guests, as dom0's scenarios make and follow them.

# guest NAME [KEY=VALUE...]: creates a domain. Keys: job, type (pv), vcpus (1, or QUEUES), vif and disk (lines of xl's syntax), more (guest
# kernel arguments), ramdisk (the guests' own), config (one more line for xl).
guest() {
	_name=$1; shift
	job= type=pv vcpus=${QUEUES:-1} memory=192 vif= disk= more= ramdisk=/rig/guest.cpio config=
	for _pair; do eval "${_pair%%=*}=\${_pair#*=}"; done
	cat > "/run/$_name.cfg" <<-END
	name = "$_name"
	type = "$type"
	kernel = "/rig/vmlinux"
	ramdisk = "$ramdisk"
	extra = "console=hvc0 quiet loglevel=5 rootfstype=ramfs mitigations=off random.trust_cpu=on nokaslr $(grep -oE 'slub_debug=[^ ]*|page_poison=1' /proc/cmdline | tr '\n' ' ')${SLOWER:+SLOWER=$SLOWER }rig.job=$job $more"
	memory = $((memory + ${MORE_MEMORY:-0}))
	vcpus = $vcpus
	on_poweroff = "destroy"
	on_crash = "destroy"
	${vif:+vif = [ $vif ]}
	${disk:+disk = [ $disk ]}
	$config
	END
	# A guest of that name before it has one, which would say each line again.
	[ ! -e "/run/$_name.tail" ] || kill "$(cat "/run/$_name.tail")" 2>/dev/null
	: > "/var/log/xen/console/guest-$_name.log"
	tail -f "/var/log/xen/console/guest-$_name.log" | while IFS= read -r _line; do echo "[$_name] $_line"; done & echo $! > "/run/$_name.tail"
	# An xl that gives up after 10 s says not what it waited for; the kernel says who was blocked meanwhile.
	(sleep 6; echo "-- xl create $_name takes long"; echo w > /proc/sysrq-trigger) & _watch=$!
	xl create -q "/run/$_name.cfg"; _made=$?
	kill $_watch 2>/dev/null
	# Behind the end of other guests an emulated dom0 gets little of the processor for longer than xl waits.
	[ $_made = 0 ] || { note "xl gave up on $_name once"; sleep 20; xl create -q "/run/$_name.cfg"; _made=$?; }
	[ $_made = 0 ] || return 1
	say "created $_name as domain $(xl domid "$_name")"
}

# up NAME: waits until its first process runs. over NAME [SECONDS]: until the domain is gone.
up() { within 60 has_key "/local/domain/$(xl domid "$1")/data/up"; }
has_key() { [ -n "$(xenstore-read "$1" 2>/dev/null)" ]; }
over() { within "${2:-60}" gone "$1"; }
gone() { ! xl domid "$1"; }

# job_passed NAME: whether the guest's job ended with status 0. printed NAME TEXT: whether its console has a line.
job_passed() { grep -q "^JOB [^ ]* 0" "/var/log/xen/console/guest-$1.log"; }
printed() { grep -q "$2" "/var/log/xen/console/guest-$1.log"; }

# After each scenario: nothing of it stays.
tidy_up() {
	for _domain in $(xl list 2>/dev/null | awk 'NR > 2 { print $1 }'); do
		say "left running: $_domain"
		xl destroy "$_domain"
	done
	# It would take the vifs of the scenarios that follow.
	[ ! -d /sys/module/pregrant_back ] || within 10 rmmod pregrant_back || say "pregrant_back stays"
	for _program in pregrant pregrant-lab iperf3 tail conformance; do killall -q "$_program"; done
	rmmod xen-netback xen-blkback 2>/dev/null
	for _loop in $(losetup -a | cut -d: -f1); do losetup -d "$_loop"; done
	rm -rf /disks/* /run/disk-guest.cpio /run/driver.cpio
	# What a scenario wrote down; another reads its own only.
	rm -f /run/*.log /run/*.tail /run/rows /run/pauses
	return 0
}
