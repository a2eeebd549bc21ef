//! Paths: which are valid, and how to split them.
//!
//! ```text
//! /local/domain/7/device/vif/0/state     absolute
//!                 device/vif/0/state     relative: to the home of the domain that asks, /local/domain/7
//! @releaseDomain                         special: names an occasion, not a node
//! ```
//! Valid bytes are `A-Z a-z 0-9 - / _ @`. A path has no empty component and no slash at its end
//! (except for `/` itself), and at most 3072 bytes if absolute, 2048 if relative. A path that
//! passed [`check`] is ASCII, so cutting it anywhere is safe.

use crate::units::DomId;
use crate::wire::xs::{ABS_PATH_MAX, REL_PATH_MAX};
use alloc::format;
use alloc::string::String;
use core::fmt;

/// The two special paths: a domain appeared, a domain went away.
pub const SPECIAL: [&str; 2] = [INTRODUCE_DOMAIN, RELEASE_DOMAIN];
/// The path to watch for new domains.
pub const INTRODUCE_DOMAIN: &str = "@introduceDomain";
/// The path to watch for domains that went away.
pub const RELEASE_DOMAIN: &str = "@releaseDomain";

/// Why a path is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PathError {
    /// The path is empty.
    Empty,
    /// The path is longer than allowed.
    TooLong {
        /// Number of bytes in the path.
        len_bytes: usize,
        /// Number of bytes allowed.
        max_bytes: usize,
    },
    /// The path has a byte that paths must not have.
    BadByte {
        /// The byte.
        byte: u8,
        /// The byte's offset.
        at: usize,
    },
    /// The path has two slashes in a row.
    EmptyComponent {
        /// Offset of the second slash.
        at: usize,
    },
    /// The path ends with a slash and is not `/`.
    TrailingSlash,
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the path is empty"),
            Self::TooLong { len_bytes, max_bytes } => {
                write!(f, "the path has {len_bytes} bytes, at most {max_bytes} are allowed")
            }
            Self::BadByte { byte, at } => {
                let c = byte.escape_ascii();
                write!(f, "the path has '{c}' at position {at}; only letters, digits and - / _ @ are allowed")
            }
            Self::EmptyComponent { at } => write!(f, "the path has two slashes in a row at position {at}"),
            Self::TrailingSlash => f.write_str("the path ends with a slash; leave it out"),
        }
    }
}

impl core::error::Error for PathError {}

/// Checks whether this is a valid path of a node, absolute or relative.
pub fn check(path: &[u8]) -> Result<&str, PathError> {
    let max_bytes = if path.first() == Some(&b'/') { ABS_PATH_MAX } else { REL_PATH_MAX };
    if path.is_empty() {
        return Err(PathError::Empty);
    }
    if path.len() > max_bytes {
        return Err(PathError::TooLong { len_bytes: path.len(), max_bytes });
    }
    let legal = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'/' | b'_' | b'@');
    if let Some(at) = path.iter().position(|&c| !legal(c)) {
        return Err(PathError::BadByte { byte: path[at], at });
    }
    if let Some(at) = path.windows(2).position(|w| w == b"//") {
        return Err(PathError::EmptyComponent { at: at + 1 });
    }
    if path.len() > 1 && path.ends_with(b"/") {
        return Err(PathError::TrailingSlash);
    }
    // All bytes are ASCII here.
    core::str::from_utf8(path)
        .map_err(|e| PathError::BadByte { byte: path[e.valid_up_to()], at: e.valid_up_to() })
}

/// Whether the path begins at the root.
pub fn is_absolute(path: &str) -> bool {
    path.starts_with('/')
}

/// Whether the path is one of the special paths, which name no node.
pub fn is_special(path: &str) -> bool {
    path.starts_with('@')
}

/// The home of a domain, to which its relative paths are relative.
pub fn home(domid: DomId) -> String {
    format!("/local/domain/{}", domid.0)
}

/// The path `below` under `base`. Either may be the root or empty.
pub fn join(base: &str, below: &str) -> String {
    match (base, below) {
        (base, "" | "/") => String::from(base),
        ("/", below) => format!("/{}", below.trim_start_matches('/')),
        (base, below) => format!("{base}/{}", below.trim_start_matches('/')),
    }
}

/// The absolute form of `path` for a domain.
pub fn resolve(path: &str, domid: DomId) -> String {
    if is_absolute(path) { String::from(path) } else { join(&home(domid), path) }
}

