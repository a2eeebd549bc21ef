//! One vif that is served: its queues joined with their ports.
//!
//! ```text
//!   place            HotplugConfig is read, the remote side makes the vif's port or interface
//!   connected        PortProvider::connected: a port for each queue
//!   hand_out_queues  queue i and port i go to a worker, as one (`queue`); take_back_queues
//!   PeriodicCheck    what became of its interface, each second where it has one
//!   ControlRing      control requests; the link, once all queues have it or one has it no longer
//!   HotplugScript    the script that plugs it in, or out, where this process runs it
//! ```
//! A guest that goes up and down without end uses up its lines in the log and is then counted only.

use super::port_provider::{
    Hotplug, HotplugConfig, HotplugState, INTERFACE, Ports, SharedProvider, unplugged,
};
use super::queue::{VifQueue, front_key};
use crate::drivers::device_class::{
    AnyBack, ControlRing, Figures, HotplugScript, HotplugStep, Notes, PeriodicCheck, RingFault, ServedDevice,
    ServedQueue, log_reattached,
};
use crate::drivers::device_log::DeviceLog;
use crate::excerpt::excerpt;
use log::Level;
use pregrant::PeerFault;
use pregrant::net::back::credit::{BadRate, Rate};
use pregrant::net::back::vif::RATE;
use pregrant::net::back::{BackVif, Drained, Polled};
use pregrant::net::path::PathName;
use pregrant::net::path::keys::KeyPlace;
use pregrant::platform::{Events, Platform};
use pregrant::port::{DropCounts, PortDrop};
use pregrant::units::EvtchnPort;
use pregrant::xenbus::back::Begin;
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::{Device, DeviceError, DeviceId};
use pregrant::xenstore::{Client, Transport};
use rustix::fd::OwnedFd;
use std::any::Any;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// A vif with its ports and its queues.
pub(super) struct VifInstance<P: Platform> {
    pub(super) vif: BackVif<P>,
    /// The ports of the queues, with descriptors that are readable when frames wait; empty while
    /// workers have the queues.
    ports: Ports,
    readable: Vec<OwnedFd>,
    /// Counters of frames that the last connection's ports dropped.
    drops: Option<Arc<dyn DropCounts>>,
    provider: SharedProvider,
    hotplug: Hotplug,
    plug: HotplugState,
    /// True if the log has a line that the guest receives no frames.
    stalled: bool,
    /// True if the vif has an interface that others may rename, move or remove.
    has_interface: bool,
    /// True if the number in xenstore may not be the interface's any more.
    renumbered: bool,
    /// The rate limit that was logged last.
    said_rate: Option<Rate>,
    /// Number of frames that were too long for the guest when the interface's MTU was last set.
    too_long: u64,
    /// Number of pages that the guest asked to map: as last logged, and at the last
    /// [check](PeriodicCheck::check).
    said_grefs: usize,
    seen_grefs: usize,
    /// True once a warning was logged, for any vif, that its guest is not isolated.
    warned: Rc<Cell<bool>>,
}

impl<P: Platform> VifInstance<P> {
    pub(super) fn new(
        vif: BackVif<P>,
        provider: SharedProvider,
        hotplug: Hotplug,
        warned: Rc<Cell<bool>>,
    ) -> Self {
        let (ports, readable, drops) = (Vec::new(), Vec::new(), None);
        Self {
            vif,
            ports,
            readable,
            drops,
            provider,
            hotplug,
            plug: HotplugState::Done,
            stalled: false,
            has_interface: false,
            renumbered: false,
            said_rate: None,
            too_long: 0,
            said_grefs: 0,
            seen_grefs: 0,
            warned,
        }
    }

