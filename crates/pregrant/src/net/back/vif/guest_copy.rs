//! Pages of this domain that a connecting back lends to a queue's guest, and what becomes of them when the vif is closed.
//!
//! ```text
//!   guest-copy-ref --map, write, unmap--> list page        GuestCopyPath --disconnect--> released, or held
//! ```
//! Every list of the vif has its next generation before the first page is lent: a page may get a reference that a predecessor lent by.
//!
//! What a front may do: name any page as its list; map what it is lent and keep it. Such a page is zeroed and held, counts among what the
//! guest has mapped (XSA-300), and its release is tried again. Nothing more is lent to this vif meanwhile: what a guest can hold is what
//! one connection lent.

use super::Vif;
use crate::net::back::refusal::{LendRefusal, ListRefusal};
use crate::net::features::{QueueKeys, RingRequest};
use crate::net::path::GuestCopyPath;
use crate::net::path::guest_copy::back::{begin, lent_pages};
use crate::platform::{Access, GrantPool, InUse, PeerMem, Platform};
use crate::ring::{NetRx, RingKind};
use crate::shm::SharedBytes;
use crate::units::PAGE_SIZE;
use crate::wire::ring::ring_size;
use crate::xenbus::KeyError;
use crate::xenbus::back::Begin;
use crate::xenbus::refusal::TooManyPages;
use alloc::vec::Vec;

/// A list page, mapped no longer than it is written, and the generation that was begun there.
pub(super) type PageList<P> = (<<P as Platform>::Peer as PeerMem>::Map, u8);

impl<P: Platform> Vif<P> {
    /// Ends what a predecessor lent, whether anything is lent now or not, and begins the next generation in the list of each queue that
    /// was `told` that it has one.
    pub(super) fn begin_page_lists(
        &mut self,
        p: &P,
        queues: &[QueueKeys],
        told: &[bool],
        how: Begin,
    ) -> Vec<Option<PageList<P>>> {
        let mut lists = Vec::with_capacity(queues.len());
        for (i, (keys, told)) in queues.iter().zip(told).enumerate() {
            // Who was told that there is none looks at no list.
            let wanted = *told && (self.config.guest_copy || how == Begin::Reattach);
            let list = match &keys.guest_copy {
                _ if !wanted => None,
                RingRequest::None => None,
                RingRequest::Bad { key, value } => {
                    let expected = "a grant reference, a decimal number";
                    let why = KeyError::new(key, Some(value.as_bytes()), expected, self.of);
                    self.refuse_to_lend(i, LendRefusal::Key(why));
                    None
                }
                RingRequest::Index(list) => match p.peer().map(self.of, &[*list], Access::ReadWrite) {
                    Ok(list) => {
                        let generation = begin(&list);
                        Some((list, generation))
                    }
                    Err(e) => {
                        self.refuse_to_lend(i, LendRefusal::List(e));
                        None
                    }
                },
            };
            lists.push(list);
        }
        lists
    }

    /// Lends pages to queue `i`, named in `list`, where they are no more than `left`. None: its frames go another way.
    pub(super) fn lend_pages(
        &mut self,
        p: &P,
        (i, keys): (usize, &QueueKeys),
        left: usize,
        (list, generation): PageList<P>,
    ) -> Option<(GuestCopyPath<P>, usize)> {
        if !self.config.guest_copy {
            return None;
        }
        let slots = ring_size(keys.rx_ring.len() * PAGE_SIZE, NetRx::SLOT_WORDS * 4);
        let pages = lent_pages(slots) as usize;
        let lent = if self.held_regions() > 0 {
            Err(LendRefusal::Held(self.held_pages()))
        } else if pages > left {
            Err(LendRefusal::TooManyPages(TooManyPages { asked: pages, left }))
        } else {
            GuestCopyPath::lend(p, self.of, (&list, generation), slots).map_err(LendRefusal::Grant)
        };
        match lent {
            Ok(path) => Some((path, pages)),
            Err(why) => {
                self.refuse_to_lend(i, why);
                None
            }
        }
    }

    fn refuse_to_lend(&mut self, queue: usize, why: LendRefusal) {
        self.refused.push((queue, "rx", ListRefusal::Lending(why)));
    }

    /// Has frames go another way from now on; what is in pages that are lent can be fetched until these are [taken back](Self::take_pages_back).
    pub(super) fn lend_no_more(&mut self) {
        let lent = self.queues.iter_mut().filter_map(|q| q.rx.chain_mut().take_guest_copy());
        self.ended.extend(lent.map(GuestCopyPath::into_region));
    }

    /// Ends what is lent.
    pub(super) fn take_pages_back(&mut self, p: &P) {
        self.lend_no_more();
        self.holds_nothing(p);
        for region in core::mem::take(&mut self.ended) {
            if let Err(InUse(region)) = p.grants().release(region) {
                // Frames that it did not fetch are nobody's to read any more.
                region.zero();
                self.held.push(region);
            }
        }
    }

    /// Tries again to release what a front held. Whether it let go of all.
    pub(super) fn holds_nothing(&mut self, p: &P) -> bool {
        let held = core::mem::take(&mut self.held);
        let still = held.into_iter().filter_map(|region| p.grants().release(region).err());
        self.held = still.map(|InUse(region)| region).collect();
        self.held.is_empty()
    }

    /// Regions that were lent, and that the front has not let go of.
    pub fn held_regions(&self) -> usize {
        self.held.len()
    }

    /// Their pages.
    pub(super) fn held_pages(&self) -> usize {
        self.held.iter().map(|region| region.len() / PAGE_SIZE).sum()
    }
}
