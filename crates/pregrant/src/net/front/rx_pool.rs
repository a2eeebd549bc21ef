//! RX pages that come and go, each granted by itself: for frames that a consumer has by reference,
//! whose slots have others meanwhile.
//!
//! ```text
//!   grow:    a page, granted --spare--> slots        its reference --ADD--> the back keeps it mapped
//!   shrink:  a spare page --DEL, answered--> its grant ends --> the platform's
//! ```
//! A page is posted as soon as it is granted: what the back has not mapped it copies by grant. One
//! that it may have mapped is taken away by a DEL (docs/protocol 2.11); the others, and all of a
//! back that maps none, by the end of their grants alone.
//!
//! Invariants: a page that a slot has, or a consumer, is not taken away. Its memory is given back
//! when its grant has ended, and no earlier.
//!
//! What a back may do: refuse an ADD (no more are tried), refuse a DEL or keep a page that it says
//! it let go of (its grant stands, and it goes with the vif's other pages), never answer.

use super::ctrl::CtrlFront;
use super::queue::FrontQueue;
use super::regions::{Granted, Regions};
use crate::error::{PeerFault, PlatformError};
use crate::net::path::gref_mapping::cache::DELS_MAX;
use crate::net::path::gref_mapping::front::added;
use crate::platform::{Access, InUse, Platform};
use crate::units::GrantRef;
use crate::wire::netif_ctrl::{CtrlResponse, GrefEntry};
use alloc::vec::Vec;

/// Pages of one request at most.
const AT_ONCE: usize = 64;

/// A page of a queue, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Page {
    number: u16,
    gref: GrantRef,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The next ADD names it.
    Fresh,
    /// The back has it, or was asked to.
    Mapped,
    /// The back is not asked to have it.
    Plain,
}

/// A page that was taken away and that the back may have mapped.
struct Leaving<P: Platform> {
    granted: Granted<P>,
    /// DELs that named it.
    dels: u8,
}

/// Of one queue.
struct OfQueue<P: Platform> {
    /// Pages that the back's table has room for.
    room: usize,
    pages: Vec<Page>,
    leaving: Vec<Leaving<P>>,
}

impl<P: Platform> Default for OfQueue<P> {
    fn default() -> Self {
        Self { room: 0, pages: Vec::new(), leaving: Vec::new() }
    }
}

/// What the back was asked: of which queue, and these pages.
enum Asked {
    Add(usize, Vec<u16>),
    /// The first so many that are leaving.
    Del(usize, usize),
}

/// Counters of a vif's pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolStats {
    /// Pages that were added.
    pub grown: u64,
    /// Pages that were taken away.
    pub shrunk: u64,
    /// Of those added, pages that the back mapped.
    pub adds: u64,
    /// Pages that it let go of, as asked.
    pub dels: u64,
}

/// See the module.
pub struct RxPool<P: Platform> {
    queues: Vec<OfQueue<P>>,
    asked: Option<Asked>,
    /// The back still has these.
    ending: Vec<Granted<P>>,
    stats: PoolStats,
}

impl<P: Platform> Default for RxPool<P> {
    fn default() -> Self {
        Self { queues: Vec::new(), asked: None, ending: Vec::new(), stats: PoolStats::default() }
    }
}

impl<P: Platform> RxPool<P> {
    fn queue(&mut self, i: usize) -> &mut OfQueue<P> {
        if self.queues.len() <= i {
            self.queues.resize_with(i + 1, OfQueue::default);
        }
        &mut self.queues[i]
    }

    /// A queue is live, with these pages.
    pub fn adopt(&mut self, i: usize, queue: &FrontQueue<P>) {
        let page = |(number, gref)| Page { number, gref, state: State::Plain };
        self.queue(i).pages = queue.rx().added_refs().map(page).collect();
    }

