//! Tests both rings with a worker that is a thread of the test. Its tap is one end of a socket that
//! keeps message boundaries.
//!
//! ```text
//!   Vhost --ring--> model's threads --write--> socket --> the test, as the interface
//!     \--- a call, for few frames --write-----^
//! ```

use super::kernel::{Doors, WAITS, Which, Worker};
use super::virtqueue::tests::Device as Model;
use super::*;
use crate::backing::Backing;
use crate::ports::tap::cut_frames::CutFrames;
use crate::ports::tap::uring::tests::ends;
use pregrant::net::checksum;
use pregrant::port::{Completions, Offload};
use pregrant::shm::SharedBytes;
use rustix::fd::BorrowedFd;
use rustix::fs::OFlags;
use rustix::net::{RecvFlags, recv};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

thread_local! {
    /// The next worker that this thread opens stops taking frames after this many.
    static STALLS: Cell<Option<u32>> = const { Cell::new(None) };
    /// True if opening a worker fails in this thread.
    static MISSING: Cell<bool> = const { Cell::new(false) };
    /// A function by which the next worker falsifies the chains that it returns.
    static MISBEHAVES: Cell<Option<fn(&mut Model)>> = const { Cell::new(None) };
}

/// Interval at which a worker that gets no kicks checks its rings. It is much longer than a kick
/// needs.
const CHECK: Duration = Duration::from_millis(200);

struct Threads {
    rings: RefCell<[Option<(Model, Doors)>; 2]>,
    running: RefCell<[Option<JoinHandle<()>>; 2]>,
    stop: [Arc<AtomicBool>; 2],
    stalls: Cell<Option<u32>>,
    misbehaves: Cell<Option<fn(&mut Model)>>,
}

impl Worker for Threads {
    fn open() -> io::Result<Self> {
        if MISSING.get() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let (stalls, misbehaves) = (Cell::new(STALLS.take()), Cell::new(MISBEHAVES.take()));
        Ok(Self {
            rings: Default::default(),
            running: Default::default(),
            stop: Default::default(),
            stalls,
            misbehaves,
        })
    }

    unsafe fn give_ring(&self, which: Which, ring: &Virtqueue, size: u16, doors: &Doors) -> io::Result<()> {
        let (memory, at) = ring.place();
        self.rings.borrow_mut()[which as usize] = Some((Model::new(memory, at, size), doors.another()));
        Ok(())
    }

    fn attach(&self, which: Which, tap: BorrowedFd<'_>) -> io::Result<()> {
        let (mut model, doors) = self.rings.borrow_mut()[which as usize].take().unwrap();
        let (tap, stop) = (tap.try_clone_to_owned()?, Arc::clone(&self.stop[which as usize]));
        let (mut left, misbehaves) =
            (self.stalls.get().filter(|_| which == Which::Tx), self.misbehaves.get());
        // A ring that restarts is like that of a new worker.
        if which == Which::Tx {
            self.stalls.set(None);
        }
        stop.store(false, Ordering::Release);
        let serve = move || {
            while !stop.load(Ordering::Acquire) {
                let came = match which {
                    Which::Tx if left == Some(0) => false,
                    Which::Tx => send(&mut model, &tap, &mut left),
                    Which::Rx => receive(&mut model, &tap, misbehaves),
                };
                if came {
                    if model.show() {
                        doors.call_again();
                    }
                } else if which == Which::Rx {
                    // The kernel's worker waits for the tap, and for a kick when it has no buffer.
                    std::thread::sleep(Duration::from_micros(200));
                } else if left == Some(0) || !model.arm() {
                    doors.wait_for_kick(CHECK);
                }
            }
        };
        self.running.borrow_mut()[which as usize] = Some(std::thread::spawn(serve));
        Ok(())
    }

    fn detach(&self, which: Which) -> io::Result<()> {
        self.stop[which as usize].store(true, Ordering::Release);
        if let Some(thread) = self.running.borrow_mut()[which as usize].take() {
            thread.join().unwrap();
        }
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let _ = (self.detach(Which::Tx), self.detach(Which::Rx));
    }
}

