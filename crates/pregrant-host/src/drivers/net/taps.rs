//! Each vif as a tap of this machine: the remote side of a driver domain whose kernel routes or
//! bridges.
//!
//! ```text
//!   found      vif5.0 is made, without a link     (the toolstack's vif-bridge takes it from there)
//!   plug       runs `script` (see `hotplug`), or joins `bridge`   (where this process is asked to)
//!   connected  a port for each queue
//!   link       the carrier: frames for a guest that takes none are dropped before they come here
//!   check      was it renamed, moved, removed? the first two are noted, and a removed one is made again,
//!              in its `bridge` where neither a script nor the operator had plugged it in
//!   closed     the link is down
//!   removed    vif5.0 is gone; its script runs once there is room for it, and `failures` has what that came to
//! ```
//! An interface outlives the process, with its bridge and addresses; the next backend attaches to
//! it, by its number where it was renamed meanwhile. A tap wakes the worker of its queue
//! ([`PortReadiness`](crate::ports::port_readiness::PortReadiness)), once for each new frame and
//! not as long as there are frames: a guest without free slots does not keep its backend busy.
//!
//! What a guest may do: as for a [tap](crate::ports::tap).

use super::hotplug::{Capacity, RUNS_MAX, Run, What};
use super::port_provider::{Hotplug, HotplugConfig, Notes, Plugged, PortProvider, Ports, usual_name};
use crate::drivers::device_class::RemoteSide;
use crate::ports::mtu_limit::{MtuChange, MtuLimit};
use crate::ports::netdev_ioctl::Interface;
use crate::ports::steering::Steered;
use crate::ports::tap::{Tap, TransportKind, Whereabouts};
use pregrant::port::{FramePort, Offloads};
use pregrant::xenbus::DeviceId;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The address that Linux's netback gives its interfaces. It is the highest one, so that no bridge
/// uses it as its own address.
const OWN_MAC: [u8; 6] = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff];

/// Interval of checks of the scripts of vifs that are gone.
const SCRIPT_CHECK: Duration = Duration::from_millis(10);

/// The time within which a bridge must forward for a port whose link came up. (The kernel checks
/// links once a second, and may be late.)
const FORWARDS: Duration = Duration::from_secs(3);

/// The taps of all vifs of a backend.
pub struct Taps {
    taps: BTreeMap<(u16, u32), Placed>,
    /// The rest of [`FORWARDS`]. All vifs share that time, since no queue is served while one
    /// of them waits.
    patience: Duration,
    /// Scripts of vifs that are gone, in the order in which the vifs went.
    ending: Vec<Ending>,
    /// Hotplugs that have failed since the last call.
    failures: Vec<(DeviceId, String)>,
    /// Time at which the hotplug service last refused a connection.
    refused: Option<Instant>,
    way: TransportKind,
    /// The process that connects vifs to the network.
    hotplug: Hotplug,
    /// The socket of the process that runs scripts; None: this process runs them.
    scripts: Option<PathBuf>,
}

struct Placed {
    tap: Tap,
    place: HotplugConfig,
    script: Option<Run>,
    /// Descriptors of ports that were just created. A worker polls them.
    readable: Vec<OwnedFd>,
    /// True if a script connected the vif to the network, and must be run again to undo that.
    scripted: bool,
    /// True if a predecessor created the vif, and may have run its script.
    reattached: bool,
    /// The MTU that the interface had before it was lowered for the guest.
    mtu_limit: MtuLimit,
    /// True if the link has just come up, and the bridge may not forward yet.
    settling: bool,
    /// The link is up.
    is_up: bool,
    /// The state of the interface as last logged: where it is, or that it was removed and why it
    /// was not created again.
    seen: Whereabouts,
    failed: Option<String>,
}

/// A vif that was removed, and whose script must still be run or is running.
struct Ending {
    id: DeviceId,
    name: String,
    run: Run,
}

