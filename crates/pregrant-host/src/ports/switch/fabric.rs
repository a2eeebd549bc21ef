//! The part of a switch that all workers share: its vifs, and which address is behind which.
//!
//! ```text
//!   control: add, caps, sources, steer, leave --lock--> a new View, version + 1
//!   worker:  each burst: is the version mine? -- no, lock --> takes the View       (Outbox::see)
//! ```
//! A view is never changed: a burst is forwarded by one. A change while a burst is under way holds
//! from the next on; the table of addresses is one for all and always new.
//!
//! Invariants: an index is used again only after the addresses of the vif that had it are
//! forgotten, and a view that has the new vif is newer than that. So an address is never believed
//! to be behind a vif that came later.

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
    /// Handles of each vif.
    handles: Vec<usize>,
    next_id: u64,
}

/// See the module.
#[derive(Default)]
pub struct Fabric {
    control: Mutex<Control>,
    version: AtomicU64,
    /// Which address is behind which vif.
    pub macs: MacTable,
    now_ns: AtomicU64,
}

impl Fabric {
    fn control(&self) -> MutexGuard<'_, Control> {
        // Every state that a panic could leave is a legal one.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, control: &mut Control, view: View) {
        control.view = Arc::new(view);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The view, if `version` is an older one's; `version` is this one's then.
    #[inline(always)]
    pub fn newer_than(&self, version: &mut u64) -> Option<Arc<View>> {
        // Begins at 0, with no vif in it; an outbox begins so too.
        if self.version.load(Ordering::Acquire) == *version {
            return None;
        }
        let control = self.control();
        *version = self.version.load(Ordering::Acquire);
        Some(Arc::clone(&control.view))
    }

    /// The time, as it was last set.
    pub fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    /// Tells the time.
    pub fn set_now(&self, now_ns: u64) {
        self.now_ns.store(now_ns, Ordering::Relaxed);
        self.macs.sweep(now_ns);
    }

    /// A vif with so many queues comes. Returns its index.
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

    /// Something of a vif changes.
    pub fn change(&self, port: u16, change: impl FnOnce(&mut Vif)) {
        let mut control = self.control();
        let mut view = View::clone(&control.view);
        if let Some(Some(vif)) = view.get_mut(usize::from(port)) {
            change(Arc::make_mut(vif));
            self.publish(&mut control, view);
        }
    }

    /// A vif sends with these addresses from now on.
    pub fn set_sources(&self, port: u16, sources: Sources) {
        self.change(port, |vif| vif.sources = sources);
        let _control = self.control();
        self.macs.forget_port(port);
        if let Some(mac) = sources.pinned() {
            self.macs.pin(mac, port);
        }
    }

    /// One handle of a vif goes; with the last, the vif.
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
        // An address goes back to another vif that has the same.
        if let Some(own) = gone.and_then(|vif| vif.sources.pinned()) {
            let has_it =
                |vif: &Option<Arc<Vif>>| vif.as_ref().is_some_and(|v| v.sources.pinned() == Some(own));
            if let Some(heir) = view.iter().position(has_it) {
                self.macs.pin(own, heir as u16);
            }
        }
        self.publish(&mut control, view);
    }

    /// Whether `src` may send from `from`, by these rules; the table and `stats` know of it then.
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
