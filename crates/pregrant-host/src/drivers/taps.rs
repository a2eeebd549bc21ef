//! Each vif as a tap of this machine: the far side of a driver domain whose kernel routes or bridges.
//!
//! ```text
//!   found      vif5.0 is made, without a link     (the toolstack's vif-bridge takes it from there)
//!   plug       runs `script`, or joins `bridge`   (where this process is asked to)
//!   connected  a port for each queue
//!   link       the carrier: frames for a guest that takes none are dropped before they come here
//!   closed     the link is down
//!   removed    vif5.0 is gone
//! ```
//! An interface outlives the process, with its bridge and addresses; the next backend attaches to it. All taps of a
//! backend wake it through one descriptor ([`Taps::wake`]), once for each new frame and not as long as there are frames:
//! a guest without free slots does not keep its backend busy.
//!
//! What a guest may do: as for a [tap](crate::ports::tap).

use super::far_side::{FarSide, Place, Plugged, usual_name};
use crate::ports::arrivals::Arrivals;
use crate::ports::interface::Interface;
use crate::ports::tap::{Tap, TapWay};
use pregrant::port::{Burst, FramePort, Offloads};
use pregrant::xenbus::DeviceId;
use rustix::process::{Pid, Signal};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// As Linux's netback gives its interfaces: the highest address, so that no bridge takes it for its own.
const OWN_MAC: [u8; 6] = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff];

/// How long a hotplug script may run.
const SCRIPT: Duration = Duration::from_secs(60);

/// How long a bridge may take to forward for a port whose link came up. The kernel follows links once a second; it may be late.
const FORWARDS: Duration = Duration::from_secs(3);

/// All taps of a backend.
pub struct Taps {
    arrivals: Arrivals,
    taps: BTreeMap<(u16, u32), Placed>,
    /// What is left of [`FORWARDS`] for all vifs together: nobody is served meanwhile.
    patience: Duration,
    /// Scripts of vifs that are gone.
    ending: Vec<(Place, Run)>,
    way: TapWay,
}

struct Placed {
    tap: Tap,
    place: Place,
    script: Option<Run>,
    /// A script has plugged it in, and another run of it is to undo that.
    scripted: bool,
    /// A predecessor's: its script may have.
    taken_up: bool,
}

impl Placed {
    /// Begins to undo what a script did, if one did anything, at most once.
    fn undo(&mut self) -> Option<Result<Run, String>> {
        if let Some(run) = self.script.as_mut().filter(|run| run.what != OFFLINE) {
            run.end();
            self.script = None;
            self.scripted = true;
        }
        let script = self.place.script.as_deref().filter(|script| Path::new(script).exists())?;
        std::mem::take(&mut self.scripted).then(|| Run::start(script, &self.place, OFFLINE))
    }
}

/// What a script is told that is to undo what it did.
const OFFLINE: &str = "offline";

/// A script that runs.
struct Run {
    what: &'static str,
    child: Child,
    began: Instant,
}

impl Run {
    /// Runs a hotplug script as the toolstack would.
    fn start(script: &str, place: &Place, what: &'static str) -> Result<Self, String> {
        let mut command = Command::new(script);
        command.args([what, "type_if=vif"]).env("script", script).env("vif", &place.name);
        command.env("XENBUS_PATH", &place.dir).env("XENBUS_TYPE", "vif").env("XENBUS_BASE_PATH", "backend");
        // A group of its own, so that what it started ends with it.
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        let child = command.spawn().map_err(|e| format!("{script} {what} cannot be run: {e}"))?;
        Ok(Self { what, child, began: Instant::now() })
    }

    /// How far it came. One that takes too long is ended.
    fn turn(&mut self, place: &Place) -> Plugged {
        let at = format!("{} {}", place.script.as_deref().unwrap_or_default(), self.what);
        match self.child.try_wait() {
            Ok(None) if self.began.elapsed() < SCRIPT => Plugged::NotYet,
            Ok(None) => {
                self.end();
                Plugged::No(format!("{at} was not over after {} s, and was ended", SCRIPT.as_secs()))
            }
            Ok(Some(status)) if status.success() => Plugged::Yes,
            Ok(Some(status)) => Plugged::No(format!("{at} ended with {status}")),
            Err(e) => Plugged::No(format!("{at}: {e}")),
        }
    }

