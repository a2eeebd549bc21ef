//! One vif at the front: from the back's offer to live queues, and back.
//!
//! ```text
//!   1 Initialising --back at 2: grant, offer channels, write keys--> 4 Connected --back at 4: live-->
//!         ^                                                                       | back at 5 or 6
//!         +------------------- 6 Closed <----------- 5 Closing <-----------------+
//! ```
//! Invariants: every step is taken in [`FrontVif::step`], which the owner calls when a watch fired;
//! none runs on the data path. RX requests are posted, and staging is used, only once the back is
//! connected and has said which lists it accepted. A front that reconnects offers the same pages
//! again ([`regions`](super::regions)), after a pause ([`backoff`](crate::xenbus::backoff)).
//!
//! What a back may do: offer anything, accept nothing, close at any time, keep pages mapped. Frames
//! that are on the rings when the back closes are lost, as on an Ethernet whose cable is pulled.

use super::config::FrontConfig;
use super::ctrl::CtrlFront;
use super::halves::QueueLink;
use super::not_offered::NotOffered;
use super::own_pages::mapping_requests::OwnPages;
use super::plan::{Plan, plans};
use super::queue::{FrontQueue, QueueConfig};
use super::queue_memory::IDS_MAX;
use super::regions::{Granting, Regions};
use super::requested::Requested;
use super::rx_pages::lent::UnknownToken;
use super::rx_pages::pool::RxPool;
use super::rx_pages::unreturned::{UNRETURNED_MAX, Unreturned};
use super::shared_path::SharedPath;
use super::taking_up::TakingUp;
use super::trust::Trust;
use crate::error::{PeerFault, PlatformError};
use crate::net::features::{BackFeatures, FrontRequest, QueueKeys, of_front_connection};
use crate::net::headers::MacAddr;
use crate::net::path::{PageAnnouncement, PathName};
use crate::platform::{Clock, GrantPool, Platform};
use crate::port::{Offloads, Piece, Token};
use crate::units::{DomId, GrantRef};
use crate::xenbus::bus::DeviceBus;
use crate::xenbus::front::{Front, FrontError, lets_go};
use crate::xenbus::state::{Handshake, STEPS_AT_ONCE, XenbusState};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Spare RX pages of a queue at most: as many as a ring of one page has slots.
const SPARE_MAX: u32 = 256;

/// RX pages of a queue that may be added at most.
const MORE_MAX: u32 = 1024;

/// What [`FrontVif::step`] came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrontStep {
    /// Nothing to do until the next watch event.
    Waiting,
    /// The queues are live now.
    Live,
    /// The queues are live as before, and another back has them: repeat the requests that the
    /// one before had, on the control ring or for multicast.
    Renewed,
    /// The queues are gone now.
    Closed,
    /// They are [handed out](FrontVif::hand_out_queues), and are to be taken back before the next
    /// step: nothing was done, and no frame travels.
    Recall,
}

