//! A driver domain's vifs: found by a watch on its backend directory, stepped when their fronts' states change, polled
//! round robin.
//!
//! ```text
//!   xenstore --watch--> control(): find vifs, step them         never on the data path
//!   round():            vif 0 tx, rx; vif 1 tx, rx; ...         one batch each; who is ahead in time waits (`fair_scheduler`)
//!   find    which vifs there are            step  what becomes of one
//!   link    what becomes of it with time: frames that wait, a guest that takes none, its rate
//!   throttled  whose front asks for too many steps     vif_instance  one vif, and its report
//!   sleep   until there may be something to do
//!   end     all of them left or closed    device_log  what the log says of one
//! ```
//! A vif that a predecessor left at state 4 is taken up with its live rings ([`Backend::succeed`]); [`Backend::detach`]
//! leaves it so, [`Backend::close_all`] closes it. What a predecessor closed stays closed until its front comes down.
//!
//! What a guest may do: close, vanish, lie, come back again and again. Its own vif is closed with a line that says why
//! (at most [`LINES_PER_DEVICE`] lines for each vif); the others go on. A guest that writes its state without end is heard
//! in turns ([`EVENTS_PER_TURN`]), so that frames move in between, and then not for a while ([`throttle`]).
//!
//! [`throttle`]: crate::drivers::throttle

mod device_log;
mod end;
mod find;
mod link;
mod sleep;
mod step;
#[cfg(test)]
mod tests;
mod throttled;
mod vif_instance;

pub use device_log::LINES_PER_DEVICE;
pub use vif_instance::VifReport;

use super::fair_scheduler::FairScheduler;
use super::net::port_provider::{Hotplug, PortProvider};
use super::recovery::Recovery;
use super::throttle::Throttle;
use super::wait::Waiter;
use device_log::DeviceLog;
use find::{Changed, Held, below_watch};
use pregrant::net::back::Patience;
use pregrant::net::back::{FallbackPath, Polled};
use pregrant::net::features::BackFeatures;
use pregrant::net::path::persistent;
use pregrant::platform::Platform;
use pregrant::port::{Arena, FramePort};
use pregrant::xenbus::DeviceError;
use pregrant::xenstore::{Client, Transport, XsError};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use vif_instance::VifInstance;

/// Events of xenstore that one call of [`Backend::control`] takes at most.
pub const EVENTS_PER_TURN: usize = 128;

/// Pages of one guest that are mapped at a time, over all of its vifs, unless [`Backend::limit_pages`] says otherwise
/// (XSA-300): 64 MiB. A vif with four queues, a page for each of 256 buffers both ways, has 2056 of them.
pub const PAGES_PER_GUEST: usize = 16 * 1024;
/// Pages of all guests that stay mapped since they were seen, each a mapping of its own: a Linux process may have 65530
/// (`vm.max_map_count`). Who connects when they are shared out has the next path.
const PERSISTENT_PAGES: usize = 16 * 1024;
/// Pages that one queue may need: two rings, and a buffer a page for each of their slots.
const VIF_QUEUE_PAGES: usize = 2 + 2 * 256;

/// Why the backend itself (not one vif of it) cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// xenstore is gone, or refuses.
    #[error("xenstore: {0}")]
    Store(#[from] XsError),
    /// A key of our own is of no use.
    #[error("{0}")]
    Device(#[from] DeviceError),
}

/// Which vifs a backend serves: all of a guest's, or one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// The guest.
    pub front: u16,
    /// Its device; None: all.
    pub handle: Option<u32>,
}

impl Chosen {
    /// Whether a vif is served where these are chosen: none chooses all.
    pub fn serve(chosen: &[Self], front: u16, handle: u32) -> bool {
        chosen.is_empty() || chosen.iter().any(|c| c.names(front, handle))
    }

    /// Whether this names the vif.
    pub fn names(&self, front: u16, handle: u32) -> bool {
        self.front == front && self.handle.is_none_or(|h| h == handle)
    }
}

