//! `pregrant back` on a real Xen: in dom0 or in a driver domain, through /dev/xen.
//!
//! ```text
//!   guests' netfronts <--> Backend <--> taps vif5.0, vif6.0 ... --> bridges of this machine      (or the switch)
//!   /run/pregrant/backend.lock   one backend a domain
//!   /run/pregrant-back/vif5.0/   what outlives this process
//!   /run/pregrant-back/back-0.status    what `pregrant top` reads
//! ```
//! Where the kernel's netback, or the module of linux/back, is loaded too, the vifs that are served
//! here are kept from it, and the others are left to it.

use super::handover::Handover;
use super::{BackArgs, Port, Result, at_switch, capture_files, captured, classes, taps};
use crate::daemon::Serves;
use crate::daemon::attachment::{Attached, devices_of};
use crate::daemon::kernel::KeptOff;
use crate::daemon::xen::{TOOLSTACKS, xenstore_of_xen};
use crate::screen;
use crate::stop::Stop;
use log::Level;
use pregrant::DomId;
use pregrant::net::back::vif::HOTPLUG_STATUS;
use pregrant::net::features::{BackFeatures, memory_is_active, unknown_to_netback};
use pregrant::port::Offloads;
use pregrant::xenbus::bus::{OwnKeys, StoreBus};
use pregrant::xenbus::key_source::Pairs;
use pregrant::xenbus::{Class, Device, DeviceError, DeviceId, Side, XenbusState};
use pregrant::xenstore::Client;
use pregrant_host::UnixTransport;
use pregrant_host::drivers::net::port_provider::{INTERFACE, Notes, Ports, usual_name};
use pregrant_host::drivers::net::taps::{plug_in, remove_left};
use pregrant_host::drivers::recovery::{FileRecovery, Lock};
use pregrant_host::drivers::{DeviceChoice, Hotplug, HotplugConfig, PortProvider, RemoteSide};
use pregrant_host::linux::{KernelBack, KernelDriver};
use pregrant_host::ports::netdev_ioctl::Interface;
use pregrant_host::ports::switch::Switch;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

const SERVES: Serves = Serves::Vifs;
/// The time that the kernel may need to connect a vif that was given back to it.
const DYING: Duration = Duration::from_secs(1);
/// The time after which a guest's frames are let go although its interface does not forward. Linux
/// looks at new links once a second.
const PLUGGED: Duration = Duration::from_secs(10);
/// The time within which a guest's driver sees a state.
const SEEN: Duration = Duration::from_millis(500);

pub(super) fn run(args: &BackArgs) -> Result<()> {
    let stop = Stop::on_signals()?;
    let (mut xs, domid) = xenstore_of_xen(
        "`pregrant-lab loopback serve --dir DIR --guest 5`, then `pregrant back --loopback DIR`",
    )?;
    if args.take.is_empty() && !args.give_back.is_empty() {
        return give_back(domid, &mut xs, &args.give_back);
    }
    let files = capture_files(args)?;
    let Some((mut attached, mut owner)) = Attached::on_xen((xs, domid), SERVES, &args.daemon, stop)? else {
        return Ok(());
    };
    let kept_off = keep_kernel_off(args)?;
    owner.succeed();
    attached.say_missing(&args.vif)?;
    let take = Rc::new(RefCell::new(args.take.clone()));
    let taken = Rc::clone(&take);
    attached.leave(Box::new(move |id| had_by_kernel(&KernelBack::of(Class::VIF), &taken.borrow(), id)));
    let switch = Switch::new();
    let usual = if domid == TOOLSTACKS { Hotplug::Toolstack } else { Hotplug::Own };
    let hotplug = args.hotplug.map_or(usual, Into::into);
    let provider: Box<dyn PortProvider> = match args.port(false) {
        Port::Switch => at_switch(&switch, args),
        Port::Tap => taps(args, hotplug)?,
    };
    let provider = captured(provider, files, args)?;
    let provider = Box::new(Taken {
        kernel: KernelBack::of(Class::VIF),
        xs: Client::new(UnixTransport::find()?),
        take,
        taken: Vec::new(),
        inner: provider,
    });
    if hotplug != Hotplug::Own && args.hotplug_socket.is_some() {
        // LOG: once, at the start.
        log::info!(
            "--hotplug-socket is not used: the toolstack runs the vifs' scripts here (--hotplug self changes that)"
        );
    }
    attached.plugged_by_toolstack(hotplug == Hotplug::Toolstack);
    let classes = classes(args, hotplug, args.chosen(), provider);
    let mut daemon = attached.daemon(&args.daemon, classes, Some(switch), KeptOff::watching(&kept_off))?;
    daemon.run(args.daemon.close)?;
    drop(daemon); // its taps and channels
    if args.give_back.is_empty() {
        return Ok(());
    }
    give_back(domid, &mut Client::new(UnixTransport::find()?), &args.give_back)
}

