//! The staging buffers that a front's owner wants, and the part of them that a back offers.
//!
//! What a back may do: offer any lengths. Invalid ones were left out when its keys were read. When
//! memory is short, only a few of the others are tried.

use super::keys::{Offer, SENT_ON_SINCE};
use super::list::DataLen;
use crate::error::PlatformError;
use crate::memory;
use crate::sort::sorted;
use alloc::vec::Vec;

/// Number of shorter lengths that are tried when memory is short.
const SHORTER_MAX: usize = 4;

/// The staging buffers that a front's owner wants; none by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Buffers {
    /// Bytes of a TX frame that fit a staging buffer; None: ordinary grants.
    pub tx: Option<DataLen>,
    /// Length of RX buffers; None: no staging of RX.
    pub rx: Option<DataLen>,
    /// A received buffer can be sent by TX as it is, if a
    /// [hook](crate::net::front::FrontQueue::recv_hooked) asks for it and the back supports it
    /// (docs/protocol 3.5). Then there are more RX buffers: as many more as there are TX ids, up to
    /// 4096 in the list. With RX rings of 16 pages there is no room for more, and nothing is sent
    /// on; [`sends_on`](crate::net::front::TxFront::sends_on) reports that.
    pub sent_on: bool,
    /// Number of buffers of each direction and queue, if the back allows more than the ring has
    /// slots (docs/protocol 3.2). 0, or fewer than slots: one for each slot.
    pub buffers: u32,
    /// Number of pages that the lists of all queues may have in all, if they are longer than the
    /// rings. The back's offer sets it; an owner leaves it at 0.
    pub max_pages: u32,
    /// Heads of longer RX frames are in their buffers: a back's offer, which an owner leaves at
    /// false.
    pub rx_heads: bool,
}

impl Buffers {
    /// The front wants no staging.
    pub const NONE: Self =
        Self { tx: None, rx: None, sent_on: false, buffers: 0, max_pages: 0, rx_heads: false };

    /// Buffers of these lengths.
    pub const fn of(tx: Option<DataLen>, rx: Option<DataLen>) -> Self {
        Self { tx, rx, ..Self::NONE }
    }

    /// The part of this request that a back with this offer supports.
    pub(super) fn offered_by(self, offer: &Offer) -> Self {
        let offered = |len: Option<DataLen>| len.filter(|len| offer.sizes.contains(len));
        let sent_on = self.sent_on && offer.revision >= SENT_ON_SINCE;
        let (tx, rx) = (offered(self.tx), offered(self.rx));
        let more = self.buffers > 0 && (tx, rx) != (None, None);
        let max_pages = if more { offer.max_pages } else { 0 };
        let buffers = if max_pages > 0 { self.buffers } else { 0 };
        Self { tx, rx, sent_on, max_pages, buffers, rx_heads: offer.rx_heads && rx.is_some() }
    }

    /// Number of entries for one direction's list of a vif with `queues` queues, where `least` are
    /// needed: as many as are wanted, within the pages that the back offers.
    pub(super) fn entries(self, len: DataLen, least: u32, queues: u32) -> u32 {
        let lists = [self.tx, self.rx].into_iter().flatten().count() as u32 * queues;
        least.max(self.buffers.min(len.buffers_within(self.max_pages, lists)))
    }

    /// Smaller requests, to try in turn when memory is short: the same without spare buffers, then
    /// shorter lengths that the back knows, then none.
    pub fn smaller(self, offered: &[DataLen]) -> Result<Vec<Self>, PlatformError> {
        let longest = self.tx.max(self.rx);
        if longest.is_none() {
            return memory::list(self, 1).map(<[_]>::into_vec);
        }
        let few = Self { buffers: 0, max_pages: 0, ..self };
        let mut shorter = sorted(offered.iter().copied())?;
        shorter.dedup();
        shorter.retain(|len| Some(*len) < longest && !len.copy_only());
        let first = [longest, longest].into_iter().skip(usize::from(few == self));
        let shorter = shorter.into_iter().rev().map(Some).take(SHORTER_MAX);
        let lens = first.chain(shorter).chain([None]);
        let few_of = |len| Self { tx: self.tx.min(len), rx: self.rx.min(len), ..few };
        let mut all = Vec::new();
        lens.map(few_of).try_for_each(|asked| memory::push(&mut all, asked))?;
        all.iter_mut().take(1).for_each(|first| *first = self);
        Ok(all)
    }
}
