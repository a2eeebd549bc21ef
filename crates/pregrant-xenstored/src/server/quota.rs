//! How much of the server a domain may use. Domain 0 has no quota: it runs the machine.
//!
//! Each limit is there so that one hostile domain can neither fill the memory nor starve the
//! others. `SET_QUOTA` and `GET_QUOTA` name them by [`NAMES`]; there 0 means that nothing is
//! checked, which is [`UNLIMITED`] here.

use pregrant::wire::xs::Errno;

/// A limit that nothing reaches.
pub const UNLIMITED: usize = usize::MAX;

/// The quotas by the names that they have in messages: Xen's own where it has one.
pub const NAMES: [&str; 7] =
    ["nodes", "watches", "transactions", "node-size", "permissions", "transaction-nodes", "outstanding"];

/// The limits, for each domain but domain 0. The defaults are xenstored's, where it has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Nodes that belong to the domain.
    pub nodes: usize,
    /// Bytes in one value.
    pub value_bytes: usize,
    /// Entries in one node's list of permissions.
    pub perms: usize,
    /// Watches over all connections of the domain.
    pub watches: usize,
    /// Transactions open at a time over all connections of the domain.
    pub transactions: usize,
    /// Nodes that one transaction may read or change, and changes that it may hold.
    pub transaction_nodes: usize,
    /// Bytes of paths and values that one transaction may make the server remember.
    pub transaction_bytes: usize,
    /// Watch events that wait for one connection to read them; for domain 0 too. Beyond it the
    /// events of a watch become one that names the watched node itself.
    pub pending_events: usize,
    /// Bytes of their paths, likewise.
    pub pending_bytes: usize,
    /// Bytes of replies and of unread requests that wait on one connection; for domain 0 too.
    /// Beyond it the connection is not read until it reads.
    pub buffered_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            nodes: 1000,
            value_bytes: 2048,
            perms: 5,
            watches: 128,
            transactions: 10,
            transaction_nodes: 1024,
            transaction_bytes: 256 * 1024,
            pending_events: 1024,
            pending_bytes: 128 * 1024,
            buffered_bytes: 64 * 1024,
        }
    }
}

impl Limits {
    /// Those of domain 0: none but what guards the server against a client that does not read.
    pub fn of_domain_0(self) -> Self {
        Self {
            nodes: UNLIMITED,
            value_bytes: UNLIMITED,
            perms: UNLIMITED,
            watches: UNLIMITED,
            transactions: UNLIMITED,
            transaction_nodes: UNLIMITED,
            transaction_bytes: UNLIMITED,
            ..self
        }
    }

    /// The value of a quota as messages have it. `None` when there is no such quota.
    pub fn get(mut self, name: &[u8]) -> Option<u64> {
        let value = *self.field(name)?;
        Some(if value == UNLIMITED { 0 } else { value as u64 })
    }

    /// Changes a quota to a value as messages have it.
    ///
    /// # Errors
    /// `EINVAL` when there is no such quota.
    pub fn set(&mut self, name: &[u8], value: u64) -> Result<(), Errno> {
        let value = if value == 0 { UNLIMITED } else { usize::try_from(value).unwrap_or(UNLIMITED) };
        *self.field(name).ok_or(Errno::Einval)? = value;
        Ok(())
    }

    fn field(&mut self, name: &[u8]) -> Option<&mut usize> {
        Some(match name {
            b"nodes" => &mut self.nodes,
            b"watches" => &mut self.watches,
            b"transactions" => &mut self.transactions,
            b"node-size" => &mut self.value_bytes,
            b"permissions" => &mut self.perms,
            b"transaction-nodes" => &mut self.transaction_nodes,
            b"outstanding" => &mut self.pending_events,
            _ => return None,
        })
    }
}

/// A domain's usage now, beside the nodes, which the tree counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Watches.
    pub watches: usize,
    /// Open transactions.
    pub transactions: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_a_limit_of_its_own_and_0_is_none() {
        let mut limits = Limits::default();
        for (i, name) in NAMES.iter().enumerate() {
            limits.set(name.as_bytes(), 100 + i as u64).unwrap();
        }
        for (i, name) in NAMES.iter().enumerate() {
            assert_eq!(limits.get(name.as_bytes()), Some(100 + i as u64));
        }
        limits.set(b"nodes", 0).unwrap();
        assert_eq!((limits.nodes, limits.get(b"nodes")), (UNLIMITED, Some(0)));
        assert_eq!((limits.get(b"memory"), limits.set(b"memory", 1)), (None, Err(Errno::Einval)));
    }
}