/// A remote side for vifs that a driver of the kernel serves until the last moment.
struct Taken {
    kernel: KernelBack,
    xs: Client<UnixTransport>,
    /// Devices that must be taken from the kernel, unless they were just given back to it.
    take: Rc<RefCell<Vec<DeviceChoice>>>,
    /// Devices that were unbound from the kernel's driver and have not been connected since.
    taken: Vec<DeviceId>,
    inner: Box<dyn PortProvider>,
}

impl Taken {
    /// Takes a vif from this driver, once the frames that its guest sent are answered.
    fn unbind(&mut self, driver: KernelDriver, id: &DeviceId) -> Result<Notes> {
        let hold = Handover::begin(Device::new(*id, Side::Back), &mut self.xs)?;
        hold.drain();
        let unbound = self.kernel.unbind(driver, id);
        let mut notes = let_go(hold, &mut self.xs);
        unbound?;
        if driver == KernelDriver::Module
            && let Err(e) = self.ask_again(id)
        {
            notes
                .push((Level::Warn, format!("what its guest asked of the kernel's module is not kept: {e}")));
        }
        Ok(notes)
    }

    /// Writes state 2, which becomes 4 as the rings are taken up: a front with a control ring then
    /// asks again for what it has asked of the module there (docs/protocol 1.1).
    fn ask_again(&mut self, id: &DeviceId) -> Result<()> {
        let device = Device::new(*id, Side::Back);
        if device.get::<u32, _>(&mut self.xs, "ctrl-ring-ref")?.is_some() {
            device.set_state(&mut self.xs, XenbusState::InitWait)?;
            std::thread::sleep(SEEN);
        }
        Ok(())
    }
}

/// Lets the kernel read the guest's frames again. The vif has moved, even if a key in xenstore says
/// otherwise.
fn let_go(hold: Handover, xs: &mut Client<UnixTransport>) -> Notes {
    let note = |e| (Level::Warn, format!("cannot restore the toolstack's value of the key `rate`: {e}"));
    hold.let_go(xs).err().map(note).into_iter().collect()
}

impl RemoteSide for Taken {
    fn inner_remote(&mut self) -> Option<&mut dyn RemoteSide> {
        Some(&mut *self.inner)
    }
}

impl PortProvider for Taken {
    fn inner_provider(&mut self) -> Option<&mut dyn PortProvider> {
        Some(&mut *self.inner)
    }
    fn is_kernels(&mut self, id: &DeviceId) -> bool {
        // One that was unbound and is tried again, for its channels are not free yet, is as the
        // kernel left it.
        let taken = self.taken.contains(id);
        taken || is_named(&self.take.borrow(), id) && self.kernel.has(id)
    }
    fn found(
        &mut self,
        id: &DeviceId,
        place: &HotplugConfig,
        live: bool,
    ) -> std::result::Result<Notes, String> {
        if let Some(driver) = self.kernel.driver(id).filter(|_| self.is_kernels(id)) {
            let mut notes = self.unbind(driver, id).map_err(|e| e.to_string())?;
            self.taken.push(*id);
            notes.insert(0, (Level::Info, format!("taken from {driver}")));
            return match self.inner.found(id, place, live) {
                Ok(more) => {
                    notes.extend(more);
                    Ok(notes)
                }
                Err(why) => {
                    // A running guest: it is not to be left with no one, nor to change hands again
                    // and again.
                    self.take.borrow_mut().retain(|c| !c.names(id.front.0, id.handle));
                    self.taken.retain(|taken| taken != id);
                    match self.kernel.bind(driver, id) {
                        Ok(()) => Err(format!("{why}; {driver} has it again")),
                        Err(e) => Err(format!(
                            "{why}; {driver} does not take the vif back: {e}; no backend serves it"
                        )),
                    }
                }
            };
        }
        // Of one that was killed while a vif changed hands.
        let mut notes = match Handover::left(Device::new(*id, Side::Back), &mut self.xs) {
            Ok(Some(left)) => let_go(left, &mut self.xs),
            // Its guest stays held, for a backend that knows what its rate was.
            Err(e @ DeviceError::Key(_)) => return Err(e.to_string()),
            _ => Notes::new(),
        };
        notes.extend(self.inner.found(id, place, live)?);
        Ok(notes)
    }
    fn connected(
        &mut self,
        id: &DeviceId,
        queues: usize,
        front: Offloads,
    ) -> std::result::Result<Ports, String> {
        self.taken.retain(|taken| taken != id);
        self.inner.connected(id, queues, front)
    }
}

