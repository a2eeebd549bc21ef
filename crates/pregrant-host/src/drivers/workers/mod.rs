//! The workers of a backend, as its control thread knows them: who has which queue, and how they come and go.
//!
//! ```text
//!   control thread                    letters                       worker (crew::thread), one or several
//!   --------------                                                  -----------------------------------
//!   connected:  hand_out  --Take(queue)--------------------------->  adopts its channels, polls it
//!   closing:    recall    --GiveBack(device)---------------------->  the queues are Returned
//!               pump      <--Returned(queues, why)-- <--Changed----  a fault, a link that changed
//! ```
//! A queue is in one place: with its device, in a letter, or with one worker. Neither side waits for the other: letters go
//! through channels without a bound on this side of the data path, a few for each thing that happens to a device, and a
//! [`Desk`] wakes who sleeps.
//!
//! Without threads ([`Crew::inline`]) the one worker is the control thread itself, between its control turns.
//!
//! What a guest may do: come and go. Each time costs some letters, and is throttled as all of its steps are.

pub mod desk;
pub mod place;
pub mod thread;

use super::registry::ServedQueue;
use super::workload::{Returned, Why, Workload};
use desk::Desk;
use place::{Carried, Placement, least, uneven};
use pregrant::platform::Platform;
use pregrant::xenbus::DeviceId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// To a worker.
pub enum Order<P> {
    /// Serve this queue, and count there what its device takes of the worker's time.
    Take(DeviceId, Box<dyn ServedQueue<P>>, Arc<AtomicU64>),
    /// Return the device's queues, if there are any.
    GiveBack(DeviceId),
    /// Look at the device's queues.
    Nudge(DeviceId),
    /// It is over.
    Stop,
}

/// To the control thread.
pub enum Notice<P> {
    /// Queues come back.
    Returned(usize, Returned<P>),
    /// Look at this device.
    Changed(DeviceId),
}

/// One worker's thread.
struct Seat<P> {
    desk: Arc<Desk>,
    orders: Sender<Order<P>>,
    carried: Carried,
    missed_wakeups: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl<P> Seat<P> {
    fn order(&self, order: Order<P>) {
        // Where it has ended there is nobody to be told.
        let _ = self.orders.send(order);
        self.desk.wake();
    }
}

/// How threads are made: by number.
pub type Hire<P> = Box<dyn FnMut(usize, Post<P>) -> Result<JoinHandle<()>, String>>;

/// What a new worker is given.
pub struct Post<P> {
    /// Its own place.
    pub desk: Arc<Desk>,
    /// What it is to do.
    pub orders: Receiver<Order<P>>,
    /// Where it answers.
    pub notices: Sender<Notice<P>>,
    /// Who is to be woken then.
    pub control: Arc<Desk>,
    /// Wake-ups that it lost.
    pub missed_wakeups: Arc<AtomicU64>,
}

/// Worker threads.
pub struct Threads<P> {
    seats: Vec<Option<Seat<P>>>,
    place: Placement,
    hire: Hire<P>,
    notices: (Sender<Notice<P>>, Receiver<Notice<P>>),
    /// The control thread's.
    desk: Arc<Desk>,
    /// Of workers that have ended.
    missed_before: u64,
    /// Threads that were told to stop; nobody waits for them before the end.
    leaving: Vec<JoinHandle<()>>,
}

/// See the module.
pub enum Crew<P: Platform> {
    /// The control thread alone.
    Inline(Box<Workload<P>>),
    /// Others.
    Threads(Threads<P>),
}

impl<P: Platform> Crew<P> {
    /// No threads.
    pub fn inline() -> Self {
        Self::Inline(Box::new(Workload::new(Desk::inline()).keeping_unknown()))
    }

    /// The worker that is this thread, if it is one.
    #[inline(always)]
    pub fn inline_mut(&mut self) -> Option<&mut Workload<P>> {
        match self {
            Self::Inline(load) => Some(load),
            Self::Threads(_) => None,
        }
    }

    /// Gives the queues of a device that has just connected to their workers, which count in `worker_ns` what they take of their time.
    /// Returned is what the log is to be told of that, at the device's expense.
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

    /// Wants the queues of a device back. They come by [`pump`](Self::pump), at once where there are no threads.
    pub fn recall(&mut self, id: DeviceId) -> Option<Returned<P>> {
        match self {
            Self::Inline(load) => Some(Returned { id, queues: load.give_back(&id), why: None }),
            Self::Threads(threads) => {
                let has = |seat: &&Seat<P>| seat.carried.of(&id) > 0;
                threads.seats.iter().flatten().filter(has).for_each(|seat| seat.order(Order::GiveBack(id)));
                None
            }
        }
    }

    /// Has the workers look at a device's queues: something that they are to know has changed.
    pub fn nudge(&mut self, id: DeviceId) {
        match self {
            Self::Inline(load) => load.nudge(&id),
            Self::Threads(threads) => {
                let has = |seat: &&Seat<P>| seat.carried.of(&id) > 0;
                threads.seats.iter().flatten().filter(has).for_each(|seat| seat.order(Order::Nudge(id)));
            }
        }
    }

    /// What workers have said since the last call: queues that came back, devices to be looked at.
    pub fn pump(&mut self) -> (Vec<Returned<P>>, Vec<DeviceId>) {
        match self {
            Self::Inline(load) => (load.take_returned(), load.take_changed()),
            Self::Threads(threads) => threads.pump(),
        }
    }

