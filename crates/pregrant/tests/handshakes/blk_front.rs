//! Fronts of disks, each as its source writes its keys, against our back (docs/protocol 5.5 and
//! 2.12 name the sources).

use super::blk_guest::play_front;
use super::script::{Grant, Io, ONE, Step};
use Step::*;

/// A front that keeps its grants, all of which the back may write to.
const KEPT: Grant = Grant { read_only: false, ..ONE };
const NARROW: Grant = Grant { other: true, ..ONE };

/// The keys that a system reads of a disk that is writable by the toolstack's word.
const FIGURES: Step = Sees(&[
    ("sectors", Some("4096")),
    ("sector-size", Some("512")),
    ("info", Some("0")),
    ("feature-flush-cache", Some("1")),
    ("feature-barrier", Some("1")),
]);

const LINUX_FLAT: Step = Commit(&[
    ("ring-ref", "{ring0}"),
    ("event-channel", "{port0}"),
    ("protocol", "x86_64-abi"),
    ("feature-persistent", "1"),
]);
const LINUX_TWO_PAGES: Step = Commit(&[
    ("ring-page-order", "1"),
    ("ring-ref0", "{ring0.0}"),
    ("ring-ref1", "{ring0.1}"),
    ("event-channel", "{port0}"),
    ("protocol", "x86_64-abi"),
    ("feature-persistent", "1"),
]);
const LINUX_FOUR: Step = Commit(&[
    ("multi-queue-num-queues", "4"),
    ("queue-0/ring-ref", "{ring0}"),
    ("queue-0/event-channel", "{port0}"),
    ("queue-1/ring-ref", "{ring1}"),
    ("queue-1/event-channel", "{port1}"),
    ("queue-2/ring-ref", "{ring2}"),
    ("queue-2/event-channel", "{port2}"),
    ("queue-3/ring-ref", "{ring3}"),
    ("queue-3/event-channel", "{port3}"),
    ("protocol", "x86_64-abi"),
    ("feature-persistent", "1"),
]);
const LINUX_TWO_OF_TWO_PAGES: Step = Commit(&[
    ("ring-page-order", "1"),
    ("multi-queue-num-queues", "2"),
    ("queue-0/ring-ref0", "{ring0.0}"),
    ("queue-0/ring-ref1", "{ring0.1}"),
    ("queue-0/event-channel", "{port0}"),
    ("queue-1/ring-ref0", "{ring1.0}"),
    ("queue-1/ring-ref1", "{ring1.1}"),
    ("queue-1/event-channel", "{port1}"),
    ("protocol", "x86_64-abi"),
    ("feature-persistent", "1"),
]);
const FOUR: Grant = Grant { queues: 4, ..KEPT };
const TWO_PAGES: Grant = Grant { order: 1, ..KEPT };
const TWO_OF_TWO_PAGES: Grant = Grant { queues: 2, order: 1, ..KEPT };

/// Blkfront's probe: state 1; keys when the back is at 2.
const LINUX_WAITS: Step = Wait(&[2], &[0, 1]);
const LINUX_ASKS: Step = Sees(&[("max-ring-page-order", Some("4")), ("multi-queue-max-queues", Some("4"))]);

/// From a firmware's close on, or from the toolstack on: Linux until it has unplugged the disk.
fn linux(grant: Grant, keys: Step) -> Vec<Step> {
    vec![
        State(1),
        LINUX_WAITS,
        LINUX_ASKS,
        Grant(grant),
        keys,
        State(3),
        Wait(&[4], &[2]),
        FIGURES,
        State(4),
        Rests(4),
        Io(Io::Plain),
        Io(Io::Many),
        Io(Io::Indirect),
        // A front that is not in use, or that is of 5.14 and later, says 6 at the back's 5.
        Toolstack("online", "0"),
        Toolstack("state", "5"),
        Rests(5),
        State(6),
        Wait(&[6], &[5]),
        End,
    ]
}

/// The loaders before Linux, and Linux.
fn then_linux(before: &[Step], grant: Grant, keys: Step) -> Vec<Step> {
    [before, &linux(grant, keys)].concat()
}

/// A loader before a kernel must not matter to it, however many rings it makes, and of however many
/// pages.
fn then_each_linux(before: &[Step]) {
    for (grant, keys) in [(KEPT, LINUX_FLAT), (TWO_PAGES, LINUX_TWO_PAGES), (FOUR, LINUX_FOUR)] {
        play_front(&then_linux(before, grant, keys));
    }
}