/// Keeps the kernel's netback from binding devices that it does not have yet. None: the kernel has
/// no backends.
fn keep_kernel_off(args: &BackArgs) -> Result<Option<Rc<KeptOff>>> {
    let kernel = KernelBack::of(Class::VIF);
    if let (None, Some(vif)) = (kernel.loaded(), args.take.first()) {
        return Err(format!(
            "--take {}: the kernel has no netback (neither xen-netback nor pregrant_back is loaded), so there is nothing to take; to serve \
             the vif use --vif, or neither",
            vif.front
        )
        .into());
    }
    KeptOff::begin(SERVES, args.chosen())
}

/// Returns true if the device is among the chosen ones.
fn is_named(chosen: &[DeviceChoice], id: &DeviceId) -> bool {
    chosen.iter().any(|c| c.names(id.front.0, id.handle))
}

/// Returns the reason why a vif is left to the kernel. None: the kernel does not have it, or it
/// must be taken over.
fn had_by_kernel(kernel: &KernelBack, take: &[DeviceChoice], id: &DeviceId) -> Option<String> {
    kernel.driver(id).filter(|_| !is_named(take, id)).map(|driver| {
        let (front, handle) = (id.front.0, id.handle);
        format!(
            "{driver} has it. To take it over while its guest runs: pregrant back --take {front}.{handle}"
        )
    })
}

/// Binds the vifs that this process does not serve to the kernel's driver, which continues their
/// live rings.
fn give_back(domid: DomId, xs: &mut Client<UnixTransport>, chosen: &[DeviceChoice]) -> Result<()> {
    let kernel = KernelBack::of(Class::VIF);
    let Some(driver) = kernel.loaded() else {
        return Err("the kernel has no netback: modprobe xen-netback, or insmod pregrant_back.ko".into());
    };
    let vifs = devices_of(SERVES, domid, xs, chosen)?;
    if vifs.is_empty() {
        return Err(missing(&devices_of(SERVES, domid, xs, &[])?, domid).into());
    }
    let mut failed = None;
    for id in vifs {
        match give_one(&kernel, driver, &id, xs).map_err(|e| format!("{id}: not given back to {driver}: {e}"))
        {
            Ok(said) => screen::print(format_args!("{id}: {said}"))?,
            // The others' guests wait too.
            Err(why) => {
                if let Some(before) = failed.replace(why) {
                    screen::print(format_args!("{before}"))?;
                }
            }
        }
    }
    failed.map_or(Ok(()), |why| Err(why.into()))
}

/// Formats the error that none of the named devices exists, with the devices that do exist.
fn missing(there: &[DeviceId], domid: DomId) -> String {
    let there: Vec<_> = there.iter().map(|id| format!("{}.{}", id.front.0, id.handle)).collect();
    match &there[..] {
        [] => format!("there is no such vif, and no guest has one whose backend is {domid}"),
        _ => format!("there is no such vif; {domid} is the backend of {}", there.join(", ")),
    }
}

