//! The MAC address table of the switch: learnt, aged, bounded.
//!
//! A guest may invent source addresses at line rate. Therefore each port owns a fixed share of the
//! table: once it has used up its share it learns no more, and it can never displace another port's
//! addresses. A pinned address (the one that the toolstack assigned to a vif) stays at its port,
//! also when another port sends from it. A learnt address stays until it ages, unless the other
//! port may take it over ([`Claim`]): otherwise one frame would be enough to divert a guest's
//! traffic.
//!
//! ```text
//!   slot   | address, pinned, port |     one word: a reader sees all of it or nothing, and takes no lock
//!          | last seen             |     written before the address is
//! ```
//! An entry never changes its slot, so readers always find it. Only the code that learns a new or
//! moved address, pins or forgets takes the lock. How often a guest can cause that is bounded by
//! its share of the table and, where it may take over others' addresses, by its turns.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pregrant::net::headers::MacAddr;

/// Time after which an unseen address is forgotten; 300 s, as in bridges.
pub const AGE_NS: u64 = 300_000_000_000;
/// Largest number of addresses per port.
pub const ADDRESSES_PER_PORT: u16 = 64;
/// Largest number of ports in the table.
pub const MAX_PORTS: usize = 256;
/// The interval between two sweeps that remove aged addresses.
const SWEEP_NS: u64 = 10_000_000_000;
/// About twice the number of entries that all ports may have, each with a pinned address, so that
/// runs of used slots stay short.
const SLOTS: usize = (MAX_PORTS * (ADDRESSES_PER_PORT as usize + 1)).next_power_of_two();

/// An address and its port, packed in one word.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry {
    mac: u64,
    port: u16,
    pinned: bool,
}

/// An unused slot, at which a search ends.
const EMPTY: u64 = 0;
/// A slot whose entry was removed; a search continues after it.
const GONE: u64 = 1;

impl Entry {
    /// An address is never 0, so the word differs from [`EMPTY`] and [`GONE`].
    fn word(self) -> u64 {
        self.mac << 16 | u64::from(self.pinned) << 8 | u64::from(self.port & 0xFF)
    }

    fn of(word: u64) -> Option<Self> {
        let entry = Self { mac: word >> 16, port: (word & 0xFF) as u16, pinned: word >> 8 & 1 != 0 };
        (entry.mac != 0).then_some(entry)
    }
}

fn number(mac: MacAddr) -> u64 {
    mac.0.iter().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// The right of a port to an address that was learnt at another port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// The rule does nothing until the address has aged or its port is gone.
    Free,
    /// Take the address over, as that of a station that has moved.
    Moved,
}

/// The result of looking up a frame's source address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The address is at this port.
    Here,
    /// The address is free, but the port has used up its share of the table.
    NotLearnt,
    /// The address is at another port.
    Elsewhere,
}

/// A MAC address table. Its hash is keyed with a random secret, so a guest cannot choose addresses
/// that collide.
#[derive(Debug)]
pub struct MacTable {
    secret: RandomState,
    /// The entries of the table, which are written only under the lock.
    entries: Box<[AtomicU64]>,
    /// For each address, the time at which a frame with it as its source was last seen. The
    /// address's port also writes this value, without the lock.
    seen_ns: Box<[AtomicU64]>,
    held: Box<[AtomicU16]>,
    len: AtomicUsize,
    swept_ns: AtomicU64,
    writing: Mutex<()>,
}

impl Default for MacTable {
    fn default() -> Self {
        Self {
            secret: RandomState::new(),
            entries: (0..SLOTS).map(|_| AtomicU64::new(EMPTY)).collect(),
            seen_ns: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            held: (0..MAX_PORTS).map(|_| AtomicU16::new(0)).collect(),
            len: AtomicUsize::new(0),
            swept_ns: AtomicU64::new(0),
            writing: Mutex::new(()),
        }
    }
}

/// The result of a search for an address.
enum Found {
    At(usize, Entry),
    /// The address is not in the table; this is the slot where it would go.
    Free(Option<usize>),
}

