//! `pregrant front --tap NAME`: the vif as an interface of the guest's own kernel.
//!
//! ```text
//!   guest's kernel: eth0 --queue i--> TapPort::rx_burst --> Frontend::send(i) --> ring      TX
//!                        <--queue i-- TapPort::tx_burst <-- Frontend::recv(i) <-- ring      RX
//!   link: up while the vif is connected; with own-buffers see own_buffers
//!   announced once it is: gratuitous ARP and the like of the interface's addresses                                TX
//! ```
//! Blank checksums and uncut segments pass both ways as they are, if the back takes them; if not,
//! the kernel finishes them before. A frame that was read from the tap is sent, sooner or later,
//! also to the next back: while the ring is full the tap is not read, and its own queue drops.
//!
//! The interface's owner may rename it, move it to a container, or remove it: one that was removed
//! is made again, without its addresses, once a second until that succeeds.
//!
//! What a back may do: as for any front; frames that it makes up reach the kernel as from any wire.

use super::drops::Drops;
use super::frame_hook::{Exit, FrameHook};
use super::own_buffers::OwnBuffers;
use super::{Joined, MTU, Result, RxWay, VifArgs, VifUser, close};
use crate::screen;
use crate::stop::Stop;
use pregrant::net::front::{FrontStep, Lent};
use pregrant::net::one_slot::OneSlot;
use pregrant::net::path::staging::list::DataLen;
use pregrant::platform::Platform;
use pregrant::port::{Arena, FramePort, Offloads, Room};
use pregrant::xenstore::Transport;
use pregrant_host::drivers::{Frontend, FrontendError, PollLoop, Rest, Work};
use pregrant_host::ports::announcement::announce;
use pregrant_host::ports::mtu_limit::{MtuChange, MtuLimit};
use pregrant_host::ports::port_readiness::PortReadiness;
use pregrant_host::ports::tap::{self, TapPort, TransportKind, Whereabouts};
use pregrant_host::wake::WakeOn;
use std::error::Error;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Interval at which a port that had no room is tried again.
const STANDS: Duration = Duration::from_millis(1);
/// Interval at which the interface's state is checked.
const CHECK: Duration = Duration::from_secs(1);
/// The times after a new connection at which the addresses are announced. A backend's kernel checks
/// its links once a second, and its bridge does not forward before that.
const ANNOUNCES_AFTER: [Duration; 2] = [Duration::ZERO, Duration::from_millis(1500)];

/// The options of a vif that is an interface of the guest's kernel.
pub struct Tap<'a> {
    /// The interface's name.
    pub name: &'a str,
    /// The vif's options.
    pub args: &'a VifArgs,
}

impl VifUser for Tap<'_> {
    fn queues(&self) -> u32 {
        self.args.nr_queues()
    }

    fn run<P: Platform, T: Transport>(&self, joined: Joined<P, T>, stop: &Stop) -> Result<()>
    where
        P::Events: WakeOn,
    {
        run(joined, self.name, self.args, stop)
    }
}

/// Moves frames until a signal; the interface is `name`.
fn run<P: Platform, T: Transport>(
    Joined { mut guest, hook, mac }: Joined<P, T>,
    name: &str,
    args: &VifArgs,
    stop: &Stop,
) -> Result<()>
where
    P::Events: WakeOn,
{
    let asked = args.mtu;
    let mtu = match args.mtu {
        Some(mtu) => mtu,
        None => guest.mtu()?.unwrap_or(MTU),
    };
    let mut tap = tap::Tap::open(name)?;
    let interface = tap.interface();
    // One that was made before keeps what its owner set.
    if !interface.is_up()? {
        interface.set_address(mac)?;
        interface.set_mtu(mtu)?;
    } else if let Some(mtu) = asked {
        // LOG: once, at the start of the process' own front.
        log::warn!(
            "--mtu {mtu} has no effect: the interface {name} exists already and is up, and keeps its MTU; change it by: ip link set {name} mtu {mtu}"
        );
    }
    let own = match args.own_buffers {
        None => None,
        Some(pages) => {
            tap.set_way(TransportKind::Frame);
            Some(OwnBuffers::new(&mut guest, pages as usize, args.nr_queues() as usize)?)
        }
    };
    // Now, for from another network namespace, where its owner may move it, no more are made.
    tap.reserve(args.nr_queues() as usize)?;
    let arrivals = PortReadiness::new()?;
    guest.platform().events().also_wake_on(arrivals.as_fd())?;
    let (ports, waiting) = (Vec::new(), Vec::new());
    let check = Check { at: None, seen: Whereabouts::Here(name.into()), failed: None };
    let mut uplink = Uplink {
        guest,
        tap,
        mac,
        mtu,
        check,
        arrivals,
        stop,
        hook,
        ports,
        takes: Offloads::default(),
        stands: false,
        waiting,
        came: Arena::new(),
        lends: args.rx == RxWay::Reference,
        lent: Lent::with_head(args.rx_head as usize),
        referred: 0,
        own,
        drops: Drops::default(),
        mtu_limit: MtuLimit::default(),
        announces_at: [None; 2],
    };
    uplink.follow()?;
    let _ = screen::print(format_args!("interface {name}: ready, MTU {mtu}"));
    let done = PollLoop::new(args.mode).run(&mut uplink);
    uplink.link(false);
    uplink.print_references(name)?;
    if let Some(words) = uplink.drops.words(&uplink.ports) {
        screen::print(format_args!("interface {name}: dropped {words}"))?;
    }
    let Uplink { mut guest, mut hook, .. } = uplink;
    if let Some(hook) = &mut hook {
        screen::print(hook.line(&guest))?;
        if let Some(exit) = hook.exit() {
            close(exit.guest())?;
        }
    }
    close(&mut guest)?;
    done
}