/// One vif, served by one domain.
pub struct FrontVif<P: Platform> {
    pub(super) front: Front,
    pub(super) config: FrontConfig,
    /// None while they are [handed out](Self::hand_out_queues).
    pub(super) queues: Vec<FrontQueue<P>>,
    /// The links of handed-out queues, shared with their halves.
    pub(super) handed_out: Vec<Arc<QueueLink<P>>>,
    /// The grants of their pages, while the front announces these to the back.
    handed_out_refs: Vec<[Box<[GrantRef]>; 2]>,
    /// Memory of the guest's that frames are sent from.
    pub(super) own: Option<OwnPages<P>>,
    /// Of queues that are gone.
    pub(super) unreturned: Vec<Unreturned<P>>,
    /// Queues that have been made.
    made: u16,
    pub(super) ctrl: Option<CtrlFront<P>>,
    pub(super) live: bool,
    /// Memory that is granted to the back and not in use.
    pub(super) regions: Regions<P>,
    /// Why the queues are fewer or smaller than configured.
    shortage: Option<PlatformError>,
    /// Requested features that this back does not offer or refused.
    not_offered: Vec<NotOffered>,
    /// What the back takes unfinished.
    pub(super) takes: Offloads,
    /// It takes frames over several slots.
    pub(super) takes_sg: bool,
    /// The back filters multicast, on request.
    pub(super) takes_multicast: bool,
    /// What the front requested of the back at the last set-up.
    pub(super) asked: Requested,
    /// Whether this connection's back is lent pages that the guest uses otherwise.
    pub(super) trust: Trust,
    /// The front is asking the back to keep pages mapped.
    pub(super) announcement: Option<PageAnnouncement>,
    /// By queue: pages that the back says it keeps so.
    pub(super) announced: Vec<usize>,
    /// The back left 4 while the queues were live.
    was_away: bool,
    /// The back is at 2 with them.
    pub(super) taking_up: Option<TakingUp>,
    /// The back refused more than frames need: ask it for no more than that, once.
    modest: bool,
    /// It keeps fewer pages mapped than it said: begin again with no more than frames need.
    cramped: bool,
    /// Announce all pages again, once the request under way has its answer.
    pub(super) renews: bool,
    /// RX pages that were added.
    pub(super) rx_pool: RxPool<P>,
}

impl<P: Platform> FrontVif<P> {
    /// A vif whose toolstack's state is 1.
    pub fn new(to: DomId, config: FrontConfig, reconnect: bool) -> Self {
        Self {
            front: Front::new(Handshake::Direct, reconnect),
            config,
            queues: Vec::new(),
            handed_out: Vec::new(),
            handed_out_refs: Vec::new(),
            own: None,
            unreturned: Vec::new(),
            made: 0,
            ctrl: None,
            live: false,
            regions: Regions::new(to),
            shortage: None,
            not_offered: Vec::new(),
            takes: Offloads::default(),
            takes_sg: true,
            takes_multicast: false,
            asked: Requested::default(),
            trust: Trust::default(),
            announcement: None,
            announced: Vec::new(),
            was_away: false,
            taking_up: None,
            modest: false,
            cramped: false,
            renews: false,
            rx_pool: RxPool::default(),
        }
    }

    /// Begins where a predecessor in this domain (a front that died, the kernel's netfront) left
    /// the device: what is connected is brought down first, what is closed begins again. Before the
    /// first [`step`](Self::step), and only for one that reconnects.
    pub fn succeed<B: DeviceBus>(&mut self, bus: &mut B) -> Result<(), B::Error> {
        self.front.succeed(bus)
    }

    /// Our own state.
    pub fn state(&self) -> XenbusState {
        self.front.state()
    }

