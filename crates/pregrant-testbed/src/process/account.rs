//! Counts of a switch's ports, in memory that outlives the back's process.
//!
//! ```text
//!   guest --ring--> CountedPort --seen--> switch --> queue --overflow, left--> CountedPort --ring--> guest
//! ```
//! When a back is killed, its successor opens the same account and goes on. Frames are known by
//! their numbers ([`frame_number`]), guest by guest: one below the next that is due came before,
//! and one above it leaves numbers out. So a frame that comes twice makes up for none that is lost.
//! A number is noted before its frame goes on, so a death in between shows as a frame that was
//! lost, and never as one that no one saw.
//!
//! [`frame_number`]: crate::station::frame_number

use super::Result;
use super::report::SwitchFrames;
use crate::station::frame_number;
use pregrant::platform::Clock;
use pregrant::port::{
    Arena, Burst, DropCounts, FramePort, Offloads, Payload, PortOwner, Room, Steering, ZeroCopyBurst,
};
use pregrant::shm::SharedBytes;
use pregrant_host::MonotonicClock;
use pregrant_host::ports::switch::SwitchPort;
use pregrant_loopback::{Loopback, Persistent};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The name under which the broker keeps the account's memory.
const NAME: &str = "pregrant/switch-account";

/// The place of a count in the account's memory.
#[derive(Clone, Copy)]
enum Count {
    Repeated,
    Missing,
    Overflow,
    Left,
    /// The first of [`GUESTS`] counts: for each guest, the number that its next frame has.
    Next,
}

/// Number of guests that are distinguished, by domain id.
const GUESTS: usize = 8;

/// Returns the guest that sent a frame, by the address that the testbed assigns:
/// 00:16:3e:0:DOMAIN:0.
fn guest_of(frame: &[u8]) -> usize {
    usize::from(frame.get(10).copied().unwrap_or(0)) % GUESTS
}

/// Returns the last bytes of frame `i`, which may be in its head or in its payload.
fn tail(frames: &ZeroCopyBurst<'_>, i: usize) -> [u8; frame_number::LEN] {
    let mut tail = [0; frame_number::LEN];
    let first = frames.len_of(i).saturating_sub(tail.len());
    let head = frames.head(i);
    let from_head = head.len().saturating_sub(first);
    if from_head > 0 {
        tail[..from_head].copy_from_slice(&head[first..]);
    }
    let mut at = head.len();
    for piece in frames.pieces(i) {
        let (from, len) = (first.max(at), piece.len());
        if from < at + len {
            piece.part(from - at, len).copy_out(&mut tail[from - first..]);
        }
        at += len;
    }
    tail
}

/// The counts of all ports together. Only one process at a time updates them.
pub struct Account {
    kept: Mutex<Persistent>,
    /// Time at which the first frame reached this process; 0: none has.
    first_frame_at_ns: AtomicU64,
}

impl Account {
    /// Opens the account. Without `succeed` all counts start at 0.
    pub fn open(platform: &Loopback, succeed: bool) -> Result<Self> {
        let kept = Mutex::new(platform.persist(NAME, pregrant::PAGE_SIZE)?);
        let account = Self { kept, first_frame_at_ns: AtomicU64::new(0) };
        if !succeed {
            for word in 0..Count::Next as usize + GUESTS {
                account.with(word, |n| n.store(0, Ordering::Relaxed));
            }
        }
        Ok(account)
    }

    /// Calls `act` with a word of the account's memory.
    fn with<R>(&self, word: usize, act: impl FnOnce(&AtomicU32) -> R) -> R {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        act(kept.word(word * 4).expect("a page has room for a dozen counts"))
    }

    /// Called when a guest sent a frame with these first and last bytes.
    fn note(&self, head: &[u8], tail: &[u8]) {
        let Some(number) = frame_number::read(tail) else { return };
        let due = self.with(Count::Next as usize + guest_of(head), |next| {
            let due = next.load(Ordering::Relaxed);
            next.store(due.max(number as u32 + 1), Ordering::Relaxed);
            u64::from(due)
        });
        self.add(Count::Repeated, usize::from(number < due));
        self.add(Count::Missing, number.saturating_sub(due) as usize);
    }

