//! Frames of one guest that are copied from its pages directly into another's: what the receiver
//! gets, and who waits for whom when one of them ends, stalls, or breaks the protocol.

mod guests;

use guests::{ALL, Receiver, Sender, assert_same, frame, mac, teach};
use pregrant::net::back::stall::{Link, Patience};
use pregrant::port::{Arena, FramePort, MAX_FRAME, Offload, Offloads, PortOwner, QueueWaker};
use pregrant_host::ports::switch::Switch;
use pregrant_testkit::two_domains::{Frame, Way};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

const SENDERS: [Way; 3] = [Way::Staging(4096), Way::Staging(65535), Way::Persistent(256)];
const RECEIVERS: [Way; 9] = [
    Way::Staging(2048),
    Way::Staging(4096),
    Way::Staging(65535),
    Way::Heads(256),
    Way::FirstSlots,
    Way::Persistent(256),
    Way::DataRing(7),
    Way::Foreign,
    Way::Copy,
];

/// A switch that forwards zero-copy from a small length on.
fn lending() -> Switch {
    let switch = Switch::new();
    switch.lend_above(1024);
    switch
}

/// Long and short ones in turn, many times what a ring has room for.
fn mixed(n: u32) -> Vec<Frame> {
    let lens = [5000, 60, 1514, 9000, 4097, 1024, 65535, 200, 4096, 8192, 8193, 1500, 20_000];
    (0..n).map(|k| frame(1, 2, lens[k as usize % lens.len()], k)).collect()
}

/// Sends all, in turns; the receiver gets all.
fn carry(a: &mut Sender, b: &mut Receiver, frames: &[Frame]) {
    b.turn();
    let mut sent = 0;
    while sent < frames.len() || a.in_flight() > 0 {
        sent += a.send(&frames[sent..]);
        a.turn();
        b.turn();
    }
}

#[test]
fn what_one_guest_sends_another_gets() {
    for from in SENDERS {
        for to in RECEIVERS {
            let switch = lending();
            let (mut a, mut b) = (Sender::new(&switch, 1, from), Receiver::new(&switch, 2, to, ALL));
            let frames = mixed(1200);
            carry(&mut a, &mut b, &frames);
            assert_same(&b.got, &frames);
            let (a_stats, b_stats) = (a.ends.back.stats(), b.ends.back.stats());
            assert_eq!((a_stats.errors, a_stats.dropped, b_stats.errors, b_stats.dropped), (0, 0, 0, 0));
            let lent = b.port.stats().rx_lent;
            if to == Way::Copy {
                assert_eq!((lent, b_stats.lent), (0, 0), "a grant copy has one guest's pages and ours");
            } else {
                // Of some ways long frames are left to grant copies.
                assert!(lent > 0 && b_stats.lent > 0, "{from:?} to {to:?}: {lent}, {}", b_stats.lent);
            }
            a.close();
            b.close();
        }
    }
}

/// With the option off nothing is zero-copy, and the bytes are the same.
#[test]
fn nothing_is_lent_where_the_operator_says_so() {
    let switch = lending();
    switch.lend_above(MAX_FRAME as u32);
    let (mut a, mut b) =
        (Sender::new(&switch, 1, Way::Staging(4096)), Receiver::new(&switch, 2, Way::Staging(4096), ALL));
    let frames = mixed(200);
    carry(&mut a, &mut b, &frames);
    assert_same(&b.got, &frames);
    assert_eq!((b.port.stats().rx_lent, a.port.stats().unlent, b.ends.back.stats().lent), (0, 0, 0));
    a.close();
    b.close();
}

/// A pair of guests with zero-copy between them, and four frames of one slot each.
fn pair(switch: &Switch) -> (Sender, Receiver, Vec<Frame>) {
    let a = Sender::new(switch, 1, Way::Staging(4096));
    let mut b = Receiver::new(switch, 2, Way::Staging(4096), ALL);
    b.turn();
    (a, b, (0..4).map(|k| frame(1, 2, 4000, k)).collect())
}

/// A zero-copy frame is answered once it was read.
#[test]
fn a_sender_is_answered_when_its_frames_are_read() {
    let switch = lending();
    let (mut a, mut b, frames) = pair(&switch);
    assert_eq!(a.send(&frames), 4);
    while a.turn() {}
    assert_eq!((a.in_flight(), b.port.stats().rx_lent), (4, 4));
    b.turn();
    assert_same(&b.got, &frames);
    a.turn();
    assert_eq!(a.in_flight(), 0);
    a.close();
    b.close();
}

