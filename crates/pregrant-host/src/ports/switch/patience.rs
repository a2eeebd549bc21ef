//! Decides how long senders wait for a full queue: as long as its guest takes frames, and a little
//! longer.
//!
//! ```text
//!   sender's worker: room? --full--> wait: registered; its frames stay on its guest's ring
//!   reader's worker: takes what waits, half is left --> end: everybody registered is woken
//! ```
//! A queue starts with [`FIRST`] of patience, and has at most [`MOST`]. While a sender waits, time
//! uses patience up, and the bytes that the guest takes earn it back, at [`BYTES_PER_MS`] per
//! millisecond. Without patience no sender waits, and frames that do not fit are dropped, until
//! half of the maximum is earned.
//!
//! Time in which a sender's worker did not run must not count against the guest: a worker checks
//! every [`STEP`], and each check accounts for two steps at most.
//!
//! Invariants: a registered sender is woken by the next [`end`](Patience::end), or checks again
//! after [`STEP`]. The lock is taken only where a queue is full.
//!
//! A sender waits at most [`MOST`] between two bursts, whatever happens to the queue: other senders
//! may keep it full while its guest takes what they send.
//!
//! What a guest may do: take nothing, or little. Its senders stall for [`MOST`], and then for a
//! millisecond per [`BYTES_PER_MS`] that the guest takes. As they fill that room, they have at
//! least that rate. No one else waits for it.

use super::mailbox::Waiting;
use pregrant::port::QueueWaker;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The upper bound of a queue's patience. A guest that lost its CPU to others normally gets it back
/// sooner. (netback keeps frames for a stalled guest for 10 s.)
pub const MOST: Duration = Duration::from_millis(200);
/// Number of bytes that a guest must receive to earn a millisecond. At 16 MiB/s its senders wait
/// without a limit.
pub const BYTES_PER_MS: u64 = 16 * 1024;
/// Patience of a new queue: a millisecond per [`BYTES_PER_MS`] that it holds when it is full. So a
/// guest that reconnects again and again delays its senders no more than a guest that receives
/// little.
pub const FIRST: Duration = Duration::from_millis(32);
/// Longest time after which a waiting sender checks again.
pub const STEP: Duration = Duration::from_millis(10);

/// A sender's registration for room: the number of waits that had ended when it began to wait.
/// None: it does not wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registered(Option<u64>);

struct State {
    left: Duration,
    /// True if the patience was used up, and too little was earned since.
    is_over: bool,
    /// The time of the last accounting. None: no sender waits.
    since: Option<Instant>,
    /// Number of bytes that the guest had received at that time.
    taken: u64,
    waiting: Vec<Arc<dyn QueueWaker>>,
}

impl State {
    /// Accounts for the time and the bytes since the last call.
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

/// The time that senders may still wait for one queue, and the senders that wait.
pub struct Patience {
    is_waited_for: Waiting,
    /// Number of waits that have ended; written under the lock.
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
        // Any state that a panic could leave behind is valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if this sender waits and was not woken yet. A woken sender goes before those
    /// that begin to wait, and needs no more room than a sender that did not wait.
    pub fn is_registered(&self, by: &Registered) -> bool {
        by.0 == Some(self.ends.load(Ordering::Relaxed))
    }

    /// Returns how long this sender may wait before it checks again, for a full queue whose guest
    /// has taken `taken` bytes. The sender is woken earlier if there is room, and must check once
    /// more, after this call, that there is none. None: it must not wait.
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
        // Under the lock, so that the waker finds this sender registered, or this sender finds the
        // room. The fence is between this and the check for room.
        self.is_waited_for.begin();
        Some(state.left.min(STEP))
    }

    /// Wakes the waiting senders, because there is room or there never will be.
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

    /// Simulates a sender that checks in every step. Returns for how many milliseconds the sender
    /// waits if the guest receives `bytes` in each millisecond.
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
        // Independently of the time that passed.
        now += Duration::from_secs(3600);
        assert_eq!(waits_ms(&patience, &mut now, &mut taken, 0), 0);
        // Less than half of the patience is not enough to wait again.
        taken += 99 * BYTES_PER_MS;
        assert_eq!(waits_ms(&patience, &mut now, &mut taken, 0), 0);
        taken += BYTES_PER_MS;
        assert_eq!(waits_ms(&patience, &mut now, &mut taken, 0), 100);
        taken += 10_000 * BYTES_PER_MS;
        assert_eq!(waits_ms(&patience, &mut now, &mut taken, 0), 200);
        taken += 10_000 * BYTES_PER_MS;
        // The guest earns half of what the wait uses up.
        let waited = waits_ms(&patience, &mut now, &mut taken, BYTES_PER_MS / 2);
        assert!((390..=410).contains(&waited), "{waited}");
        taken += 10_000 * BYTES_PER_MS;
        assert!(waits_ms(&patience, &mut now, &mut taken, BYTES_PER_MS) > 10_000);
    }

    /// A sender's time does not count while its worker does not run, since the worker then cannot
    /// see whether the guest takes frames.
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