    /// Whether frames can travel.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Reads the back's state and takes what steps it allows. After an error call
    /// [`close`](Self::close), or [`restart`](Self::restart).
    pub fn step<B: DeviceBus>(&mut self, p: &P, bus: &mut B) -> Result<FrontStep, FrontError<B::Error>> {
        use XenbusState as S;
        self.release_unneeded(p);
        let mut came_to = FrontStep::Waiting;
        for _ in 0..STEPS_AT_ONCE {
            let back = bus.peer_state().map_err(FrontError::Keys)?;
            let next = self.front.next(bus, back, p.clock().now_ns()).map_err(FrontError::Keys)?;
            let Some(next) = next else {
                match (self.state() == S::Connected, back == S::Connected) {
                    (true, true) if self.is_handed_out() && (self.was_away || !self.live) => {
                        return Ok(self.recall());
                    }
                    (true, true) if self.live && core::mem::take(&mut self.cramped) => {
                        self.modest = true;
                        self.set_live(false);
                        self.front.restart(bus).map_err(FrontError::Keys)?;
                        return Ok(FrontStep::Waiting);
                    }
                    (true, true) if !self.live => {
                        let is_live = self.go_live(p, bus)?;
                        return Ok(if is_live { FrontStep::Live } else { FrontStep::Waiting });
                    }
                    (true, true) if core::mem::take(&mut self.was_away) => {
                        self.end_taking_up();
                        let renewed = self.renew(p, bus);
                        if renewed.is_err() {
                            self.set_live(false); // a part of it may be done
                        }
                        return renewed;
                    }
                    (true, false) => {
                        self.was_away = self.live;
                        if self.waits_in_vain(p, back) {
                            self.set_live(false);
                            self.front.restart(bus).map_err(FrontError::Keys)?;
                            return Ok(FrontStep::Waiting);
                        }
                    }
                    _ => {}
                }
                return Ok(came_to);
            };
            match next {
                S::Connected | S::Closing | S::Closed
                    if self.is_handed_out() && (next == S::Connected || lets_go(back)) =>
                {
                    return Ok(self.recall());
                }
                S::Connected => self.set_up(p, bus)?,
                S::Closing | S::Closed => {
                    if !self.queues.is_empty() && lets_go(back) {
                        self.tear_down(p);
                        came_to = FrontStep::Closed;
                    }
                    self.set_live(false);
                }
                _ => {}
            }
            self.front.enter(bus, next, of_front_connection).map_err(FrontError::Keys)?;
        }
        Ok(came_to) // the back's state changed meanwhile, and there is an event that says so
    }

    /// Begins to close from this end, to connect again as after any close: where a step failed at
    /// state 4, and it is not the back that broke the protocol.
    pub fn restart<B: DeviceBus>(&mut self, bus: &mut B) -> Result<(), B::Error> {
        self.set_live(false);
        self.front.restart(bus)
    }

    /// Begins to close from this end; go on calling [`step`](Self::step) until
    /// [`is_closed`](Self::is_closed).
    pub fn close<B: DeviceBus>(&mut self, bus: &mut B, why: Option<&str>) -> Result<(), B::Error> {
        self.set_live(false);
        self.front.close(bus, why)
    }

    /// The toolstack took the vif away, directories and all: closed, without a word to anybody. One
    /// that reconnects waits for another vif of the same number. Where its queues are handed out
    /// it comes to [`FrontStep::Recall`]: it is to be said again once they are
    /// [back](Self::take_back).
    pub fn removed(&mut self, p: &P) -> FrontStep {
        if self.is_handed_out() {
            self.set_live(false);
            return FrontStep::Recall;
        }
        self.tear_down(p);
        self.front.removed();
        FrontStep::Closed
    }

    /// The guest was restored, in a new domain: nothing of before is granted, and no channel is
    /// there. All memory is released, and another front is to be made. Where its queues are handed
    /// out it comes to [`FrontStep::Recall`], as with [`removed`](Self::removed).
    pub fn restored(&mut self, p: &P) -> FrontStep {
        let came_to = self.removed(p);
        if came_to == FrontStep::Closed {
            self.regions.release(p);
        }
        came_to
    }

    /// Whether the vif is closed and all of its memory is our own again, and no frame is lent.
    /// Never so of one that reconnects and was connected before: it keeps its pages for the next
    /// time.
    pub fn is_closed(&self) -> bool {
        self.state() == XenbusState::Closed
            && self.queues.is_empty()
            && !self.is_handed_out()
            && self.unreturned.is_empty()
            && self.regions.is_empty()
            && self.own_grants() == 0
    }

    /// Pages that are granted to the back and not in use.
    pub fn kept_pages(&self) -> usize {
        self.regions.pages()
    }

    /// Gives up pages that are not in use, where the platform knows whether the back has them.
    pub fn release_idle(&mut self, p: &P) {
        self.regions.release_idle(p);
    }

    /// Whether a vif that does not reconnect has pages that the back uses though they are not in
    /// use: [`step`](Self::step) tries again to get them back.
    pub fn awaits_release(&self) -> bool {
        !self.front.reconnects() && (!self.regions.is_empty() || self.own_grants() > 0)
    }

