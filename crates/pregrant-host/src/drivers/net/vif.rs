//! One vif that is served: its queues joined with the ports behind them.
//!
//! ```text
//!   place      HotplugConfig is read, the far side makes the vif's place
//!   connected  PortProvider::connected: a port for each queue
//!   poll       queue i <--> port i: one batch each way
//!   turn       control requests; frames for guests expire, guests that take none lose their link (docs/protocol 6)
//!   plug       the script that plugs it in, or out, where that is this process' business
//! ```
//! A guest that goes up and down without end uses up its lines in the log and is then counted only.

use super::Far;
use super::port_provider::{Hotplug, HotplugConfig, HotplugState, unplugged};
use crate::drivers::registry::{AnyBack, DeviceLog, Notes, PlugStep, RingFault, ServedDevice};
use log::Level;
use pregrant::PeerFault;
use pregrant::net::back::credit::BadRate;
use pregrant::net::back::vif::RATE;
use pregrant::net::back::{BackVif, Drained, Polled};
use pregrant::net::features::queue_prefix;
use pregrant::platform::Platform;
use pregrant::port::{Arena, FramePort};
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::{Device, DeviceError, DeviceId};
use pregrant::xenstore::{Client, Transport};

/// See the module.
pub(super) struct VifInstance<P: Platform> {
    pub(super) vif: BackVif<P>,
    pub(super) ports: Vec<Box<dyn FramePort>>,
    far: Far,
    hotplug: Hotplug,
    plug: HotplugState,
    /// The log was told that its guest takes no frames.
    stalled: bool,
}

impl<P: Platform> VifInstance<P> {
    pub(super) fn new(vif: BackVif<P>, far: Far, hotplug: Hotplug) -> Self {
        Self { vif, ports: Vec::new(), far, hotplug, plug: HotplugState::Done, stalled: false }
    }

    /// Tells the ports how the guest wants its frames spread, if that changed.
    fn steer(&mut self) {
        if let Some(steering) = self.vif.new_steering() {
            for port in &mut self.ports {
                port.steer(steering.clone());
            }
        }
    }

    /// A ring of queue `i` broke the protocol; the control ring, `ctrl`, is of no queue.
    #[cold]
    fn fault(&self, i: usize, ring: &str, fault: PeerFault) -> RingFault {
        RingFault { key: front_key(i, self.vif.nr_queues(), ring, "ring-ref"), fault }
    }
}

/// The front's key `{dir}-{what}` of queue `i` of `n`, below its directory; the control ring, `ctrl`, is of no queue.
fn front_key(i: usize, n: usize, dir: &str, what: &str) -> String {
    let at = if dir == "ctrl" { String::new() } else { queue_prefix(i, n) };
    format!("{at}{dir}-{what}")
}

