//! Two well-behaved guests that exchange frames, beside a hostile guest that a test controls. The
//! tests check that the back closes the hostile guest's vif with a log line that says why, and that
//! the other guests are not affected.

use crate::guest::Traffic;
use crate::log_lines;
use crate::machine::{Back, Machine, Store, until};
use crate::raw_guest::{Keys, RawGuest};
use pregrant::DomId;
use pregrant::wire::netif::RSP_OKAY;
use pregrant::xenbus::{DeviceId, XenbusState};
use pregrant_host::drivers::VifReport;
use pregrant_loopback::{Audit, Loopback};
use pregrant_testkit::model_front::Slot;

pub const BAD: u16 = 5;

pub struct Stage {
    // In the order in which they end when a test fails.
    pub traffic: Traffic,
    /// An attachment that keeps the hostile guest's domain alive while it has no vif.
    pub keep: (Loopback, Store),
    pub back: Back,
    pub machine: Machine,
    /// The broker's counts while the hostile guest has no vif.
    pub calm: Audit,
    /// Number of vifs that the hostile guest has had, one after another.
    pub vifs: u32,
}

impl Stage {
    pub fn set() -> Self {
        let mut machine = Machine::start();
        let back = Back::plain(&machine);
        let traffic = Traffic::start(&mut machine);
        machine.guest_domain(BAD);
        let keep = machine.attach(DomId(BAD));
        let calm = machine.broker.audit();
        log_lines::take();
        Self { machine, back, traffic, keep, calm, vifs: 0 }
    }

    /// Creates a vif of the hostile guest, as the toolstack does.
    pub fn vif(&mut self, handle: u32) -> DeviceId {
        self.machine.make_vif(BAD, handle)
    }

    pub fn remove(&mut self, id: DeviceId) {
        self.machine.remove_vif(id);
        until(|| self.back.report(id).is_none());
    }

    /// Checks that the broker's counts are as before the hostile guest's vif, and that the other
    /// guests were not affected.
    pub fn settles(&mut self) {
        self.machine.settles(self.calm);
        self.traffic.flows();
        self.traffic.assert_unharmed(&self.back);
    }

    /// Creates a vif of the hostile guest, whose front has not connected yet.
    pub fn guest(&mut self) -> (DeviceId, RawGuest) {
        self.vifs += 1;
        log_lines::take();
        let id = self.vif(self.vifs);
        (id, RawGuest::attach(&self.machine, id))
    }

    /// Returns the back's report on a vif of the hostile guest.
    pub fn report(&self, id: DeviceId) -> VifReport {
        self.back.report(id).unwrap()
    }

    /// Waits until the back has closed the vif. Checks that xenstore, the report and the log have
    /// the same reason, with these `parts`.
    pub fn is_closed(&mut self, id: DeviceId, guest: &mut RawGuest, parts: &[&str]) {
        guest.wait_back(&[XenbusState::Closed]);
        until(|| self.report(id).state == XenbusState::Closed);
        let reported = self.machine.error_node(id).expect("an error node");
        let name = format!("domain {BAD}");
        let front = id.front_dir();
        for part in parts.iter().copied().chain([front.as_str(), &name, "detach and attach"]) {
            assert!(reported.contains(part), "{part:?} is not in: {reported}");
        }
        assert_eq!(self.report(id).failed.as_ref(), Some(&reported));
        let lines = log_lines::with(&reported);
        assert_eq!(lines.len(), 1, "{reported} in the log: {lines:?}");
        assert!(lines[0].starts_with(&format!("WARN: {id}: closed: ")), "{lines:?}");
        // It stays closed as long as its front says that it is connected.
        self.traffic.flows();
        assert_eq!(self.machine.back_state(id).as_deref(), Some("6"));
    }

    /// Removes the vif; then checks that nothing of it is left, and that the other guests were not
    /// affected.
    pub fn clear(&mut self, id: DeviceId, guest: RawGuest) {
        drop(guest);
        self.remove(id);
        self.settles();
    }

    /// Checks that the back refuses a connect whose keys `mischief` has changed, for a reason with
    /// these `parts`.
    pub fn refuses(&mut self, mischief: impl FnOnce(&mut RawGuest, &mut Keys), parts: &[&str]) {
        let (id, mut guest) = self.guest();
        let mut keys = guest.keys();
        mischief(&mut guest, &mut keys);
        guest.connect(&keys);
        self.is_closed(id, &mut guest, parts);
        // A front that mends its ways gets the same vif.
        guest.set_state(XenbusState::Closed);
        guest.set_state(XenbusState::Initialising);
        guest.connect(&guest.keys());
        guest.wait_back(&[XenbusState::Connected]);
        until(|| self.report(id).failed.is_none());
        guest.play(&[Slot::Data(guest.request(0, 64))]);
        assert_eq!(guest.answers(), [RSP_OKAY]);
        self.clear(id, guest);
    }

    /// Checks that the back closes a live vif after `mischief` has changed its rings, for a reason
    /// with these `parts`.
    pub fn closes(&mut self, mischief: impl FnOnce(&mut RawGuest), parts: &[&str]) {
        let (id, mut guest) = self.guest();
        guest.connect_honestly();
        guest.play(&[Slot::Data(guest.request(0, 64))]);
        assert_eq!(guest.answers(), [RSP_OKAY]);
        mischief(&mut guest);
        guest.notify();
        self.is_closed(id, &mut guest, parts);
        self.clear(id, guest);
    }

    pub fn end(mut self) {
        self.traffic.flows();
        drop(self.keep);
        self.traffic.stop(&mut self.machine);
        self.back.stop();
        self.machine.end();
    }
}
