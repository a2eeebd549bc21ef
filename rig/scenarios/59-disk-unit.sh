# shows: the disk unit of dist under systemd as process 1: the sandbox holds; a kill, a restart and a stop are outlived under fio with verify
# boot: systemd
# seconds: 400
image one 32
# shown KEY: of the unit. pid: its process. status KEY: what the kernel says of that.
shown() { systemctl show --value -p "$1" pregrant-blkback; }
pid() { shown MainPID; }
status() { sed -n "s/^$1:[[:space:]]*//p" "/proc/$(pid)/status"; }
said_last() { systemctl status --no-pager pregrant-blkback 2>&1 | tail -n 20; tail -n 12 $BLK_LOG; }
: > $BLK_LOG
BLK_FROM=1
# It returns when the backend says that it serves.
systemctl start pregrant-blkback || { said_last; fail "systemctl start: $?"; }
blk_said ": ready" || fail "started, and not ready"
caps=$(status CapEff) bound=$(status CapBnd)
note "capabilities: $caps (bound $bound), no_new_privs $(status NoNewPrivs), seccomp $(status Seccomp)"
[ "$caps $bound" = "0000000000000000 0000000000000000" ] || fail "capabilities $caps, $bound"
[ "$(status NoNewPrivs) $(status Seccomp)" = "1 2" ] || fail "no filter of system calls"
root=/proc/$(pid)/root
! touch $root/etc/mark 2>/dev/null || fail "it could write /etc"
! touch $root/usr/local/bin/mark 2>/dev/null || fail "it could write /usr/local/bin"
touch $root/run/pregrant-blkback/mark $root/disks/mark || fail "it could not write its own folder and the images"
rm $root/run/pregrant-blkback/mark $root/disks/mark
[ ! -e $root/run/pregrant-back ] || fail "it reaches what the other backend keeps"
[ ! -e $root/run/systemd/private ] || fail "it reaches systemd itself"
! $root/bin/busybox true 2>/dev/null || fail "it could run other programs"
[ "$(cat /sys/bus/xen-backend/drivers_autoprobe)" = 0 ] || fail "from its sandbox it did not keep the kernel's blkback off"

disk_guest one "disk='$(vbd /disks/one xvda)'"
ask one "within 20 [ -b /dev/xvda ]" || { said_last; fail "the guest has no xvda"; }
ask one "dmesg > /tmp/before; verified_again /dev/xvda 8" || fail "fio does not start: $ANSWER"
note "the disk: $(grep -o 'connected, .*' $BLK_LOG | tail -n 1)"
lives() { ask one "goes_on xvda" || { said_last; fail "$1: fio did not go on: $ANSWER"; }; }
lives "at first"
old=$(pid)
kill -KILL "$old"
within 30 eval '[ "$(pid)" != 0 ] && [ "$(pid)" != '"$old"' ] && [ "$(shown ActiveState)" = active ]' || { said_last; fail "killed, and not started again"; }
lives "killed"
systemctl restart pregrant-blkback || fail "systemctl restart: $?"
lives "restarted"
systemctl stop pregrant-blkback || fail "systemctl stop: $?"
[ "$(shown Result)" = success ] || fail "it ended with $(shown Result)"
blk
lives "stopped, and started without the unit"
ASK_SECONDS=200 ask one "verified_last" || fail "fio: $ANSWER"
note "over a kill, a restart and a stop: $ANSWER"
ask one "news" || fail "the guest's kernel said: $ANSWER"
! grep -E 'ERROR|panicked' $BLK_LOG || fail "the daemon complains"
! systemctl --failed --no-legend list-units 'pregrant*' | grep . || fail "a unit failed"
ask one end
over one || fail "the guest does not end"
end_blk || fail "the daemon ends with $?"
