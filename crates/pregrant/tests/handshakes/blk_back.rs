//! Backs of disks, each as its source writes its keys, against our front (docs/protocol 5.5 and
//! 2.12 name the sources).

use super::blk_host::{Manners, play_back};
use super::script::{Io, Step};
use Step::*;
use pregrant::blk::front::FrontConfig;
use pregrant::wire::blkif::Abi;

const LINUX: Manners =
    Manners { indirect: 256, keeps: true, flush: true, barrier: true, discard: true, sectors: 4096 };

/// States of a front that a back does not report as a fault; it does for 2, 7 and 8.
const FRONTS: &[u8] = &[1, 3, 4, 5, 6];

/// A front that asks for all that our own back has.
fn greedy() -> FrontConfig {
    FrontConfig { queues: 2, ring_order: 1, max_segments: 64, ..FrontConfig::default() }
}

const LINUX_OFFERS: Step = Write(&[
    ("feature-max-indirect-segments", "256"),
    ("multi-queue-max-queues", "4"),
    ("max-ring-page-order", "4"),
]);
const LINUX_FIGURES: Step = Commit(&[
    ("feature-flush-cache", "1"),
    ("discard-granularity", "4096"),
    ("discard-alignment", "0"),
    ("discard-secure", "0"),
    ("feature-discard", "1"),
    ("feature-barrier", "1"),
    ("feature-persistent", "1"),
    ("sectors", "4096"),
    ("info", "0"),
    ("sector-size", "512"),
    ("physical-sector-size", "4096"),
]);

/// Blkback answers a front's 5 with its own, and lets go at the front's 6.
const CLOSES: [Step; 6] = [Close, Wait(&[5], FRONTS), State(5), Wait(&[6], FRONTS), End, State(6)];

/// Linux's blkback with our front: what is at the top and what below a queue, for one queue or two,
/// of one page or two.
fn linux(config: FrontConfig, sees: Step, takes: Step) {
    let connects = [
        LINUX_OFFERS,
        State(2),
        Wait(&[3], FRONTS),
        Sees(&[("protocol", Some("x86_64-abi")), ("feature-persistent", Some("1"))]),
        sees,
        takes,
        LINUX_FIGURES,
        State(4),
        Rests(4),
        Io(Io::Plain),
        Io(Io::Many),
    ];
    // Unbound: 5, 6 when the front is at 6. Bound: as at first.
    let unbound = [State(5), Wait(&[6], FRONTS), End, State(6), Wait(&[1], FRONTS)];
    play_back(LINUX, config, &[&connects[..], &unbound, &connects, &CLOSES].concat());
}

#[test]
fn linux_with_one_page() {
    linux(
        FrontConfig { max_segments: 64, ..FrontConfig::default() },
        Sees(&[("multi-queue-num-queues", None), ("ring-page-order", None), ("ring-ref0", None)]),
        Map(&["ring-ref", "event-channel"]),
    );
}

#[test]
fn linux_with_two_pages() {
    linux(
        FrontConfig { queues: 1, ..greedy() },
        Sees(&[("multi-queue-num-queues", None), ("ring-page-order", Some("1")), ("ring-ref", None)]),
        Map(&["ring-ref0", "ring-ref1", "event-channel"]),
    );
}

#[test]
fn linux_with_two_queues() {
    linux(
        FrontConfig { ring_order: 0, ..greedy() },
        Sees(&[("multi-queue-num-queues", Some("2")), ("ring-page-order", None), ("ring-ref", None)]),
        Map(&["queue-0/ring-ref", "queue-0/event-channel", "queue-1/ring-ref", "queue-1/event-channel"]),
    );
}

/// The order is one key at the top.
#[test]
fn linux_with_two_queues_of_two_pages() {
    linux(
        greedy(),
        Sees(&[
            ("multi-queue-num-queues", Some("2")),
            ("ring-page-order", Some("1")),
            ("queue-0/ring-page-order", None),
            ("queue-0/ring-ref", None),
        ]),
        Map(&[
            "queue-0/ring-ref0",
            "queue-0/ring-ref1",
            "queue-0/event-channel",
            "queue-1/ring-ref0",
            "queue-1/ring-ref1",
            "queue-1/event-channel",
        ]),
    );
}