/// Sends a burst to the tap.
fn send(model: &mut Model, tap: &OwnedFd, left: &mut Option<u32>) -> bool {
    let mut came = false;
    while *left != Some(0)
        && let Some(chain) = model.take()
    {
        let frame = model.read(&chain);
        rustix::io::write(tap, &frame).unwrap();
        model.give(chain.head.into(), 0);
        *left = left.map(|n| n - 1);
        came = true;
    }
    came
}

/// Writes a frame from the tap to as many buffers as it needs.
fn receive(model: &mut Model, tap: &OwnedFd, misbehaves: Option<fn(&mut Model)>) -> bool {
    let mut frame = vec![0; 70_000];
    let len = match recv(tap, &mut frame[..], RecvFlags::DONTWAIT) {
        Ok((len, _)) if len > 0 => len,
        // There is no frame, or the interface is gone.
        _ => return false,
    };
    let (mut rest, mut used) = (&frame[..len], Vec::new());
    while !rest.is_empty() {
        let Some(chain) = model.take() else {
            std::thread::yield_now();
            continue;
        };
        let (at, room) = chain.writable[0];
        let (part, behind) = rest.split_at(rest.len().min(room));
        model.memory.write(at, part);
        used.push((chain.head, part.len(), at));
        rest = behind;
    }
    model.memory.write(used[0].2 + 10, &(used.len() as u16).to_le_bytes());
    match misbehaves {
        Some(violation) => violation(model),
        None => used.iter().for_each(|(head, len, _)| model.give((*head).into(), *len as u32)),
    }
    true
}

/// Rings with a worker, and the interface's end of the tap.
fn vhost() -> (Vhost<Threads>, OwnedFd) {
    let (tap, peer_end) = ends();
    // A blocking end: the tap has room for everything written.
    rustix::fs::fcntl_setfl(&tap, OFlags::empty()).unwrap();
    (Vhost::new(Arc::new(tap), Arc::default()).unwrap(), peer_end)
}

/// Rings that do not take a delayed thread of a busy machine for a stalled worker.
fn patient() -> (Vhost<Threads>, OwnedFd) {
    let (mut vhost, peer_end) = vhost();
    vhost.patience = Duration::from_secs(3600);
    (vhost, peer_end)
}

/// Returns frame `number`, in which no byte equals its neighbour.
fn numbered(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + number * 31 + i / 251) as u8).collect()
}

fn next(peer_end: &OwnedFd) -> Vec<u8> {
    let mut frame = vec![0; 70_000];
    loop {
        if let Ok(len) = rustix::io::read(peer_end, &mut frame) {
            frame.truncate(len);
            return frame;
        }
        std::thread::yield_now();
    }
}

/// Acts as a queue does: sends nothing while the port has no room, and continues otherwise. Returns
/// how many frames were refused.
fn when_there_is_room(vhost: &mut Vhost<Threads>) -> usize {
    let mut refused = 0;
    while vhost.stands() {
        refused += vhost.go_on();
        std::thread::yield_now();
    }
    refused
}

/// Returns a length that is short for some numbers and long for others.
fn length(number: usize) -> usize {
    [60, 61, 1514, 64, 65_535, 5000, 128][number % 7]
}

#[test]
fn frames_go_out_in_their_order_no_matter_who_writes_them() {
    let (mut vhost, peer_end) = patient();
    const FRAMES: usize = 1500;
    let (mut by_ring, mut by_call) = (0, 0);
    std::thread::scope(|s| {
        let seen = s.spawn(|| {
            for i in 0..FRAMES {
                let frame = next(&peer_end);
                assert!(frame[HEADER..] == numbered(i, length(i)), "frame {i}");
                assert_eq!(frame[0], i as u8, "its header");
            }
        });
        let mut i = 0;
        while i < FRAMES {
            let n = [1, 64, 2, 1, 40][i % 5].min(FRAMES - i);
            let calls = n <= FEW && vhost.is_asleep();
            for k in i..i + n {
                let (header, frame) = ([k as u8; HEADER], numbered(k, length(k)));
                if calls {
                    by_call += 1;
                    rustix::io::write(&vhost.tap, &[&header[..], &frame].concat()).unwrap();
                } else {
                    by_ring += 1;
                    assert_eq!(vhost.send(&header, &frame) + when_there_is_room(&mut vhost), 0);
                }
            }
            vhost.publish();
            // Let the worker go to sleep.
            if i % 7 == 0 {
                vhost.finish().unwrap();
                while !vhost.is_asleep() {
                    std::thread::yield_now();
                }
            }
            i += n;
        }
        vhost.finish().unwrap();
        seen.join().unwrap();
    });
    assert!(by_ring > 0 && by_call > 0, "{by_ring} by the ring, {by_call} by calls");
    assert!(vhost.stopped.is_none());
}

