//! `pregrant back` on a real Xen: in dom0 or in a driver domain, through /dev/xen.
//!
//! ```text
//!   guests' netfronts <--> Backend <--> taps vif5.0, vif6.0 ... --> bridges of this machine      (or the switch)
//!   /run/pregrant/backend.lock   one backend a domain
//!   /run/pregrant/vif5.0/        what outlives this process
//!   /run/pregrant/back-0.status  what `pregrant top` reads
//! ```
//! Where the kernel's netback is loaded too, the vifs that are served here are kept from it, and the others are left to it.

use super::{BackArgs, Daemon, Port, Result, at_switch};
use crate::screen;
use crate::status_teller::StatusTeller;
use crate::stop::Stop;
use pregrant::DomId;
use pregrant::net::features::BackFeatures;
use pregrant::platform::Platform;
use pregrant::port::{FramePort, Offloads};
use pregrant::xenbus::device::own_domid;
use pregrant::xenbus::{Class, Device, DeviceId, Side};
use pregrant::xenstore::Client;
use pregrant_host::drivers::succession::{FileSuccession, Lock, LockError};
use pregrant_host::drivers::taps::plug_in;
use pregrant_host::drivers::{Backend, Chosen, FarSide, Hotplug, Place, Plugged, Taps};
use pregrant_host::linux::{KernelNetback, Xen};
use pregrant_host::ports::interface::Interface;
use pregrant_host::ports::switch::Switch;
use pregrant_host::wake::WakeOn;
use pregrant_host::xenstored::UnixTransport;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Where a backend keeps what others find.
pub const RUN_DIR: &str = "/run/pregrant";
/// The domain that has the toolstack.
const DOM0: DomId = DomId(0);
/// How long a predecessor that was just killed may take to be gone.
const DYING: Duration = Duration::from_secs(1);
/// Between two looks at what the kernel has.
const LOOK: Duration = Duration::from_millis(100);

/// Serves until a signal.
pub(super) fn run(args: &BackArgs) -> Result<()> {
    let stop = Stop::on_signals()?;
    let transport = UnixTransport::find().map_err(|e| {
        format!("{e}. Not on Xen? `pregrant loopback serve --dir DIR --guest 5`, then `pregrant back --loopback DIR`")
    })?;
    let mut xs = Client::new(transport);
    let domid = own_domid(&mut xs)?;
    if args.take.is_empty() && !args.give_back.is_empty() {
        return give_back(domid, &mut xs, &args.give_back);
    }
    let platform = Xen::open(domid)?;
    platform.ready_for_back()?;
    let Some(_owner) = own_domain(args.wait, &stop)? else { return Ok(()) };
    let status = StatusTeller::on_xen(Path::new(RUN_DIR), domid.0)?;
    platform.events().also_wake_on(xs.transport().as_fd())?;
    platform.events().also_wake_on(stop.as_fd())?;
    let kept_off = keep_kernel_off(domid, &mut xs, args)?;
    let switch = Switch::new();
    let far: Box<dyn FarSide> = match args.port.unwrap_or(Port::Tap) {
        Port::Switch => at_switch(&switch),
        Port::Tap => {
            let taps = Taps::new()?;
            platform.events().also_wake_on(taps.wake().as_fd())?;
            Box::new(taps)
        }
    };
    let far = Box::new(Taken { kernel: KernelNetback::default(), take: args.take.clone(), inner: far });
    let mut backend = Backend::new(platform, xs, BackFeatures::default(), args.path.into(), far)?;
    backend.succeed(Box::new(FileSuccession::new(RUN_DIR)));
    let usual = if domid == DOM0 { Hotplug::Toolstack } else { Hotplug::Own };
    backend.set_hotplug(args.hotplug.map_or(usual, Into::into));
    backend.choose(args.chosen());
    let _ = screen::print(format_args!(
        "backend of {domid}, process {}: ready; status: pregrant top",
        std::process::id()
    ));
    let between = looking_after(&kept_off);
    let mut daemon = Daemon { backend, switch, status, stop, between };
    daemon.run(args.mode.into(), args.close)?;
    drop(daemon); // its taps and channels
    if args.give_back.is_empty() {
        return Ok(());
    }
    give_back(domid, &mut Client::new(UnixTransport::find()?), &args.give_back)
}

