//! How the two ends agree on `staging` ([`Negotiate`]): the lengths of buffers, and all of a
//! direction's list or nothing of it.
//!
//! ```text
//!   TX list --validate, map--> ids 0..T          RX list --> ids T..T+R        a bad one leaves the other alone
//! ```
//! What a front may do: give any list. One that is wrong is refused with a line that names its key;
//! nothing of it stays mapped.

use super::Heads;
use super::back::{RxHeads, StagedBuffers, StagingPath};
use super::front::StagingArea;
use super::keys::{
    self, APART_SINCE, DataKeys, DataRequest, FIRST_SLOTS_SINCE, ListRefusal, Lists, Offer, Request,
    SENT_ON_SINCE, asked,
};
use super::list::{self as staging_list, LIST_ENTRIES_MAX, ListFault};
use super::wanted::Buffers;
use crate::error::PlatformError;
use crate::net::features::{FrontRequest, QueueKeys};
use crate::net::front::queue_memory::{ACCESS, QueueMemory, RX, TX};
use crate::net::path::AnyFrontPath;
use crate::net::path::Negotiate;
use crate::net::path::acceptance::{Accepted, Accepting, Lost, Said};
use crate::net::path::active_lists::ActiveLists;
use crate::net::path::any_back::AnyPath;
use crate::net::path::refusal::Refusal;
use crate::platform::{Access, PeerMem, Platform};
use crate::shm::SharedBytes;
use crate::units::PAGE_SIZE;
use crate::xenbus::connect_error::TooManyPages;
use crate::xenbus::key_source::{KeySink, KeySource};
use crate::xenbus::{KeyError, KeyName};
use alloc::string::String;
use alloc::vec::Vec;

/// The path `staging`, as the two ends negotiate it.
#[derive(Clone, Copy, Debug)]
pub struct Staging;

impl Negotiate for Staging {
    type Offer = Offer;
    type Wanted = Buffers;
    type Request = Request;
    type QueueRequest = Lists;
    type Acceptor<P: Platform> = Heads;

    fn put_offer(offer: &Offer, pairs: &mut dyn KeySink) {
        keys::put_offer(pairs, offer);
    }
    fn read_offer<S: KeySource>(keys: &mut S) -> Result<Offer, S::Error> {
        keys::read_offer(keys)
    }
    fn asked(wanted: Buffers, offer: &Offer, _can_name: bool) -> Buffers {
        wanted.offered_by(offer)
    }
    fn put_request(request: &Request, queues: &[(&str, &Lists)], pairs: &mut dyn KeySink) {
        keys::put_requests(pairs, *request, queues);
    }
    fn read_request<S: KeySource>(
        keys: &mut S,
        offered: &Offer,
        queues: &[KeyName],
    ) -> Result<(Request, Vec<Lists>), S::Error> {
        keys::read_requests(keys, offered, queues)
    }
    fn active_key(front: &FrontRequest, queue: usize) -> Option<KeyName> {
        Some(keys::active_key(queue, front.queues.len()))
    }
    #[inline(never)] // a kernel's stack has no room for those of all paths at once
    fn accept<P: Platform>(
        heads: &mut Heads,
        cx: &mut Accepting<'_, P>,
        queue: usize,
        said: Said<'_>,
    ) -> Result<Accepted<P>, Lost> {
        let Some(keys) = cx.queue(queue) else { return Ok(Accepted::NONE) };
        let revision = cx.front.staging.revision.min(cx.offered.staging.revision);
        let asked = asked(&keys.staging);
        let refused = cx.refused.len();
        // After a predecessor died, the front still uses exactly the lists that the predecessor
        // accepted. If another list could be mapped now, that changes nothing.
        let [tx, rx] = lists(cx, (queue, keys), said.lists(asked), revision >= APART_SINCE);
        if let (true, Some((queue, dir, why))) = (said.is_reattach(), cx.refused.get(refused)) {
            return Err(Lost::again(format_args!("{dir} staging list of queue {queue}"), why));
        }
        let active = ActiveLists { tx: tx.is_some(), rx: rx.is_some() };
        let pages = [&tx, &rx].into_iter().flatten().map(|list| list.pages).sum();
        let received = rx.as_ref().filter(|_| revision >= SENT_ON_SINCE);
        let tx = match (tx.map(|tx| tx.path.with_heads(heads.heads)), received) {
            (Some(path), Some(rx)) => Some(AnyPath::Staging(path.with_received(&rx.path)?)),
            (path, _) => path.map(AnyPath::Staging),
        };
        let rx_heads = match &cx.front.staging {
            said if said.rx_heads && cx.offered.staging.rx_heads => RxHeads::InBuffer,
            // The proposal's own front, which knows no revision, may read them from either.
            said if said.revision == 1 => RxHeads::InBoth,
            _ => RxHeads::InPage,
        };
        let first_slots = revision >= FIRST_SLOTS_SINCE;
        let rx = rx.map(|rx| AnyPath::Staging(rx.path.with_rx_heads(rx_heads, first_slots)));
        Ok(Accepted { tx, rx, pages, active: asked.any().then(|| active.text(asked)) })
    }

    fn taken<S: KeySource>(
        keys: &mut S,
        _offer: &Offer,
        (i, n): (usize, usize),
        shared: ActiveLists,
    ) -> Result<ActiveLists, S::Error> {
        let text = keys.text(&keys::active_key(i, n))?;
        Ok(ActiveLists::parse(text.as_deref(), shared))
    }
}

