//! The tree of nodes. Nodes are shared, so a snapshot costs one pointer.
//!
//! ```text
//!  live ──► root ──► local ──► domain ──► 7 ...         a change copies the nodes from the root down to the
//!            ▲                                           changed one, if a snapshot still holds them, and
//!  base ─────┘  (a transaction's snapshot)               leaves all others shared
//! ```
//! Each node has two generation numbers: one changes with its value and permissions, the other with
//! the list of its children. A number is never reused, so an equal number means an unchanged node,
//! and a node that was removed and created again differs. Transactions compare them.
//!
//! Nodes are counted per owner here, so that the count always belongs to this very tree, also for
//! snapshots.
//!
//! Paths may be 1500 levels deep, so nothing here is recursive, including drop.

use pregrant::DomId;
use pregrant::xenstore::path;
use pregrant::xenstore::permission::Permission;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The permissions of a node. Most nodes share those of their parent.
pub type Perms = Arc<[Permission]>;

/// A node, with a value and children.
#[derive(Clone, Debug)]
pub struct Node {
    /// The value, which may be any bytes.
    pub value: Vec<u8>,
    /// The permissions; never empty.
    pub perms: Perms,
    /// Changes with the value and the permissions.
    generation: u64,
    /// Changes with the list of children.
    children_generation: u64,
    children: BTreeMap<Arc<str>, Arc<Node>>,
}

impl Node {
    /// The domain that owns the node, and whose quota counts it.
    pub fn owner(&self) -> DomId {
        self.perms.first().map_or(DomId(0), |p| p.domid)
    }

    /// The names of the children, sorted.
    pub fn children(&self) -> impl Iterator<Item = &str> {
        self.children.keys().map(|name| &**name)
    }

    /// Changes with the list of children.
    pub fn children_generation(&self) -> u64 {
        self.children_generation
    }

    /// A descendant of this node, by the path from here.
    pub fn below(&self, relative: &str) -> Option<&Node> {
        path::components(relative).try_fold(self, |node, name| node.child(name))
    }

    fn child(&self, name: &str) -> Option<&Node> {
        step();
        self.children.get(name).map(|child| &**child)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A chain of a thousand nodes must not use a thousand stack frames.
        let mut doomed: Vec<_> = core::mem::take(&mut self.children).into_values().collect();
        while let Some(node) = doomed.pop() {
            if let Some(mut node) = Arc::into_inner(node) {
                doomed.extend(core::mem::take(&mut node.children).into_values());
            }
        }
    }
}

/// The two generation numbers of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Number of the last change of value or permissions.
    pub content: u64,
    /// Number of the last change of the list of children.
    pub children: u64,
}

/// A tree of nodes. A clone is a snapshot.
#[derive(Clone, Debug)]
pub struct Tree {
    root: Arc<Node>,
    last_generation: u64,
    owned: Arc<BTreeMap<DomId, usize>>,
}

impl Tree {
    /// A tree with only a root, which domain 0 owns and all may read.
    pub fn new(root_perms: Perms) -> Self {
        let root = Node {
            value: vec![],
            perms: root_perms,
            generation: 0,
            children_generation: 0,
            children: BTreeMap::new(),
        };
        let owned = Arc::new(BTreeMap::from([(root.owner(), 1)]));
        Self { root: Arc::new(root), last_generation: 0, owned }
    }

    /// The node at an absolute path.
    pub fn get(&self, path: &str) -> Option<&Node> {
        self.root.below(path)
    }

    /// The node at an absolute path, or else its nearest ancestor that exists, and the number of
    /// bytes of the path that name it.
    pub fn nearest(&self, path: &str) -> (usize, &Node) {
        let (mut bytes, mut node) = (0, &*self.root);
        for name in path::components(path) {
            let Some(child) = node.child(name) else { break };
            (bytes, node) = (bytes + 1 + name.len(), child);
        }
        // The root's own name is a slash.
        (bytes.max(1), node)
    }

    /// A value that differs if the node has changed. `None`: the node does not exist.
    pub fn stamp(&self, path: &str) -> Option<Stamp> {
        self.get(path).map(|n| Stamp { content: n.generation, children: n.children_generation })
    }

    /// Number of nodes that a domain owns.
    pub fn owned_by(&self, domid: DomId) -> usize {
        self.owned.get(&domid).copied().unwrap_or(0)
    }

    /// Changes a node's value. Does nothing if the node does not exist.
    pub fn set_value(&mut self, path: &str, value: &[u8]) {
        let generation = self.next_generation();
        if let Some(node) = Self::node_mut(&mut self.root, path) {
            node.value = value.to_vec();
            node.generation = generation;
        }
    }

