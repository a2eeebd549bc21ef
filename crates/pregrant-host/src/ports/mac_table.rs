//! Which station is behind which port: learnt, aged, bounded.
//!
//! A guest may invent source addresses at line rate. Each port therefore owns a fixed share of the table: a port that
//! has used up its share learns nothing more, and can push out nobody else's addresses. A pinned address (the one that
//! the toolstack gave to a vif) stays at its port, whoever else claims it.

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

    /// Notes that `mac` was seen as a source on `port`. A station that moved is moved. False when it was not believed:
    /// a group address, another port's pinned address, or a port at its limit.
    pub fn learn(&mut self, mac: MacAddr, port: u16, now_ns: u64) -> bool {
        if mac.is_group() || mac.is_zero() {
            return false;
        }
        let full = *self.held_mut(port) >= ADDRESSES_PER_PORT;
        match self.entries.get_mut(&mac) {
            Some(e) if e.port == port => {
                e.seen_ns = now_ns;
                true
            }
            Some(e) if e.pinned || full => false,
            Some(e) => {
                let old = std::mem::replace(&mut e.port, port);
                e.seen_ns = now_ns;
                *self.held_mut(old) -= 1;
                *self.held_mut(port) += 1;
                true
            }
            None if full => false,
            None => {
                self.entries.insert(mac, Entry { port, pinned: false, seen_ns: now_ns });
                *self.held_mut(port) += 1;
                true
            }
        }
    }

    /// Gives `mac` to `port` for good.
    pub fn pin(&mut self, mac: MacAddr, port: u16) {
        if let Some(old) = self.entries.insert(mac, Entry { port, pinned: true, seen_ns: 0 }) {
            *self.held_mut(old.port) -= 1;
        }
        *self.held_mut(port) += 1;
    }

    /// The port that `mac` is behind.
    pub fn find(&self, mac: MacAddr, now_ns: u64) -> Option<u16> {
        let e = self.entries.get(&mac)?;
        (e.pinned || now_ns.saturating_sub(e.seen_ns) <= AGE_NS).then_some(e.port)
    }

    /// Drops what was not seen for [`AGE_NS`]; does nothing when it did so a short while ago.
    pub fn sweep(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.swept_ns) < SWEEP_NS {
            return;
        }
        self.swept_ns = now_ns;
        self.retain(|e| e.pinned || now_ns.saturating_sub(e.seen_ns) <= AGE_NS);
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
        assert!(table.learn(mac(1), 0, 0));
        table.pin(mac(2), 1);
        assert_eq!(table.find(mac(1), AGE_NS), Some(0));
        assert_eq!(table.find(mac(1), AGE_NS + 1), None);
        assert!(table.learn(mac(1), 0, AGE_NS));
        assert_eq!(table.find(mac(1), 2 * AGE_NS), Some(0));
        table.sweep(2 * AGE_NS + 1);
        assert_eq!((table.len(), table.find(mac(2), 9 * AGE_NS)), (1, Some(1)));
    }

    #[test]
    fn one_port_cannot_use_up_the_table() {
        let mut table = MacTable::default();
        for n in 0..100_000 {
            table.learn(mac(n), 3, 0);
        }
        assert_eq!(table.len(), usize::from(ADDRESSES_PER_PORT));
        assert!(table.learn(mac(200_000), 4, 0));
        assert!(!table.learn(mac(200_000), 3, 0), "a full port took another's address");
        table.forget_port(3);
        assert_eq!(table.len(), 1);
        assert!(table.learn(mac(200_000), 3, 0), "its share is free again");
    }

    #[test]
    fn a_pinned_address_cannot_be_taken() {
        let mut table = MacTable::default();
        table.learn(mac(1), 5, 0);
        table.pin(mac(1), 2);
        assert!(!table.learn(mac(1), 5, 1));
        assert_eq!(table.find(mac(1), 1), Some(2));
        assert!(!table.learn(MacAddr::BROADCAST, 5, 1));
    }
}