/// A guest that posts no slots keeps no one's pages: frames become private in its worker's round,
/// and later ones are copied at once. When its slots come back, so does zero-copy.
#[test]
fn a_receiver_without_slots_holds_up_no_sender() {
    let switch = lending();
    let (mut a, mut b, frames) = pair(&switch);
    let mut sent = Vec::new();
    // It uses up its slots, and posts no more.
    while b.ends.front.has_free() || b.poll() {
        b.post();
    }
    while b.port.stats().rx_overflow == 0 {
        assert_eq!(a.send(&frames), 4);
        while a.turn() {}
        b.poll();
        a.turn();
        assert_eq!(a.in_flight(), 0, "behind {} frames", sent.len());
        sent.extend_from_slice(&frames);
    }
    let lent = b.port.stats().rx_lent;
    assert!(lent <= 256 + 8, "{lent} lent to one who takes none");
    // What came last found no room, in part.
    sent.truncate(b.port.stats().rx_frames as usize);
    b.turn();
    assert_same(&b.got, &sent);
    assert_eq!(a.send(&frames), 4);
    (0..40).for_each(|_| {
        a.turn();
        a.send(&frames);
        b.turn();
    });
    assert!(b.port.stats().rx_lent > lent, "it takes frames again");
    a.close();
    b.close();
}

/// Long frames in pages begin at a page of the switch's memory each; a few of them use less than
/// half of it.
#[test]
fn gaps_between_a_few_frames_take_nothing_from_who_gets_them() {
    for (together, len) in [(1, 4200), (2, 4200), (3, 9000), (3, 13_000)] {
        let switch = Switch::new();
        let way = Way::Persistent(256);
        let (mut a, mut b) = (Sender::new(&switch, 1, way), Receiver::new(&switch, 2, way, ALL));
        b.turn();
        let frames: Vec<_> = (0..together).map(|k| frame(1, 2, len, k)).collect();
        for _ in 0..400 {
            assert_eq!(a.send(&frames), frames.len());
            a.turn();
            b.turn();
            a.turn();
        }
        // Half of the time their pages are not mapped, or nothing is asked.
        let lent = b.port.stats().rx_lent;
        assert!(lent > 100 * u64::from(together), "{lent} of {together} times 400 of {len} bytes");
        a.close();
        b.close();
    }
}

/// As with a worker of its own, the receiver's sender is always ahead: it gets zero-copy frames as
/// soon as it receives frames.
#[test]
fn a_receiver_that_stood_once_and_never_has_all_is_lent_to_again() {
    let switch = lending();
    let (mut a, mut b, frames) = pair(&switch);
    let mut sent = 0;
    let mut send = |a: &mut Sender| {
        assert_eq!(a.send(&frames), 4);
        while a.turn() {}
        sent += 4;
    };
    while b.ends.front.has_free() || b.poll() {
        b.post();
    }
    while b.ends.back.waiting() == 0 {
        send(&mut a);
        b.poll();
    }
    b.poll();
    (0..3).for_each(|_| send(&mut a));
    let lent = b.port.stats().rx_lent;
    for _ in 0..100 {
        send(&mut a);
        b.recv();
        b.post();
        b.poll();
        assert!(b.port.has_frames(), "it has all");
    }
    assert!(b.port.stats().rx_lent > lent, "{lent} before it stood");
    b.turn();
    a.turn();
    let all: Vec<_> = frames.iter().cycle().take(sent).cloned().collect();
    assert_same(&b.got, &all);
    a.close();
    b.close();
}

/// Frames that are dropped for a guest that posts no slots do not count as received by it.
#[test]
fn a_receiver_whose_frames_expire_is_lent_nothing() {
    let switch = lending();
    let (mut a, mut b, frames) = pair(&switch);
    // Its port rings someone, who sleeps.
    b.port.owned_by(&PortOwner { worker: 1, waker: Arc::new(Asleep) });
    b.ends.back.watch(Patience::default(), true, true, 0);
    while b.ends.front.has_free() || b.poll() {
        b.post();
    }
    // Short bursts: more of them wait than expire at once.
    while b.port.stats().rx_overflow == 0 {
        a.send(&frames[..1]);
        while a.turn() {}
        b.poll();
        a.turn();
    }
    assert_eq!(a.in_flight(), 0);
    for seconds in [1, 70] {
        b.ends.back.turn(seconds * 1_000_000_000, &mut b.port).unwrap();
    }
    assert_eq!((b.ends.back.link(), b.ends.back.waiting()), (Link::Stalled, 0));
    assert!(b.port.has_frames(), "all of them expired");
    for _ in 0..40 {
        a.send(&frames[..1]);
        while a.turn() {}
    }
    a.turn();
    assert_eq!(a.in_flight(), 0, "they are lent to a guest that takes none");
    b.close();
    a.close();
}

#[derive(Debug)]
struct Asleep;
impl QueueWaker for Asleep {
    fn ring(&self) {}
}

