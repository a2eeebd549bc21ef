//! RX pages that come and go, each granted by itself: for frames that a consumer has by reference,
//! whose slots have others meanwhile.
//!
//! ```text
//!   grow:    a page, granted --spare--> slots        its reference --ADD--> the back keeps it mapped
//!   shrink:  a spare page --DEL, answered--> its grant ends --> the platform's
//! ```
//! A page is posted as soon as it is granted: what the back has not mapped it copies by grant. A
//! page that the back may have mapped is taken away by a DEL (docs/protocol 2.11); other pages, and
//! all pages of a back that maps none, by the end of their grants alone.
//!
//! Invariants: a page that a slot has, or a consumer, is not taken away. Its memory is given back
//! when its grant has ended, and no earlier.
//!
//! What a back may do: refuse an ADD (half as many are named, and in the end each alone, if a GET
//! says that there is room), refuse a DEL or keep a page that it says it let go of (its grant
//! stands, and it goes with the vif's other pages; with 256 of them the pool grows no more), never
//! answer.

use crate::error::{PeerFault, PlatformError};
use crate::memory;
use crate::net::front::ctrl::CtrlFront;
use crate::net::front::own_pages::cache::DELS_MAX;
use crate::net::front::queue::FrontQueue;
use crate::net::front::regions::{Granted, Regions};
use crate::net::path::copy::front::OrdinaryPages;
use crate::net::path::gref_mapping::front::{added, deleted};
use crate::platform::{Access, InUse, Platform};
use crate::units::GrantRef;
use crate::wire::netif_ctrl::{CtrlResponse, CtrlStatus, CtrlType, GrefEntry};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Largest number of pages in one request.
const AT_ONCE: usize = 64;

/// If the back refuses this many pages one after another, it has no room, whatever size it reports.
const REFUSED_MAX: u32 = AT_ONCE as u32;

/// Largest number of removed pages that the back has mapped, or may have. If there are more, no
/// further page is granted.
const KEPT_MAX: usize = 256;

/// A page that was added to a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Page {
    number: u16,
    gref: GrantRef,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The next ADD request will name the page.
    Fresh,
    /// The back has the page mapped, or was asked to map it.
    Mapped,
    /// The back refused a request for this page alone: it may have the page mapped already, by a
    /// predecessor's request.
    Refused,
    /// The back was not asked to map the page.
    Plain,
}

/// A page that was removed from the queue and that the back may still have mapped.
struct Leaving<P: Platform> {
    granted: Granted<P>,
    /// Number of DEL requests that named the page.
    dels: u8,
}

/// The pages that one queue gained beyond those of its set-up.
struct OfQueue<P: Platform> {
    /// Number of pages that the back's table has room for.
    room: usize,
    /// Number of pages in the table that stay there.
    standing: usize,
    /// Number of pages in a row that the back refused one by one.
    refused: u32,
    /// The back must be asked how much room its table has.
    doubts: bool,
    pages: Vec<Page>,
    leaving: VecDeque<Leaving<P>>,
}

impl<P: Platform> Default for OfQueue<P> {
    fn default() -> Self {
        let (pages, leaving) = (Vec::new(), VecDeque::new());
        Self { room: 0, standing: 0, refused: 0, doubts: false, pages, leaving }
    }
}

impl<P: Platform> OfQueue<P> {
    /// Number of pages that have a place in the back's table or are meant to get one, including
    /// pages that are about to leave it.
    fn named(&self) -> usize {
        self.leaving.len() + self.pages.iter().filter(|page| page.state != State::Plain).count()
    }

    /// Number of pages that the back says it keeps mapped.
    fn mapped(&self) -> usize {
        self.pages.iter().filter(|page| page.state == State::Mapped).count()
    }

    /// Starts with no page in the table, which has room for `room` pages beside the `standing`
    /// ones.
    fn begin(&mut self, room: usize, standing: usize) {
        (self.room, self.standing, self.refused, self.doubts) = (room, standing, 0, false);
    }

    /// Notes that the back has no room for pages that it has not mapped, so that it is not asked to
    /// map them any more.
    fn has_no_room(&mut self) {
        let others = self.pages.iter_mut().filter(|page| page.state != State::Mapped);
        others.for_each(|page| page.state = State::Plain);
        (self.room, self.refused, self.doubts) = (self.named(), 0, false);
    }
}

