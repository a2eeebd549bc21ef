//! Backs of vifs, each as its source writes its keys, against our front (docs/protocol 2.12 names
//! the sources).

use super::net_host::{Manners, play_back};
use super::script::{Io, Step};
use Step::*;
use pregrant::net::front::FrontConfig;

const LINUX: Manners = Manners { sg: true, offset: 0 };

/// A front that asks for all that our own back has.
fn greedy() -> FrontConfig {
    FrontConfig {
        queues: 2,
        ring_order: 2,
        persistent: true,
        gref_mapping: true,
        data_ring: Some(4),
        multicast_control: true,
        ..FrontConfig::default()
    }
}

const LINUX_OFFERS: Step = Commit(&[
    ("feature-sg", "1"),
    ("feature-gso-tcpv4", "1"),
    ("feature-gso-tcpv6", "1"),
    ("feature-ipv6-csum-offload", "1"),
    ("feature-rx-copy", "1"),
    ("feature-rx-flip", "0"),
    ("feature-multicast-control", "1"),
    ("feature-dynamic-multicast-control", "1"),
]);
const LINUX_OFFERS_MORE: Step = Write(&[
    ("feature-split-event-channels", "1"),
    ("multi-queue-max-queues", "4"),
    ("feature-ctrl-ring", "1"),
]);

/// States of a front that netback does not report as a fault; it does for 2, 7 and 8.
const FRONTS: &[u8] = &[1, 3, 4, 5, 6];

const LINUX_TAKES: Step = Map(&[
    "queue-0/tx-ring-ref",
    "queue-0/rx-ring-ref",
    "queue-0/event-channel-tx",
    "queue-0/event-channel-rx",
    "queue-1/tx-ring-ref",
    "queue-1/rx-ring-ref",
    "queue-1/event-channel-tx",
    "queue-1/event-channel-rx",
]);

/// Netback connects at the front's 4, and says its own 4 when the script has said that it is done.
#[test]
fn linux_unbound_and_bound() {
    play_back(
        LINUX,
        FrontConfig { queues: 2, ..FrontConfig::default() },
        &[
            State(1),
            LINUX_OFFERS,
            LINUX_OFFERS_MORE,
            State(2),
            Wait(&[4], FRONTS),
            Sees(&[
                ("multi-queue-num-queues", Some("2")),
                ("request-rx-copy", Some("1")),
                ("feature-rx-notify", Some("1")),
                ("feature-sg", Some("1")),
                ("feature-no-csum-offload", Some("0")),
                ("tx-ring-ref", None),
                ("ring-page-order", None),
            ]),
            LINUX_TAKES,
            Rests(4),
            Toolstack("hotplug-status", "connected"),
            State(4),
            Rests(4),
            Io(Io::Plain),
            Io(Io::Many),
            // netback_remove: it lets go, and writes 5 and 6 without waiting; then its probe.
            End,
            State(5),
            State(6),
            Wait(&[1], FRONTS),
            State(1),
            LINUX_OFFERS,
            LINUX_OFFERS_MORE,
            State(2),
            Wait(&[4], FRONTS),
            LINUX_TAKES,
            State(4),
            Rests(4),
            Io(Io::Many),
            Close,
            Wait(&[5], FRONTS),
            End,
            State(5),
            Wait(&[6], FRONTS),
            State(6),
        ],
    );
}

#[test]
fn linux_and_a_front_that_asks_for_all() {
    play_back(
        LINUX,
        greedy(),
        &[
            State(1),
            LINUX_OFFERS,
            LINUX_OFFERS_MORE,
            State(2),
            Wait(&[4], FRONTS),
            Sees(&[
                ("request-multicast-control", Some("1")),
                ("queue-0/tx-ring-page-order", None),
                ("feature-staging-grants", None),
            ]),
            LINUX_TAKES,
            State(4),
            Rests(4),
            Io(Io::Many),
            Close,
            Wait(&[5], FRONTS),
            End,
            State(5),
            Wait(&[6], FRONTS),
            State(6),
        ],
    );
}