    /// Ends it, with what it started.
    fn end(&mut self) {
        let _ = rustix::process::kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Taps {
    /// None yet.
    ///
    /// # Errors
    /// No descriptor is left; the kernel makes no taps, or not for us.
    pub fn new() -> io::Result<Self> {
        if let Err(e) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
            let text = format!(
                "/dev/net/tun: {e}; no taps can be made: modprobe tun, run as root, or use --port switch"
            );
            return Err(io::Error::new(e.kind(), text));
        }
        let (arrivals, taps, ending) = (Arrivals::new()?, BTreeMap::new(), Vec::new());
        Ok(Self { arrivals, taps, patience: FORWARDS, ending, way: TapWay::default() })
    }

    /// Which way bursts take to vifs found from now on, and from them.
    pub fn set_way(&mut self, way: TapWay) {
        self.way = way;
    }

    /// Readable when frames came since the last [`turn`](FarSide::turn).
    pub fn wake(&self) -> Arrivals {
        self.arrivals.clone()
    }

    fn of(&self, id: &DeviceId) -> Option<&Placed> {
        self.taps.get(&(id.front.0, id.handle))
    }

    fn carrier(&self, id: &DeviceId, up: bool) {
        if let Some(placed) = self.of(id)
            && let Err(e) = placed.tap.carrier(up)
        {
            log::info!("{id}: {}: the link's state cannot be told: {e}", placed.tap.interface().name());
        }
    }
}

/// Whether there is a tap of this name.
fn is_tap(name: &str) -> bool {
    Path::new("/sys/class/net").join(name).join("tun_flags").exists()
}

/// Joins the bridge that the toolstack names, and takes the interface up.
///
/// # Errors
/// There is no such bridge, or it is not to be joined.
pub fn plug_in(interface: &Interface, place: &Place) -> io::Result<()> {
    place.bridge.as_deref().map_or(Ok(()), |bridge| interface.join(bridge))?;
    interface.set_up(true)
}

/// Removes the interface that a predecessor left under this name, if it is a tap.
///
/// # Errors
/// Somebody has it.
pub fn remove_left(name: &str) -> io::Result<()> {
    if is_tap(name) { Tap::open(name)?.persist(false) } else { Ok(()) }
}

impl FarSide for Taps {
    fn found(&mut self, id: &DeviceId, place: &Place, live: bool) -> Result<(), String> {
        // One whose last owner is dying is found again and again.
        if self.of(id).is_some() {
            return Ok(());
        }
        let mut made = || -> io::Result<Tap> {
            let mut tap = Tap::open(&place.name)?;
            tap.set_way(self.way);
            tap.persist(true)?;
            // A predecessor's is up, and keeps what was set: an address cannot be changed then, and needs not.
            let interface = tap.interface();
            if !interface.is_up()? {
                interface.set_address(OWN_MAC)?;
                if let Some(mtu) = place.mtu {
                    interface.set_mtu(mtu)?;
                }
                if live {
                    // Taken from the kernel's netback, whose interface went: no script comes for this one.
                    plug_in(interface, place)?;
                }
            }
            // What comes for a live vif waits in the tap. (Before Linux 5.0 the link cannot be told; it is up then.)
            let _ = tap.carrier(live);
            // What its guest sent meanwhile is in its ring, and would be lost at a port that does not forward yet.
            let began = Instant::now();
            while live && !tap.interface().forwards() && began.elapsed() < self.patience {
                std::thread::sleep(Duration::from_millis(1));
            }
            if live {
                self.patience = self.patience.saturating_sub(began.elapsed());
            }
            Ok(tap)
        };
        let tap = made().map_err(|e| e.to_string())?;
        let placed = Placed { tap, place: place.clone(), script: None, scripted: false, taken_up: live };
        self.taps.insert((id.front.0, id.handle), placed);
        Ok(())
    }