/// All vifs of a driver domain.
pub struct Backend<P: Platform, T: Transport> {
    platform: P,
    xs: Client<T>,
    features: BackFeatures,
    fallback: FallbackPath,
    far: Box<dyn PortProvider>,
    hotplug: Hotplug,
    removes: bool,
    chosen: Vec<Chosen>,
    recovery: Option<Box<dyn Recovery<P>>>,
    /// What former vifs left there is gone.
    forgot: bool,
    vifs: BTreeMap<(u16, u32), VifInstance<P>>,
    /// What the log was told of each, also of those that somebody else holds.
    logs: BTreeMap<(u16, u32), DeviceLog>,
    /// Those of vifs that are gone, as long as the far side has something under way for them.
    ending: Vec<DeviceLog>,
    /// Vifs that somebody else still holds.
    held: BTreeMap<(u16, u32), Held>,
    /// Those with live queues, for the round.
    live: Vec<(u16, u32)>,
    turns: FairScheduler,
    /// By guest.
    throttle: BTreeMap<u16, Throttle>,
    began: Instant,
    scratch: Arena,
    removed: u64,
    page_limit: usize,
    persistent_limit: usize,
    limits_steps: bool,
    patience: Patience,
    waiter: Waiter,
}

const WATCH: &str = "backend/vif";

impl<P: Platform, T: Transport> Backend<P, T> {
    /// Starts to watch the domain's backend directory.
    pub fn new(
        platform: P,
        mut xs: Client<T>,
        features: BackFeatures,
        fallback: FallbackPath,
        far: Box<dyn PortProvider>,
    ) -> Result<Self, BackendError> {
        // Guests may read there and not write: its paths are the toolstack's and ours.
        xs.watch_each(WATCH, WATCH)?;
        Ok(Self {
            platform,
            xs,
            features,
            fallback,
            far,
            hotplug: Hotplug::None,
            removes: false,
            chosen: Vec::new(),
            recovery: None,
            forgot: false,
            vifs: BTreeMap::new(),
            logs: BTreeMap::new(),
            ending: Vec::new(),
            held: BTreeMap::new(),
            live: Vec::new(),
            turns: FairScheduler::default(),
            throttle: BTreeMap::new(),
            began: Instant::now(),
            scratch: Arena::new(),
            removed: 0,
            page_limit: PAGES_PER_GUEST,
            persistent_limit: persistent::DEFAULT_LIMIT,
            limits_steps: true,
            patience: Patience::default(),
            waiter: Waiter::default(),
        })
    }

    /// Lets vifs outlive this process, and takes up those that did. Call it before the first
    /// [`control`](Self::control).
    pub fn succeed(&mut self, recovery: Box<dyn Recovery<P>>) {
        self.recovery = Some(recovery);
    }

    /// Who plugs vifs in that are found from now on.
    pub fn set_hotplug(&mut self, hotplug: Hotplug) {
        self.hotplug = hotplug;
    }

    /// Whether this process takes away the directories of vifs that are over. The toolstack does it for its own domain
    /// alone.
    pub fn set_removes(&mut self, removes: bool) {
        self.removes = removes;
    }

    /// Serves these vifs alone; all when there are none. Before the first [`control`](Self::control).
    pub fn choose(&mut self, chosen: Vec<Chosen>) {
        self.chosen = chosen;
    }

    /// The platform.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// Which path serves frames of vifs found from now on, where no staging list is accepted.
    pub fn set_fallback(&mut self, fallback: FallbackPath) {
        self.fallback = fallback;
    }

    /// How many pages of one guest may be mapped at a time; for vifs that connect from now on.
    pub fn limit_pages(&mut self, pages: usize) {
        self.page_limit = pages;
    }

    /// How many pages of each queue and direction stay mapped once they were seen, where the front persists; 0: none, and it is
    /// not offered. For vifs found from now on.
    pub fn limit_persistent(&mut self, pages: usize) {
        self.persistent_limit = pages;
        self.features.persistent = pages > 0;
    }

    /// Whether a vif whose front asks for steps without end is not listened to for a while, now and again; it is, unless
    /// this says otherwise.
    pub fn limit_steps(&mut self, limits: bool) {
        self.limits_steps = limits;
    }

    /// How long frames wait for a guest's slots, and how long it may take none before its link goes down; for vifs found
    /// from now on.
    pub fn set_patience(&mut self, patience: Patience) {
        self.patience = patience;
    }

    /// The vifs of the guest of `key`.
    fn of_guest((front, _): (u16, u32)) -> std::ops::RangeInclusive<(u16, u32)> {
        (front, 0)..=(front, u32::MAX)
    }

    /// Pages that a vif of a guest may need, what its others need not counted.
    fn pages_left(&self, key: (u16, u32)) -> usize {
        let others = self.vifs.range(Self::of_guest(key)).filter(|(other, _)| **other != key);
        self.page_limit.saturating_sub(others.map(|(_, served)| served.vif.needed_pages()).sum())
    }

