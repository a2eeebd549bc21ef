//! Measures once per process which transport to a tap is cheapest on this machine.
//!
//! ```text
//!   pregrant0, a tap of the probe's own <-- 32 frames, each way in turn, until the kernel has them --> the least time of several
//! ```
//! The cost of a system call depends on the machine: about 100 ns natively, and many times that in
//! a PV domain, where each one passes through the hypervisor. A request in a ring also costs the
//! kernel something, and its worker must be woken. A back measures at its start, before any guest
//! waits; that takes some milliseconds if calls are expensive. The minimum of several tries counts:
//! on a busy machine a try may take too long, but never too short.
//!
//! The probe has an interface of its own, which disappears with its descriptor. Its frames have a
//! protocol number for experiments.

use super::header::HEADER;
use super::tap_log::TapLines;
use super::transport_kind::TransportKind;
use super::tun::made;
use super::uring::Ring;
use super::vhost::Vhost;
use crate::ports::netdev_ioctl::Interface;
use rustix::fd::{AsFd, OwnedFd};
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The interface's name.
const NAME: &str = "pregrant%d";
/// Number of tries for each transport, of which the fastest counts.
const TRIES: usize = 5;
/// Number of frames in a burst.
const FRAMES: usize = 32;
/// Numbers of bursts per try; the first with which the clock advances is used, since some clocks of
/// virtual machines advance in milliseconds.
const ROUNDS: [u32; 3] = [1, 8, 64];

/// A frame of minimal length, with an EtherType for experiments.
const FRAME: [u8; 60] = {
    let mut frame = [0; 60];
    (frame[12], frame[13]) = (0x88, 0xB5);
    frame
};

/// Returns the cheapest transport on this machine, which is logged once.
pub fn cheapest() -> TransportKind {
    static CHEAPEST: OnceLock<TransportKind> = OnceLock::new();
    *CHEAPEST.get_or_init(|| match Probe::new().and_then(|probe| probe.costs()) {
        Ok(costs) => {
            let way = costs.cheapest();
            let each = match way {
                TransportKind::Vhost => "vhost-net",
                TransportKind::Burst => "io_uring, one system call per burst",
                _ => "one system call per frame",
            };
            // LOG: once per process.
            log::info!("tap: using {each}; measured per frame: {costs}");
            way
        }
        Err(e) => {
            // LOG: once per process.
            log::info!("tap: using one system call per frame; cannot measure vhost-net and io_uring: {e}");
            TransportKind::Frame
        }
    })
}

/// The costs of a frame in a burst, by transport.
#[derive(Debug)]
struct Costs {
    frame: Duration,
    burst: io::Result<Duration>,
    vhost: io::Result<Duration>,
}

impl Costs {
    /// io_uring reads frames to more memory than single calls do, and vhost-net's worker perhaps to
    /// another CPU's cache. So each must be cheaper by a quarter than the one before to be chosen.
    fn cheapest(&self) -> TransportKind {
        let clearly = |a: Duration, than: Duration| a + a / 4 < than;
        let (mut way, mut least) = (TransportKind::Frame, self.frame);
        for (other, cost) in [(TransportKind::Burst, &self.burst), (TransportKind::Vhost, &self.vhost)] {
            if let Ok(cost) = cost
                && clearly(*cost, least)
            {
                (way, least) = (other, *cost);
            }
        }
        way
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} by a call", self.frame)?;
        for (by, cost) in [("io_uring", &self.burst), ("vhost-net", &self.vhost)] {
            match cost {
                Ok(cost) => write!(f, ", {cost:?} by {by}")?,
                Err(e) => write!(f, ", no {by}: {e}")?,
            }
        }
        Ok(())
    }
}

/// The interface that is created for the measurement.
struct Probe {
    fd: Arc<OwnedFd>,
}

impl Probe {
    fn new() -> io::Result<Self> {
        let (fd, name) = made(NAME, 0)?;
        // It should send no frames of its own, if that can be set.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
        Interface::new(&name)?.set_up(true)?;
        Ok(Self { fd: Arc::new(fd) })
    }

    /// Measures the transports in turn, so that a busy phase of the machine affects all of them.
    fn costs(&self) -> io::Result<Costs> {
        let whole = [&[0; HEADER][..], &FRAME].concat();
        let mut calls = Ok(());
        let mut ring = Ring::of_tap(&self.fd);
        let mut vhost = <Vhost>::new(Arc::clone(&self.fd), Arc::new(TapLines::new(NAME)));
        let mut least = [Duration::MAX; 3];
        for rounds in ROUNDS {
            least = [Duration::MAX; 3];
            for _ in 0..TRIES {
                let [by_call, by_ring, by_vhost] = &mut least;
                time(&mut calls, by_call, rounds, |()| {
                    (0..FRAMES).try_for_each(|_| Ok(rustix::io::write(&self.fd, &whole).map(drop)?))
                });
                time(&mut ring, by_ring, rounds, |ring| {
                    ring.write(self.fd.as_fd(), [&whole[..]; FRAMES].into_iter())
                });
                time(&mut vhost, by_vhost, rounds, |vhost| {
                    let refused: usize = (0..FRAMES).map(|_| vhost.send(&[0; HEADER], &FRAME)).sum();
                    vhost.publish();
                    if refused > 0 { Err(io::Error::other("frames were refused")) } else { vhost.finish() }
                });
            }
            if least.iter().all(|time| !time.is_zero()) {
                break;
            }
        }
        calls?;
        let [frame, burst, by_vhost] = least;
        Ok(Costs { frame, burst: ring.map(|_| burst), vhost: vhost.map(|_| by_vhost) })
    }
}

/// Measures how long `with` needs for this many bursts, until one fails.
fn time<T>(
    with: &mut io::Result<T>,
    least: &mut Duration,
    rounds: u32,
    mut burst: impl FnMut(&mut T) -> io::Result<()>,
) {
    let Ok(carrier) = with else { return };
    let start = Instant::now();
    match (0..rounds).try_for_each(|_| burst(carrier)) {
        Ok(()) => *least = (*least).min(start.elapsed() / (rounds * FRAMES as u32)),
        Err(e) => *with = Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cheaper_by_less_than_a_fourth_is_not_taken() {
        let (ns, none) = (Duration::from_nanos, || Err(io::Error::other("there is none")));
        let way = |frame, burst, vhost| Costs { frame: ns(frame), burst, vhost }.cheapest();
        assert_eq!(way(1000, none(), none()), TransportKind::Frame);
        assert_eq!(way(1000, Ok(ns(900)), Ok(ns(850))), TransportKind::Frame);
        assert_eq!(way(1000, Ok(ns(700)), Ok(ns(600))), TransportKind::Burst);
        assert_eq!(way(1000, Ok(ns(700)), Ok(ns(500))), TransportKind::Vhost);
        assert_eq!(way(1000, none(), Ok(ns(500))), TransportKind::Vhost);
        // A clock that never advanced gives no result.
        assert_eq!(way(0, Ok(ns(0)), Ok(ns(0))), TransportKind::Frame);
    }
}
