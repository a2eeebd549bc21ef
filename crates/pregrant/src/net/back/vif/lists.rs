//! Staging lists, as a connecting back takes them: all of a direction's list or nothing of it.
//!
//! ```text
//!   TX list --read, judge, map--> ids 0..T       RX list --> ids T..T+R        a bad one leaves the other alone
//! ```
//! What a front may do: give any list. One that is wrong is refused with a line that names its key; nothing of it stays mapped.

use super::Vif;
use crate::net::back::refusal::ListRefusal;
use crate::net::features::{ActiveLists, DataKeys, DataRequest, QueueKeys};
use crate::net::path::staging::list::{self as staging_list, LIST_ENTRIES_MAX, ListFault};
use crate::net::path::{StagedBuffers, StagingPath};
use crate::platform::{Access, PeerMem, Platform};
use crate::shm::SharedBytes;
use crate::units::{DomId, PAGE_SIZE};
use crate::xenbus::KeyError;
use crate::xenbus::refusal::TooManyPages;
use alloc::string::String;

/// What is taken of a queue's two lists.
pub(super) struct QueueLists<P: Platform> {
    pub tx: Option<StagingPath<P>>,
    pub rx: Option<StagingPath<P>>,
    /// Pages that they map.
    pub pages: usize,
}

impl<P: Platform> QueueLists<P> {
    const NONE: Self = Self { tx: None, rx: None, pages: 0 };

    /// Which they are.
    pub fn active(&self) -> ActiveLists {
        ActiveLists { tx: self.tx.is_some(), rx: self.rx.is_some() }
    }
}

/// A list that was taken.
struct Taken<P: Platform> {
    path: StagingPath<P>,
    entries: u16,
    pages: usize,
}

impl<P: Platform> Vif<P> {
    /// Takes those of a queue's lists that are good and that it `may` have; `left`: pages that may be mapped. `apart`: the front
    /// understands that one is taken without the other.
    pub(super) fn queue_lists(
        &mut self,
        p: &P,
        (queue, keys): (usize, &QueueKeys),
        may: ActiveLists,
        apart: bool,
        left: usize,
    ) -> QueueLists<P> {
        let refused = self.refused.len();
        let none = &DataRequest::None;
        let tx = self.list(p, (queue, "tx"), if may.tx { &keys.tx_data } else { none }, Some(0), left);
        // Ids go on from TX to RX. Of a TX list that is not taken nobody knows where it ends: the RX list says where it begins.
        let first_rx = match &tx {
            Some(tx) => Some(tx.entries),
            None => (keys.tx_data == DataRequest::None).then_some(0),
        };
        let left = left - tx.as_ref().map_or(0, |tx| tx.pages);
        let rx = self.list(p, (queue, "rx"), if may.rx { &keys.rx_data } else { none }, first_rx, left);
        if !apart && self.refused.len() > refused {
            return QueueLists::NONE;
        }
        let pages = [&tx, &rx].into_iter().flatten().map(|list| list.pages).sum();
        QueueLists { tx: tx.map(|list| list.path), rx: rx.map(|list| list.path), pages }
    }

    /// One direction's list. `first_id`: of its first entry; None: what that says.
    fn list(
        &mut self,
        p: &P,
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
                ListRefusal::Key(KeyError::new(key, seen, expected, self.of))
            }
            DataRequest::Keys(keys) => match accept(p, self.of, keys, acc, first_id, left) {
                Ok(taken) => return Some(taken),
                Err(why) => why,
            },
        };
        self.refused.push((queue, dir, why));
        None
    }
}

/// Reads, judges and maps one direction's list: all of it or nothing.
fn accept<P: Platform>(
    p: &P,
    of: DomId,
    data: &DataKeys,
    acc: Access,
    first_id: Option<u16>,
    left: usize,
) -> Result<Taken<P>, ListRefusal> {
    if data.list_refs.is_empty() {
        return Err(ListRefusal::Fault(ListFault::Empty));
    }
    // Mapped no longer than they are read, and as many as keys can name: not counted with what the guest has mapped.
    let list = p.peer().map(of, &data.list_refs, Access::ReadOnly).map_err(ListRefusal::Map)?;
    let entries = staging_list::read(&list, LIST_ENTRIES_MAX);
    drop(list);
    let first_id = first_id.or(entries.first().map(|e| e.id)).unwrap_or(0);
    let list = staging_list::judge(&entries, first_id, data.len).map_err(ListRefusal::Fault)?;
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