    fn plug(&mut self, id: &DeviceId, place: &Place) -> Plugged {
        // A former vif's script would undo what this one's does.
        if self.ending.iter().any(|(former, _)| former.name == place.name) {
            return Plugged::NotYet;
        }
        let Some(placed) = self.taps.get_mut(&(id.front.0, id.handle)) else {
            return Plugged::No("it has no interface".into());
        };
        if let Some(run) = &mut placed.script {
            let plugged = run.turn(place);
            if plugged != Plugged::NotYet {
                placed.script = None;
                placed.scripted = plugged == Plugged::Yes;
            }
            return plugged;
        }
        match &place.script {
            Some(script) if Path::new(script).exists() => match Run::start(script, place, "online") {
                Ok(run) => {
                    placed.script = Some(run);
                    Plugged::NotYet
                }
                Err(why) => Plugged::No(why),
            },
            _ => plug_in(placed.tap.interface(), place)
                .map_or_else(|e| Plugged::No(e.to_string()), |()| Plugged::Yes),
        }
    }

    fn unplug(&mut self, id: &DeviceId) -> Plugged {
        let Some(placed) = self.taps.get_mut(&(id.front.0, id.handle)) else { return Plugged::Yes };
        if let Some(run) = placed.script.as_mut().filter(|run| run.what == OFFLINE) {
            let unplugged = run.turn(&placed.place);
            if unplugged != Plugged::NotYet {
                placed.script = None;
            }
            return unplugged;
        }
        placed.scripted |= std::mem::take(&mut placed.taken_up);
        match placed.undo() {
            Some(Ok(run)) => {
                placed.script = Some(run);
                Plugged::NotYet
            }
            Some(Err(why)) => Plugged::No(why),
            None => Plugged::Yes,
        }
    }

    fn connected(&mut self, id: &DeviceId, queues: usize, front: Offloads) -> Vec<Box<dyn FramePort>> {
        let Some(placed) = self.of(id) else { return unplugged(queues) };
        let ports = placed.tap.ports(queues, front).and_then(|ports| {
            ports.iter().try_for_each(|port| self.arrivals.of(port))?;
            Ok(ports)
        });
        match ports {
            Ok(ports) => ports.into_iter().map(|p| Box::new(p) as Box<dyn FramePort>).collect(),
            Err(e) => {
                log::warn!("{id}: its frames are dropped: {e}");
                unplugged(queues)
            }
        }
    }

    fn link(&mut self, id: &DeviceId, up: bool) {
        self.carrier(id, up);
    }

    fn closed(&mut self, id: &DeviceId) {
        self.carrier(id, false);
    }

    fn removed(&mut self, id: &DeviceId) {
        let left = match self.taps.remove(&(id.front.0, id.handle)) {
            Some(mut placed) => {
                match placed.undo() {
                    Some(Ok(run)) => self.ending.push((placed.place, run)),
                    Some(Err(why)) => log::warn!("{id}: {why}"),
                    None => self.ending.extend(placed.script.map(|run| (placed.place, run))),
                }
                placed.tap
            }
            // A predecessor's, whose vif went while nobody was there to see it.
            None => {
                if let Err(e) = remove_left(&usual_name(id)) {
                    log::warn!("{id}: its interface stays behind: {e}");
                }
                return;
            }
        };
        if let Err(e) = left.persist(false) {
            log::warn!("{id}: its interface stays behind: {e}");
        }
    }

    fn turn(&mut self) -> bool {
        self.ending.retain_mut(|(place, run)| run.turn(place) == Plugged::NotYet);
        self.arrivals.clear()
    }
}

/// Ports of a vif that has no interface: every frame is refused, and counted as such.
pub fn unplugged(queues: usize) -> Vec<Box<dyn FramePort>> {
    (0..queues).map(|_| Box::new(Unplugged) as Box<dyn FramePort>).collect()
}

struct Unplugged;

impl FramePort for Unplugged {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn tx_burst(&mut self, _frames: &Burst<'_>) -> usize {
        0
    }
    fn rx_burst(&mut self, _into: &mut pregrant::port::Arena) -> usize {
        0
    }
}
