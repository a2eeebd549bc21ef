//! Counts of a process's requests to its platform. They are counted at the call, so they mean the
//! same on every platform.
//!
//! ```text
//!   control thread's handle --Tally--.
//!   worker 0's handle       --Tally--+--> Totals::read: all that are there, and what is left of those that ended
//!   worker 1's handle       --Tally--'
//! ```
//! The counters of each handle are a tally, which its thread increments without a lock. Handles
//! made from one another (`Platform::another`) share a list of their tallies, whose lock is taken
//! when a handle begins and when the sum is read.

use pregrant::platform::{CopyOp, GrantOps};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A snapshot of the counters. No counter ever decreases.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Counters {
    /// Number of grant copy operations. A batch counts as many as it has.
    pub grant_copies: u64,
    /// Number of bytes that grant copies copied.
    #[serde(default)]
    pub grant_copy_bytes: u64,
    pub grant_maps: u64,
    pub grant_unmaps: u64,
    /// Number of system calls that were made to copy, map, unmap, notify and wait.
    pub syscalls: u64,
    /// Number of events that were sent to a bound end.
    pub notifications: u64,
    /// Number of notifications that had to wake a sleeping receiver, by a system call each. Real
    /// Xen does not report this.
    pub wakeups: u64,
}

impl Counters {
    /// Returns the difference to an earlier snapshot.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            grant_copies: self.grant_copies - earlier.grant_copies,
            grant_copy_bytes: self.grant_copy_bytes - earlier.grant_copy_bytes,
            grant_maps: self.grant_maps - earlier.grant_maps,
            grant_unmaps: self.grant_unmaps - earlier.grant_unmaps,
            syscalls: self.syscalls - earlier.syscalls,
            notifications: self.notifications - earlier.notifications,
            wakeups: self.wakeups - earlier.wakeups,
        }
    }

    /// Returns the sum of two snapshots.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            grant_copies: self.grant_copies + other.grant_copies,
            grant_copy_bytes: self.grant_copy_bytes + other.grant_copy_bytes,
            grant_maps: self.grant_maps + other.grant_maps,
            grant_unmaps: self.grant_unmaps + other.grant_unmaps,
            syscalls: self.syscalls + other.syscalls,
            notifications: self.notifications + other.notifications,
            wakeups: self.wakeups + other.wakeups,
        }
    }
}

/// A counter that only the thread of its handle increments and any thread may read. An increment is
/// therefore a load and a store, which is cheap enough for requests that make no system call.
#[derive(Default, Debug)]
pub struct Own(AtomicU64);

impl Own {
    #[inline(always)]
    pub fn add(&self, n: usize) {
        self.0.store(self.get() + n as u64, Ordering::Relaxed);
    }
    #[inline(always)]
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A counter that any thread may increment, because a map may be dropped on another thread than it
/// was made on. An increment is one locked instruction, always beside a system call.
#[derive(Default, Debug)]
pub struct Anyones(AtomicU64);

impl Anyones {
    #[inline(always)]
    pub fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }
    #[inline(always)]
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters that one handle increments while others read them.
#[derive(Default, Debug)]
pub struct Tally {
    pub grant_copies: Own,
    pub grant_copy_bytes: Own,
    pub grant_maps: Own,
    pub grant_unmaps: Anyones,
    pub syscalls: Anyones,
    pub notifications: Own,
    pub wakeups: Own,
}

impl Tally {
    /// Counts a batch of copy operations, whatever the result of each.
    #[inline(always)]
    pub fn copies(&self, ops: &[CopyOp]) {
        self.grant_copies.add(ops.len());
        self.grant_copy_bytes.add(ops.iter().map(|op| usize::from(op.len)).sum());
    }

    #[inline(always)]
    pub fn grant_ops(&self) -> GrantOps {
        GrantOps {
            copies: self.grant_copies.get(),
            maps: self.grant_maps.get(),
            unmaps: self.grant_unmaps.get(),
        }
    }

    fn snapshot(&self) -> Counters {
        Counters {
            grant_copies: self.grant_copies.get(),
            grant_copy_bytes: self.grant_copy_bytes.get(),
            grant_maps: self.grant_maps.get(),
            grant_unmaps: self.grant_unmaps.get(),
            syscalls: self.syscalls.get(),
            notifications: self.notifications.get(),
            wakeups: self.wakeups.get(),
        }
    }
}

/// The counters of a handle and of all handles derived from it, which any thread may read.
#[derive(Clone, Default, Debug)]
pub struct Totals(Arc<Mutex<Sum>>);

#[derive(Default, Debug)]
struct Sum {
    /// The sum of the handles that were dropped, and of the counts that they passed on.
    gone: Counters,
    tallies: Vec<Arc<Tally>>,
}

impl Sum {
    /// Moves tallies that nothing can increment any more into `gone`, so that the list stays as
    /// short as the number of live handles.
    fn settle(&mut self) {
        let Self { gone, tallies } = self;
        tallies.retain_mut(|tally| match Arc::get_mut(tally) {
            Some(tally) => {
                *gone = gone.plus(&tally.snapshot());
                false
            }
            None => true,
        });
    }
}

impl Totals {
    /// Adds a tally for one more handle, and returns it.
    pub fn tally(&self) -> Arc<Tally> {
        let mut sum = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sum.settle();
        let tally = Arc::<Tally>::default();
        sum.tallies.push(Arc::clone(&tally));
        tally
    }

    /// Returns the sum over all handles.
    pub fn read(&self) -> Counters {
        let mut sum = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sum.settle();
        sum.tallies.iter().fold(sum.gone, |all, tally| all.plus(&tally.snapshot()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_worker_counted_is_in_the_sum_while_it_is_there_and_after() {
        let totals = Totals::default();
        let own = totals.tally();
        own.notifications.add(1);
        for round in 1..=3 {
            let other = totals.tally();
            std::thread::scope(|s| {
                s.spawn(|| other.grant_copies.add(10));
            });
            // Maps and channels that a handle gave out keep counting after the handle is gone.
            let map = Arc::clone(&other);
            drop(other);
            map.grant_unmaps.add(2);
            let wanted = Counters {
                grant_copies: 10 * round,
                grant_unmaps: 2 * round,
                notifications: 1,
                ..Counters::default()
            };
            assert_eq!(totals.read(), wanted);
            drop(map);
            assert_eq!(totals.clone().read(), wanted);
        }
        let held = totals.0.lock().unwrap().tallies.len();
        assert_eq!(held, 1, "who is gone is not kept");
    }

    #[test]
    fn the_sum_never_falls_while_workers_come_and_go() {
        let totals = Totals::default();
        std::thread::scope(|s| {
            let workers: Vec<_> = (0..2)
                .map(|_| {
                    s.spawn(|| {
                        for _ in 0..if cfg!(miri) { 20 } else { 2000 } {
                            totals.tally().syscalls.add(3);
                        }
                    })
                })
                .collect();
            let mut last = Counters::default();
            while !workers.iter().all(|worker| worker.is_finished()) {
                let now = totals.read();
                assert!(now.syscalls >= last.syscalls, "{now:?} after {last:?}");
                last = now;
            }
        });
        assert_eq!(totals.read().syscalls, 2 * 3 * if cfg!(miri) { 20 } else { 2000 });
    }
}
