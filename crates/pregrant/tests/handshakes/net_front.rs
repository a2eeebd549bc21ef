//! Fronts of vifs, each as its source writes its keys, against our back (docs/protocol 2.12 names
//! the sources).

use super::net_guest::play_front;
use super::script::{Grant, Io, ONE, Step};
use Step::*;

/// Keys of Linux's netfront for one queue of two channels.
const LINUX_FLAT: Step = Commit(&[
    ("multi-queue-num-queues", "1"),
    ("tx-ring-ref", "{tx0}"),
    ("rx-ring-ref", "{rx0}"),
    ("event-channel-tx", "{porttx0}"),
    ("event-channel-rx", "{portrx0}"),
    ("request-rx-copy", "1"),
    ("feature-rx-notify", "1"),
    ("feature-sg", "1"),
    ("feature-gso-tcpv4", "1"),
    ("feature-gso-tcpv6", "1"),
    ("feature-ipv6-csum-offload", "1"),
]);

const LINUX_TWO: Step = Commit(&[
    ("multi-queue-num-queues", "2"),
    ("queue-0/tx-ring-ref", "{tx0}"),
    ("queue-0/rx-ring-ref", "{rx0}"),
    ("queue-0/event-channel-tx", "{porttx0}"),
    ("queue-0/event-channel-rx", "{portrx0}"),
    ("queue-1/tx-ring-ref", "{tx1}"),
    ("queue-1/rx-ring-ref", "{rx1}"),
    ("queue-1/event-channel-tx", "{porttx1}"),
    ("queue-1/event-channel-rx", "{portrx1}"),
    ("request-rx-copy", "1"),
    ("feature-rx-notify", "1"),
    ("feature-sg", "1"),
    ("feature-gso-tcpv4", "1"),
    ("feature-gso-tcpv6", "1"),
    ("feature-ipv6-csum-offload", "1"),
]);

const SPLIT: Grant = Grant { other: true, ..ONE };
const SPLIT_TWO: Grant = Grant { queues: 2, ..SPLIT };

/// The keys that Linux's netfront reads of a back before it writes anything.
const LINUX_ASKS: Step = Sees(&[
    ("feature-rx-copy", Some("1")),
    ("feature-split-event-channels", Some("1")),
    ("multi-queue-max-queues", Some("8")),
    ("feature-xdp-headroom", Some("1")),
]);

/// The probe of Linux's front: state 1, until the back is neither closed nor gone; then it connects
/// when the back is in state 2.
const LINUX_PROBES: [Step; 3] = [State(1), Wait(&[2], &[0, 1, 4, 5, 6]), LINUX_ASKS];

#[test]
fn linux_with_two_queues_bound_and_unbound() {
    play_front(&[
        LINUX_PROBES[0],
        LINUX_PROBES[1],
        LINUX_PROBES[2],
        Write(&[("xdp-headroom", "0")]),
        Grant(SPLIT_TWO),
        LINUX_TWO,
        State(4),
        Wait(&[4], &[2]),
        Io(Io::Plain),
        Io(Io::Many),
        // xennet_bus_close
        State(5),
        Wait(&[5, 6], &[4]),
        State(6),
        Wait(&[6], &[5]),
        End,
        // Bound again, now with one queue: what is left of the two is not checked.
        LINUX_PROBES[0],
        LINUX_PROBES[1],
        Write(&[("xdp-headroom", "0")]),
        Grant(SPLIT),
        LINUX_FLAT,
        State(4),
        Wait(&[4], &[2]),
        Io(Io::Plain),
        State(5),
        Wait(&[5, 6], &[4]),
        State(6),
        Wait(&[6], &[5]),
        End,
    ]);
}

