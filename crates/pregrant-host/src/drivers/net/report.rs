//! The public status of a vif: that of any device, and its queues, link and ports.

use super::vif::VifInstance;
use crate::drivers::device_class::ServedDevice;
use crate::drivers::registry::{Backend, DeviceReport};
use pregrant::grants::MappedStats;
use pregrant::net::back::Rate;
use pregrant::net::path::BufferNames;
use pregrant::net::stats::DirStats;
use pregrant::platform::Platform;
use pregrant::port::PortDrop;
use pregrant::xenstore::Transport;
use std::any::Any;
use std::ops::Deref;

/// The state of one vif, for tests and tools.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VifReport {
    /// The report that devices of all classes have, for this vif.
    pub device: DeviceReport,
    /// For each queue: the path and the counters of TX, then those of RX.
    pub queues: Vec<(&'static str, DirStats, &'static str, DirStats)>,
    /// For each queue, the memory that it shares with its guest.
    pub shared: Vec<SharedMemory>,
    /// Number of the guest's pages that the vif has mapped.
    pub mapped_pages: usize,
    /// True if the guest has RX slots for frames, or had some a short time ago.
    pub link: bool,
    /// Number of times the vif's link went down because the guest had no RX slots for too long,
    /// over all connections.
    pub stalls: u64,
    /// The rate that limits what the guest may send; None: no limit.
    pub rate: Option<Rate>,
    /// Number of times frames had to wait for the rate limit since the connect.
    pub credit_waits: u64,
    /// The staging lists that were refused, each with its queue, its direction and the reason.
    pub refused: Vec<(usize, &'static str, String)>,
    /// The numbers of frames that the vif's ports dropped.
    pub port_drops: Vec<PortDrop>,
}

/// The memory by which a queue's frames reach the backend, for TX and RX.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SharedMemory {
    /// The paths, as they are shown, in the order in which they are asked.
    pub chains: [Vec<&'static str>; 2],
    /// The staging buffers of each direction; None: there are none.
    pub buffers: [Option<BufferNames>; 2],
    /// Pages that stay mapped after they were seen, of each direction; None: there are none.
    pub kept: [Option<MappedStats>; 2],
    /// The table of pages that the guest asked to map, for both directions; None: there is none.
    pub gref_table: Option<MappedStats>,
}

impl Deref for VifReport {
    type Target = DeviceReport;
    fn deref(&self) -> &DeviceReport {
        &self.device
    }
}

impl VifReport {
    /// Returns the report of this device, if it is a vif.
    fn of<P: Platform, T: Transport + 'static>(
        device: DeviceReport,
        served: &dyn ServedDevice<P, T>,
    ) -> Option<Self> {
        let s = (served as &dyn Any).downcast_ref::<VifInstance<P>>()?;
        let queue = |i| {
            let ((tx, rx), (tx_path, rx_path)) = (s.vif.stats(i), s.vif.path_names(i));
            (tx_path, tx, rx_path, rx)
        };
        let shared = |i| SharedMemory {
            chains: [0, 1].map(|dir| s.vif.chain(i, dir)),
            buffers: s.vif.buffers(i),
            kept: s.vif.kept(i),
            gref_table: s.vif.gref_table(i),
        };
        Some(Self {
            device,
            queues: (0..s.vif.nr_queues()).map(queue).collect(),
            shared: (0..s.vif.nr_queues()).map(shared).collect(),
            mapped_pages: s.vif.mapped_pages(),
            link: s.vif.link_is_up(),
            stalls: s.vif.stalls(),
            rate: s.vif.rate(),
            credit_waits: s.vif.credit_waits(),
            refused: s.vif.refused_lists().iter().map(|(q, d, why)| (*q, *d, why.shown())).collect(),
            port_drops: s.port_drops(),
        })
    }
}

impl<P: Platform, T: Transport + 'static> Backend<P, T> {
    /// Returns the reports of all vifs.
    pub fn reports(&self) -> Vec<VifReport> {
        self.devices().filter_map(|(device, served)| VifReport::of(device, served)).collect()
    }
}