impl Placed {
    /// Lowers the interface's MTU to `most`, or restores the former one.
    fn limit_mtu(&mut self, most: Option<u32>) -> io::Result<Notes> {
        let interface = self.tap.interface();
        let name = interface.name();
        let note = self.mtu_limit.apply(&interface, most)?.map(|change| match change {
            MtuChange::Limited { from, to } => {
                let text = format!(
                    "the MTU of {name} is {to} now, and was {from}: the guest's front takes no packets longer than that (it does not \
                     write feature-sg), and longer frames for it are dropped"
                );
                (log::Level::Warn, text)
            }
            MtuChange::Restored(mtu) => {
                let text =
                    format!("the MTU of {name} is {mtu} again: the guest's front takes packets of any length");
                (log::Level::Info, text)
            }
        });
        Ok(note.into_iter().collect())
    }

    /// Checks the interface, and returns what has changed since the last call.
    fn check(&mut self, hotplug: Hotplug) -> Notes {
        let now = self.tap.whereabouts();
        if now == Whereabouts::Gone {
            return self.make_again(hotplug);
        }
        if now == self.seen {
            return Notes::new();
        }
        let name = self.tap.name();
        let text = match &now {
            Whereabouts::Here(_) => {
                format!(
                    "its interface is called {name} now; it is served as before, and the next backend finds it"
                )
            }
            _ => format!(
                "its interface {name} was moved to another network namespace: its frames go on, but its MTU and its bridge \
                 are not changed from here, and the next backend does not find it"
            ),
        };
        self.seen = now;
        vec![(log::Level::Info, text)]
    }

    /// Makes a removed interface again, with the same descriptors, which the workers use. It joins
    /// the vif's `bridge`, unless a script did that before, or no one does it.
    fn make_again(&mut self, hotplug: Hotplug) -> Notes {
        let name = self.tap.name();
        if let Err(e) = self.tap.make_again() {
            let text = format!(
                "its interface {name} was removed, so its frames are dropped, and it cannot be made again: {e}"
            );
            let is_news = self.failed.as_ref() != Some(&text);
            self.failed = Some(text.clone());
            return if is_news { vec![(log::Level::Warn, text)] } else { Notes::new() };
        }
        (self.failed, self.seen) = (None, Whereabouts::Here(name.clone()));
        // The new interface has the toolstack's MTU; the guest's limit is applied later.
        self.mtu_limit = MtuLimit::default();
        let interface = self.tap.interface();
        let script = script_of(&self.place);
        let is_plugged_in = script.is_none() && hotplug != Hotplug::None;
        let set_up = || -> io::Result<()> {
            self.tap.persist(true)?;
            prepare(&interface, &self.place)?;
            if is_plugged_in {
                plug_in(&interface, &self.place)?;
            }
            self.tap.carrier(self.is_up)
        };
        let rest = match (set_up(), &self.place.bridge) {
            (Err(e), _) => format!("; {e}"),
            (Ok(()), Some(bridge)) if is_plugged_in => format!(", in bridge {bridge}"),
            (Ok(()), _) => String::new(),
        };
        if hotplug == Hotplug::None {
            let text = format!(
                "its interface {name} was removed, and is made again, down and in no bridge{rest}; set its bridge, addresses, \
                 routes and rules again, and take it up (ip link set {name} up), for with --hotplug none this process does not"
            );
            return vec![(log::Level::Warn, text)];
        }
        if let Some(script) = script {
            let text = format!(
                "its interface {name} was removed, and is made again, down and in no bridge{rest}; to plug it in, detach the vif \
                 and attach it again, for its script {script} is not run again"
            );
            return vec![(log::Level::Warn, text)];
        }
        let text = format!(
            "its interface {name} was removed, and is made again{rest}; set its addresses, routes and rules again, or detach \
             the vif and attach it again"
        );
        vec![(log::Level::Warn, text)]
    }