    /// The back has mapped the static pages, and has room for so many more of each queue.
    pub fn begin(&mut self, room: &[usize]) {
        for (i, room) in room.iter().enumerate() {
            let queue = self.queue(i);
            queue.room = *room;
            let plain = queue.pages.iter_mut().filter(|page| page.state == State::Plain);
            plain.take(*room).for_each(|page| page.state = State::Fresh);
        }
    }

    /// Adds at most `n` pages to queue `i`. Returns how many, and why not more.
    pub fn grow(
        &mut self,
        p: &P,
        regions: &mut Regions<P>,
        (i, queue): (usize, &mut FrontQueue<P>),
        n: usize,
    ) -> (usize, Option<PlatformError>) {
        let of = self.queue(i);
        let (first, room) = queue.rx().chain().pages().map_or((0, 0), |pages| pages.room());
        let mut grown = 0;
        let mut taken = alloc::vec![false; room as usize];
        for page in &of.pages {
            if let Some(place) = taken.get_mut(usize::from(page.number.saturating_sub(first))) {
                *place = true;
            }
        }
        let numbers = (first..).zip(&taken).filter(|(_, taken)| !**taken).map(|(number, _)| number);
        let mut failed = None;
        for number in numbers.take(n) {
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
            let fresh = of.pages.iter().filter(|page| page.state != State::Plain).count() < of.room;
            let state = if fresh { State::Fresh } else { State::Plain };
            of.pages.push(Page { number, gref, state });
            grown += 1;
        }
        self.stats.grown += grown as u64;
        (grown, failed)
    }

    /// Takes at most `n` spare pages of queue `i` away. Returns how many.
    pub fn shrink(&mut self, p: &P, (i, queue): (usize, &mut FrontQueue<P>), n: usize) -> usize {
        self.queue(i);
        let Self { queues, ending, .. } = self;
        let Some(of) = queues.get_mut(i) else { return 0 };
        let mut shrunk = 0;
        while shrunk < n
            && let Some((number, granted)) = queue.rx_mut().take_page()
        {
            let at = of.pages.iter().position(|page| page.number == number);
            let state = at.map(|at| of.pages.swap_remove(at).state);
            match state {
                Some(State::Mapped) => of.leaving.push(Leaving { granted, dels: 0 }),
                _ => ending.extend(granted.release(p).err().map(|InUse(granted)| granted)),
            }
            shrunk += 1;
        }
        self.stats.shrunk += shrunk as u64;
        shrunk
    }

    /// Whether an answer is waited for.
    pub fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    /// Takes the answer if it is there, and asks what is to be asked next, unless somebody else
    /// does. True: something moved.
    pub fn turn(&mut self, p: &P, ctrl: &mut CtrlFront<P>) -> Result<bool, PeerFault> {
        let mut answered = false;
        if let Some(asked) = &self.asked {
            let Some(answer) = ctrl.answer()? else { return Ok(false) };
            let n = match asked {
                Asked::Add(_, numbers) => numbers.len(),
                Asked::Del(_, n) => *n,
            };
            let statuses = ctrl.statuses(n).unwrap_or_default();
            answered = true;
            match self.asked.take() {
                Some(Asked::Add(i, numbers)) => self.take_added(i, &numbers, answer, statuses),
                Some(Asked::Del(i, n)) => self.take_deleted(p, i, n, answer, statuses),
                None => {}
            }
        }
        Ok(!ctrl.is_pending() && self.ask(p, ctrl) || answered)
    }

    fn take_added(&mut self, i: usize, numbers: &[u16], answer: CtrlResponse, statuses: &[u16]) {
        let mut mapped = alloc::vec![false; numbers.len()];
        added(answer, statuses, numbers.len()).for_each(|k| mapped[k] = true);
        let n = mapped.iter().filter(|mapped| **mapped).count();
        self.stats.adds += n as u64;
        let of = self.queue(i);
        let refused = numbers.iter().zip(&mapped).filter(|(_, mapped)| !**mapped).map(|(number, _)| *number);
        for number in refused {
            let page = of.pages.iter_mut().find(|page| page.number == number);
            // One that was taken away since is asked back all the same.
            page.into_iter().for_each(|page| page.state = State::Plain);
        }
        if n < numbers.len() {
            of.room = 0;
            of.pages
                .iter_mut()
                .filter(|page| page.state == State::Fresh)
                .for_each(|page| page.state = State::Plain);
        }
    }