/// The request under way: of which queue, and how many pages.
#[derive(Clone, Copy)]
enum Asked {
    /// Pages of the list were announced in an ADD request.
    Add(usize, usize),
    /// The first pages that are leaving were named in a DEL request.
    Del(usize, usize),
    /// The back was asked for the size of a queue's table.
    Size(usize),
}

/// Counters of a vif's pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolStats {
    /// Number of pages that were added.
    pub grown: u64,
    /// Number of pages that were removed.
    pub shrunk: u64,
    /// Number of added pages that the back mapped.
    pub adds: u64,
    /// Number of pages that the back unmapped as asked.
    pub dels: u64,
}

/// Adds RX pages to live queues, and removes them, with the control requests that have the back map
/// and unmap them.
pub struct RxPool<P: Platform> {
    queues: Vec<OfQueue<P>>,
    asked: Option<Asked>,
    /// Numbers of the pages of an ADD.
    list: [u16; AT_ONCE],
    /// Number of pages in one request.
    part: usize,
    /// Removed pages whose grants the back still uses.
    ending: VecDeque<Leaving<P>>,
    stats: PoolStats,
}

impl<P: Platform> Default for RxPool<P> {
    fn default() -> Self {
        Self {
            queues: Vec::new(),
            asked: None,
            list: [0; AT_ONCE],
            part: AT_ONCE,
            ending: VecDeque::new(),
            stats: PoolStats::default(),
        }
    }
}

impl<P: Platform> RxPool<P> {
    /// Starts to manage the pages of queue `i`, which is live.
    ///
    /// # Errors
    ///
    /// There is no memory for the list of the pages.
    pub fn adopt(&mut self, i: usize, queue: &FrontQueue<P>) -> Result<(), PlatformError> {
        let page = |(number, gref)| Page { number, gref, state: State::Plain };
        let missing = (i + 1).saturating_sub(self.queues.len());
        memory::grow(&mut self.queues, missing)?;
        while self.queues.len() <= i {
            self.queues.push(OfQueue::default());
        }
        if let Some(of) = self.queues.get_mut(i) {
            of.pages.clear();
        }
        self.have_room(i, queue.rx().added_refs().count())?;
        if let Some(of) = self.queues.get_mut(i) {
            queue.rx().added_refs().for_each(|added| of.pages.push(page(added)));
        }
        Ok(())
    }

    /// Makes room in the lists for `more` pages of queue `i`, so that taking away all pages later
    /// needs no memory.
    fn have_room(&mut self, i: usize, more: usize) -> Result<(), PlatformError> {
        let Some(of) = self.queues.get_mut(i) else { return Ok(()) };
        memory::grow(&mut of.pages, more)?;
        memory::grow_queue(&mut of.leaving, of.pages.len() + more)?;
        let of_all = self.queues.iter().map(|of| of.leaving.len() + of.pages.len()).sum::<usize>();
        memory::grow_queue(&mut self.ending, of_all + more)
    }

    /// Called when the back has mapped the static pages: `standing` of each queue, with `room` for
    /// more.
    pub fn begin(&mut self, standing: &[usize], room: &[usize]) {
        for ((queue, room), standing) in self.queues.iter_mut().zip(room).zip(standing) {
            queue.begin(*room, *standing);
            let plain = queue.pages.iter_mut().filter(|page| page.state == State::Plain);
            plain.take(*room).for_each(|page| page.state = State::Fresh);
        }
    }

    /// Adds at most `n` pages to queue `i`. Returns how many, and the error that prevented more.
    pub fn grow(
        &mut self,
        p: &P,
        regions: &mut Regions<P>,
        (i, queue): (usize, &mut FrontQueue<P>),
        n: usize,
    ) -> (usize, Option<PlatformError>) {
        let Some(of) = self.queues.get(i) else { return (0, None) };
        let has_number = |pages: &OrdinaryPages<P>| pages.free_number().is_some();
        let is_full = !queue.rx().chain().pages().is_some_and(has_number);
        if is_full || of.leaving.len() + self.ending.len() >= KEPT_MAX {
            return (0, None);
        }
        if let Err(e) = self.have_room(i, n) {
            return (0, Some(e));
        }
        let Self { queues, stats, .. } = self;
        let Some(of) = queues.get_mut(i) else { return (0, None) };
        let (mut grown, mut failed) = (0, None);
        let mut asked = of.named();
        while grown < n
            && let Some(number) = queue.rx().chain().pages().and_then(OrdinaryPages::free_number)
        {
            let granted = match regions.take_exactly(p, Access::ReadWrite, 1) {
                Ok(granted) => granted,
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            };
            let gref = granted.refs().first().copied().unwrap_or(GrantRef::NONE);
            if let Err(granted) = queue.rx_mut().add_page(number, granted) {
                regions.put(p, granted);
                break;
            }
            let state = if asked < of.room { State::Fresh } else { State::Plain };
            asked += 1;
            of.pages.push(Page { number, gref, state });
            grown += 1;
        }
        stats.grown += grown as u64;
        (grown, failed)
    }

