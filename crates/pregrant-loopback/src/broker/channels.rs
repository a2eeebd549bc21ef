//! Xen's event channel table for one domain: which domain may bind to each end, and what state an
//! end enters when the other end closes.
//!
//! ```text
//!   Free --offer--> Unbound(to) --bind by `to`--> Bound(peer)
//!                        ^------ peer closes or dies ------'
//! ```

use crate::ledger::PORTS;
use pregrant::DomId;

/// One end of an event channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Channel {
    /// The slot (process or thread) of the domain that owns this end and receives its events.
    pub(super) slot: usize,
    pub(super) state: State,
}

/// The state of an end that is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Offered to this domain, which has not bound yet.
    Unbound(DomId),
    /// Connected to a domain's port.
    Bound(DomId, u32),
}

/// All ends of a domain. As in Xen, port 0 is never used.
#[derive(Debug, Default)]
pub(super) struct Channels {
    ends: Vec<Option<Channel>>,
    /// Number of bindings so far, so that a notifier can tell a new binding of a port from an old
    /// one.
    pub(super) generation: u16,
}

impl Channels {
    /// Allocates the lowest free port.
    pub(super) fn open(&mut self, slot: usize, state: State) -> Option<u32> {
        let channel = Some(Channel { slot, state });
        if let Some(free) = (1..self.ends.len()).find(|&p| self.ends[p].is_none()) {
            self.ends[free] = channel;
            return Some(free as u32);
        }
        if self.ends.is_empty() {
            self.ends.push(None);
        }
        if self.ends.len() == PORTS {
            return None;
        }
        self.ends.push(channel);
        Some(self.ends.len() as u32 - 1)
    }

    pub(super) fn get(&self, port: u32) -> Option<Channel> {
        self.ends.get(port as usize).copied().flatten()
    }

    pub(super) fn set_state(&mut self, port: u32, state: State) {
        if let Some(Some(channel)) = self.ends.get_mut(port as usize) {
            channel.state = state;
        }
    }

    /// Frees a port and returns the end that was there.
    pub(super) fn close(&mut self, port: u32) -> Option<Channel> {
        self.ends.get_mut(port as usize)?.take()
    }

    /// Returns the ports that a slot owns.
    pub(super) fn of_slot(&self, slot: usize) -> Vec<u32> {
        let owned = |&port: &u32| self.get(port).is_some_and(|c| c.slot == slot);
        (0..self.ends.len() as u32).filter(owned).collect()
    }

    pub(super) fn count(&self) -> usize {
        self.ends.iter().flatten().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_start_at_one_and_are_used_again() {
        let mut c = Channels::default();
        assert_eq!(c.open(0, State::Unbound(DomId(1))), Some(1));
        assert_eq!(c.open(1, State::Unbound(DomId(1))), Some(2));
        assert_eq!(c.of_slot(1), [2]);
        assert!(c.close(1).is_some() && c.close(1).is_none() && c.close(9999).is_none());
        assert_eq!(c.open(3, State::Bound(DomId(2), 7)), Some(1));
        assert_eq!(c.count(), 2);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut c = Channels::default();
        let opened = std::iter::from_fn(|| c.open(0, State::Unbound(DomId(0)))).count();
        assert_eq!(opened, PORTS - 1);
    }
}
