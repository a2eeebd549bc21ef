//! Pages of the guest's own memory that frames are sent from in place: this file grants them, and
//! has the back map them.
//!
//! ```text
//!   OwnPages: memory --page of a frame--> cache of each queue (TxFront) --question--> grant, ADD, DEL --> CtrlFront
//!                                                               <--answer--- answer, statuses <--'
//! ```
//! A page is granted when the back is about to be asked to map it, never for a frame; its grant
//! ends after the back has unmapped it. A request takes a control turn each way; frames of its page
//! are copied meanwhile. The memory is the vif's until all grants have ended. Pages that a back
//! keeps in use stay here over connections, and take a place each.
//!
//! What a back may do: see [`cache`](super::cache). It can read all of an announced page, so put
//! nothing else there.

use super::cache::{ADDS_AT_ONCE, Ask, GrefCache};
use crate::error::{PeerFault, PlatformError};
use crate::memory;
use crate::net::front::ctrl::CtrlFront;
use crate::net::front::queue::FrontQueue;
use crate::net::front::regions::Region;
use crate::net::path::gref_mapping::LIMIT_MAX;
use crate::platform::{Access, GrantPool, Platform};
use crate::shm::SharedBytes;
use crate::units::{DomId, GrantRef, PAGE_SIZE};
use crate::wire::netif_ctrl::GrefEntry;
use alloc::vec::Vec;

/// The guest's own memory from which a vif sends, and the control requests by which the back maps
/// pages of it.
pub struct OwnPages<P: Platform> {
    memory: Region<P>,
    to: DomId,
    places: usize,
    /// Caches of queues that are gone, or that do not exist yet.
    idle: Vec<GrefCache>,
    /// The queue whose request has no answer yet.
    asked: Option<usize>,
    /// The queue that the next request is about.
    next: usize,
    list: Vec<GrefEntry>,
}

impl<P: Platform> OwnPages<P> {
    /// Prepares to send from `memory` to the back `to`. A queue has at most `places` pages of the
    /// memory granted.
    pub fn new(memory: Region<P>, to: DomId, places: usize) -> Self {
        let places = places.min(LIMIT_MAX);
        Self {
            memory,
            to,
            places,
            idle: Vec::new(),
            asked: None,
            next: 0,
            list: Vec::with_capacity(ADDS_AT_ONCE),
        }
    }

    /// The memory from which the vif sends.
    #[inline(always)]
    pub fn memory(&self) -> &Region<P> {
        &self.memory
    }

    /// Gives each of these new queues a cache. Caches that former queues left are used first.
    pub fn equip(&mut self, queues: &mut [FrontQueue<P>]) -> Result<(), PlatformError> {
        let Self { memory, places, idle, .. } = self;
        memory::grow(idle, queues.len())?; // for when they come back
        queues.iter_mut().try_for_each(|queue| {
            let new = || GrefCache::new(memory.len() / PAGE_SIZE, *places);
            queue.tx_mut().set_cache(|| idle.pop().map_or_else(new, Ok))
        })
    }

    /// Notes for each queue how many pages the back's table has room for.
    pub fn begin(queues: &mut [FrontQueue<P>], room: &[usize]) {
        for (queue, room) in queues.iter_mut().zip(room) {
            if let Some(cache) = queue.tx_mut().cache_mut() {
                cache.begin(*room);
            }
        }
    }

    /// Called when another back serves the queues, which has none of the pages mapped. The answer
    /// to a request to the previous back is no longer expected.
    pub fn renew(&mut self, queues: &mut [FrontQueue<P>]) {
        self.asked = None;
        queues.iter_mut().filter_map(|queue| queue.tx_mut().cache_mut()).for_each(GrefCache::renew);
    }

    /// Called when a queue has ended: ends those of its grants that can be ended.
    pub fn put(&mut self, p: &P, mut cache: GrefCache) {
        cache.disconnect(|gref| end(p, gref));
        self.asked = None;
        self.idle.push(cache);
    }

    /// Tries again to end grants of queues that are gone.
    pub fn release(&mut self, p: &P) {
        self.idle
            .iter_mut()
            .filter(|cache| cache.grants() > 0)
            .for_each(|cache| cache.disconnect(|gref| end(p, gref)));
    }

    /// Number of grants that still exist for queues that are gone.
    pub fn grants(&self) -> usize {
        self.idle.iter().map(GrefCache::grants).sum()
    }

    /// Returns the memory, once no queue uses it and no grant exists.
    pub fn into_memory(self) -> Region<P> {
        self.memory
    }

    /// True if an answer is outstanding.
    pub fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    /// Processes an answer if one has arrived, and sends the next request, unless a request of
    /// somebody else is under way. Returns true if something happened.
    pub fn turn(
        &mut self,
        p: &P,
        ctrl: &mut CtrlFront<P>,
        queues: &mut [FrontQueue<P>],
    ) -> Result<bool, PeerFault> {
        let mut answered = false;
        if let Some(queue) = self.asked {
            let Some(answer) = ctrl.answer()? else { return Ok(false) };
            self.asked = None;
            answered = true;
            let statuses = ctrl.statuses(self.list.len()).unwrap_or_default();
            if let Some(cache) = queues.get_mut(queue).and_then(|queue| queue.tx_mut().cache_mut()) {
                cache.take_answer(answer, statuses, |gref| end(p, gref));
            }
        }
        Ok(!ctrl.is_pending() && self.ask(p, ctrl, queues) || answered)
    }

    /// Sends the next request of a queue; the queues take turns.
    fn ask(&mut self, p: &P, ctrl: &mut CtrlFront<P>, queues: &mut [FrontQueue<P>]) -> bool {
        let Self { memory, to, list, .. } = self;
        let n = queues.len();
        for queue in (0..n).map(|k| (self.next + k) % n) {
            let Some(cache) = queues[queue].tx_mut().cache_mut() else { continue };
            let question = cache.question(list, |page| grant(p, *to, memory, page).ok(), |gref| end(p, gref));
            let asked = match question {
                Some(Ask::Add) => ctrl.add_grefs(p, queue as u32, list),
                Some(Ask::Del) => ctrl.del_grefs(p, queue as u32, list),
                None => continue,
            };
            if asked.is_err() {
                cache.unsent(|gref| end(p, gref));
                return false;
            }
            (self.asked, self.next) = (Some(queue), queue + 1);
            return true;
        }
        false
    }
}

fn grant<P: Platform>(p: &P, to: DomId, memory: &Region<P>, page: usize) -> Result<GrantRef, PlatformError> {
    let none = PlatformError { op: "grant a page of one's own, on a platform that cannot", code: 95 };
    p.grants().per_frame().ok_or(none)?.grant(to, memory, page, Access::ReadOnly)
}

/// Ends a grant. False: the back still uses it.
fn end<P: Platform>(p: &P, gref: GrantRef) -> bool {
    p.grants().per_frame().is_some_and(|table| table.revoke(gref).is_ok())
}
