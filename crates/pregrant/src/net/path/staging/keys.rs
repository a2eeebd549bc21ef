//! The keys of staging (docs/protocol 3.1): what a back offers, what a front asks for, and which of
//! its lists were accepted.
//!
//! ```text
//!   back's directory:   feature-staging-grants = "1", staging-grants-sizes = "64;128;...", staging-grants-revision = "3",
//!                       staging-grants-max-pages = "896", staging-grants-rx-heads = "1"
//!   front's directory:  the first, the third and the last of these, and beside its rings' keys {tx,rx}-data-ref%u, {tx,rx}-data-len
//!   back's directory:   staging-grants-active = "1", "tx", "rx" or "0", at the same relative place
//! ```
//! What a peer may do: write anything. If a value is invalid, that direction gets no staging, and
//! the vif is connected nevertheless.

use super::list::{DataLen, LIST_ENTRIES_MAX, LIST_PAGES_MAX, LONG_LIST_MAX, LONG_LIST_PAGES_MAX, ListFault};
use crate::error::PlatformError;
use crate::memory;
use crate::net::path::active_lists::ActiveLists;
use crate::net::path::keys::{KeyPlace, PathKeys};
use crate::platform::MapError;
use crate::units::GrantRef;
use crate::xenbus::connect_error::TooManyPages;
use crate::xenbus::key_source::{KeySink, KeySource, decimal, flag, put, stated};
use crate::xenbus::ring_keys::queue_prefix;
use crate::xenbus::{KeyError, KeyName};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::{fmt, iter};

/// All lengths that our back offers.
pub const ALL_DATA_LENS: [u32; 6] = [64, 128, 256, 2048, 4096, 65535];

/// Key of either end, which says that it supports staging.
pub const FEATURE: &str = "feature-staging-grants";

/// Key of the back: the lengths that it offers.
pub const SIZES: &str = "staging-grants-sizes";

/// The last part of the [key](active_key) by which the back says which lists it accepted.
pub const ACTIVE: &str = "staging-grants-active";

/// Key in either end's directory: the revision of the staging rules that this end supports. Absent:
/// revision 1.
pub const REVISION_KEY: &str = "staging-grants-revision";

/// Key of the back, if it allows lists that are longer than the rings (docs/protocol 3.2): the
/// largest number of pages that the buffers of all lists of a vif have in all.
pub const MAX_PAGES: &str = "staging-grants-max-pages";

/// Key of the back, with `--path staging+copy` or `staging+map`: the back puts the heads of longer
/// RX frames in their buffers, if the front writes the same key (docs/protocol 3.3).
pub const RX_HEADS: &str = "staging-grants-rx-heads";

/// Default of our back for the number of pages in [`MAX_PAGES`]: a share of the pages that one
/// guest may have mapped, so that sixteen of its vifs can each have as many, beside their rings.
pub const MAX_PAGES_OFFERED: u32 = 896;

/// The newest revision of the rules that this code supports. Both ends use the lower of their
/// revisions.
pub const STAGING_REVISION: u32 = 3;

/// First revision in which a back may accept one of a queue's two lists without the other
/// (docs/decisions/0002).
pub const APART_SINCE: u32 = 2;

/// First revision in which the first slot of a long frame is in its buffer, if buffers have 4096
/// bytes (docs/decisions/0002).
pub const FIRST_SLOTS_SINCE: u32 = 2;

/// First revision in which a guest can send a received buffer by TX (docs/decisions/0027).
pub const SENT_ON_SINCE: u32 = 3;

/// The keys of this path.
pub const KEYS: PathKeys = PathKeys {
    offers: &[FEATURE, SIZES, REVISION_KEY, MAX_PAGES, RX_HEADS],
    active: &[ACTIVE],
    directions: Some(ACTIVE),
    front: &[FEATURE, REVISION_KEY, RX_HEADS],
};

