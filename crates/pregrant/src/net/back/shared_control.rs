//! The control state of a vif, shared by the thread that serves its control ring and those that
//! serve its queues.
//!
//! ```text
//!   control ring, keys, rate --lock--> Control --changes--> a queue's RX copies them again (settings)
//!   TX of a queue: MCAST extras --lock-->  |
//!   TX of a queue: credit --try_lock-->    |   lock held: nothing moves now, and the worker polls again
//! ```
//! The data path normally takes no lock: RX compares a number, TX checks a flag. A vif with a
//! `rate` has one credit for all of its queues; a worker that finds it locked serves its other
//! queues first and comes back. A batch with MCAST extras waits for at most one of the same guest's
//! control requests, and not for its mappings; the wait counts as that guest's time.

use super::control_state::Control;
use super::credit::{Credit, Rate};
use super::guest_settings::GuestSettings;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use spin::{Mutex, MutexGuard};

/// The control state of a vif behind a lock.
#[derive(Default)]
pub struct SharedControl {
    control: Mutex<Control>,
    changes: AtomicU32,
    limited: AtomicBool,
    /// When credit is available again, readable without the lock; 0: no frame waits.
    until_ns: AtomicU64,
    waits: AtomicU64,
}

/// The locked [`Control`]. When it is dropped, queues notice the changes.
pub struct ControlGuard<'a> {
    control: MutexGuard<'a, Control>,
    shared: &'a SharedControl,
}

impl Deref for ControlGuard<'_> {
    type Target = Control;
    fn deref(&self) -> &Control {
        &self.control
    }
}

impl DerefMut for ControlGuard<'_> {
    fn deref_mut(&mut self) -> &mut Control {
        &mut self.control
    }
}

impl Drop for ControlGuard<'_> {
    fn drop(&mut self) {
        self.shared.publish_credit(self.control.credit.as_ref());
        self.shared.changes.fetch_add(1, Ordering::Release);
    }
}

impl SharedControl {
    /// Locks the state, to read and change it. Do not use it per batch, since queues take it as
    /// changed.
    pub fn lock(&self) -> ControlGuard<'_> {
        ControlGuard { control: self.control.lock(), shared: self }
    }

    /// A number that changes with the state.
    #[inline(always)]
    pub(super) fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// Copies the part of the state that RX needs. Returns the number of changes that it includes.
    /// None: the state is being changed.
    #[cold]
    pub(super) fn copy_settings(&self, to: &mut GuestSettings) -> Option<u32> {
        let control = self.control.try_lock()?;
        control.copy_settings(to);
        Some(self.changes())
    }

    /// Whether the guest has a `rate`.
    #[inline(always)]
    pub(super) fn is_limited(&self) -> bool {
        self.limited.load(Ordering::Relaxed)
    }

    /// Accesses the guest's credit. None: another queue has locked it, or there is no `rate` any
    /// more.
    pub(super) fn with_credit<R>(&self, what: impl FnOnce(&mut Credit) -> R) -> Option<R> {
        let mut control = self.control.try_lock()?;
        let credit = control.credit.as_mut()?;
        let done = what(credit);
        self.publish_credit(Some(credit));
        Some(done)
    }

    /// Sets the rate of what the guest may send.
    pub(super) fn limit(&self, rate: Option<Rate>, now_ns: u64) {
        let control = &mut *self.lock();
        if rate != control.credit.map(|c| c.rate()) {
            control.credit = rate.map(|rate| Credit::new(rate, now_ns));
        }
    }

    fn publish_credit(&self, credit: Option<&Credit>) {
        self.limited.store(credit.is_some(), Ordering::Relaxed);
        self.until_ns.store(credit.and_then(Credit::deadline_ns).unwrap_or(0), Ordering::Relaxed);
        self.waits.store(credit.map_or(0, Credit::nr_waits), Ordering::Relaxed);
    }

    /// Time at which the guest's frames may be taken again, if they wait for credit.
    pub fn credit_deadline_ns(&self) -> Option<u64> {
        Some(self.until_ns.load(Ordering::Relaxed)).filter(|until| *until > 0)
    }

    /// Number of times frames had to wait for credit.
    pub fn credit_waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }
}
