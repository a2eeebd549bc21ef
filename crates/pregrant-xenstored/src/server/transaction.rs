//! Transactions: a snapshot to work on, and a commit that succeeds only if the result is as if all
//! had happened at once.
//!
//! ```text
//!  start:   base ──┬── work        base: the live tree as it was;  work: the transaction's own copy
//!  request: reads and changes go to `work`; `seen` notes which nodes the outcome depended on, `edits` the changes
//!  commit:  any node of `seen` differs between base and live?   yes -> EAGAIN, the client does all of it again
//!                                                               no  -> the edits are made on the live tree
//! ```
//! Since every node that an outcome depended on is unchanged at the commit, the edits have the same
//! outcome on the live tree as on `work`, whatever else changed meanwhile. Two domains that write
//! different keys below one directory do not conflict. Watches fire at the commit.
//!
//! What a client may do: keep snapshots for ever (bounded by [`Limits::transactions`]), read and
//! change very many nodes (bounded by [`Limits::transaction_nodes`] and
//! [`Limits::transaction_bytes`]), name a transaction that is not its own (ENOENT).

use super::permission::Caller;
use super::quota::Limits;
use super::tree::{Stamp, Tree};
use super::view::{Change, ChangeKind, Edit, View};
use pregrant::wire::xs::Errno;
use std::collections::BTreeMap;

/// The nodes on which the outcome of a transaction's requests depended.
#[derive(Default, Debug)]
pub struct Seen {
    /// Paths of the nodes; true if the outcome also depended on the list of children.
    nodes: BTreeMap<String, bool>,
    path_bytes: usize,
}

impl Seen {
    /// Notes a dependency on a node's existence, value and permissions.
    ///
    /// # Errors
    ///
    /// `ENOSPC`: the transaction may not read more nodes. Nothing is noted.
    pub fn note(&mut self, path: &str, limits: &Limits) -> Result<(), Errno> {
        if self.nodes.contains_key(path) {
            return Ok(());
        }
        if self.nodes.len() >= limits.transaction_nodes
            || self.path_bytes + path.len() > limits.transaction_bytes
        {
            return Err(Errno::Enospc);
        }
        self.path_bytes += path.len();
        self.nodes.insert(path.into(), false);
        Ok(())
    }

    /// Notes a dependency on the list of children of a node that is noted already.
    pub fn note_children(&mut self, path: &str) {
        if let Some(children) = self.nodes.get_mut(path) {
            *children = true;
        }
    }

    /// Whether each of the nodes is the same in both trees.
    fn same_in(&self, a: &Tree, b: &Tree) -> bool {
        self.nodes.iter().all(|(path, &children)| match (a.stamp(path), b.stamp(path)) {
            (None, None) => true,
            (Some(Stamp { content: a, children: ac }), Some(Stamp { content: b, children: bc })) => {
                a == b && (!children || ac == bc)
            }
            _ => false,
        })
    }
}

/// An open transaction.
#[derive(Debug)]
pub struct Transaction {
    base: Tree,
    work: Tree,
    seen: Seen,
    edits: Vec<Edit>,
    edit_bytes: usize,
}

impl Transaction {
    /// Opens a transaction on the current tree.
    pub fn new(live: &Tree) -> Self {
        Self {
            base: live.clone(),
            work: live.clone(),
            seen: Seen::default(),
            edits: Vec::new(),
            edit_bytes: 0,
        }
    }

    /// Executes an operation on the transaction's own tree.
    pub fn with_view<R>(&mut self, caller: Caller, limits: &Limits, f: impl FnOnce(&mut View<'_>) -> R) -> R {
        let mut unheard = Vec::new();
        let Self { work, seen, .. } = self;
        f(&mut View { tree: work, caller, limits, seen: Some(seen), changes: &mut unheard })
    }

    /// Makes a change on the transaction's own tree, which the commit repeats.
    pub fn apply(&mut self, caller: Caller, limits: &Limits, edit: Edit) -> Result<(), Errno> {
        // A value that is overwritten by the next edit need not be kept.
        let replaced = self.edits.last().filter(|last| match (last, &edit) {
            (Edit::Write(before, _), Edit::Write(path, _)) => before == path,
            _ => false,
        });
        let (fewer, less_bytes) = replaced.map_or((0, 0), |last| (1, last.len_bytes()));
        let edit_bytes = self.edit_bytes - less_bytes + edit.len_bytes();
        if self.edits.len() - fewer >= limits.transaction_nodes || edit_bytes > limits.transaction_bytes {
            return Err(Errno::Enospc);
        }
        self.with_view(caller, limits, |view| view.apply(&edit))?;
        self.edit_bytes = edit_bytes;
        self.edits.truncate(self.edits.len() - fewer);
        self.edits.push(edit);
        Ok(())
    }

    /// Makes the changes on the live tree, all or none, and returns the changes for watches.
    ///
    /// # Errors
    ///
    /// `EAGAIN` on a conflict; `ENOSPC` if the domain's quota was exceeded meanwhile.
    pub fn commit(self, live: &mut Tree, caller: Caller, limits: &Limits) -> Result<Vec<Change>, Errno> {
        if !self.seen.same_in(&self.base, live) {
            return Err(Errno::Eagain);
        }
        let mut next = live.clone();
        let mut changes = Vec::new();
        let mut view = View { tree: &mut next, caller, limits, seen: None, changes: &mut changes };
        for edit in &self.edits {
            view.apply(edit)?;
        }
        // Nodes that were created and removed within the transaction were never visible.
        changes.retain_mut(|change| {
            let seen = live.nearest(&change.path).0.max(next.nearest(&change.path).0);
            match &mut change.kind {
                _ if seen == change.path.len() => true,
                // Some of its ancestors exist already.
                ChangeKind::Made { top, last } if seen >= *top => {
                    *last = false;
                    change.path = change.path[..seen].into();
                    true
                }
                _ => false,
            }
        });
        *live = next;
        Ok(changes)
    }
}