    /// When a vif that waits before it restarts wants its next [`step`](Self::step), whether a
    /// watch fires or not, by the platform's clock; None: it does not wait.
    pub fn begins_at_ns(&self) -> Option<u64> {
        let in_vain = self.taking_up.as_ref().filter(|_| self.live).map(TakingUp::due_ns);
        let cramped = (self.live && self.cramped).then_some(0);
        self.front.begins_at_ns().or(cramped).or(in_vain)
    }

    /// Grants rings and staging buffers, offers channels, writes the keys.
    fn set_up<B: DeviceBus>(&mut self, p: &P, bus: &mut B) -> Result<(), FrontError<B::Error>> {
        let back = BackFeatures::read(bus).map_err(FrontError::Keys)?;
        if !back.rx_copy {
            return Err(FrontError::Lacks(
                "the back does not offer feature-rx-copy = 1, and this front knows no other way",
            ));
        }
        self.trust = Trust::read(self.config.trusted, bus).map_err(FrontError::Keys)?;
        let can_name = p.grants().per_frame().is_some();
        self.not_offered = NotOffered::by(&back, &self.config, can_name);
        self.tear_down(p);
        (self.asked, self.takes_sg) = (Requested::of(&self.config, &back, can_name), back.sg);
        let is_modest = core::mem::take(&mut self.modest);
        if is_modest {
            self.asked = self.asked.without_extra(&back);
        }
        let split = self.config.split_channels && back.split_channels;
        let order = self.config.ring_order;
        let orders = (order.min(back.max_tx_ring_order), order.min(back.max_rx_ring_order));
        let queues = self.config.queues.clamp(1, back.max_queues);
        let pages = if is_modest { 0 } else { self.asked.pages(self.config.pages, &back, queues) };
        let plans = plans(&self.asked.smaller(&back), pages.min(IDS_MAX), orders);
        let keys = self.make_queues(p, queues, &plans, split)?;
        self.takes_multicast = self.config.multicast_control;
        self.take_limits(&back);
        if let Some(own) = &mut self.own {
            own.equip(&mut self.queues);
        }
        // One that there is no memory for is done without, as queues and buffers are.
        let ctrl = if self.asked.gref_mapping || self.config.ctrl_ring && back.ctrl_ring {
            match CtrlFront::new(p, &mut self.regions) {
                Ok((ctrl, keys)) => {
                    self.ctrl = Some(ctrl);
                    Some(keys)
                }
                Err(e) => {
                    self.shortage.get_or_insert(e);
                    None
                }
            }
        } else {
            None
        };
        let mut request = FrontRequest {
            sg: self.config.sg,
            multicast_control: self.takes_multicast,
            headroom: if back.xdp_headroom { self.config.headroom } else { 0 },
            ctrl,
            ..FrontRequest::new(keys)
        };
        request.staging.rx_heads = self.asked.staging.rx_heads;
        request.foreign = self.asked.foreign;
        request.persistent = self.asked.persistent;
        self.regions.mark_exposed();
        bus.publish(&request.pairs(), of_front_connection).map_err(FrontError::Keys)
    }

    /// Creates the requested queues, by the first plan that there is memory for; where memory is
    /// short for all plans, as many queues as it allows.
    fn make_queues(
        &mut self,
        p: &P,
        n: u32,
        plans: &[Plan],
        split: bool,
    ) -> Result<Vec<QueueKeys>, PlatformError> {
        let mut best: Option<(usize, Plan)> = None;
        let mut shortage = None;
        self.regions.begin();
        for plan in plans {
            if best.is_some_and(|(_, best)| best.asked.has_staging() && !plan.asked.has_staging()) {
                continue; // with less of other paths it comes again
            }
            let (keys, failed) = self.try_with_room(p, n, *plan, split);
            let Some(e) = failed else {
                self.shortage = shortage;
                return Ok(keys);
            };
            if !plan.is_extra() {
                shortage.get_or_insert(e);
            }
            if keys.len() > best.map_or(0, |(queues, _)| queues) {
                best = Some((keys.len(), *plan));
            }
            self.tear_down(p);
        }
        // Another process may have taken the memory meanwhile.
        let (keys, failed) = best
            .map_or((Vec::new(), None), |(queues, plan)| self.try_with_room(p, queues as u32, plan, split));
        self.shortage = shortage;
        match failed.or(shortage) {
            Some(e) if keys.is_empty() => Err(e),
            _ => Ok(keys),
        }
    }