impl MacTable {
    fn write(&self) -> MutexGuard<'_, ()> {
        // Any state that a panic could leave behind is valid.
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self, port: u16) -> &AtomicU16 {
        &self.held[usize::from(port) % MAX_PORTS]
    }

    fn search(&self, mac: u64) -> Found {
        let begin = self.secret.hash_one(mac) as usize;
        let mut free = None;
        for i in (0..SLOTS).map(|k| begin.wrapping_add(k) % SLOTS) {
            // This makes the earlier write of `seen_ns` visible.
            match self.entries[i].load(Ordering::Acquire) {
                EMPTY => return Found::Free(free.or(Some(i))),
                word => match Entry::of(word) {
                    Some(entry) if entry.mac == mac => return Found::At(i, entry),
                    Some(_) => {}
                    None => free = free.or(Some(i)),
                },
            }
        }
        Found::Free(free)
    }

    fn is_believed(&self, i: usize, entry: Entry, now_ns: u64) -> bool {
        entry.pinned || now_ns.saturating_sub(self.seen_ns[i].load(Ordering::Relaxed)) <= AGE_NS
    }

    /// Returns the result of `claim` for an address, if it changes nothing but the address's time.
    fn known(&self, mac: u64, port: u16, claim: Claim, now_ns: u64) -> Option<Source> {
        if let Found::At(i, entry) = self.search(mac) {
            if entry.port == port {
                // All frames of a burst have the same time, so mostly it is written already.
                if self.seen_ns[i].load(Ordering::Relaxed) != now_ns {
                    self.seen_ns[i].store(now_ns, Ordering::Relaxed);
                }
                return Some(Source::Here);
            }
            if self.is_believed(i, entry, now_ns) && (entry.pinned || claim == Claim::Free) {
                return Some(Source::Elsewhere);
            }
        }
        (self.held(port).load(Ordering::Relaxed) >= ADDRESSES_PER_PORT).then_some(Source::NotLearnt)
    }

    /// Records that `mac`, which must be a unicast address other than 0, was seen as a source on
    /// `port`. Takes the lock only if the address is new or has moved.
    pub fn learn(&self, mac: MacAddr, port: u16, claim: Claim, now_ns: u64) -> Source {
        let mac = number(mac);
        if let Some(known) = self.known(mac, port, claim, now_ns) {
            return known;
        }
        let _writing = self.write();
        // Search again, now that no other thread can write.
        if let Some(known) = self.known(mac, port, claim, now_ns) {
            return known;
        }
        self.put(Entry { mac, port, pinned: false }, now_ns);
        Source::Here
    }

    /// Writes an entry, over an old one for the address if there is one. The lock must be held.
    fn put(&self, entry: Entry, seen_ns: u64) {
        let i = match self.search(entry.mac) {
            Found::At(i, old) => {
                self.held(old.port).fetch_sub(1, Ordering::Relaxed);
                i
            }
            Found::Free(Some(i)) => {
                self.len.fetch_add(1, Ordering::Relaxed);
                i
            }
            // There are more slots than all ports may have addresses.
            Found::Free(None) => return,
        };
        self.held(entry.port).fetch_add(1, Ordering::Relaxed);
        self.seen_ns[i].store(seen_ns, Ordering::Relaxed);
        self.entries[i].store(entry.word(), Ordering::Release);
    }

    /// Pins `mac` to `port`, until it is pinned to another or the port is gone.
    pub fn pin(&self, mac: MacAddr, port: u16) {
        let mac = number(mac);
        let _writing = self.write();
        if mac != 0 {
            self.put(Entry { mac, port, pinned: true }, 0);
        }
    }

    /// Returns the port of `mac`.
    pub fn find(&self, mac: MacAddr, now_ns: u64) -> Option<u16> {
        match self.search(number(mac)) {
            Found::At(i, entry) => self.is_believed(i, entry, now_ns).then_some(entry.port),
            Found::Free(_) => None,
        }
    }

    /// Removes addresses that were not seen for [`AGE_NS`]. Does nothing if the last sweep was a
    /// short while ago.
    pub fn sweep(&self, now_ns: u64) {
        if now_ns.saturating_sub(self.swept_ns.load(Ordering::Relaxed)) < SWEEP_NS {
            return;
        }
        let _writing = self.write();
        self.swept_ns.store(now_ns, Ordering::Relaxed);
        self.retain(|i, entry| self.is_believed(i, entry, now_ns));
    }

    /// Removes all addresses of `port`, including pinned ones.
    pub fn forget_port(&self, port: u16) {
        let _writing = self.write();
        if self.held(port).load(Ordering::Relaxed) > 0 {
            self.retain(|_, entry| entry.port != port);
        }
    }

    /// Removes the entries for which `keep` is false. The lock must be held.
    fn retain(&self, keep: impl Fn(usize, Entry) -> bool) {
        if self.len() == 0 {
            return;
        }
        // Backwards, so that removed entries at the end of a run become unused slots again.
        // Otherwise runs would grow with every address that was ever there.
        let mut next = self.entries[0].load(Ordering::Relaxed);
        for i in (0..SLOTS).rev() {
            let was = self.entries[i].load(Ordering::Relaxed);
            let mut word = was;
            if let Some(entry) = Entry::of(word)
                && !keep(i, entry)
            {
                self.held(entry.port).fetch_sub(1, Ordering::Relaxed);
                self.len.fetch_sub(1, Ordering::Relaxed);
                word = GONE;
            }
            if word == GONE && next == EMPTY {
                word = EMPTY;
            }
            if word != was {
                self.entries[i].store(word, Ordering::Release);
            }
            next = word;
        }
    }

    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(n: u32) -> MacAddr {
        let [a, b, c, d] = n.to_be_bytes();
        MacAddr([2, 0, a, b, c, d])
    }

    #[test]
    fn addresses_age_out() {
        let table = MacTable::default();
        assert_eq!(table.learn(mac(1), 0, Claim::Free, 0), Source::Here);
        table.pin(mac(2), 1);
        assert_eq!(table.find(mac(1), AGE_NS), Some(0));
        assert_eq!(table.find(mac(1), AGE_NS + 1), None);
        assert_eq!(table.learn(mac(1), 0, Claim::Free, AGE_NS), Source::Here);
        assert_eq!(table.find(mac(1), 2 * AGE_NS), Some(0));
        table.sweep(2 * AGE_NS + 1);
        assert_eq!((table.len(), table.find(mac(2), 9 * AGE_NS)), (1, Some(1)));
    }

    #[test]
    fn one_port_cannot_use_up_the_table() {
        let table = MacTable::default();
        for n in 0..100_000 {
            table.learn(mac(n), 3, Claim::Moved, 0);
        }
        assert_eq!(table.len(), usize::from(ADDRESSES_PER_PORT));
        assert_eq!(table.learn(mac(200_000), 4, Claim::Moved, 0), Source::Here);
        assert_eq!(table.learn(mac(200_000), 3, Claim::Moved, 0), Source::NotLearnt, "a full port took it");
        table.forget_port(3);
        assert_eq!(table.len(), 1);
        assert_eq!(table.learn(mac(200_000), 3, Claim::Moved, 0), Source::Here, "its share is free again");
    }

    #[test]
    fn a_pinned_address_cannot_be_taken() {
        let table = MacTable::default();
        table.learn(mac(1), 5, Claim::Free, 0);
        table.pin(mac(1), 2);
        for claim in [Claim::Free, Claim::Moved] {
            assert_eq!(table.learn(mac(1), 5, claim, 9 * AGE_NS), Source::Elsewhere);
        }
        assert_eq!(table.find(mac(1), 1), Some(2));
    }

    #[test]
    fn a_learnt_address_stays_as_long_as_it_is_believed() {
        let table = MacTable::default();
        table.learn(mac(1), 5, Claim::Free, 0);
        assert_eq!(table.learn(mac(1), 6, Claim::Free, AGE_NS), Source::Elsewhere);
        assert_eq!(table.find(mac(1), AGE_NS), Some(5));
        assert_eq!(table.learn(mac(1), 7, Claim::Moved, AGE_NS), Source::Here);
        assert_eq!(table.find(mac(1), AGE_NS), Some(7));
        assert_eq!(
            table.learn(mac(1), 6, Claim::Free, 2 * AGE_NS + 1),
            Source::Here,
            "7 has sent nothing since"
        );
        table.forget_port(6);
        assert_eq!(table.learn(mac(1), 5, Claim::Free, 2 * AGE_NS + 1), Source::Here);
    }
}