/// A back's offer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The lengths in [`SIZES`]; empty: [`FEATURE`] is not offered.
    pub sizes: Vec<DataLen>,
    /// Value of [`REVISION_KEY`], at most [`STAGING_REVISION`]; 1 where staging is not offered.
    pub revision: u32,
    /// Value of [`MAX_PAGES`]; 0: no list is longer than its ring.
    pub max_pages: u32,
    /// Value of [`RX_HEADS`].
    pub rx_heads: bool,
}

impl Offer {
    /// The back offers no staging.
    pub const NONE: Self = Self { sizes: Vec::new(), revision: 1, max_pages: 0, rx_heads: false };

    /// An offer of [all lengths](ALL_DATA_LENS), by the newest rules.
    pub fn all() -> Self {
        let sizes = ALL_DATA_LENS.iter().filter_map(|&n| DataLen::new(n)).collect();
        Self { sizes, revision: STAGING_REVISION, max_pages: MAX_PAGES_OFFERED, rx_heads: false }
    }

    /// Largest number of pages, and of entries, of a list that the back reads.
    pub(super) fn longest_list(&self) -> (usize, usize) {
        if self.max_pages == 0 {
            (LIST_PAGES_MAX, LIST_ENTRIES_MAX)
        } else {
            (LONG_LIST_PAGES_MAX, LONG_LIST_MAX)
        }
    }
}

impl Default for Offer {
    fn default() -> Self {
        Self::NONE
    }
}

/// What a front asks for, for all its queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Value of [`REVISION_KEY`], at most [`STAGING_REVISION`]; 1 where the front wants no staging.
    pub revision: u32,
    /// Value of [`RX_HEADS`].
    pub rx_heads: bool,
}

impl Default for Request {
    fn default() -> Self {
        Self { revision: STAGING_REVISION, rx_heads: false }
    }
}

/// What a front asks for on one queue: a staging list for each direction in which it wants staging.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lists {
    /// The request for TX.
    pub tx: DataRequest,
    /// The request for RX.
    pub rx: DataRequest,
}

impl Lists {
    fn has_keys(&self) -> bool {
        self.tx.keys().is_some() || self.rx.keys().is_some()
    }
}

/// Writes what a back offers. Without sizes it writes nothing.
pub(super) fn put_offer(p: &mut dyn KeySink, Offer { sizes, revision, max_pages, rx_heads }: &Offer) {
    if sizes.is_empty() {
        return;
    }
    put(p, FEATURE, 1);
    put(p, SIZES, Sizes(sizes));
    put(p, REVISION_KEY, revision);
    if *max_pages > 0 {
        put(p, MAX_PAGES, max_pages);
    }
    if *rx_heads {
        put(p, RX_HEADS, 1);
    }
}

/// A list of lengths as its key has it.
struct Sizes<'a>(&'a [DataLen]);

impl fmt::Display for Sizes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (len, between) in self.0.iter().zip(iter::once("").chain(iter::repeat(";"))) {
            write!(f, "{between}{}", len.value())?;
        }
        Ok(())
    }
}

/// Reads a back's offer from its keys.
#[inline(never)] // a kernel's stack has no room for those of all paths at once
pub(super) fn read_offer<S: KeySource>(keys: &mut S) -> Result<Offer, S::Error> {
    if !flag(keys, FEATURE)? {
        return Ok(Offer::NONE);
    }
    let sizes = keys.text(SIZES)?.as_deref().map_or(Ok(Vec::new()), parse_sizes);
    let sizes = sizes.map_err(|e| keys.refused(e))?;
    let max_pages = keys.text(MAX_PAGES)?.as_deref().and_then(decimal).unwrap_or(0);
    Ok(Offer { sizes, revision: revision(keys)?, max_pages, rx_heads: flag(keys, RX_HEADS)? })
}

/// Writes what a front asks for.
pub(super) fn put_requests(p: &mut dyn KeySink, request: Request, queues: &[(&str, &Lists)]) {
    if !queues.iter().any(|(_, lists)| lists.has_keys()) {
        return;
    }
    let rx_heads = request.rx_heads.then_some((RX_HEADS, 1));
    for (key, value) in [(FEATURE, 1), (REVISION_KEY, request.revision)].into_iter().chain(rx_heads) {
        put(p, key, value);
    }
    for (at, lists) in queues {
        put_request(p, at, "tx", &lists.tx);
        put_request(p, at, "rx", &lists.rx);
    }
}

