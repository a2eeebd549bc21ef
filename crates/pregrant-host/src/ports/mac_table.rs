//! Which station is behind which port: learnt, aged, bounded.
//!
//! A guest may invent source addresses at line rate. Each port therefore owns a fixed share of the table: a port that
//! has used up its share learns nothing more, and can push out nobody else's addresses. A pinned address (the one that
//! the toolstack gave to a vif) stays at its port, whoever else claims it. A learnt one stays as long as it is believed, unless
//! the port that claims it may take it ([`Claim`]): a frame is enough to claim an address, and would take its traffic.

use std::collections::HashMap;

use pregrant::net::headers::MacAddr;

/// How long an address is believed without being seen, as bridges do: 300 s.
pub const AGE_NS: u64 = 300_000_000_000;
/// Addresses that one port may hold.
pub const ADDRESSES_PER_PORT: u16 = 64;
/// How often the aged ones are swept out.
const SWEEP_NS: u64 = 10_000_000_000;

#[derive(Clone, Copy, Debug)]
struct Entry {
    port: u16,
    pinned: bool,
    seen_ns: u64,
}

impl Entry {
    fn is_believed(&self, now_ns: u64) -> bool {
        self.pinned || now_ns.saturating_sub(self.seen_ns) <= AGE_NS
    }
}

/// What a port may do with an address that was learnt at another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// Nothing, until it has aged or its port is gone.
    Free,
    /// Take it, as a station that moved.
    Moved,
}

/// What the table makes of a source.
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
#[derive(Debug, Default)]
pub struct MacTable {
    entries: HashMap<MacAddr, Entry>,
    held: Vec<u16>,
    swept_ns: u64,
}

impl MacTable {
    fn held_mut(&mut self, port: u16) -> &mut u16 {
        let i = usize::from(port);
        if i >= self.held.len() {
            self.held.resize(i + 1, 0);
        }
        &mut self.held[i]
    }

    /// Notes that `mac`, which is no group's, was seen as a source on `port`.
    pub fn learn(&mut self, mac: MacAddr, port: u16, claim: Claim, now_ns: u64) -> Source {
        let full = *self.held_mut(port) >= ADDRESSES_PER_PORT;
        match self.entries.get_mut(&mac) {
            Some(e) if e.port == port => {
                e.seen_ns = now_ns;
                Source::Here
            }
            Some(e) if e.is_believed(now_ns) && (e.pinned || claim == Claim::Free) => Source::Elsewhere,
            _ if full => Source::NotLearnt,
            Some(e) => {
                let old = std::mem::replace(&mut e.port, port);
                e.seen_ns = now_ns;
                *self.held_mut(old) -= 1;
                *self.held_mut(port) += 1;
                Source::Here
            }
            None => {
                self.entries.insert(mac, Entry { port, pinned: false, seen_ns: now_ns });
                *self.held_mut(port) += 1;
                Source::Here
            }
        }
    }

    /// Gives `mac` to `port` for good, or until it is pinned to another.
    pub fn pin(&mut self, mac: MacAddr, port: u16) {
        if let Some(old) = self.entries.insert(mac, Entry { port, pinned: true, seen_ns: 0 }) {
            *self.held_mut(old.port) -= 1;
        }
        *self.held_mut(port) += 1;
    }

    /// The port that `mac` is behind.
    pub fn find(&self, mac: MacAddr, now_ns: u64) -> Option<u16> {
        let e = self.entries.get(&mac)?;
        e.is_believed(now_ns).then_some(e.port)
    }

    /// Drops what was not seen for [`AGE_NS`]; does nothing when it did so a short while ago.
    pub fn sweep(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.swept_ns) < SWEEP_NS {
            return;
        }
        self.swept_ns = now_ns;
        self.retain(|e| e.is_believed(now_ns));
    }

    /// Drops what is behind `port`, pinned addresses too.
    pub fn forget_port(&mut self, port: u16) {
        self.retain(|e| e.port != port);
    }

    fn retain(&mut self, keep: impl Fn(&Entry) -> bool) {
        let held = &mut self.held;
        self.entries.retain(|_, e| {
            let stays = keep(e);
            if !stays {
                held[usize::from(e.port)] -= 1;
            }
            stays
        });
    }

    /// Addresses in it.
    pub fn len(&self) -> usize {
        self.entries.len()
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
        let mut table = MacTable::default();
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
        let mut table = MacTable::default();
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
        let mut table = MacTable::default();
        table.learn(mac(1), 5, Claim::Free, 0);
        table.pin(mac(1), 2);
        for claim in [Claim::Free, Claim::Moved] {
            assert_eq!(table.learn(mac(1), 5, claim, 9 * AGE_NS), Source::Elsewhere);
        }
        assert_eq!(table.find(mac(1), 1), Some(2));
    }

    #[test]
    fn a_learnt_address_stays_as_long_as_it_is_believed() {
        let mut table = MacTable::default();
        table.learn(mac(1), 5, Claim::Free, 0);
        assert_eq!(table.learn(mac(1), 6, Claim::Free, AGE_NS), Source::Elsewhere);
        assert_eq!(table.find(mac(1), AGE_NS), Some(5));
        assert_eq!(table.learn(mac(1), 7, Claim::Moved, AGE_NS), Source::Here);
        assert_eq!(table.find(mac(1), AGE_NS), Some(7));
        assert_eq!(
            table.learn(mac(1), 6, Claim::Free, 2 * AGE_NS + 1),
            Source::Here,
            "7 was not heard of since"
        );
        table.forget_port(6);
        assert_eq!(table.learn(mac(1), 5, Claim::Free, 2 * AGE_NS + 1), Source::Here);
    }
}