#[test]
fn frames_come_in_whole_whatever_number_of_buffers_they_take_and_wait_for_room() {
    let (mut vhost, peer_end) = patient();
    const FRAMES: usize = 600;
    std::thread::scope(|s| {
        s.spawn(|| {
            for i in 0..FRAMES {
                let frame = [&[0; HEADER][..], &numbered(i, length(i))].concat();
                while rustix::io::write(&peer_end, &frame).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        let (mut arena, mut came) = (Arena::new(), 0);
        while came < FRAMES {
            arena.clear();
            // An arena that is nearly full takes one more frame, or none.
            if came % 3 == 0 {
                while arena.len() < 63 {
                    assert!(arena.push(&[1], Offload::default()));
                }
            }
            let had = arena.len();
            assert_eq!(vhost.receive(&mut arena, &mut CutFrames::default()), (0, 0));
            for (frame, _) in arena.burst().iter().skip(had) {
                assert!(frame == numbered(came, length(came)), "frame {came}");
                came += 1;
            }
            if arena.len() == had {
                // The worker must call, or this hangs.
                vhost.rx_doors.wait(Duration::from_secs(3600));
            }
        }
    });
    assert_eq!(vhost.held(), 0);
    assert!(vhost.stopped.is_none());
}

/// A tagged packet with a blank checksum, or one that must be segmented, is completed as netif
/// requires. A packet whose checksum offsets are outside of it is counted.
#[test]
fn what_netif_cannot_say_of_a_frame_is_done() {
    let (mut vhost, peer_end) = patient();
    let link = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]);
    let tagged = link.single_vlan(etherparse::VlanId::try_new(5).unwrap()).ipv4([10; 4], [11; 4], 64);
    let mut whole = Vec::new();
    tagged.tcp(80, 5000, 1, 1000).write(&mut whole, &numbered(1, 5000)).unwrap();
    let mut blank = whole.clone();
    checksum::make_blank(&mut blank).unwrap();
    let header = |start: u8, gso: u8| [1, gso, 0, 0, 0xE8, 3, start, 0, 16, 0, 0, 0];
    for (header, n) in [(header(38, 0), 1), (header(38, 1), 5), (header(255, 1), 0), (header(38, 1), 5)] {
        rustix::io::write(&peer_end, &[&header[..], &blank].concat()).unwrap();
        let (mut arena, mut cut, mut came) = (Arena::new(), CutFrames::default(), Vec::new());
        let mut malformed = 0;
        while came.len() < n || n == 0 && malformed == 0 {
            arena.clear();
            // An arena that is nearly full leaves some of a segment's frames for later.
            (0..62).for_each(|_| assert!(arena.push(&[1], Offload::default())));
            malformed += vhost.receive(&mut arena, &mut cut).0;
            came.extend(arena.burst().iter().skip(62).map(|(frame, offload)| (frame.to_vec(), offload)));
        }
        assert_eq!((came.len(), malformed, cut.len()), (n, u64::from(n == 0), 0));
        assert!(n != 1 || came[0].0 == whole);
        for (frame, offload) in came {
            assert_eq!(offload, Offload { csum_ok: true, ..Offload::default() });
            assert_eq!(checksum::verify(&frame), Ok(true));
        }
    }
}

/// A segment's frames may use up the room: the next frame then waits, wherever they end.
#[test]
fn frames_behind_one_that_was_cut_wait_for_room() {
    let (mut vhost, peer_end) = patient();
    let link = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]);
    let tagged = link.single_vlan(etherparse::VlanId::try_new(5).unwrap()).ipv4([10; 4], [11; 4], 64);
    let mut large = Vec::new();
    tagged.tcp(80, 5000, 1, 1000).write(&mut large, &numbered(1, 5000)).unwrap();
    checksum::make_blank(&mut large).unwrap();
    let header = [1, 1, 0, 0, 0xE8, 3, 38, 0, 16, 0, 0, 0];
    for has in 54..=63 {
        rustix::io::write(&peer_end, &[&header[..], &large].concat()).unwrap();
        (0..3).for_each(|i| {
            rustix::io::write(&peer_end, &[&[0; HEADER][..], &numbered(i, 100)].concat()).unwrap();
        });
        let (mut arena, mut cut, mut came) = (Arena::new(), CutFrames::default(), Vec::new());
        while came.len() < 8 {
            arena.clear();
            (0..has).for_each(|_| assert!(arena.push(&[1], Offload::default())));
            assert_eq!(vhost.receive(&mut arena, &mut cut), (0, 0));
            came.extend(arena.burst().iter().skip(has).map(|(frame, _)| frame.to_vec()));
        }
        assert!((0..3).all(|i| came[5 + i] == numbered(i, 100)), "{has}");
        assert_eq!((came.len(), cut.len(), vhost.held()), (8, 0, 0), "{has}");
    }
}