    /// Changes a node's permissions. Does nothing if the node does not exist.
    pub fn set_perms(&mut self, path: &str, perms: Perms) {
        let generation = self.next_generation();
        if let Some(node) = Self::node_mut(&mut self.root, path) {
            let before = node.owner();
            node.perms = perms;
            node.generation = generation;
            let after = node.owner();
            self.uncount(before, 1);
            *Arc::make_mut(&mut self.owned).entry(after).or_default() += 1;
        }
    }

    /// Creates or replaces a node. Does nothing without its parent.
    pub fn insert(&mut self, path: &str, value: &[u8], perms: Perms) {
        let Some(above) = path::parent(path) else { return };
        let generation = self.next_generation();
        self.remove(path);
        let Some(parent) = Self::node_mut(&mut self.root, above) else { return };
        let node = Node {
            value: value.to_vec(),
            perms,
            generation,
            children_generation: generation,
            children: BTreeMap::new(),
        };
        let owner = node.owner();
        parent.children.insert(path::base_name(path).into(), Arc::new(node));
        parent.children_generation = generation;
        *Arc::make_mut(&mut self.owned).entry(owner).or_default() += 1;
    }

    /// Creates a node and its missing ancestors, all with these permissions. Does nothing if the
    /// node exists.
    ///
    /// It walks down once, so a path of a thousand nodes costs a thousand steps and not their
    /// square.
    pub fn insert_all(&mut self, path: &str, value: &[u8], perms: &Perms) {
        let (there, _) = self.nearest(path);
        let missing: Vec<&str> = path::components(&path[there..]).collect();
        let Some((&top, below)) = missing.split_first() else { return };
        let generation = self.next_generation();
        let Some(parent) = Self::node_mut(&mut self.root, &path[..there]) else { return };
        let node = |value: &[u8], children| Node {
            value: value.to_vec(),
            perms: perms.clone(),
            generation,
            children_generation: generation,
            children,
        };
        let mut made = node(value, BTreeMap::new());
        for &name in below.iter().rev() {
            made = node(b"", BTreeMap::from([(name.into(), Arc::new(made))]));
        }
        let owner = made.owner();
        parent.children.insert(top.into(), Arc::new(made));
        parent.children_generation = generation;
        *Arc::make_mut(&mut self.owned).entry(owner).or_default() += missing.len();
    }

    /// Removes a node with all below it, and returns it. The root stays.
    pub fn remove(&mut self, path: &str) -> Option<Arc<Node>> {
        self.get(path)?;
        let above = path::parent(path)?;
        let generation = self.next_generation();
        let parent = Self::node_mut(&mut self.root, above)?;
        let removed = parent.children.remove(path::base_name(path))?;
        parent.children_generation = generation;
        let mut stack = vec![&*removed];
        while let Some(node) = stack.pop() {
            self.uncount(node.owner(), 1);
            stack.extend(node.children.values().map(|c| &**c));
        }
        Some(removed)
    }

    /// The paths of all nodes for which `test` holds.
    pub fn find(&self, test: impl Fn(&Node) -> bool) -> Vec<String> {
        let mut found = vec![];
        let mut stack = vec![(String::from("/"), &*self.root)];
        while let Some((at, node)) = stack.pop() {
            for (name, child) in &node.children {
                stack.push((path::join(&at, name), child));
            }
            if test(node) {
                found.push(at);
            }
        }
        found
    }

    /// Counts all nodes per owner again, and compares with the counts that were kept.
    pub fn counts_are_right(&self) -> bool {
        let mut counted: BTreeMap<DomId, usize> = BTreeMap::new();
        let mut stack = vec![&*self.root];
        while let Some(node) = stack.pop() {
            *counted.entry(node.owner()).or_default() += 1;
            stack.extend(node.children.values().map(|c| &**c));
        }
        counted == *self.owned
    }

    fn next_generation(&mut self) -> u64 {
        self.last_generation += 1;
        self.last_generation
    }

    fn uncount(&mut self, owner: DomId, by: usize) {
        let owned = Arc::make_mut(&mut self.owned);
        if let Some(count) = owned.get_mut(&owner) {
            *count -= by.min(*count);
            if *count == 0 {
                owned.remove(&owner);
            }
        }
    }