    fn take_deleted(&mut self, p: &P, i: usize, n: usize, answer: CtrlResponse, statuses: &[u16]) {
        let mut let_go = alloc::vec![false; n];
        added(answer, statuses, n).for_each(|k| let_go[k] = true);
        let of = self.queue(i);
        let (mut dels, mut kept) = (0, Vec::new());
        for (k, mut page) in of.leaving.drain(..n.min(of.leaving.len())).enumerate().collect::<Vec<_>>() {
            page.dels += 1;
            if let_go[k] {
                dels += 1;
                kept.extend(page.granted.release(p).err().map(|InUse(granted)| granted));
            } else if page.dels < DELS_MAX {
                of.leaving.push(page);
            } else {
                kept.push(page.granted);
            }
        }
        of.room += dels;
        self.stats.dels += dels as u64;
        self.ending.append(&mut kept);
    }

    fn ask(&mut self, p: &P, ctrl: &mut CtrlFront<P>) -> bool {
        for (i, of) in self.queues.iter_mut().enumerate() {
            let entry = |gref: GrantRef| GrefEntry { gref: gref.0, flags: 0, status: 0 };
            if !of.leaving.is_empty() {
                let grefs = of.leaving.iter().filter_map(|page| page.granted.refs().first());
                let list: Vec<_> = grefs.take(AT_ONCE).map(|gref| entry(*gref)).collect();
                if ctrl.del_grefs(p, i as u32, &list).is_ok() {
                    self.asked = Some(Asked::Del(i, list.len()));
                    return true;
                }
                return false;
            }
            let fresh = of.pages.iter_mut().filter(|page| page.state == State::Fresh);
            let fresh: Vec<_> = fresh.take(AT_ONCE).collect();
            if fresh.is_empty() {
                continue;
            }
            let list: Vec<_> = fresh.iter().map(|page| entry(page.gref)).collect();
            if ctrl.add_grefs(p, i as u32, &list).is_err() {
                return false;
            }
            let asked = fresh.into_iter().map(|page| {
                page.state = State::Mapped;
                page.number
            });
            self.asked = Some(Asked::Add(i, asked.collect()));
            return true;
        }
        false
    }

    /// Another back has the rings, and none of the pages.
    pub fn renew(&mut self, regions: &mut Regions<P>, p: &P) {
        self.asked = None;
        for of in &mut self.queues {
            of.room = 0;
            of.pages.iter_mut().for_each(|page| page.state = State::Plain);
            of.leaving.drain(..).for_each(|page| regions.put(p, page.granted));
        }
    }

    /// The queues are over, and have their pages; what was taken from them is put by.
    pub fn end(&mut self, p: &P, regions: &mut Regions<P>) {
        self.renew(regions, p);
        self.queues.clear();
        self.ending.drain(..).for_each(|granted| regions.put(p, granted));
    }

    /// Tries again to end grants of pages that the back had.
    pub fn release(&mut self, p: &P) {
        let ending = core::mem::take(&mut self.ending);
        self.ending =
            ending.into_iter().filter_map(|granted| granted.release(p).err().map(|e| e.0)).collect();
    }

    /// Pages that were added and not taken away.
    pub fn pages(&self) -> usize {
        self.queues.iter().map(|of| of.pages.len()).sum()
    }

    /// Pages that were taken away and whose grants stand.
    pub fn leaving(&self) -> usize {
        self.ending.len() + self.queues.iter().map(|of| of.leaving.len()).sum::<usize>()
    }

    /// The counters.
    pub fn stats(&self) -> PoolStats {
        self.stats
    }
}
