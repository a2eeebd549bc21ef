//! Chooses the ports of the vifs of the back's process, as the last command requested them.

use super::account::{Account, CountedPort};
use super::crowd::port::Hall;
use super::ports::{EchoPort, SinkPort, SourcePort};
use super::process_command::{Case, Dir};
use super::signals::{Signals, locked};
use pregrant::DomId;
use pregrant::port::{FramePort, Offloads};
use pregrant::xenbus::DeviceId;
use pregrant_host::drivers::net::port_provider::{Notes, Ports};
use pregrant_host::drivers::{HotplugConfig, PortProvider, RemoteSide, Stations};
use pregrant_host::ports::checking_sink::{Check, CheckingSink};
use pregrant_host::ports::generator::Generator;
use pregrant_host::ports::sequence::Head;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// The ports that the next vif gets when it connects.
pub enum PortPlan {
    Nothing,
    Case(Case, Arc<Signals>),
    /// The vif of the guest `front` plays the case. Any other vif gets frames without end if `feed`
    /// is set.
    Beside {
        front: DomId,
        case: Box<PortPlan>,
        feed: Option<usize>,
        /// The counts of the other guests' frames.
        others: Arc<Signals>,
    },
    Switch(Stations, Arc<Account>),
    /// The port of each vif checks numbers, or sends frames back.
    Crowd(Arc<Hall>),
}

impl PortPlan {
    /// Returns the ports of a vif with `n` queues; `caps` is the offload work that the guest
    /// accepts to do.
    fn ports(&mut self, id: &DeviceId, n: usize, caps: Offloads) -> Ports {
        match self {
            // One station, whatever its queues: a broadcast must not come back on another of them.
            Self::Switch(stations, account) => match stations.ports(id, n, caps) {
                Ok(ports) => {
                    let counted = |port| CountedPort::new(port, Arc::clone(account));
                    ports.into_iter().map(|p| Box::new(counted(p)) as Box<dyn FramePort>).collect()
                }
                Err(_) => Self::Nothing.ports(id, n, caps),
            },
            Self::Crowd(hall) => hall.ports(id, n),
            Self::Beside { front, case, .. } if *front == id.front => case.ports(id, n, caps),
            Self::Beside { feed: Some(size), .. } => {
                let feed = || Box::new(Generator::new(Head::default(), *size)) as Box<dyn FramePort>;
                std::iter::repeat_with(feed).take(n).collect()
            }
            _ => (0..n).map(|_| self.port()).collect(),
        }
    }

    fn port(&self) -> Box<dyn FramePort> {
        match self {
            Self::Case(case, signals) => match case.dir {
                Dir::Rx => Box::new(SourcePort::new(Arc::clone(signals), case.size, case.burst)),
                Dir::Echo => Box::new(EchoPort::new(Arc::clone(signals))),
                // The time between bursts is measured beside others.
                Dir::Tx => Box::new(SinkPort::new(Arc::clone(signals), case.look, case.beside.is_some())),
            },
            Self::Beside { others, .. } => {
                let sink = CheckingSink::new(Check::Number);
                locked(&others.others).push(sink.counters());
                Box::new(sink)
            }
            Self::Nothing | Self::Switch(..) | Self::Crowd(_) => Box::new(CheckingSink::new(Check::Number)),
        }
    }
}

/// Provides the ports that the last command asked for.
pub struct PlannedPorts(pub Rc<RefCell<PortPlan>>);

impl PortProvider for PlannedPorts {
    fn found(&mut self, id: &DeviceId, place: &HotplugConfig, live: bool) -> Result<Notes, String> {
        match &mut *self.0.borrow_mut() {
            PortPlan::Switch(stations, _) => stations.found(id, place, live),
            _ => Ok(Notes::new()),
        }
    }
    fn reserve(&mut self, id: &DeviceId, place: &HotplugConfig, queues: usize, front: Offloads) {
        if let PortPlan::Switch(stations, _) = &mut *self.0.borrow_mut() {
            stations.reserve(id, place, queues, front);
        }
    }
    fn release(&mut self, id: &DeviceId) -> usize {
        match &mut *self.0.borrow_mut() {
            PortPlan::Switch(stations, _) => stations.release(id),
            _ => 0,
        }
    }
    fn connected(&mut self, id: &DeviceId, queues: usize, front: Offloads) -> Result<Ports, String> {
        Ok(self.0.borrow_mut().ports(id, queues, front))
    }
}

impl RemoteSide for PlannedPorts {
    fn removed(&mut self, id: &DeviceId) -> Result<(), String> {
        match &mut *self.0.borrow_mut() {
            PortPlan::Switch(stations, _) => stations.removed(id),
            _ => Ok(()),
        }
    }
}
