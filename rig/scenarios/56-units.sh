# shows: the units of dist under systemd as process 1: the sandbox holds, scripts are run by the hotplug unit, metrics over HTTP and as a file, a kill is outlived
# boot: systemd
# back: process: its units are the subject
# seconds: 400
bridge
mkdir -p /etc/xen/scripts
cat > /etc/xen/scripts/vif-unit <<'END'
#!/bin/sh
. /rig/say.sh
caps=$(sed -n 's/^CapBnd:[[:space:]]*//p' /proc/self/status)
# In dom0 xl runs it too. That one has all capabilities, and does nothing here.
[ "$caps" = 0000000000003000 ] || exit 0
echo "$1 $vif" >> /run/ran
/rig/vif-script "$@"
END
chmod 755 /etc/xen/scripts/vif-unit
vif_line() { echo "'mac=00:16:3e:00:00:0$1,bridge=xenbr0,script=/etc/xen/scripts/vif-unit'"; }
: > /run/ran
# shown KEY: of the backend's unit. pid: its process. status KEY: what the kernel says of that.
shown() { systemctl show --value -p "$1" pregrant-back; }
pid() { shown MainPID; }
status() { sed -n "s/^$1:[[:space:]]*//p" "/proc/$(pid)/status"; }
said_last() { systemctl status --no-pager pregrant-back 'pregrant-hotplug@*' pregrant-modules 2>&1 | tail -n 40; tail -n 12 $BACK_LOG; cat /run/ran; }

: > $BACK_LOG
BACK_FROM=1
# It returns when the backend says that it serves.
systemctl start pregrant-hotplug.socket pregrant-back || fail "systemctl start: $?"
back_said ": ready" || fail "started, and not ready"
[ "$(shown StatusText)" = "vifs: 0, connected: 0" ] || fail "its status is \"$(shown StatusText)\""
caps=$(status CapEff) bound=$(status CapBnd)
note "the backend's capabilities: $caps (bound $bound), no_new_privs $(status NoNewPrivs), seccomp $(status Seccomp)"
# CAP_NET_ADMIN is bit 12.
[ "$caps $bound" = "0000000000001000 0000000000001000" ] || fail "capabilities $caps, $bound"
[ "$(status NoNewPrivs) $(status Seccomp)" = "1 2" ] || fail "no filter of system calls"
root=/proc/$(pid)/root
! touch $root/etc/mark 2>/dev/null || fail "it could write /etc"
! touch $root/usr/local/bin/mark 2>/dev/null || fail "it could write /usr/local/bin"
! touch $root/proc/sys/net/mark 2>/dev/null || fail "it could write /proc/sys"
touch $root/run/pregrant-back/mark || fail "it could not write its own folder"
rm $root/run/pregrant-back/mark
[ "$(ls $root/run | tr '\n' ' ')" = "pregrant pregrant-back pregrant-hotplug systemd xenstored " ] || fail "it sees more of /run: $(ls $root/run | tr '\n' ' ')"
[ ! -e $root/run/systemd/private ] || fail "it reaches systemd itself"
[ "$(ls $root/run/systemd | tr "\n" " ")" = "incoming notify " ] || fail "it sees more of systemd: $(ls $root/run/systemd)"
! $root/bin/busybox true 2>/dev/null || fail "it could run other programs"
[ "$(cat /sys/bus/xen-backend/drivers_autoprobe)" = 0 ] || fail "from its sandbox it did not keep the kernel's netback off"

