//! Which of its paths a queue uses, for the vif's owner.

use super::queue::FrontQueue;
use super::vif::FrontVif;
use crate::net::features::ActiveLists;
use crate::net::path::staging::front::StagingArea;
use crate::net::path::staging::list::DataLen;
use crate::net::path::staging::wanted::Buffers;
use crate::net::path::{FrontChain, PathName};
use crate::platform::Platform;

impl<P: Platform> FrontQueue<P> {
    /// The directions that use a data ring.
    pub fn data_ring(&self) -> ActiveLists {
        self.shared(PathName::DataRing)
    }

    /// True if requests name pages by their frame numbers.
    pub fn names_frames(&self) -> bool {
        self.tx().chain().has(PathName::Foreign)
    }

    /// True if the back grants pages of its own to this queue.
    pub fn borrows(&self) -> bool {
        self.shared(PathName::GuestCopy).any()
    }

    /// Bytes of a frame that fit a staging buffer, TX and RX; None: ordinary grants.
    pub fn staging_lens(&self) -> (Option<DataLen>, Option<DataLen>) {
        let of = |chain: &FrontChain<P>| chain.staging().map(StagingArea::data_len);
        (of(self.tx().chain()), of(self.rx().chain()))
    }

    /// Number of staging buffers, for TX and for RX; 0: ordinary grants are used.
    pub fn staging_buffers(&self) -> (u32, u32) {
        (self.tx().chain().buffers(), self.rx().chain().buffers())
    }
}

impl<P: Platform> FrontVif<P> {
    /// True if the back has mapped this whole domain, and requests name pages by their frame
    /// numbers.
    pub fn names_frames(&self) -> bool {
        self.queue(0).is_some_and(FrontQueue::names_frames)
    }

    /// True if the back accepted all staging lists of queue `i`;
    /// [`staging_lens`](FrontQueue::staging_lens) says which ones it accepted.
    pub fn staging_accepted(&self, i: usize) -> bool {
        self.queue(i).is_some_and(|q| {
            let Buffers { tx, rx, .. } = q.asked().staging;
            (tx, rx) != (None, None) && self.is_live() && q.staging_lens() == (tx, rx)
        })
    }
}