/// A vif and the interface of this machine to which its frames go.
struct Uplink<'a, P: Platform, T: Transport> {
    stop: &'a Stop,
    guest: Frontend<P, T>,
    tap: tap::Tap,
    /// The MAC address that an interface gets if it is created.
    mac: [u8; 6],
    mtu: u32,
    check: Check,
    arrivals: PortReadiness,
    /// The hook that sees frames before the kernel, if there is one.
    hook: Option<FrameHook<P, T>>,
    /// One port for each queue; none while the vif is not connected.
    ports: Vec<TapPort>,
    /// The offload work that the back accepts, as the kernel names it.
    takes: Offloads,
    /// True if a port had no room in the last round.
    stands: bool,
    /// For each queue, the frames that wait for room on the ring.
    waiting: Vec<Waiting>,
    /// Frames from the ring that are passed on to the kernel.
    came: Arena,
    /// True if frames are read in the pages in which they arrived.
    lends: bool,
    lent: Lent,
    referred: u64,
    /// The guest's own pages, to which frames of the kernel are read, if they are used.
    own: Option<OwnBuffers>,
    /// Frames that were lost between the kernel and the vif.
    drops: Drops,
    mtu_limit: MtuLimit,
    /// The times at which to announce the interface's addresses.
    announces_at: [Option<Instant>; 2],
}

/// The last check of the interface, and what was logged about it.
struct Check {
    /// Time of the check.
    at: Option<Instant>,
    seen: Whereabouts,
    /// The reason why the interface is not available.
    failed: Option<String>,
}

/// Frames that were read from the tap and wait for room on a ring.
struct Waiting {
    frames: Arena,
    /// Number of frames, from the first on, that are on the ring already.
    sent: usize,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.sent == self.frames.len()
    }
}

impl<P: Platform, T: Transport> Rest for Uplink<'_, P, T>
where
    P::Events: WakeOn,
{
    type Error = Box<dyn Error>;

    fn sleep(&mut self) -> Result<()> {
        if !self.is_live() {
            if self.guest.vif().is_live() {
                // Without an interface, which is tried again. The back's answers, which no one
                // takes meanwhile, would end a sleep at once.
                std::thread::sleep(STANDS);
                return Ok(self.guest.sleep(false, Some(Duration::ZERO))?);
            }
            return Ok(self.guest.sleep(false, None)?);
        }
        // In this order: what comes after is seen by the round below, or wakes.
        self.arrivals.take(|_| {});
        if !self.round()? {
            if self.stands {
                // The vif's ring has frames, for which no one would sleep; and room
                // in a tap's ring wakes a backend's worker.
                std::thread::sleep(STANDS);
            } else {
                let due = self.exit().map(|_| Exit::<P, T>::LOOKED_AFTER);
                let due = due.into_iter().chain(self.announces_in()).chain([CHECK]).min();
                self.guest.sleep(self.is_full(), due)?;
            }
        }
        Ok(())
    }

    fn control(&mut self) -> Result<()> {
        if let Some(exit) = self.exit() {
            exit.control()?;
        }
        self.drops.log(&self.tap.name(), &self.ports);
        let step = self.guest.control(Duration::ZERO)?;
        let is_due = self.check.at.is_none_or(|at| at.elapsed() >= CHECK);
        if is_due {
            self.check_interface();
        }
        if step == FrontStep::Renewed && self.guest.vif().takes() == self.takes {
            self.guest.log_state(); // nothing else of it concerns the kernel
            self.limit_mtu();
            self.begin_to_announce();
        } else if step != FrontStep::Waiting
            || self.ports.is_empty() == self.guest.vif().is_live() && (is_due || !self.ports.is_empty())
        {
            self.follow()?;
        }
        self.announce()
    }
}

