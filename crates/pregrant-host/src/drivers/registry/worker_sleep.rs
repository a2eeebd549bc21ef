//! A worker's sleep: until an event, or until something is due that no event reports.
//!
//! ```text
//!   sleep: arm --work--> no sleep
//!              '-none--> until an event, a descriptor, or the first of what is due  (drivers::wait)
//!   due:   what a device waits for (an expiry, a credit)   a front that is throttled is served again
//!          a ring that is paused has turns again           a script that runs is checked
//!          what a class says                             a device's backing is checked
//! ```
//! What a guest may do: nothing more than before; a time that is due is bounded from below by what
//! sets it.

use super::Backend;
use crate::drivers::wait::is_lifted;
use crate::drivers::worker_pool::WorkerPool;
use crate::wake::WakeOn;
use pregrant::platform::Platform;
use pregrant::xenstore::Transport;
use std::time::Duration;

/// Interval at which a running hotplug script is checked.
const HOTPLUG_CHECK: Duration = Duration::from_millis(10);

impl<P: Platform, T: Transport + 'static> Backend<P, T> {
    /// Arms every queue, then sleeps until there may be work, at most until `due`, a time that the
    /// caller needs. The connection to xenstore must wake the platform's events.
    #[inline(never)]
    pub fn sleep(&mut self, due: Option<Duration>)
    where
        P::Events: WakeOn,
    {
        if self.arm() || !self.is_asleep() {
            return;
        }
        let due = self.due().into_iter().chain(due).min();
        if let (None, WorkerPool::Inline(load)) = (self.sleeper.arrivals, &self.pool)
            && let Some(fd) = load.wakes()
        {
            self.sleeper.arrivals = self.platform.events().also_wake_on(fd).ok();
        }
        let mut waiter = std::mem::take(&mut self.sleeper.waiter);
        let what = |backend: &Self| {
            let (own, live) = (backend.platform.domid(), backend.nr_live());
            format!(
                "the backend of {own} waits for frames or slots of {live} live device(s), or for xenstore"
            )
        };
        waiter.sleep(self, |b| b.platform.events(), Self::is_pending, &what, due);
        match &mut self.pool {
            WorkerPool::Inline(load) => {
                load.fired(waiter.ready());
                load.take_doorbells();
                load.poll_ports();
            }
            WorkerPool::Threads(threads) => {
                self.control_rings.fired(waiter.ready());
                self.control_rings.events_seen();
                threads.waker().awake(true);
            }
        }
        self.sleeper.waiter = waiter;
    }

    /// Announces to workers that this thread sleeps. Returns false if one has just sent something.
    fn is_asleep(&self) -> bool {
        match &self.pool {
            WorkerPool::Inline(_) => true,
            WorkerPool::Threads(threads) => threads.waker().doorbell.about_to_sleep(),
        }
    }

    /// Number of waits that ended by timeout although work was pending: the event was lost.
    pub fn missed_wakeups(&self) -> u64 {
        self.sleeper.waiter.missed_wakeups() + self.pool.missed_wakeups()
    }

    /// True if a guest has published work; an event has reported it, or will.
    fn is_pending(&mut self) -> bool {
        self.control_ring_is_pending()
            || self.pool.inline_mut().is_some_and(|load| load.is_pending(is_lifted()))
    }

    /// Time until something is due that no event reports.
    fn due(&mut self) -> Option<Duration> {
        let hotplugs = self.polls.hotplugs.then_some(HOTPLUG_CHECK);
        let queues = if let WorkerPool::Inline(load) = &self.pool { load.due(&self.platform) } else { None };
        let classes = self.classes.iter().filter_map(|class| class.remote()?.due()).min();
        let others = [self.throttle_left(), self.control_rings.due(), self.check_due()];
        [hotplugs, queues, classes].into_iter().chain(others).flatten().min()
    }
}
