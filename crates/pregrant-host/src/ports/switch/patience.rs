//! How long senders wait for a queue that is full: as long as its guest takes what came, and a
//! little longer.
//!
//! ```text
//!   sender's worker: room? --full--> wait: registered; its frames stay on its guest's ring
//!   reader's worker: takes what waits, half is left --> end: everybody registered is woken
//! ```
//! A queue begins with [`FIRST`] of patience, and has [`MOST`] at most. While somebody waits, time
//! uses it up; what its guest takes earns it back, [`BYTES_PER_MS`] a millisecond. Without patience
//! no one waits, and frames that find no room are dropped, until half of the most is earned.
//!
//! Time in which a sender's worker did not run is no one's fault: a worker asks every [`STEP`], and
//! not more than two of them count for each time that it asks.
//!
//! Invariants: a sender that is registered is woken by the next [`end`](Patience::end), or asks
//! again after [`STEP`]. The lock is taken where a queue is full, by no one else.
//!
//! A sender does not wait for longer than [`MOST`] between two bursts, however the queue fares:
//! others may keep it full, and its guest may take what they send.
//!
//! What a guest may do: take nothing, or little. Who sends to it stands for [`MOST`], and after
//! that for a millisecond for each [`BYTES_PER_MS`] that the guest takes: it gets these, so its
//! senders have that rate at least. No one else waits for it.

use super::mailbox::Waiting;
use pregrant::port::QueueWaker;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most patience for a queue. A guest's CPU that others use comes back sooner; netback keeps
/// frames for a guest that takes none for 10 s.
pub const MOST: Duration = Duration::from_millis(200);
/// Bytes that a guest takes for a millisecond more: at 16 MiB a second it is waited for without an
/// end.
pub const BYTES_PER_MS: u64 = 16 * 1024;
/// Of a new queue: a millisecond for each [`BYTES_PER_MS`] that it holds when it is full. So a
/// guest that connects again and again costs its senders no more than one that takes little.
pub const FIRST: Duration = Duration::from_millis(32);
/// A sender that waits asks after this time at the latest.
pub const STEP: Duration = Duration::from_millis(10);

/// Until which [end](Patience::end) a sender waits, if it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registered(Option<u64>);

struct State {
    left: Duration,
    /// It was used up, and too little of it was earned since.
    is_over: bool,
    /// Somebody waits; when this was last accounted for.
    since: Option<Instant>,
    /// Bytes that the guest had taken then.
    taken: u64,
    waiting: Vec<Arc<dyn QueueWaker>>,
}

impl State {
    /// Accounts for the time and the bytes since the last time.
    fn account(&mut self, now: Instant, taken: u64) {
        let bytes = taken.saturating_sub(self.taken);
        let earned = Duration::from_nanos(bytes.saturating_mul(1_000_000) / BYTES_PER_MS);
        self.taken = taken;
        let waited = self.since.map_or(Duration::ZERO, |since| now.duration_since(since).min(2 * STEP));
        self.left = (self.left + earned.min(MOST)).saturating_sub(waited).min(MOST);
        if self.left.is_zero() {
            self.is_over = true;
        } else if self.left >= MOST / 2 {
            self.is_over = false;
        }
    }
}

/// See the module.
pub struct Patience {
    is_waited_for: Waiting,
    /// Counts the ends; written under the lock.
    ends: AtomicU64,
    state: Mutex<State>,
}

impl Default for Patience {
    fn default() -> Self {
        let (left, waiting) = (FIRST, Vec::new());
        let state = State { left, is_over: false, since: None, taken: 0, waiting };
        Self { is_waited_for: Waiting::default(), ends: AtomicU64::new(0), state: Mutex::new(state) }
    }
}

impl Patience {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every state that a panic could leave is a legal one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this sender waits, and was not woken yet. Who was woken has a place before those who
    /// begin to wait: it needs no more room than who did not wait.
    pub fn is_registered(&self, by: &Registered) -> bool {
        by.0 == Some(self.ends.load(Ordering::Relaxed))
    }

    /// The guest has taken so many bytes, and too many wait: how long this sender may wait before
    /// it asks again. It is woken before, if room is made; it checks once more that there is none.
    /// None: it does not wait.
    pub fn wait(&self, taken: u64, by: &mut Registered, waker: &Arc<dyn QueueWaker>) -> Option<Duration> {
        self.wait_at(Instant::now(), taken, by, waker)
    }