    /// Returns a node to be changed: nodes on the way that are shared with a snapshot are copied.
    fn node_mut<'a>(root: &'a mut Arc<Node>, path: &str) -> Option<&'a mut Node> {
        // Check first: a path to no node must not copy anything.
        root.below(path)?;
        let mut node = Arc::make_mut(root);
        for name in path::components(path) {
            step();
            node = Arc::make_mut(node.children.get_mut(name)?);
        }
        Some(node)
    }
}

/// Counts one lookup of a node, or of the watches on one. Tests bound the cost of requests by it.
#[inline(always)]
pub(super) fn step() {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

#[cfg(test)]
std::thread_local! {
    /// Number of [`step`]s of this thread so far.
    pub(super) static STEPS: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use pregrant::xenstore::permission::Access;

    fn owned(domid: u16) -> Perms {
        [Permission::new(Access::None, DomId(domid))].into()
    }

    #[test]
    fn a_snapshot_does_not_see_later_changes() {
        let mut live = Tree::new(owned(0));
        live.insert("/a", b"1", owned(0));
        live.insert("/a/b", b"2", owned(3));
        let base = live.clone();
        live.set_value("/a/b", b"changed");
        live.insert("/a/c", b"", owned(0));
        live.remove("/a/b");
        assert_eq!(base.get("/a/b").unwrap().value, b"2");
        assert!(base.get("/a/c").is_none());
        assert_eq!((base.owned_by(DomId(3)), live.owned_by(DomId(3))), (1, 0));
        assert!(base.counts_are_right() && live.counts_are_right());
    }

    #[test]
    fn unchanged_nodes_keep_their_stamps_and_recreated_ones_do_not() {
        let mut tree = Tree::new(owned(0));
        tree.insert("/a", b"1", owned(0));
        tree.insert("/b", b"1", owned(0));
        let (a, b) = (tree.stamp("/a"), tree.stamp("/b"));
        tree.remove("/a");
        tree.insert("/a", b"1", owned(0));
        assert_ne!(tree.stamp("/a"), a);
        assert_eq!(tree.stamp("/b"), b);
        tree.insert("/b/c", b"", owned(0));
        let after = tree.stamp("/b").unwrap();
        assert_eq!(after.content, b.unwrap().content, "a child is not content");
        assert_ne!(after.children, b.unwrap().children);
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn the_deepest_legal_path_is_dropped_without_recursion() {
        let mut tree = Tree::new(owned(0));
        let mut at = String::new();
        while at.len() + 2 <= pregrant::wire::xs::ABS_PATH_MAX {
            at.push_str("/x");
            tree.insert(&at, b"", owned(1));
        }
        assert_eq!(tree.owned_by(DomId(1)), pregrant::wire::xs::ABS_PATH_MAX / 2);
        let snapshot = tree.clone();
        drop(tree.remove("/x"));
        assert_eq!(tree.owned_by(DomId(1)), 0);
        drop(tree);
        assert!(snapshot.get(&at).is_some());
    }

    #[test]
    fn nodes_made_at_once_are_as_if_made_one_by_one() {
        let mut tree = Tree::new(owned(0));
        tree.insert("/a", b"1", owned(0));
        let (snapshot, before) = (tree.clone(), tree.stamp("/a").unwrap());
        tree.insert_all("/a/b/c/d", b"2", &owned(7));
        assert_eq!(tree.nearest("/a/b/c/x/y").0, "/a/b/c".len());
        assert_eq!((tree.nearest("/").0, tree.nearest("/x").0), (1, 1));
        assert_eq!(
            (tree.get("/a/b/c/d").unwrap().value.len(), tree.get("/a/b").unwrap().value.len()),
            (1, 0)
        );
        assert_eq!((tree.owned_by(DomId(7)), snapshot.owned_by(DomId(7))), (3, 0));
        let after = tree.stamp("/a").unwrap();
        assert_eq!((after.content, after.children > before.children), (before.content, true));
        tree.insert_all("/a/b", b"3", &owned(7));
        assert!(tree.get("/a/b").unwrap().value.is_empty() && tree.get("/a/b/c/d").is_some());
        tree.insert_all("/x", b"4", &owned(7));
        assert!(snapshot.get("/a/b").is_none() && snapshot.get("/x").is_none());
        assert!(tree.counts_are_right() && snapshot.counts_are_right());
    }

    #[test]
    fn the_root_stays_and_orphans_are_not_made() {
        let mut tree = Tree::new(owned(0));
        assert!(tree.remove("/").is_none());
        tree.insert("/no/parent", b"", owned(5));
        assert_eq!(tree.owned_by(DomId(5)), 0);
        assert!(tree.counts_are_right());
    }
}