# idle PID: how often it slept, and how many ticks of the processor it used, in 5 s without a guest.
idle() {
	_was=$(awk '/^voluntary/ { print $2 }' "/proc/$1/status") _used=$(awk '{ print $14 + $15 }' "/proc/$1/stat")
	sleep 5
	echo "$(($(awk '/^voluntary/ { print $2 }' "/proc/$1/status") - _was)) sleeps, $(($(awk '{ print $14 + $15 }' "/proc/$1/stat") - _used)) ticks"
}
idle=$(idle "$(pid)")
linux_guest one 2
vif=vif$(xl domid one).0
pings 10.9.0.2 20 || fail "$LOST of 20 pings lost"
grep -q "^online $vif$" /run/ran || fail "the script was not run for $vif"
within 5 eval '[ "$(shown StatusText)" = "vifs: 1, connected: 1" ]' || fail "its status is \"$(shown StatusText)\""
note "systemctl status: $(shown StatusText); $(grep -o 'one system call per.*' $BACK_LOG | head -n 1)"
ask one "iperf3 -s -D" || fail "iperf3 does not serve"
# Each way: what comes through depends on what else the machine does, so it is compared with the same without a sandbox below.
rates() { iperf 10.9.0.2 > /dev/null; echo "$_mbits"; iperf 10.9.0.2 -R > /dev/null; echo "$_mbits"; }
inside=$(rates | tr '\n' ' ')

xl network-attach one mac=00:16:3e:00:00:03 bridge=xenbr0 script=/etc/xen/scripts/vif-unit || fail "network-attach"
second=vif$(xl domid one).1
within 20 grep -q "^online $second$" /run/ran || fail "the script was not run for $second"
xl network-detach one 1 || fail "network-detach"
within 20 grep -q "^offline $second$" /run/ran || fail "what the script did for $second was not undone"

# Metrics: over HTTP, and as a file.
ip link set lo up
systemctl start pregrant-metrics || fail "systemctl start pregrant-metrics: $?"
within 10 eval '/bin/busybox wget -qO /run/metrics http://127.0.0.1:9912/metrics' || fail "no metrics over HTTP: $(systemctl status --no-pager pregrant-metrics 2>&1 | tail -n 5)"
grep -q '^pregrant_vif_link{.*} 1$' /run/metrics || fail "the metrics have no link of the vif"
systemctl stop pregrant-metrics
collected=/var/lib/prometheus/node-exporter/pregrant.prom
mkdir -p "${collected%/*}"
systemctl start pregrant-textfile || fail "systemctl start pregrant-textfile: $?"
grep -q '^pregrant_vif_link{.*} 1$' $collected || fail "the file of metrics has no link of the vif: $(ls -l "${collected%/*}")"

ask one "dmesg > /tmp/before"
old=$(pid)
kill -KILL "$old"
within 30 eval '[ "$(pid)" != 0 ] && [ "$(pid)" != '"$old"' ] && [ "$(shown ActiveState)" = active ]' || fail "killed, and not started again"
pings 10.9.0.2 20 || fail "$LOST of 20 pings lost after a kill"
systemctl restart pregrant-back || fail "systemctl restart: $?"
pings 10.9.0.2 20 || fail "$LOST of 20 pings lost after a restart"
systemctl stop pregrant-back || fail "systemctl stop: $?"
[ "$(shown Result)" = success ] || fail "it ended with $(shown Result)"
[ "$(cat /sys/bus/xen-backend/drivers_autoprobe)" = 1 ] || fail "the kernel's netback is kept off after the end"
! grep -E 'WARN|ERROR' $BACK_LOG || fail "the back complains"
! systemctl --failed --no-legend list-units 'pregrant*' | grep . || fail "a unit failed"
back --hotplug self
pings 10.9.0.2 20 || fail "$LOST of 20 pings lost without the unit"
note "TCP to the guest and from it, Mbit/s: $inside in the sandbox, $(rates | tr '\n' ' ') without"
ask one "news" || fail "the guest's kernel said: $ANSWER"
[ "$(grep -c "^online $vif$" /run/ran)" = 1 ] || fail "the script was run again for a vif that stayed"
ask one end
over one || fail "the guest does not end"
note "without guests, in 5 s: $idle in the sandbox, $(idle $BACK_PID) without"
end_back || fail "the back ends with $?"
