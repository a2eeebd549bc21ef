//! A worker's thread: its loop over [`WorkerQueues`], and the messages that it reads in between.
//!
//! ```text
//!   round, round ... --2 ms--> messages, turn --nothing moves--> messages, arm, sleep --event, doorbell, frames, time--> round
//! ```
//! It has a handle of the domain of its own, with its own event descriptors, and knows neither
//! xenstore nor any device's state.
//!
//! What a guest may do: to the thread, nothing; to its queues, what each path says.

use super::rx_context::RxContext;
use super::waker::Waker;
use super::{WorkerCommand, WorkerContext, WorkerEvent};
use crate::drivers::poll_controller::Mode;
use crate::drivers::poll_loop::{PollLoop, Rest, Work};
use crate::drivers::wait::{Waiter, is_lifted};
use crate::drivers::worker_queues::{Returned, Why, WorkerQueues};
use crate::wake::WakeOn;
use pregrant::platform::Platform;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

/// A function that each worker calls now and then, between batches, for things that its ports need,
/// such as the time.
pub type EachTurn = Arc<dyn Fn() + Send + Sync>;

/// A function that each worker calls with its number before it does anything else.
pub type EachStart = Arc<dyn Fn(usize) + Send + Sync>;

struct Thread<P: Platform> {
    p: P,
    load: WorkerQueues<P>,
    waker: Arc<Waker>,
    commands: Receiver<WorkerCommand<P>>,
    events: Sender<WorkerEvent<P>>,
    control: Arc<Waker>,
    waiter: Waiter,
    missed_wakeups: Arc<AtomicU64>,
    /// The numbers of the descriptors of the worker's doorbell and ports, among those that wake the
    /// worker.
    doorbell: Option<usize>,
    arrivals: Option<usize>,
    each_turn: EachTurn,
    /// True if the thread has done nothing since it last slept and so saw all events.
    checked: bool,
    over: bool,
}

/// Ends the process if a worker panics, since the worker's queues are lost then, and only a
/// successor can take them over.
struct WholeProcess;

impl Drop for WholeProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// The arguments of a worker's thread.
pub struct Start<P: Platform> {
    p: P,
    context: WorkerContext<P>,
    doorbell: Option<usize>,
}

impl<P: Platform> Start<P>
where
    P::Events: WakeOn,
{
    /// Makes a worker with a platform handle of its own.
    ///
    /// # Errors
    /// The worker's descriptor cannot wake it: the reason in words.
    pub fn new(p: P, context: WorkerContext<P>) -> Result<Self, String> {
        let doorbell = context.waker.wakes().map(|fd| p.events().also_wake_on(fd)).transpose();
        let doorbell =
            doorbell.map_err(|e| format!("worker {} cannot be woken: {e}", context.waker.number))?;
        Ok(Self { p, context, doorbell })
    }
}

/// Runs the worker until it gets the command to stop.
pub fn run<P: Platform>(
    start: Start<P>,
    (mode, rx_context): (Mode, RxContext),
    each_start: &dyn Fn(usize),
    each_turn: EachTurn,
) where
    P::Events: WakeOn,
{
    let _whole = WholeProcess;
    let Start { p, context, doorbell } = start;
    each_start(context.waker.number);
    let WorkerContext { waker, commands, events, control, missed_wakeups } = context;
    let load = WorkerQueues::new(Arc::clone(&waker)).delivering(rx_context);
    let mut thread = Thread {
        p,
        load,
        waker,
        commands,
        events,
        control,
        waiter: Waiter::default(),
        missed_wakeups,
        doorbell,
        arrivals: None,
        each_turn,
        checked: false,
        over: false,
    };
    let Ok(()) = PollLoop::new(mode).run(&mut thread);
}

