//! Watches: which client gets an event for a change, and the events that wait to be read.
//!
//! ```text
//!   change at /local/domain/7/device/vif/0/state
//!     -> watches on that node and on each node above it      (found by the path, cut shorter and shorter)
//!     -> when a node is removed with all below it: watches on removed nodes too, each with its own path
//! ```
//! What a client may do: set very many watches (a quota), and never read its events. Equal events
//! are merged, and beyond a limit a watch's events are replaced by one that names the watched node.
//! As a watch only ever means "check again", nothing is lost (XSA-349).

use super::ConnId;
use super::quota::Limits;
use super::tree::step;
use super::view::{Change, ChangeKind};
use pregrant::wire::xs::{ABS_PATH_MAX, Errno, PAYLOAD_MAX};
use pregrant::xenstore::path;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The longest token: with the longest path it still fits in one message.
pub const TOKEN_MAX: usize = PAYLOAD_MAX - ABS_PATH_MAX - 2;

/// A watch of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Watch {
    /// The node's absolute path, or a special path.
    pub path: Arc<str>,
    /// The name that the client chose.
    pub token: Vec<u8>,
    /// Number of bytes that events omit at the start of a path: those of the home, if the watch is
    /// relative.
    pub relative_to_bytes: usize,
    /// Number of levels below the node that are watched; `None`: all.
    pub depth: Option<usize>,
}

/// The identity of a watch: its connection, and a serial number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct WatchKey {
    /// The watch's connection.
    pub conn: ConnId,
    number: u64,
}

/// All watches of all connections.
#[derive(Default, Debug)]
pub struct Watches {
    watches: BTreeMap<WatchKey, Watch>,
    by_path: BTreeMap<Arc<str>, BTreeSet<WatchKey>>,
    last_number: u64,
}

impl Watches {
    /// Sets a watch.
    ///
    /// # Errors
    ///
    /// `EEXIST`: the connection has a watch with the same path and token; `E2BIG`: the token is too
    /// long.
    pub fn add(&mut self, conn: ConnId, watch: Watch) -> Result<WatchKey, Errno> {
        if watch.token.len() > TOKEN_MAX {
            return Err(Errno::E2big);
        }
        if self.find(conn, &watch.path, &watch.token).is_some() {
            return Err(Errno::Eexist);
        }
        self.last_number += 1;
        let key = WatchKey { conn, number: self.last_number };
        self.by_path.entry(watch.path.clone()).or_default().insert(key);
        self.watches.insert(key, watch);
        Ok(key)
    }

    /// Ends a watch.
    pub fn remove(&mut self, conn: ConnId, path: &str, token: &[u8]) -> Option<WatchKey> {
        let key = self.find(conn, path, token)?;
        self.forget(key);
        Some(key)
    }

    /// Ends all of a connection's watches, and returns how many there were.
    pub fn remove_all(&mut self, conn: ConnId) -> usize {
        let keys: Vec<_> = self.range(conn).collect();
        keys.iter().for_each(|&key| self.forget(key));
        keys.len()
    }

    /// The watch with this key.
    pub fn get(&self, key: WatchKey) -> Option<&Watch> {
        self.watches.get(&key)
    }

    /// The watches that a change fires, each with the path for its event.
    pub fn matching(&self, change: &Change) -> Vec<(WatchKey, Arc<str>)> {
        let mut found = vec![];
        // For each watched node: how many levels it is above the changed one, and its watches.
        let mut watching = vec![];
        for (levels, at) in path::self_and_ancestors(&change.path).enumerate() {
            step();
            for &key in self.by_path.get(at).into_iter().flatten() {
                watching.push((levels, key, self.watches.get(&key).and_then(|w| w.depth)));
            }
        }
        if let ChangeKind::Made { top, last } = change.kind {
            // The last new node stands for its ancestors; only watches that do not reach it need
            // those.
            watching_with_depth(&watching, &change.path, (top, last), &mut found);
        }
        if !matches!(change.kind, ChangeKind::Made { last: false, .. }) {
            let wanted = watching.iter().filter(|(levels, _, depth)| depth.is_none_or(|d| *levels <= d));
            found.extend(wanted.map(|&(_, key, _)| (key, change.path.clone())));
        }
        if let ChangeKind::Removed(node) = &change.kind {
            let prefix = path::join(&change.path, "x");
            let prefix = &prefix[..prefix.len() - 1];
            let below = self
                .by_path
                .range::<str, _>((core::ops::Bound::Excluded(prefix), core::ops::Bound::Unbounded));
            for (at, keys) in below.take_while(|(at, _)| at.starts_with(prefix)) {
                if node.below(&at[prefix.len()..]).is_some() {
                    found.extend(keys.iter().map(|&key| (key, at.clone())));
                }
            }
        }
        found
    }

