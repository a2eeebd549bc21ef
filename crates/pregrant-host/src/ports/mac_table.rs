//! Which station is behind which port: learnt, aged, bounded.
//!
//! A guest may invent source addresses at line rate. Each port therefore owns a fixed share of the
//! table: a port that has used up its share learns nothing more, and can push out no one else's
//! addresses. A pinned address (the one that the toolstack gave to a vif) stays at its port,
//! also when another claims it. A learnt one stays as long as it is believed, unless the port that
//! claims it may take it ([`Claim`]): a frame is enough to claim an address, and would take its
//! traffic.
//!
//! ```text
//!   slot   | address, pinned, port |     one word: a reader sees all of it or nothing, and takes no lock
//!          | last seen             |     written before the address is
//! ```
//! An entry stays in its slot for as long as it is there, so no reader misses it. A lock is taken
//! by those who learn an address that is new, or moved, and who pin and forget: how often a guest
//! can cause that is bounded by its share of the table, and, where it may take others' addresses,
//! by its turns.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pregrant::net::headers::MacAddr;

/// How long an address is believed without being seen, as bridges do: 300 s.
pub const AGE_NS: u64 = 300_000_000_000;
/// Addresses that one port may hold.
pub const ADDRESSES_PER_PORT: u16 = 64;
/// Ports that the table has room for.
pub const MAX_PORTS: usize = 256;
/// How often the aged ones are swept out.
const SWEEP_NS: u64 = 10_000_000_000;
/// Twice what all ports may hold, each with one that is pinned, or nearly: runs of entries stay
/// short.
const SLOTS: usize = (MAX_PORTS * (ADDRESSES_PER_PORT as usize + 1)).next_power_of_two();

/// An address and its port, in one word.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry {
    mac: u64,
    port: u16,
    pinned: bool,
}

/// Never used, or again: a search ends here.
const EMPTY: u64 = 0;
/// Was used: a search goes on.
const GONE: u64 = 1;

impl Entry {
    /// Addresses are not 0, so this is neither [`EMPTY`] nor [`GONE`].
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

/// A port's rights to an address that was learnt at another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// Nothing, until it has aged or its port is gone.
    Free,
    /// Take it, as a station that moved.
    Moved,
}

/// The table's result for a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// It is behind this port.
    Here,
    /// It could be; the port's share is used up.
    NotLearnt,
    /// It is behind another port.
    Elsewhere,
}

/// The table. Keys are hashed with a secret, so that a guest cannot choose addresses that collide.
#[derive(Debug)]
pub struct MacTable {
    secret: RandomState,
    /// Written under the lock alone.
    entries: Box<[AtomicU64]>,
    /// When each was last seen as a source. Written without the lock too, by the port that it is
    /// behind.
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

/// Where a search for an address ended.
enum Found {
    At(usize, Entry),
    /// It is not there, and would go here.
    Free(Option<usize>),
}

impl MacTable {
    fn write(&self) -> MutexGuard<'_, ()> {
        // Every state that a panic could leave is a legal one.
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self, port: u16) -> &AtomicU16 {
        &self.held[usize::from(port) % MAX_PORTS]
    }

    fn search(&self, mac: u64) -> Found {
        let begin = self.secret.hash_one(mac) as usize;
        let mut free = None;
        for i in (0..SLOTS).map(|k| begin.wrapping_add(k) % SLOTS) {
            // A write before the entry (when it was seen) is visible.
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

    /// The result of `claim` on an address, if nothing but a time has to be written for it.
    fn known(&self, mac: u64, port: u16, claim: Claim, now_ns: u64) -> Option<Source> {
        if let Found::At(i, entry) = self.search(mac) {
            if entry.port == port {
                // A burst is one time: mostly it is there already.
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

    /// Notes that `mac`, which is no group's and not 0, was seen as a source on `port`. Takes the
    /// lock only where the address is new, or moves.
    pub fn learn(&self, mac: MacAddr, port: u16, claim: Claim, now_ns: u64) -> Source {
        let mac = number(mac);
        if let Some(known) = self.known(mac, port, claim, now_ns) {
            return known;
        }
        let _writing = self.write();
        // Again, now that no one else writes.
        if let Some(known) = self.known(mac, port, claim, now_ns) {
            return known;
        }
        self.put(Entry { mac, port, pinned: false }, now_ns);
        Source::Here
    }

    /// Writes an entry over what is there. With the lock.
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
            // There are more slots than ports may have addresses.
            Found::Free(None) => return,
        };
        self.held(entry.port).fetch_add(1, Ordering::Relaxed);
        self.seen_ns[i].store(seen_ns, Ordering::Relaxed);
        self.entries[i].store(entry.word(), Ordering::Release);
    }

    /// Gives `mac` to `port` for good, or until it is pinned to another.
    pub fn pin(&self, mac: MacAddr, port: u16) {
        let mac = number(mac);
        let _writing = self.write();
        if mac != 0 {
            self.put(Entry { mac, port, pinned: true }, 0);
        }
    }

    /// The port that `mac` is behind.
    pub fn find(&self, mac: MacAddr, now_ns: u64) -> Option<u16> {
        match self.search(number(mac)) {
            Found::At(i, entry) => self.is_believed(i, entry, now_ns).then_some(entry.port),
            Found::Free(_) => None,
        }
    }

    /// Drops what was not seen for [`AGE_NS`]; does nothing when it did so a short while ago.
    pub fn sweep(&self, now_ns: u64) {
        if now_ns.saturating_sub(self.swept_ns.load(Ordering::Relaxed)) < SWEEP_NS {
            return;
        }
        let _writing = self.write();
        self.swept_ns.store(now_ns, Ordering::Relaxed);
        self.retain(|i, entry| self.is_believed(i, entry, now_ns));
    }

    /// Drops what is behind `port`, pinned addresses too.
    pub fn forget_port(&self, port: u16) {
        let _writing = self.write();
        if self.held(port).load(Ordering::Relaxed) > 0 {
            self.retain(|_, entry| entry.port != port);
        }
    }

    /// With the lock.
    fn retain(&self, keep: impl Fn(usize, Entry) -> bool) {
        if self.len() == 0 {
            return;
        }
        // Backwards: what is gone at the end of a run is empty again, so runs do not grow with what
        // passed through them.
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

    /// Addresses in it.
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