/// xenbus_reset_frontend of a kernel after kexec or a crash: each state is waited for by itself,
/// five seconds long.
#[test]
fn linux_after_a_kernel_that_crashed() {
    play_front(&[
        LINUX_PROBES[1],
        Write(&[("xdp-headroom", "0")]),
        Grant(SPLIT_TWO),
        LINUX_TWO,
        State(4),
        Wait(&[4], &[2]),
        Io(Io::Plain),
        State(5),
        Wait(&[5], &[4]),
        State(6),
        Wait(&[6], &[5]),
        State(1),
        Wait(&[2], &[6]),
        End,
        LINUX_PROBES[0],
        LINUX_PROBES[1],
        Grant(SPLIT),
        LINUX_FLAT,
        State(4),
        Wait(&[4], &[2]),
        Io(Io::Many),
        State(5),
        Wait(&[5, 6], &[4]),
        State(6),
        Wait(&[6], &[5]),
        End,
    ]);
}

/// Linux before 3.13: one channel, no queues, nothing for IPv6.
#[test]
fn linux_3_2() {
    play_front(&[
        Wait(&[2], &[1]),
        Grant(ONE),
        Commit(&[
            ("tx-ring-ref", "{tx0}"),
            ("rx-ring-ref", "{rx0}"),
            ("event-channel", "{port0}"),
            ("request-rx-copy", "1"),
            ("feature-rx-notify", "1"),
            ("feature-sg", "1"),
            ("feature-gso-tcpv4", "1"),
        ]),
        State(4),
        Wait(&[4], &[2]),
        Io(Io::Many),
        // The toolstack takes it away: netfront goes to 6 at the back's 5.
        Toolstack("online", "0"),
        Toolstack("state", "5"),
        State(6),
        Wait(&[6], &[5]),
        End,
    ]);
}

/// The keys of xenvif, for two queues with channels of their own and a control ring: RX first.
const WINDOWS: Step = Commit(&[
    ("request-rx-copy", "1"),
    ("feature-sg", "1"),
    ("feature-rx-notify", "1"),
    ("feature-gso-tcpv4", "1"),
    ("feature-gso-tcpv6", "1"),
    ("feature-no-csum-offload", "0"),
    ("feature-ipv6-csum-offload", "1"),
    ("queue-0/rx-ring-ref", "{rx0}"),
    ("queue-0/event-channel-rx", "{portrx0}"),
    ("queue-1/rx-ring-ref", "{rx1}"),
    ("queue-1/event-channel-rx", "{portrx1}"),
    ("queue-0/tx-ring-ref", "{tx0}"),
    ("queue-0/event-channel-tx", "{porttx0}"),
    ("queue-1/tx-ring-ref", "{tx1}"),
    ("queue-1/event-channel-tx", "{porttx1}"),
    ("ctrl-ring-ref", "{ctrl}"),
    ("event-channel-ctrl", "{portctrl}"),
    ("multi-queue-num-queues", "2"),
]);

/// xenvif asserts that a back's state is none but these; 7 and 8 stop the guest.
const WINDOWS_KNOWS: &[u8] = &[1, 2, 4, 5, 6];

#[test]
fn windows_with_two_queues_and_a_control_ring() {
    play_front(&[
        Wait(&[2], WINDOWS_KNOWS),
        Sees(&[("feature-ctrl-ring", Some("1")), ("feature-dynamic-multicast-control", Some("1"))]),
        Grant(SPLIT_TWO),
        Remove(&["feature-gso-tcpv4-prefix", "feature-gso-tcpv6-prefix"]),
        WINDOWS,
        State(4),
        Wait(&[4], WINDOWS_KNOWS),
        Io(Io::Plain),
        Write(&[("request-multicast-control", "1")]),
        Rests(4),
        Io(Io::Many),
        // FrontendClose: 5 at the back's 4, 6 at its 5, until it is at 6.
        State(5),
        Wait(&[5], WINDOWS_KNOWS),
        State(6),
        Wait(&[6], WINDOWS_KNOWS),
        End,
        // FrontendPrepare again: 1 at the back's 6. With one queue its keys are flat, and the
        // number is written all the same.
        State(1),
        Wait(&[2], WINDOWS_KNOWS),
        Grant(SPLIT),
        Commit(&[
            ("request-rx-copy", "1"),
            ("feature-sg", "1"),
            ("feature-rx-notify", "1"),
            ("rx-ring-ref", "{rx0}"),
            ("event-channel-rx", "{portrx0}"),
            ("tx-ring-ref", "{tx0}"),
            ("event-channel-tx", "{porttx0}"),
            ("ctrl-ring-ref", "{ctrl}"),
            ("event-channel-ctrl", "{portctrl}"),
            ("multi-queue-num-queues", "1"),
        ]),
        State(4),
        Wait(&[4], WINDOWS_KNOWS),
        Io(Io::Many),
        State(5),
        Wait(&[5], WINDOWS_KNOWS),
        State(6),
        Wait(&[6], WINDOWS_KNOWS),
        End,
    ]);
}