#[test]
fn linux_with_one_page() {
    play_front(&linux(KEPT, LINUX_FLAT));
}

#[test]
fn linux_with_two_pages() {
    play_front(&linux(TWO_PAGES, LINUX_TWO_PAGES));
}

#[test]
fn linux_with_four_queues() {
    play_front(&linux(FOUR, LINUX_FOUR));
}

#[test]
fn linux_with_two_queues_of_two_pages() {
    play_front(&linux(TWO_OF_TWO_PAGES, LINUX_TWO_OF_TWO_PAGES));
}

/// A kernel that is started by another, or after a crash of it: it closes what it finds connected,
/// waits for each state by itself, and removes no key. With one queue and one page it writes
/// neither's number.
#[test]
fn linux_with_four_queues_then_a_kernel_with_one() {
    let reset = [State(5), Wait(&[5], &[4]), State(6), Wait(&[6], &[5]), State(1), Wait(&[2], &[6]), End];
    for (grant, keys) in
        [(FOUR, LINUX_FOUR), (TWO_PAGES, LINUX_TWO_PAGES), (TWO_OF_TWO_PAGES, LINUX_TWO_OF_TWO_PAGES)]
    {
        let first = linux(grant, keys);
        let used = first.iter().position(|step| matches!(step, Io(Io::Indirect))).unwrap();
        play_front(&then_linux(&[&first[..=used], &reset].concat(), KEPT, LINUX_FLAT));
    }
}

/// Linux before 5.14 with a mounted disk that is unplugged: it says 5, goes on for as long as the
/// disk is in use, and says 6 then.
#[test]
fn linux_5_13_that_uses_a_disk_which_is_taken_away() {
    play_front(&[
        State(1),
        LINUX_WAITS,
        Grant(KEPT),
        LINUX_FLAT,
        State(3),
        Wait(&[4], &[2]),
        State(4),
        Rests(4),
        Io(Io::Plain),
        Toolstack("online", "0"),
        Toolstack("state", "5"),
        Rests(5),
        State(5),
        Rests(5),
        Io(Io::Plain),
        Io(Io::Many),
        Rests(5),
        State(6),
        Wait(&[6], &[5]),
        End,
    ]);
}

/// Linux 3.2 and other old fronts write no key of the kept pages, and nothing else that is newer.
#[test]
fn linux_3_2() {
    play_front(&[
        State(1),
        LINUX_WAITS,
        Grant(ONE),
        Commit(&[("ring-ref", "{ring0}"), ("event-channel", "{port0}"), ("protocol", "x86_64-abi")]),
        State(3),
        Wait(&[4], &[2]),
        FIGURES,
        State(4),
        Rests(4),
        Io(Io::Plain),
        Io(Io::Many),
        State(6),
        Wait(&[6], &[4, 5]),
        End,
    ]);
}

/// A 32-bit front names its layout; one on x86 that names none has 32-bit slots as well.
#[test]
fn thirty_two_bits() {
    const NAMED: Step =
        Commit(&[("ring-ref", "{ring0}"), ("event-channel", "{port0}"), ("protocol", "x86_32-abi")]);
    const UNNAMED: Step = Commit(&[("ring-ref", "{ring0}"), ("event-channel", "{port0}")]);
    let is_x86 = cfg!(any(target_arch = "x86", target_arch = "x86_64"));
    for keys in [NAMED, UNNAMED].into_iter().take(1 + usize::from(is_x86)) {
        play_front(&[
            State(1),
            LINUX_WAITS,
            Grant(NARROW),
            keys,
            State(3),
            Wait(&[4], &[2]),
            State(4),
            Rests(4),
            Io(Io::Plain),
            Io(Io::Many),
            Io(Io::Indirect),
            State(6),
            Wait(&[6], &[4, 5]),
            End,
        ]);
    }
}

/// Xenvbd closes before it begins, whatever it finds.
const WINDOWS_CLOSES: [Step; 6] =
    [State(5), Wait(&[5, 6], &[1, 2, 4]), State(6), Wait(&[6], &[5]), State(1), Wait(&[2], &[6])];