/// Reads what a front requests. Nothing is requested if staging was not offered, or if the front
/// does not know it.
pub(super) fn read_requests<S: KeySource>(
    keys: &mut S,
    offered: &Offer,
    queues: &[KeyName],
) -> Result<(Request, Vec<Lists>), S::Error> {
    let mut lists = memory::room(queues.len()).map_err(|e| keys.refused(e))?;
    if offered.sizes.is_empty() || !flag(keys, FEATURE)? {
        for _ in queues {
            memory::push(&mut lists, Lists::default()).map_err(|e| keys.refused(e))?;
        }
        return Ok((Request { revision: 1, rx_heads: false }, lists));
    }
    for at in queues {
        let tx = data_keys(keys, at, "tx", offered)?;
        let of_queue = Lists { tx, rx: data_keys(keys, at, "rx", offered)? };
        memory::push(&mut lists, of_queue).map_err(|e| keys.refused(e))?;
    }
    Ok((Request { revision: revision(keys)?, rx_heads: flag(keys, RX_HEADS)? }, lists))
}

/// Writes what a front asks for of a queue in one direction.
fn put_request(p: &mut dyn KeySink, at: &str, dir: &str, request: &DataRequest) {
    let Some(data) = request.keys() else { return };
    for (k, r) in data.list_refs.iter().enumerate() {
        put(p, format_args!("{at}{dir}-data-ref{k}"), r.0);
    }
    put(p, format_args!("{at}{dir}-data-len"), data.len.value());
}

/// Key in the back's directory that says which of a queue's staging lists it accepted, see
/// [`ActiveLists`].
pub fn active_key(i: usize, n: usize) -> KeyName {
    queue_prefix(i, n) + ACTIVE
}

/// Reads an end's revision from its keys. An invalid value counts as revision 1.
fn revision<S: KeySource>(keys: &mut S) -> Result<u32, S::Error> {
    let said = keys.text(REVISION_KEY)?.as_deref().and_then(decimal).unwrap_or(1);
    Ok(said.clamp(1, STAGING_REVISION))
}

/// Reads a list of lengths such as `"128;256;65535"`. An invalid length is skipped.
fn parse_sizes(text: &str) -> Result<Vec<DataLen>, PlatformError> {
    let mut sizes = Vec::new();
    let parts = text.trim_end_matches('\0').split(';');
    for size in parts.filter_map(|s| s.trim().parse().ok().and_then(DataLen::new)).take(64) {
        memory::push(&mut sizes, size)?;
    }
    Ok(sizes)
}

/// Staging keys of one queue and direction: `{tx,rx}-data-ref%u`, `{tx,rx}-data-len`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataKeys {
    /// Grants of the list pages.
    pub list_refs: Vec<GrantRef>,
    /// Largest number of bytes of a frame that fits a buffer.
    pub len: DataLen,
}

/// A front's request for staging in one direction.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum DataRequest {
    /// The front wants no staging.
    #[default]
    None,
    /// The front wants staging, with these keys.
    Keys(DataKeys),
    /// The front wants staging, but a key is invalid. The front must learn that it was refused.
    Bad {
        /// Path of the invalid key below the front's directory.
        key: String,
        /// The value that was found.
        value: Option<String>,
        /// The value that was expected.
        expected: &'static str,
    },
}

impl DataRequest {
    /// The keys, if they can be used.
    pub fn keys(&self) -> Option<&DataKeys> {
        match self {
            Self::Keys(keys) => Some(keys),
            _ => None,
        }
    }
}

impl From<Option<DataKeys>> for DataRequest {
    fn from(keys: Option<DataKeys>) -> Self {
        keys.map_or(Self::None, Self::Keys)
    }
}