/// FreeBSD: several queues of one channel each, nothing for IPv6.
const FREEBSD_FOUR: Step = Commit(&[
    ("multi-queue-num-queues", "4"),
    ("queue-0/tx-ring-ref", "{tx0}"),
    ("queue-0/rx-ring-ref", "{rx0}"),
    ("queue-0/event-channel", "{port0}"),
    ("queue-1/tx-ring-ref", "{tx1}"),
    ("queue-1/rx-ring-ref", "{rx1}"),
    ("queue-1/event-channel", "{port1}"),
    ("queue-2/tx-ring-ref", "{tx2}"),
    ("queue-2/rx-ring-ref", "{rx2}"),
    ("queue-2/event-channel", "{port2}"),
    ("queue-3/tx-ring-ref", "{tx3}"),
    ("queue-3/rx-ring-ref", "{rx3}"),
    ("queue-3/event-channel", "{port3}"),
    ("request-rx-copy", "1"),
    ("feature-rx-notify", "1"),
    ("feature-sg", "1"),
]);
const FOUR: Grant = Grant { queues: 4, ..ONE };

/// A changed option takes the vif down and up: it removes what it says of its options, and waits
/// for each state of the back.
#[test]
fn freebsd_with_four_queues_resets_its_interface() {
    play_front(&[
        Wait(&[2], &[1]),
        Grant(FOUR),
        FREEBSD_FOUR,
        Write(&[("feature-gso-tcpv4", "1")]),
        State(4),
        Wait(&[4], &[2]),
        Io(Io::Many),
        Remove(&["feature-gso-tcpv4", "feature-no-csum-offload"]),
        State(5),
        Wait(&[5], &[4]),
        State(6),
        Wait(&[6], &[5]),
        End,
        State(1),
        Wait(&[2], &[6]),
        Grant(FOUR),
        FREEBSD_FOUR,
        Write(&[("feature-no-csum-offload", "1")]),
        State(4),
        Wait(&[4], &[2]),
        Io(Io::Many),
        Toolstack("online", "0"),
        Toolstack("state", "5"),
        State(6),
        Wait(&[6], &[5]),
        End,
    ]);
}

/// NetBSD goes to 3 with rings posted and no key written, and stops on any state of a back that it
/// does not know.
#[test]
fn netbsd() {
    play_front(&[
        Grant(ONE),
        State(3),
        Rests(2),
        Commit(&[
            ("vifname", "xennet0"),
            ("tx-ring-ref", "{tx0}"),
            ("rx-ring-ref", "{rx0}"),
            ("request-rx-copy", "1"),
            ("feature-rx-notify", "1"),
            ("feature-ipv6-csum-offload", "1"),
            ("feature-sg", "1"),
            ("event-channel", "{port0}"),
        ]),
        State(4),
        Wait(&[4], &[2]),
        Io(Io::Many),
        State(5),
        Wait(&[5], &[4]),
        State(6),
        Wait(&[6], &[5]),
        End,
    ]);
}

/// OpenBSD: each key by itself, and 4, whatever the back's state.
#[test]
fn openbsd() {
    play_front(&[
        Grant(ONE),
        Write(&[
            ("rx-ring-ref", "{rx0}"),
            ("request-rx-copy", "1"),
            ("feature-rx-notify", "1"),
            ("tx-ring-ref", "{tx0}"),
            ("feature-sg", "1"),
            ("feature-ipv6-csum-offload", "1"),
            ("event-channel", "{port0}"),
        ]),
        State(4),
        Wait(&[4], &[1, 2]),
        Io(Io::Many),
        // It says nothing at its end: its domain is gone, and its directory.
        Remove(&["state"]),
        Wait(&[6], &[4, 5]),
        End,
    ]);
}

