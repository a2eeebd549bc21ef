//! The state that the two halves of a queue share: flags and channels.
//!
//! ```text
//!   TxHalf: sender, under its lock --sender_waits, live--> Link <--sender_waits, live-- RxHalf: poller
//!                                    channel of TX  <------'  '------> channel of RX, or the same
//! ```
//! Invariants: only flags are written here. A sender that waits for room sets `sender_waits` before
//! it arms its ring, so the poller that the answer's event wakes sees the flag. Where TX and RX
//! share a channel, only the poller gets events, and it takes the sender's lock only if that flag
//! is set.
//!
//! What the back may do: send events at any time, or never. Loom checks all orders:
//! `tests/halves_loom.rs`.

use crate::sync::{AtomicU32, Ordering};

/// Flags and channels shared by both halves. `C` is an end of an event channel.
#[derive(Debug)]
pub struct Link<C> {
    tx_chan: C,
    /// The event channel of the RX ring. None: `tx_chan` serves both rings.
    rx_chan: Option<C>,
    is_live: AtomicU32,
    sender_waits: AtomicU32,
    /// For each channel: whether work was found since it was last unmasked.
    found: [AtomicU32; 2],
    /// Whether answers arrived since the vif asked: [`UNWATCHED`], [`WATCHED`] or [`ANSWERED`].
    answered: AtomicU32,
}

/// The vif does not ask for answers.
const UNWATCHED: u32 = 0;
/// The vif asks, and no answer has arrived.
const WATCHED: u32 = 1;
/// Some answers arrived.
const ANSWERED: u32 = 2;

impl<C> Link<C> {
    /// The link of a queue that is not live yet.
    pub fn new(tx_chan: C, rx_chan: Option<C>) -> Self {
        let (is_live, sender_waits) = (AtomicU32::new(0), AtomicU32::new(0));
        let (found, answered) = ([AtomicU32::new(0), AtomicU32::new(0)], AtomicU32::new(UNWATCHED));
        Self { tx_chan, rx_chan, is_live, sender_waits, found, answered }
    }

    /// The event channel of TX.
    #[inline(always)]
    pub fn tx_chan(&self) -> &C {
        &self.tx_chan
    }

    /// The event channel of RX.
    #[inline(always)]
    pub fn rx_chan(&self) -> &C {
        self.rx_chan.as_ref().unwrap_or(&self.tx_chan)
    }

    /// True if each ring has an event channel of its own.
    #[inline(always)]
    pub fn is_split(&self) -> bool {
        self.rx_chan.is_some()
    }

    /// Whether frames can move. No memory depends on it: a late reader only writes to a ring that
    /// no back serves.
    #[inline(always)]
    pub fn is_live(&self) -> bool {
        self.is_live.load(Ordering::Relaxed) != 0
    }

    /// Sets whether frames can move.
    pub fn set_live(&self, live: bool) {
        self.is_live.store(u32::from(live), Ordering::Relaxed);
    }

    /// Notes that the sender is about to wait for answers. Call this before the sender asks for an
    /// event.
    #[inline(always)]
    pub fn wait(&self) {
        // The store of the ring's index orders this before it.
        self.sender_waits.store(1, Ordering::Release);
    }

    /// Notes that the sender does not wait any more.
    #[inline(always)]
    pub fn go_on(&self) {
        if self.sender_waits.load(Ordering::Relaxed) != 0 {
            self.sender_waits.store(0, Ordering::Release);
        }
    }

    /// Notes that TX answers were found.
    #[inline(always)]
    pub fn found_answers(&self) {
        self.find(0);
    }

    /// Notes that RX frames were found.
    #[inline(always)]
    pub fn found_frames(&self) {
        self.find(usize::from(self.is_split()));
    }

    /// Notes that work was found on a channel. It writes only once for each sleep, not for each
    /// burst, because the other half reads this cache line all the time.
    #[inline(always)]
    fn find(&self, channel: usize) {
        if self.found[channel].load(Ordering::Relaxed) == 0 {
            self.found[channel].store(1, Ordering::Relaxed);
        }
        if self.answered.load(Ordering::Relaxed) == WATCHED {
            self.answered.store(ANSWERED, Ordering::Relaxed);
        }
    }

    /// Sets whether the vif asks if [answers come](Self::take_answered).
    pub fn watch(&self, yes: bool) {
        self.answered.store(if yes { WATCHED } else { UNWATCHED }, Ordering::Relaxed);
    }

    /// True if answers of TX or RX arrived since the last call, while the link is
    /// [watched](Self::watch).
    pub fn take_answered(&self) -> bool {
        self.answered.swap(WATCHED, Ordering::Relaxed) == ANSWERED
    }

    /// Whether the events of TX's channel brought no work since the last call.
    pub fn tx_was_spurious(&self) -> bool {
        self.found[0].swap(0, Ordering::Relaxed) == 0
    }

    /// Whether the events of RX's channel brought no work since the last call.
    pub fn rx_was_spurious(&self) -> bool {
        self.found[usize::from(self.is_split())].swap(0, Ordering::Relaxed) == 0
    }

    /// True if the sender waits for answers, so that an event may be about them.
    #[inline(always)]
    pub fn sender_waits(&self) -> bool {
        self.sender_waits.load(Ordering::Acquire) != 0
    }
}
