//! A driver domain's devices, of any class: found by a watch on its backend directory, stepped
//! when their fronts' states change; workers poll their queues by shares of time.
//!
//! ```text
//!   xenstore --watch--> control(): find devices, step them      never on the data path
//!   workers             their threads, or none: then round() is one worker's round, in this thread
//!
//!   watch          what an event of xenstore means
//!   discovery      which devices there are                 directory      those that are not served, and why
//!   devices        those that are served, and their report (their class: drivers/device_class/)
//!   stage          Waiting, Connected, Failed: what exists of a device in each, and which events lead where
//!   backing_state  of a device that is not connected: whether its backing is there
//!   queues         of a connected device: where its queues are     reclaim   they go to workers and come back
//!   lifecycle      a device is stepped, connected, closed, removed or failed
//!   checks         what is polled, as no event reports it  polls, retry_interval   when
//!   control_rings  rings that belong to no queue           control_turns  when they are served
//!   pages          each device's share of mapped pages     shared_pages   which devices learn it, and when
//!   throttling     fronts that ask for too many steps      throttles      what each guest has spent
//!   worker_sleep   until there may be something to do      sleeper        its state
//!   logs           the log lines of each device            shutdown       all devices left or closed
//! ```
//! A device that a predecessor left at state 4 is taken up with its live rings
//! ([`BackendConfig::recovery`]); [`Backend::detach`] leaves it so, [`Backend::close_all`] closes
//! it. A device that a predecessor closed stays closed until its front comes down.
//!
//! What a guest may do: close, vanish, break the protocol, come back again and again. Its own
//! device is closed with a line that says why (lines of each device are
//! [bounded](crate::drivers::device_log)); the others go on. A guest that writes its state without
//! end is served in turns ([`EVENTS_PER_TURN`]), so that frames move in between, and then not for
//! a while ([`throttle`]).
//!
//! [`throttle`]: crate::drivers::throttle

mod backing_state;
mod checks;
mod control_rings;
mod control_turns;
mod devices;
mod directory;
mod discovery;
mod lifecycle;
mod logs;
mod pages;
mod polls;
mod queues;
mod reclaim;
mod retry_interval;
mod shared_pages;
mod shutdown;
mod sleeper;
mod stage;
#[cfg(test)]
mod tests;
mod throttles;
mod throttling;
mod watch;
mod worker_sleep;

pub use devices::DeviceReport;
pub use pages::PAGES_PER_GUEST;

use super::device_class::{DeviceClass, ServedDevice};
use super::poll_controller::Mode;
use super::recovery::Recovery;
use super::worker_pool::placement::{Carried, Placement};
use super::worker_pool::rx_context::RxContext;
use super::worker_pool::thread::{self, EachStart, EachTurn, Start};
use super::worker_pool::waker::Waker;
use super::worker_pool::{Threads, WorkerPool};
use crate::wake::WakeOn;
use control_rings::ControlRings;
use devices::{Devices, Instance};
use directory::Directory;
use logs::Logs;
use polls::Polls;
use pregrant::platform::Platform;
use pregrant::xenbus::{DeviceError, DeviceId};
use pregrant::xenstore::{Client, Transport, XsError};
use sleeper::Sleeper;
use std::any::Any;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use throttles::Throttles;
use watch::{Changed, watch_of};

/// Largest number of xenstore events that one call of [`Backend::control`] handles.
pub const EVENTS_PER_TURN: usize = 128;