/// Whether a node may have this absolute path: at most 2048 bytes below a domain's home, or in all
/// if the path is not in a home, as in Xen's xenstored (its quota `path-max`).
pub fn has_room(absolute: &str) -> bool {
    let behind_home = || {
        let (domid, behind) = absolute.strip_prefix("/local/domain/")?.split_once('/')?;
        (!domid.is_empty() && domid.bytes().all(|c| c.is_ascii_digit())).then_some(behind.len())
    };
    absolute.len() <= ABS_PATH_MAX && behind_home().unwrap_or(absolute.len()) <= REL_PATH_MAX
}

/// The parent of a node; `None` for the root.
pub fn parent(path: &str) -> Option<&str> {
    if path == "/" {
        return None;
    }
    match path.rfind('/') {
        Some(0) => Some("/"),
        Some(at) => Some(&path[..at]),
        None => None,
    }
}

/// The last component.
pub fn base_name(path: &str) -> &str {
    &path[path.rfind('/').map_or(0, |at| at + 1)..]
}

/// The components of an absolute path, from the root down; none for the root.
pub fn components(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|c| !c.is_empty())
}

/// The path, then each of its ancestors up to and including the root.
pub fn self_and_ancestors(path: &str) -> impl Iterator<Item = &str> {
    core::iter::successors(Some(path), |p| parent(p))
}

/// The number of levels from `top` down to `path`: 0 for the same node, `None` if `path` is not
/// below `top`.
pub fn levels_below(path: &str, top: &str) -> Option<usize> {
    if path == top {
        return Some(0);
    }
    let rest = if top == "/" { path.strip_prefix('/') } else { path.strip_prefix(top)?.strip_prefix('/') };
    rest.map(|rest| components(rest).count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn legal_paths() {
        for p in ["/", "/a", "/local/domain/0", "device/vif/0", "@releaseDomain", "A-z_9/@b"] {
            assert_eq!(check(p.as_bytes()), Ok(p));
        }
        assert!(check(&[b'a'; REL_PATH_MAX]).is_ok());
    }

    #[test]
    fn illegal_paths_say_why() {
        assert_eq!(check(b""), Err(PathError::Empty));
        assert_eq!(check(b"/a/"), Err(PathError::TrailingSlash));
        assert_eq!(check(b"//"), Err(PathError::EmptyComponent { at: 1 }));
        assert_eq!(check(b"/a//b"), Err(PathError::EmptyComponent { at: 3 }));
        assert_eq!(check(b"/a b"), Err(PathError::BadByte { byte: b' ', at: 2 }));
        assert_eq!(check(b"/a\0"), Err(PathError::BadByte { byte: 0, at: 2 }));
        assert_eq!(check("/\u{e9}".as_bytes()), Err(PathError::BadByte { byte: 0xc3, at: 1 }));
        let long = vec![b'a'; REL_PATH_MAX + 1];
        assert!(matches!(check(&long), Err(PathError::TooLong { max_bytes: REL_PATH_MAX, .. })));
        let behind = |n: usize| String::from("/local/domain/12/") + &"a".repeat(n);
        assert!(has_room(&behind(REL_PATH_MAX)) && !has_room(&behind(REL_PATH_MAX + 1)));
        let elsewhere = |n: usize| String::from("/tool/") + &"a".repeat(n - 6);
        assert!(has_room(&elsewhere(REL_PATH_MAX)) && !has_room(&elsewhere(REL_PATH_MAX + 1)));
        assert!(!has_room(&(String::from("/local/domain/x/") + &"a".repeat(REL_PATH_MAX))));
        let mut long = vec![b'a'; ABS_PATH_MAX + 1];
        long[0] = b'/';
        assert!(matches!(check(&long), Err(PathError::TooLong { max_bytes: ABS_PATH_MAX, .. })));
    }

    #[test]
    fn taking_apart() {
        assert_eq!(parent("/"), None);
        assert_eq!(parent("/a"), Some("/"));
        assert_eq!(parent("/a/b"), Some("/a"));
        assert_eq!(base_name("/a/b"), "b");
        assert_eq!(components("/a/b").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(components("/").count(), 0);
        assert_eq!(self_and_ancestors("/a/b").collect::<Vec<_>>(), ["/a/b", "/a", "/"]);
        assert_eq!(self_and_ancestors("@releaseDomain").collect::<Vec<_>>(), ["@releaseDomain"]);
        assert_eq!(resolve("device", DomId(3)), "/local/domain/3/device");
        assert_eq!(resolve("/tool", DomId(3)), "/tool");
        assert_eq!(join("/", "a"), "/a");
        assert_eq!(join("/a", "/"), "/a");
        assert_eq!(levels_below("/a/b/c", "/a"), Some(2));
        assert_eq!(levels_below("/a", "/"), Some(1));
        assert_eq!(levels_below("/a", "/a"), Some(0));
        assert_eq!(levels_below("/ab", "/a"), None);
        assert_eq!(levels_below("/", "/a"), None);
    }
}
