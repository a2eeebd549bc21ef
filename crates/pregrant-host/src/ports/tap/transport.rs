//! Moves bursts between a queue and its tap by one of several transports.

use super::probe;
use super::tap_log::TapLines;
use super::transport_kind::TransportKind;
use super::uring::Ring;
use super::vhost::SharedVhost;
use crate::line_budget::LineBudget;
use rustix::fd::OwnedFd;
use std::sync::Arc;

/// The transport that moves a queue's bursts.
#[derive(Debug)]
pub enum Transport {
    Vhost(Arc<SharedVhost>),
    Ring(Box<Ring>),
    Calls,
}

impl Transport {
    /// Returns the io_uring, if that is the transport.
    #[inline(always)]
    pub fn ring(&mut self) -> Option<&mut Ring> {
        if let Self::Ring(ring) = self { Some(ring) } else { None }
    }

    /// Returns the vhost-net rings, if these are the transport.
    #[inline(always)]
    pub fn vhost(&self) -> Option<&Arc<SharedVhost>> {
        if let Self::Vhost(vhost) = self { Some(vhost) } else { None }
    }
}

impl TransportKind {
    /// Runs the measurement now that the first [transport](Self::transport) would otherwise wait
    /// for.
    pub fn measure(self) {
        if self == Self::Cheaper {
            probe::cheapest();
        }
    }

    /// Creates the transport of a queue whose header has 12 bytes.
    pub fn transport(self, fd: &Arc<OwnedFd>, lines: &Arc<TapLines>) -> Transport {
        // Each queue of each connection may cause the line.
        static LINES: LineBudget = LineBudget::new();
        match self {
            Self::Cheaper => match probe::cheapest() {
                Self::Vhost => match SharedVhost::new(Arc::clone(fd), Arc::clone(lines)) {
                    Ok(vhost) => Transport::Vhost(Arc::new(vhost)),
                    Err(_) => Self::Frame.transport(fd, lines),
                },
                Self::Burst => {
                    Ring::of_tap(fd).map_or(Transport::Calls, |ring| Transport::Ring(Box::new(ring)))
                }
                _ => Transport::Calls,
            },
            Self::Vhost => match SharedVhost::new(Arc::clone(fd), Arc::clone(lines)) {
                Ok(vhost) => Transport::Vhost(Arc::new(vhost)),
                Err(e) => {
                    LINES.warn(format_args!(
                        "tap: vhost-net is unavailable ({e}); using io_uring or one system call per frame"
                    ));
                    Self::Cheaper.transport(fd, lines)
                }
            },
            Self::Burst => match Ring::of_tap(fd) {
                Ok(ring) => Transport::Ring(Box::new(ring)),
                Err(e) => {
                    LINES.warn(format_args!(
                        "tap: io_uring is unavailable ({e}); using one system call per frame"
                    ));
                    Transport::Calls
                }
            },
            Self::Frame => Transport::Calls,
        }
    }
}
