//! The state that the two halves of a queue share: flags, and the channels.
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

/// See the module. `C`: an end of an event channel.
#[derive(Debug)]
pub struct Link<C> {
    tx_chan: C,
    /// None: `tx_chan` serves both rings.
    rx_chan: Option<C>,
    is_live: AtomicU32,
    sender_waits: AtomicU32,
    /// By channel: work was found since its events were allowed.
    found: [AtomicU32; 2],
    /// Whether answers came since the vif asked: [`UNWATCHED`], [`WATCHED`] or [`ANSWERED`].
    answered: AtomicU32,
}

/// The vif does not ask.
const UNWATCHED: u32 = 0;
/// The vif asks, and none came.
const WATCHED: u32 = 1;
/// Some came.
const ANSWERED: u32 = 2;

impl<C> Link<C> {
    /// Of a queue that is not live yet.
    pub fn new(tx_chan: C, rx_chan: Option<C>) -> Self {
        let (is_live, sender_waits) = (AtomicU32::new(0), AtomicU32::new(0));
        let (found, answered) = ([AtomicU32::new(0), AtomicU32::new(0)], AtomicU32::new(UNWATCHED));
        Self { tx_chan, rx_chan, is_live, sender_waits, found, answered }
    }

    /// The channel of TX.
    #[inline(always)]
    pub fn tx_chan(&self) -> &C {
        &self.tx_chan
    }

    /// The channel of RX.
    #[inline(always)]
    pub fn rx_chan(&self) -> &C {
        self.rx_chan.as_ref().unwrap_or(&self.tx_chan)
    }

    /// Whether each ring has a channel of its own.
    #[inline(always)]
    pub fn is_split(&self) -> bool {
        self.rx_chan.is_some()
    }

    /// Whether frames can travel. No memory hangs on it: a late reader only writes to a ring
    /// that no back serves.
    #[inline(always)]
    pub fn is_live(&self) -> bool {
        self.is_live.load(Ordering::Relaxed) != 0
    }

    /// Whether they can from now on.
    pub fn set_live(&self, live: bool) {
        self.is_live.store(u32::from(live), Ordering::Relaxed);
    }

    /// The sender is about to wait for answers: before it arms its ring.
    #[inline(always)]
    pub fn wait(&self) {
        // Ordered before the ring's index by the store of that.
        self.sender_waits.store(1, Ordering::Release);
    }

    /// The sender waits no longer.
    #[inline(always)]
    pub fn go_on(&self) {
        if self.sender_waits.load(Ordering::Relaxed) != 0 {
            self.sender_waits.store(0, Ordering::Release);
        }
    }

    /// Answers were there.
    #[inline(always)]
    pub fn found_answers(&self) {
        self.find(0);
    }

    /// Frames were there.
    #[inline(always)]
    pub fn found_frames(&self) {
        self.find(usize::from(self.is_split()));
    }

    /// Written once a sleep, not once a burst: the other half reads this line all the time.
    #[inline(always)]
    fn find(&self, channel: usize) {
        if self.found[channel].load(Ordering::Relaxed) == 0 {
            self.found[channel].store(1, Ordering::Relaxed);
        }
        if self.answered.load(Ordering::Relaxed) == WATCHED {
            self.answered.store(ANSWERED, Ordering::Relaxed);
        }
    }

    /// The vif wants to know whether [answers come](Self::take_answered), or no longer.
    pub fn watch(&self, yes: bool) {
        self.answered.store(if yes { WATCHED } else { UNWATCHED }, Ordering::Relaxed);
    }

    /// Whether answers came, of TX or RX, since the last call. Of a link that is
    /// [watched](Self::watch).
    pub fn take_answered(&self) -> bool {
        self.answered.swap(WATCHED, Ordering::Relaxed) == ANSWERED
    }

    /// Whether the events of TX's channel brought no work since the last call.
    pub fn tx_was_spurious(&self) -> bool {
        self.found[0].swap(0, Ordering::Relaxed) == 0
    }

    /// The same of RX's.
    pub fn rx_was_spurious(&self) -> bool {
        self.found[usize::from(self.is_split())].swap(0, Ordering::Relaxed) == 0
    }

    /// Whether the sender waits for answers: then an event may be about them.
    #[inline(always)]
    pub fn sender_waits(&self) -> bool {
        self.sender_waits.load(Ordering::Acquire) != 0
    }
}