const WINDOWS_TWO_OF_TWO_PAGES: Step = Commit(&[
    ("queue-0/event-channel", "{port0}"),
    ("queue-0/ring-ref0", "{ring0.0}"),
    ("queue-0/ring-ref1", "{ring0.1}"),
    ("queue-1/event-channel", "{port1}"),
    ("queue-1/ring-ref0", "{ring1.0}"),
    ("queue-1/ring-ref1", "{ring1.1}"),
    ("multi-queue-num-queues", "2"),
    ("ring-page-order", "1"),
    ("protocol", "x86_64-abi"),
    ("target-id", "0"),
    ("feature-surprise-remove", "1"),
    ("feature-online-resize", "1"),
    ("feature-large-sector-size", "1"),
]);
const WINDOWS_TWO_PAGES: Step = Commit(&[
    ("event-channel", "{port0}"),
    ("ring-ref0", "{ring0.0}"),
    ("ring-ref1", "{ring0.1}"),
    ("multi-queue-num-queues", "1"),
    ("ring-page-order", "1"),
    ("protocol", "x86_64-abi"),
    ("target-id", "0"),
    ("feature-surprise-remove", "1"),
    ("feature-online-resize", "1"),
    ("feature-large-sector-size", "1"),
]);

/// Xenvbd as its package sets it up, on a machine of several CPUs or of one, until it is in use.
fn windows(grant: Grant, keys: Step) -> Vec<Step> {
    let connects = [
        LINUX_ASKS,
        Sees(&[("feature-persistent", Some("1")), ("feature-max-indirect-segments", Some("256"))]),
        Grant(Grant { read_only: true, ..grant }),
        keys,
        State(3),
        Wait(&[4], &[2]),
        FIGURES,
        State(4),
        Rests(4),
        Io(Io::Plain),
        Io(Io::Many),
        Io(Io::Indirect),
    ];
    [&WINDOWS_CLOSES[..], &connects].concat()
}

#[test]
fn windows_on_two_cpus_and_one() {
    for (grant, keys) in [(TWO_OF_TWO_PAGES, WINDOWS_TWO_OF_TWO_PAGES), (TWO_PAGES, WINDOWS_TWO_PAGES)] {
        let mut steps = windows(grant, keys);
        steps.extend([State(5), Wait(&[5, 6], &[4]), State(6), Wait(&[6], &[5]), End]);
        // And an unplug: it ejects at the back's 5 when the disk is not online, by the same close.
        play_front(
            &[&steps[..], &windows(grant, keys)]
                .concat()
                .into_iter()
                .chain([
                    Toolstack("online", "0"),
                    Toolstack("state", "5"),
                    Rests(5),
                    State(5),
                    Wait(&[5, 6], &[]),
                    State(6),
                    Wait(&[6], &[5]),
                    End,
                ])
                .collect::<Vec<_>>(),
        );
    }
}

/// After a crash of Windows xencrsh takes the disk to write the memory to: one ring of one page,
/// next to what xenvbd left.
#[test]
fn windows_that_crashed() {
    for (grant, keys) in [(TWO_OF_TWO_PAGES, WINDOWS_TWO_OF_TWO_PAGES), (TWO_PAGES, WINDOWS_TWO_PAGES)] {
        let mut steps = windows(grant, keys);
        steps.extend(WINDOWS_CLOSES);
        steps.extend([
            End,
            Remove(&[
                "ring-page-order",
                "feature-online-resize",
                "feature-surprise-remove",
                "multi-queue-num-queues",
            ]),
            Grant(ONE),
            Commit(&[
                ("event-channel", "{port0}"),
                ("multi-queue-num-queues", "1"),
                ("ring-ref", "{ring0}"),
                ("protocol", "x86_64-abi"),
                ("feature-surprise-remove", "1"),
                ("feature-online-resize", "1"),
                ("target-id", "0"),
            ]),
            State(3),
            Wait(&[4], &[2]),
            State(4),
            Rests(4),
            Io(Io::Plain),
            Io(Io::Many),
            State(5),
            Wait(&[5, 6], &[4]),
            State(6),
            Wait(&[6], &[5]),
            End,
        ]);
        play_front(&steps);
    }
}

