//! Two good guests that exchange frames, and a hostile domain.

use super::guest::Traffic;
use super::{Back, Machine, Store, log_lines, until};
use pregrant::DomId;
use pregrant::xenbus::DeviceId;
use pregrant_host::loopback::{Audit, Loopback};

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

    pub fn end(mut self) {
        self.traffic.flows();
        drop(self.keep);
        self.traffic.stop(&mut self.machine);
        self.back.stop();
        self.machine.end();
    }
}
