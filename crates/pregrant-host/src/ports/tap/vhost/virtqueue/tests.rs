//! A device over the same memory as the driver's side. It shares no code with it, and violates the
//! protocol where a test wants that.

use super::*;
use crate::backing::Backing;
use pregrant::shm::SharedBytes;
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::thread::{self, Thread};

/// Number of bytes for buffers behind the ring.
pub const ROOM: usize = 1 << 20;

/// Creates a ring of `size` descriptors, with room for buffers behind it.
pub fn ring(size: u16) -> (Virtqueue, Device) {
    let bytes = Virtqueue::bytes(size).next_multiple_of(4096);
    let fd = Backing::sealed("a ring", bytes + ROOM).unwrap();
    let memory = Arc::new(Mapping::new(&fd, bytes + ROOM).unwrap());
    let queue = Virtqueue::new(Arc::clone(&memory), 0, size);
    (queue, Device::new(memory, 0, size))
}

/// The device's side of a ring.
pub struct Device {
    pub memory: Arc<Mapping>,
    at: usize,
    size: u16,
    /// Number of chains taken; the next field counts those that were given back.
    taken: u16,
    pub given: u16,
    /// The driver's index at the last notification.
    reported: u16,
}

/// A chain as the device reads it: the offsets and lengths of its buffers.
pub struct Chain {
    pub head: u16,
    pub readable: Vec<(usize, usize)>,
    pub writable: Vec<(usize, usize)>,
}

impl Device {
    pub fn new(memory: Arc<Mapping>, at: usize, size: u16) -> Self {
        Self { memory, at, size, taken: 0, given: 0, reported: 0 }
    }
    pub fn word(&self, at: usize) -> u16 {
        self.memory.u16(self.at + at).load(Ordering::Acquire)
    }
    pub fn set(&self, at: usize, value: u16) {
        self.memory.u16(self.at + at).store(value, Ordering::Release);
    }
    fn avail(&self) -> usize {
        16 * usize::from(self.size)
    }
    pub fn used(&self) -> usize {
        (self.avail() + 6 + 2 * usize::from(self.size)).next_multiple_of(64)
    }

    pub fn take(&mut self) -> Option<Chain> {
        if self.word(self.avail() + 2) == self.taken {
            return None;
        }
        let head = self.word(self.avail() + 4 + 2 * usize::from(self.taken % self.size));
        self.taken = self.taken.wrapping_add(1);
        let mut chain = Chain { head, readable: Vec::new(), writable: Vec::new() };
        let mut at = head;
        loop {
            assert!(at < self.size);
            let place = self.at + 16 * usize::from(at);
            let address = self.memory.u64(place).load(Ordering::Relaxed);
            let word = self.memory.u64(place + 8).load(Ordering::Relaxed);
            let buffer = (address.wrapping_sub(self.memory.address()) as usize, word as u32 as usize);
            let writable = word >> 32 & 2 != 0;
            assert!(writable || chain.writable.is_empty(), "what is written comes last");
            if writable {
                chain.writable.push(buffer)
            } else {
                chain.readable.push(buffer)
            }
            if word >> 32 & 1 == 0 {
                return Some(chain);
            }
            at = (word >> 48) as u16;
            assert!(chain.readable.len() + chain.writable.len() < usize::from(self.size), "a loop");
        }
    }

    /// Returns the readable bytes of a chain.
    pub fn read(&self, chain: &Chain) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (at, len) in &chain.readable {
            let mut piece = vec![0; *len];
            if !self.memory.copy_out(*at, &mut piece) {
                let address = self.memory.address().wrapping_add(*at as u64) as *const u8;
                // SAFETY: memory of the process that a test lent.
                unsafe { pregrant::shm::copy_from_shared(address, piece.as_mut_ptr(), *len) };
            }
            bytes.extend(piece);
        }
        bytes
    }

    /// Gives a chain back, which [`show`](Self::show) then publishes.
    pub fn give(&mut self, id: u32, len: u32) {
        let place = self.at + self.used() + 4 + 8 * usize::from(self.given % self.size);
        self.memory.u32(place).store(id, Ordering::Relaxed);
        self.memory.u32(place + 4).store(len, Ordering::Relaxed);
        self.given = self.given.wrapping_add(1);
    }

    /// Publishes the returned chains. True: the driver wants a notification.
    pub fn show(&mut self) -> bool {
        self.set(self.used() + 2, self.given);
        fence(Ordering::SeqCst);
        let event = self.word(self.avail() + 4 + 2 * usize::from(self.size));
        let (old, new) = (std::mem::replace(&mut self.reported, self.given), self.given);
        // Whether the event index is among those that were passed.
        (0..new.wrapping_sub(old)).any(|k| old.wrapping_add(k) == event)
    }

    /// Asks for a notification of the next chain. True: it is there already.
    pub fn arm(&mut self) -> bool {
        self.set(self.used() + 4 + 8 * usize::from(self.size), self.taken);
        fence(Ordering::SeqCst);
        self.word(self.avail() + 2) != self.taken
    }
}

