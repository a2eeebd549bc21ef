//! The control ring at the front: one request at a time, and its answer (docs/protocol 2.11).
//!
//! ```text
//!   set_key(bytes)    --page--> ask(type, data) --ring--> back          answer() --> CtrlResponse
//!   add_grefs, del_grefs --list--^                         '--list--> statuses()
//! ```
//! It is used once the back is connected. Keys and tables are passed in one page of our own, lists
//! of references in another one that the back may write to; both are granted from set-up to
//! disconnect, and only written while no request is in flight. What a back may do: answer what was
//! not asked (a fault: the device is closed), with any status or number, or never; send events
//! without answers, which count as spurious; write anything to the list.

use super::regions::{Granted, Grants, Region, Regions};
use crate::error::{PeerFault, PlatformError};
use crate::net::features::CtrlKeys;
use crate::net::front::regions::Granting;
use crate::platform::{Access, Events, Platform};
use crate::ring::{FrontRing, NetCtrl, RingPages};
use crate::shm::SharedBytes;
use crate::units::PAGE_SIZE;
use crate::wire::netif_ctrl::{CtrlRequest, CtrlResponse, CtrlType, GREF_LIST_MAX, GrefEntry};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// The front's end of a control ring.
pub struct CtrlFront<P: Platform> {
    ring: FrontRing<NetCtrl, RingPages<NetCtrl, Region<P>>>,
    ring_grants: Grants,
    chan: <P::Events as Events>::Chan,
    /// The page for keys and tables, which the back may only read.
    page: Granted<P>,
    /// The page for lists of references, which the back may write.
    list: Granted<P>,
    /// The request that has no answer yet.
    pending: Option<CtrlRequest>,
    /// The id of the next request. It is never 0: Windows' front skips 0, so a back may treat it as
    /// no id.
    next_id: u16,
    /// An answer was found since the channel was unmasked.
    found: bool,
    /// Scratch memory, so that nothing is allocated after set-up.
    statuses: Box<[u16]>,
}

/// A request is in flight already, or the new request's data does not fit in a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotAsked;

/// An error that cannot happen, since all pages were granted.
const NO_PAGE: PlatformError = PlatformError { op: "make a control ring without pages", code: 22 };

impl<P: Platform> CtrlFront<P> {
    /// Grants a ring and two pages and offers a channel. The keys must be written to xenstore.
    #[inline(never)] // a kernel's stack is small
    pub fn new(p: &P, regions: &mut Regions<P>) -> Result<(Self, CtrlKeys), PlatformError> {
        let mut pages = Vec::with_capacity(3);
        let accesses = [Access::ReadWrite, Access::ReadOnly, Access::ReadWrite];
        let granted = accesses.into_iter().try_for_each(|acc| {
            pages.push(regions.take(p, acc, 1, Granting::Standing)?);
            Ok(())
        });
        let offered = granted.and_then(|()| p.events().offer(regions.to()));
        let ((chan, channel), [ring, page, list]) = match (offered, <[_; 3]>::try_from(pages)) {
            (Ok(offered), Ok(pages)) => (offered, pages),
            (offered, pages) => {
                let pages = pages.map_or_else(|some| some, Vec::from);
                pages.into_iter().for_each(|granted| regions.put(p, granted));
                return Err(offered.err().unwrap_or(NO_PAGE));
            }
        };
        let (ring, ring_grants) = ring.into_parts();
        let ring = RingPages::new(ring);
        ring.init();
        let ring = FrontRing::new(ring);
        let keys = CtrlKeys { ring: ring_grants.first(), channel };
        let statuses = vec![0; GREF_LIST_MAX + 1].into_boxed_slice();
        Ok((
            Self { ring, ring_grants, chan, page, list, pending: None, next_id: 1, found: false, statuses },
            keys,
        ))
    }