/// FreeBSD's blkfront: each key by itself; the kernel's own back keeps 8 pages, ours as many as it
/// asks for.
#[test]
fn freebsd_of_one_page_and_of_eight() {
    const ONE_PAGE: &[Step] =
        &[Write(&[("ring-ref", "{ring0}"), ("num-ring-pages", "1"), ("ring-page-order", "0")])];
    const EIGHT: &[Step] = &[Write(&[
        ("ring-ref0", "{ring0.0}"),
        ("ring-ref1", "{ring0.1}"),
        ("ring-ref2", "{ring0.2}"),
        ("ring-ref3", "{ring0.3}"),
        ("ring-ref4", "{ring0.4}"),
        ("ring-ref5", "{ring0.5}"),
        ("ring-ref6", "{ring0.6}"),
        ("ring-ref7", "{ring0.7}"),
        ("num-ring-pages", "8"),
        ("ring-page-order", "3"),
    ])];
    for (order, rings) in [(0, ONE_PAGE), (3, EIGHT)] {
        let connects = [
            Write(&[("event-channel", "{port0}"), ("protocol", "x86_64-abi")]),
            State(3),
            Wait(&[4], &[2]),
            FIGURES,
            State(4),
            Rests(4),
            Io(Io::Plain),
            Io(Io::Many),
            Io(Io::Indirect),
            // It says both without waiting.
            State(5),
            State(6),
            Wait(&[6], &[4, 5]),
            End,
        ];
        let begins = [State(1), Wait(&[2], &[0, 1, 6]), LINUX_ASKS, Grant(Grant { order, ..ONE })];
        let once = [&begins, rings, &connects].concat();
        play_front(&[once.clone(), once].concat());
    }
}

/// FreeBSD before 11 wrote its limits for the back too, and refuses to detach an open disk:
/// it writes a text and stays at 4.
#[test]
fn freebsd_of_old_and_in_use() {
    play_front(&[
        State(1),
        Wait(&[2], &[0, 1]),
        Grant(TWO_PAGES),
        Write(&[
            ("ring-ref1", "{ring0.0}"),
            ("ring-ref2", "{ring0.1}"),
            ("max-requests", "64"),
            ("max-request-segments", "11"),
            ("max-request-size", "45056"),
            ("ring-ref0", "{ring0.0}"),
            ("ring-ref1", "{ring0.1}"),
            ("num-ring-pages", "2"),
            ("ring-page-order", "1"),
            ("event-channel", "{port0}"),
            ("protocol", "x86_64-abi"),
        ]),
        State(3),
        Wait(&[4], &[2]),
        State(4),
        Rests(4),
        Io(Io::Many),
        Toolstack("online", "0"),
        Toolstack("state", "5"),
        Rests(5),
        Io(Io::Plain),
        State(5),
        State(6),
        Wait(&[6], &[5]),
        End,
    ]);
}

/// NetBSD's xbd: it reads the features when it attaches, at the back's 2, and writes its keys
/// without checking the back's state.
#[test]
fn netbsd() {
    play_front(&[
        Rests(2),
        Sees(&[("feature-flush-cache", Some("1")), ("feature-max-indirect-segments", Some("256"))]),
        Grant(ONE),
        Commit(&[("ring-ref", "{ring0}"), ("event-channel", "{port0}"), ("protocol", "x86_64-abi")]),
        State(3),
        Wait(&[4], &[2]),
        FIGURES,
        State(4),
        Rests(4),
        Io(Io::Plain),
        Io(Io::StaleFlush),
        Io(Io::Many),
        Io(Io::Indirect),
        // A detach: 5, and it takes its grants back at the back's 5 or 6 when nothing is in flight.
        Toolstack("online", "0"),
        Toolstack("state", "5"),
        Rests(5),
        State(6),
        Wait(&[6], &[5]),
        End,
    ]);
}

/// The same before our back has started.
#[test]
fn netbsd_before_the_back() {
    play_front(&[
        Grant(ONE),
        Commit(&[("ring-ref", "{ring0}"), ("event-channel", "{port0}"), ("protocol", "x86_64-abi")]),
        State(3),
        Wait(&[4], &[0, 1, 2]),
        State(4),
        Rests(4),
        Io(Io::Many),
        State(6),
        Wait(&[6], &[4, 5]),
        End,
    ]);
}

