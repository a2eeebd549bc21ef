//! The model's nodes, a flat map by absolute path, and the effect of each request on them.

use super::{Reply, err, ok};
use pregrant_xenstored::Limits;
use std::collections::BTreeMap;

/// An entry of a node's permissions: the letter of the access (`n`, `r`, `w` or `b`), and the
/// domain.
pub(super) type Perm = (char, u16);
/// All nodes by absolute path, including `/`.
pub(super) type Tree = BTreeMap<String, Node>;
/// The nodes on which the result of a transaction depends, by path. True: it depends on the list of
/// the node's children, too.
pub(super) type Seen = BTreeMap<String, bool>;

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Node {
    pub(super) value: Vec<u8>,
    pub(super) perms: Vec<Perm>,
    /// Time, by the model's clock, at which the node was last created, written, or given
    /// permissions.
    pub(super) changed: u64,
    /// Time, by the model's clock, at which a child was last added or removed.
    pub(super) children_changed: u64,
}

impl Node {
    pub(super) fn owner(&self) -> u16 {
        self.perms[0].1
    }
}

#[derive(Clone, Debug)]
pub enum NodeOp {
    Read,
    Directory,
    GetPerms,
    Write(Vec<u8>),
    Mkdir,
    Rm,
    SetPerms(Vec<Perm>),
}

impl NodeOp {
    pub(super) fn is_edit(&self) -> bool {
        !matches!(self, Self::Read | Self::Directory | Self::GetPerms)
    }
}

/// A change of a node, of which watchers are notified that may read by at least one of the lists in
/// `readers`.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) path: String,
    /// True if the node was created because a node below it was.
    pub(super) above: bool,
    /// The node with everything below it, if it was removed.
    pub(super) removed: Tree,
    pub(super) readers: Vec<Vec<Perm>>,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Caller {
    pub(super) domid: u16,
    pub(super) target: Option<u16>,
    pub(super) limits: Limits,
}

impl Caller {
    fn owns(&self, perms: &[Perm]) -> bool {
        self.domid == 0 || self.domid == perms[0].1 || self.target == Some(perms[0].1)
    }

    fn has(&self, letters: &str, perms: &[Perm]) -> bool {
        let letter = |domid: u16| perms[1..].iter().find(|p| p.1 == domid).unwrap_or(&perms[0]).0;
        let one_has = |domid: u16| letters.contains(letter(domid));
        self.owns(perms) || one_has(self.domid) || self.target.is_some_and(one_has)
    }

    pub(super) fn reads(&self, perms: &[Perm]) -> bool {
        self.has("rb", perms)
    }

    pub(super) fn writes(&self, perms: &[Perm]) -> bool {
        self.has("wb", perms)
    }
}

pub(super) fn parent(path: &str) -> Option<&str> {
    match path.rfind('/') {
        _ if path == "/" => None,
        Some(0) => Some("/"),
        at => at.map(|at| &path[..at]),
    }
}

pub(super) fn levels_below(path: &str, top: &str) -> Option<usize> {
    let mut at = path;
    let mut levels = 0;
    while at != top {
        at = parent(at)?;
        levels += 1;
    }
    Some(levels)
}

pub(super) fn perms_to_bytes(perms: &[Perm]) -> Vec<u8> {
    perms.iter().map(|(letter, domid)| format!("{letter}{domid}\0")).collect::<String>().into_bytes()
}

pub(super) fn insert(tree: &mut Tree, clock: &mut u64, path: &str, value: &[u8], perms: Vec<Perm>) {
    *clock += 1;
    if let Some(above) = parent(path).and_then(|above| tree.get_mut(above)) {
        above.children_changed = *clock;
    }
    let node = Node { value: value.to_vec(), perms, changed: *clock, children_changed: *clock };
    tree.insert(path.into(), node);
}

/// Removes an existing node, with everything below it.
pub(super) fn remove(tree: &mut Tree, clock: &mut u64, path: &str) -> Change {
    *clock += 1;
    let above = parent(path).and_then(|above| tree.get_mut(above)).unwrap();
    above.children_changed = *clock;
    let readers = vec![above.perms.clone(), tree[path].perms.clone()];
    let (mut kept, mut removed) = (Tree::new(), Tree::new());
    for (at, node) in std::mem::take(tree) {
        let goes = levels_below(&at, path).is_some();
        if goes { &mut removed } else { &mut kept }.insert(at, node);
    }
    *tree = kept;
    Change { path: path.into(), above: false, removed, readers }
}