    /// Logs when the first of the guest's pages are mapped by control messages, and when the last
    /// one is unmapped, since its frames then use another path than logged before. Each time one
    /// line, once no request of the guest is outstanding; [`say_more_grefs`](Self::say_more_grefs)
    /// logs later additions.
    fn say_grefs(&mut self, log: &DeviceLog) {
        let Some(pages) = self.vif.settled_gref_pages() else { return };
        if (self.said_grefs > 0) == (pages > 0) {
            return;
        }
        (self.said_grefs, self.seen_grefs) = (pages, pages);
        if pages > 0 {
            let text = format_args!(
                "{pages} page(s) mapped at the guest's request (control ring): frames in them go by gref-mapping"
            );
            log.say(Level::Info, &text);
        } else {
            let first = |dir| self.vif.chain(0, dir).first().copied().unwrap_or_default();
            let (tx, rx) = (first(0), first(1));
            let text = format_args!(
                "no page is mapped any more at the guest's request (control ring): frames go by TX {tx}, RX {rx}"
            );
            log.say(Level::Info, &text);
        }
    }

    /// Logs the changes of the vif's interface, if it has one.
    fn check_interface(&mut self, id: &DeviceId, log: &DeviceLog) {
        let notes = self.provider.borrow_mut().check(id);
        self.renumbered |= !notes.is_empty();
        notes.iter().for_each(|(level, text)| log.say(*level, text));
    }

    /// Limits the MTU of the interface, if there is one, to what the guest receives.
    fn limit_mtu(&mut self, id: &DeviceId, log: &DeviceLog) {
        self.too_long = self.vif.too_long();
        let limited = self.provider.borrow_mut().limit_mtu(id, self.vif.mtu_limit());
        let notes = log.failed(Level::Warn, limited).unwrap_or_default();
        notes.iter().for_each(|(level, text)| log.say(*level, text));
    }

    /// Logs that more pages are mapped than last logged, once their number was the same at two
    /// checks: a front names its pages by several requests.
    fn say_more_grefs(&mut self, log: &DeviceLog) {
        let Some(pages) = self.vif.settled_gref_pages() else { return };
        if pages > self.said_grefs && pages == self.seen_grefs {
            self.said_grefs = pages;
            log.say(Level::Info, &format_args!("{pages} page(s) mapped at the guest's request by now"));
        }
        self.seen_grefs = pages;
    }

    /// Returns the numbers of frames that the vif's ports dropped.
    pub(super) fn port_drops(&self) -> Vec<PortDrop> {
        self.drops.as_ref().map_or_else(Vec::new, |drops| drops.read())
    }

    /// Creates the fault that closes the vif because its control ring violated the protocol.
    #[cold]
    fn fault(fault: PeerFault) -> RingFault {
        RingFault { key: front_key(0, 1, "ctrl", "ring-ref"), fault }
    }
}