/// OpenBSD's xbf: as many pages as the back has, up to 8; each key by itself, whatever the
/// back's state.
#[test]
fn openbsd() {
    play_front(&[
        Rests(2),
        LINUX_ASKS,
        Grant(Grant { order: 3, ..ONE }),
        Write(&[
            ("ring-ref0", "{ring0.0}"),
            ("ring-ref1", "{ring0.1}"),
            ("ring-ref2", "{ring0.2}"),
            ("ring-ref3", "{ring0.3}"),
            ("ring-ref4", "{ring0.4}"),
            ("ring-ref5", "{ring0.5}"),
            ("ring-ref6", "{ring0.6}"),
            ("ring-ref7", "{ring0.7}"),
            ("num-ring-pages", "8"),
            ("ring-page-order", "3"),
            ("event-channel", "{port0}"),
            ("protocol", "x86_64-abi"),
        ]),
        State(3),
        Wait(&[4], &[2]),
        FIGURES,
        State(4),
        Rests(4),
        Io(Io::Plain),
        Io(Io::Many),
        // It says nothing at its end: its domain is gone, and its directory.
        Remove(&["state"]),
        Wait(&[6], &[4, 5]),
        End,
    ]);
}

/// Mini-OS's blkfront: keys and state 4 in one transaction, whatever the back's state; it waits at
/// a close for 5, 6, then 2, without an end, and leaves `protocol` behind. Its flush is a barrier
/// and a flush at once, of one id.
const MINI_OS: [Step; 14] = [
    Grant(ONE),
    Commit(&[
        ("ring-ref", "{ring0}"),
        ("event-channel", "{port0}"),
        ("protocol", "x86_64-abi"),
        ("state", "4"),
    ]),
    Wait(&[4], &[0, 1, 2, 3]),
    FIGURES,
    Rests(4),
    Io(Io::Plain),
    Io(Io::BarrierAndFlush),
    Io(Io::Many),
    State(5),
    Wait(&[5, 6], &[4]),
    State(6),
    Wait(&[6], &[5]),
    State(1),
    Wait(&[2], &[6]),
];
const MINI_OS_ENDS: [Step; 2] = [Remove(&["ring-ref", "event-channel"]), End];

#[test]
fn mini_os_twice_then_linux() {
    let once = [&MINI_OS[..], &MINI_OS_ENDS].concat();
    then_each_linux(&[once.clone(), once].concat());
}

/// GRUB: each key by itself, whatever the back's state; any but 2 counts as connected then. It
/// reads at state 3, never says 4, says 6 without 5, and leaves its keys empty.
const fn grub(grant: Grant, protocol: &'static [(&'static str, &'static str)]) -> [Step; 14] {
    [
        Rests(2),
        Grant(grant),
        Write(&[("ring-ref", "{ring0}"), ("event-channel", "{port0}")]),
        Write(protocol),
        State(3),
        Wait(&[4], &[2]),
        Sees(&[("sectors", Some("4096")), ("sector-size", Some("512")), ("info", Some("0"))]),
        Io(Io::Read),
        State(6),
        Wait(&[6], &[4, 5]),
        Write(&[("ring-ref", ""), ("event-channel", "")]),
        State(1),
        End,
        Rests(2),
    ]
}

#[test]
fn grub_then_linux() {
    then_each_linux(&grub(ONE, &[("protocol", "x86_64-abi")]));
    then_each_linux(&grub(NARROW, &[("protocol", "x86_32-abi")]));
}

/// OVMF: the keys and state 4 in one transaction, whatever the back's state; at its end it waits
/// for exactly 5, for exactly 6, and for 2, and removes its keys.
const OVMF: [Step; 14] = [
    Grant(ONE),
    Commit(&[
        ("ring-ref", "{ring0}"),
        ("event-channel", "{port0}"),
        ("protocol", "x86_64-abi"),
        ("state", "4"),
    ]),
    Wait(&[4], &[0, 1, 2]),
    FIGURES,
    Io(Io::Plain),
    Io(Io::BarrierAndFlush),
    Io(Io::Read),
    State(5),
    Wait(&[5], &[4]),
    State(6),
    Wait(&[6], &[5]),
    State(1),
    Wait(&[2], &[6]),
    Remove(&["ring-ref", "event-channel", "protocol"]),
];

#[test]
fn ovmf_then_linux() {
    then_each_linux(&[&OVMF[..], &[End]].concat());
}

#[test]
fn ovmf_then_windows() {
    let steps = windows(TWO_OF_TWO_PAGES, WINDOWS_TWO_OF_TWO_PAGES);
    let ends = [State(5), Wait(&[5, 6], &[4]), State(6), Wait(&[6], &[5]), End];
    play_front(&[&OVMF[..], &[End], &steps, &ends].concat());
}
