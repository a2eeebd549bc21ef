//! How much of the server a domain may use. Domain 0 has no quota: it runs the machine.
//!
//! Each limit is there so that one hostile domain can neither fill the memory nor starve the others.

/// The limits, the same for each domain but domain 0. The defaults are xenstored's, where it has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Nodes that belong to the domain.
    pub nodes: usize,
    /// Octets in one value.
    pub value_bytes: usize,
    /// Entries in one node's list of permissions.
    pub perms: usize,
    /// Watches over all connections of the domain.
    pub watches: usize,
    /// Transactions open at a time over all connections of the domain.
    pub transactions: usize,
    /// Nodes that one transaction may look at or change, and changes that it may hold.
    pub transaction_nodes: usize,
    /// Watch events that wait for one connection to read them; for domain 0 too. Beyond it the events of a watch
    /// become one that names the watched node itself.
    pub pending_events: usize,
    /// Octets of replies and of unread requests that wait on one connection; for domain 0 too. Beyond it the
    /// connection is not read until it reads.
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
            pending_events: 1024,
            buffered_bytes: 64 * 1024,
        }
    }
}

/// What a domain uses now, beside the nodes, which the tree counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Watches.
    pub watches: usize,
    /// Open transactions.
    pub transactions: usize,
}