    /// At most `n` queues by one plan, and why not more; where memory is short, without what is
    /// kept for other plans.
    fn try_with_room(
        &mut self,
        p: &P,
        n: u32,
        plan: Plan,
        split: bool,
    ) -> (Vec<QueueKeys>, Option<PlatformError>) {
        let tried = self.try_queues(p, n, plan, split);
        if tried.1.is_none() || self.regions.is_empty() {
            return tried;
        }
        self.tear_down(p);
        self.regions.make_room(p);
        self.try_queues(p, n, plan, split)
    }

    /// At most `n` queues by one plan, and why not more.
    #[inline(never)]
    fn try_queues(
        &mut self,
        p: &P,
        n: u32,
        plan: Plan,
        split: bool,
    ) -> (Vec<QueueKeys>, Option<PlatformError>) {
        let mut keys = Vec::new();
        let lends = self.unreturned.iter().map(Unreturned::count).sum::<usize>() < UNRETURNED_MAX;
        for _ in 0..n {
            // The back may keep the references that it has seen: each must go on naming its page.
            let (sg, granting) = ([self.takes_sg, self.config.sg], self.asked.granting());
            let granting = [granting.unwrap_or(self.config.granting), granting.unwrap_or(Granting::Standing)];
            let spare = if lends { self.config.spare_rx_pages.min(SPARE_MAX) } else { 0 };
            // A back that keeps what it saw would keep pages that were taken away.
            let grows = lends && !self.asked.persistent;
            let more = if grows { self.config.more_rx_pages.min(MORE_MAX) } else { 0 };
            self.made = self.made.wrapping_add(1);
            let config = QueueConfig { queues: n, plan, split, sg, granting, spare, more, tag: self.made };
            match FrontQueue::new(p, &mut self.regions, config) {
                Ok((queue, queue_keys)) => {
                    self.queues.push(queue);
                    keys.push(queue_keys);
                }
                Err(e) => return (keys, Some(e)),
            }
        }
        (keys, None)
    }

    /// One that never comes back has no use for pages that are not in use.
    fn release_unneeded(&mut self, p: &P) {
        if !self.front.reconnects() {
            self.regions.release(p);
        }
        if let Some(own) = &mut self.own {
            own.release(p);
        }
        self.rx_pool.release(p);
    }

    /// The back is connected: reads what it accepted, and posts RX. False: where it refused more
    /// than frames need, the front begins again with less.
    fn go_live<B: DeviceBus>(&mut self, p: &P, bus: &mut B) -> Result<bool, FrontError<B::Error>> {
        let n = self.queues.len();
        let back = BackFeatures::read(bus).map_err(FrontError::Keys)?;
        for i in 0..n {
            // First what goes: memory may be short.
            for SharedPath { path, shared, taken } in self.shared(bus, &back, i)? {
                if taken != shared && self.asked.is_extra() && self.front.reconnects() {
                    self.modest = true;
                    self.front.restart(bus).map_err(FrontError::Keys)?;
                    return Ok(false);
                }
                if !taken.any() {
                    self.refused(path);
                }
                if taken != shared
                    && let Some(queue) = self.queues.get_mut(i)
                {
                    queue.give_up(path, taken, p, &mut self.regions);
                }
            }
            if let Some(queue) = self.queues.get_mut(i) {
                queue.go_live(p, &mut self.regions, &back, self.trust)?;
                self.rx_pool.adopt(i, queue);
            }
        }
        self.release_unneeded(p);
        self.set_live(true);
        (self.was_away, self.renews) = (false, false);
        self.announced.clear();
        self.announcement =
            (self.asked.gref_mapping && self.ctrl.is_some()).then(|| PageAnnouncement::new(n));
        self.ask_next(p);
        Ok(true)
    }