impl<P: Platform, T: Transport> Work for Uplink<'_, P, T>
where
    P::Events: WakeOn,
{
    fn is_live(&self) -> bool {
        !self.ports.is_empty()
    }

    fn is_over(&mut self) -> bool {
        self.stop.asked()
    }

    /// Moves a burst in each direction on each queue. Returns true if anything moved.
    fn round(&mut self) -> Result<bool> {
        let mut moved = false;
        self.stands = false;
        if let Some(exit) = self.exit() {
            exit.round()?;
        }
        for (i, (port, waiting)) in self.ports.iter_mut().zip(&mut self.waiting).enumerate() {
            self.came.clear();
            // Its ring is full: what the back sends waits on the vif's.
            let takes = port.room() == Room::Now;
            self.stands |= !takes;
            let came = match &mut self.hook {
                _ if !takes => 0,
                Some(hook) => hook.recv(&mut self.guest, i, &mut self.came)?,
                None if self.lends => self.guest.recv_by_reference(i, &mut self.came, &mut self.lent, 1)?,
                None => self.guest.recv(i, &mut self.came, 1)?,
            };
            if came > 0 {
                self.referred += u64::from(self.lent.frames().count_ones());
                self.guest.hand_on(&mut self.came, &mut self.lent, port);
                moved = true;
            }
            self.guest.reclaim(i, 1)?;
            if let Some(own) = &mut self.own {
                moved |= own.round(&mut self.guest, i, port)?;
                continue;
            }
            if waiting.is_empty() {
                waiting.frames.clear();
                waiting.sent = 0;
                port.rx_burst(&mut waiting.frames);
            }
            if !waiting.is_empty() {
                let rest = waiting.frames.burst().skip(waiting.sent);
                let sent = self.guest.send(i, &rest).map_err(FrontendError::from)?;
                waiting.sent += sent;
                moved |= sent > 0;
            }
        }
        Ok(moved)
    }
}

