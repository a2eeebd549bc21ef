//! A front's way into a guest of a loopback machine. The guest or its device may not exist yet, or
//! the guest's last process may be dying.
//!
//! ```text
//!   attach --no such guest--> being made again? LONG_PATIENCE : PATIENCE --> once more, or why not
//!     '--> which device? --> own its front --> the toolstack has made it? --> the front
//! ```

use crate::loopback_machine::{self, DRIVER, no_machine};
use crate::stop::Stop;
use pregrant::DomId;
use pregrant::platform::Platform;
use pregrant::xenbus::Class;
use pregrant::xenbus::toolstack;
use pregrant::xenstore::{Client, XsError, path};
use pregrant_host::UnixTransport;
use pregrant_host::wake::WakeOn;
use pregrant_loopback::{Loopback, LoopbackError, Owned};
use std::error::Error;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The time to wait for a guest or device that may be about to be created, or whose last process is
/// dying.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time to wait for a guest that is known to be restarting: as long as its backend or the
/// toolstack may need.
const LONG_PATIENCE: Duration = Duration::from_secs(30);
const CHECK: Duration = Duration::from_millis(5);

/// The device of a guest that a command asks for.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    pub dir: &'a Path,
    pub domid: DomId,
    pub class: Class,
}

/// Connects as the only front of the guest's device that `which` finds in xenstore. `made` creates
/// the result from the attachment.
pub fn join<G>(
    wanted: Wanted<'_>,
    stop: &Stop,
    mut which: impl FnMut(&mut Client<UnixTransport>) -> Result<u32>,
    mut make: impl FnMut(Loopback, Client<UnixTransport>, u32) -> Result<G>,
) -> Result<(G, Owned)> {
    let start = Instant::now();
    let mut coming = start;
    loop {
        let (why, patient) = match join_once(wanted, stop, &mut which, &mut make) {
            Ok(joined) => return Ok(joined),
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
        std::thread::sleep(CHECK);
    }
}

/// The reason why the guest is not available.
enum NotYet {
    /// The guest is being restarted.
    Coming(Box<dyn Error>),
    /// The guest may appear soon: the toolstack may create it again, or its last front is dying.
    Perhaps(Box<dyn Error>),
    /// The guest will not appear by itself.
    Never(Box<dyn Error>),
}

impl<E: Into<Box<dyn Error>>> From<E> for NotYet {
    fn from(e: E) -> Self {
        Self::Never(e.into())
    }
}

/// Explains why there is no such guest, and what to do. It may appear soon.
fn no_guest(Wanted { dir, domid, class }: Wanted<'_>) -> NotYet {
    let shown = dir.display();
    let devices = UnixTransport::connect(loopback_machine::store_socket(dir))
        .ok()
        .and_then(|transport| toolstack::backs_of(&mut Client::new(transport), DRIVER, class).ok());
    match devices {
        Some(devices) if devices.iter().any(|id| id.front == domid) => NotYet::Coming(
            format!(
                "{shown}: {domid} has ended and is being made again, which waits for its backend to let go of the old one; is \
                 that process stopped? Try again in a second"
            )
            .into(),
        ),
        _ => NotYet::Perhaps(
            format!(
                "{shown}: there is no {domid}; make it: pregrant-lab loopback attach --dir {} {}",
                loopback_machine::shell_word(dir),
                domid.0
            )
            .into(),
        ),
    }
}

/// Waits until the toolstack has created a device that the command may mean.
fn await_handle(
    xs: &mut Client<UnixTransport>,
    which: &mut impl FnMut(&mut Client<UnixTransport>) -> Result<u32>,
    stop: &Stop,
) -> Result<u32> {
    let start = Instant::now();
    loop {
        match which(xs) {
            Err(_) if start.elapsed() < PATIENCE && !stop.asked() => std::thread::sleep(CHECK),
            found => return found,
        }
    }
}

/// Waits until the toolstack has created the device. The guest exists before that. This process is
/// its only one, so that the guest would end if the process detached now.
fn await_device(
    xs: &mut Client<UnixTransport>,
    Wanted { domid, class, .. }: Wanted<'_>,
    handle: u32,
    stop: &Stop,
) -> std::result::Result<(), XsError> {
    let key = format!("{}/device/{}/{handle}/backend-id", path::home(domid), class.name());
    let start = Instant::now();
    while xs.read_if_there(&key)?.is_none() && start.elapsed() < PATIENCE && !stop.asked() {
        std::thread::sleep(CHECK);
    }
    Ok(())
}

fn join_once<G>(
    wanted: Wanted<'_>,
    stop: &Stop,
    which: &mut impl FnMut(&mut Client<UnixTransport>) -> Result<u32>,
    make: &mut impl FnMut(Loopback, Client<UnixTransport>, u32) -> Result<G>,
) -> std::result::Result<(G, Owned), NotYet> {
    let Wanted { dir, domid, class } = wanted;
    let platform = Loopback::attach(&loopback_machine::broker_socket(dir), domid).map_err(|e| match e {
        LoopbackError::UnknownDomain { .. } => no_guest(wanted),
        other => NotYet::Never(no_machine(dir, other)),
    })?;
    let mut xs = loopback_machine::store_of(&platform).map_err(NotYet::Never)?;
    let handle = await_handle(&mut xs, which, stop).map_err(NotYet::Never)?;
    let name = class.name();
    let owned = platform.own(&format!("front/{name}{handle}")).map_err(|e| match e {
        LoopbackError::Held { .. } => NotYet::Perhaps(
            format!("{name} {handle} of {domid} has a front already; stop that process first").into(),
        ),
        other => NotYet::Never(no_machine(dir, other)),
    })?;
    await_device(&mut xs, wanted, handle, stop)?;
    platform.events().also_wake_on(xs.transport().as_fd())?;
    let guest = make(platform, xs, handle).map_err(NotYet::Perhaps)?;
    Ok((guest, owned))
}