/// Returns bytes that depend on the chain's number.
fn fill(number: u32, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u32 * 7 + number * 31 + number / 251) as u8).collect()
}

/// Runs the two ends on two threads that sleep when they have nothing to do, as the kernel's worker
/// and ours do. A lost wake-up would leave both of them asleep.
fn both_sleep(size: u16, chains: u32, out_of_order: bool) {
    let (mut queue, mut device) = ring(size);
    let base = queue.memory.address() + Virtqueue::bytes(size).next_multiple_of(4096) as u64;
    let (driver, over) = (thread::current(), AtomicBool::new(false));
    thread::scope(|s| {
        let other = s.spawn(|| {
            let (mut expected, mut kept) = (0u32, Vec::<(u16, u32)>::new());
            while expected < chains || !kept.is_empty() {
                let mut came = false;
                while let Some(chain) = device.take() {
                    came = true;
                    let bytes = device.read(&chain);
                    let len = 1 + expected as usize * 13 % 700;
                    assert_eq!(bytes, fill(expected, len), "chain {expected}");
                    kept.push((chain.head, expected));
                    expected += 1;
                }
                if out_of_order && kept.len() > 1 {
                    let n = kept.len();
                    kept.swap(0, n - 1);
                }
                let gives = !kept.is_empty();
                for (head, number) in kept.drain(..) {
                    device.give(head.into(), number);
                }
                if gives && device.show() {
                    driver.unpark();
                }
                if !came && expected < chains && !device.arm() {
                    thread::park();
                }
            }
            over.store(true, Ordering::Release);
        });
        let worker: &Thread = other.thread();
        let (mut sent, mut came) = (0u32, 0u32);
        let mut slots: VecDeque<u64> = (0..u64::from(size)).map(|i| base + i * 1024).collect();
        let mut at = vec![None; usize::from(size)];
        while came < chains {
            while sent < chains && queue.nr_free() >= 4 && !slots.is_empty() {
                let address = slots.pop_front().unwrap();
                let bytes = fill(sent, 1 + sent as usize * 13 % 700);
                queue.memory.write((address - queue.memory.address()) as usize, &bytes);
                // One fragment, or up to four.
                let step = bytes.len().div_ceil(1 + sent as usize % 4);
                let pieces = bytes.chunks(step).enumerate().map(|(i, piece)| Buffer {
                    address: address + (i * step) as u64,
                    len: piece.len() as u32,
                    writable: false,
                });
                // SAFETY: memory of the test's, which a slot gives to one chain at a time.
                let head = unsafe { queue.push(pieces) }.unwrap();
                at[usize::from(head)] = Some((address, sent));
                sent += 1;
                if sent % 3 == 0 && queue.publish() {
                    worker.unpark();
                }
            }
            if queue.publish() {
                worker.unpark();
            }
            let mut any = false;
            while let Some(used) = queue.pop().unwrap() {
                let (address, number) = at[usize::from(used.head)].take().expect("it came twice");
                assert_eq!(used.len, number);
                assert!(out_of_order || number == came, "{number} came, and not {came}");
                slots.push_back(address);
                queue.free(used.head);
                came += 1;
                any = true;
            }
            let enough = (queue.out() / 2).max(1) as u16;
            if !any && came < chains && !queue.arm(enough).unwrap() {
                thread::park();
            }
        }
        assert_eq!((queue.out(), queue.nr_free()), (0, size.into()), "descriptors were lost");
    });
    assert!(over.into_inner());
}

#[test]
fn chains_come_back_in_their_order_over_the_end_of_indices_and_no_wake_up_is_lost() {
    // More than 2^16 chains, through a ring that is always full.
    both_sleep(8, 70_000, false);
    both_sleep(256, 70_000, false);
}

#[test]
fn chains_that_come_back_in_another_order_lose_no_descriptor() {
    both_sleep(16, 5_000, true);
}

/// Returns a chain of a single buffer.
fn one(queue: &Virtqueue) -> impl Iterator<Item = Buffer> + use<> {
    std::iter::once(Buffer { address: queue.memory.address(), len: 64, writable: false })
}

