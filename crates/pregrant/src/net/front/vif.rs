//! One vif at the front: from the back's offer to live queues, and back.
//!
//! ```text
//!   1 Initialising --back at 2: grant, offer channels, write keys--> 4 Connected --back at 4: live-->
//!         ^                                                                       | back at 5 or 6
//!         +------------------- 6 Closed <----------- 5 Closing <-----------------+
//! ```
//! Invariants: every step is taken in [`FrontVif::step`], which the owner calls when a watch fired;
//! none runs on the data path. RX requests are posted, and staging is used, only once the back is
//! connected and has said which lists it accepted. What exists in which stage of that is in
//! `stage.rs`. A front that reconnects offers the same pages again
//! ([`regions`](super::regions)), after a pause ([`backoff`](crate::xenbus::backoff)).
//!
//! What a back may do: offer anything, accept nothing, close at any time, keep pages mapped. Frames
//! that are on the rings when the back closes are lost, as on an Ethernet whose cable is pulled.

use super::agreed::Agreed;
use super::config::FrontConfig;
use super::ctrl::CtrlFront;
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
use super::stage::{Announcing, BackIs, Live, Queues, Stage};
use super::taking_up::TakingUp;
use super::trust::Trust;
use crate::error::{PeerFault, PlatformError};
use crate::memory;
use crate::net::features::{BackFeatures, FrontRequest, QueueKeys, of_front_connection};
use crate::net::headers::MacAddr;
use crate::net::path::PageAnnouncement;
use crate::platform::{Clock, GrantPool, Platform};
use crate::port::{Offloads, Piece, Token};
use crate::units::DomId;
use crate::xenbus::bus::DeviceBus;
use crate::xenbus::front::{Front, FrontError, lets_go};
use crate::xenbus::state::{Handshake, STEPS_AT_ONCE, XenbusState};
use alloc::vec::Vec;

/// Largest number of spare RX pages of a queue: as many as a ring of one page has slots.
const SPARE_MAX: u32 = 256;

/// Largest number of RX pages that can be added to a queue.
const MORE_MAX: u32 = 1024;

/// The result of [`FrontVif::step`], which the caller must act on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrontStep {
    /// There is nothing to do until the next watch event.
    Waiting,
    /// The queues are live now.
    Live,
    /// The queues are live as before, and another back serves them: repeat the requests that its
    /// predecessor had, on the control ring or for multicast.
    Renewed,
    /// The queues have ended.
    Closed,
    /// The queues are [handed out](FrontVif::hand_out_queues), and must be taken back before the
    /// next step. Nothing was done; no frame travels.
    Recall,
}

/// The guest's end of one vif, which one backend domain serves.
pub struct FrontVif<P: Platform> {
    /// The xenbus state of this end, and its restarts.
    pub(super) front: Front,
    pub(super) config: FrontConfig,
    /// The connection, with the queues.
    pub(crate) stage: Stage<P>,
    /// What front and back agreed on in the last set-up.
    pub(super) agreed: Agreed,
    /// How much memory the next set-up asks for.
    next_memory: Memory,
    /// Memory that is granted to the back and not in use.
    pub(crate) regions: Regions<P>,
    /// Memory of the guest's that frames are sent from.
    pub(crate) own: Option<OwnPages<P>>,
    /// RX pages that were added to live queues.
    pub(crate) rx_pool: RxPool<P>,
    /// RX pages of queues that are gone, in which a consumer still reads frames.
    pub(crate) unreturned: Vec<Unreturned<P>>,
    /// Number of queues that were made so far, over all connections.
    made: u16,
}

/// How much memory a set-up asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Memory {
    /// The set-up asks for as much as is configured.
    Full,
    /// The set-up asks for as much as frames need, because the back refused the larger pool, or
    /// mapped fewer pages than it offered. This holds for one set-up.
    Minimum,
}

/// The queues that were set up by one plan.
struct Tried<P: Platform> {
    queues: Vec<FrontQueue<P>>,
    /// The keys of each queue.
    keys: Vec<QueueKeys>,
    /// Why there are fewer queues than wanted; None: there are as many as wanted.
    failed: Option<PlatformError>,
}

