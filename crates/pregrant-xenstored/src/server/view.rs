//! The tree as one caller may see and change it: each operation with its checks of permissions and
//! quotas.
//!
//! The same code serves three times: on the live tree; on a transaction's own tree, where it also
//! notes what the outcome depended on; and at the commit, which repeats the transaction's changes
//! on the live tree.

use super::permission::{Caller, Need};
use super::quota::Limits;
use super::transaction::Seen;
use super::tree::{Node, Perms, Tree};
use pregrant::wire::xs::Errno;
use pregrant::xenstore::path;
use std::sync::Arc;

/// A change that a caller requests. Paths are absolute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Edit {
    /// Sets a value, and creates the node and its missing ancestors.
    Write(String, Vec<u8>),
    /// Creates a node and its missing ancestors.
    Mkdir(String),
    /// Removes a node and all below it.
    Rm(String),
    /// Replaces the permissions.
    SetPerms(String, Perms),
}

impl Edit {
    /// Number of bytes that the change takes when it is stored.
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Write(path, value) => path.len() + value.len(),
            Self::Mkdir(path) | Self::Rm(path) => path.len(),
            Self::SetPerms(path, perms) => path.len() + size_of_val(&**perms),
        }
    }
}

/// A change that was made, for watches.
#[derive(Debug)]
pub struct Change {
    /// The path of the node.
    pub path: Arc<str>,
    /// The kind of change.
    pub kind: ChangeKind,
    /// Permissions, one of which must let a watcher read for it to get an event: those of the node,
    /// of its parent, and of the node before the change. For new nodes: their own, which are all
    /// the same, and those of the topmost one's parent.
    pub readers: [Option<Perms>; 3],
}

/// The kind of a [`Change`].
#[derive(Debug)]
pub enum ChangeKind {
    /// The node has a new value or new permissions, or is new.
    Node,
    /// The node is new, and so are its ancestors down from the one that the first `top` bytes of
    /// its path name. This is one change for all of them, because the paths of a chain of a
    /// thousand nodes would take the square of its length.
    Made {
        /// Bytes of the topmost new node's path.
        top: usize,
        /// Whether the node itself is reported too, and not only its ancestors.
        last: bool,
    },
    /// The node was removed, with all below it.
    Removed(Arc<Node>),
}

/// A tree as one caller sees it.
pub struct View<'a> {
    /// The nodes.
    pub tree: &'a mut Tree,
    /// The caller.
    pub caller: Caller,
    /// The caller's limits.
    pub limits: &'a Limits,
    /// In a transaction: records the nodes on which its outcome depends.
    pub seen: Option<&'a mut Seen>,
    /// The list to which each change that is made is added.
    pub changes: &'a mut Vec<Change>,
}