/// A far side whose vifs the kernel's netback has until the last moment.
struct Taken {
    kernel: KernelNetback,
    take: Vec<Chosen>,
    inner: Box<dyn FarSide>,
}

impl FarSide for Taken {
    fn found(&mut self, id: &DeviceId, place: &Place, live: bool) -> std::result::Result<(), String> {
        if self.take.iter().any(|c| c.names(id.front.0, id.handle)) && self.kernel.has(id) {
            self.kernel.unbind(id).map_err(|e| e.to_string())?;
            log::info!("{id}: taken from the kernel's netback");
        }
        self.inner.found(id, place, live)
    }
    fn plug(&mut self, id: &DeviceId, place: &Place) -> Plugged {
        self.inner.plug(id, place)
    }
    fn connected(&mut self, id: &DeviceId, queues: usize, front: Offloads) -> Vec<Box<dyn FramePort>> {
        self.inner.connected(id, queues, front)
    }
    fn link(&mut self, id: &DeviceId, up: bool) {
        self.inner.link(id, up);
    }
    fn closed(&mut self, id: &DeviceId) {
        self.inner.closed(id);
    }
    fn removed(&mut self, id: &DeviceId) {
        self.inner.removed(id);
    }
    fn turn(&mut self) {
        self.inner.turn();
    }
}

impl BackArgs {
    /// The vifs that are served; all when there are none.
    fn chosen(&self) -> Vec<Chosen> {
        self.vif.iter().chain(&self.take).copied().collect()
    }
}