#[test]
fn what_a_worker_that_does_not_go_on_left_is_written_once_and_in_order() {
    STALLS.set(Some(100));
    let (mut vhost, peer_end) = vhost();
    std::thread::scope(|s| {
        let seen =
            s.spawn(|| (0..1000).for_each(|i| assert!(next(&peer_end)[HEADER..] == numbered(i, 100), "{i}")));
        for i in 0..1000 {
            let frame = numbered(i, 100);
            vhost.send(&[0; HEADER], &frame);
            when_there_is_room(&mut vhost);
            if i % 32 == 0 {
                vhost.publish();
            }
        }
        vhost.publish();
        vhost.finish().unwrap();
        seen.join().unwrap();
    });
    assert!(vhost.stopped.is_some() && vhost.is_up(), "it was stopped, and goes on");
    assert!(rustix::io::read(&peer_end, &mut [0; 200]).is_err(), "a frame came twice");
}

/// If the worker makes no progress, neither the guest nor our thread, which has other guests, waits
/// for it. A burst of frames that do not fit is kept back, and further frames are refused.
#[test]
fn no_one_waits_for_a_worker_that_stands_still() {
    const SENT: usize = 2000;
    STALLS.set(Some(0));
    let (mut vhost, peer_end) = vhost();
    let lent = Lent::new(1);
    let mut refused = 0;
    for i in 0..SENT {
        refused += vhost.send(&[0; HEADER], &numbered(i, 100));
    }
    let taken = usize::from(TX_SIZE) + BURST_FRAMES;
    assert_eq!(refused, SENT - taken);
    assert!(vhost.stands() && !vhost.is_asleep());
    // Zero-copy frames do not fit either, and are not held.
    let mut done = Vec::new();
    assert_eq!((lent.send(0, &mut vhost), vhost.complete(&mut done)), (1, 0));
    assert_eq!((done, vhost.tx.nr_in_flight()), (vec![Token(0)], 0));
    assert_eq!((WAITS.get(), vhost.stopped), (0, None), "no one slept");
    // Ask again and again, as a queue does: after a second the worker is stopped, and the accepted
    // frames are written, once and in order.
    std::thread::scope(|s| {
        let seen = s
            .spawn(|| (0..taken).for_each(|i| assert!(next(&peer_end)[HEADER..] == numbered(i, 100), "{i}")));
        assert_eq!(when_there_is_room(&mut vhost), 0);
        seen.join().unwrap();
    });
    assert!(vhost.stopped.is_some() && WAITS.get() == 0);
    assert!(rustix::io::read(&peer_end, &mut [0; 200]).is_err(), "a frame came twice");
}