    /// Returns the script that undoes what an earlier script did, if there was one. It is returned
    /// at most once.
    fn undo(&mut self, scripts: Option<&PathBuf>) -> Option<Run> {
        if let Some(run) = self.script.as_mut().filter(|run| run.what() != What::Offline) {
            run.end();
            self.scripted = run.has_started();
            self.script = None;
        }
        let script = script_of(&self.place)?;
        let run = || Run::new(script, &self.place, What::Offline, scripts.cloned());
        std::mem::take(&mut self.scripted).then(run)
    }
}

impl Taps {
    /// Creates the provider without any vif.
    ///
    /// # Errors
    /// The process has no descriptor left, or the kernel has no taps or refuses them to this
    /// process.
    pub fn new() -> io::Result<Self> {
        if let Err(e) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
            let text = format!(
                "/dev/net/tun: {e}; no taps can be made: modprobe tun, run as root, or use --port switch"
            );
            return Err(io::Error::new(e.kind(), text));
        }
        let (taps, ending, failures) = (BTreeMap::new(), Vec::new(), Vec::new());
        let (way, hotplug, patience) = (TransportKind::default(), Hotplug::Own, FORWARDS);
        Ok(Self { taps, patience, ending, failures, refused: None, way, hotplug, scripts: None })
    }

    /// Sets how frames get to and from the taps of vifs that are found from now on. If that must be
    /// measured, it is measured now, since a guest would otherwise wait for it.
    pub fn set_way(&mut self, way: TransportKind) {
        way.measure();
        self.way = way;
    }

    /// Sets the process that connects vifs to the network; the default is this process.
    pub fn set_hotplug(&mut self, hotplug: Hotplug) {
        self.hotplug = hotplug;
    }

    /// Makes the service at this socket run scripts instead of this process.
    pub fn ask_for_scripts_at(&mut self, socket: PathBuf) {
        self.scripts = Some(socket);
    }

    /// Returns the number of scripts that are running.
    fn nr_runs(&self) -> usize {
        let placed = self.taps.values().filter_map(|placed| placed.script.as_ref());
        placed.chain(self.ending.iter().map(|ending| &ending.run)).filter(|run| run.has_started()).count()
    }

    /// Tells whether another script may start while `nr_runs` run.
    fn room(&self, nr_runs: usize) -> Capacity {
        match self.refused {
            _ if nr_runs >= RUNS_MAX => Capacity::None,
            Some(at) if at.elapsed() < SCRIPT_CHECK => Capacity::Refused,
            _ => Capacity::Free,
        }
    }

    /// Continues a vif's script. None: the vif has none.
    fn turn_script(&mut self, id: &DeviceId) -> Option<Plugged> {
        let room = self.room(self.nr_runs());
        let placed = self.taps.get_mut(&(id.front.0, id.handle))?;
        let run = placed.script.as_mut()?;
        let turned = run.turn(room);
        if room == Capacity::Free && !run.has_started() && turned == Plugged::NotYet {
            self.refused = Some(Instant::now());
        }
        if turned != Plugged::NotYet {
            placed.script = None;
        }
        Some(turned)
    }

    /// Continues the scripts of vifs that were removed: first the scripts that are running, then as
    /// many more as there is room for.
    fn turn_ending(&mut self) {
        let mut nr_runs = self.nr_runs();
        let mut ending = std::mem::take(&mut self.ending);
        ending.retain_mut(|Ending { id, run, .. }| {
            let (room, had_started) = (self.room(nr_runs), run.has_started());
            let turned = run.turn(room);
            nr_runs += usize::from(run.has_started() && !had_started);
            match turned {
                Plugged::NotYet => {
                    if room == Capacity::Free && !run.has_started() {
                        self.refused = Some(Instant::now());
                    }
                    return true;
                }
                Plugged::Yes => {}
                Plugged::No(why) => self.failures.push((*id, why)),
            }
            false
        });
        self.ending = ending;
    }

    /// Waits until the bridges forward for all taps whose links came up. Frames that guests sent
    /// meanwhile are in their rings; the frames would be lost at a port that does not forward yet,
    /// whether it is their sender's or their receiver's.
    fn settle(&mut self) {
        let began = Instant::now();
        let mut settling: Vec<_> = self.taps.values_mut().filter(|placed| placed.settling).collect();
        while !settling.is_empty() && began.elapsed() < self.patience {
            settling.retain_mut(|placed| {
                placed.settling = !placed.tap.interface().forwards();
                placed.settling
            });
            if !settling.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        settling.into_iter().for_each(|placed| placed.settling = false);
        self.patience = self.patience.saturating_sub(began.elapsed());
    }

    /// Joins an interface to its bridge, if its guest was connected before and the interface is
    /// down: because the kernel's netback removed the old one (and no script will run for the new
    /// one), or because it was made just now. An interface that a predecessor or the operator left
    /// down stays down.
    fn plug_in_live(
        &self,
        interface: &Interface,
        place: &HotplugConfig,
        was_there: bool,
    ) -> io::Result<Notes> {
        let is_netbacks = place.interface.is_none();
        let joins = self.hotplug != Hotplug::None && script_of(place).is_none();
        if is_netbacks || joins && !was_there {
            return plug_in(interface, place).map(|()| Notes::new());
        }
        let text = format!(
            "its interface {name} is down, and this process does not plug it in: its guest has no network; set its bridge, \
             addresses and routes, and take it up (ip link set {name} up), or detach the vif and attach it again",
            name = interface.name()
        );
        Ok(vec![(log::Level::Warn, text)])
    }

    fn of(&self, id: &DeviceId) -> Option<&Placed> {
        self.taps.get(&(id.front.0, id.handle))
    }

    fn carrier(&mut self, id: &DeviceId, up: bool) -> Result<(), String> {
        let Some(placed) = self.taps.get_mut(&(id.front.0, id.handle)) else { return Ok(()) };
        placed.is_up = up;
        let reported = placed.tap.carrier(up);
        reported.map_err(|e| format!("{name}: cannot set the link's state: {e}", name = placed.tap.name()))
    }
}