/// The directions for which a queue asks for a list, whether its keys are valid or not.
pub fn asked(Lists { tx, rx }: &Lists) -> ActiveLists {
    ActiveLists { tx: *tx != DataRequest::None, rx: *rx != DataRequest::None }
}

/// Reads the staging keys of one direction. A front may leave out a direction, and then writes
/// neither key. With a single queue the keys may also be in `queue-0/`, as in the RFC.
fn data_keys<S: KeySource>(
    keys: &mut S,
    at: &str,
    dir: &str,
    offered: &Offer,
) -> Result<DataRequest, S::Error> {
    let (pages_max, _) = offered.longest_list();
    let places: &[&str] = if at.is_empty() { &["", "queue-0/"] } else { &[at] };
    for at in places {
        let len_key = KeyName::of(format_args!("{at}{dir}-data-len"));
        let list_key = |k: usize| KeyName::of(format_args!("{at}{dir}-data-ref{k}"));
        let text = stated(keys, &len_key)?;
        let first = stated(keys, &list_key(0))?;
        if text.is_none() && first.is_none() {
            continue;
        }
        let len = text.as_deref().and_then(decimal).and_then(DataLen::new);
        let Some(len) = len.filter(|l| offered.sizes.contains(l)) else {
            return bad(keys, len_key, text, "one of the back's staging-grants-sizes");
        };
        let mut list_refs = Vec::new();
        let mut next = first;
        while list_refs.len() < pages_max
            && let Some(text) = next
        {
            let Some(r) = decimal(&text) else {
                return bad(
                    keys,
                    list_key(list_refs.len()),
                    Some(text),
                    "a grant reference, a decimal number",
                );
            };
            memory::push(&mut list_refs, GrantRef(r)).map_err(|e| keys.refused(e))?;
            next = stated(keys, &list_key(list_refs.len()))?;
        }
        if list_refs.is_empty() {
            return bad(keys, list_key(0), None, "a grant reference, a decimal number");
        }
        return Ok(DataRequest::Keys(DataKeys { list_refs, len }));
    }
    Ok(DataRequest::None)
}

/// A request by a key that is invalid.
fn bad<S: KeySource>(
    keys: &S,
    key: KeyName,
    value: Option<String>,
    expected: &'static str,
) -> Result<DataRequest, S::Error> {
    let key = memory::text(key).map_err(|e| keys.refused(e))?;
    Ok(DataRequest::Bad { key, value, expected })
}

/// Why the back refuses a staging list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListRefusal {
    /// A key of the list is invalid.
    Key(KeyError),
    /// An entry of the list is invalid.
    Fault(ListFault),
    /// A page of the staging list, or a buffer that the list names, could not be mapped.
    Map(MapError),
    /// The buffers have more pages than this back maps for one guest.
    TooManyPages(TooManyPages),
}

impl ListRefusal {
    /// The line for the log.
    pub fn line(&self, at: KeyPlace<'_>) -> String {
        let (key, queue) = (at.key(&format!("{}-data-ref0", at.dir)), at.queue);
        format!(
            "the staging list {key} is not used, queue {queue} goes on without it: {self}; \
             correct the front's list and connect it again"
        )
    }
}

impl fmt::Display for ListRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(e) => e.fmt(f),
            Self::Fault(e) => e.fmt(f),
            Self::Map(MapError { index: Some(i), status }) => {
                write!(f, "grant number {i} of the list cannot be mapped: {status}")
            }
            Self::Map(MapError { index: None, status }) => {
                write!(f, "a grant of the list cannot be mapped: {status}")
            }
            Self::TooManyPages(e) => e.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_mean_nothing_are_left_out() {
        let lens = |text| parse_sizes(text).iter().flatten().map(|l| l.value()).collect::<Vec<_>>();
        assert_eq!(lens("128;256;2048;4096"), [128, 256, 2048, 4096]);
        assert_eq!(lens("65536"), [65535]);
        assert_eq!(lens("x;0;70000;256\0"), [256]);
        assert!(lens("").is_empty());
    }
}