/// Executes an operation on a node. Adds the nodes on which its result depends to `seen`, and its
/// changes to `changes`.
pub(super) fn apply(
    tree: &mut Tree,
    clock: &mut u64,
    caller: &Caller,
    seen: &mut Seen,
    path: &str,
    op: &NodeOp,
    changes: &mut Vec<Change>,
) -> Reply {
    if matches!(op, NodeOp::Rm) && path == "/" {
        return err("EINVAL");
    }
    if matches!(op, NodeOp::Write(value) if value.len() > caller.limits.value_bytes) {
        return err("ENOSPC");
    }
    let mut nearest = path;
    let mut missing = vec![];
    seen.entry(path.into()).or_default();
    while !tree.contains_key(nearest) {
        missing.push(nearest.to_string());
        nearest = parent(nearest).unwrap();
        seen.entry(nearest.into()).or_default();
    }
    let perms = tree[nearest].perms.clone();
    let exists = missing.is_empty();
    let allowed = match op {
        NodeOp::Read | NodeOp::Directory | NodeOp::GetPerms => caller.reads(&perms),
        NodeOp::Write(_) | NodeOp::Mkdir | NodeOp::Rm => caller.writes(&perms),
        // Who may see that there is none may know it.
        NodeOp::SetPerms(_) => {
            if exists {
                caller.owns(&perms)
            } else {
                caller.reads(&perms)
            }
        }
    };
    if !allowed {
        return err("EACCES");
    }
    let readers_of = |tree: &Tree, path: &str| {
        let lists = [Some(path), parent(path)].into_iter().flatten();
        lists.map(|p| tree[p].perms.clone()).collect::<Vec<_>>()
    };
    match op {
        NodeOp::Write(_) | NodeOp::Mkdir if !exists => {
            let mut inherited = perms;
            if caller.domid != 0 {
                inherited[0].1 = caller.domid;
            }
            let owned = tree.values().filter(|n| n.owner() == inherited[0].1).count();
            if owned.saturating_add(missing.len()) > caller.limits.nodes {
                return err("ENOSPC");
            }
            for at in missing.iter().rev() {
                let value = match op {
                    NodeOp::Write(value) if at == path => &value[..],
                    _ => b"",
                };
                insert(tree, clock, at, value, inherited.clone());
                let readers = readers_of(tree, at);
                changes.push(Change { path: at.clone(), above: at != path, removed: Tree::new(), readers });
            }
            ok()
        }
        NodeOp::Rm if missing.len() == 1 => ok(),
        _ if !exists => err("ENOENT"),
        NodeOp::Read => Ok(tree[path].value.clone()),
        NodeOp::GetPerms => Ok(perms_to_bytes(&perms)),
        NodeOp::Directory => {
            seen.insert(path.into(), true);
            let children = tree.keys().filter(|p| parent(p) == Some(path));
            Ok(children
                .map(|p| format!("{}\0", &p[p.rfind('/').unwrap() + 1..]))
                .collect::<String>()
                .into_bytes())
        }
        NodeOp::Mkdir => ok(),
        NodeOp::Rm => {
            changes.push(remove(tree, clock, path));
            ok()
        }
        NodeOp::Write(value) => {
            *clock += 1;
            let node = tree.get_mut(path).unwrap();
            (node.value, node.changed) = (value.clone(), *clock);
            let readers = readers_of(tree, path);
            changes.push(Change { path: path.into(), above: false, removed: Tree::new(), readers });
            ok()
        }
        NodeOp::SetPerms(new) => {
            if new.len() > caller.limits.perms {
                return err("ENOSPC");
            }
            if caller.domid != 0 && new[0].1 != perms[0].1 {
                return err("EPERM");
            }
            *clock += 1;
            let node = tree.get_mut(path).unwrap();
            (node.perms, node.changed) = (new.clone(), *clock);
            let mut readers = readers_of(tree, path);
            readers.push(perms);
            changes.push(Change { path: path.into(), above: false, removed: Tree::new(), readers });
            ok()
        }
    }
}
