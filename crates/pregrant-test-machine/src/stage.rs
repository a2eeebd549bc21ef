//! Two good guests at work beside a bad one: it connects and sends as a test has it, is closed for
//! it with a line that says why, and the good ones notice nothing.

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
    /// Keeps the bad guest's domain between its vifs.
    pub keep: (Loopback, Store),
    pub back: Back,
    pub machine: Machine,
    /// The machine's counts without the bad guest's vifs.
    pub calm: Audit,
    /// Number of vifs that it has had, one after another.
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

    /// The toolstack makes a vif of the bad guest.
    pub fn vif(&mut self, handle: u32) -> DeviceId {
        self.machine.make_vif(BAD, handle)
    }

    pub fn remove(&mut self, id: DeviceId) {
        self.machine.remove_vif(id);
        until(|| self.back.report(id).is_none());
    }

    /// The machine's account is what it was, and the good guests never noticed.
    pub fn settles(&mut self) {
        self.machine.settles(self.calm);
        self.traffic.flows();
        self.traffic.assert_unharmed(&self.back);
    }

    /// A new vif of the bad guest, its front not started.
    pub fn guest(&mut self) -> (DeviceId, RawGuest) {
        self.vifs += 1;
        log_lines::take();
        let id = self.vif(self.vifs);
        (id, RawGuest::attach(&self.machine, id))
    }

    /// The back's report of a vif of the bad guest.
    pub fn report(&self, id: DeviceId) -> VifReport {
        self.back.report(id).unwrap()
    }

    /// The vif is closed; store, report and log say where and why.
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

    /// The vif is removed; the machine's account is what it was, and the good guests never noticed.
    pub fn clear(&mut self, id: DeviceId, guest: RawGuest) {
        drop(guest);
        self.remove(id);
        self.settles();
    }

    /// A connect whose keys are changed by `mischief` fails, with a text that has these parts.
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

    /// A live vif is closed for what `mischief` does on its rings.
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