impl<P: Platform> FrontVif<P> {
    /// Creates the front of a vif in state 1 (Initialising), in which the toolstack creates it.
    pub fn new(to: DomId, config: FrontConfig, reconnect: bool) -> Self {
        Self {
            front: Front::new(Handshake::Direct, reconnect),
            config,
            stage: Stage::Down,
            agreed: Agreed::default(),
            next_memory: Memory::Full,
            regions: Regions::new(to),
            own: None,
            rx_pool: RxPool::default(),
            unreturned: Vec::new(),
            made: 0,
        }
    }

    /// Continues from the state in which a predecessor in this domain (a front that died, or the
    /// kernel's netfront) left the device: a connected device is closed first, a closed one starts
    /// again. Only for a vif that reconnects, before the first [`step`](Self::step).
    pub fn succeed<B: DeviceBus>(&mut self, bus: &mut B) -> Result<(), B::Error> {
        self.front.succeed(bus)
    }

    /// The xenbus state of this front.
    pub fn state(&self) -> XenbusState {
        self.front.state()
    }

    /// True if frames can travel.
    pub fn is_live(&self) -> bool {
        self.stage.is_live()
    }

    /// Reads the back's state and makes the steps that it allows. After an error call
    /// [`close`](Self::close) or [`restart`](Self::restart).
    pub fn step<B: DeviceBus>(&mut self, p: &P, bus: &mut B) -> Result<FrontStep, FrontError<B::Error>> {
        use XenbusState as S;
        self.release_unneeded(p);
        let mut came_to = FrontStep::Waiting;
        for _ in 0..STEPS_AT_ONCE {
            let back = bus.peer_state().map_err(FrontError::Keys)?;
            let next = self.front.next(bus, back, p.clock().now_ns()).map_err(FrontError::Keys)?;
            let Some(next) = next else {
                return Ok(match self.follow(p, bus, back)? {
                    FrontStep::Waiting => came_to,
                    moved => moved,
                });
            };
            match next {
                S::Connected if self.is_handed_out() => return Ok(self.recall()),
                S::Connected => self.set_up(p, bus)?,
                S::Closing | S::Closed => match &self.stage {
                    Stage::Down => {}
                    _ if !lets_go(back) => self.stage.stop(),
                    _ if self.is_handed_out() => return Ok(self.recall()),
                    Stage::SetUp { .. } | Stage::Live(_) | Stage::Closing { .. } => {
                        self.tear_down(p);
                        came_to = FrontStep::Closed;
                    }
                },
                _ => {}
            }
            self.front.enter(bus, next, of_front_connection).map_err(FrontError::Keys)?;
        }
        Ok(came_to) // the back's state changed meanwhile, and there is an event that says so
    }

