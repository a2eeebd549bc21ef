//! Event channels: `/dev/xen/evtchn`.
//!
//! ```text
//!   wait:    poll, read: local ports that fired, each masked by the kernel until it is written back
//!   unmask:  write the port
//! ```
//! All ends of a handle share one descriptor, of which its thread alone reads; a thread with a handle of its own hears of its own
//! ends. A process that dies loses its ends, and Xen makes the peers' ends unbound, waiting for the same domain.
//!
//! What a peer may do: send at any rate. A port that is masked costs nothing, and is unmasked once its ring was looked
//! at.

use super::ioctl::{
    self, EVTCHN_BIND_INTERDOMAIN, EVTCHN_BIND_UNBOUND, EVTCHN_NOTIFY, EVTCHN_RESET, EVTCHN_UNBIND, pair,
};
use super::node::{EVTCHN, Node, NodeError};
use crate::counters::Tally;
use crate::line_budget::LineBudget;
use crate::wake::{Extras, WakeOn};
use pregrant::platform::{Events, ReadySet};
use pregrant::{DomId, EvtchnPort, PlatformError};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Ports taken by one read.
const PORTS_A_READ: usize = 256;

/// This handle's event channel ends.
#[derive(Debug)]
pub struct Evtchn {
    node: Arc<Node>,
    tally: Arc<Tally>,
    extras: Extras,
}

/// One end; closed on drop, which makes the peer's end unbound.
#[derive(Debug)]
pub struct Channel {
    node: Arc<Node>,
    port: EvtchnPort,
    /// The peer's end, unless this one was offered.
    bound_to: Option<(DomId, EvtchnPort)>,
}

impl Channel {
    /// The local number.
    pub(super) fn port(&self) -> EvtchnPort {
        self.port
    }
}

impl Evtchn {
    pub(super) fn open(tally: Arc<Tally>) -> Result<Self, NodeError> {
        Ok(Self { node: Arc::new(Node::open(EVTCHN)?), tally, extras: Extras::default() })
    }

    fn opened(
        &self,
        port: Result<i32, Errno>,
        bound_to: Option<(DomId, EvtchnPort)>,
        op: &'static str,
    ) -> Result<Channel, PlatformError> {
        let port = port.and_then(|port| u32::try_from(port).map_err(|_| Errno::PROTO));
        let port = port.map_err(|e| PlatformError { op, code: e.raw_os_error() })?;
        Ok(Channel { node: Arc::clone(&self.node), port: EvtchnPort(port), bound_to })
    }

    /// Takes what fired. The kernel masks each port that it reports.
    fn take(&self, ready: &mut ReadySet) -> bool {
        let mut bytes = [0; PORTS_A_READ * 4];
        self.tally.syscalls.add(1);
        match rustix::io::read(&*self.node, &mut bytes) {
            Ok(n) => {
                let ports = bytes[..n].chunks_exact(4).filter_map(|p| p.first_chunk::<4>());
                ready.ports.extend(ports.map(|p| EvtchnPort(u32::from_ne_bytes(*p))));
            }
            Err(Errno::FBIG) => {
                // More events than the kernel keeps: which ones is not known, and who lost one stays masked until it is looked at.
                DROPPED.warn(format_args!("{}: the kernel dropped events; starting anew", EVTCHN.path));
                // SAFETY: this call takes no structure.
                let _ = unsafe { ioctl::call(self.node.as_fd(), EVTCHN_RESET, &mut []) };
                ready.others = true;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(e) => UNREAD.say(log::Level::Error, format_args!("{}: read: {e}", EVTCHN.path)),
        }
        ready.others || !ready.ports.is_empty()
    }
}

impl Events for Evtchn {
    type Chan = Channel;

    fn offer(&self, to: DomId) -> Result<(Channel, EvtchnPort), PlatformError> {
        // SAFETY: the structure is 4 bytes.
        let port = unsafe { ioctl::call(self.node.as_fd(), EVTCHN_BIND_UNBOUND, &mut [to.0.into()]) };
        let channel = self.opened(port, None, "offer an event channel")?;
        let port = channel.port;
        Ok((channel, port))
    }

    fn bind(&self, to: DomId, port: EvtchnPort) -> Result<Channel, PlatformError> {
        let mut words = [pair(to.0.into(), port.0)];
        // SAFETY: the structure is 8 bytes.
        let near = unsafe { ioctl::call(self.node.as_fd(), EVTCHN_BIND_INTERDOMAIN, &mut words) };
        self.opened(near, Some((to, port)), "bind to the peer's event channel")
    }

    /// Xen makes the peer's end unbound, and that end waits for this domain: whichever handle binds.
    fn adopt(&self, chan: Channel) -> Result<Channel, PlatformError> {
        let offered = PlatformError {
            op: "take over an event channel's end that was offered, not bound",
            code: Errno::INVAL.raw_os_error(),
        };
        let (to, port) = chan.bound_to.ok_or(offered)?;
        drop(chan);
        self.bind(to, port)
    }

    fn local(&self, chan: &Channel) -> EvtchnPort {
        chan.port
    }

    fn notify(&self, chan: &Channel) {
        self.tally.notifications.add(1);
        self.tally.syscalls.add(1);
        // SAFETY: the structure is 4 bytes.
        let sent = unsafe { ioctl::call(self.node.as_fd(), EVTCHN_NOTIFY, &mut [chan.port.0.into()]) };
        if let Err(e) = sent {
            // The peer is gone, or is being replaced: the ring's state tells, not this.
            log::debug!("{}: notify {}: {e}", EVTCHN.path, chan.port.0);
        }
    }

    fn unmask(&self, chan: &Channel) {
        self.tally.syscalls.add(1);
        if let Err(e) = rustix::io::write(&*self.node, &chan.port.0.to_ne_bytes()) {
            log::debug!("{}: unmask {}: {e}", EVTCHN.path, chan.port.0);
        }
    }

    fn wait(&self, ready: &mut ReadySet, max: Option<Duration>) {
        ready.ports.clear();
        ready.others = false;
        self.extras.clear();
        if self.take(ready) || max == Some(Duration::ZERO) {
            return;
        }
        // A `max` beyond the clock's range is for ever.
        let until = max.and_then(|max| Instant::now().checked_add(max));
        loop {
            self.tally.syscalls.add(1);
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let fired = self.extras.sleep(&*self.node, left);
            if fired && self.take(ready)
                || self.extras.woke()
                || until.is_some_and(|until| Instant::now() >= until)
            {
                return;
            }
        }
    }
}

impl WakeOn for Evtchn {
    fn extras(&self) -> &Extras {
        &self.extras
    }
    fn look_now(&self) {
        self.tally.syscalls.add(1);
        self.extras.sleep(&*self.node, Some(Duration::ZERO));
    }
}

/// Of guests that send events, and come and go, without end.
static DROPPED: LineBudget = LineBudget::new();
static UNREAD: LineBudget = LineBudget::new();
static UNCLOSED: LineBudget = LineBudget::new();

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the structure is 4 bytes.
        let closed = unsafe { ioctl::call(self.node.as_fd(), EVTCHN_UNBIND, &mut [self.port.0.into()]) };
        if let Err(e) = closed {
            UNCLOSED.warn(format_args!(
                "{}: event channel {} could not be closed: {e}",
                EVTCHN.path, self.port.0
            ));
        }
    }
}