    /// Removes at most `n` spare pages from queue `i`. Returns how many.
    pub fn shrink(
        &mut self,
        p: &P,
        regions: &mut Regions<P>,
        (i, queue): (usize, &mut FrontQueue<P>),
        n: usize,
    ) -> usize {
        let Self { queues, ending, .. } = self;
        let Some(of) = queues.get_mut(i) else { return 0 };
        let mut shrunk = 0;
        while shrunk < n
            && let Some((number, granted)) = queue.rx_mut().take_page()
        {
            let at = of.pages.iter().position(|page| page.number == number);
            let state = at.map(|at| of.pages.swap_remove(at).state);
            match state {
                Some(State::Mapped | State::Refused) => of.leaving.push_back(Leaving { granted, dels: 0 }),
                _ => release(p, regions, granted, ending),
            }
            shrunk += 1;
        }
        self.stats.shrunk += shrunk as u64;
        shrunk
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
        regions: &mut Regions<P>,
        ctrl: &mut CtrlFront<P>,
    ) -> Result<bool, PeerFault> {
        let mut answered = false;
        if let Some(asked) = self.asked {
            let Some(answer) = ctrl.answer()? else { return Ok(false) };
            answered = true;
            self.asked = None;
            match asked {
                Asked::Add(i, n) => self.take_added(i, n, answer, ctrl.statuses(n).unwrap_or_default()),
                Asked::Del(i, n) => {
                    let statuses = ctrl.statuses(n).unwrap_or_default();
                    self.take_deleted(p, regions, (i, n), answer, statuses);
                }
                Asked::Size(i) => self.take_size(i, answer),
            }
        }
        Ok(!ctrl.is_pending() && self.ask(p, ctrl) || answered)
    }

    fn take_added(&mut self, i: usize, n: usize, answer: CtrlResponse, statuses: &[u16]) {
        let Self { queues, list, part, stats, .. } = self;
        let Some(of) = queues.get_mut(i) else { return };
        let taken = added(answer, statuses, n).count();
        // A single page that the back has already makes it refuse the whole list.
        let again = taken == 0 && n > 1;
        *part = if taken > 0 { (*part * 2).min(AT_ONCE) } else { (n / 2).max(1) };
        stats.adds += taken as u64;
        let mut mapped = added(answer, statuses, n).peekable();
        for (k, number) in list.iter().enumerate().take(n) {
            if mapped.next_if_eq(&k).is_some() {
                continue;
            }
            let page = of.pages.iter_mut().find(|page| page.number == *number);
            page.into_iter().for_each(|page| page.state = if again { State::Fresh } else { State::Refused });
        }
        of.doubts = taken == 0 && n == 1;
        of.refused = if of.doubts { of.refused + 1 } else { 0 };
    }

    /// Processes the size of a queue's table. By the specification the size counts the pages in the
    /// table, too; by its draft only free places.
    fn take_size(&mut self, i: usize, answer: CtrlResponse) {
        let Some(of) = self.queues.get_mut(i) else { return };
        of.doubts = false;
        let good = CtrlStatus::from_raw(answer.status) == Some(CtrlStatus::Success);
        let has = of.standing + of.mapped() + of.leaving.len();
        if !good || answer.data as usize <= has || of.refused > REFUSED_MAX {
            of.has_no_room();
            self.part = AT_ONCE;
        }
    }

    fn take_deleted(
        &mut self,
        p: &P,
        regions: &mut Regions<P>,
        (i, n): (usize, usize),
        answer: CtrlResponse,
        statuses: &[u16],
    ) {
        let Self { queues, ending, stats, .. } = self;
        let Some(of) = queues.get_mut(i) else { return };
        let mut let_go = deleted(answer, statuses, n).peekable();
        for k in 0..n {
            let Some(mut page) = of.leaving.pop_front() else { return };
            page.dels += 1;
            if let_go.next_if_eq(&k).is_some() {
                stats.dels += 1;
                release(p, regions, page.granted, ending);
            } else if page.dels < DELS_MAX {
                of.leaving.push_back(page);
            } else {
                ending.push_back(page);
            }
        }
    }