    /// Before a vif may connect: what its guest's others only keep gives way to what it may come to need.
    fn make_room(&mut self, key: (u16, u32)) {
        if self.vifs.get(&key).is_some_and(|served| served.vif.nr_queues() > 0) {
            return;
        }
        let most = 1 + self.features.max_queues as usize * VIF_QUEUE_PAGES;
        let left = self.pages_left(key).saturating_sub(most);
        let others = || self.vifs.range(Self::of_guest(key)).filter(|(other, _)| **other != key);
        if others().map(|(_, served)| served.vif.allowed_persistent()).sum::<usize>() > left {
            let n = others().count();
            for (_, served) in self.vifs.range_mut(Self::of_guest(key)).filter(|(other, _)| **other != key) {
                served.vif.allow_persistent(&self.platform, left / n);
            }
        }
    }

    /// A vif is connected: what its guest's vifs may keep is shared out anew.
    fn share_pages(&mut self, key: (u16, u32)) {
        let strangers = self.vifs.iter().filter(|((front, _), _)| *front != key.0);
        let theirs: usize = strangers.map(|(_, served)| served.vif.allowed_persistent()).sum();
        let live = self.vifs.range(Self::of_guest(key)).filter(|(_, served)| served.vif.nr_queues() > 0);
        let (n, needed) =
            live.fold((0, 0), |(n, needed), (_, served)| (n + 1, needed + served.vif.needed_pages()));
        let left = self.page_limit.saturating_sub(needed).min(PERSISTENT_PAGES.saturating_sub(theirs));
        for (_, served) in self.vifs.range_mut(Self::of_guest(key)) {
            served.vif.allow_persistent(&self.platform, left / n.max(1));
        }
    }

    /// Handles what xenstore has to say, without sleeping and not without end. True when something changed: then there
    /// may be more, so do not sleep before another call. To be called also when the connection's descriptor is not
    /// readable: events that came while a reply was awaited are kept in the client.
    pub fn control(&mut self) -> Result<bool, BackendError> {
        let mut events = 0;
        let mut scan = false;
        // By whose wish: a front's steps are at its own expense, the toolstack's at nobody's.
        let (mut by_fronts, mut by_toolstack) = (BTreeSet::new(), BTreeSet::new());
        while events < EVENTS_PER_TURN
            && let Some(event) = self.xs.next_event(Some(Duration::ZERO))?
        {
            events += 1;
            match self.vifs.iter().find(|(_, s)| s.is_about(&event)) {
                // What it missed it hears when its watches are set again.
                Some((_, served)) if served.throttled_until.is_some() => {}
                Some((&key, _)) => drop(by_fronts.insert(key)),
                None => match below_watch(&event, self.platform.domid()) {
                    Changed::Vifs => scan = true,
                    Changed::State(key) => scan |= !self.vifs.contains_key(&key) && self.serves(key),
                    Changed::Wish(key) => drop(by_toolstack.insert(key)),
                    Changed::Rate(key) => self.reload_rate(key),
                    Changed::Nothing => {}
                },
            }
        }
        if scan {
            self.scan()?;
            by_toolstack.extend(self.vifs.keys());
        }
        by_toolstack.difference(&by_fronts).for_each(|&key| self.step(key));
        for key in by_fronts {
            self.run_throttled(key, |backend| backend.step(key));
        }
        let woke = self.wake_throttled();
        let came = self.far.turn();
        self.turn_plugs();
        let asked = self.serve_ctrl_rings();
        let held = self.retry_held();
        self.watch_links();
        // A stalled queue's port that was drained there may have read frames of other queues.
        let came = self.far.turn() || came;
        self.tell_failures();
        Ok(held || events > 0 || woke || asked || came)
    }

    /// Whether this vif is to be served, if there is one.
    fn serves(&self, (front, handle): (u16, u32)) -> bool {
        Chosen::serve(&self.chosen, front, handle)
    }

    /// Some control requests of each vif. True when there were any.
    fn serve_ctrl_rings(&mut self) -> bool {
        let mut asked = false;
        let mut fault = None;
        for &key in &self.live {
            let Some(served) = self.vifs.get_mut(&key) else { continue };
            match served.vif.poll_ctrl(&self.platform) {
                Ok(Polled::More) => asked = true,
                Ok(Polled::Idle) => continue,
                Err(e) => fault = Some((key, 0, "ctrl", e)),
            }
            served.steer();
        }
        if let Some(fault) = fault {
            self.fault(fault);
            return true;
        }
        asked
    }