/// Gives one vif back to the kernel, and returns the result as text.
fn give_one(
    kernel: &KernelBack,
    driver: KernelDriver,
    id: &DeviceId,
    xs: &mut Client<UnixTransport>,
) -> Result<String> {
    let device = Device::new(*id, Side::Back);
    if let Some(has) = kernel.driver(id) {
        // The module takes up what is left as it is loaded, and no script comes for its interface.
        if has == KernelDriver::Module && is_unplugged(&device, xs)? {
            let (place, _) = HotplugConfig::read(&device, xs)?;
            let hold = Handover::begin(device.clone(), xs)?;
            let given = plug_in_new(id, &place);
            let reported = device.set(xs, HOTPLUG_STATUS, "connected");
            log_notes(id, let_go(hold, xs));
            given?;
            reported?;
            return Ok(format!("{has} has it already; its interface is plugged in"));
        }
        if let Some(left) = Handover::left(device, xs)? {
            log_notes(id, let_go(left, xs));
        }
        return Ok(format!("{has} has it already"));
    }
    if matches!(device.state(xs)?, XenbusState::Closing | XenbusState::Closed) {
        return Ok("it is closed, and left alone".into());
    }
    let _lock = Lock::take(&FileRecovery::new(Serves::Vifs.own_dir()).lock_of(id))
        .map_err(|e| format!("{e} (its vifs stay connected meanwhile)"))?;
    if driver == KernelDriver::Linux {
        refuse_staged(&device, xs)?;
    }
    // A tap of this name would be in the way of the kernel's interface.
    let (place, _) = HotplugConfig::read(&device, xs)?;
    remove_left(&place)?;
    device.unset(xs, INTERFACE)?;
    let hold = Handover::begin(device.clone(), xs)?;
    let forgotten = match driver {
        KernelDriver::Linux => device.replace_in_transaction(xs, &Pairs::new(), unknown_to_netback),
        KernelDriver::Module => Ok(()), // it knows them all, and goes on with what they say
    };
    let bound = forgotten.map_err(Into::into).and_then(|()| Ok(kernel.bind(driver, id)?));
    let given = bound.and_then(|()| plug_in_new(id, &place));
    // Netback took the key when it was unbound, and does not say 4 without it.
    let reported = device.set(xs, HOTPLUG_STATUS, "connected");
    log_notes(id, let_go(hold, xs));
    given?;
    reported?;
    let until = Instant::now() + DYING;
    while device.state(xs)? != XenbusState::Connected && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(format!("given to {driver}"))
}

/// Refuses to give back a vif whose front sends from staging buffers. The front would continue to
/// do so, and netback would read the buffers' numbers as grants.
fn refuse_staged(device: &Device, xs: &mut Client<UnixTransport>) -> Result<()> {
    if !matches!(device.peer_state(xs)?, XenbusState::Connected | XenbusState::Reconfiguring) {
        return Ok(());
    }
    let mut bus = StoreBus { device, xs };
    let mut own = OwnKeys(&mut bus);
    let queues = BackFeatures::read(&mut own)?.max_queues;
    if memory_is_active(&mut own, queues)? {
        return Err(
            "its front uses staging grants or a data ring, which the kernel's netback does not know; stop the front in the guest, \
             give the vif back, and start the front again (until then `pregrant back` serves it)"
                .into(),
        );
    }
    Ok(())
}

/// Returns true if the interface of a vif that is not closed is down, or not there yet.
fn is_unplugged(device: &Device, xs: &mut Client<UnixTransport>) -> Result<bool> {
    let is_up = Interface::new(&usual_name(&device.id()))?.is_up().unwrap_or(false);
    Ok(!is_up && matches!(device.state(xs)?, XenbusState::InitWait | XenbusState::Connected))
}

/// Logs notes about a vif that moves between the kernel and this process.
fn log_notes(id: &DeviceId, notes: Notes) {
    for (level, text) in notes {
        // LOG: of a command that ends with it; no vif is served.
        log::log!(level, "{id}: {text}");
    }
}

/// Connects the interface of a vif that a driver of the kernel has just got to the network.
fn plug_in_new(id: &DeviceId, place: &HotplugConfig) -> Result<()> {
    // No script comes for an interface of a vif that was connected before, nor renames it.
    let interface = Interface::new(&usual_name(id))?;
    let until = Instant::now() + PLUGGED;
    while interface.index().is_err() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    plug_in(&interface, place)?;
    while !interface.forwards() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