    fn ask(&mut self, p: &P, ctrl: &mut CtrlFront<P>) -> bool {
        let mut entries = [GrefEntry::default(); AT_ONCE];
        let entry = |gref: GrantRef| GrefEntry { gref: gref.0, flags: 0, status: 0 };
        for (i, of) in self.queues.iter_mut().enumerate() {
            let mut n = 0;
            if !of.leaving.is_empty() {
                let grefs = of.leaving.iter().filter_map(|page| page.granted.refs().first());
                for (to, gref) in entries.iter_mut().zip(grefs) {
                    *to = entry(*gref);
                    n += 1;
                }
                let asked = ctrl.del_grefs(p, i as u32, entries.get(..n).unwrap_or_default()).is_ok();
                self.asked = asked.then_some(Asked::Del(i, n));
                return asked;
            }
            if of.doubts {
                let asked = ctrl.ask(p, CtrlType::GetGrefMappingSize, [i as u32, 0, 0]).is_ok();
                self.asked = asked.then_some(Asked::Size(i));
                return asked;
            }
            let fresh = of.pages.iter_mut().filter(|page| page.state == State::Fresh);
            for ((to, number), page) in entries.iter_mut().take(self.part).zip(&mut self.list).zip(fresh) {
                (*to, *number) = (entry(page.gref), page.number);
                page.state = State::Mapped;
                n += 1;
            }
            if n > 0 {
                // The control ring is free: the caller has checked that.
                let asked = ctrl.add_grefs(p, i as u32, entries.get(..n).unwrap_or_default()).is_ok();
                self.asked = asked.then_some(Asked::Add(i, n));
                return asked;
            }
        }
        false
    }

    /// Called when another back has the rings, and has none of the pages mapped.
    pub fn renew(&mut self, regions: &mut Regions<P>, p: &P) {
        (self.asked, self.part) = (None, AT_ONCE);
        for of in &mut self.queues {
            of.begin(0, 0);
            of.pages.iter_mut().for_each(|page| page.state = State::Plain);
            put_by(p, regions, &mut of.leaving);
        }
    }

    /// Called when the queues end, with their pages in them. Removed pages are kept for the next
    /// connection.
    pub fn end(&mut self, p: &P, regions: &mut Regions<P>) {
        self.renew(regions, p);
        self.queues.clear();
        put_by(p, regions, &mut self.ending);
    }

    /// Tries again to end grants of pages that the back had mapped.
    pub fn release(&mut self, p: &P, regions: &mut Regions<P>) {
        for _ in 0..self.ending.len() {
            if let Some(page) = self.ending.pop_front() {
                release(p, regions, page.granted, &mut self.ending);
            }
        }
    }

    /// Number of individually granted pages of queue `i`.
    pub fn pages_of(&self, i: usize) -> usize {
        self.queues.get(i).map_or(0, |of| of.pages.len())
    }

    /// Number of pages that were added and not removed.
    pub fn pages(&self) -> usize {
        self.queues.iter().map(|of| of.pages.len()).sum()
    }

    /// Number of added pages that the back says it keeps mapped.
    pub fn mapped(&self) -> usize {
        self.queues.iter().map(OfQueue::mapped).sum()
    }

    /// Number of removed pages whose grants still exist.
    pub fn leaving(&self) -> usize {
        self.ending.len() + self.queues.iter().map(|of| of.leaving.len()).sum::<usize>()
    }

    /// Counters of added and removed pages.
    pub fn stats(&self) -> PoolStats {
        self.stats
    }
}

/// Keeps pages whose grants still exist for the next connection.
fn put_by<P: Platform>(p: &P, regions: &mut Regions<P>, pages: &mut VecDeque<Leaving<P>>) {
    while let Some(page) = pages.pop_front() {
        regions.put(p, page.granted);
    }
}

/// Ends a page's grant. If the back still uses it, the page goes to `ending`.
fn release<P: Platform>(
    p: &P,
    regions: &mut Regions<P>,
    granted: Granted<P>,
    ending: &mut VecDeque<Leaving<P>>,
) {
    if let Err(InUse(granted)) = regions.end(p, granted) {
        ending.push_back(Leaving { granted, dels: 0 });
    }
}
