//! `pregrant front --loopback DIR`: a guest of a software Xen.

use super::{FrontArgs, Result, run_guest};
use crate::loopback::no_machine;
use crate::stop::Stop;
use pregrant::DomId;
use pregrant::platform::Platform;
use pregrant::xenstore::{Client, XsError, path};
use pregrant_host::drivers::Frontend;
use pregrant_host::loopback::{Loopback, LoopbackError, Owned};
use pregrant_host::wake::WakeOn;
use pregrant_host::xenstored::UnixTransport;
use pregrant_lab::machine;
use pregrant_lab::toolstack;
use std::error::Error;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a guest, or a vif of it, is waited for that may be about to be made, or whose last process is dying.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same for a guest that is known to be made again, as soon as its backend or the toolstack's patience lets it.
const LONG_PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);
/// Bytes of a staging buffer, where nothing is asked for.
const DATA_LEN: u32 = 2048;

pub(super) fn run(dir: &Path, args: &FrontArgs) -> Result<()> {
    let stop = Stop::on_signals()?;
    let domid = DomId(args.domain.ok_or("--loopback needs --domain: which guest?")?);
    let start = Instant::now();
    let mut coming = start;
    let (guest, _owned) = loop {
        let (why, patient) = match join(dir, domid, args, &stop) {
            Ok(joined) => break joined,
            Err(NotYet::Coming(e)) => {
                coming = Instant::now();
                (e, start.elapsed() < LONG_PATIENCE)
            }
            Err(NotYet::Perhaps(e)) => (e, coming.elapsed() < PATIENCE),
            Err(NotYet::Never(e)) => return Err(e),
        };
        if !patient || stop.asked() {
            return Err(why);
        }
        std::thread::sleep(LOOK);
    };
    run_guest(guest, args, &stop).map_err(|e| machine::ended_or(dir, e))
}

/// Why the guest cannot be had.
enum NotYet {
    /// It is being made again.
    Coming(Box<dyn Error>),
    /// The toolstack may be about to make it again, or its last front is dying.
    Perhaps(Box<dyn Error>),
    /// It will not come by itself.
    Never(Box<dyn Error>),
}

impl<E: Into<Box<dyn Error>>> From<E> for NotYet {
    fn from(e: E) -> Self {
        Self::Never(e.into())
    }
}

/// Why there is no such guest, and what to do: it may be on its way.
fn no_guest(dir: &Path, domid: DomId) -> NotYet {
    let shown = dir.display();
    let vifs = UnixTransport::connect(machine::store_socket(dir))
        .ok()
        .and_then(|transport| toolstack::vifs_of(&mut Client::new(transport), domid).ok());
    match vifs {
        Some(vifs) if !vifs.is_empty() => NotYet::Coming(
            format!(
                "{shown}: {domid} has ended and is being made again, which waits for its backend to let go of the old one; is \
                 that process stopped? Try again in a second"
            )
            .into(),
        ),
        _ => NotYet::Perhaps(
            format!(
                "{shown}: there is no {domid}; make it: pregrant loopback attach --dir {shown} {}",
                domid.0
            )
            .into(),
        ),
    }
}

/// Waits until the toolstack has made the vif. The guest is there before it; who left it now, as its only process, would end
/// it.
fn await_vif(
    xs: &mut Client<UnixTransport>,
    domid: DomId,
    handle: u32,
    stop: &Stop,
) -> std::result::Result<(), XsError> {
    let key = format!("{}/device/vif/{handle}/backend-id", path::home(domid));
    let start = Instant::now();
    while xs.read_if_there(&key)?.is_none() && start.elapsed() < PATIENCE && !stop.asked() {
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Attaches to the guest, whose only front this is.
fn join(
    dir: &Path,
    domid: DomId,
    args: &FrontArgs,
    stop: &Stop,
) -> std::result::Result<(Frontend<Loopback, UnixTransport>, Owned), NotYet> {
    let platform = Loopback::attach(&machine::broker_socket(dir), domid).map_err(|e| match e {
        LoopbackError::UnknownDomain { .. } => no_guest(dir, domid),
        other => NotYet::Never(no_machine(dir, other)),
    })?;
    let owned = platform.own(&format!("front/vif{}", args.vif)).map_err(|e| match e {
        LoopbackError::Held { .. } => NotYet::Perhaps(
            format!("vif {} of {domid} has a front already; stop that process first", args.vif).into(),
        ),
        other => NotYet::Never(no_machine(dir, other)),
    })?;
    let mut xs = machine::store_of(&platform).map_err(NotYet::Never)?;
    await_vif(&mut xs, domid, args.vif, stop)?;
    platform.events().also_wake_on(xs.transport().as_fd())?;
    platform.events().also_wake_on(stop.as_fd())?;
    let guest = Frontend::new(platform, xs, args.vif, args.config(DATA_LEN), true);
    Ok((guest.map_err(|e| NotYet::Perhaps(e.into()))?, owned))
}