impl<P: Platform, T: Transport> Uplink<'_, P, T>
where
    P::Events: WakeOn,
{
    /// Returns the vif by which the hook's frames leave, if there is one.
    fn exit(&mut self) -> Option<&mut Exit<P, T>> {
        self.hook.as_mut()?.exit()
    }

    /// True if frames wait for room on a ring. Only then do TX answers matter. It is checked after
    /// the last round, which may have read frames from the tap and found no room.
    fn is_full(&self) -> bool {
        self.waiting.iter().any(|w| !w.is_empty()) || self.own.as_ref().is_some_and(OwnBuffers::waits)
    }

    /// Prints how many frames of this connection were sent by reference, if an option asks for
    /// that.
    fn print_references(&self, name: &str) -> std::io::Result<()> {
        let vif = self.guest.vif();
        let stats = (0..vif.nr_queues()).filter_map(|i| vif.queue(i)).map(|queue| queue.stats());
        let (sent, by_reference, came) = stats.fold((0, 0, 0), |(sent, by_reference, came), (tx, rx)| {
            (sent + tx.frames, by_reference + tx.gref_mapping, came + rx.frames)
        });
        if self.own.is_some() {
            screen::print(format_args!(
                "interface {name}: sent {sent} frames, {by_reference} of them from their own pages"
            ))?;
        }
        if self.lends {
            let referred = self.referred;
            screen::print(format_args!(
                "interface {name}: received {came} frames, {referred} of them by reference"
            ))?;
        }
        Ok(())
    }

    /// Makes the interface follow the vif, which has connected or closed, or both.
    fn follow(&mut self) -> Result<()> {
        self.link(false);
        self.drops.keep(&self.ports);
        self.ports.clear();
        let queues = self.guest.vif().nr_queues();
        if queues > 0 {
            self.takes = self.guest.vif().takes();
            self.check_interface();
            self.limit_mtu();
            match self.tap.ports(queues, self.takes) {
                Ok(ports) => self.ports = ports,
                Err(e) => {
                    let text = format!("{e}; the backend's frames wait meanwhile");
                    if self.check.failed.as_ref() != Some(&text) {
                        // LOG: once for each reason, of the process' own front.
                        log::warn!("{text}");
                    }
                    self.check.failed = Some(text);
                    return Ok(());
                }
            }
            self.check.failed = None;
            self.ports.iter().try_for_each(|port| self.arrivals.add(port, 0))?;
            // Frames that wait for the next connection are kept; with fewer queues some have no
            // place any more.
            self.waiting.resize_with(queues, || Waiting { frames: Arena::new(), sent: 0 });
            self.link(true);
            self.begin_to_announce();
        }
        self.guest.log_state();
        Ok(())
    }

    /// Checks whether the interface still exists, and creates it again if it was removed.
    fn check_interface(&mut self) {
        self.check.at = Some(Instant::now());
        let now = self.tap.whereabouts();
        match (&self.check.seen, &now) {
            (_, Whereabouts::Gone) => return self.make_again(),
            (before, now) if before == now => return,
            // LOG: once for each time that this guest's root does it.
            (Whereabouts::Here(before), Whereabouts::Here(name)) => {
                log::info!("interface {before} is called {name} now, and stays in use");
            }
            // LOG: as above.
            (_, Whereabouts::Here(name)) => log::info!("interface {name} is in this network namespace again"),
            // LOG: as above.
            (_, Whereabouts::Elsewhere) => log::info!(
                "interface {} was moved to another network namespace, and stays in use; its MTU is not changed from here",
                self.tap.name()
            ),
        }
        self.check.seen = now;
    }

    fn make_again(&mut self) {
        let name = self.tap.name();
        let set_up = || -> std::io::Result<()> {
            let interface = self.tap.interface();
            interface.set_address(self.mac)?;
            interface.set_mtu(self.mtu)?;
            self.tap.carrier(!self.ports.is_empty())
        };
        match self.tap.make_again() {
            Ok(()) => {
                let rest = set_up().map_or_else(|e| format!(" ({e})"), |()| String::new());
                (self.check.failed, self.check.seen) = (None, Whereabouts::Here(name.clone()));
                self.mtu_limit = MtuLimit::default();
                self.limit_mtu();
                // LOG: once for each time that this guest's root removes it.
                log::warn!(
                    "interface {name} was removed, and is made again{rest}; it is down and has no addresses: ip link set {name} up, and set its addresses and routes again"
                );
            }
            Err(e) => {
                let text = format!(
                    "interface {name} was removed, and cannot be made again, so its frames are lost: {e}"
                );
                if self.check.failed.as_ref() != Some(&text) {
                    // LOG: once for each reason.
                    log::warn!("{text}");
                }
                self.check.failed = Some(text);
            }
        }
    }

    /// Starts to announce the guest's address, on a new connection.
    fn begin_to_announce(&mut self) {
        let now = Instant::now();
        self.announces_at = ANNOUNCES_AFTER.map(|after| Some(now + after));
    }

    /// Returns the time left until the interface's addresses must be announced.
    fn announces_in(&self) -> Option<Duration> {
        let first = self.announces_at.iter().flatten().min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }

    /// Announces the interface's addresses to the network, if that is due. If there is no room,
    /// nothing is sent, since the kernel's own frames are ahead and announce the address as well.
    fn announce(&mut self) -> Result<()> {
        let Some(at) = self.announces_at.iter_mut().find(|at| at.is_some_and(|at| at <= Instant::now()))
        else {
            return Ok(());
        };
        *at = None;
        let mut frames = Arena::new();
        let interface = self.tap.interface();
        if let Err(e) = interface.index().and_then(|index| announce(index, &mut frames)) {
            log::info!("{}: its addresses are not announced: {e}", interface.name());
        }
        self.guest.send(0, &frames.burst()).map_err(FrontendError::from)?;
        Ok(())
    }

    /// Limits the MTU of the interface if the back accepts only one slot for a frame.
    fn limit_mtu(&mut self) {
        let vif = self.guest.vif();
        let buffers = vif.queue(0).and_then(|queue| queue.staging_lens().0);
        let one_slot = || OneSlot::with_buffers(buffers.map(DataLen::value));
        let most = (!vif.takes_sg()).then(|| one_slot().mtu());
        let interface = self.tap.interface();
        let name = interface.name();
        // LOG: these are of the process' own front, once a connection.
        match self.mtu_limit.apply(&interface, most) {
            Ok(None) => {}
            Ok(Some(MtuChange::Limited { from, to })) => log::warn!(
                "the MTU of {name} is {to} now, and was {from}: the backend takes no packets longer than that (it does not offer feature-sg)"
            ),
            // LOG: as above.
            Ok(Some(MtuChange::Restored(mtu))) => {
                log::info!("the MTU of {name} is {mtu} again: the backend takes packets of any length");
            }
            // LOG: as above.
            Err(e) => match most {
                Some(mtu) => log::warn!(
                    "the backend accepts no packets longer than {mtu} bytes (it does not offer feature-sg), so longer ones are dropped, and {e}; set the MTU by hand: ip link set {name} mtu {mtu}"
                ),
                // LOG: as above.
                None => log::warn!(
                    "the backend takes packets of any length again, and {e}; set the MTU by hand: ip link set {name} mtu MTU"
                ),
            },
        }
    }

    /// Tells the kernel whether there is a link.
    fn link(&self, up: bool) {
        if let Err(e) = self.tap.carrier(up) {
            log::info!("{}: cannot set the interface's carrier: {e}", self.tap.name());
        }
    }
}
