//! A driver domain's vifs: found by a watch on its backend directory, stepped when their fronts' states change, polled
//! round robin.
//!
//! ```text
//!   xenstore --watch--> control(): find vifs, step them         never on the data path
//!   round():            vif 0 tx, rx; vif 1 tx, rx; ...         one batch each, so that no vif starves another
//! ```
//! What a guest may do: close, vanish, lie, come back again and again. Its own vif is closed with a line that says why
//! (at most [`LINES_PER_VIF`] lines for each vif); the others go on. A guest that writes its state without end is heard
//! in turns ([`EVENTS_PER_TURN`]), so that frames move in between.

use log::{Level, log};
use pregrant::PeerFault;
use pregrant::net::back::vif::ConnectError;
use pregrant::net::back::{BackStep, BackVif, Ordinary, Polled};
use pregrant::net::bus::StoreBus;
use pregrant::net::features::{BackFeatures, queue_prefix};
use pregrant::net::stats::DirStats;
use pregrant::platform::Platform;
use pregrant::port::{Arena, FramePort};
use pregrant::xenbus::{Class, Device, DeviceError, DeviceId, Side, XenbusState};
use pregrant::xenstore::{Client, Transport, XsError};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

/// Lines that one vif can cause in the log; then it is quiet.
pub const LINES_PER_VIF: u32 = 16;

/// Events of xenstore that one call of [`Backend::control`] takes at most.
pub const EVENTS_PER_TURN: usize = 128;

