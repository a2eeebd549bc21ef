//! Messages of a case's ports to the loop of the back's process, from whatever threads they are on.
//!
//! ```text
//!   guest --mark--> port: the counts are read here, in the queue's own thread     Spent
//!                    '--> those who wait for a mark: ports of other queues (wakers), the control thread (WorkerThreads)
//! ```
//! Which mark came decides what a port does with frames. The guest sends a mark when it has the
//! answers to all before it, and sends on when it has the mark's, so no other queue has frames
//! under way then.

use super::report::Spent;
use super::worker_threads::Meter;
use hdrhistogram::Histogram;
use pregrant::port::QueueWaker;
use pregrant_host::ports::checking_sink::SinkCounters;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Value of `marks` after the unmeasured first burst began, whose every byte is checked.
pub const WHOLE: u32 = 1;
/// Value of `marks` after the warm-up began.
pub const WARM_UP: u32 = 2;
/// Value of `marks` after the measured time began.
pub const COUNTED: u32 = 3;
pub const OVER: u32 = 4;

pub struct Signals {
    pub marks: AtomicU32,
    pub sinks: Mutex<Vec<Arc<SinkCounters>>>,
    /// The sinks of other guests' vifs, one for each queue of each of their connections.
    pub others: Mutex<Vec<Arc<SinkCounters>>>,
    pub made: AtomicU64,
    pub checked: AtomicU64,
    /// The times between bursts of one queue in the measured time.
    pub gaps: Mutex<Option<Histogram<u64>>>,
    /// True once the vif's ports were dropped.
    pub gone: AtomicBool,
    /// Wakers of ports that produce frames by themselves after a mark.
    pub wakers: Mutex<Vec<Arc<dyn QueueWaker>>>,
    /// Used resources, and the other guests' frames, at the start and at the end of the measured
    /// time.
    stamps: Mutex<[Option<(Spent, u64)>; 2]>,
    meter: Meter,
}

/// Locks a value even if a thread panicked with it, since no panic leaves it half changed.
pub fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Signals {
    /// Creates the signals of a case whose resources this meter measures.
    pub fn new(meter: Meter) -> Self {
        Self {
            marks: AtomicU32::new(0),
            sinks: Mutex::default(),
            others: Mutex::default(),
            made: AtomicU64::new(0),
            checked: AtomicU64::new(0),
            gaps: Mutex::default(),
            gone: AtomicBool::new(false),
            wakers: Mutex::default(),
            stamps: Mutex::default(),
            meter,
        }
    }

    /// Called when a mark arrived on a queue: wakes the threads that wait for it.
    pub fn mark(&self) {
        let marks = self.marks.load(Ordering::Relaxed) + 1; // all of a case come on one queue
        if let COUNTED | OVER = marks {
            let seen = |sink: &Arc<SinkCounters>| {
                let r = sink.read();
                r.frames + r.damaged + r.foreign
            };
            let others = locked(&self.others).iter().map(seen).sum();
            locked(&self.stamps)[usize::from(marks == OVER)] = Some((self.meter.read(), others));
        }
        self.marks.store(marks, Ordering::Relaxed);
        locked(&self.wakers).iter().for_each(|waker| waker.ring());
        self.meter.wake();
    }

    /// Returns the resources that were used, and the frames of other guests, in the measured time;
    /// None: that is not over.
    pub fn counted(&self) -> Option<(Spent, u64)> {
        let [begin, end] = std::mem::take(&mut *locked(&self.stamps));
        let ((begin, before), (end, after)) = begin.zip(end)?;
        Some((end.since(&begin), after.saturating_sub(before)))
    }
}

/// A port's reference to the signals of its case. Dropping it sets `gone`.
pub struct Presence(pub Arc<Signals>);

impl std::ops::Deref for Presence {
    type Target = Signals;
    fn deref(&self) -> &Signals {
        &self.0
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.gone.store(true, Ordering::Relaxed);
        self.0.meter.wake();
    }
}