/// FreeBSD's netback: one queue, one channel; flat keys, and each is needed.
#[test]
fn freebsd() {
    play_back(
        LINUX,
        greedy(),
        &[
            Write(&[("hotplug-status", "connected")]),
            Commit(&[
                ("feature-sg", "1"),
                ("feature-gso-tcpv4", "0"),
                ("feature-rx-copy", "1"),
                ("feature-rx-flip", "0"),
            ]),
            State(2),
            Wait(&[4], FRONTS),
            Sees(&[("request-rx-copy", Some("1")), ("feature-sg", Some("1")), ("event-channel-tx", None)]),
            Map(&["tx-ring-ref", "rx-ring-ref", "event-channel"]),
            State(4),
            Rests(4),
            Io(Io::Plain),
            Io(Io::Many),
            Close,
            Wait(&[5], FRONTS),
            End,
            State(5),
            Wait(&[6], FRONTS),
            State(6),
        ],
    );
}

/// NetBSD's back is like FreeBSD's; other states of the front are an error.
#[test]
fn netbsd() {
    play_back(
        LINUX,
        greedy(),
        &[
            Commit(&[
                ("vifname", "xvif5i0"),
                ("feature-rx-copy", "1"),
                ("feature-ipv6-csum-offload", "1"),
                ("feature-sg", "1"),
            ]),
            State(2),
            Wait(&[4], &[1, 3, 4]),
            Sees(&[("request-rx-copy", Some("1"))]),
            Map(&["tx-ring-ref", "rx-ring-ref", "event-channel"]),
            State(4),
            Rests(4),
            Io(Io::Many),
            Close,
            // It answers 5 at once, and lets go at the front's 6.
            Wait(&[5], &[4]),
            State(5),
            Wait(&[6], &[5]),
            End,
            State(6),
        ],
    );
}

/// QEMU's NIC: one slot a frame, both ways; received bytes begin at 2.
#[test]
fn qemu() {
    play_back(
        Manners { sg: false, offset: 2 },
        greedy(),
        &[
            Write(&[("feature-rx-copy", "1"), ("feature-rx-flip", "0"), ("hotplug-status", "connected")]),
            State(2),
            Wait(&[4], FRONTS),
            Sees(&[
                ("request-rx-copy", Some("1")),
                ("event-channel-tx", None),
                ("queue-0/tx-ring-ref", None),
            ]),
            Map(&["tx-ring-ref", "rx-ring-ref", "event-channel"]),
            State(4),
            Rests(4),
            Io(Io::Plain),
            Close,
            Wait(&[5], FRONTS),
            State(5),
            Wait(&[6], &[5]),
            End,
            State(6),
        ],
    );
}

/// The prototype of 2015 writes its key with the others: 0 where it was loaded without room for
/// grants.
#[test]
fn linux_prototype_of_2015() {
    const KEEPS: [Step; 2] =
        [Write(&[("feature-persistent", "1")]), Sees(&[("feature-persistent", Some("1"))])];
    const KEEPS_NOT: [Step; 2] =
        [Write(&[("feature-persistent", "0")]), Sees(&[("feature-persistent", Some("0"))])];
    for [offers, sees] in [KEEPS, KEEPS_NOT] {
        play_back(
            LINUX,
            FrontConfig { queues: 1, ..greedy() },
            &[
                State(1),
                LINUX_OFFERS,
                offers,
                Write(&[("feature-split-event-channels", "1"), ("multi-queue-max-queues", "1")]),
                State(2),
                Wait(&[4], FRONTS),
                sees,
                Map(&["tx-ring-ref", "rx-ring-ref", "event-channel-tx", "event-channel-rx"]),
                State(4),
                Rests(4),
                Io(Io::Many),
                Close,
                Wait(&[5], FRONTS),
                End,
                State(5),
                Wait(&[6], FRONTS),
                State(6),
            ],
        );
    }
}