impl<P: Platform, T: Transport + 'static> ServedDevice<P, T> for VifInstance<P> {
    fn back(&self) -> &dyn AnyBack<P, T> {
        &self.vif
    }
    fn back_mut(&mut self) -> &mut dyn AnyBack<P, T> {
        &mut self.vif
    }

    fn place(&mut self, device: &Device, xs: &mut Client<T>, live: bool) -> Result<Notes, String> {
        let (place, mut notes) = HotplugConfig::read(device, xs).map_err(|e| e.to_string())?;
        let provider = &mut **self.provider.borrow_mut();
        let (plug, of_place) =
            HotplugState::begin(provider, self.hotplug, device, place, &mut self.vif, live)?;
        notes.extend(of_place);
        self.plug = plug;
        if let Some(number) = provider.interface_number(&device.id())
            && let Err(e) = device.set_in_transaction(xs, &[(INTERFACE, &number.to_string())])
        {
            let text = format!(
                "cannot write {}/{INTERFACE}: {e}; the next backend finds its interface by name alone",
                device.own_dir()
            );
            notes.push((Level::Warn, text));
        }
        Ok(notes)
    }

    fn connected(&mut self, begin: Begin, device: &Device, log: &DeviceLog) {
        if begin == Begin::Reattach {
            log_reattached(log, &format!("; {}", self.vif.interrupted()));
        }
        let queues = self.vif.nr_queues();
        self.has_interface = self.provider.borrow_mut().wants_checks(&device.id());
        self.check_interface(&device.id(), log);
        self.limit_mtu(&device.id(), log);
        let ports = self.provider.borrow_mut().connected(&device.id(), queues, self.vif.front_offloads());
        let ports = ports.map_err(|why| {
            format!("cannot make the vif's tap queues or switch ports, so its frames are dropped: {why}")
        });
        self.readable = self.provider.borrow_mut().readable(&device.id());
        self.ports = log.failed(Level::Warn, ports).unwrap_or_else(|| unplugged(queues));
        self.drops = self.ports.first().and_then(|port| port.drop_counts());
        self.stalled = false;
        self.said_rate = None;
        ServedDevice::<P, T>::own_key_changed(self, device, log);
        for (queue, dir, why) in self.vif.refused_lists() {
            let at = KeyPlace { front: device.peer_dir(), queue: *queue, nr_queues: queues, dir };
            log.say(Level::Warn, &why.line(at));
        }
        let (tx, rx) = self.vif.path_names(0);
        let lens = match self.vif.data_lens(0) {
            [Some(tx), Some(rx)] if tx != rx => format!(", staging buffers of {tx} and {rx} bytes"),
            [Some(len), _] | [_, Some(len)] => format!(", staging buffers of {len} bytes"),
            [None, None] => String::new(),
        };
        log.say(Level::Info, &format_args!("connected, {queues} queue(s), TX {tx}, RX {rx}{lens}"));
        (self.said_grefs, self.seen_grefs) = (0, 0);
        self.say_grefs(log);
        if tx == PathName::Foreign.name() {
            // The path is enabled for the whole backend: one warning explains it, and each vif's
            // line names its guest.
            let level = if self.warned.replace(true) { Level::Info } else { Level::Warn };
            log.say(
                level,
                &"mapped the guest's whole memory at its request (path foreign): the guest is not isolated from this backend",
            );
        }
    }

    fn closed(&mut self, id: &DeviceId, log: &DeviceLog) {
        self.ports.clear();
        self.readable.clear();
        self.drops = None;
        log.failed(Level::Info, self.provider.borrow_mut().closed(id));
    }

    fn detach(&mut self, p: &P) -> Drained {
        self.vif.detach(p, &mut self.ports)
    }

    fn hand_out_queues(&mut self) -> Vec<Box<dyn ServedQueue<P>>> {
        let (queues, ports) = (self.vif.hand_out_queues(), std::mem::take(&mut self.ports));
        let nr_queues = queues.len();
        let mut readable = std::mem::take(&mut self.readable).into_iter();
        let joined = queues.into_iter().zip(ports).enumerate().map(|(number, (queue, port))| {
            let queue = VifQueue { queue, port, readable: readable.next(), number, nr_queues };
            Box::new(queue) as Box<dyn ServedQueue<P>>
        });
        joined.collect()
    }

    fn take_back_queues(&mut self, queues: Vec<Box<dyn ServedQueue<P>>>) {
        let (mut back, mut ports) = (Vec::new(), Vec::new());
        for queue in queues {
            // All queues of this device are made by this type, so the cast succeeds.
            let Ok(queue) = (queue as Box<dyn Any>).downcast::<VifQueue<P>>() else { continue };
            let VifQueue { queue, port, readable, .. } = *queue;
            back.push(queue);
            ports.push(port);
            self.readable.extend(readable);
        }
        self.vif.take_back(back);
        self.ports = ports;
    }

    fn own_key_changed(&mut self, device: &Device, log: &DeviceLog) {
        if let Some(text) = self.vif.bad_rate() {
            let text = excerpt(text, 40);
            log.say(Level::Warn, &format_args!("{}/{RATE} is {text:?}, {BadRate}", device.own_dir()));
        }
        let rate = self.vif.rate();
        if std::mem::replace(&mut self.said_rate, rate) == rate {
            return;
        }
        match rate {
            Some(rate) => {
                log.say(
                    Level::Info,
                    &format_args!("its guest may send {rate} at most, as the key `{RATE}` says"),
                );
            }
            None => log.say(
                Level::Info,
                &format_args!("its guest's sending is not limited any more (key `{RATE}`)"),
            ),
        }
    }

    fn figures(&self) -> Figures {
        // The status of a vif is a `VifReport`.
        Figures::default()
    }

    fn control_ring(&mut self) -> Option<&mut dyn ControlRing<P>> {
        Some(self)
    }

    fn hotplug(&mut self) -> Option<&mut dyn HotplugScript> {
        Some(self)
    }

    fn periodic_check(&mut self) -> Option<&mut dyn PeriodicCheck<T>> {
        let pages = self.vif.settled_gref_pages().unwrap_or(0);
        let more_grefs = self.said_grefs > 0 && (pages > self.said_grefs || pages != self.seen_grefs);
        if more_grefs || self.has_interface { Some(self) } else { None }
    }
}

