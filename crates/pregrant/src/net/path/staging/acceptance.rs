//! Staging lists, as a connecting back takes them: all of a direction's list or nothing of it.
//!
//! ```text
//!   TX list --validate, map--> ids 0..T          RX list --> ids T..T+R        a bad one leaves the other alone
//! ```
//! What a front may do: give any list. One that is wrong is refused with a line that names its key;
//! nothing of it stays mapped.

use super::back::{RxHeads, StagedBuffers, StagingPath};
use super::keys::{
    APART_SINCE, DataKeys, DataRequest, FIRST_SLOTS_SINCE, ListRefusal, SENT_ON_SINCE, active_key, asked,
};
use super::list::{self as staging_list, ListFault};
use crate::net::features::FrontRequest;
use crate::net::path::acceptance::{Accept, Accepted, Accepting, Lost, Said};
use crate::net::path::active::ActiveLists;
use crate::net::path::any_back::AnyPath;
use crate::net::path::any_refusal::Refusal;
use crate::platform::{Access, PeerMem, Platform};
use crate::shm::SharedBytes;
use crate::units::PAGE_SIZE;
use crate::xenbus::KeyError;
use crate::xenbus::connect_error::TooManyPages;
use alloc::string::String;

/// How it is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Heads {
    /// Whether the head of a frame that is longer than a staging buffer is taken from there, and
    /// put there for a front that knows it, and only the rest goes by grants.
    pub heads: bool,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct AcceptStaging {
    /// Whether the head of a frame that is longer than a buffer is taken from there.
    pub heads: bool,
}

/// A list that the back accepted.
struct Taken<P: Platform> {
    path: StagingPath<P>,
    entries: u16,
    pages: usize,
}

impl<P: Platform> Accept<P> for AcceptStaging {
    fn active_key(&self, front: &FrontRequest, queue: usize) -> Option<String> {
        Some(active_key(queue, front.queues.len()))
    }

    fn accept(
        &mut self,
        cx: &mut Accepting<'_, P>,
        queue: usize,
        said: Said<'_>,
    ) -> Result<Accepted<P>, Lost> {
        let keys = cx.queue(queue);
        let revision = cx.front.staging.revision.min(cx.offered.staging.revision);
        let asked = asked(&keys.staging);
        let refused = cx.refused.len();
        // A front goes on filling the buffers of lists that its back had taken, and no others:
        // that they can be mapped now does not change that.
        let [tx, rx] = lists(cx, queue, said.lists(asked), revision >= APART_SINCE);
        if let (true, Some((queue, dir, why))) = (said.is_reattach(), cx.refused.get(refused)) {
            return Err(Lost::again(format_args!("{dir} staging list of queue {queue}"), why));
        }
        let active = ActiveLists { tx: tx.is_some(), rx: rx.is_some() };
        let pages = [&tx, &rx].into_iter().flatten().map(|list| list.pages).sum();
        let received = rx.as_ref().filter(|_| revision >= SENT_ON_SINCE);
        let tx = tx.map(|tx| {
            let path = tx.path.with_heads(self.heads);
            AnyPath::Staging(match received {
                Some(rx) => path.with_received(&rx.path),
                None => path,
            })
        });
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
}

/// Takes those of a queue's lists that are good and that it `may` have. `apart`: the front
/// understands that one is taken without the other.
fn lists<P: Platform>(
    cx: &mut Accepting<'_, P>,
    queue: usize,
    may: ActiveLists,
    apart: bool,
) -> [Option<Taken<P>>; 2] {
    let (refused, left, keys) = (cx.refused.len(), cx.left, cx.queue(queue));
    let none = &DataRequest::None;
    let tx = list(cx, (queue, "tx"), if may.tx { &keys.staging.tx } else { none }, Some(0), left);
    // Ids go on from TX to RX. The end of a TX list that is not taken is unknown: the RX list
    // says where it begins.
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

/// One direction's list. `first_id`: of its first entry; None: what that says.
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

/// Reads, judges and maps one direction's list: all of it or nothing.
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
    Ok(Taken { path: StagingPath::new(buffers), entries: entries.len() as u16, pages })
}
