//! The multicast frames that a guest wants (docs/protocol 2.8).
//!
//! ```text
//!   request-multicast-control = 1        key: "only those that I name"
//!   MCAST_ADD, MCAST_DEL                 extra infos on any TX ring: the names, at most 64
//! ```
//! It is a set: adding what is there, or deleting what is not, is no error and changes nothing. So
//! a batch whose answers a dying back did not publish can be executed again by its successor. What
//! a guest may do: add any address; it has at most 64, and gets no multicast frame for an address
//! that it did not add.

use crate::net::batch::tx::MulticastAsk;
use crate::net::headers::MacAddr;
use crate::wire::netif::MCAST_LIST_MAX;
use core::mem;

/// The addresses that a guest added, and whether they are used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MulticastList {
    addresses: [MacAddr; MCAST_LIST_MAX],
    len: usize,
    /// The guest has set `request-multicast-control`.
    requested: bool,
    /// All addresses that the guest added are in here. False after a successor has found no state
    /// of its predecessor.
    whole: bool,
}

impl Default for MulticastList {
    fn default() -> Self {
        Self { addresses: [MacAddr([0; 6]); MCAST_LIST_MAX], len: 0, requested: false, whole: true }
    }
}

impl MulticastList {
    /// The list of a guest whose addresses are lost: it gets all multicast frames (R4).
    pub fn lost() -> Self {
        Self { whole: false, ..Self::default() }
    }

    /// A list with as many of these addresses as fit.
    pub fn of(addresses: impl Iterator<Item = MacAddr>, whole: bool) -> Self {
        let mut list = Self::default();
        list.fill(addresses, whole);
        list
    }

    /// Adds as many of these addresses as fit.
    pub fn fill(&mut self, addresses: impl Iterator<Item = MacAddr>, whole: bool) {
        self.whole = whole;
        for mac in addresses {
            let _ = self.apply(MulticastAsk::Add(mac));
        }
    }

    /// Becomes equal to `from`, in the memory that it has.
    pub fn copy_from(&mut self, from: &Self) {
        let Self { addresses, len, requested, whole } = from;
        self.addresses = *addresses;
        (self.len, self.requested, self.whole) = (*len, *requested, *whole);
    }

    /// The addresses, in any order.
    pub fn addresses(&self) -> &[MacAddr] {
        self.addresses.get(..self.len).unwrap_or_default()
    }

    /// Whether the list has all addresses that the guest added.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Sets whether the guest wants only the addresses that it added.
    pub fn request(&mut self, on: bool) {
        self.requested = on;
    }

    /// Whether frames are filtered.
    #[inline(always)]
    pub fn filters(&self) -> bool {
        self.requested && self.whole
    }

    /// Whether the guest wants a frame for `dst`.
    #[inline]
    pub fn wants(&self, dst: MacAddr) -> bool {
        !self.filters() || !dst.is_group() || dst == MacAddr::BROADCAST || self.addresses().contains(&dst)
    }

    /// Executes an MCAST request. False: the list is full, or this is no group address.
    #[must_use]
    pub fn apply(&mut self, ask: MulticastAsk) -> bool {
        let (MulticastAsk::Add(mac) | MulticastAsk::Del(mac)) = ask;
        let place = self.addresses().iter().position(|a| *a == mac);
        match (ask, place) {
            (MulticastAsk::Add(_), Some(_)) | (MulticastAsk::Del(_), None) => {}
            (MulticastAsk::Add(_), None) => {
                match self.addresses.get_mut(self.len).filter(|_| mac.is_group()) {
                    Some(free) => *free = mac,
                    None => return false,
                }
                self.len += 1;
            }
            (MulticastAsk::Del(_), Some(place)) => {
                self.len -= 1;
                // The bytes after the end are zero, so that equal lists compare equal.
                let last = self.addresses.get_mut(self.len).map(mem::take).unwrap_or_default();
                if place < self.len
                    && let Some(free) = self.addresses.get_mut(place)
                {
                    *free = last;
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::MulticastAsk::{Add, Del};
    use super::*;

    fn mac(n: u8) -> MacAddr {
        MacAddr([1, 0, 0x5E, 0, 0, n])
    }

    #[test]
    fn only_what_is_named_and_every_broadcast() {
        let mut list = MulticastList::default();
        let wants = |list: &MulticastList| {
            [mac(1), mac(2), MacAddr::BROADCAST, MacAddr([2; 6])].map(|m| list.wants(m))
        };
        assert_eq!(wants(&list), [true; 4], "nothing was requested");
        list.request(true);
        assert_eq!(wants(&list), [false, false, true, true]);
        assert!(list.apply(Add(mac(2))));
        assert_eq!(wants(&list), [false, true, true, true]);
        assert!(list.apply(Del(mac(2))));
        assert_eq!(wants(&list), [false, false, true, true]);
        list.request(false);
        assert_eq!(wants(&list), [true; 4]);
        let mut lost = MulticastList::lost();
        lost.request(true);
        assert_eq!(wants(&lost), [true; 4], "the named addresses are lost");
    }

    #[test]
    fn holds_64_and_repeats_change_nothing() {
        let mut list = MulticastList::default();
        for n in 0..64 {
            assert!(list.apply(Add(mac(n))) && list.apply(Add(mac(n))));
        }
        assert!(!list.apply(Add(mac(64))), "full");
        assert!(list.apply(Add(mac(63))), "it is there");
        assert!(list.apply(Del(mac(70))), "it is not there, as requested");
        assert!(list.apply(Del(mac(0))) && list.apply(Add(mac(64))));
        assert_eq!(list.addresses().len(), 64);
        assert!(list.addresses().contains(&mac(64)) && !list.addresses().contains(&mac(0)));
        assert!(!MulticastList::default().apply(Add(MacAddr([2; 6]))), "no group");
        let same = MulticastList::of(list.addresses().iter().copied(), true);
        assert_eq!(same, list);
    }
}