/// Makes this process the domain's only backend. None: it was told to stop while it waited.
fn own_domain(wait: bool, stop: &Stop) -> Result<Option<Lock>> {
    let path = Path::new(RUN_DIR).join("backend.lock");
    let dying = Instant::now() + DYING;
    let mut said = false;
    loop {
        match Lock::take(&path) {
            Ok(lock) => return Ok(Some(lock)),
            Err(LockError::Held { .. }) if stop.asked() => return Ok(None),
            Err(LockError::Held { owner, .. }) if wait => {
                if !std::mem::replace(&mut said, true) {
                    let _ = screen::print(format_args!(
                        "process {owner} serves this domain; waiting for its end"
                    ));
                }
            }
            Err(LockError::Held { .. }) if Instant::now() < dying => {}
            Err(LockError::Held { owner, .. }) => {
                return Err(format!(
                    "this domain has a backend already: process {owner}. Stop it first (its vifs stay connected, and the \
                     next backend takes them up), or start this one with --wait"
                )
                .into());
            }
            Err(e) => return Err(e.into()),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The kernel's autoprobe, off until this is dropped; and what it is off for.
struct KeptOff {
    kernel: KernelNetback,
    chosen: Vec<Chosen>,
}

impl Drop for KeptOff {
    fn drop(&mut self) {
        if let Err(e) = self.kernel.set_autoprobe(true) {
            log::warn!("the kernel takes no new devices by itself: {e}");
        }
    }
}

/// Takes from the kernel's netback what is to be served here, and keeps it off. None: the kernel has none.
fn keep_kernel_off(
    domid: DomId,
    xs: &mut Client<UnixTransport>,
    args: &BackArgs,
) -> Result<Option<std::rc::Rc<KeptOff>>> {
    let kernel = KernelNetback::default();
    if !kernel.is_loaded() {
        if let Some(vif) = args.take.first() {
            return Err(format!(
                "--take {}: the kernel has no netback (xen-netback is not loaded), so there is nothing to take; to serve \
                 the vif use --vif, or neither",
                vif.front
            )
            .into());
        }
        return Ok(None);
    }
    // First of all: what comes from here on is nobody's until it is looked at.
    kernel.set_autoprobe(false)?;
    let kept = KeptOff { kernel: kernel.clone(), chosen: args.chosen() };
    for id in vifs_of(domid, xs, &args.chosen())? {
        let taken = args.take.iter().any(|c| c.names(id.front.0, id.handle));
        if kernel.has(&id) && !taken {
            let (front, handle) = (id.front.0, id.handle);
            return Err(format!(
                "{id}: the kernel's netback has it. To take it over: pregrant back --take {front}.{handle}; to leave it \
                 there, name others with --vif"
            )
            .into());
        }
    }
    Ok(Some(std::rc::Rc::new(kept)))
}

/// What is to be done in control turns so that the kernel gets the devices that are not ours.
fn looking_after(kept_off: &Option<std::rc::Rc<KeptOff>>) -> Box<dyn FnMut()> {
    let Some(kept) = kept_off.clone() else { return Box::new(|| {}) };
    let mut looked = Instant::now() - LOOK;
    Box::new(move || {
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            let ours =
                |front, handle| kept.chosen.is_empty() || kept.chosen.iter().any(|c| c.names(front, handle));
            kept.kernel.probe_others(ours);
        }
    })
}

/// The domain's vifs that are chosen; all when nothing is.
fn vifs_of(back: DomId, xs: &mut Client<UnixTransport>, chosen: &[Chosen]) -> Result<Vec<DeviceId>> {
    let mut found = Vec::new();
    let list = |xs: &mut Client<UnixTransport>, path: &str| match xs.directory(path) {
        Err(e) if e.is_not_found() => Ok(Vec::new()),
        other => other,
    };
    for front in list(xs, "backend/vif")? {
        for handle in list(xs, &format!("backend/vif/{front}"))? {
            let (Ok(front), Ok(handle)) = (front.parse(), handle.parse()) else { continue };
            if chosen.is_empty() || chosen.iter().any(|c| c.names(front, handle)) {
                found.push(DeviceId { class: Class::Vif, front: DomId(front), back, handle });
            }
        }
    }
    Ok(found)
}

/// Hands vifs that nobody serves to the kernel's netback, which goes on with their live rings.
fn give_back(domid: DomId, xs: &mut Client<UnixTransport>, chosen: &[Chosen]) -> Result<()> {
    let kernel = KernelNetback::default();
    if !kernel.is_loaded() {
        return Err("the kernel has no netback: modprobe xen-netback".into());
    }
    let vifs = vifs_of(domid, xs, chosen)?;
    if vifs.is_empty() {
        return Err("there is no such vif; `pregrant doctor` lists those that there are".into());
    }
    let files = FileSuccession::new(RUN_DIR);
    for id in vifs {
        if kernel.has(&id) {
            screen::print(format_args!("{id}: the kernel's netback has it already"))?;
            continue;
        }
        let _lock = Lock::take(&files.lock_of(&id))
            .map_err(|e| format!("{id}: {e} (its vifs stay connected meanwhile)"))?;
        // A tap of this name would be in the way of the kernel's interface.
        Taps::new()?.removed(&id);
        kernel.bind(&id)?;
        // No script comes for an interface of a vif that was connected before.
        let place = Place::read(&Device::new(id, Side::Back), xs)?;
        let interface = Interface::new(&place.name)?;
        let until = Instant::now() + DYING;
        while interface.index().is_err() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Its ring is full of what the guest sent meanwhile. The kernel polls it as soon as it is up, which is before the
        // bridge forwards for it: a poll in a thread comes a moment later.
        interface.set_threaded(true);
        let plugged = plug_in(&interface, &place);
        interface.set_threaded(false);
        plugged?;
        screen::print(format_args!("{id}: given to the kernel's netback"))?;
    }
    Ok(())
}