impl View<'_> {
    /// The value of a node.
    pub fn read(&mut self, path: &str) -> Result<Vec<u8>, Errno> {
        Ok(self.find(path, Need::Read)?.value.clone())
    }

    /// The permissions of a node.
    pub fn perms(&mut self, path: &str) -> Result<Perms, Errno> {
        Ok(self.find(path, Need::Read)?.perms.clone())
    }

    /// The names of a node's children, each with a NUL, and the list's generation number.
    pub fn directory(&mut self, path: &str) -> Result<(Vec<u8>, u64), Errno> {
        self.find(path, Need::Read)?;
        if let Some(seen) = &mut self.seen {
            seen.note_children(path);
        }
        let node = self.tree.get(path).ok_or(Errno::Enoent)?;
        let mut names = vec![];
        for name in node.children() {
            names.extend_from_slice(name.as_bytes());
            names.push(0);
        }
        Ok((names, node.children_generation()))
    }

    /// Makes a change completely, or not at all.
    pub fn apply(&mut self, edit: &Edit) -> Result<(), Errno> {
        match edit {
            Edit::Write(path, value) => self.write(path, value),
            Edit::Mkdir(path) => self.mkdir(path),
            Edit::Rm(path) => self.rm(path),
            Edit::SetPerms(path, perms) => self.set_perms(path, perms),
        }
    }

    fn write(&mut self, path: &str, value: &[u8]) -> Result<(), Errno> {
        if value.len() > self.limits.value_bytes {
            return Err(Errno::Enospc);
        }
        match self.find(path, Need::Write) {
            Ok(_) => self.tree.set_value(path, value),
            Err(Errno::Enoent) => return self.create(path, value),
            Err(e) => return Err(e),
        }
        self.changed(path, ChangeKind::Node, None);
        Ok(())
    }

    fn mkdir(&mut self, path: &str) -> Result<(), Errno> {
        match self.find(path, Need::Write) {
            Ok(_) => Ok(()),
            Err(Errno::Enoent) => self.create(path, b""),
            Err(e) => Err(e),
        }
    }

    fn rm(&mut self, path: &str) -> Result<(), Errno> {
        let Some(above) = path::parent(path) else { return Err(Errno::Einval) };
        let readers = match self.find(path, Need::Write) {
            Ok(node) => [Some(node.perms.clone()), self.perms_of(above), None],
            // Removing a node that does not exist is no error, if it could exist.
            Err(Errno::Enoent) => {
                self.note(above)?;
                return if self.tree.get(above).is_some() { Ok(()) } else { Err(Errno::Enoent) };
            }
            Err(e) => return Err(e),
        };
        if let Some(removed) = self.tree.remove(path) {
            self.changes.push(Change { path: path.into(), kind: ChangeKind::Removed(removed), readers });
        }
        Ok(())
    }

    fn set_perms(&mut self, path: &str, perms: &Perms) -> Result<(), Errno> {
        let Some(new_owner) = perms.first().map(|p| p.domid) else { return Err(Errno::Einval) };
        let before = self.find(path, Need::Own)?.perms.clone();
        if perms.len() > self.limits.perms {
            return Err(Errno::Enospc);
        }
        // A node cannot be given away: it would use another domain's quota.
        if !self.caller.is_privileged() && before.first().map(|p| p.domid) != Some(new_owner) {
            return Err(Errno::Eperm);
        }
        self.tree.set_perms(path, perms.clone());
        // A watcher that could read the node until now is notified.
        self.changed(path, ChangeKind::Node, Some(before));
        Ok(())
    }

    /// Creates the node and its missing ancestors, after [`View::find`] has allowed it.
    fn create(&mut self, path: &str, value: &[u8]) -> Result<(), Errno> {
        let (there, above) = self.tree.nearest(path);
        let above = above.perms.clone();
        let perms = self.caller.inherit(&above);
        let owner = perms.first().map_or(self.caller.domid, |p| p.domid);
        let Some(first) = path::components(&path[there..]).next() else { return Err(Errno::Einval) };
        // Nodes that domain 0 creates below a guest's node count for the guest and are never
        // refused, so that a toolstack can always work.
        let missing = path::components(&path[there..]).count();
        if self.tree.owned_by(owner).saturating_add(missing) > self.limits.nodes {
            return Err(Errno::Enospc);
        }
        // Below the root there is no slash in between.
        let top = if there == 1 { 0 } else { there } + 1 + first.len();
        self.tree.insert_all(path, value, &perms);
        let readers = [Some(perms), Some(above), None];
        self.changes.push(Change { path: path.into(), kind: ChangeKind::Made { top, last: true }, readers });
        Ok(())
    }

    /// The node, if the caller may do this to it. If the node does not exist, its nearest ancestor
    /// decides whether the caller may know that.
    fn find(&mut self, path: &str, need: Need) -> Result<&Node, Errno> {
        self.note(path)?;
        let there = self.tree.nearest(path).0;
        if self.seen.is_some() {
            for missing in path::self_and_ancestors(path).take_while(|at| at.len() > there) {
                self.note(missing)?;
            }
            self.note(&path[..there])?;
        }
        let node = self.tree.nearest(path).1;
        let missing = there < path.len();
        // "Own" of a missing node only requires the right to see that it is missing.
        let need = if missing && need == Need::Own { Need::Read } else { need };
        match self.caller.may(need, &node.perms) {
            true if missing => Err(Errno::Enoent),
            true => Ok(node),
            false => Err(Errno::Eacces),
        }
    }

    fn note(&mut self, path: &str) -> Result<(), Errno> {
        self.seen.as_mut().map_or(Ok(()), |seen| seen.note(path, self.limits))
    }

    fn perms_of(&self, path: &str) -> Option<Perms> {
        self.tree.get(path).map(|n| n.perms.clone())
    }

    fn changed(&mut self, path: &str, kind: ChangeKind, before: Option<Perms>) {
        let above = path::parent(path).and_then(|above| self.perms_of(above));
        let readers = [self.perms_of(path), above, before];
        self.changes.push(Change { path: path.into(), kind, readers });
    }
}
