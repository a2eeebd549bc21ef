//! When frames for a guest have waited too long, and when the guest counts as stalled
//! (docs/protocol 6, "RX queue", "Stall").
//!
//! ```text
//!                 slots posted               no slots for the next frame,
//!   Starting -------------------> Up --------- 60 s since the last success -------> Stalled
//!                                  ^                                                   |
//!                                  '---- slots for the frame that it stalled at -------'
//! ```
//! The vif's link is up while all queues are [`Link::Up`]. Frames that wait for slots expire after
//! 10 s. Without `feature-rx-notify` no event announces new slots: then frames wait 30 ms, and no
//! stall is detected.
//!
//! Time is read in control turns, never on the data path, so a frame's age counts from the first
//! turn that sees it waiting.
//!
//! What a guest may do: post no slots, or too few. Free slots are compared with those that the next
//! frame *needs*, so a guest cannot hide a stall by always posting one slot (XSA-392). Its link
//! goes down, and frames for it are dropped early.

/// How long the back waits for a guest's RX slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// A waiting frame is dropped after this time.
    pub expiry_ns: u64,
    /// How long frames wait for RX slots of a guest without `feature-rx-notify`.
    pub unnotified_expiry_ns: u64,
    /// A queue counts as stalled after this time without a delivered frame and without slots for
    /// the next one.
    pub stall_ns: u64,
}

impl Default for Patience {
    fn default() -> Self {
        Self { expiry_ns: 10_000_000_000, unnotified_expiry_ns: 30_000_000, stall_ns: 60_000_000_000 }
    }
}

/// Whether a queue's guest receives frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// The guest has posted no slots yet.
    Starting,
    /// The guest receives frames.
    Up,
    /// The guest has received no frames for too long.
    Stalled,
}

/// A queue's state in a control turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueState {
    /// Number of slots that the guest has posted.
    pub(super) free: u32,
    /// Number of slots that the next frame needs; 0: no frame waits.
    pub(super) needed: u32,
    /// A number that identifies the burst that waits; every burst has another one.
    pub(super) burst: u64,
    /// Number of batches delivered.
    pub(super) batches: u64,
}

/// The stall detection of one queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    patience: Patience,
    /// Whether the guest has `feature-rx-notify`. If not, no stall is detected.
    notified: bool,
    link: Link,
    /// Number of free RX slots at which a stalled queue is up again.
    wanted: u32,
    /// The burst that waits, and the time at which that was first seen.
    waits: Option<(u64, u64)>,
    batches: u64,
    last_success_ns: u64,
    stalls: u64,
}

impl Stall {
    /// Starts the stall detection of a new queue, or of one that was `live` before this process.
    pub(super) fn new(patience: Patience, notified: bool, live: bool, now_ns: u64) -> Self {
        Self {
            patience,
            notified,
            link: if live || !notified { Link::Up } else { Link::Starting },
            wanted: 1,
            waits: None,
            batches: 0,
            last_success_ns: now_ns,
            stalls: 0,
        }
    }

    pub(super) fn link(&self) -> Link {
        self.link
    }

    /// Whether the guest announces new slots.
    pub(super) fn is_notified(&self) -> bool {
        self.notified
    }

    pub(super) fn stalls(&self) -> u64 {
        self.stalls
    }

    /// Number of free slots that the check of the ring waits for: those that the next frame needs,
    /// or more if the queue is stalled.
    pub(super) fn wanted(&self, needed: u32) -> u32 {
        if self.link == Link::Up { needed } else { needed.max(self.wanted) }
    }

    /// Call in a control turn. True: the waiting frames have expired.
    pub(super) fn turn(&mut self, now_ns: u64, check: QueueState) -> bool {
        let success = check.batches != self.batches;
        if success {
            (self.batches, self.last_success_ns) = (check.batches, now_ns);
        }
        let short = check.free < check.needed;
        match self.link {
            Link::Up if self.notified && short && self.stall_at() <= now_ns => {
                (self.link, self.wanted) = (Link::Stalled, check.needed);
                self.stalls += 1;
            }
            // The slots that end a stall may have been used for the waiting frames.
            Link::Starting | Link::Stalled if success || check.free >= self.wanted => {
                (self.link, self.last_success_ns) = (Link::Up, now_ns);
            }
            _ => {}
        }
        if !short {
            self.waits = None;
            return false;
        }
        match self.waits {
            Some((burst, since)) if burst == check.burst => now_ns.saturating_sub(since) >= self.expiry_ns(),
            _ => {
                self.waits = Some((check.burst, now_ns));
                false
            }
        }
    }

    fn expiry_ns(&self) -> u64 {
        if self.notified { self.patience.expiry_ns } else { self.patience.unnotified_expiry_ns }
    }

    fn stall_at(&self) -> u64 {
        self.last_success_ns.saturating_add(self.patience.stall_ns)
    }

    /// Time of the next turn that has something to do, unless slots come before.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        let (_, since) = self.waits?;
        let expires = since.saturating_add(self.expiry_ns());
        let stalls = self.notified && self.link == Link::Up;
        Some(if stalls { expires.min(self.stall_at()) } else { expires })
    }
}