/// True if a tap of this name exists.
fn is_tap(name: &str) -> bool {
    Path::new("/sys/class/net").join(name).join("tun_flags").exists()
}

/// Sets up an interface that is down: an address cannot be changed later.
fn prepare(interface: &Interface, place: &HotplugConfig) -> io::Result<()> {
    interface.set_address(OWN_MAC)?;
    place.mtu.map_or(Ok(()), |mtu| interface.set_mtu(mtu))
}

/// Opens the interface of a vif: the one that a predecessor made, found by its number in case it
/// was renamed; else the one with the toolstack's name, which is made if it does not exist. Returns
/// also whether it existed, and notes for the log.
fn open(place: &HotplugConfig, live: bool) -> io::Result<(Tap, bool, Notes)> {
    let is_there = Interface::new(&place.name)?.index().is_ok();
    let former = place.interface.and_then(|number| Interface::numbered(number).ok());
    if let Some(former) = former.filter(|former| former.name() != place.name) {
        match Tap::open(former.name()) {
            Ok(tap) => {
                let text = format!("its interface is called {} now, and stays in use", former.name());
                return Ok((tap, true, vec![(log::Level::Info, text)]));
            }
            // A predecessor that has not ended; else the number is another interface's by now.
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy => return Err(e),
            Err(_) => {}
        }
    }
    let tap = Tap::open(&place.name)?;
    let mut notes = Notes::new();
    if live && place.interface.is_some() && !is_there {
        let text = format!(
            "the interface that the vif had is not in this network namespace any more, so {name} was made; set the addresses, \
             routes and rules of the old interface again, and delete the old interface where it is (ip link del)",
            name = place.name
        );
        notes.push((log::Level::Warn, text));
    }
    Ok((tap, is_there, notes))
}

