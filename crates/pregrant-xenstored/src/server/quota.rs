//! How much of the server a domain may use. Domain 0 has no quotas, since it controls the machine.
//!
//! Each limit prevents one hostile domain from filling the memory or starving the others.
//! `SET_QUOTA` and `GET_QUOTA` use the names in [`NAMES`]; there 0 means no limit, which is
//! [`UNLIMITED`] here.

use pregrant::wire::xs::Errno;

/// The value of a limit that does not exist.
pub const UNLIMITED: usize = usize::MAX;

/// The quotas' names in messages: Xen's own, where it has the quota.
pub const NAMES: [&str; 7] =
    ["nodes", "watches", "transactions", "node-size", "permissions", "transaction-nodes", "outstanding"];

/// The limits for each domain but domain 0. The defaults are xenstored's, where it has the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Nodes that the domain owns.
    pub nodes: usize,
    /// Bytes in one value.
    pub value_bytes: usize,
    /// Entries in the permissions of one node.
    pub perms: usize,
    /// Watches over all connections of the domain.
    pub watches: usize,
    /// Open transactions over all connections of the domain.
    pub transactions: usize,
    /// Nodes that one transaction may read or change, and changes that it may contain.
    pub transaction_nodes: usize,
    /// Bytes of paths and values that the server stores for one transaction.
    pub transaction_bytes: usize,
    /// Watch events that wait for one connection, also of domain 0. Beyond this, the events of a
    /// watch are replaced by one that names the watched node.
    pub pending_events: usize,
    /// Bytes of the paths of the watch events that wait for one connection.
    pub pending_bytes: usize,
    /// Bytes of replies and of unread requests that wait on one connection, also of domain 0.
    /// Beyond this, its input is not read until it has read its replies.
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
    /// The limits of domain 0: only those that protect the server from a client that does not read.
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

    /// The value of a quota in the form of messages. `None`: there is no such quota.
    pub fn get(mut self, name: &[u8]) -> Option<u64> {
        let value = *self.field(name)?;
        Some(if value == UNLIMITED { 0 } else { value as u64 })
    }

    /// Sets a quota to a value in the form of messages.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such quota.
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

/// What a domain uses now, except for nodes, which the tree counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Watches set.
    pub watches: usize,
    /// Transactions open.
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