/// Mini-OS: all keys and state 4 in one transaction, whatever the back's state is; no sg, nothing
/// says when RX slots come.
const MINI_OS: Step = Commit(&[
    ("tx-ring-ref", "{tx0}"),
    ("rx-ring-ref", "{rx0}"),
    ("event-channel", "{port0}"),
    ("request-rx-copy", "1"),
    ("state", "4"),
]);

/// Mini-OS grants its TX pages writable, too.
const MINI_OS_GRANTS: Grant = Grant { read_only: false, ..ONE };

#[test]
fn mini_os_does_not_wait_for_2() {
    play_front(&[
        Grant(MINI_OS_GRANTS),
        MINI_OS,
        Wait(&[4], &[1, 2]),
        Io(Io::Plain),
        Io(Io::Empty),
        // It waits without an end for each.
        State(5),
        Wait(&[5], &[4]),
        State(6),
        Wait(&[6], &[5]),
        State(1),
        Wait(&[2], &[6]),
        Remove(&["tx-ring-ref", "rx-ring-ref", "event-channel", "request-rx-copy"]),
        End,
        // And resumed.
        Grant(MINI_OS_GRANTS),
        MINI_OS,
        Wait(&[4], &[2]),
        Io(Io::Plain),
        State(5),
        Wait(&[5], &[4]),
        State(6),
        Wait(&[6], &[5]),
        State(1),
        Wait(&[2], &[6]),
        Remove(&["tx-ring-ref", "rx-ring-ref", "event-channel", "request-rx-copy"]),
        End,
    ]);
}

/// The Mini-OS of 2015 says `feature-persistent` to every back, and leaves its channel's key
/// behind; Linux comes after it.
#[test]
fn linux_after_the_mini_os_of_2015() {
    play_front(&[
        Grant(MINI_OS_GRANTS),
        Commit(&[
            ("tx-ring-ref", "{tx0}"),
            ("rx-ring-ref", "{rx0}"),
            ("event-channel", "{port0}"),
            ("request-rx-copy", "1"),
            ("feature-persistent", "1"),
            ("state", "4"),
        ]),
        Wait(&[4], &[1, 2]),
        Io(Io::Plain),
        State(5),
        Wait(&[5], &[4]),
        State(6),
        Wait(&[6], &[5]),
        State(1),
        Wait(&[2], &[6]),
        Remove(&["tx-ring-ref", "rx-ring-ref", "request-rx-copy", "feature-persistent"]),
        End,
        LINUX_PROBES[0],
        LINUX_PROBES[1],
        Grant(SPLIT),
        LINUX_FLAT,
        State(4),
        Wait(&[4], &[2]),
        Io(Io::Many),
        State(5),
        Wait(&[5, 6], &[4]),
        State(6),
        Wait(&[6], &[5]),
        End,
    ]);
}

/// Persistent grants of 2015: the key of each end, in the same transaction as the others.
#[test]
fn linux_prototype_of_2015() {
    play_front(&[
        Wait(&[2], &[1]),
        Sees(&[("feature-persistent", Some("1"))]),
        Grant(Grant { read_only: false, ..SPLIT }),
        LINUX_FLAT,
        Write(&[("feature-persistent", "1")]),
        State(4),
        Wait(&[4], &[2]),
        Io(Io::Many),
        State(5),
        Wait(&[5, 6], &[4]),
        State(6),
        Wait(&[6], &[5]),
        End,
    ]);
}

/// Messages 8 to 10 of 2017: a control ring beside Linux's keys.
#[test]
fn linux_prototype_of_2017() {
    play_front(&[
        Wait(&[2], &[1]),
        Sees(&[("feature-ctrl-ring", Some("1"))]),
        Grant(SPLIT),
        LINUX_FLAT,
        Write(&[("ctrl-ring-ref", "{ctrl}"), ("event-channel-ctrl", "{portctrl}")]),
        State(4),
        Wait(&[4], &[2]),
        Io(Io::Many),
        State(5),
        Wait(&[5, 6], &[4]),
        State(6),
        Wait(&[6], &[5]),
        End,
    ]);
}