    fn wait_at(
        &self,
        now: Instant,
        taken: u64,
        by: &mut Registered,
        waker: &Arc<dyn QueueWaker>,
    ) -> Option<Duration> {
        let mut state = self.state();
        state.account(now, taken);
        if state.is_over {
            state.since = None;
            return None;
        }
        state.since = Some(now);
        if !self.is_registered(by) {
            by.0 = Some(self.ends.load(Ordering::Relaxed));
            state.waiting.push(Arc::clone(waker));
        }
        // Under the lock: who ends it finds this sender there, or this sender finds the room. Its
        // fence is between this and the look at the room.
        self.is_waited_for.begin();
        Some(state.left.min(STEP))
    }

    /// Room was made, or there will be none: wakes who waits.
    pub fn end(&self, taken: u64) {
        if self.is_waited_for.is_over() {
            self.end_at(Instant::now(), taken);
        }
    }

    fn end_at(&self, now: Instant, taken: u64) {
        let mut state = self.state();
        state.account(now, taken);
        state.since = None;
        self.ends.fetch_add(1, Ordering::Relaxed);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.iter().for_each(|waker| waker.ring());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Debug, Default)]
    struct Doorbell(AtomicUsize);

    impl QueueWaker for Doorbell {
        fn ring(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A sender that asks every step: for how many milliseconds, the guest taking so many bytes in
    /// each.
    fn waits_ms(patience: &Patience, now: &mut Instant, taken: &mut u64, bytes_per_ms: u64) -> u64 {
        let (mut by, doorbell) = (Registered::default(), Arc::<Doorbell>::default() as Arc<dyn QueueWaker>);
        let mut ms = 0;
        while let Some(wait) = patience.wait_at(*now, *taken, &mut by, &doorbell) {
            let step = wait.as_millis().max(1) as u64;
            ms += step;
            *now += Duration::from_millis(step);
            *taken += bytes_per_ms * step;
            if ms > 10_000 {
                break;
            }
        }
        ms
    }

    #[test]
    fn who_takes_nothing_is_waited_for_once_and_who_takes_enough_always() {
        let (patience, mut now, mut taken) = (Patience::default(), Instant::now(), 0);
        assert_eq!(waits_ms(&patience, &mut now, &mut taken, 0), 32);
        // However much later.
        now += Duration::from_secs(3600);
        assert_eq!(waits_ms(&patience, &mut now, &mut taken, 0), 0);
        // Less than half of the patience is not enough to begin again.
        taken += 99 * BYTES_PER_MS;
        assert_eq!(waits_ms(&patience, &mut now, &mut taken, 0), 0);
        taken += BYTES_PER_MS;
        assert_eq!(waits_ms(&patience, &mut now, &mut taken, 0), 100);
        taken += 10_000 * BYTES_PER_MS;
        assert_eq!(waits_ms(&patience, &mut now, &mut taken, 0), 200);
        taken += 10_000 * BYTES_PER_MS;
        // It earns half of what it uses up.
        let waited = waits_ms(&patience, &mut now, &mut taken, BYTES_PER_MS / 2);
        assert!((390..=410).contains(&waited), "{waited}");
        taken += 10_000 * BYTES_PER_MS;
        assert!(waits_ms(&patience, &mut now, &mut taken, BYTES_PER_MS) > 10_000);
    }

    /// A worker that does not run cannot see whether the guest takes anything.
    #[test]
    fn time_in_which_the_sender_s_worker_did_not_run_does_not_count() {
        let (patience, mut now) = (Patience::default(), Instant::now());
        let (mut by, doorbell) = (Registered::default(), Arc::<Doorbell>::default() as Arc<dyn QueueWaker>);
        let mut taken = 10_000 * BYTES_PER_MS;
        for _ in 0..9 {
            assert!(patience.wait_at(now, taken, &mut by, &doorbell).is_some());
            now += Duration::from_secs(5);
        }
        assert!(waits_ms(&patience, &mut now, &mut taken, 0) <= 20);
    }

    #[test]
    fn everybody_who_waits_is_woken_once() {
        let patience = Patience::default();
        let doorbells = [(); 3].map(|()| Arc::<Doorbell>::default());
        let mut senders = [Registered::default(); 3];
        for _ in 0..5 {
            for (doorbell, by) in doorbells.iter().zip(&mut senders) {
                let waker = Arc::clone(doorbell) as Arc<dyn QueueWaker>;
                assert!(patience.wait(0, by, &waker).is_some());
            }
        }
        patience.end(0);
        patience.end(0);
        assert_eq!(doorbells.map(|doorbell| doorbell.0.load(Ordering::Relaxed)), [1; 3]);
    }
}
