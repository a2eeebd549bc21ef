//! What the ports of a switch counted, in memory that outlives the back's process.
//!
//! ```text
//!   guest --ring--> CountedPort --seen--> switch --> queue --overflow, left--> CountedPort --ring--> guest
//! ```
//! When a back is killed, its successor opens the same account and goes on. Held against what the guests counted, it
//! says how many frames came to the ports twice, and how many were lost with the dead process. A count is made before the
//! frames go on, so a death in between shows as frames that were lost, and never as frames that nobody saw.

use super::Result;
use super::order::SwitchFrames;
use pregrant::platform::Clock;
use pregrant::port::{Arena, Burst, FramePort, Offloads, PortDrop, Steering};
use pregrant::shm::SharedBytes;
use pregrant_host::MonotonicClock;
use pregrant_host::loopback::{Loopback, Persistent};
use pregrant_host::ports::switch::SwitchPort;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The name under which the broker keeps it.
const NAME: &str = "pregrant/switch-account";

/// A count's place in the memory.
#[derive(Clone, Copy)]
enum Count {
    Seen,
    Overflow,
    Left,
}

/// The counts of all ports together. One process at a time counts.
pub struct Account {
    kept: Mutex<Persistent>,
    /// 0: no frame came to this process yet.
    first_frame_at_ns: AtomicU64,
}

impl Account {
    /// Opens it; without `succeed` it begins at nothing.
    pub fn open(platform: &Loopback, succeed: bool) -> Result<Self> {
        let kept = Mutex::new(platform.persist(NAME, pregrant::PAGE_SIZE)?);
        let account = Self { kept, first_frame_at_ns: AtomicU64::new(0) };
        if !succeed {
            for count in [Count::Seen, Count::Overflow, Count::Left] {
                account.with(count, |n| n.store(0, Ordering::Relaxed));
            }
        }
        Ok(account)
    }

    /// Does something with a count.
    fn with<R>(&self, count: Count, act: impl FnOnce(&AtomicU32) -> R) -> R {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        act(kept.word(count as usize * 4).expect("a page has room for three counts"))
    }

    fn add(&self, count: Count, frames: usize) {
        self.with(count, |n| n.fetch_add(frames as u32, Ordering::Relaxed));
    }

    fn get(&self, count: Count) -> u64 {
        self.with(count, |n| n.load(Ordering::Relaxed)).into()
    }

    fn a_frame_moves(&self) {
        if self.first_frame_at_ns.load(Ordering::Relaxed) == 0 {
            self.first_frame_at_ns.store(MonotonicClock.now_ns(), Ordering::Relaxed);
        }
    }

    /// When this process saw its first frame; 0: it saw none.
    pub fn first_frame_at_ns(&self) -> u64 {
        self.first_frame_at_ns.load(Ordering::Relaxed)
    }

    /// The counts.
    pub fn frames(&self) -> SwitchFrames {
        SwitchFrames {
            seen: self.get(Count::Seen),
            overflow: self.get(Count::Overflow),
            left: self.get(Count::Left),
        }
    }
}

/// A switch's port that keeps the account.
pub struct CountedPort {
    port: SwitchPort,
    account: Arc<Account>,
    /// What of the port's overflow stands in the account.
    overflow: u64,
}

impl CountedPort {
    /// Counts what passes `port`.
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
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        self.account.a_frame_moves();
        self.account.add(Count::Seen, frames.frames.len());
        self.port.tx_burst(frames)
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
    fn drops(&self) -> Vec<PortDrop> {
        self.port.drops()
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