    /// Sends a request. [`answer`](Self::answer) returns its answer.
    pub fn ask(&mut self, p: &P, msg_type: CtrlType, data: [u32; 3]) -> Result<(), NotAsked> {
        if self.pending.is_some() {
            return Err(NotAsked);
        }
        let request = CtrlRequest { id: self.next_id, msg_type: msg_type.raw(), data };
        self.next_id = self.next_id.checked_add(1).unwrap_or(1);
        self.pending = Some(request);
        self.ring.push(&request);
        if self.ring.publish().wanted() {
            p.events().notify(&self.chan);
        }
        Ok(())
    }

    /// Sends a request to set this hash key.
    pub fn set_key(&mut self, p: &P, key: &[u8]) -> Result<(), NotAsked> {
        if self.pending.is_some() || !self.page.bytes().copy_in(0, key) {
            return Err(NotAsked);
        }
        let gref = self.page.refs().first().ok_or(NotAsked)?.0;
        self.ask(p, CtrlType::SetHashKey, [gref, key.len() as u32, 0])
    }

    /// Sends a request to set these queues in the table, from entry `first` on.
    pub fn set_mapping(&mut self, p: &P, first: u32, queues: &[u32]) -> Result<(), NotAsked> {
        if self.pending.is_some() || queues.len() > PAGE_SIZE / 4 {
            return Err(NotAsked);
        }
        let bytes = self.page.bytes();
        if !queues.iter().enumerate().all(|(k, queue)| bytes.copy_in(k * 4, &queue.to_le_bytes())) {
            return Err(NotAsked);
        }
        self.ask(p, CtrlType::SetHashMapping, [self.page.refs()[0].0, queues.len() as u32, first])
    }

    /// Sends a request about `queue`, with a list of at most 512 entries.
    pub(crate) fn ask_with_list(
        &mut self,
        p: &P,
        msg_type: CtrlType,
        queue: u32,
        entries: &[GrefEntry],
    ) -> Result<(), NotAsked> {
        let bytes = self.list.bytes();
        if self.pending.is_some() || entries.len() * GrefEntry::SIZE > bytes.len() {
            return Err(NotAsked);
        }
        for (k, entry) in entries.iter().enumerate() {
            if !bytes.copy_in(k * GrefEntry::SIZE, &entry.to_bytes()) {
                return Err(NotAsked);
            }
        }
        let gref = self.list.refs().first().ok_or(NotAsked)?.0;
        self.ask(p, msg_type, [queue, gref, entries.len() as u32])
    }

    /// The statuses that the back wrote to the first `n` entries of the list. None: there are fewer
    /// entries.
    pub fn statuses(&mut self, n: usize) -> Option<&[u16]> {
        let n = n.min(self.statuses.len());
        for (k, status) in self.statuses.iter_mut().enumerate().take(n) {
            let mut entry = [0; GrefEntry::SIZE];
            if !self.list.bytes().copy_out(k * GrefEntry::SIZE, &mut entry) {
                return None;
            }
            *status = GrefEntry::from_bytes(entry).status;
        }
        self.statuses.get(..n)
    }

    /// Whether a request is in flight.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// The back's response to the last request, once it is there.
    pub fn answer(&mut self) -> Result<Option<CtrlResponse>, PeerFault> {
        if self.ring.available(1)? == 0 {
            return Ok(None);
        }
        let answer = self.ring.read(0);
        self.ring.consume(1);
        self.found = true;
        match self.pending.take() {
            Some(asked) if asked.id == answer.id && asked.msg_type == answer.msg_type => Ok(Some(answer)),
            _ => Err(PeerFault::UnknownId(answer.id)),
        }
    }

    /// Call before sleeping: asks for an event and unmasks the channel. Returns true if there is an
    /// answer.
    pub fn final_check(&mut self, p: &P) -> Result<bool, PeerFault> {
        let work = self.pending.is_some() && self.ring.final_check(1)?;
        match core::mem::take(&mut self.found) {
            true => p.events().unmask(&self.chan),
            false => p.events().unmask_spurious(&self.chan),
        }
        Ok(work)
    }

    /// Takes this apart into the ring's page, the page of keys, and the page of lists, for
    /// [`Regions::put`].
    pub fn into_granted(self) -> [Granted<P>; 3] {
        [Granted::from_parts(self.ring.into_mem().into_pages(), self.ring_grants), self.page, self.list]
    }
}
