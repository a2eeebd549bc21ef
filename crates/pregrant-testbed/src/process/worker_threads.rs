//! Worker threads of the back's process, where a command asks for them: who they are, on which
//! core, what they cost.
//!
//! ```text
//!   control thread   commands, xenstore; asleep while frames move, woken by a port's mark      WorkerThreads::wakes
//!   worker n         its queues; on core cores[n]                                            Backend::start_workers
//! ```
//! Without them the queues are served by the control thread. [`Meter`] reads the cost of a case:
//! platform operations of all handles, and CPU time of the whole process, which the kernel gives
//! exactly. That of one worker among others is as of its last tick or sleep, some milliseconds old
//! at most.

use super::process_command::WorkerSetup;
use super::report::Spent;
use super::signals::locked;
use super::{LoopbackBackend, Result, stay_on};
use crate::cpu_time;
use pregrant::platform::{Clock, Platform};
use pregrant_host::MonotonicClock;
use pregrant_host::counters::Totals;
use pregrant_host::ports::switch::Switch;
use pregrant_host::wake::WakeOn;
use rustix::event::EventfdFlags;
use rustix::thread::{Pid, gettid};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

pub struct WorkerThreads {
    waker: OwnedFd,
    threads: Mutex<Vec<Option<Pid>>>,
    /// The reason why a worker is not on its core, or why its CPU time cannot be measured.
    astray: Mutex<Option<String>>,
    /// The switch, to which the workers report the time.
    switch: Mutex<Switch>,
}

impl WorkerThreads {
    /// Starts the backend's workers. It must be called before the backend has a device.
    pub fn start(backend: &mut LoopbackBackend, worker_setup: &WorkerSetup) -> Result<Arc<Self>> {
        let waker = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        backend.platform().events().also_wake_on(waker.as_fd())?;
        let worker_threads = Arc::new(Self {
            waker,
            threads: Mutex::new(vec![None; worker_setup.workers]),
            astray: Mutex::default(),
            switch: Mutex::default(),
        });
        let (starting, turning) = (Arc::clone(&worker_threads), Arc::clone(&worker_threads));
        let cores = worker_setup.cores.clone();
        backend.start_workers(pregrant_host::drivers::WorkerConfig {
            workers: worker_setup.workers,
            place: worker_setup.place,
            rx_context: worker_setup.rx_context,
            mode: worker_setup.mode,
            each_start: Arc::new(move |number| {
                let core = (!cores.is_empty()).then(|| cores[number % cores.len()]);
                let placed = stay_on(core).map_err(|e| e.to_string());
                let counted = placed.and_then(|()| cpu_time::of_thread(gettid()).map_err(|e| e.to_string()));
                if let Err(e) = counted {
                    *locked(&starting.astray) = Some(format!("worker {number}: {e}"));
                }
                let mut threads = locked(&starting.threads);
                let most = threads.len().max(number + 1);
                threads.resize(most, None);
                threads[number] = Some(gettid());
            }),
            each_turn: Arc::new(move || locked(&turning.switch).set_now(MonotonicClock.now_ns())),
        })?;
        Ok(worker_threads)
    }

    /// Makes the workers set the time of this switch from now on.
    pub fn serve(&self, switch: &Switch) {
        *locked(&self.switch) = switch.clone();
    }

    /// Clears the wake-up of the control thread. It must be called before checking what the wake-up
    /// was for.
    pub fn awake(&self) {
        let _ = rustix::io::read(&self.waker, &mut [0; 8]); // no one rang: that is fine, too
    }

    /// Returns an error if a worker is not on its core.
    pub fn in_place(&self) -> Result<()> {
        locked(&self.astray).clone().map_or(Ok(()), |why| Err(why.into()))
    }

    /// Returns the CPU time of each worker; 0 for a worker that has not started yet, or has ended.
    fn cpu(&self) -> Vec<u64> {
        let of =
            |thread: &Option<Pid>| thread.and_then(|thread| cpu_time::of_thread(thread).ok()).unwrap_or(0);
        locked(&self.threads).iter().map(of).collect()
    }
}

/// Reads on any thread the resources that the process has used.
#[derive(Clone)]
pub struct Meter {
    totals: Totals,
    worker_threads: Option<Arc<WorkerThreads>>,
}

impl Meter {
    /// Creates a meter for this backend and these workers.
    pub fn new(backend: &LoopbackBackend, worker_threads: Option<&Arc<WorkerThreads>>) -> Self {
        Self { totals: backend.platform().totals(), worker_threads: worker_threads.cloned() }
    }

    /// Returns the sum over all handles and threads of the backend.
    pub fn read(&self) -> Spent {
        Spent {
            at_ns: MonotonicClock.now_ns(),
            ops: self.totals.read(),
            cpu_ns: cpu_time::of_process(),
            workers_cpu_ns: self
                .worker_threads
                .as_ref()
                .map_or_else(Vec::new, |worker_threads| worker_threads.cpu()),
            ..Spent::default()
        }
    }

    /// Wakes the control thread, if that is another thread.
    pub fn wake(&self) {
        if let Some(worker_threads) = &self.worker_threads {
            // full: it is readable, as is wanted
            let _ = rustix::io::write(&worker_threads.waker, &1u64.to_ne_bytes());
        }
    }
}
