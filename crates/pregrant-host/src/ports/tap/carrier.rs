//! What carries a queue's bursts to its tap and back.

use super::lines::TapLines;
use super::probe;
use super::ring::Ring;
use super::vhost::SharedVhost;
use super::way::TapWay;
use crate::line_budget::LineBudget;
use rustix::fd::OwnedFd;
use std::sync::Arc;

/// What carries a queue's bursts.
#[derive(Debug)]
pub enum Carrier {
    Vhost(Arc<SharedVhost>),
    Ring(Box<Ring>),
    Calls,
}

impl Carrier {
    /// io_uring's ring, where that carries them.
    #[inline(always)]
    pub fn ring(&mut self) -> Option<&mut Ring> {
        if let Self::Ring(ring) = self { Some(ring) } else { None }
    }

    /// vhost-net's rings, where these carry them.
    #[inline(always)]
    pub fn vhost(&self) -> Option<&Arc<SharedVhost>> {
        if let Self::Vhost(vhost) = self { Some(vhost) } else { None }
    }
}

impl TapWay {
    /// What carries the bursts of this queue, whose header has 12 bytes.
    pub fn carrier(self, fd: &Arc<OwnedFd>, lines: &Arc<TapLines>) -> Carrier {
        // Each queue of each connection asks.
        static LINES: LineBudget = LineBudget::new();
        match self {
            Self::Cheaper => match probe::cheapest() {
                Self::Vhost => match SharedVhost::new(Arc::clone(fd), Arc::clone(lines)) {
                    Ok(vhost) => Carrier::Vhost(Arc::new(vhost)),
                    Err(_) => Self::Frame.carrier(fd, lines),
                },
                Self::Burst => Ring::of_tap(fd).map_or(Carrier::Calls, |ring| Carrier::Ring(Box::new(ring))),
                _ => Carrier::Calls,
            },
            Self::Vhost => match SharedVhost::new(Arc::clone(fd), Arc::clone(lines)) {
                Ok(vhost) => Carrier::Vhost(Arc::new(vhost)),
                Err(e) => {
                    LINES.warn(format_args!(
                        "tap: vhost-net is unavailable ({e}); using io_uring or one system call per frame"
                    ));
                    Self::Cheaper.carrier(fd, lines)
                }
            },
            Self::Burst => match Ring::of_tap(fd) {
                Ok(ring) => Carrier::Ring(Box::new(ring)),
                Err(e) => {
                    LINES.warn(format_args!(
                        "tap: io_uring is unavailable ({e}); using one system call per frame"
                    ));
                    Carrier::Calls
                }
            },
            Self::Frame => Carrier::Calls,
        }
    }
}