#[test]
fn where_no_worker_is_to_be_had_any_more_frames_are_written_by_calls() {
    STALLS.set(Some(3));
    let (mut vhost, peer_end) = vhost();
    MISSING.set(true);
    std::thread::scope(|s| {
        let seen =
            s.spawn(|| (0..900).for_each(|i| assert!(next(&peer_end)[HEADER..] == numbered(i, 100), "{i}")));
        (0..900).for_each(|i| {
            assert_eq!(vhost.send(&[0; HEADER], &numbered(i, 100)) + when_there_is_room(&mut vhost), 0);
        });
        assert!(vhost.device.is_none(), "512 fit a ring");
        seen.join().unwrap();
    });
    MISSING.set(false);
    while !vhost.is_up() {
        std::thread::yield_now();
    }
    vhost.send(&[0; HEADER], &numbered(900, 100));
    vhost.publish();
    assert!(next(&peer_end)[HEADER..] == numbered(900, 100));
}

#[test]
fn a_worker_that_misreports_what_came_is_stopped_and_the_next_one_serves() {
    let misbehaves: [fn(&mut Model); 4] = [
        |m| m.give(0, BIG),
        |m| m.give(300, 64),
        |m| m.given = m.given.wrapping_add(300),
        // Less than a header.
        |m| m.give(0, 3),
    ];
    const BIG: u32 = receiver::BUFFER as u32 + 1;
    for (i, violation) in misbehaves.into_iter().enumerate() {
        MISBEHAVES.set(Some(violation));
        let (mut vhost, peer_end) = vhost();
        let frame = [&[0; HEADER][..], &numbered(i, 64)].concat();
        rustix::io::write(&peer_end, &frame).unwrap();
        let mut arena = Arena::new();
        while vhost.stopped.is_none() {
            vhost.receive(&mut arena, &mut CutFrames::default());
            assert!(arena.is_empty(), "violation {i}");
        }
        rustix::io::write(&peer_end, &frame).unwrap();
        while arena.is_empty() {
            vhost.receive(&mut arena, &mut CutFrames::default());
        }
        assert!(arena.burst().frame(0) == numbered(i, 64), "violation {i}");
    }
}

#[test]
fn who_ends_has_what_was_published_taken_first() {
    let (mut vhost, peer_end) = vhost();
    (0..200).for_each(|i| assert_eq!(vhost.send(&[0; HEADER], &numbered(i, 100)), 0));
    std::thread::scope(|s| {
        s.spawn(|| (0..200).for_each(|i| assert!(next(&peer_end)[HEADER..] == numbered(i, 100), "{i}")));
        drop(vhost);
    });
}

/// Pages like those of a guest, with each frame's payload in three fragments.
struct Lent(Mapping);

impl Lent {
    fn new(frames: usize) -> Self {
        let bytes = frames * 3 * 4096;
        let memory = Mapping::new(&Backing::sealed("a guest", bytes).unwrap(), bytes).unwrap();
        (0..frames).for_each(|i| {
            let frame = Self::frame(i);
            memory.write(i * 3 * 4096, &frame[128..]);
        });
        Self(memory)
    }
    fn frame(number: usize) -> Vec<u8> {
        numbered(number, 128 + 4096 + 4096 + 1000)
    }
    fn pieces(&self, i: usize) -> impl Iterator<Item = Piece<'_>> {
        (0..3).map(move |k| self.0.piece((i * 3 + k) * 4096, [4096, 4096, 1000][k]).unwrap())
    }
    /// Sends frame `i`, with its number as the token.
    fn send(&self, i: usize, vhost: &mut Vhost<Threads>) -> usize {
        let head = &Self::frame(i)[..128];
        // SAFETY: these pages stay for longer than the test's worker.
        unsafe { vhost.send_zero_copy(&[i as u8; HEADER], head, || self.pieces(i), Token(i as u64)) }
    }
}

