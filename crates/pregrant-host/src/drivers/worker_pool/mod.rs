//! The workers of a backend, as its control thread knows them: who has which queue, and how they
//! come and go.
//!
//! ```text
//!   control thread                    messages                       worker (worker_pool::thread), one or several
//!   --------------                                                  -----------------------------------
//!   connected:  hand_out  --Take(queue)--------------------------->  adopts its channels, polls it
//!   closing:    reclaim    --GiveBack(device)---------------------->  the queues are Returned
//!               pump      <--Returned(queues, why)-- <--Changed----  a fault, a link that changed
//! ```
//! A queue is in one place: with its device, in a message, or with one worker. Neither side waits
//! for the other: messages go through channels without a bound on this side of the data path, a few
//! for each thing that happens to a device, and a [`Waker`] wakes who sleeps.
//!
//! Without threads ([`WorkerPool::inline`]) the one worker is the control thread itself, between
//! its control turns.
//!
//! What a guest may do: come and go. Each time costs some messages, and is throttled as all of its
//! steps are.

pub mod placement;
pub mod rx_context;
pub mod thread;
pub mod waker;

use super::device_class::ServedQueue;
use super::worker_queues::{Returned, Why, WorkerQueues};
use placement::{Carried, Placement, least, uneven};
use pregrant::platform::Platform;
use pregrant::xenbus::DeviceId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use waker::Waker;

/// Messages to a worker.
pub enum WorkerCommand<P> {
    /// Makes the worker serve this queue, and add the worker time that its device uses to this
    /// counter.
    Take(DeviceId, Box<dyn ServedQueue<P>>, Arc<AtomicU64>),
    /// Makes the worker return the device's queues, if it has any.
    GiveBack(DeviceId),
    /// Makes the worker poll the device's queues.
    WakeQueues(DeviceId),
    /// Ends the worker: no more commands follow.
    Stop,
}

/// Messages of a worker to the control thread.
pub enum WorkerEvent<P> {
    /// The worker of this number returns queues.
    Returned(usize, Returned<P>),
    /// The device needs a check.
    Changed(DeviceId),
}

/// The control thread's end of one worker thread.
struct WorkerHandle<P> {
    waker: Arc<Waker>,
    commands: Sender<WorkerCommand<P>>,
    carried: Carried,
    missed_wakeups: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl<P> WorkerHandle<P> {
    fn send(&self, command: WorkerCommand<P>) {
        // If the worker has ended, the message is lost.
        let _ = self.commands.send(command);
        self.waker.wake();
    }
}

/// Makes the thread of a worker; the argument is the worker's number.
pub type SpawnWorker<P> = Box<dyn FnMut(usize, WorkerContext<P>) -> Result<JoinHandle<()>, String>>;

/// The arguments of a new worker.
pub struct WorkerContext<P> {
    /// The worker's own waker.
    pub waker: Arc<Waker>,
    /// Commands to the worker.
    pub commands: Receiver<WorkerCommand<P>>,
    /// Messages of the worker to the control thread.
    pub events: Sender<WorkerEvent<P>>,
    /// The control thread's waker, to be called after sending a message.
    pub control: Arc<Waker>,
    /// The counter of events that the worker lost.
    pub missed_wakeups: Arc<AtomicU64>,
}

/// Worker threads.
pub struct Threads<P> {
    handles: Vec<Option<WorkerHandle<P>>>,
    place: Placement,
    spawn: SpawnWorker<P>,
    events: (Sender<WorkerEvent<P>>, Receiver<WorkerEvent<P>>),
    /// The control thread's waker.
    waker: Arc<Waker>,
    /// Number of events lost by workers that have ended.
    missed_before: u64,
    /// Threads that were asked to stop; they are joined only at the end.
    leaving: Vec<JoinHandle<()>>,
}

/// The threads that serve queues.
pub enum WorkerPool<P: Platform> {
    /// The control thread serves all queues.
    Inline(Box<WorkerQueues<P>>),
    /// Worker threads serve the queues.
    Threads(Threads<P>),
}

impl<P: Platform> WorkerPool<P> {
    /// Creates a pool without worker threads.
    pub fn inline() -> Self {
        Self::Inline(Box::new(WorkerQueues::new(Waker::inline()).keeping_unknown()))
    }