    fn add(&self, count: Count, frames: usize) {
        self.with(count as usize, |n| n.fetch_add(frames as u32, Ordering::Relaxed));
    }

    fn get(&self, count: Count) -> u64 {
        self.with(count as usize, |n| n.load(Ordering::Relaxed)).into()
    }

    fn a_frame_moves(&self) {
        if self.first_frame_at_ns.load(Ordering::Relaxed) == 0 {
            self.first_frame_at_ns.store(MonotonicClock.now_ns(), Ordering::Relaxed);
        }
    }

    /// Returns the time at which this process saw its first frame; 0: it has seen none.
    pub fn first_frame_at_ns(&self) -> u64 {
        self.first_frame_at_ns.load(Ordering::Relaxed)
    }

    pub fn frames(&self) -> SwitchFrames {
        SwitchFrames {
            seen: (0..GUESTS)
                .map(|guest| self.with(Count::Next as usize + guest, |n| n.load(Ordering::Relaxed)))
                .map(u64::from)
                .sum::<u64>()
                .saturating_sub(self.get(Count::Missing)),
            repeated: self.get(Count::Repeated),
            missing: self.get(Count::Missing),
            overflow: self.get(Count::Overflow),
            left: self.get(Count::Left),
        }
    }
}

/// A port of the switch whose frames are counted in the account.
pub struct CountedPort {
    port: SwitchPort,
    account: Arc<Account>,
    /// The part of the port's overflow that is counted in the account.
    overflow: u64,
}

impl CountedPort {
    pub fn new(port: SwitchPort, account: Arc<Account>) -> Self {
        Self { port, account, overflow: 0 }
    }

    fn note_overflow(&mut self) {
        let overflow = self.port.stats().rx_overflow;
        self.account.add(Count::Overflow, (overflow - self.overflow) as usize);
        self.overflow = overflow;
    }
}

impl FramePort for CountedPort {
    fn caps(&self) -> Offloads {
        self.port.caps()
    }
    fn room(&mut self) -> Room {
        self.port.room()
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        self.account.a_frame_moves();
        frames.iter().for_each(|(frame, _)| self.account.note(frame, frame));
        self.port.tx_burst(frames)
    }
    fn tx_room(&mut self, bytes: usize) -> Option<Box<[u8]>> {
        self.port.tx_room(bytes)
    }
    fn tx_filled(&mut self, arena: &mut Arena) -> usize {
        self.account.a_frame_moves();
        arena.burst().iter().for_each(|(frame, _)| self.account.note(frame, frame));
        self.port.tx_filled(arena)
    }
    fn payload(&self) -> Payload {
        self.port.payload()
    }
    fn tx_zero_copy(&mut self, frames: &mut ZeroCopyBurst<'_>) -> usize {
        self.account.a_frame_moves();
        frames.map_payload();
        for i in (0..frames.len()).filter(|i| frames.len_of(*i) > 0) {
            self.account.note(frames.head(i), &tail(frames, i));
        }
        self.port.tx_zero_copy(frames)
    }
    fn rx_stands(&mut self) {
        self.port.rx_stands();
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let n = self.port.rx_burst(into);
        if n > 0 {
            self.account.a_frame_moves();
            self.note_overflow();
        }
        n
    }
    fn steer(&mut self, by: Option<Arc<dyn Steering>>) {
        self.port.steer(by);
    }
    fn owned_by(&mut self, owner: &PortOwner) {
        self.port.owned_by(owner);
    }
    fn drop_counts(&self) -> Option<Arc<dyn DropCounts>> {
        self.port.drop_counts()
    }
}

impl Drop for CountedPort {
    fn drop(&mut self) {
        self.note_overflow();
        let mut rest = Arena::new();
        loop {
            rest.clear();
            match self.port.rx_burst(&mut rest) {
                0 => return,
                n => self.account.add(Count::Left, n),
            }
        }
    }
}
