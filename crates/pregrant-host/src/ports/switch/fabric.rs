//! The part of a switch that all workers share: its vifs, and the address table.
//!
//! ```text
//!   control: add, caps, sources, steer, leave --lock--> a new View, version + 1
//!   worker:  each burst: is the version mine? -- no, lock --> takes the View       (Outbox::see)
//! ```
//! A view never changes, and a burst is forwarded by one view. A change during a burst takes effect
//! with the next one. The address table is shared by all views and always current.
//!
//! Invariants: an index is reused only after the old vif's addresses are forgotten, and the view
//! with the new vif is newer than that. So an address is never attributed to a vif that came later.

use super::stats::SwitchStats;
use super::vif::{Sources, SwitchFull, View, Vif};
use crate::ports::mac_table::{Claim, MAX_PORTS, MacTable, Source};
use pregrant::net::headers::MacAddr;
use pregrant::port::Offloads;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct Control {
    view: Arc<View>,
    /// Number of handles that exist of each vif.
    handles: Vec<usize>,
    next_id: u64,
}

#[derive(Default)]
pub struct Fabric {
    control: Mutex<Control>,
    version: AtomicU64,
    /// The address table.
    pub macs: MacTable,
    now_ns: AtomicU64,
}

impl Fabric {
    fn control(&self) -> MutexGuard<'_, Control> {
        // Any state that a panic could leave behind is valid.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, control: &mut Control, view: View) {
        control.view = Arc::new(view);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns the view if it is newer than `version`, and updates `version`.
    #[inline(always)]
    pub fn newer_than(&self, version: &mut u64) -> Option<Arc<View>> {
        // The version starts at 0 with no vif, and so does an outbox.
        if self.version.load(Ordering::Acquire) == *version {
            return None;
        }
        let control = self.control();
        *version = self.version.load(Ordering::Acquire);
        Some(Arc::clone(&control.view))
    }

    /// Returns the time that was set last.
    pub fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    pub fn set_now(&self, now_ns: u64) {
        self.now_ns.store(now_ns, Ordering::Relaxed);
        self.macs.sweep(now_ns);
    }

    /// Adds a vif with this number of queues, and returns its index.
    pub fn join(&self, queues: usize, caps: Offloads) -> Result<(u16, Arc<Vif>), SwitchFull> {
        let mut control = self.control();
        let mut view = View::clone(&control.view);
        let free = view.iter().position(Option::is_none).unwrap_or(view.len());
        if free == MAX_PORTS {
            return Err(SwitchFull);
        }
        control.next_id += 1;
        let vif = Arc::new(Vif {
            id: control.next_id,
            caps,
            sources: Sources::default(),
            steering: None,
            inboxes: (0..queues).map(|_| Arc::default()).collect(),
            counters: Arc::default(),
        });
        if free == view.len() {
            view.push(None);
            control.handles.push(0);
        }
        view[free] = Some(Arc::clone(&vif));
        control.handles[free] = queues;
        self.publish(&mut control, view);
        Ok((free as u16, vif))
    }

    /// Changes a property of a vif.
    pub fn change(&self, port: u16, change: impl FnOnce(&mut Vif)) {
        let mut control = self.control();
        let mut view = View::clone(&control.view);
        if let Some(Some(vif)) = view.get_mut(usize::from(port)) {
            change(Arc::make_mut(vif));
            self.publish(&mut control, view);
        }
    }

    /// Sets the source addresses that a vif may use.
    pub fn set_sources(&self, port: u16, sources: Sources) {
        self.change(port, |vif| vif.sources = sources);
        let _control = self.control();
        self.macs.forget_port(port);
        if let Some(mac) = sources.pinned() {
            self.macs.pin(mac, port);
        }
    }

    /// Drops a handle of a vif. The vif itself is dropped with its last handle.
    pub fn leave(&self, port: u16) {
        let mut control = self.control();
        let Some(handles) = control.handles.get_mut(usize::from(port)) else { return };
        *handles = handles.saturating_sub(1);
        if *handles > 0 {
            return;
        }
        let mut view = View::clone(&control.view);
        let gone = view.get_mut(usize::from(port)).and_then(Option::take);
        self.macs.forget_port(port);
        // The address returns to another vif that has the same one.
        if let Some(own) = gone.and_then(|vif| vif.sources.pinned()) {
            let has_it =
                |vif: &Option<Arc<Vif>>| vif.as_ref().is_some_and(|v| v.sources.pinned() == Some(own));
            if let Some(heir) = view.iter().position(has_it) {
                self.macs.pin(own, heir as u16);
            }
        }
        self.publish(&mut control, view);
    }

    /// Returns true if the rules `sources` allow the vif `from` to send with the source address
    /// `src`. Records the address in the table, and a refusal in `stats`.
    pub fn admit(&self, from: u16, src: MacAddr, sources: Sources, stats: &mut SwitchStats) -> bool {
        if src.is_group() || src.is_zero() {
            stats.bad_frames += 1;
            return false;
        }
        let claim = match sources {
            Sources::Own(own) if own == src => return true,
            Sources::Own(_) => {
                stats.forged += 1;
                return false;
            }
            Sources::Learnt => Claim::Free,
            Sources::Any(_) => Claim::Moved,
        };
        match self.macs.learn(src, from, claim, self.now_ns()) {
            Source::Here => {}
            Source::NotLearnt => stats.not_learnt += 1,
            Source::Elsewhere => {
                stats.forged += 1;
                return false;
            }
        }
        true
    }
}