    /// Acts on the back's state, without a change of the own state. Separate from `step`, because a
    /// kernel's stack is small.
    #[inline(never)]
    fn follow<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
        back: XenbusState,
    ) -> Result<FrontStep, FrontError<B::Error>> {
        use XenbusState as S;
        if self.state() != S::Connected {
            return Ok(FrontStep::Waiting);
        }
        match &mut self.stage {
            Stage::SetUp { .. } if back == S::Connected => self.go_live(p, bus),
            Stage::Live(live) if back == S::Connected => {
                let was_away = live.is_away();
                if was_away && live.queues.are_handed_out() {
                    return Ok(self.recall());
                }
                if live.announcing.is_too_few() {
                    self.next_memory = Memory::Minimum;
                    return self.begin_again(bus);
                }
                if !was_away {
                    return Ok(FrontStep::Waiting);
                }
                live.end_away();
                let renewed = self.renew(p, bus);
                if renewed.is_err() {
                    self.stage.stop(); // a part of it may be done
                }
                renewed
            }
            Stage::Live(_) => match self.follow_away(p, back) {
                true => self.begin_again(bus),
                false => Ok(FrontStep::Waiting),
            },
            // A step failed, or the device was removed, and its owner did not close it.
            Stage::Closing { queues: Queues::HandedOut(_), .. } if back == S::Connected => Ok(self.recall()),
            Stage::Closing { .. } if back == S::Connected => self.begin_again(bus),
            Stage::Down | Stage::SetUp { .. } | Stage::Closing { .. } => Ok(FrontStep::Waiting),
        }
    }

    /// Closes from this end, and connects again once the back has let go.
    pub(super) fn begin_again<B: DeviceBus>(
        &mut self,
        bus: &mut B,
    ) -> Result<FrontStep, FrontError<B::Error>> {
        self.restart(bus).map_err(FrontError::Keys)?;
        Ok(FrontStep::Waiting)
    }

    /// Begins to close from this end, to connect again as after any close. It is for a step that
    /// failed at state 4 although the back did not break the protocol.
    pub fn restart<B: DeviceBus>(&mut self, bus: &mut B) -> Result<(), B::Error> {
        self.stage.stop();
        self.front.restart(bus)
    }

    /// Begins to close from this end; go on calling [`step`](Self::step) until
    /// [`is_closed`](Self::is_closed).
    pub fn close<B: DeviceBus>(&mut self, bus: &mut B, why: Option<&str>) -> Result<(), B::Error> {
        self.stage.stop();
        self.front.close(bus, why)
    }

    /// Called when the toolstack removed the vif with its directories: closes it without writing a
    /// key. A vif that reconnects waits for another vif of the same number. If its queues are
    /// handed out, returns [`FrontStep::Recall`]; call this again once they are
    /// [back](Self::take_back).
    pub fn removed(&mut self, p: &P) -> FrontStep {
        if self.is_handed_out() {
            self.stage.stop();
            return FrontStep::Recall;
        }
        self.tear_down(p);
        self.front.removed();
        FrontStep::Closed
    }

    /// Called when the guest was restored in a new domain, in which no page is granted and no event
    /// channel exists. All memory is released; the caller makes another front. If the queues are
    /// handed out, returns [`FrontStep::Recall`], as [`removed`](Self::removed) does.
    pub fn restored(&mut self, p: &P) -> FrontStep {
        let came_to = self.removed(p);
        if came_to == FrontStep::Closed {
            self.regions.release(p);
        }
        came_to
    }

    /// True if the vif is closed, all its memory is its own again, and no consumer has a frame by
    /// reference. Never true for a vif that reconnects and was connected before: it keeps its pages
    /// for the next connection.
    pub fn is_closed(&self) -> bool {
        self.state() == XenbusState::Closed
            && matches!(self.stage, Stage::Down)
            && self.unreturned.is_empty()
            && self.regions.is_empty()
            && self.own_grants() == 0
    }

    /// Pages that are granted to the back and not in use.
    pub fn kept_pages(&self) -> usize {
        self.regions.pages()
    }

    /// Releases pages that are not in use, if the platform knows whether the back has them mapped.
    pub fn release_idle(&mut self, p: &P) {
        self.regions.release_idle(p);
    }

    /// True if a vif that does not reconnect has unused pages that the back still has mapped:
    /// [`step`](Self::step) tries again to release them.
    pub fn awaits_release(&self) -> bool {
        !self.front.reconnects() && (!self.regions.is_empty() || self.own_grants() > 0)
    }

    /// The time, by the platform's clock, at which the vif needs its next [`step`](Self::step) even
    /// if no watch fires: it waits before it restarts, or watches a back that is away. None: it
    /// waits for watches alone.
    pub fn begins_at_ns(&self) -> Option<u64> {
        let live = self.stage.live();
        let too_few = live.filter(|live| live.announcing.is_too_few()).map(|_| 0);
        let in_vain = live.and_then(|live| match &live.back {
            BackIs::Away { taking_up } => taking_up.as_ref().map(TakingUp::due_ns),
            BackIs::Connected => None,
        });
        self.front.begins_at_ns().or(too_few).or(in_vain)
    }

    /// Grants rings and staging buffers, offers channels, writes the keys.
    fn set_up<B: DeviceBus>(&mut self, p: &P, bus: &mut B) -> Result<(), FrontError<B::Error>> {
        let back = BackFeatures::read(bus).map_err(FrontError::Keys)?;
        if !back.rx_copy {
            return Err(FrontError::Lacks(
                "the back does not offer feature-rx-copy = 1, and this front knows no other way",
            ));
        }
        self.agreed.trust = Trust::read(self.config.trusted, bus).map_err(FrontError::Keys)?;
        let can_name = p.grants().per_frame().is_some();
        self.agreed.not_offered = NotOffered::by(&back, &self.config, can_name);
        self.tear_down(p);
        let asked = Requested::of(&self.config, &back, can_name);
        let memory = core::mem::replace(&mut self.next_memory, Memory::Full);
        let asked = match memory {
            Memory::Full => asked,
            Memory::Minimum => asked.without_extra(&back),
        };
        (self.agreed.asked, self.agreed.takes_sg) = (asked, back.sg);
        let split = self.config.split_channels && back.split_channels;
        let order = self.config.ring_order;
        let orders = (order.min(back.max_tx_ring_order), order.min(back.max_rx_ring_order));
        let queues = self.config.queues.clamp(1, back.max_queues);
        let pages = match memory {
            Memory::Full => asked.pages(self.config.pages, &back, queues),
            Memory::Minimum => 0,
        };
        let plans = plans(&asked.smaller(&back)?, pages.min(IDS_MAX), orders)?;
        let (queues, keys) = self.make_queues(p, queues, &plans, split)?;
        // The vif does without a control ring if there is no memory for one, as it does for queues
        // and buffers.
        let (ctrl, ctrl_keys) = if asked.gref_mapping || self.config.ctrl_ring && back.ctrl_ring {
            match CtrlFront::new(p, &mut self.regions) {
                Ok((ctrl, keys)) => (Some(ctrl), Some(keys)),
                Err(e) => {
                    self.agreed.shortage.get_or_insert(e);
                    (None, None)
                }
            }
        } else {
            (None, None)
        };
        self.stage = Stage::SetUp { queues, ctrl };
        self.agreed.takes_multicast = self.config.multicast_control;
        self.take_limits(&back);
        if let Some(own) = &mut self.own
            && let Err(e) = own.equip(self.stage.queues_mut())
        {
            self.agreed.shortage.get_or_insert(e);
        }
        let request = FrontRequest {
            sg: self.config.sg,
            multicast_control: self.agreed.takes_multicast,
            headroom: if back.xdp_headroom { self.config.headroom } else { 0 },
            ctrl: ctrl_keys,
            ..asked.request(keys)
        };
        self.regions.mark_exposed();
        bus.publish(&request.pairs_in_memory()?, of_front_connection).map_err(FrontError::Keys)
    }

    /// Creates the requested queues by the first plan for which there is memory; if there is too
    /// little for all plans, as many queues as possible.
    fn make_queues(
        &mut self,
        p: &P,
        n: u32,
        plans: &[Plan],
        split: bool,
    ) -> Result<(Vec<FrontQueue<P>>, Vec<QueueKeys>), PlatformError> {
        let mut best: Option<(usize, Plan)> = None;
        let mut shortage = None;
        self.regions.begin();
        for plan in plans {
            if best.is_some_and(|(_, best)| best.asked.has_staging() && !plan.asked.has_staging()) {
                continue; // with less of other paths it comes again
            }
            let tried = self.try_with_room(p, n, *plan, split);
            let Some(e) = tried.failed else {
                self.agreed.shortage = shortage;
                return Ok((tried.queues, tried.keys));
            };
            if !plan.is_extra() {
                shortage.get_or_insert(e);
            }
            if tried.queues.len() > best.map_or(0, |(queues, _)| queues) {
                best = Some((tried.queues.len(), *plan));
            }
            self.end_queues(p, tried.queues);
            self.release_unneeded(p);
        }
        // Another process may have taken the memory meanwhile.
        let tried = match best {
            Some((queues, plan)) => self.try_with_room(p, queues as u32, plan, split),
            None => Tried { queues: Vec::new(), keys: Vec::new(), failed: None },
        };
        self.agreed.shortage = shortage;
        match tried.failed.or(shortage) {
            Some(e) if tried.queues.is_empty() => Err(e),
            _ => Ok((tried.queues, tried.keys)),
        }
    }

    /// Tries one plan. If pages or grants are short, and not memory of the heap, releases what is
    /// kept for other plans first.
    fn try_with_room(&mut self, p: &P, n: u32, plan: Plan, split: bool) -> Tried<P> {
        let tried = self.try_queues(p, n, plan, split);
        let is_short_of_pages = tried.failed.as_ref().is_some_and(|e| *e != memory::NO_MEMORY);
        if !is_short_of_pages || self.regions.is_empty() {
            return tried;
        }
        self.end_queues(p, tried.queues);
        self.release_unneeded(p);
        self.regions.make_room(p);
        self.try_queues(p, n, plan, split)
    }

    #[inline(never)]
    fn try_queues(&mut self, p: &P, n: u32, plan: Plan, split: bool) -> Tried<P> {
        let mut tried = Tried { queues: Vec::new(), keys: Vec::new(), failed: None };
        let room = memory::grow(&mut tried.queues, n as usize)
            .and_then(|()| memory::grow(&mut tried.keys, n as usize))
            .and_then(|()| memory::grow(&mut self.unreturned, n as usize));
        if room.is_err() {
            tried.failed = room.err();
            return tried;
        }
        let lends = self.unreturned.iter().map(Unreturned::count).sum::<usize>() < UNRETURNED_MAX;
        let asked = self.agreed.asked;
        for _ in 0..n {
            // The back may keep the references that it has seen: each must go on naming its page.
            let (sg, granting) = ([self.agreed.takes_sg, self.config.sg], asked.granting());
            let granting = [granting.unwrap_or(self.config.granting), granting.unwrap_or(Granting::Standing)];
            let spare = if lends { self.config.spare_rx_pages.min(SPARE_MAX) } else { 0 };
            // A back that keeps pages mapped after it saw them would keep pages that the front
            // removed.
            let grows = lends && !asked.persistent;
            let more = if grows { self.config.more_rx_pages.min(MORE_MAX) } else { 0 };
            self.made = self.made.wrapping_add(1);
            let config = QueueConfig { queues: n, plan, split, sg, granting, spare, more, tag: self.made };
            match FrontQueue::new(p, &mut self.regions, config) {
                Ok((queue, keys)) => {
                    tried.queues.push(queue);
                    tried.keys.push(keys);
                }
                Err(e) => {
                    tried.failed = Some(e);
                    break;
                }
            }
        }
        tried
    }

    /// Releases memory that is not in use, if the vif will never reconnect.
    fn release_unneeded(&mut self, p: &P) {
        if !self.front.reconnects() {
            self.regions.release(p);
        }
        if let Some(own) = &mut self.own {
            own.release(p);
        }
        self.rx_pool.release(p, &mut self.regions);
    }

    /// The back is connected: reads what it accepted, and posts RX. Where the back refused more
    /// than frames need, the front begins again with the minimum.
    fn go_live<B: DeviceBus>(&mut self, p: &P, bus: &mut B) -> Result<FrontStep, FrontError<B::Error>> {
        let n = self.stage.queues().len();
        let back = BackFeatures::read(bus).map_err(FrontError::Keys)?;
        for i in 0..n {
            // Memory is released first, since it may be short.
            for SharedPath { path, shared, taken } in self.shared(bus, &back, i)? {
                if taken != shared && self.agreed.asked.is_extra() && self.front.reconnects() {
                    self.next_memory = Memory::Minimum;
                    return self.begin_again(bus);
                }
                if !taken.any() {
                    self.agreed.note_refused(path);
                }
                if taken != shared
                    && let Some(queue) = self.stage.queues_mut().get_mut(i)
                {
                    queue.give_up(path, taken, p, &mut self.regions);
                }
            }
            if let Some(queue) = self.stage.queues_mut().get_mut(i) {
                queue.go_live(p, &mut self.regions, &back, self.agreed.trust)?;
                self.rx_pool.adopt(i, queue)?;
            }
        }
        self.release_unneeded(p);
        let announces = self.agreed.asked.gref_mapping && self.stage.ctrl_mut().is_some();
        self.stage.go_live(match announces {
            true => Announcing::Asking(PageAnnouncement::new(n)),
            false => Announcing::NONE,
        });
        self.ask_next(p);
        Ok(FrontStep::Live)
    }

    /// Asks the back to keep the next pages mapped, until no request can be sent or none is left.
    pub(super) fn ask_next(&mut self, p: &P) {
        let Stage::Live(live) = &mut self.stage else { return };
        let Live { queues, ctrl: Some(ctrl), announcing: Announcing::Asking(asking), .. } = live else {
            return;
        };
        if asking.ask(p, ctrl).is_ok() {
            return;
        }
        let mapped = asking.taken().to_vec();
        let is_short = |(queue, mapped): (&FrontQueue<P>, &usize)| {
            queue.rests() && queue.pages().iter().sum::<u32>() as usize > *mapped
        };
        let keeps_seen = self.agreed.asked.persistent;
        let too_few =
            self.front.reconnects() && !keeps_seen && queues.here().iter().zip(&mapped).any(is_short);
        let room = if keeps_seen { &[] } else { asking.room() };
        OwnPages::begin(queues.here_mut(), room);
        self.rx_pool.begin(&mapped, room);
        live.announcing = Announcing::Over { mapped, too_few };
    }

    /// Continues to ask the back to map or unmap pages, while frames travel. Returns true if
    /// something happened. After a fault call [`close`](Self::close).
    pub fn turn(&mut self, p: &P) -> Result<bool, PeerFault> {
        let Stage::Live(Live { queues, ctrl: Some(ctrl), announcing, .. }) = &mut self.stage else {
            return Ok(false);
        };
        match announcing {
            Announcing::AskingAgain { .. } => self.go_on_renewing(p),
            Announcing::Asking(asking) => {
                let Some(answer) = ctrl.answer()? else { return Ok(false) };
                let (queues, rx_pool) = (&*queues, &self.rx_pool);
                let refs = |i: usize| match queues {
                    Queues::Here(queues) => match queues.get(i) {
                        Some(queue) => (queue.page_refs(), rx_pool.pages_of(i)),
                        None => ([&[][..]; 2], 0),
                    },
                    Queues::HandedOut(out) => match out.get(i) {
                        Some(queue) => ([&queue.refs[0][..], &queue.refs[1][..]], rx_pool.pages_of(i)),
                        None => ([&[][..]; 2], 0),
                    },
                };
                asking.take_answer(answer, ctrl.statuses(asking.asked()).unwrap_or_default(), refs);
                self.ask_next(p);
                Ok(true)
            }
            Announcing::Over { .. } => match (&mut self.own, queues) {
                (Some(own), Queues::Here(queues)) => {
                    Ok(own.turn(p, ctrl, queues)? || self.rx_pool.turn(p, &mut self.regions, ctrl)?)
                }
                _ => self.rx_pool.turn(p, &mut self.regions, ctrl),
            },
        }
    }

    /// Whether the back is being asked to keep pages mapped.
    pub fn is_announcing(&self) -> bool {
        self.stage.live().is_some_and(|live| live.announcing.is_under_way())
    }

    /// Number of pages of queue `i` that the back says it keeps mapped on request.
    pub fn gref_pages(&self, i: usize) -> usize {
        self.stage.live().map_or(0, |live| live.announcing.mapped(i))
    }

    /// Called before sleeping, while the back is asked for pages: arms the control ring. Returns
    /// true if an answer has arrived.
    pub fn final_check_ctrl(&mut self, p: &P) -> Result<bool, PeerFault> {
        let is_asking = self.is_asking();
        match &mut self.stage {
            Stage::Live(Live { ctrl: Some(ctrl), announcing, .. })
                if announcing.is_under_way() || is_asking =>
            {
                ctrl.final_check(p)
            }
            _ => Ok(false),
        }
    }

    /// Ends queues and event channels. Pages are kept for the next connection, or released if it
    /// needs none. Queues that are handed out are not touched.
    fn tear_down(&mut self, p: &P) {
        debug_assert!(!self.is_handed_out());
        self.stage.stop();
        self.rx_pool.end(p, &mut self.regions);
        if let Stage::Closing { queues: Queues::Here(queues), ctrl } =
            core::mem::replace(&mut self.stage, Stage::Down)
        {
            if let Some(ctrl) = ctrl {
                ctrl.into_granted().into_iter().for_each(|granted| self.regions.put(p, granted));
            }
            self.end_queues(p, queues);
        }
        self.release_unneeded(p);
    }

    #[inline(never)]
    fn end_queues(&mut self, p: &P, mut queues: Vec<FrontQueue<P>>) {
        for queue in &mut queues {
            if let (Some(own), Some(cache)) = (&mut self.own, queue.tx_mut().take_cache()) {
                own.put(p, cache);
            }
        }
        // One queue at a time: a queue is large, and a kernel's stack is small.
        while !queues.is_empty() {
            self.end_queue(p, queues.remove(0));
        }
    }

    #[inline(never)]
    fn end_queue(&mut self, p: &P, queue: FrontQueue<P>) {
        if let Some(pages) = queue.end(p, &mut self.regions) {
            self.unreturned.push(pages);
        }
    }

    /// The control ring; None: there is none, the back is not connected, or it is [being
    /// asked](Self::is_announcing) something.
    pub fn ctrl(&mut self) -> Option<&mut CtrlFront<P>> {
        let is_asking = self.is_asking();
        match &mut self.stage {
            Stage::Live(Live { ctrl, announcing, .. }) if !is_asking => {
                ctrl.as_mut().filter(|_| !announcing.has_ring())
            }
            _ => None,
        }
    }

    /// Asks for multicast frames to an address, or not any more (on queue 0; see
    /// [`TxFront::multicast`](super::TxFront::multicast)).
    pub fn multicast(&mut self, p: &P, mac: MacAddr, wanted: bool) -> bool {
        self.stage.live_queues_mut().first_mut().is_some_and(|q| q.multicast(p, mac, wanted))
    }

    /// Number of multicast requests in flight, and number that the back has refused because its
    /// list is full.
    pub fn multicast_requests(&self) -> (usize, u64) {
        self.stage.queues().first().map_or((0, 0), |q| q.tx().multicast_requests())
    }

    /// Number of live queues, including those that are handed out.
    pub fn nr_queues(&self) -> usize {
        self.stage.live().map_or(0, |live| live.queues.count())
    }

    /// Hands out the live queues, in order. Each can be served whole or as
    /// [halves](FrontQueue::into_halves), by threads with platforms of their own. Until they are
    /// [back](Self::take_back) the vif neither closes nor connects ([`FrontStep::Recall`]).
    /// Meanwhile it continues to ask its back for [pages](Self::turn), but not for pages of its own
    /// memory.
    pub fn hand_out_queues(&mut self) -> Vec<FrontQueue<P>> {
        let (queues, failed) = self.stage.hand_out();
        if let Err(e) = failed {
            self.agreed.shortage.get_or_insert(e);
        }
        queues
    }

    /// Takes all of the vif's queues back, in order.
    pub fn take_back(&mut self, queues: Vec<FrontQueue<P>>) {
        self.stage.take_back(queues);
    }

    /// True if the vif's queues are handed out.
    pub fn is_handed_out(&self) -> bool {
        !self.stage.handed_out().is_empty()
    }

    fn recall(&self) -> FrontStep {
        self.stage.handed_out().iter().for_each(|queue| queue.link.set_live(false));
        FrontStep::Recall
    }

    /// Queue `i`, to read from; None: there is none.
    #[inline(always)]
    pub fn queue(&self, i: usize) -> Option<&FrontQueue<P>> {
        self.stage.queues().get(i)
    }

    /// Queue `i`, while it is live.
    #[inline(always)]
    pub fn queue_mut(&mut self, i: usize) -> Option<&mut FrontQueue<P>> {
        self.stage.live_queues_mut().get_mut(i)
    }

    /// Number of free TX slots of queue `i`.
    pub fn room(&self, i: usize) -> u32 {
        self.stage.live_queues().get(i).map_or(0, |q| q.tx().room())
    }

    /// Whether ordinary pages are granted once, and the back may keep them mapped.
    pub fn persists(&self) -> bool {
        self.agreed.asked.persistent
    }

    /// Why there are fewer queues or TX ids, or shorter staging buffers, than requested; None:
    /// everything was granted.
    pub fn shortage(&self) -> Option<PlatformError> {
        self.agreed.shortage
    }

    /// Requested features that this back does not offer or refused, at the last connect. The vif
    /// works without them.
    pub fn not_offered(&self) -> &[NotOffered] {
        &self.agreed.not_offered
    }

    /// True if the back accepts frames over several slots.
    pub fn takes_sg(&self) -> bool {
        self.agreed.takes_sg
    }

    /// Whether the back offers to filter multicast and was asked to: only then may the front
    /// [send it addresses](Self::multicast).
    pub fn takes_multicast(&self) -> bool {
        self.agreed.takes_multicast
    }

    /// Offload work that the back accepts to do; the rest must be done before a frame is sent.
    pub fn takes(&self) -> Offloads {
        self.agreed.takes
    }

    /// Fragment `k` of the payload of a frame that was passed by reference; None: there are no
    /// more. The back may change its bytes at any time.
    #[inline(always)]
    pub fn piece(&self, token: Token, k: usize) -> Option<Piece<'_>> {
        let live = self.stage.queues().iter().find_map(|q| q.rx().piece(token, k));
        live.or_else(|| self.unreturned.iter().find_map(|pages| pages.piece(token, k)))
    }

    /// Releases frames that were passed by reference, of any queue, even a former one. An error
    /// names the first unknown token; the other frames are released nevertheless.
    pub fn release(&mut self, p: &P, tokens: impl IntoIterator<Item = Token>) -> Result<(), UnknownToken> {
        let mut released = Ok(());
        for token in tokens {
            if self.stage.queues_mut().iter_mut().any(|q| q.release(token).is_ok()) {
                continue;
            }
            released = released.and(self.release_of_gone(p, token));
        }
        self.stage.live_queues_mut().iter_mut().for_each(|q| q.post_released(p));
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

    /// Releases the memory of former queues of which the caller has no frame any more.
    #[inline(never)]
    pub(crate) fn release_unlent(&mut self, p: &P) {
        for at in (0..self.unreturned.len()).rev() {
            if self.unreturned.get(at).is_some_and(|pages| pages.lent() == 0) {
                self.unreturned.swap_remove(at).put(p, &mut self.regions);
            }
        }
        self.release_unneeded(p);
    }

    /// Number of frames that the caller has by reference.
    pub fn lent(&self) -> u32 {
        let gone: u32 = self.unreturned.iter().map(Unreturned::lent).sum();
        gone + self.stage.queues().iter().map(|q| q.rx().lent()).sum::<u32>()
    }

    /// Number of TX requests of queue `i` without an answer.
    pub fn in_flight(&self, i: usize) -> u32 {
        self.stage.live_queues().get(i).map_or(0, |q| q.tx().in_flight())
    }

    /// True if any ring has work, like [`final_check`](FrontQueue::final_check), without arming
    /// anything.
    pub fn is_pending(&mut self, tx_too: bool) -> bool {
        self.stage.queues_mut().iter_mut().any(|q| q.is_pending(tx_too))
    }
}