#[test]
fn lent_payload_is_read_in_place_and_its_lender_is_notified_once() {
    const FRAMES: usize = 400;
    let lent = Lent::new(FRAMES);
    let (mut vhost, peer_end) = patient();
    let mut done = Vec::new();
    std::thread::scope(|s| {
        let seen = s.spawn(|| {
            for i in 0..FRAMES {
                let frame = next(&peer_end);
                let due = if i % 5 == 4 { numbered(i, 60) } else { Lent::frame(i) };
                assert!(frame[HEADER..] == due && frame[0] == i as u8, "frame {i}");
            }
        });
        for i in 0..FRAMES {
            let refused = match i % 5 {
                4 => vhost.send(&[i as u8; HEADER], &numbered(i, 60)),
                _ => lent.send(i, &mut vhost),
            };
            assert_eq!(refused + when_there_is_room(&mut vhost), 0);
            if i % 7 == 0 {
                vhost.publish();
                assert_eq!(vhost.complete(&mut done), 0);
            }
        }
        vhost.publish();
        // The worker must call, or this hangs.
        while vhost.complete(&mut done) == 0 && vhost.tx.nr_in_flight() > 0 {
            vhost.tx_doors.wait(Duration::from_secs(3600));
        }
        vhost.finish().unwrap();
        seen.join().unwrap();
    });
    vhost.complete(&mut done);
    // A frame that did not fit was copied, so its pages were returned before those of frames in the
    // ring.
    done.sort_by_key(|token| token.0);
    let due: Vec<Token> = (0..FRAMES as u64).filter(|i| i % 5 != 4).map(Token).collect();
    assert_eq!(done, due);
    assert!(vhost.stopped.is_none());
}

#[test]
fn lent_frames_of_a_worker_that_does_not_go_on_are_written_once_and_completed() {
    const FRAMES: usize = 40;
    let lent = Lent::new(FRAMES);
    STALLS.set(Some(10));
    let (mut vhost, peer_end) = vhost();
    let mut done = Vec::new();
    std::thread::scope(|s| {
        let seen = s.spawn(|| {
            (0..FRAMES).for_each(|i| assert!(next(&peer_end)[HEADER..] == Lent::frame(i), "{i}"));
        });
        (0..FRAMES).for_each(|i| assert_eq!(lent.send(i, &mut vhost), 0));
        // The queue ends: when this returns, none of them is read any more.
        vhost.publish();
        vhost.give_up();
        seen.join().unwrap();
    });
    assert!(vhost.stopped.is_none() && WAITS.get() == 0, "neither the other ring nor our thread waits");
    rustix::io::write(&peer_end, &[&[0; HEADER][..], &numbered(7, 64)].concat()).unwrap();
    let mut arena = Arena::new();
    while arena.is_empty() {
        assert_eq!(vhost.receive(&mut arena, &mut CutFrames::default()), (0, 0));
    }
    assert!(arena.burst().frame(0) == numbered(7, 64));
    vhost.send(&[0; HEADER], &numbered(8, 100));
    vhost.publish();
    assert!(next(&peer_end)[HEADER..] == numbered(8, 100), "the ring that restarted");
    assert_eq!(
        (vhost.complete(&mut done), done.len(), vhost.tx.nr_in_flight()),
        (0, 0, 0),
        "no one is notified later"
    );
    assert!(rustix::io::read(&peer_end, &mut [0; 200]).is_err(), "a frame came twice");
    // All frames of a queue that goes on complete.
    STALLS.set(Some(10));
    let (mut vhost, peer_end) = self::vhost();
    MISSING.set(true);
    std::thread::scope(|s| {
        let seen = s.spawn(|| {
            (0..FRAMES).for_each(|i| assert!(next(&peer_end)[HEADER..] == Lent::frame(i), "{i}"));
        });
        (0..FRAMES / 2).for_each(|i| assert_eq!(lent.send(i, &mut vhost), 0));
        assert!(vhost.finish().is_err());
        vhost.restart(&Broken::Silent);
        (FRAMES / 2..FRAMES).for_each(|i| assert_eq!(lent.send(i, &mut vhost), 0));
        seen.join().unwrap();
    });
    MISSING.set(false);
    vhost.complete(&mut done);
    assert_eq!(done, (0..FRAMES as u64).map(Token).collect::<Vec<_>>());
}