impl<P: Platform, T: Transport + 'static> ServedDevice<P, T> for VifInstance<P> {
    fn back(&self) -> &dyn AnyBack<P, T> {
        &self.vif
    }
    fn back_mut(&mut self) -> &mut dyn AnyBack<P, T> {
        &mut self.vif
    }
    fn detach(&mut self, p: &P) -> Drained {
        self.vif.detach(p, &mut self.ports)
    }
    fn end(&mut self, p: &P, bus: &mut StoreBus<'_, T>) -> Result<Drained, DeviceError> {
        self.vif.end(p, bus, &mut self.ports)
    }

    fn place(&mut self, device: &Device, xs: &mut Client<T>, live: bool) -> Result<Notes, String> {
        let place = HotplugConfig::read(device, xs).map_err(|e| e.to_string())?;
        let far = &mut **self.far.borrow_mut();
        let (plug, notes) = HotplugState::begin(far, self.hotplug, device, place, &mut self.vif, live)?;
        self.plug = plug;
        Ok(notes)
    }

    fn connected(&mut self, device: &Device, log: &DeviceLog) {
        let queues = self.vif.nr_queues();
        let ports = self.far.borrow_mut().connected(&device.id(), queues, self.vif.front_offloads());
        let ports = ports.map_err(|why| format!("its frames are dropped: {why}"));
        self.ports = log.failed(Level::Warn, ports).unwrap_or_else(|| unplugged(queues));
        self.steer();
        self.stalled = false;
        ServedDevice::<P, T>::key_changed(self, device, log);
        for (queue, dir, why) in self.vif.refused_lists() {
            let (at, key) = (device.peer_dir(), front_key(*queue, queues, dir, "data-ref0"));
            let line = format_args!(
                "the staging list {at}/{key} is not used, queue {queue} goes on with ordinary grants: {why}; \
                 correct the front's list and connect it again"
            );
            log.say(Level::Warn, &line);
        }
        let (tx, rx) = self.vif.path_names(0);
        log.say(Level::Info, &format_args!("connected, {queues} queue(s), TX {tx}, RX {rx}"));
    }

    fn interrupted(&self) -> String {
        format!("; {}", self.vif.interrupted())
    }

    fn closed(&mut self, id: &DeviceId, log: &DeviceLog) {
        self.ports.clear();
        log.failed(Level::Info, self.far.borrow_mut().closed(id));
    }

    #[inline]
    fn poll(&mut self, p: &P, scratch: &mut Arena) -> Result<bool, RingFault> {
        let (n, first) = (self.ports.len(), self.vif.first_tx());
        let mut worked = false;
        for k in 0..n {
            let i = if first + k < n { first + k } else { first + k - n };
            let port = &mut *self.ports[i];
            let tx = self.vif.poll_tx(p, i, port, scratch).map_err(|e| ("tx", e));
            let rx = self.vif.poll_rx(p, i, port).map_err(|e| ("rx", e));
            match (tx, rx) {
                (Ok(tx), Ok(rx)) => worked |= tx == Polled::More || rx == Polled::More,
                (Err((ring, e)), _) | (_, Err((ring, e))) => return Err(self.fault(i, ring, e)),
            }
        }
        Ok(worked)
    }

    fn arm(&mut self, p: &P) -> Result<bool, RingFault> {
        let mut work = false;
        for i in 0..self.vif.nr_queues() {
            work |= self.vif.final_check(p, i).map_err(|(ring, e)| self.fault(i, ring, e))?;
        }
        Ok(work | self.vif.final_check_ctrl(p).map_err(|e| self.fault(0, "ctrl", e))?)
    }

    fn is_pending(&mut self) -> bool {
        self.vif.is_pending()
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.vif.deadline_ns()
    }

    fn turn(&mut self, p: &P, id: &DeviceId, log: &DeviceLog) -> Result<bool, RingFault> {
        let asked = self.vif.poll_ctrl(p).map_err(|e| self.fault(0, "ctrl", e))? == Polled::More;
        if asked {
            self.steer();
        }
        let link = self.vif.turn(p, &mut self.ports).map_err(|(i, e)| self.fault(i, "rx", e))?;
        if let Some(up) = link {
            log.failed(Level::Info, self.far.borrow_mut().link(id, up));
            let was = std::mem::replace(&mut self.stalled, !up);
            if !up {
                log.say(Level::Warn, &"its guest takes no frames: link down until it posts RX slots");
            } else if was {
                log.say(Level::Info, &"its guest takes frames again: link up");
            }
        }
        Ok(asked)
    }

    fn key_changed(&mut self, device: &Device, log: &DeviceLog) {
        if let Some(text) = self.vif.bad_rate() {
            log.say(Level::Warn, &format_args!("{}/{RATE} is {text:.40?}, {BadRate}", device.own_dir()));
        }
    }

    fn plug(&mut self, id: &DeviceId) -> Option<PlugStep> {
        self.plug.turn(&mut **self.far.borrow_mut(), id)
    }
    fn is_plugging(&self) -> bool {
        self.plug.is_pending()
    }
    fn unplug(&mut self) -> bool {
        if self.hotplug == Hotplug::Own {
            self.plug = HotplugState::Undone;
        }
        self.plug.is_out()
    }
    fn is_out(&self) -> bool {
        self.plug.is_out()
    }
}