    /// One batch of each queue, both directions, of every vif whose turn it is. True when there may be more.
    #[inline]
    pub fn round(&mut self) -> bool {
        let mut moved = false;
        let mut fault = None;
        // With one vif there is nothing to share, and no clock to read.
        let mut since = (self.live.len() > 1).then(Instant::now);
        if let Some(now) = since {
            self.turns.begin(now.duration_since(self.began).as_nanos() as u64);
        }
        for &key in &self.live {
            let Some(served) = self.vifs.get_mut(&key) else { continue };
            if since.is_some() && self.turns.waits(&served.turn) {
                moved = true;
                continue;
            }
            let mut worked = false;
            let (n, first) = (served.ports.len(), served.vif.first_tx());
            for k in 0..n {
                let i = if first + k < n { first + k } else { first + k - n };
                let port = &mut served.ports[i];
                let tx = served.vif.poll_tx(&self.platform, i, &mut **port, &mut self.scratch);
                let rx = served.vif.poll_rx(&self.platform, i, &mut **port);
                worked |= tx == Ok(Polled::More) || rx == Ok(Polled::More);
                if let Err(e) = tx {
                    fault = Some((key, i, "tx", e));
                } else if let Err(e) = rx {
                    fault = Some((key, i, "rx", e));
                }
            }
            moved |= worked;
            match &mut since {
                Some(since) if worked => {
                    let now = Instant::now();
                    let took = now.duration_since(std::mem::replace(since, now));
                    self.turns.served(&mut served.turn, took.as_nanos() as u64);
                }
                Some(_) => self.turns.idle(&mut served.turn),
                None => {}
            }
        }
        // One a round: that vif is not live in the next, where another's turn comes.
        if let Some(fault) = fault {
            self.fault(fault);
            return true;
        }
        moved
    }

    /// Before sleeping: arms every queue. True: there is work.
    pub fn arm(&mut self) -> bool {
        // What came beside a reply since control looked wakes nobody.
        let mut work = self.retry_held() | self.xs.has_events();
        let mut fault = None;
        for &key in &self.live {
            let Some(served) = self.vifs.get_mut(&key) else { continue };
            for i in 0..served.vif.nr_queues() {
                match served.vif.final_check(&self.platform, i) {
                    Ok(more) => work |= more,
                    Err((dir, e)) => fault = Some((key, i, dir, e)),
                }
            }
            match served.vif.final_check_ctrl(&self.platform) {
                Ok(more) => work |= more,
                Err(e) => fault = Some((key, 0, "ctrl", e)),
            }
        }
        if let Some(fault) = fault {
            self.fault(fault);
            return true;
        }
        work
    }

    /// All vifs.
    pub fn reports(&self) -> Vec<VifReport> {
        self.vifs
            .values()
            .map(|s| VifReport {
                id: s.device.id(),
                state: s.vif.state(),
                queues: (0..s.vif.nr_queues())
                    .map(|i| {
                        let ((tx, rx), (tx_path, rx_path)) = (s.vif.stats(i), s.vif.path_names(i));
                        (tx_path, tx, rx_path, rx)
                    })
                    .collect(),
                link: s.vif.link_is_up(),
                stalls: s.vif.stalls(),
                credit_waits: s.vif.credit_waits(),
                refused: s.vif.refused_lists().iter().map(|(q, d, why)| (*q, *d, why.to_string())).collect(),
                failed: s.failed.clone(),
                faults: s.faults,
                throttled: s.throttled,
                lines_left_out: s.log.left_out(),
                last_failure: s.last_failure.clone(),
                reattached: s.reattached,
                connected: s.connected_at.filter(|_| s.vif.nr_queues() > 0).map(|at| at.elapsed()),
                port_drops: s.ports.first().map(|p| p.drops()).unwrap_or_default(),
            })
            .collect()
    }

    /// Vifs with live queues.
    pub fn nr_live(&self) -> usize {
        self.live.len()
    }

    /// Vifs that came and went.
    pub fn removed(&self) -> u64 {
        self.removed
    }

    /// The ports of a vif, to look into them.
    pub fn ports_mut(&mut self, front: u16, handle: u32) -> Option<&mut [Box<dyn FramePort>]> {
        self.vifs.get_mut(&(front, handle)).map(|s| &mut s.ports[..])
    }
}