/// Why the backend itself (not one vif of it) cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// xenstore is gone, or refuses.
    #[error("xenstore: {0}")]
    Store(#[from] XsError),
    /// A key of our own is of no use.
    #[error("{0}")]
    Device(#[from] DeviceError),
}

/// One vif as others see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VifReport {
    /// Which.
    pub id: DeviceId,
    /// Our state.
    pub state: XenbusState,
    /// By queue: path and counters of TX, then of RX.
    pub queues: Vec<(&'static str, DirStats, &'static str, DirStats)>,
    /// Staging lists that were refused: queue, direction, why.
    pub refused: Vec<(usize, &'static str, String)>,
    /// Why it was closed by us, if it was.
    pub failed: Option<String>,
}

struct Served<P: Platform> {
    device: Device,
    vif: BackVif<P>,
    ports: Vec<Box<dyn FramePort>>,
    lines: u32,
    failed: Option<String>,
}

impl<P: Platform> Served<P> {
    /// A line in the log, as long as this vif has some left.
    fn say(&mut self, level: Level, text: &dyn Display) {
        self.lines += 1;
        if self.lines < LINES_PER_VIF {
            log!(level, "{}: {text}", self.device.id());
        } else if self.lines == LINES_PER_VIF {
            log!(level, "{}: {text} (the last line of this vif)", self.device.id());
        }
    }
}

/// Makes the frame ports of a vif: one for each queue.
pub type MakePorts = Box<dyn FnMut(&DeviceId, usize) -> Vec<Box<dyn FramePort>>>;

/// All vifs of a driver domain.
pub struct Backend<P: Platform, T: Transport> {
    platform: P,
    xs: Client<T>,
    features: BackFeatures,
    ordinary: Ordinary,
    make_ports: MakePorts,
    vifs: BTreeMap<(u16, u32), Served<P>>,
    /// Those with live queues, for the round.
    live: Vec<(u16, u32)>,
    scratch: Arena,
    removed: u64,
}

const WATCH: &str = "backend/vif";

impl<P: Platform, T: Transport> Backend<P, T> {
    /// Starts to watch the domain's backend directory.
    pub fn new(
        platform: P,
        mut xs: Client<T>,
        features: BackFeatures,
        ordinary: Ordinary,
        make_ports: MakePorts,
    ) -> Result<Self, BackendError> {
        xs.watch(WATCH, WATCH)?;
        Ok(Self {
            platform,
            xs,
            features,
            ordinary,
            make_ports,
            vifs: BTreeMap::new(),
            live: Vec::new(),
            scratch: Arena::new(),
            removed: 0,
        })
    }

    /// The platform.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// Which path serves frames of vifs found from now on, where no staging list is accepted.
    pub fn set_ordinary(&mut self, ordinary: Ordinary) {
        self.ordinary = ordinary;
    }

    /// Handles what xenstore has to say, without sleeping and not without end. True when something changed: then there
    /// may be more, so do not sleep before another call. To be called also when the connection's descriptor is not
    /// readable: events that came while a reply was awaited are kept in the client.
    pub fn control(&mut self) -> Result<bool, BackendError> {
        let mut events = 0;
        let mut scan = false;
        let mut stepped: Vec<(u16, u32)> = Vec::new();
        while events < EVENTS_PER_TURN
            && let Some(event) = self.xs.next_event(Some(Duration::ZERO))?
        {
            events += 1;
            match self.vifs.iter().find(|(_, s)| s.device.is_peer_event(&event)) {
                Some((&key, _)) => stepped.push(key),
                None => match below_watch(&event.path) {
                    Changed::Vifs => scan = true,
                    Changed::Online(key) => stepped.push(key),
                    Changed::Nothing => {}
                },
            }
        }
        if scan {
            self.scan()?;
            stepped.extend(self.vifs.keys());
        }
        stepped.sort_unstable();
        stepped.dedup();
        for key in stepped {
            self.step(key);
        }
        Ok(events > 0)
    }

    /// Finds vifs that are new, and forgets those whose directory is gone.
    fn scan(&mut self) -> Result<(), BackendError> {
        let own = self.platform.domid();
        let mut seen = Vec::new();
        for front in list(&mut self.xs, WATCH)? {
            let Ok(front) = front.parse::<u16>() else { continue };
            for handle in list(&mut self.xs, &format!("{WATCH}/{front}"))? {
                let Ok(handle) = handle.parse::<u32>() else { continue };
                seen.push((front, handle));
            }
        }
        let gone: Vec<_> = self.vifs.keys().filter(|k| !seen.contains(k)).copied().collect();
        for key in gone {
            self.remove(key);
        }
        for (front, handle) in seen {
            if self.vifs.contains_key(&(front, handle)) {
                continue;
            }
            let id = DeviceId { class: Class::Vif, front: pregrant::DomId(front), back: own, handle };
            let device = Device::new(id, Side::Back);
            if let Err(e) = device.watch_peer(&mut self.xs) {
                log!(Level::Warn, "{id}: cannot watch the front's state: {e}");
                continue;
            }
            let vif = BackVif::new(id.front, handle, self.features.clone(), self.ordinary);
            let mut served = Served { device, vif, ports: Vec::new(), lines: 0, failed: None };
            served.say(Level::Info, &"found");
            self.vifs.insert((front, handle), served);
        }
        Ok(())
    }

    /// Takes one vif's steps; a failure closes that vif alone.
    fn step(&mut self, key: (u16, u32)) {
        let Some(served) = self.vifs.get_mut(&key) else { return };
        let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
        match served.vif.step(&self.platform, &mut bus, &mut |_, _| None) {
            Ok(BackStep::Connected) => {
                let id = served.device.id();
                served.ports = (self.make_ports)(&id, served.vif.nr_queues());
                served.failed = None;
                let refused: Vec<_> =
                    served.vif.refused_lists().iter().map(|(q, d, why)| (*q, *d, why.to_string())).collect();
                for (queue, dir, why) in refused {
                    let at = front_key(&served.device, queue, served.vif.nr_queues(), dir, "data-ref0");
                    let line = format!(
                        "the staging list {at} is not used, queue {queue} goes on with ordinary grants: {why}; \
                         correct the front's list and connect it again"
                    );
                    served.say(Level::Warn, &line);
                }
                let (tx, rx) = served.vif.path_names(0);
                let queues = served.vif.nr_queues();
                served.say(Level::Info, &format_args!("connected, {queues} queue(s), TX {tx}, RX {rx}"));
            }
            Ok(BackStep::Closed) => {
                served.ports.clear();
                served.say(Level::Info, &"closed");
            }
            Ok(BackStep::Waiting) => {}
            // Its front is gone, or `online` is 0: it stays closed until the toolstack removes its directory, and `scan`
            // misses it. To forget it now would be to find it again at once.
            Ok(BackStep::Removed) => served.ports.clear(),
            Err(e @ ConnectError::Keys(_)) => self.fail(key, &e),
            Err(e) => {
                let text = format!("{}: {e}", served.device.peer_dir());
                self.fail(key, &text);
            }
        }
        self.relive();
    }

    /// Closes one vif for something that its guest did.
    #[cold]
    fn fail(&mut self, key: (u16, u32), why: &dyn Display) {
        let Some(served) = self.vifs.get_mut(&key) else { return };
        let text = format!(
            "{why}. To use the vif again, close its front and connect it again, or detach and attach it"
        );
        served.say(Level::Warn, &format_args!("closed: {text}"));
        let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
        if let Err(e) = served.vif.close(&self.platform, &mut bus, Some(&text)) {
            // The directory may be gone with the guest; what matters is that nothing is mapped any more.
            served.say(Level::Info, &e);
        }
        served.ports.clear();
        served.failed = Some(text);
        self.relive();
    }

    /// Closes one vif for what its ring showed.
    #[cold]
    fn fault(&mut self, (key, queue, dir, fault): Fault) {
        let Some(served) = self.vifs.get(&key) else { return };
        let at = front_key(&served.device, queue, served.vif.nr_queues(), dir, "ring-ref");
        let text = format!("{} broke the protocol on its ring {at}: {fault}", served.device.id().front);
        self.fail(key, &text);
    }

    fn remove(&mut self, key: (u16, u32)) {
        if let Some(mut served) = self.vifs.remove(&key) {
            let mut bus = StoreBus { device: &served.device, xs: &mut self.xs };
            let _ = served.vif.close(&self.platform, &mut bus, None); // its directory may be gone
            let _ = served.device.unwatch_peer(&mut self.xs);
            self.removed += 1;
            served.say(Level::Info, &"removed");
        }
        self.relive();
    }

    fn relive(&mut self) {
        self.live = self.vifs.iter().filter(|(_, s)| s.vif.nr_queues() > 0).map(|(k, _)| *k).collect();
    }

    /// One batch of each queue, both directions. True when a frame moved.
    #[inline]
    pub fn round(&mut self) -> bool {
        let mut moved = false;
        let mut fault = None;
        for &key in &self.live {
            let Some(served) = self.vifs.get_mut(&key) else { continue };
            for (i, port) in served.ports.iter_mut().enumerate() {
                let tx = served.vif.poll_tx(&self.platform, i, &mut **port, &mut self.scratch);
                let rx = served.vif.poll_rx(&self.platform, i, &mut **port);
                moved |= tx == Ok(Polled::More) || rx == Ok(Polled::More);
                if let Err(e) = tx {
                    fault = Some((key, i, "tx", e));
                } else if let Err(e) = rx {
                    fault = Some((key, i, "rx", e));
                }
            }
        }
        // One a round: that vif is not live in the next, where another's turn comes.
        if let Some(fault) = fault {
            self.fault(fault);
            return true;
        }
        moved
    }

    /// Before sleeping: arms every queue. True: there is work.
    pub fn arm(&mut self) -> bool {
        let mut work = false;
        let mut fault = None;
        for &key in &self.live {
            let Some(served) = self.vifs.get_mut(&key) else { continue };
            for i in 0..served.vif.nr_queues() {
                match served.vif.final_check(&self.platform, i) {
                    Ok(more) => work |= more,
                    Err((dir, e)) => fault = Some((key, i, dir, e)),
                }
            }
        }
        if let Some(fault) = fault {
            self.fault(fault);
            return true;
        }
        work
    }

    /// All vifs.
    pub fn reports(&self) -> Vec<VifReport> {
        self.vifs
            .values()
            .map(|s| VifReport {
                id: s.device.id(),
                state: s.vif.state(),
                queues: (0..s.vif.nr_queues())
                    .map(|i| {
                        let ((tx, rx), (tx_path, rx_path)) = (s.vif.stats(i), s.vif.path_names(i));
                        (tx_path, tx, rx_path, rx)
                    })
                    .collect(),
                refused: s.vif.refused_lists().iter().map(|(q, d, why)| (*q, *d, why.to_string())).collect(),
                failed: s.failed.clone(),
            })
            .collect()
    }

    /// Vifs with live queues.
    pub fn nr_live(&self) -> usize {
        self.live.len()
    }

    /// Vifs that came and went.
    pub fn removed(&self) -> u64 {
        self.removed
    }

    /// The ports of a vif, to look into them.
    pub fn ports_mut(&mut self, front: u16, handle: u32) -> Option<&mut [Box<dyn FramePort>]> {
        self.vifs.get_mut(&(front, handle)).map(|s| &mut s.ports[..])
    }

    /// Closes all vifs in good order.
    pub fn close_all(&mut self) {
        let keys: Vec<_> = self.vifs.keys().copied().collect();
        for key in keys {
            self.remove(key);
        }
    }
}

/// A vif's ring that broke the protocol: which vif, queue, direction.
type Fault = ((u16, u32), usize, &'static str, PeerFault);

/// Where a front has the key `{dir}-{what}` of queue `i` of `n`.
fn front_key(device: &Device, i: usize, n: usize, dir: &str, what: &str) -> String {
    format!("{}/{}{dir}-{what}", device.peer_dir(), queue_prefix(i, n))
}

/// What an event below our own directory means.
enum Changed {
    /// A vif came or went, perhaps.
    Vifs,
    /// The toolstack's wish for one vif.
    Online((u16, u32)),
    /// A key that we, or the toolstack, write for others to read.
    Nothing,
}

fn below_watch(path: &str) -> Changed {
    let mut parts = path.rsplit_once(WATCH).map_or("", |(_, below)| below).split('/').skip(1);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(front), Some(handle), Some(key)) => match (front.parse(), handle.parse()) {
            (Ok(front), Ok(handle)) if key == "online" => Changed::Online((front, handle)),
            _ => Changed::Nothing,
        },
        _ => Changed::Vifs,
    }
}

/// The names in a directory; none when it is not there.
fn list<T: Transport>(xs: &mut Client<T>, path: &str) -> Result<Vec<String>, XsError> {
    match xs.directory(path) {
        Err(e) if e.is_not_found() => Ok(Vec::new()),
        other => other,
    }
}