/// Allocates the front's staging buffers of a queue, and the keys that describe them.
#[inline(never)] // as of each path: a kernel's stack is small
pub fn take_memory<P: Platform>(
    asked: Buffers,
    queue: &mut QueueMemory<'_, P>,
) -> Result<Lists, PlatformError> {
    let (mut first_id, slots) = (0, queue.slots);
    let mut requests = [DataRequest::None, DataRequest::None];
    for (dir, len) in [(TX, asked.tx), (RX, asked.rx)] {
        let Some(len) = len else { continue };
        // Received buffers that are sent on stay away until the back answers: at most as many as
        // fit on the TX ring.
        let spare = if dir == RX && asked.sent_on { first_id.min(slots[TX]) } else { 0 };
        let least = (slots[dir] + spare).min(LIST_ENTRIES_MAX as u32);
        let entries = asked.entries(len, least, queue.queues);
        let (p, regions) = (queue.p, &mut *queue.regions);
        let mut area = StagingArea::new(p, regions, ACCESS[dir], len, entries, first_id as u16)?;
        (area.may_send_on, area.rest) = (asked.sent_on, entries > least);
        area.may_rx_heads = dir == RX && asked.rx_heads;
        if !queue.sg[dir] {
            area.set_no_sg();
        }
        first_id = entries;
        requests[dir] = DataRequest::Keys(DataKeys { list_refs: area.list_refs().to_vec(), len });
        queue.chains[dir].insert(AnyFrontPath::Staging(area));
    }
    let [tx, rx] = requests;
    Ok(Lists { tx, rx })
}

/// A list that the back accepted.
struct Taken<P: Platform> {
    path: StagingPath<P>,
    entries: u16,
    pages: usize,
}

/// Accepts the lists of a queue that are valid and that `may` allows. `apart`: the front accepts
/// that one list is used without the other.
fn lists<P: Platform>(
    cx: &mut Accepting<'_, P>,
    (queue, keys): (usize, &QueueKeys),
    may: ActiveLists,
    apart: bool,
) -> [Option<Taken<P>>; 2] {
    let (refused, left) = (cx.refused.len(), cx.left);
    let none = &DataRequest::None;
    let tx = list(cx, (queue, "tx"), if may.tx { &keys.staging.tx } else { none }, Some(0), left);
    // Ids of RX follow those of TX. If the TX list was not accepted its length is unknown: then the
    // RX list's first entry says where its ids begin.
    let first_rx = match &tx {
        Some(tx) => Some(tx.entries),
        None => (keys.staging.tx == DataRequest::None).then_some(0),
    };
    let left = left - tx.as_ref().map_or(0, |tx| tx.pages);
    let rx = list(cx, (queue, "rx"), if may.rx { &keys.staging.rx } else { none }, first_rx, left);
    if !apart && cx.refused.len() > refused {
        return [None, None];
    }
    [tx, rx]
}

/// Accepts one direction's list. `first_id`: the id of its first entry; None: any id that the first
/// entry has.
fn list<P: Platform>(
    cx: &mut Accepting<'_, P>,
    (queue, dir): (usize, &'static str),
    data: &DataRequest,
    first_id: Option<u16>,
    left: usize,
) -> Option<Taken<P>> {
    let acc = if dir == "tx" { Access::ReadOnly } else { Access::ReadWrite };
    let why = match data {
        DataRequest::None => return None,
        DataRequest::Bad { key, value, expected } => {
            let seen = value.as_ref().map(String::as_bytes);
            ListRefusal::Key(KeyError::new(key, seen, expected, cx.of))
        }
        DataRequest::Keys(keys) => match take(cx, keys, acc, first_id, left) {
            Ok(taken) => return Some(taken),
            Err(why) => why,
        },
    };
    cx.refuse(queue, dir, Refusal::Staging(why));
    None
}

/// Reads, checks and maps one direction's list, as a whole or not at all.
fn take<P: Platform>(
    cx: &Accepting<'_, P>,
    data: &DataKeys,
    acc: Access,
    first_id: Option<u16>,
    left: usize,
) -> Result<Taken<P>, ListRefusal> {
    let (p, of) = (cx.p, cx.of);
    if data.list_refs.is_empty() {
        return Err(ListRefusal::Fault(ListFault::Empty));
    }
    // Mapped no longer than they are read, and as many as keys can name: not counted with what the
    // guest has mapped.
    let list = p.peer().map(of, &data.list_refs, Access::ReadOnly).map_err(ListRefusal::Map)?;
    let entries = staging_list::read(&list, cx.offered.staging.longest_list().1);
    drop(list);
    let entries = entries.map_err(|_| ListRefusal::Fault(ListFault::NoMemory))?;
    let first_id = first_id.or(entries.first().map(|e| e.id)).unwrap_or(0);
    let list = staging_list::validate(&entries, first_id, data.len).map_err(ListRefusal::Fault)?;
    let asked = list.refs.len();
    if asked > left {
        return Err(ListRefusal::TooManyPages(TooManyPages { asked, left }));
    }
    let map = p.peer().map(of, &list.refs, acc).map_err(ListRefusal::Map)?;
    let pages = map.len() / PAGE_SIZE;
    let buffers = StagedBuffers {
        map,
        place: list.place,
        len: data.len.buffer_bytes(),
        copy_only: data.len.copy_only(),
    };
    let path = StagingPath::new(buffers).map_err(|_| ListRefusal::Fault(ListFault::NoMemory))?;
    Ok(Taken { path, entries: entries.len() as u16, pages })
}
