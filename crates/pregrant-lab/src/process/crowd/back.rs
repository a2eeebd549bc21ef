//! The process of a crowd's backend, whether it has vifs or disks: worker threads as `pregrant back` has them, and this thread for xenstore and orders.

use super::order::{BackOrder, CrowdReport, Spent};
use super::port::{Hall, Ports};
use crate::process::order::{Order, Posts, Report};
use crate::process::staff::{Meter, Staff};
use crate::process::{LoopbackBackend, ProcessArgs, Result, has_order, next_order, tell};
use pregrant::blk::path::PathName as DiskPath;
use pregrant::net::path::PathName;
use pregrant::platform::{Clock, Platform};
use pregrant_host::MonotonicClock;
use pregrant_host::drivers::{
    Backend, BackendConfig, Blk, BlkConfig, BrokerRecovery, DeviceClass, Mode, Net, NetConfig, Rest, Work,
    Worker,
};
use pregrant_host::loopback::Loopback;
use pregrant_host::wake::WakeOn;
use pregrant_host::xenstored::UnixTransport;
use std::error::Error;
use std::os::fd::AsFd;
use std::sync::Arc;

struct Host {
    backend: LoopbackBackend,
    hall: Arc<Hall>,
    staff: Arc<Staff>,
    meter: Meter,
    /// The number of the orders' descriptor among what wakes this thread.
    orders: usize,
    over: bool,
}

/// Serves, and carries out orders until there are no more.
pub fn play(args: &ProcessArgs) -> Result<()> {
    let hall = Arc::<Hall>::default();
    let (posts, class): (Posts, Box<dyn DeviceClass<Loopback, UnixTransport>>) = match next_order()? {
        Some(Order::CrowdBack(BackOrder::Serve { posts, path })) => (posts, Box::new(vifs(path, &hall))),
        Some(Order::CrowdBack(BackOrder::ServeDisks { posts, path })) => (posts, Box::new(disks(path))),
        Some(_) => return tell(&Report::Failed("it serves nobody yet".into())),
        None => return Ok(()),
    };
    let mut host = match Host::new(args, &posts, class, hall) {
        Ok(host) => host,
        Err(e) => return tell(&Report::Failed(e.to_string())),
    };
    tell(&Report::Crowd(CrowdReport::Done))?;
    Worker::new(Mode::Event).run(&mut host)
}

/// Vifs, each behind a port that checks what comes.
fn vifs(path: PathName, hall: &Arc<Hall>) -> Net<Loopback> {
    let mut config = NetConfig::default();
    config.vif.fallback = path;
    config.vif.foreign = path == PathName::Foreign;
    config.vif.guest_copy = path == PathName::GuestCopy;
    Net::new(config, Box::new(Ports(Arc::clone(hall))))
}

/// Disks, whose images the toolstack says.
fn disks(path: DiskPath) -> Blk<Loopback> {
    let mut config = BlkConfig::default();
    config.vbd.features.persistent = path == DiskPath::Persistent;
    if path != DiskPath::Persistent {
        config.vbd.fallback = path;
    }
    Blk::new(config)
}

impl Host {
    fn new(
        args: &ProcessArgs,
        posts: &Posts,
        class: Box<dyn DeviceClass<Loopback, UnixTransport>>,
        hall: Arc<Hall>,
    ) -> Result<Self> {
        let (platform, xs) = args.attach()?;
        platform.events().also_wake_on(xs.transport().as_fd())?;
        let orders = platform.events().also_wake_on(std::io::stdin().as_fd())?;
        let config = BackendConfig { recovery: Some(Box::new(BrokerRecovery)), ..BackendConfig::default() };
        let mut backend = Backend::new(platform, xs, config, vec![class])?;
        let staff = Staff::employ(&mut backend, posts)?;
        let meter = Meter::new(&backend, Some(&staff));
        Ok(Self { backend, hall, staff, meter, orders, over: false })
    }

    fn spent(&self) -> Spent {
        let stamp = self.meter.read();
        Spent {
            at_ns: MonotonicClock.now_ns(),
            cpu_ns: stamp.cpu_ns,
            workers_cpu_ns: stamp.workers.iter().map(|worker| worker.ns).collect(),
            devices_ns: self.backend.devices().map(|(said, _)| (said.id.front.0, said.worker_ns)).collect(),
            ops: stamp.counters,
            missed_wakeups: self.backend.missed_wakeups(),
        }
    }

    /// Carries out the next order.
    fn obey(&mut self) -> Result<()> {
        // Before anything that an answer costs.
        let spent = self.spent();
        let report = match next_order()? {
            None => {
                self.over = true;
                return Ok(());
            }
            Some(Order::CrowdBack(BackOrder::Echo(echoes))) => {
                self.hall.set_echoes(echoes);
                CrowdReport::Done
            }
            Some(Order::CrowdBack(BackOrder::Describe)) => {
                CrowdReport::Described(self.backend.platform().describe())
            }
            Some(Order::CrowdBack(BackOrder::Spent)) => CrowdReport::Spent(spent),
            Some(Order::CrowdBack(BackOrder::Seen)) => CrowdReport::Seen { came: self.hall.came(), spent },
            Some(_) => return tell(&Report::Failed("that is no order for who serves already".into())),
        };
        self.staff.in_place()?;
        tell(&Report::Crowd(report))
    }
}

impl Rest for Host {
    type Error = Box<dyn Error>;
    // As in `pregrant back`.
    const CONTROL_AFTER_SLEEP: bool = false;

    fn control(&mut self) -> Result<()> {
        self.backend.control()?;
        Ok(())
    }
    fn sleep(&mut self) -> Result<()> {
        if !self.backend.control()? {
            self.backend.sleep(None);
            // What ended the sleep before this one may be told of still, if this was none.
            if self.backend.platform().events().woken_by(self.orders) && has_order()? {
                self.obey()?;
            }
        }
        Ok(())
    }
}

impl Work for Host {
    fn round(&mut self) -> Result<bool> {
        Ok(self.backend.round())
    }
    fn is_over(&mut self) -> bool {
        self.over
    }
}