    /// The back did not take what was shared for this path, of one queue or more.
    fn refused(&mut self, path: PathName) {
        let refused = NotOffered::Refused(path);
        if !self.not_offered.contains(&refused) {
            self.not_offered.push(refused);
        }
    }

    /// Asks the back to keep the next pages mapped; stops asking if it cannot or none are left.
    pub(crate) fn ask_next(&mut self, p: &P) {
        let (Some(announcement), Some(ctrl)) = (&self.announcement, &mut self.ctrl) else { return };
        let asked = announcement.ask(p, ctrl);
        if asked.is_err() {
            self.announced = announcement.taken().to_vec();
            let is_short = |(queue, taken): (&FrontQueue<P>, &usize)| {
                queue.rests() && queue.pages().iter().sum::<u32>() as usize > *taken
            };
            self.cramped = self.front.reconnects()
                && !self.asked.persistent
                && self.queues.iter().zip(&self.announced).any(is_short);
            let room = if self.asked.persistent { &[] } else { announcement.room() };
            OwnPages::begin(&mut self.queues, room);
            self.rx_pool.begin(&self.announced, room);
            self.announcement = None;
        }
    }

    /// Goes on asking the back to keep pages mapped, or to let go of them: frames travel meanwhile.
    /// True: something moved. A fault: call [`close`](Self::close).
    pub fn turn(&mut self, p: &P) -> Result<bool, PeerFault> {
        if self.live && self.renews {
            return self.go_on_renewing(p);
        }
        let Some(ctrl) = self.ctrl.as_mut().filter(|_| self.live) else { return Ok(false) };
        let Some(announcement) = &mut self.announcement else {
            let Some(own) = self.own.as_mut().filter(|_| self.handed_out.is_empty()) else {
                return self.rx_pool.turn(p, ctrl);
            };
            return Ok(own.turn(p, ctrl, &mut self.queues)? || self.rx_pool.turn(p, ctrl)?);
        };
        let Some(answer) = ctrl.answer()? else { return Ok(false) };
        let (queues, handed_out_refs) = (&self.queues, &self.handed_out_refs);
        let rx_pool = &self.rx_pool;
        let refs = |i: usize| match (queues.get(i), handed_out_refs.get(i)) {
            (Some(queue), _) => (queue.page_refs(), rx_pool.pages_of(i)),
            (None, Some([tx, rx])) => ([&tx[..], &rx[..]], rx_pool.pages_of(i)),
            (None, None) => ([&[][..]; 2], 0),
        };
        announcement.take_answer(answer, ctrl.statuses(announcement.asked()).unwrap_or_default(), refs);
        self.ask_next(p);
        Ok(true)
    }

    /// Whether the back is being asked to keep pages mapped.
    pub fn is_announcing(&self) -> bool {
        self.live && (self.renews || self.announcement.is_some())
    }

    /// Pages of queue `i` that the back says it keeps mapped on request.
    pub fn gref_pages(&self, i: usize) -> usize {
        self.announced.get(i).copied().unwrap_or(0)
    }

    /// Before sleeping, while the back is asked for pages: arms the control ring. True: there is an
    /// answer.
    pub fn final_check_ctrl(&mut self, p: &P) -> Result<bool, PeerFault> {
        let asked = self.renews || self.announcement.is_some() || self.is_asking();
        match &mut self.ctrl {
            Some(ctrl) if self.live && asked => ctrl.final_check(p),
            _ => Ok(false),
        }
    }