impl<P: Platform> ControlRing<P> for VifInstance<P> {
    fn channel(&self, p: &P) -> Option<EvtchnPort> {
        self.vif.ctrl_channel().map(|chan| p.events().local(chan))
    }

    fn arm(&mut self, p: &P) -> Result<bool, RingFault> {
        self.vif.final_check_ctrl(p).map_err(Self::fault)
    }

    fn is_pending(&mut self) -> bool {
        self.vif.ctrl_is_pending()
    }

    fn turn(&mut self, p: &P, id: &DeviceId, log: &DeviceLog) -> Result<bool, RingFault> {
        let asked = self.vif.poll_ctrl(p).map_err(Self::fault)? == Polled::More;
        self.say_grefs(log);
        if self.vif.too_long() != self.too_long {
            self.limit_mtu(id, log);
        }
        if let Some(up) = self.vif.new_link() {
            log.failed(Level::Info, self.provider.borrow_mut().link(id, up));
            let was = std::mem::replace(&mut self.stalled, !up);
            if !up {
                log.say(Level::Warn, &"the guest posts no RX buffers: link down until it does");
            } else if was {
                log.say(Level::Info, &"the guest posts RX buffers again: link up");
            }
        }
        Ok(asked)
    }

    fn part_of_connecting(&self) -> u32 {
        let work = self.vif.ctrl_work();
        (u64::from(work.filling) * 1000 / u64::from(work.all.max(1))) as u32
    }
}

impl<P: Platform, T: Transport + 'static> PeriodicCheck<T> for VifInstance<P> {
    fn check(&mut self, bus: &mut StoreBus<'_, T>, log: &DeviceLog) -> Result<(), DeviceError> {
        if self.said_grefs > 0 {
            self.say_more_grefs(log);
        }
        if !self.has_interface {
            return Ok(());
        }
        let id = bus.device.id();
        self.check_interface(&id, log);
        if std::mem::take(&mut self.renumbered) {
            self.limit_mtu(&id, log);
            if let Some(number) = self.provider.borrow_mut().interface_number(&id) {
                bus.device.set_in_transaction(bus.xs, &[(INTERFACE, &number.to_string())])?;
            }
        }
        Ok(())
    }
}

impl<P: Platform> HotplugScript for VifInstance<P> {
    fn is_pending(&self) -> bool {
        self.plug.is_pending()
    }
    fn turn(&mut self, id: &DeviceId) -> Option<HotplugStep> {
        self.plug.turn(&mut **self.provider.borrow_mut(), id)
    }
    fn begin_undo(&mut self) -> bool {
        if self.hotplug == Hotplug::Own {
            self.plug = HotplugState::Undone;
        }
        self.plug.is_out()
    }
    fn is_undone(&self) -> bool {
        self.plug.is_out()
    }
}