    /// Returns the queues that this thread serves, if there are no worker threads.
    #[inline(always)]
    pub fn inline_mut(&mut self) -> Option<&mut WorkerQueues<P>> {
        match self {
            Self::Inline(load) => Some(load),
            Self::Threads(_) => None,
        }
    }

    /// Gives the queues of a device that has just connected to workers, which add the time that
    /// they use to `worker_ns`. Returns a line to be logged for the device, if any.
    pub fn hand_out(
        &mut self,
        p: &P,
        id: DeviceId,
        queues: Vec<Box<dyn ServedQueue<P>>>,
        worker_ns: &Arc<AtomicU64>,
    ) -> Option<String> {
        match self {
            Self::Inline(load) => {
                queues.into_iter().for_each(|queue| load.take(p, id, queue, worker_ns));
                None
            }
            Self::Threads(threads) => threads.hand_out(id, queues, worker_ns),
        }
    }

    /// Asks for the queues of a device. [`pump`](Self::pump) returns them later; without threads
    /// they are returned at once.
    pub fn reclaim(&mut self, id: DeviceId) -> Option<Returned<P>> {
        match self {
            Self::Inline(load) => Some(Returned { id, queues: load.give_back(&id), why: None }),
            Self::Threads(threads) => {
                threads.send_to_workers_of(id, WorkerCommand::GiveBack);
                None
            }
        }
    }

    /// Makes the workers poll a device's queues, because something changed that concerns them.
    pub fn wake_queues(&mut self, id: DeviceId) {
        match self {
            Self::Inline(load) => load.wake_queues(&id),
            Self::Threads(threads) => threads.send_to_workers_of(id, WorkerCommand::WakeQueues),
        }
    }

    /// Returns the messages of workers since the last call: queues that were returned, and devices
    /// that need a check.
    pub fn pump(&mut self) -> (Vec<Returned<P>>, Vec<DeviceId>) {
        match self {
            Self::Inline(load) => (load.take_returned(), load.take_changed()),
            Self::Threads(threads) => threads.pump(),
        }
    }

    /// Returns a device whose queues should move, because devices were added or removed.
    pub fn uneven(&self) -> Option<DeviceId> {
        match self {
            Self::Threads(threads) if threads.place == Placement::Balanced => {
                let carried: Vec<_> = threads.handles.iter().flatten().map(|s| s.carried.clone()).collect();
                uneven(&carried)
            }
            _ => None,
        }
    }

    /// Returns, for each worker, the queues that it serves.
    pub fn carried(&self) -> Vec<Carried> {
        match self {
            Self::Inline(_) => Vec::new(),
            Self::Threads(threads) => threads.handles.iter().flatten().map(|s| s.carried.clone()).collect(),
        }
    }

    /// Returns the number of events that worker threads lost.
    pub fn missed_wakeups(&self) -> u64 {
        let Self::Threads(threads) = self else { return 0 };
        let each = threads.handles.iter().flatten().map(|s| s.missed_wakeups.load(Ordering::Relaxed));
        threads.missed_before + each.sum::<u64>()
    }
}

impl<P> Threads<P> {
    /// Starts `workers` workers; with [`Placement::Own`] one for each device is started later.
    /// `waker` is the control thread's.
    ///
    /// # Errors
    /// A thread cannot be created: the reason in words.
    pub fn new(
        workers: usize,
        place: Placement,
        waker: Arc<Waker>,
        spawn: SpawnWorker<P>,
    ) -> Result<Self, String> {
        let mut threads = Self {
            handles: Vec::new(),
            place,
            spawn,
            events: channel(),
            waker,
            missed_before: 0,
            leaving: Vec::new(),
        };
        if place != Placement::Own {
            for _ in 0..workers.max(1) {
                threads.spawn_worker()?;
            }
        }
        Ok(threads)
    }