    /// Gives up queues and channels. The pages are put by, or released where they are not needed
    /// again.
    fn tear_down(&mut self, p: &P) {
        self.set_live(false);
        (self.was_away, self.renews) = (false, false);
        self.end_taking_up();
        self.announcement = None;
        self.announced.clear();
        self.rx_pool.end(p, &mut self.regions);
        if let Some(ctrl) = self.ctrl.take() {
            ctrl.into_granted().into_iter().for_each(|granted| self.regions.put(p, granted));
        }
        for q in &mut self.queues {
            if let (Some(own), Some(cache)) = (&mut self.own, q.tx_mut().take_cache()) {
                own.put(p, cache);
            }
        }
        while !self.queues.is_empty() {
            self.end_first(p);
        }
        self.release_unneeded(p);
    }

    /// Gives the first queue up.
    #[inline(never)]
    fn end_first(&mut self, p: &P) {
        if let Some(pages) = self.queues.remove(0).end(p, &mut self.regions) {
            self.unreturned.push(pages);
        }
    }

    /// The control ring; None: there is none, the back is not connected, or it is [being
    /// asked](Self::is_announcing) something.
    pub fn ctrl(&mut self) -> Option<&mut CtrlFront<P>> {
        let free = self.live && self.announcement.is_none() && !self.is_asking();
        self.ctrl.as_mut().filter(|_| free)
    }

    /// Names a multicast address that frames are wanted for, or no longer (queue 0; see
    /// [`TxFront::multicast`](super::TxFront::multicast)).
    pub fn multicast(&mut self, p: &P, mac: MacAddr, wanted: bool) -> bool {
        let Some(q) = self.queues.first_mut().filter(|_| self.live) else { return false };
        q.multicast(p, mac, wanted)
    }

    /// Multicast requests in flight, and how many the back has refused: its list is full.
    pub fn multicast_requests(&self) -> (usize, u64) {
        self.queues.first().map_or((0, 0), |q| q.tx().multicast_requests())
    }

    /// Live queues, those that are handed out included.
    pub fn nr_queues(&self) -> usize {
        if self.live { self.queues.len().max(self.handed_out.len()) } else { 0 }
    }

    /// Gives its live queues away, in their order, each to be served whole or as
    /// [halves](FrontQueue::into_halves), by threads with platforms of their own. Until they are
    /// [back](Self::take_back) it neither closes nor connects ([`FrontStep::Recall`]); it goes on
    /// asking its back for [pages](Self::turn) meanwhile, but not for those of its own memory.
    pub fn hand_out_queues(&mut self) -> Vec<FrontQueue<P>> {
        if !self.live {
            return Vec::new();
        }
        self.handed_out = self.queues.iter().map(|q| q.link().clone()).collect();
        if self.announcement.is_some() || self.renews {
            let refs = self.queues.iter().map(FrontQueue::page_refs);
            self.handed_out_refs = refs.map(|refs| refs.map(Box::from)).collect();
        }
        core::mem::take(&mut self.queues)
    }

    /// Takes all of its queues back, in their order.
    pub fn take_back(&mut self, queues: Vec<FrontQueue<P>>) {
        debug_assert_eq!(queues.len(), self.handed_out.len());
        self.queues = queues;
        self.handed_out.drain(..).for_each(|link| link.watch(false));
        self.handed_out_refs.clear();
        self.set_live(self.live);
    }

    /// Whether its queues are handed out.
    pub fn is_handed_out(&self) -> bool {
        !self.handed_out.is_empty()
    }

    fn recall(&self) -> FrontStep {
        self.handed_out.iter().for_each(|link| link.set_live(false));
        FrontStep::Recall
    }

    /// Sets whether frames can travel, for the owners of the queues.
    pub(super) fn set_live(&mut self, live: bool) {
        self.live = live;
        self.queues.iter().map(|q| &**q.link()).for_each(|link| link.set_live(live));
        self.handed_out.iter().for_each(|link| link.set_live(live));
    }

    /// Queue `i`, to read from; None: there is none.
    #[inline(always)]
    pub fn queue(&self, i: usize) -> Option<&FrontQueue<P>> {
        self.queues.get(i)
    }