    /// A device that is to be placed anew, since others came or went.
    pub fn uneven(&self) -> Option<DeviceId> {
        match self {
            Self::Threads(threads) if threads.place == Placement::Balanced => {
                let carried: Vec<_> = threads.seats.iter().flatten().map(|s| s.carried.clone()).collect();
                uneven(&carried)
            }
            _ => None,
        }
    }

    /// By worker: what it carries.
    pub fn carried(&self) -> Vec<Carried> {
        match self {
            Self::Inline(_) => Vec::new(),
            Self::Threads(threads) => threads.seats.iter().flatten().map(|s| s.carried.clone()).collect(),
        }
    }

    /// Wake-ups that worker threads lost.
    pub fn missed_wakeups(&self) -> u64 {
        let Self::Threads(threads) = self else { return 0 };
        let each = threads.seats.iter().flatten().map(|s| s.missed_wakeups.load(Ordering::Relaxed));
        threads.missed_before + each.sum::<u64>()
    }
}

impl<P> Threads<P> {
    /// So many workers, or as many as there are devices ([`Placement::Own`]). `desk` is the control thread's.
    ///
    /// # Errors
    /// A thread cannot be made, in words.
    pub fn new(workers: usize, place: Placement, desk: Arc<Desk>, hire: Hire<P>) -> Result<Self, String> {
        let mut threads = Self {
            seats: Vec::new(),
            place,
            hire,
            notices: channel(),
            desk,
            missed_before: 0,
            leaving: Vec::new(),
        };
        if place != Placement::Own {
            for _ in 0..workers.max(1) {
                threads.sit()?;
            }
        }
        Ok(threads)
    }

    /// One more worker; its place.
    fn sit(&mut self) -> Result<usize, String> {
        let at = self.seats.iter().position(Option::is_none).unwrap_or(self.seats.len());
        let desk = Desk::of_thread(at).map_err(|e| format!("no descriptor for a worker: {e}"))?;
        let (orders, taken) = channel();
        let missed_wakeups = Arc::default();
        let post = Post {
            desk: Arc::clone(&desk),
            orders: taken,
            notices: self.notices.0.clone(),
            control: Arc::clone(&self.desk),
            missed_wakeups: Arc::clone(&missed_wakeups),
        };
        let thread = Some((self.hire)(at, post)?);
        let seat = Some(Seat { desk, orders, carried: Carried::default(), missed_wakeups, thread });
        if at == self.seats.len() {
            self.seats.push(seat);
        } else {
            self.seats[at] = seat;
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
                    None => match self.sit() {
                        Ok(at) => *own.insert(at),
                        Err(why) => {
                            note =
                                Some(format!("no thread of its own: {why}; it shares one if there is one"));
                            *own.insert(self.least(&id))
                        }
                    },
                },
                Placement::Fixed => usize::from(id.front.0) % self.seats.len(),
                Placement::Balanced => self.least(&id),
            };
            if let Some(Some(seat)) = self.seats.get_mut(at) {
                seat.carried.add(id);
                seat.order(Order::Take(id, queue, Arc::clone(worker_ns)));
            } else {
                unplaced.push(queue);
            }
        }
        if !unplaced.is_empty() {
            let why = Some(Why::Platform("there is no worker thread for its queues".into()));
            let returned = Returned { id, queues: unplaced, why };
            // Both ends are here.
            let _ = self.notices.0.send(Notice::Returned(usize::MAX, returned));
            self.desk.wake();
        }
        note
    }

    fn least(&self, id: &DeviceId) -> usize {
        let seats = self.seats.iter().enumerate();
        least(seats.filter_map(|(at, seat)| Some((at, &seat.as_ref()?.carried))), id).unwrap_or(0)
    }

    fn pump(&mut self) -> (Vec<Returned<P>>, Vec<DeviceId>) {
        let (mut returned, mut changed) = (Vec::new(), Vec::new());
        self.desk.bell.take(|_| {});
        while let Ok(notice) = self.notices.1.try_recv() {
            match notice {
                Notice::Changed(id) => changed.push(id),
                Notice::Returned(at, came) => {
                    if let Some(Some(seat)) = self.seats.get_mut(at) {
                        // Not always all that it has: another may still be in a letter.
                        seat.carried.remove(&came.id, came.queues.len());
                        if self.place == Placement::Own && seat.carried.total() == 0 {
                            self.dismiss(at);
                        }
                    }
                    returned.push(came);
                }
            }
        }
        (returned, changed)
    }

    /// A worker without queues ends.
    fn dismiss(&mut self, at: usize) {
        let Some(mut seat) = self.seats[at].take() else { return };
        seat.order(Order::Stop);
        self.leaving.retain(|thread| !thread.is_finished());
        self.leaving.extend(seat.thread.take());
        self.missed_before += seat.missed_wakeups.load(Ordering::Relaxed);
    }

    /// The control thread's place.
    pub fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }
}

impl<P> Drop for Threads<P> {
    fn drop(&mut self) {
        (0..self.seats.len()).for_each(|at| self.dismiss(at));
        for thread in self.leaving.drain(..) {
            let _ = thread.join(); // one that panicked has ended the process
        }
    }
}
