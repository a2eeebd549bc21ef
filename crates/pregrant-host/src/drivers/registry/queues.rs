//! Where the queues of a connected device are, and which steps wait until all of them are back
//! here.
//!
//! ```text
//!           handed out              the last has returned
//!   Here --------------> HandedOut -----------------------> Here --nothing waits--> HandedOut
//!                          | ^                               |
//!          reclaimed, as   | |                to be closed   v   asked again and again
//!          something waits '-'                           Draining --nothing under way, or too long--> Drained
//!                                                            |                                          |
//!                                       connected again      '-------------> HandedOut <---------------'
//! ```
//! Invariant: a device whose queues are handed out is not closed, and none is closed before it is
//! drained.
//!
//! What a guest may do: nothing here; the registry asks.

use super::retry_interval::BUSY_CHECK;
use crate::drivers::device_class::{RingFault, ServedQueue};
use log::Level;
use pregrant::platform::Platform;
use std::time::{Duration, Instant};

/// The next step of a device once its queues are here.
pub(super) enum Then {
    /// Makes the front's next step.
    Step,
    /// Closes the device for this reason, logged at this level.
    Fail(Level, String),
    /// Closes the device because of a fault in its ring.
    Fault(RingFault),
    /// Removes the device, whose directory is gone.
    Remove,
}

impl Then {
    /// Returns true if carrying out `other` as well would change nothing.
    fn is_like(&self, other: &Self) -> bool {
        let fails = |then: &Self| matches!(then, Self::Fail(..) | Self::Fault(_));
        fails(self) && fails(other) || std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// The place of the device's queues: the control thread, or the workers.
enum Place<P: Platform> {
    /// The control thread has the queues.
    Here,
    /// Workers have the queues, or the queues are on their way. The fields are the number of
    /// queues, and those that have returned.
    HandedOut { queues: usize, returned: Vec<Box<dyn ServedQueue<P>>> },
    /// The control thread has the queues. The device is about to be closed, while its backing works
    /// on requests.
    Draining { since: Instant, next: Instant },
    /// The control thread has the queues. The device may be closed: no request is under way, or the
    /// device has waited for long enough.
    Drained,
}

/// The queues of a connected device, which are with workers, on their way back, or here.
pub(super) struct DeviceQueues<P: Platform> {
    place: Place<P>,
    then: Vec<Then>,
}

impl<P: Platform> Default for DeviceQueues<P> {
    fn default() -> Self {
        Self { place: Place::Here, then: Vec::new() }
    }
}

impl<P: Platform> DeviceQueues<P> {
    /// Records that `queues` queues were given to workers.
    pub(super) fn hand_out(&mut self, queues: usize) {
        self.place = match queues {
            0 => Place::Here,
            _ => Place::HandedOut { queues, returned: Vec::with_capacity(queues) },
        };
    }

    /// Accepts queues that workers returned.
    pub(super) fn receive(&mut self, queues: Vec<Box<dyn ServedQueue<P>>>) {
        debug_assert!(self.is_handed_out() || queues.is_empty(), "queues without an owner");
        if let Place::HandedOut { returned, .. } = &mut self.place {
            returned.extend(queues);
        }
    }

    /// Returns all queues in order if the last one has come back from the workers; the control
    /// thread then has them.
    pub(super) fn take_returned(&mut self) -> Option<Vec<Box<dyn ServedQueue<P>>>> {
        match &mut self.place {
            Place::HandedOut { queues, returned } if returned.len() >= *queues => {
                let mut all = std::mem::take(returned);
                all.sort_by_key(|queue| queue.number());
                self.place = Place::Here;
                Some(all)
            }
            _ => None,
        }
    }

    /// True if workers have queues, or if queues are on their way to or from workers.
    pub(super) fn is_handed_out(&self) -> bool {
        matches!(self.place, Place::HandedOut { .. })
    }

    /// True if workers have all queues and no step waits for them, so that they may move to other
    /// workers.
    pub(super) fn may_move(&self) -> bool {
        matches!(&self.place, Place::HandedOut { returned, .. } if returned.is_empty())
            && self.then.is_empty()
    }

    /// Records what to do once the queues are here. One entry of each kind is enough; of failures
    /// the first is kept.
    pub(super) fn wait_with(&mut self, then: Then) {
        if !self.then.iter().any(|waits| waits.is_like(&then)) {
            self.then.push(then);
        }
    }

    /// True if work waits until the queues are back.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.then.is_empty()
    }

    /// Returns and empties the list of what must be done now that the queues are here.
    pub(super) fn take_waiting(&mut self) -> Vec<Then> {
        std::mem::take(&mut self.then)
    }

    /// Returns true while the device's backing still works on requests; the device takes no step
    /// meanwhile.
    pub(super) fn is_draining(&self) -> bool {
        matches!(self.place, Place::Draining { .. })
    }

    /// Returns the time at which to ask the device again whether its backing works on requests.
    pub(super) fn drain_check(&self) -> Option<Instant> {
        match self.place {
            Place::Draining { next, .. } => Some(next),
            _ => None,
        }
    }

    /// True if a device whose queues are here may be closed: no request is under way, or the device
    /// has waited for them for the time that `under_way` returns. The result stays true until the
    /// queues are handed out again.
    pub(super) fn is_drained(&mut self, under_way: impl FnOnce() -> Option<Duration>) -> bool {
        let now = Instant::now();
        let since = match self.place {
            Place::Drained => return true,
            Place::HandedOut { .. } => return false,
            Place::Draining { since, .. } => since,
            Place::Here => now,
        };
        let over = under_way().is_none_or(|most| now.duration_since(since) >= most);
        self.place = if over { Place::Drained } else { Place::Draining { since, next: now + BUSY_CHECK } };
        over
    }
}