/// The sender's pages are released at once, and its frames arrive nevertheless.
#[test]
fn a_sender_that_ends_takes_its_pages_along() {
    let switch = lending();
    let (mut a, mut b, frames) = pair(&switch);
    assert_eq!(a.send(&frames), 4);
    while a.turn() {}
    assert_eq!(b.port.stats().rx_lent, 4);
    // Nothing of it is mapped any more: `close` looks.
    drop(a.close());
    b.turn();
    assert_same(&b.got, &frames);
    b.close();
}

/// The sender ends in good order: held frames are answered.
#[test]
fn a_sender_that_is_drained_has_all_answered() {
    let switch = lending();
    let (mut a, mut b, frames) = pair(&switch);
    assert_eq!(a.send(&frames), 4);
    while a.turn() {}
    a.ends.back.drain(&a.domains.host, &a.ends.back_chan);
    a.ends.front.reclaim(&a.domains.guest, 1).unwrap();
    assert_eq!(a.in_flight(), 0);
    b.turn();
    assert_same(&b.got, &frames);
    a.close();
    b.close();
}

/// The receiver ends with frames in its mail, in its arena, and between the two.
#[test]
fn a_receiver_that_ends_gives_back_what_it_was_lent() {
    for polls in 0..3 {
        let switch = lending();
        let (mut a, mut b, frames) = pair(&switch);
        assert_eq!(a.send(&frames), 4);
        while a.turn() {}
        for _ in 0..polls {
            b.poll();
        }
        b.close();
        a.turn();
        assert_eq!(a.in_flight(), 0, "{polls}");
        // There is no one any more.
        assert_eq!(a.send(&frames), 4);
        while a.turn() {}
        assert_eq!(a.in_flight(), 0, "{polls}");
        a.close();
    }
}

/// A port that no one reads yet, as those of vifs that a predecessor left are.
#[test]
fn nothing_is_lent_to_a_port_before_it_is_read() {
    let switch = lending();
    let mut a = Sender::new(&switch, 1, Way::Staging(4096));
    let mut b = switch.add_port(ALL).unwrap();
    teach(&mut b, 2);
    let frames: Vec<_> = (0..4).map(|k| frame(1, 2, 4000, k)).collect();
    assert_eq!(a.send(&frames), 4);
    while a.turn() {}
    assert_eq!((a.in_flight(), b.stats().rx_lent, a.port.stats().unlent), (0, 0, 4));
    // Nor to one who cannot read them where they are.
    let mut arena = Arena::new();
    assert_eq!(b.rx_burst(&mut arena), 4);
    let got: Vec<_> = arena.burst().iter().map(|(bytes, offload)| (bytes.to_vec(), offload)).collect();
    assert_same(&got, &frames);
    a.close();
}

#[test]
fn frames_for_several_are_copied() {
    let switch = lending();
    let mut a = Sender::new(&switch, 1, Way::Staging(4096));
    let mut others = [2, 3].map(|guest| Receiver::new(&switch, guest, Way::Staging(4096), ALL));
    others.iter_mut().for_each(Receiver::turn);
    others.iter_mut().for_each(|b| b.got.clear());
    let frames: Vec<Frame> = (0..8)
        .map(|k| {
            let mut frame = frame(1, 2 + k as u8 % 3, 4000, k);
            if k % 3 == 2 {
                frame.0[..6].fill(0xFF);
            }
            frame
        })
        .collect();
    assert_eq!(a.send(&frames), 8);
    while a.turn() {}
    others.iter_mut().for_each(Receiver::turn);
    a.turn();
    assert_eq!(a.in_flight(), 0);
    for (b, guest) in others.iter().zip([2, 3]) {
        let its = |frame: &&Frame| frame.0[..6] == mac(guest) || frame.0[0] == 0xFF;
        assert_same(&b.got, &frames.iter().filter(its).cloned().collect::<Vec<_>>());
    }
    a.close();
    others.into_iter().for_each(Receiver::close);
}

/// A checksum is over all bytes, so that frame is private when it is summed.
#[test]
fn a_checksum_is_finished_in_private_memory() {
    let switch = lending();
    let caps = Offloads { csum: false, gso: false };
    let mut a = Sender::new(&switch, 1, Way::Staging(4096));
    let mut b = Receiver::new(&switch, 2, Way::Staging(4096), caps);
    b.turn();
    let blank = Offload { csum_blank: true, csum_ok: true, ..Offload::NONE };
    let frames: Vec<Frame> =
        (0..8).map(|k| (udp(1400, k), if k % 2 == 0 { blank } else { Offload::NONE })).collect();
    assert_eq!(a.send(&frames), 8);
    while a.turn() {}
    b.turn();
    a.turn();
    assert_eq!((a.in_flight(), b.port.stats().rx_lent, b.got.len()), (0, 4, 8));
    for (got, sent) in b.got.iter().zip(&frames) {
        let mut expected = sent.0.clone();
        if sent.1.csum_blank {
            pregrant::net::checksum::finish_blank(&mut expected).unwrap();
            assert_ne!(expected, sent.0);
        }
        assert!(got.0 == expected && !got.1.csum_blank);
    }
    a.close();
    b.close();
}