/// A disk that the toolstack's `discard-enable` keeps from discards, on a device without a cache,
/// served to a 32-bit front.
#[test]
fn linux_without_features_and_a_front_of_32_bits() {
    let manners =
        Manners { indirect: 0, keeps: false, flush: false, barrier: false, discard: false, ..LINUX };
    let config = FrontConfig { abi: Abi::X86_32, ..greedy() };
    let connects = [
        State(2),
        Wait(&[3], FRONTS),
        Sees(&[("protocol", Some("x86_32-abi"))]),
        Map(&["ring-ref", "event-channel"]),
        Commit(&[
            ("feature-flush-cache", "0"),
            ("feature-barrier", "0"),
            ("feature-persistent", "0"),
            ("sectors", "4096"),
            ("info", "0"),
            ("sector-size", "512"),
            ("physical-sector-size", "512"),
        ]),
        State(4),
        Rests(4),
        Io(Io::Many),
    ];
    play_back(manners, config, &[&connects[..], &CLOSES].concat());
}

/// QEMU writes all that it has before its 2, and no key of queues, kept pages or barriers. It
/// restarts at the front's 1.
#[test]
fn qemu() {
    let manners = Manners { keeps: false, barrier: false, indirect: 0, ..LINUX };
    let connects = [
        Wait(&[3], FRONTS),
        Sees(&[("protocol", Some("x86_64-abi")), ("ring-page-order", Some("1")), ("ring-ref", None)]),
        Map(&["ring-ref0", "ring-ref1", "event-channel"]),
        State(4),
        Rests(4),
        Io(Io::Many),
    ];
    let begins = [
        Write(&[
            ("feature-discard", "1"),
            ("discard-granularity", "512"),
            ("discard-alignment", "0"),
            ("feature-flush-cache", "1"),
            ("info", "0"),
            ("sector-size", "512"),
            ("sectors", "4096"),
            ("max-ring-page-order", "4"),
            ("mode", "w"),
        ]),
        State(2),
    ];
    // The front of a guest that was shut down is followed by one of the same guest.
    let down = [State(5), Wait(&[6], FRONTS), End, State(6), Wait(&[1], FRONTS), State(2)];
    play_back(manners, greedy(), &[&begins[..], &connects, &down, &connects, &CLOSES].concat());
}

/// FreeBSD's: one ring; flush and barrier are offered before the disk is known.
#[test]
fn freebsd() {
    let manners = Manners { keeps: false, indirect: 0, discard: false, ..LINUX };
    let connects = [
        Write(&[("feature-barrier", "1"), ("feature-flush-cache", "1"), ("max-ring-page-order", "5")]),
        State(2),
        Write(&[("hotplug-status", "connected")]),
        Wait(&[3], FRONTS),
        Sees(&[("ring-page-order", Some("1")), ("protocol", Some("x86_64-abi"))]),
        Map(&["ring-ref0", "ring-ref1", "event-channel"]),
        Commit(&[("sectors", "4096"), ("info", "0"), ("sector-size", "512")]),
        State(4),
        Rests(4),
        Io(Io::Many),
    ];
    play_back(manners, greedy(), &[&connects[..], &CLOSES].concat());
}

/// NetBSD's back writes 4 once it has its disk, in any state of the front, and maps the ring when
/// the front is in state 3.
#[test]
fn netbsd() {
    let manners = Manners { keeps: false, indirect: 32, discard: false, barrier: false, ..LINUX };
    let figures = [
        Commit(&[
            ("sectors", "4096"),
            ("info", "0"),
            ("sector-size", "512"),
            ("feature-flush-cache", "1"),
            ("feature-max-indirect-segments", "32"),
        ]),
        State(4),
    ];
    let connects = [
        Wait(&[3, 4], &[1]),
        Sees(&[("ring-page-order", None), ("protocol", Some("x86_64-abi"))]),
        Map(&["ring-ref", "event-channel"]),
        Rests(4),
        Io(Io::Many),
    ];
    // Before the front has started, and while it waits, which does without indirect requests then.
    let begins = [State(2), Wait(&[3], &[1])];
    let ends = [Close, Wait(&[5], &[4]), State(5), Wait(&[6], &[5]), End, State(6)];
    play_back(manners, greedy(), &[&figures[..], &connects, &ends].concat());
    let late = [Sees(&[("protocol", Some("x86_64-abi"))]), Map(&["ring-ref", "event-channel"])];
    let manners = Manners { indirect: 0, ..manners };
    play_back(manners, greedy(), &[&begins[..], &late, &figures, &connects[3..], &ends].concat());
}