#[test]
fn a_queue_that_ends_waits_until_no_one_reads_what_it_lent() {
    let lent = Lent::new(100);
    let (tap, peer_end) = ends();
    rustix::fs::fcntl_setfl(&tap, OFlags::empty()).unwrap();
    let shared = SharedVhost::<Threads>::new(Arc::new(tap), Arc::default()).unwrap();
    (0..100).for_each(|i| assert_eq!(lent.send(i, &mut shared.lock()), 0));
    shared.lock().publish();
    std::thread::scope(|s| {
        s.spawn(|| (0..100).for_each(|i| assert!(next(&peer_end)[HEADER..] == Lent::frame(i), "{i}")));
        shared.give_up();
        // The guest reuses its pages.
        lent.0.write(0, &vec![0xEE; 100 * 3 * 4096]);
        assert_eq!(shared.lock().tx.nr_in_flight(), 0);
        let mut done = Vec::new();
        shared.complete(&mut done);
        assert!(done.is_empty());
    });
}

#[test]
fn frames_that_come_back_in_any_order_free_what_is_theirs() {
    const SIZE: u16 = 64;
    let lent = Lent::new(5);
    let area = Virtqueue::bytes(SIZE).next_multiple_of(4096)..1 << 17;
    let memory = Arc::new(Mapping::new(&Backing::sealed("a ring", area.end).unwrap(), area.end).unwrap());
    let mut model = Model::new(Arc::clone(&memory), 0, SIZE);
    let mut sender = Sender::new(Virtqueue::new(Arc::clone(&memory), 0, SIZE), memory, area);
    let mut due = Vec::new();
    for round in 0..100 {
        let is_lent = |i: usize| !(i + round).is_multiple_of(3);
        for i in 0..5 {
            let (header, whole) = ([i as u8; HEADER], Lent::frame(i));
            assert!(match is_lent(i) {
                // SAFETY: the pages stay for longer than the sender.
                true => unsafe {
                    sender.put_zero_copy(&header, &whole[..128], lent.pieces(i), Token(i as u64))
                },
                false => sender.put(&header, &whole),
            });
        }
        let _ = sender.ring.publish();
        let chains: Vec<_> = (0..5).map(|_| model.take().unwrap()).collect();
        // Each order of the fragments, in two parts.
        let mut order = [0, 1, 2, 3, 4];
        order.swap(round % 5, round / 5 % 5);
        order.swap(round / 25 % 5, (round + 3) % 5);
        for part in [&order[..2], &order[2..]] {
            for &i in part {
                let frame = model.read(&chains[i]);
                assert!(frame[..HEADER] == [i as u8; HEADER] && frame[HEADER..] == Lent::frame(i));
                model.give(chains[i].head.into(), 0);
                due.extend(is_lent(i).then_some(Token(i as u64)));
            }
            model.show();
            sender.reclaim().unwrap();
        }
        assert_eq!((sender.len(), sender.nr_in_flight(), sender.ring.nr_free()), (0, 0, SIZE.into()));
        assert_eq!(std::mem::take(sender.completed()), std::mem::take(&mut due), "round {round}");
    }
}

#[test]
fn pieces_that_follow_each_other_are_one_descriptor() {
    let lent = Lent::new(2);
    // Three adjacent fragments, one after a gap, one before it, and two that begin at the same
    // address.
    let places = [(128, 3968), (4096, 4096), (8192, 100), (12_288, 4096), (4096, 10), (4096, 10)];
    let pieces = places.map(|(at, len)| lent.0.piece(at, len).unwrap());
    // SAFETY: no one has them read.
    let buffers = unsafe { Vector::zero_copy(pieces.into_iter()) }.map(|vector| vector.buffer());
    let found: Vec<_> = buffers.map(|b| (b.address - lent.0.address(), b.len, b.writable)).collect();
    assert_eq!(found, [(128, 8164, false), (12_288, 4096, false), (4096, 10, false), (4096, 10, false)]);
}