/// A datagram with `payload` bytes, whose checksum is blank: that of its pseudo-header.
fn udp(payload: usize, seed: u32) -> Vec<u8> {
    let mut bytes = frame(1, 2, 14 + 28 + payload, seed).0;
    bytes[12..14].copy_from_slice(&[8, 0]);
    let (ip_len, udp_len) = ((28 + payload) as u16, (8 + payload) as u16);
    let ip = [0x45, 0, (ip_len >> 8) as u8, ip_len as u8, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    bytes[14..34].copy_from_slice(&ip);
    bytes[38..40].copy_from_slice(&udp_len.to_be_bytes());
    let words = [0x0A00, 1, 0x0A00, 2, 17, u32::from(udp_len)];
    let sum = words.iter().sum::<u32>();
    bytes[40..42].copy_from_slice(&((sum & 0xFFFF) as u16 + (sum >> 16) as u16).to_be_bytes());
    bytes
}

/// The forwarded payload is what is there when it is copied; headers that the switch has parsed are
/// not read again.
#[test]
fn a_sender_that_rewrites_its_frames_changes_payload_alone() {
    let switch = lending();
    let (mut a, mut b, frames) = pair(&switch);
    let mut c = Receiver::new(&switch, 3, Way::Staging(4096), ALL);
    c.turn();
    b.turn();
    b.got.clear();
    c.got.clear();
    // A whole buffer each.
    let frames: Vec<Frame> = frames.iter().zip(0..).map(|(_, k)| frame(1, 2, 4096, k)).collect();
    assert_eq!(a.send(&frames), 4);
    while a.turn() {}
    // All of its buffers, heads too: to another guest, as if from another.
    let evil = frame(9, 3, 4096, 77).0;
    a.overwrite(&evil);
    b.turn();
    c.turn();
    assert!(c.got.is_empty() && b.got.len() == 4);
    for (got, sent) in b.got.iter().zip(&frames) {
        assert!(got.0[..128] == sent.0[..128] && got.0[128..] == evil[128..]);
    }
    a.close();
    b.close();
    c.close();
}

/// Wakes a thread that sleeps until the doorbell is rung.
#[derive(Debug, Default)]
struct Doorbell(Mutex<bool>, Condvar);

impl QueueWaker for Doorbell {
    fn ring(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }
}

impl Doorbell {
    fn wait(&self) {
        let mut rung = self.0.lock().unwrap();
        while !std::mem::take(&mut *rung) {
            rung = self.1.wait(rung).unwrap();
        }
    }
}

/// Two workers, each of which sleeps when it has nothing to do: no answer is missed, and no frame,
/// even if the receiver stalls now and then.
#[test]
fn frames_go_from_worker_to_worker() {
    let switch = lending();
    let a = Sender::new(&switch, 1, Way::Staging(4096));
    let b = Receiver::new(&switch, 2, Way::Staging(65535), ALL);
    let frames = mixed(300);
    let doorbells = [Arc::new(Doorbell::default()), Arc::new(Doorbell::default())];
    // The receiver says how far it is, for queues drop what has no room.
    let came = AtomicUsize::new(0);
    let lent = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (mut b, doorbell) = (b, &doorbells[1]);
            b.port.owned_by(&PortOwner { worker: 1, waker: doorbell.clone() });
            let mut turns = 0;
            while b.got.len() < frames.len() {
                turns += 1;
                if turns % 3 > 0 {
                    b.post();
                }
                let moved = b.poll();
                if b.recv() == 0 && !moved && turns % 3 > 0 && !b.poll() {
                    doorbell.wait();
                }
                came.store(b.got.len(), Ordering::Relaxed);
                doorbells[0].ring();
            }
            assert_same(&b.got, &frames);
            let lent = b.ends.back.stats().lent;
            b.close();
            lent
        });
        let (mut a, doorbell) = (a, &doorbells[0]);
        a.port.owned_by(&PortOwner { worker: 0, waker: doorbell.clone() });
        let mut sent = 0;
        while sent < frames.len() || a.in_flight() > 0 {
            let ahead = sent - came.load(Ordering::Relaxed);
            let n = (frames.len() - sent).min(4usize.saturating_sub(ahead));
            sent += a.send(&frames[sent..sent + n]);
            let moves = a.turn() || n > 0 || a.in_flight() == 0 && sent == frames.len();
            if !moves {
                doorbell.wait();
            }
        }
        a.close();
        receiver.join().unwrap()
    });
    assert!(lent > 10, "{lent}");
}
