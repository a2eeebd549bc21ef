//! Data rings, as a connecting back takes them: each half whole or not at all.
//!
//! ```text
//!   data-ring-ref --map, read, unmap--> index page --judge--> in: mapped read-write     out: mapped read-only
//! ```
//! What a front may do: give any page. What is wrong with it, or with one half, is said with the key; the other half is served.

use super::Vif;
use crate::net::back::refusal::{HalfRefusal, ListRefusal};
use crate::net::features::{ActiveLists, RingRequest};
use crate::net::path::DataRingPath;
use crate::net::path::data_ring::index::IndexPage;
use crate::platform::{Access, PeerMem, Platform};
use crate::shm::SharedBytes;
use crate::units::{GrantRef, PAGE_SIZE};
use crate::xenbus::KeyError;
use crate::xenbus::refusal::TooManyPages;
use alloc::vec::Vec;

/// What is taken of a queue's data ring.
pub(super) struct QueueArea<P: Platform> {
    pub tx: Option<DataRingPath<P>>,
    pub rx: Option<DataRingPath<P>>,
    /// Pages that it maps.
    pub pages: usize,
}

impl<P: Platform> QueueArea<P> {
    const NONE: Self = Self { tx: None, rx: None, pages: 0 };

    /// Which halves they are.
    pub fn active(&self) -> ActiveLists {
        ActiveLists { tx: self.tx.is_some(), rx: self.rx.is_some() }
    }
}

impl<P: Platform> Vif<P> {
    /// Takes those halves of a queue's data ring that are good and that it `may` have; `left`: pages that may be mapped.
    pub(super) fn queue_area(
        &mut self,
        p: &P,
        (queue, request): (usize, &RingRequest),
        may: ActiveLists,
        left: usize,
    ) -> QueueArea<P> {
        let mut area = QueueArea::NONE;
        if !may.any() {
            return area;
        }
        let mut refuse = |dirs: &[&'static str], why: HalfRefusal| {
            let both = dirs.iter().map(|dir| (queue, *dir, ListRefusal::Half(why.clone())));
            self.refused.extend(both);
        };
        let index = match request {
            RingRequest::None => return area,
            RingRequest::Bad { key, value } => {
                let expected = "a grant reference, a decimal number";
                let why = KeyError::new(key, Some(value.as_bytes()), expected, self.of);
                refuse(&["tx", "rx"], HalfRefusal::Key(why));
                return area;
            }
            RingRequest::Index(gref) => *gref,
        };
        let most = self.told.max_data_ring_order;
        let page = p.peer().map(self.of, &[index], Access::ReadOnly).map_err(HalfRefusal::Index);
        // Mapped no longer than it is read: not counted with what the guest has mapped.
        let page = match page.and_then(|page| IndexPage::read(&page, most).map_err(HalfRefusal::Fault)) {
            Ok(page) => page,
            Err(why) => {
                refuse(&["tx", "rx"], why);
                return area;
            }
        };
        let size = page.half_bytes();
        let [within, out] = page.judge();
        let mut left = left;
        let mut take = |half: Result<Option<Vec<GrantRef>>, _>, acc| {
            let Some(refs) = half.map_err(HalfRefusal::Fault)? else { return Ok(None) };
            if refs.len() > left {
                return Err(HalfRefusal::TooManyPages(TooManyPages { asked: refs.len(), left }));
            }
            let map = p.peer().map(self.of, &refs, acc).map_err(HalfRefusal::Map)?;
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
}