/// Returns the script that connects a vif to the network; None: the vif joins its `bridge`.
fn script_of(place: &HotplugConfig) -> Option<&str> {
    place.script.as_deref().filter(|script| Path::new(script).exists())
}

/// Joins the bridge that the toolstack names, and sets the interface up.
///
/// # Errors
/// There is no such bridge, or the kernel refuses.
pub fn plug_in(interface: &Interface, place: &HotplugConfig) -> io::Result<()> {
    place.bridge.as_deref().map_or(Ok(()), |bridge| interface.join(bridge))?;
    interface.set_up(true)
}

/// Removes the interface that a predecessor left, if it is a tap.
///
/// # Errors
/// Another process uses it.
pub fn remove_left(place: &HotplugConfig) -> io::Result<()> {
    let former = place.interface.and_then(|number| Interface::numbered(number).ok());
    let name = former.as_ref().map_or(&*place.name, Interface::name);
    if is_tap(name) { Tap::open(name)?.persist(false) } else { Ok(()) }
}

impl PortProvider for Taps {
    fn found(&mut self, id: &DeviceId, place: &HotplugConfig, live: bool) -> Result<Notes, String> {
        // A vif whose last owner is dying is found again and again.
        if self.of(id).is_some() {
            return Ok(Notes::new());
        }
        let made = || -> io::Result<(Tap, Notes)> {
            let (mut tap, was_there, mut notes) = open(place, live)?;
            tap.set_way(self.way);
            tap.persist(true)?;
            // A predecessor's is up, and keeps what was set.
            let interface = tap.interface();
            if !interface.is_up()? {
                prepare(&interface, place)?;
                if live {
                    notes.extend(self.plug_in_live(&interface, place, was_there)?);
                }
            }
            // Frames for a live vif wait in the tap. (Before Linux 5.0 the link cannot be set; it
            // is up then.)
            let _ = tap.carrier(live);
            Ok((tap, notes))
        };
        let (tap, notes) = made().map_err(|e| e.to_string())?;
        let seen = Whereabouts::Here(tap.name());
        let placed = Placed {
            tap,
            place: place.clone(),
            script: None,
            readable: Vec::new(),
            scripted: false,
            reattached: live,
            mtu_limit: MtuLimit::default(),
            settling: live,
            is_up: live,
            seen,
            failed: None,
        };
        self.taps.insert((id.front.0, id.handle), placed);
        Ok(notes)
    }

    fn plug(&mut self, id: &DeviceId, place: &HotplugConfig) -> Plugged {
        // A former vif's script would undo what this one's does.
        if self.ending.iter().any(|former| former.name == place.name) {
            return Plugged::NotYet;
        }
        let key = (id.front.0, id.handle);
        let Some(placed) = self.taps.get_mut(&key) else {
            return Plugged::No("the vif has no interface".into());
        };
        if placed.script.is_none() {
            match script_of(place) {
                Some(script) => {
                    placed.script = Some(Run::new(script, place, What::Online, self.scripts.clone()));
                }
                None => {
                    return plug_in(&placed.tap.interface(), place)
                        .map_or_else(|e| Plugged::No(e.to_string()), |()| Plugged::Yes);
                }
            }
        }
        let plugged = self.turn_script(id).unwrap_or(Plugged::NotYet);
        if let Some(placed) = self.taps.get_mut(&key).filter(|_| plugged == Plugged::Yes) {
            placed.scripted = true;
        }
        plugged
    }

    fn unplug(&mut self, id: &DeviceId) -> Plugged {
        let Some(placed) = self.taps.get_mut(&(id.front.0, id.handle)) else { return Plugged::Yes };
        if placed.script.as_ref().is_none_or(|run| run.what() != What::Offline) {
            placed.scripted |= std::mem::take(&mut placed.reattached);
            placed.script = placed.undo(self.scripts.as_ref());
        }
        self.turn_script(id).unwrap_or(Plugged::Yes)
    }