    /// Starts one more worker, and returns its index.
    fn spawn_worker(&mut self) -> Result<usize, String> {
        let at = self.handles.iter().position(Option::is_none).unwrap_or(self.handles.len());
        let waker =
            Waker::of_thread(at).map_err(|e| format!("cannot make an eventfd for a worker thread: {e}"))?;
        let (commands, taken) = channel();
        let missed_wakeups = Arc::default();
        let context = WorkerContext {
            waker: Arc::clone(&waker),
            commands: taken,
            events: self.events.0.clone(),
            control: Arc::clone(&self.waker),
            missed_wakeups: Arc::clone(&missed_wakeups),
        };
        let thread = Some((self.spawn)(at, context)?);
        let handle =
            Some(WorkerHandle { waker, commands, carried: Carried::default(), missed_wakeups, thread });
        if at == self.handles.len() {
            self.handles.push(handle);
        } else {
            self.handles[at] = handle;
        }
        Ok(at)
    }

    fn hand_out(
        &mut self,
        id: DeviceId,
        queues: Vec<Box<dyn ServedQueue<P>>>,
        worker_ns: &Arc<AtomicU64>,
    ) -> Option<String> {
        let (mut own, mut unplaced, mut note) = (None, Vec::new(), None);
        for queue in queues {
            let at = match self.place {
                Placement::Own => match own {
                    Some(at) => at,
                    None => match self.spawn_worker() {
                        Ok(at) => *own.insert(at),
                        Err(why) => {
                            note =
                                Some(format!("no thread of its own: {why}; it shares one if there is one"));
                            *own.insert(self.least(&id))
                        }
                    },
                },
                Placement::Fixed => usize::from(id.front.0) % self.handles.len(),
                Placement::Balanced => self.least(&id),
            };
            if let Some(Some(handle)) = self.handles.get_mut(at) {
                handle.carried.add(id);
                handle.send(WorkerCommand::Take(id, queue, Arc::clone(worker_ns)));
            } else {
                unplaced.push(queue);
            }
        }
        if !unplaced.is_empty() {
            let why = Some(Why::Platform("there is no worker thread for its queues".into()));
            let returned = Returned { id, queues: unplaced, why };
            // Cannot fail: this object has both ends of the channel.
            let _ = self.events.0.send(WorkerEvent::Returned(usize::MAX, returned));
            self.waker.wake();
        }
        note
    }

    /// Sends a command to each worker that has queues of this device.
    fn send_to_workers_of(&self, id: DeviceId, command: fn(DeviceId) -> WorkerCommand<P>) {
        let workers = self.handles.iter().flatten().filter(|handle| handle.carried.of(&id) > 0);
        workers.for_each(|handle| handle.send(command(id)));
    }

    fn least(&self, id: &DeviceId) -> usize {
        let handles = self.handles.iter().enumerate();
        least(handles.filter_map(|(at, handle)| Some((at, &handle.as_ref()?.carried))), id).unwrap_or(0)
    }

    fn pump(&mut self) -> (Vec<Returned<P>>, Vec<DeviceId>) {
        let (mut returned, mut changed) = (Vec::new(), Vec::new());
        self.waker.doorbell.take(|_| {});
        while let Ok(event) = self.events.1.try_recv() {
            match event {
                WorkerEvent::Changed(id) => changed.push(id),
                WorkerEvent::Returned(at, came) => {
                    if let Some(Some(handle)) = self.handles.get_mut(at) {
                        // Not always all that it has: another may still be in a message.
                        handle.carried.remove(&came.id, came.queues.len());
                        if self.place == Placement::Own && handle.carried.total() == 0 {
                            self.stop_worker(at);
                        }
                    }
                    returned.push(came);
                }
            }
        }
        (returned, changed)
    }

    /// Ends a worker that has no queues.
    fn stop_worker(&mut self, at: usize) {
        let Some(mut handle) = self.handles[at].take() else { return };
        handle.send(WorkerCommand::Stop);
        self.leaving.retain(|thread| !thread.is_finished());
        self.leaving.extend(handle.thread.take());
        self.missed_before += handle.missed_wakeups.load(Ordering::Relaxed);
    }

    /// The control thread's waker.
    pub fn waker(&self) -> &Arc<Waker> {
        &self.waker
    }
}

impl<P> Drop for Threads<P> {
    fn drop(&mut self) {
        (0..self.handles.len()).for_each(|at| self.stop_worker(at));
        for thread in self.leaving.drain(..) {
            let _ = thread.join(); // one that panicked has ended the process
        }
    }
}