/// The reason why the whole backend, and not only one device, cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The connection to xenstore has ended, or xenstore refused a request.
    #[error("xenstore: {0}")]
    Store(#[from] XsError),
    /// A key of the backend's own directories has a value that cannot be used.
    #[error("{0}")]
    Device(#[from] DeviceError),
}

/// The configuration of a backend, for devices of all classes.
pub struct BackendConfig<P> {
    /// Lets devices outlive this process, and takes over devices that outlived a predecessor.
    pub recovery: Option<Box<dyn Recovery<P>>>,
    /// True if this process removes the directories of devices that have ended. (The toolstack does
    /// so only for its own domain.)
    pub removes: bool,
    /// Returns another driver that has the device and keeps it, as text with a remedy; None: there
    /// is none. Such a device is not served until it is free; one warning is logged.
    pub had_by_others: Option<HadByOthers>,
    /// Largest number of pages of one guest that may be mapped, for devices that connect from now
    /// on.
    pub page_limit: usize,
    /// True if fronts are throttled: a front that asks for steps without end is not watched for a
    /// while, and a control ring that is never empty is paused.
    pub limits_steps: bool,
}

/// A function that returns why a device is left to another owner; None: it is not.
pub type HadByOthers = Box<dyn Fn(&DeviceId) -> Option<String>>;

impl<P> Default for BackendConfig<P> {
    fn default() -> Self {
        Self {
            recovery: None,
            removes: false,
            had_by_others: None,
            page_limit: PAGES_PER_GUEST,
            limits_steps: true,
        }
    }
}

/// The worker threads of a backend.
pub struct WorkerConfig {
    /// Number of workers, unless each device has its own.
    pub workers: usize,
    /// Chooses the worker that gets a queue.
    pub place: Placement,
    /// The turn, the sender's or the receiver's, in which frames from guest to guest are delivered.
    pub rx_context: RxContext,
    /// The workers' behaviour when they find no work.
    pub mode: Mode,
    /// A function that each worker thread calls first.
    pub each_start: EachStart,
    /// A function that each worker thread calls periodically, between batches.
    pub each_turn: EachTurn,
}

/// The backend of a driver domain, with all of its devices.
pub struct Backend<P: Platform, T: Transport + 'static> {
    platform: P,
    xs: Client<T>,
    config: BackendConfig<P>,
    classes: Vec<Box<dyn DeviceClass<P, T>>>,
    /// The devices that are served.
    devices: Devices<P, T>,
    /// The state of the domain's directory, and the devices in it that are not served.
    directory: Directory<P, T>,
    logs: Logs,
    throttles: Throttles,
    control_rings: ControlRings,
    polls: Polls,
    /// The threads that have the queues: workers, or this thread.
    pool: WorkerPool<P>,
    sleeper: Sleeper,
}

