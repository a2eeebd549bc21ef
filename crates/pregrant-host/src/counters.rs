//! What a process has asked of its platform, counted where it happens; the same figures on every platform.

use pregrant::platform::GrantOps;
use std::sync::atomic::{AtomicU64, Ordering};

/// A snapshot. Every figure only grows.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Grant copy operations (pieces, not batches).
    pub grant_copies: u64,
    /// Pages mapped.
    pub grant_maps: u64,
    /// Pages unmapped.
    pub grant_unmaps: u64,
    /// System calls on behalf of copy, map, unmap, notify and wait.
    pub syscalls: u64,
    /// Events sent to a bound end.
    pub notifications: u64,
    /// Events that found the receiver asleep and woke it (a system call each); real Xen does not tell.
    pub wakeups: u64,
}

impl Counters {
    /// What was added since an earlier snapshot.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            grant_copies: self.grant_copies - earlier.grant_copies,
            grant_maps: self.grant_maps - earlier.grant_maps,
            grant_unmaps: self.grant_unmaps - earlier.grant_unmaps,
            syscalls: self.syscalls - earlier.syscalls,
            notifications: self.notifications - earlier.notifications,
            wakeups: self.wakeups - earlier.wakeups,
        }
    }
}

/// A figure that one thread adds to, that of the handle, and any may read. So adding is a load and a store: cheap enough for
/// what makes no system call.
#[derive(Default, Debug)]
pub(crate) struct Own(AtomicU64);

impl Own {
    #[inline(always)]
    pub(crate) fn add(&self, n: usize) {
        self.0.store(self.get() + n as u64, Ordering::Relaxed);
    }
    #[inline(always)]
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A figure that any thread adds to: a map may be dropped by another than the one that made it. Adding is one locked
/// instruction, and stands beside a system call.
#[derive(Default, Debug)]
pub(crate) struct Anyones(AtomicU64);

impl Anyones {
    #[inline(always)]
    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }
    #[inline(always)]
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The living counters of one handle.
#[derive(Default, Debug)]
pub(crate) struct Tally {
    pub(crate) grant_copies: Own,
    pub(crate) grant_maps: Own,
    pub(crate) grant_unmaps: Anyones,
    pub(crate) syscalls: Anyones,
    pub(crate) notifications: Own,
    pub(crate) wakeups: Own,
}

impl Tally {
    #[inline(always)]
    pub(crate) fn grant_ops(&self) -> GrantOps {
        GrantOps {
            copies: self.grant_copies.get(),
            maps: self.grant_maps.get(),
            unmaps: self.grant_unmaps.get(),
        }
    }

    pub(crate) fn snapshot(&self) -> Counters {
        Counters {
            grant_copies: self.grant_copies.get(),
            grant_maps: self.grant_maps.get(),
            grant_unmaps: self.grant_unmaps.get(),
            syscalls: self.syscalls.get(),
            notifications: self.notifications.get(),
            wakeups: self.wakeups.get(),
        }
    }
}