impl<P: Platform> Thread<P>
where
    P::Events: WakeOn,
{
    /// Executes the commands that the control thread has sent to this worker.
    fn read(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                WorkerCommand::Take(id, mut queue, worker_ns) => match queue.adopt(&self.p) {
                    Ok(()) => {
                        self.load.take(&self.p, id, queue, &worker_ns);
                        if let (None, Some(fd)) = (self.arrivals, self.load.wakes()) {
                            self.arrivals = self.p.events().also_wake_on(fd).ok();
                        }
                    }
                    Err(e) => {
                        let why = Some(Why::Channel(e));
                        self.say(WorkerEvent::Returned(
                            self.waker.number,
                            Returned { id, queues: vec![queue], why },
                        ));
                    }
                },
                WorkerCommand::GiveBack(id) => {
                    let queues = self.load.give_back(&id);
                    if !queues.is_empty() {
                        self.say(WorkerEvent::Returned(
                            self.waker.number,
                            Returned { id, queues, why: None },
                        ));
                    }
                }
                WorkerCommand::WakeQueues(id) => self.load.wake_queues(&id),
                WorkerCommand::Stop => self.over = true,
            }
        }
    }

    fn say(&self, event: WorkerEvent<P>) {
        // At the very end the control thread is gone.
        let _ = self.events.send(event);
        self.control.wake();
    }

    /// Sends messages to the control thread, if there are any.
    fn report(&mut self) {
        if !self.load.has_news() {
            return;
        }
        for returned in self.load.take_returned() {
            self.say(WorkerEvent::Returned(self.waker.number, returned));
        }
        for id in self.load.take_changed() {
            self.say(WorkerEvent::Changed(id));
        }
    }
}

impl<P: Platform> Rest for Thread<P>
where
    P::Events: WakeOn,
{
    type Error = Infallible;
    const CONTROL_AFTER_SLEEP: bool = false;

    fn control(&mut self) -> Result<(), Infallible> {
        self.read();
        if std::mem::take(&mut self.checked) {
            self.load.turn_checked(&self.p);
        } else {
            self.load.turn(&self.p);
        }
        self.report();
        (self.each_turn)();
        Ok(())
    }

    fn sleep(&mut self) -> Result<(), Infallible> {
        self.checked = false;
        // The order matters: a message that arrives after this check rings the doorbell again.
        self.load.take_doorbells();
        let was_live = self.is_live();
        self.read();
        if !was_live && self.is_live() {
            // The worker got its first queues. Rounds come first, since a worker that only polls
            // never stops polling.
            return Ok(());
        }
        let work = self.load.arm(&self.p);
        self.report();
        if work || self.over || !self.waker.doorbell.about_to_sleep() {
            return Ok(());
        }
        let due = self.load.due(&self.p).map(|left| (Instant::now() + left, left));
        let what =
            |thread: &Self| format!("worker {} waits for {}", thread.waker.number, thread.load.describe());
        let mut waiter = std::mem::take(&mut self.waiter);
        waiter.sleep(
            self,
            |t| t.p.events(),
            |t| t.load.is_pending(is_lifted()),
            &what,
            due.map(|(_, left)| left),
        );
        self.missed_wakeups.store(waiter.missed_wakeups(), Ordering::Relaxed);
        let woken = |number: Option<usize>| number.is_some_and(|number| self.p.events().woken_by(number));
        let (rung, came) = (woken(self.doorbell), woken(self.arrivals));
        self.waker.awake(rung);
        self.load.fired(waiter.ready());
        self.waiter = waiter;
        self.load.take_doorbells();
        if came {
            self.load.poll_ports();
        }
        if due.is_some_and(|(at, _)| at <= Instant::now()) {
            self.load.turn_checked(&self.p);
        }
        // Without a number for their descriptor, no check for frames was made.
        self.checked = self.arrivals.is_some() || self.load.wakes().is_none();
        Ok(())
    }

    #[inline(always)]
    fn again(&mut self, _moved: bool) {
        self.checked = false;
    }
}

impl<P: Platform> Work for Thread<P>
where
    P::Events: WakeOn,
{
    fn round(&mut self) -> Result<bool, Infallible> {
        let moved = self.load.round(&self.p);
        self.report();
        Ok(moved)
    }
    fn is_live(&self) -> bool {
        self.load.nr_queues() > 0
    }
    fn is_over(&mut self) -> bool {
        self.over
    }
}
