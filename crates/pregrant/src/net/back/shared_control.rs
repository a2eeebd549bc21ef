//! The control state of a vif, shared by the thread that serves its control ring and those that
//! serve its queues.
//!
//! ```text
//!   control ring, keys, rate --lock--> Control --changes--> a queue's RX copies them again (settings)
//!   TX of a queue: MCAST extras, credit --try_lock--> |   lock held: nothing moves now, and the worker polls again
//! ```
//! The data path normally takes no lock: RX compares a number, TX checks a flag. A vif with a
//! `rate` has one credit for all of its queues. A worker never waits for the lock: one that finds
//! it held serves its other queues first and comes back, and a batch with MCAST extras goes back to
//! its ring. Control reads and maps pages, allocates and frees outside of the lock. Loom checks the
//! orders with up to three preemptions: `tests/control_loom.rs`.

use super::control_state::{Asked, Control};
use super::credit::{Credit, Rate};
use super::guest_settings::GuestSettings;
use crate::platform::Platform;
use crate::port::Steering;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Lock, LockGuard, Ordering};
use crate::units::DomId;
use crate::wire::netif_ctrl::{CtrlRequest, CtrlResponse};
use alloc::sync::Arc;
use core::ops::{Deref, DerefMut};

/// The control state of a vif behind a lock.
#[derive(Default)]
pub struct SharedControl {
    control: Lock<Control>,
    changes: AtomicU32,
    limited: AtomicBool,
    /// When credit is available again, readable without the lock; 0: no frame waits.
    until_ns: AtomicU64,
    waits: AtomicU64,
}

/// The locked [`Control`]. When it is dropped, queues notice the changes.
pub struct ControlGuard<'a> {
    control: LockGuard<'a, Control>,
    shared: &'a SharedControl,
    /// Queues must copy the settings again.
    is_changed: bool,
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

impl ControlGuard<'_> {
    /// Queues must copy the settings again.
    pub(super) fn mark_changed(&mut self) {
        self.is_changed = true;
    }
}

impl Drop for ControlGuard<'_> {
    fn drop(&mut self) {
        self.shared.publish_credit(self.control.credit.as_ref());
        if self.is_changed {
            self.shared.changes.fetch_add(1, Ordering::Release);
        }
    }
}

impl SharedControl {
    /// Locks the state, to read and change it. Do not use it per batch, since queues take it as
    /// changed.
    pub fn lock(&self) -> ControlGuard<'_> {
        ControlGuard { control: self.control.lock(), shared: self, is_changed: true }
    }

    /// Locks the state for a worker, which has to come again if the result is None: someone else
    /// has the lock. Queues take the state as changed only where `changes` is true.
    pub fn try_lock(&self, changes: bool) -> Option<ControlGuard<'_>> {
        Some(ControlGuard { control: self.control.try_lock()?, shared: self, is_changed: changes })
    }

    /// Executes a control request of domain `of`. Returns the answer, which is kept with the state
    /// as the one before `rsp_prod`. The caller must publish it next. The guest's page is read, and
    /// memory is allocated and freed, without the lock.
    pub fn answer<P: Platform>(
        &self,
        p: &P,
        of: DomId,
        request: &CtrlRequest,
        rsp_prod: u32,
    ) -> CtrlResponse {
        let checks = |count, first| self.control.lock().hash().check_mapping(count, first);
        let may_steer = self.control.lock().may_steer();
        let mut asked = Asked::of_request(p, of, may_steer, request, checks);
        self.lock().answer(&mut asked, rsp_prod)
    }

    /// How the guest distributes its frames over its queues, and a number that changes with that.
    /// None: as ports like.
    pub(super) fn steering(&self) -> (u32, Option<Arc<dyn Steering>>) {
        self.control.lock().steering()
    }

    /// A number that changes with the state.
    #[inline(always)]
    pub fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// Copies the part of the state that RX needs. Returns the number of changes that it includes.
    /// None: the state is being changed.
    #[cold]
    pub fn copy_settings(&self, to: &mut GuestSettings) -> Option<u32> {
        let control = self.control.try_lock()?;
        let before = control.copy_settings(to);
        let changes = self.changes();
        drop(control);
        drop(before); // five kilobytes, if no one else has it
        Some(changes)
    }

    /// Whether the guest has a `rate`.
    #[inline(always)]
    pub(super) fn is_limited(&self) -> bool {
        self.limited.load(Ordering::Relaxed)
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
