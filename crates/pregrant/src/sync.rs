//! The atomics of the rings, and the lock of what control and a queue share: those of `core` and
//! `spin`, or loom's when the crate is compiled with `--cfg loom`.
//!
//! Sleep and wake-up depend on [`fence`]`(SeqCst)` between a store of one index and a load of
//! another. They use fences because loom models SeqCst fences and not SeqCst accesses.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
use loom::sync::Mutex;
#[cfg(not(loom))]
use spin::Mutex;

/// The value of a [`Lock`], until this is dropped.
#[cfg(loom)]
pub type LockGuard<'a, T> = loom::sync::MutexGuard<'a, T>;
/// The value of a [`Lock`], until this is dropped.
#[cfg(not(loom))]
pub type LockGuard<'a, T> = spin::MutexGuard<'a, T>;

/// A lock that is held while one of two sides reads and writes what they share: a few kilobytes at
/// most, and for a vif with a `rate` the slots of a batch and the clock. No page is mapped, copied
/// or unmapped meanwhile.
///
/// ```text
///   control       lock(): waits for the other, which is at most that long
///   data path     try_lock(): never waits; what it needed the lock for is done again later
/// ```
/// It forbids neither interrupts nor preemption. In a kernel a queue may be polled by an interrupt
/// that came to the very processor that holds the lock, where to wait is to wait for ever.
#[derive(Debug)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    /// A lock around `value`.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits until no one else has the value. Not for the data path.
    pub fn lock(&self) -> LockGuard<'_, T> {
        #[cfg(not(loom))]
        return self.0.lock();
        #[cfg(loom)]
        return self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    }

    /// None: someone else has the value.
    #[inline]
    pub fn try_lock(&self) -> Option<LockGuard<'_, T>> {
        #[cfg(not(loom))]
        return self.0.try_lock();
        #[cfg(loom)]
        return self.0.try_lock().ok();
    }
}

impl<T: Default> Default for Lock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}