    /// The watches on exactly this path.
    pub fn on(&self, path: &str) -> impl Iterator<Item = WatchKey> {
        self.by_path.get(path).into_iter().flatten().copied()
    }

    fn range(&self, conn: ConnId) -> impl Iterator<Item = WatchKey> {
        self.watches
            .range(WatchKey { conn, number: 0 }..=WatchKey { conn, number: u64::MAX })
            .map(|(&k, _)| k)
    }

    fn find(&self, conn: ConnId, path: &str, token: &[u8]) -> Option<WatchKey> {
        let of_conn = WatchKey { conn, number: 0 }..=WatchKey { conn, number: u64::MAX };
        let same = |key: &WatchKey| self.get(*key).is_some_and(|w| w.token == token);
        self.by_path.get(path)?.range(of_conn).copied().find(same)
    }

    fn forget(&mut self, key: WatchKey) {
        let Some(watch) = self.watches.remove(&key) else { return };
        if let Some(keys) = self.by_path.get_mut(&watch.path) {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_path.remove(&watch.path);
            }
        }
    }
}

/// Adds the events for the ancestors of the last new node, from the topmost down, for watches with
/// a depth that reaches them. Without `last` it adds those for the last new node, too, which the
/// caller then does not add.
fn watching_with_depth(
    watching: &[(usize, WatchKey, Option<usize>)],
    path: &str,
    (top, last): (usize, bool),
    found: &mut Vec<(WatchKey, Arc<str>)>,
) {
    if watching.iter().all(|(.., depth)| depth.is_none()) {
        return;
    }
    let made: Vec<_> =
        path::self_and_ancestors(path).enumerate().take_while(|(_, at)| at.len() >= top).collect();
    for &(below, at) in made.iter().rev().filter(|(below, _)| *below > 0 || !last) {
        let reaches = |&&(levels, _, depth): &&(usize, WatchKey, Option<usize>)| {
            levels >= below && depth.is_some_and(|d| levels - below <= d)
        };
        let mut wanted = watching.iter().filter(reaches).peekable();
        if wanted.peek().is_some() {
            let at: Arc<str> = at.into();
            found.extend(wanted.map(|&(_, key, _)| (key, at.clone())));
        }
    }
}

/// An event: its watch, and the path that changed.
type Event = (WatchKey, Arc<str>);

/// Events that wait for one connection: never two equal ones, and never more than a limit plus one
/// per watch.
#[derive(Default, Debug)]
pub struct PendingEvents {
    queue: VecDeque<Event>,
    waiting: BTreeSet<Event>,
    path_bytes: usize,
}

impl PendingEvents {
    /// Adds an event for a watch; `watched` is the watch's own path.
    pub fn push(&mut self, key: WatchKey, path: &Arc<str>, watched: &Arc<str>, limits: &Limits) {
        let fits = self.queue.len() < limits.pending_events
            && self.path_bytes.saturating_add(path.len()) <= limits.pending_bytes;
        let event = (key, if fits { path } else { watched }.clone());
        if self.waiting.insert(event.clone()) {
            self.path_bytes += event.1.len();
            self.queue.push_back(event);
        }
    }

    /// Removes and returns the oldest event.
    pub fn pop(&mut self) -> Option<Event> {
        let event = self.queue.pop_front()?;
        self.waiting.remove(&event);
        self.path_bytes -= event.1.len();
        Some(event)
    }

    /// Drops the events of a watch that has ended.
    pub fn forget(&mut self, key: WatchKey) {
        self.queue.retain(|(k, _)| *k != key);
        self.waiting.retain(|(k, _)| *k != key);
        self.path_bytes = self.queue.iter().map(|(_, path)| path.len()).sum();
    }

    /// Drops all events.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether no event is waiting.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
