//! Which thread of a bench has which core.
//!
//! | cores | no workers | workers |
//! |---|---|---|
//! | the first | guest | guest, and the back's control thread, which sleeps while frames move |
//! | the second | back | worker 0 |
//! | each further | | a worker |
//!
//! With more workers than that the next begins again at the first core: with two cores worker 1
//! shares the guest's.

use pregrant_host::drivers::{Mode, Placement, RxContext};
use pregrant_testbed::process::process_command::WorkerSetup;
use std::io;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CorePlacement {
    /// The guest's core; None: this process may use only one core, and pins no thread.
    pub guest: Option<usize>,
    /// The core of the back's first thread, if it is pinned.
    pub back: Option<usize>,
    pub workers: Vec<usize>,
    nr_workers: usize,
}

impl CorePlacement {
    /// Returns the placement for a back with this many worker threads; 0: the back's only thread
    /// serves the queues.
    pub fn of(workers: usize) -> io::Result<Self> {
        Ok(Self::on(&pregrant_testbed::limit::cores()?, workers))
    }

    fn on(cores: &[usize], nr_workers: usize) -> Self {
        let [guest, second, ..] = *cores else {
            return Self { guest: None, back: None, workers: Vec::new(), nr_workers };
        };
        let back = if nr_workers == 0 { second } else { guest };
        let workers = (0..nr_workers).map(|n| cores[(n + 1) % cores.len()]).collect();
        Self { guest: Some(guest), back: Some(back), workers, nr_workers }
    }

    /// Returns the setting for the back's workers; None: the back has no workers.
    pub fn worker_setup(&self, place: Placement, mode: Mode) -> Option<WorkerSetup> {
        let Self { nr_workers: workers, workers: cores, .. } = self;
        (*workers > 0).then(|| WorkerSetup {
            workers: *workers,
            place,
            rx_context: RxContext::Worker,
            mode,
            cores: cores.clone(),
        })
    }

    /// True if the guest shares its core with a worker, so that only one of them runs at a time.
    pub fn shares_guests_core(&self) -> bool {
        self.guest.is_none() || self.workers.iter().any(|core| Some(*core) == self.guest)
    }

    pub fn nr_workers(&self) -> usize {
        self.nr_workers
    }

    /// Describes the placement in a sentence without its full stop.
    pub fn words(&self) -> String {
        let (Some(guest), Some(back)) = (self.guest, self.back) else {
            return "one core for all threads, and the figures say little".into();
        };
        if self.nr_workers == 0 {
            return format!("guest on core {guest}, back on core {back}");
        }
        let worker_at = |(n, core): (usize, &usize)| {
            let first = self.workers.iter().position(|of| of == core);
            let shared = match first {
                _ if *core == guest => " (the guest's)".into(),
                Some(first) if first < n => format!(" (worker {first}'s)"),
                _ => String::new(),
            };
            format!("worker {n} on core {core}{shared}")
        };
        let workers: Vec<_> = self.workers.iter().enumerate().map(worker_at).collect();
        format!("guest and control thread on core {guest}, {}", workers.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_have_the_cores_behind_the_guests() {
        let on = |cores: &[usize], workers| CorePlacement::on(cores, workers).words();
        assert_eq!(on(&[2, 4], 0), "guest on core 2, back on core 4");
        assert_eq!(on(&[2, 4], 1), "guest and control thread on core 2, worker 0 on core 4");
        assert_eq!(
            on(&[2, 4], 3),
            "guest and control thread on core 2, worker 0 on core 4, worker 1 on core 2 (the guest's), \
             worker 2 on core 4 (worker 0's)"
        );
        assert_eq!(
            on(&[0, 1, 2], 2),
            "guest and control thread on core 0, worker 0 on core 1, worker 1 on core 2"
        );
        let shared = [([0, 1].as_slice(), 2), (&[0, 1], 1), (&[0, 1, 2], 2), (&[0], 1)];
        let shared = shared.map(|(cores, workers)| CorePlacement::on(cores, workers).shares_guests_core());
        assert_eq!(shared, [true, false, false, true]);
        assert!(on(&[7], 2).starts_with("one core"));
        let worker_setup = |cores: &[usize], workers| {
            CorePlacement::on(cores, workers)
                .worker_setup(Placement::Balanced, Mode::Poll)
                .map(|p| (p.workers, p.cores))
        };
        assert_eq!(worker_setup(&[0, 1], 0), None);
        assert_eq!(worker_setup(&[0, 1], 2), Some((2, vec![1, 0])));
        assert_eq!(worker_setup(&[0], 2), Some((2, vec![])));
    }
}