    /// Queue `i`, while it is live: frames are sent and received there.
    #[inline(always)]
    pub fn queue_mut(&mut self, i: usize) -> Option<&mut FrontQueue<P>> {
        if self.live { self.queues.get_mut(i) } else { None }
    }

    /// TX slots of queue `i` that are free.
    pub fn room(&self, i: usize) -> u32 {
        self.queues.get(i).filter(|_| self.live).map_or(0, |q| q.tx().room())
    }

    /// Whether ordinary pages are granted once, and the back may keep them mapped.
    pub fn persists(&self) -> bool {
        self.asked.persistent
    }

    /// Why there are fewer queues, TX ids or shorter staging buffers than requested; None: all are
    /// there.
    pub fn shortage(&self) -> Option<PlatformError> {
        self.shortage
    }

    /// Requested features that this back does not offer or refused, as of the last connect; the
    /// vif goes on without.
    pub fn not_offered(&self) -> &[NotOffered] {
        &self.not_offered
    }

    /// Whether the back takes frames over several slots.
    pub fn takes_sg(&self) -> bool {
        self.takes_sg
    }

    /// Whether the back offers to filter multicast and was asked to: only then may the front
    /// [send it addresses](Self::multicast).
    pub fn takes_multicast(&self) -> bool {
        self.takes_multicast
    }

    /// What the back takes unfinished; the rest is to be finished before it is sent.
    pub fn takes(&self) -> Offloads {
        self.takes
    }

    /// Piece `k` of what follows the head of a lent frame; None: there are no more. The back may
    /// change its bytes at any time.
    #[inline(always)]
    pub fn piece(&self, token: Token, k: usize) -> Option<Piece<'_>> {
        let live = self.queues.iter().find_map(|q| q.rx().piece(token, k));
        live.or_else(|| self.unreturned.iter().find_map(|pages| pages.piece(token, k)))
    }

    /// Gives lent frames back, of whichever queue, also of one that is gone. An error names the
    /// first unknown token; the others count all the same.
    pub fn release(&mut self, p: &P, tokens: impl IntoIterator<Item = Token>) -> Result<(), UnknownToken> {
        let mut released = Ok(());
        for token in tokens {
            if self.queues.iter_mut().any(|q| q.release(token).is_ok()) {
                continue;
            }
            released = released.and(self.release_of_gone(p, token));
        }
        if self.live {
            self.queues.iter_mut().for_each(|q| q.post_released(p));
        }
        released
    }

    #[cold]
    fn release_of_gone(&mut self, p: &P, token: Token) -> Result<(), UnknownToken> {
        if !self.unreturned.iter_mut().any(|pages| pages.release(token).is_ok()) {
            return Err(UnknownToken(token));
        }
        self.release_unlent(p);
        Ok(())
    }

    /// The memory of queues that are gone, of which the caller has no frame any more, is returned.
    #[inline(never)]
    pub(crate) fn release_unlent(&mut self, p: &P) {
        let pages = core::mem::take(&mut self.unreturned);
        self.unreturned =
            pages.into_iter().filter_map(|pages| pages.release_unlent(p, &mut self.regions)).collect();
        self.release_unneeded(p);
    }

    /// Frames that the caller has by reference.
    pub fn lent(&self) -> u32 {
        let gone: u32 = self.unreturned.iter().map(Unreturned::lent).sum();
        gone + self.queues.iter().map(|q| q.rx().lent()).sum::<u32>()
    }

    /// TX requests of queue `i` without an answer.
    pub fn in_flight(&self, i: usize) -> u32 {
        self.queues.get(i).filter(|_| self.live).map_or(0, |q| q.tx().in_flight())
    }

    /// Whether any ring has work for us, as [`final_check`](FrontQueue::final_check) says it;
    /// nothing is armed.
    pub fn is_pending(&mut self, tx_too: bool) -> bool {
        self.queues.iter_mut().any(|q| q.is_pending(tx_too))
    }
}
