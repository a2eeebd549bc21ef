//! Accepts data rings of a connecting front: each half whole or not at all.
//!
//! ```text
//!   data-ring-ref --map, read, unmap--> index page --validate--> in: mapped read-write     out: mapped read-only
//! ```
//! What a front may do: give any page. A fault of the page, or of one half, is reported with the
//! key; the other half is served.

use super::back::DataRingPath;
use super::index::IndexPage;
use super::keys::{HalfRefusal, active_key};
use crate::net::features::FrontRequest;
use crate::net::path::acceptance::{Accept, Accepted, Accepting, Lost, Said};
use crate::net::path::active::ActiveLists;
use crate::net::path::any_back::AnyPath;
use crate::net::path::any_refusal::Refusal;
use crate::net::path::request_keys::{RingRequest, bad_page_key};
use crate::platform::{Access, PeerMem, Platform};
use crate::shm::SharedBytes;
use crate::units::{GrantRef, PAGE_SIZE};
use crate::xenbus::connect_error::TooManyPages;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct AcceptDataRing;

/// The accepted halves of a queue's data ring.
struct Area<P: Platform> {
    tx: Option<DataRingPath<P>>,
    rx: Option<DataRingPath<P>>,
    /// Pages that it maps.
    pages: usize,
}

impl<P: Platform> Area<P> {
    const NONE: Self = Self { tx: None, rx: None, pages: 0 };
}

impl<P: Platform> Accept<P> for AcceptDataRing {
    fn active_key(&self, front: &FrontRequest, queue: usize) -> Option<String> {
        (front.queues[queue].data_ring != RingRequest::None).then(|| active_key(queue, front.queues.len()))
    }

    fn accept(
        &mut self,
        cx: &mut Accepting<'_, P>,
        queue: usize,
        said: Said<'_>,
    ) -> Result<Accepted<P>, Lost> {
        if cx.queue(queue).data_ring == RingRequest::None {
            return Ok(Accepted::NONE);
        }
        let refused = cx.refused.len();
        let may = said.lists(ActiveLists::BOTH);
        let Area { tx, rx, pages } = area(cx, queue, may);
        let active = ActiveLists { tx: tx.is_some(), rx: rx.is_some() };
        if said.is_reattach() && active != may {
            let why = cx.refused.get(refused).map(|(_, _, why)| why.to_string());
            let why = why.unwrap_or_else(|| "its index page names it no longer".into());
            return Err(Lost::again(format_args!("data ring of queue {queue}"), &why));
        }
        let active = Some(active.text(ActiveLists::BOTH));
        Ok(Accepted { tx: tx.map(AnyPath::DataRing), rx: rx.map(AnyPath::DataRing), pages, active })
    }
}

/// Takes those halves of a queue's data ring that are good and that it `may` have.
fn area<P: Platform>(cx: &mut Accepting<'_, P>, queue: usize, may: ActiveLists) -> Area<P> {
    let mut area = Area::NONE;
    if !may.any() {
        return area;
    }
    let (p, of, mut left) = (cx.p, cx.of, cx.left);
    let (request, most) = (&cx.queue(queue).data_ring, cx.offered.data_ring);
    let mut refuse = |dirs: &[&'static str], why: HalfRefusal| {
        dirs.iter().for_each(|dir| cx.refuse(queue, dir, Refusal::DataRing(why.clone())));
    };
    let index = match request {
        RingRequest::None => return area,
        RingRequest::Bad { key, value } => {
            refuse(&["tx", "rx"], HalfRefusal::Key(bad_page_key(key, value, of)));
            return area;
        }
        RingRequest::Index(gref) => *gref,
    };
    let page = p.peer().map(of, &[index], Access::ReadOnly).map_err(HalfRefusal::Index);
    // Mapped no longer than it is read: not counted with what the guest has mapped.
    let page = match page.and_then(|page| IndexPage::read(&page, most).map_err(HalfRefusal::Fault)) {
        Ok(page) => page,
        Err(why) => {
            refuse(&["tx", "rx"], why);
            return area;
        }
    };
    let size = page.half_bytes();
    let [within, out] = page.validate();
    let mut take = |half: Result<Option<Vec<GrantRef>>, _>, acc| {
        let Some(refs) = half.map_err(HalfRefusal::Fault)? else { return Ok(None) };
        if refs.len() > left {
            return Err(HalfRefusal::TooManyPages(TooManyPages { asked: refs.len(), left }));
        }
        let map = p.peer().map(of, &refs, acc).map_err(HalfRefusal::Map)?;
        left -= refs.len();
        debug_assert_eq!(map.len(), refs.len() * PAGE_SIZE);
        Ok(Some(map))
    };
    let (out, within) = (
        if may.tx { take(out, Access::ReadOnly) } else { Ok(None) },
        if may.rx { take(within, Access::ReadWrite) } else { Ok(None) },
    );
    let pages = size as usize / PAGE_SIZE;
    match out {
        Ok(map) => area.tx = map.map(|map| DataRingPath::tx(map, size)),
        Err(why) => refuse(&["tx"], why),
    }
    match within {
        Ok(map) => area.rx = map.map(|map| DataRingPath::rx(map, size)),
        Err(why) => refuse(&["rx"], why),
    }
    area.pages = pages * (usize::from(area.tx.is_some()) + usize::from(area.rx.is_some()));
    area
}