#[test]
fn a_device_that_is_awake_is_not_notified() {
    let (mut queue, mut device) = ring(8);
    let report = |queue: &mut Virtqueue, n: u16| {
        for _ in 0..n {
            // SAFETY: no one reads it.
            unsafe { queue.push(one(queue)) }.unwrap();
        }
        let would = queue.would_kick(n);
        let wanted = queue.publish();
        assert_eq!(would, wanted);
        wanted
    };
    assert!(!device.arm());
    assert!(report(&mut queue, 2), "it sleeps");
    assert!(!report(&mut queue, 1), "it was notified, and has not gone to sleep");
    assert!(device.arm(), "there is something");
    while device.take().is_some() {}
    assert!(!report(&mut queue, 1), "it is at work");
    assert!(device.take().is_some() && !device.arm());
    assert!(!queue.publish(), "nothing is new");
    assert!(report(&mut queue, 3));
    // SAFETY: no one reads it.
    assert!(unsafe { queue.push(one(&queue)) }.is_some(), "the eighth");
    // SAFETY: as above.
    assert!(unsafe { queue.push(one(&queue)) }.is_none(), "there is no room");
    // SAFETY: as above.
    assert!(unsafe { queue.push(std::iter::empty()) }.is_none());
}

#[test]
fn who_asks_for_half_of_them_is_called_once() {
    let (mut queue, mut device) = ring(8);
    for _ in 0..6 {
        // SAFETY: no one reads it.
        unsafe { queue.push(one(&queue)) }.unwrap();
    }
    let _ = queue.publish();
    assert_eq!(queue.arm(3), Ok(false));
    let mut calls = Vec::new();
    while let Some(chain) = device.take() {
        device.give(chain.head.into(), 0);
        calls.push(device.show());
    }
    assert_eq!(calls, [false, false, true, false, false, false]);
    assert_eq!((queue.arm(6), queue.came()), (Ok(true), Ok(6)));
    while let Some(used) = queue.pop().unwrap() {
        queue.free(used.head);
    }
    queue.disarm();
    // SAFETY: no one reads it.
    unsafe { queue.push(one(&queue)) }.unwrap();
    let _ = queue.publish();
    let chain = device.take().unwrap();
    device.give(chain.head.into(), 0);
    assert!(!device.show(), "no one asked");
}

#[test]
fn an_event_is_passed_once_also_where_indices_wrap() {
    // event, new, old: the event is passed if the step from old to new crosses it.
    for (event, new, old, passed) in [
        (0, 1, 0, true),
        (1, 1, 0, false),
        (0, 2, 1, false),
        (65535, 0, 65535, true),
        (65535, 3, 65530, true),
        (3, 3, 65530, false),
        (2, 3, 65530, true),
        (5, 5, 5, false),
    ] {
        assert_eq!(passes(event, new, old), passed, "{event} {new} {old}");
    }
}

#[test]
fn what_a_device_says_that_cannot_be_ends_the_ring_and_nothing_else() {
    type Misbehave = fn(&mut Device);
    let violations: [(&str, Misbehave, Violation); 6] = [
        ("an index ahead", |d| d.given = 3, Violation::Index { back: 3, out: 2 }),
        ("an index behind", |d| d.given = 65535, Violation::Index { back: 65535, out: 2 }),
        ("no head", |d| d.give(8, 0), Violation::Head(8)),
        ("no u16", |d| d.give(0x10000, 0), Violation::Head(0x10000)),
        ("a free descriptor", |d| d.give(5, 0), Violation::Head(5)),
        ("the middle of a chain", |d| d.give(1, 0), Violation::Head(1)),
    ];
    for (what, violation, said) in violations {
        let (mut queue, mut device) = ring(8);
        let two = |queue: &Virtqueue| one(queue).chain(one(queue));
        for _ in 0..2 {
            // SAFETY: no one reads it.
            unsafe { queue.push(two(&queue)) }.unwrap();
        }
        let _ = queue.publish();
        violation(&mut device);
        device.show();
        assert_eq!(queue.pop(), Err(said), "{what}");
        assert_eq!(queue.pop(), Err(said), "{what}: it stays so");
    }
    // A head that comes back twice, freed in between or not.
    for free in [true, false] {
        let (mut queue, mut device) = ring(8);
        for _ in 0..2 {
            // SAFETY: no one reads it.
            unsafe { queue.push(one(&queue)) }.unwrap();
        }
        let _ = queue.publish();
        device.give(0, 7);
        device.give(0, 7);
        device.show();
        assert_eq!(queue.pop(), Ok(Some(Used { head: 0, len: 7 })));
        if free {
            queue.free(0);
        }
        assert_eq!(queue.pop(), Err(Violation::Head(0)));
    }
    // Chains that were not published cannot come back.
    let (mut queue, mut device) = ring(8);
    // SAFETY: no one reads it.
    unsafe { queue.push(one(&queue)) }.unwrap();
    device.give(0, 0);
    device.show();
    assert_eq!(queue.pop(), Err(Violation::Index { back: 1, out: 0 }));
}