    fn connected(&mut self, id: &DeviceId, queues: usize, front: Offloads) -> Result<Ports, String> {
        self.settle();
        let placed = self.taps.get_mut(&(id.front.0, id.handle)).ok_or("the vif has no interface")?;
        let ports = placed.tap.ports(queues, front).map_err(|e| e.to_string())?;
        let readable: io::Result<_> = ports.iter().map(|port| port.as_fd().try_clone_to_owned()).collect();
        placed.readable = readable.map_err(|e| e.to_string())?;
        if ports.len() > 1 {
            // The kernel spreads frames over a tap's queues as it likes.
            let steered = Steered::all(ports);
            return Ok(steered.into_iter().map(|p| Box::new(p) as Box<dyn FramePort>).collect());
        }
        Ok(ports.into_iter().map(|p| Box::new(p) as Box<dyn FramePort>).collect())
    }

    fn readable(&mut self, id: &DeviceId) -> Vec<OwnedFd> {
        let placed = self.taps.get_mut(&(id.front.0, id.handle));
        placed.map(|placed| std::mem::take(&mut placed.readable)).unwrap_or_default()
    }

    fn limit_mtu(&mut self, id: &DeviceId, most: Option<u32>) -> Result<Notes, String> {
        let Some(placed) = self.taps.get_mut(&(id.front.0, id.handle)) else { return Ok(Notes::new()) };
        placed.limit_mtu(most).map_err(|e| match most {
            Some(mtu) => format!(
                "the guest's front takes no packets longer than an MTU of {mtu} allows (it does not write feature-sg), and \
                 {e}. Longer frames for it are dropped and counted (pregrant top: `long`)"
            ),
            None => format!("the guest's front takes packets of any length again, and {e}"),
        })
    }

    fn interface_number(&mut self, id: &DeviceId) -> Option<u32> {
        self.of(id)?.tap.interface().index().ok()
    }

    fn wants_checks(&mut self, id: &DeviceId) -> bool {
        self.of(id).is_some()
    }

    fn check(&mut self, id: &DeviceId) -> Notes {
        let hotplug = self.hotplug;
        let placed = self.taps.get_mut(&(id.front.0, id.handle));
        placed.map_or_else(Notes::new, |placed| placed.check(hotplug))
    }

    fn link(&mut self, id: &DeviceId, up: bool) -> Result<(), String> {
        self.carrier(id, up)
    }

    fn closed(&mut self, id: &DeviceId) -> Result<(), String> {
        self.carrier(id, false)
    }
}

impl RemoteSide for Taps {
    fn removed(&mut self, id: &DeviceId) -> Result<(), String> {
        let stays = |e: io::Error| format!("cannot remove the vif's interface: {e}");
        let Some(mut placed) = self.taps.remove(&(id.front.0, id.handle)) else {
            // This is a predecessor's interface, whose vif was removed while no backend ran.
            return remove_left(&HotplugConfig { name: usual_name(id), ..HotplugConfig::default() })
                .map_err(stays);
        };
        let run = placed.undo(self.scripts.as_ref()).or(placed.script.take());
        self.ending.extend(run.map(|run| Ending { id: *id, name: placed.place.name, run }));
        // Starts at once if there is room.
        self.turn_ending();
        match placed.tap.persist(false) {
            // Somebody else removed the interface first.
            Err(_) if placed.tap.whereabouts() == Whereabouts::Gone => Ok(()),
            other => other.map_err(stays),
        }
    }

    fn is_ending(&mut self, id: &DeviceId) -> bool {
        self.ending.iter().any(|ending| ending.id == *id) || self.failures.iter().any(|(of, _)| of == id)
    }

    fn failures(&mut self) -> Vec<(DeviceId, String)> {
        std::mem::take(&mut self.failures)
    }

    fn due(&mut self) -> Option<Duration> {
        (!self.ending.is_empty()).then_some(SCRIPT_CHECK)
    }

    fn turn(&mut self) -> bool {
        self.turn_ending();
        false
    }
}