impl<P: Platform, T: Transport + 'static> Backend<P, T> {
    /// Starts to watch the domain's backend directory for devices of these classes.
    #[inline(never)]
    pub fn new(
        platform: P,
        mut xs: Client<T>,
        config: BackendConfig<P>,
        classes: Vec<Box<dyn DeviceClass<P, T>>>,
    ) -> Result<Self, BackendError> {
        for class in &classes {
            // Guests may read there and not write: its paths are the toolstack's and ours.
            let watch = watch_of(class.rules().class);
            xs.watch_each(&watch, &watch)?;
        }
        Ok(Self {
            platform,
            xs,
            config,
            classes,
            devices: Devices::default(),
            directory: Directory::default(),
            logs: Logs::default(),
            throttles: Throttles::default(),
            control_rings: ControlRings::default(),
            polls: Polls::default(),
            pool: WorkerPool::inline(),
            sleeper: Sleeper::default(),
        })
    }

    /// Starts worker threads, which serve the queues instead of this thread. It must be called
    /// before the first device is found.
    ///
    /// # Errors
    /// A thread, or a handle of the domain for it, could not be created: the reason in words.
    #[inline(never)]
    pub fn start_workers(&mut self, workers: WorkerConfig) -> Result<(), String>
    where
        P::Events: WakeOn,
    {
        let waker = Waker::of_thread(usize::MAX)
            .map_err(|e| format!("cannot make an eventfd for the control thread: {e}"))?;
        let wakes = waker.wakes().map(|fd| self.platform.events().also_wake_on(fd));
        wakes.transpose().map_err(|e| e.to_string())?;
        let WorkerConfig { workers, place, rx_context, mode, each_start, each_turn } = workers;
        // Makes one handle now: a platform that allows only one refuses before there is any thread.
        let spare = self.platform.another().map_err(|e| e.to_string())?;
        let spare = Mutex::new(spare);
        let spawn = move |number, post| {
            let p =
                spare.lock().unwrap_or_else(PoisonError::into_inner).another().map_err(|e| e.to_string())?;
            let (each_start, each_turn) = (Arc::clone(&each_start), Arc::clone(&each_turn));
            let named = std::thread::Builder::new().name(format!("worker {number}"));
            let start = Start::new(p, post)?;
            let started = move || thread::run(start, (mode, rx_context), &*each_start, each_turn);
            named.spawn(started).map_err(|e| e.to_string())
        };
        self.pool = WorkerPool::Threads(Threads::new(workers, place, waker, Box::new(spawn))?);
        Ok(())
    }

    /// Returns the platform of the devices.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// Returns the configuration, so that it can be changed for the future.
    pub fn config_mut(&mut self) -> &mut BackendConfig<P> {
        &mut self.config
    }

    /// Returns the class of this type, or None if this backend does not serve it.
    pub fn class_mut<C: DeviceClass<P, T>>(&mut self) -> Option<&mut C> {
        self.classes.iter_mut().find_map(|class| (&mut **class as &mut dyn Any).downcast_mut())
    }

    /// Handles xenstore events, a bounded number, without sleeping. Returns true if something
    /// changed: then call it again before sleeping. Call it also if the connection's descriptor is
    /// not readable, since events that arrived before a reply are kept in the client.
    #[inline(never)]
    pub fn control(&mut self) -> Result<bool, BackendError> {
        let mut events = 0;
        let mut news = self.pump();
        let mut scan = std::mem::take(&mut self.directory.rescan);
        // A front's steps are charged to its guest, the toolstack's to no account.
        let (mut by_fronts, mut by_toolstack) = (BTreeSet::new(), BTreeSet::new());
        while events < EVENTS_PER_TURN
            && let Some(event) = self.xs.next_event(Some(Duration::ZERO))?
        {
            events += 1;
            match self.devices.iter().find(|s| s.is_about(&event)) {
                // A throttled device gets the events that it missed when its watches are set again.
                Some(served) if served.throttle.until.is_some() => {}
                Some(served) => drop(by_fronts.insert(served.device.id())),
                None => match self.meaning_of(&event) {
                    Changed::Devices => scan = true,
                    // Another backend that has it may write its state without end.
                    Changed::State(id) if self.directory.left_alone.contains(&id) => {}
                    Changed::State(id) => scan |= !self.devices.has(&id) && self.serves(&id),
                    Changed::Toolstack(id) => drop(by_toolstack.insert(id)),
                    Changed::Own(id, key) => {
                        self.own_key_changed(&id, key);
                        // The front may wait for that.
                        if self.devices.get(&id).is_some_and(|served| !served.is_connected()) {
                            by_toolstack.insert(id);
                        }
                    }
                    Changed::Nothing => {}
                },
            }
        }
        if scan || events > 0 {
            // Steps may be long, and frames of another guest wait for its link.
            news |= self.turn_queues();
        }
        if scan {
            self.scan()?;
            by_toolstack.extend(self.devices.iter().map(|s| s.device.id()));
        }
        by_toolstack.difference(&by_fronts).for_each(|&id| self.step(id));
        for id in by_fronts {
            self.run_throttled(id, |backend| backend.step(id));
        }
        let woke = self.wake_throttled();
        let came = self.turn_classes();
        self.turn_plugs();
        self.run_checks();
        let held = self.retry_held();
        let asked = self.turn_devices();
        news |= self.turn_queues();
        // A stalled queue's port that was drained there may have read frames of other queues.
        let came = self.turn_classes() || came;
        self.report_failures();
        debug_assert!(self.devices.iter().all(Instance::is_stage_right));
        Ok(held || events > 0 || woke || asked || came || news || self.directory.rescan)
    }

    /// True if one of the classes serves this device in case it exists.
    fn serves(&self, id: &DeviceId) -> bool {
        self.classes.iter().any(|c| c.rules().class == id.class && c.serves(id.front.0, id.handle))
    }

    /// Runs a control turn of the queues that this thread serves, and handles the results.
    fn turn_queues(&mut self) -> bool {
        if let Some(load) = self.pool.inline_mut() {
            load.turn(&self.platform);
        }
        self.pump()
    }

    fn turn_classes(&mut self) -> bool {
        let remotes = self.classes.iter().filter_map(|class| class.remote());
        remotes.fold(false, |came, mut remote| remote.turn() | came)
    }

    /// Serves one batch of each active queue, in both directions, of each device whose turn it is.
    /// It does nothing if there are worker threads. Returns true if there may be more work.
    #[inline(never)]
    pub fn round(&mut self) -> bool {
        let Some(load) = self.pool.inline_mut() else { return false };
        let moved = load.round(&self.platform);
        if load.has_news() {
            self.pump();
        }
        moved
    }

    /// Called before sleeping: arms the rings and queues that this thread serves. Returns true if
    /// there is work.
    #[inline(never)]
    pub fn arm(&mut self) -> bool {
        // Events that arrived before a reply since the last control turn do not wake this thread.
        let mut work = self.retry_held() | self.xs.has_events();
        work |= self.arm_control_rings();
        work |= self.pool.inline_mut().is_some_and(|load| {
            load.take_doorbells();
            load.arm(&self.platform)
        });
        self.pump() | work
    }

    /// Returns the status of all devices, with the part of each class.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceReport, &dyn ServedDevice<P, T>)> {
        let waiting = self.directory.held.iter().filter_map(|(id, held)| {
            // Somebody else's devices are not reported.
            let served = held.made.as_deref()?;
            Some((DeviceReport::waiting(*id, served.back().state(), &held.why), served))
        });
        self.devices.iter().map(|s| (s.report(), &*s.served)).chain(waiting)
    }

    /// Number of devices that are connected.
    pub fn nr_live(&self) -> usize {
        self.devices.nr_connected()
    }

    /// Returns, for each worker thread, the queues that it serves, by device.
    pub fn carried(&self) -> Vec<Carried> {
        self.pool.carried()
    }

    /// Number of devices that were removed.
    pub fn removed(&self) -> u64 {
        self.devices.removed
    }
}
