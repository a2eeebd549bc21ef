//! The tree as one caller may see and change it: each operation with its permission and quota
//! checks.
//!
//! The same code serves three times: on the live tree, on a transaction's own tree, where it also
//! notes what the outcome depended on, and at the commit, when the transaction's changes are made
//! on the live tree.

use super::permission::{Caller, Need};
use super::quota::Limits;
use super::transaction::Seen;
use super::tree::{Node, Perms, Tree};
use pregrant::wire::xs::Errno;
use pregrant::xenstore::path;
use std::sync::Arc;

/// A change that a caller asks for. Paths are absolute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Edit {
    /// Set a value; make the node and those above it that are missing.
    Write(String, Vec<u8>),
    /// Make a node, and those above it that are missing.
    Mkdir(String),
    /// Remove a node and all below it.
    Rm(String),
    /// Replace the list of permissions.
    SetPerms(String, Perms),
}

impl Edit {
    /// Bytes that it takes to remember it.
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Write(path, value) => path.len() + value.len(),
            Self::Mkdir(path) | Self::Rm(path) => path.len(),
            Self::SetPerms(path, perms) => path.len() + size_of_val(&**perms),
        }
    }
}

/// A change that was made, for those who watch.
#[derive(Debug)]
pub struct Change {
    /// The node.
    pub path: Arc<str>,
    /// The kind of change.
    pub kind: ChangeKind,
    /// Lists of permissions. One of them must let a watcher read, or it gets no event: the node's
    /// own, that of the node above, and the node's own of before. Of nodes that are new, their own,
    /// which is one, and that of the node above the topmost.
    pub readers: [Option<Perms>; 3],
}

/// See [`Change::kind`].
#[derive(Debug)]
pub enum ChangeKind {
    /// The node has a new value, new permissions, or is new.
    Node,
    /// The node is new, and with it those above it, up to the one that these bytes of its path
    /// name. One change for all of them: a thousand paths of one chain would be the square of its
    /// length.
    Made {
        /// Bytes of the topmost new node's path.
        top: usize,
        /// Whether the node is reported as itself, and not as one above another.
        last: bool,
    },
    /// The node is gone, with all below it.
    Removed(Arc<Node>),
}

/// A tree in the eyes of a caller.
pub struct View<'a> {
    /// The nodes.
    pub tree: &'a mut Tree,
    /// The caller.
    pub caller: Caller,
    /// The caller's limits.
    pub limits: &'a Limits,
    /// Where to note what the outcome depends on, in a transaction.
    pub seen: Option<&'a mut Seen>,
    /// Where to note the changes made.
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

    /// The names of a node's children, each with a NUL, and the list's generation.
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

    /// Makes a change, all of it or none.
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
            // Removing what is not there is no error, where it could be.
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
        // A node cannot be given away: it would use up another domain's quota.
        if !self.caller.is_privileged() && before.first().map(|p| p.domid) != Some(new_owner) {
            return Err(Errno::Eperm);
        }
        self.tree.set_perms(path, perms.clone());
        // A reader until now learns that this is over.
        self.changed(path, ChangeKind::Node, Some(before));
        Ok(())
    }

    /// Makes the node, and those above that are missing, after [`View::find`] said that the caller
    /// may.
    fn create(&mut self, path: &str, value: &[u8]) -> Result<(), Errno> {
        let (there, above) = self.tree.nearest(path);
        let above = above.perms.clone();
        let perms = self.caller.inherit(&above);
        let owner = perms.first().map_or(self.caller.domid, |p| p.domid);
        let Some(first) = path::components(&path[there..]).next() else { return Err(Errno::Einval) };
        // Nodes that domain 0 makes below a guest's node count for the guest and are not refused: a
        // toolstack must always get through.
        let missing = path::components(&path[there..]).count();
        if self.tree.owned_by(owner).saturating_add(missing) > self.limits.nodes {
            return Err(Errno::Enospc);
        }
        // Below the root no slash is between.
        let top = if there == 1 { 0 } else { there } + 1 + first.len();
        self.tree.insert_all(path, value, &perms);
        let readers = [Some(perms), Some(above), None];
        self.changes.push(Change { path: path.into(), kind: ChangeKind::Made { top, last: true }, readers });
        Ok(())
    }

    /// The node, if the caller may do that with it. Where there is none, the nearest node above
    /// decides whether the caller may know so.
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
        // "Own" of a missing node needs no more than seeing that it is missing.
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
