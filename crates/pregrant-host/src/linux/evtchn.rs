//! Event channels by `/dev/xen/evtchn`.
//!
//! ```text
//!   wait:    poll, read: local ports that fired, each masked by the kernel until it is written back
//!   unmask:  write the port, if it has fired
//! ```
//! The masked ports are tracked here, because a worker unmasks all its ports before it sleeps, and
//! mostly only one of them has fired.
//!
//! All ends of a handle share one descriptor, which only its thread reads; a thread with a handle
//! of its own gets only its own ends' events. When a process dies, its ends close, and Xen makes
//! the peers' ends unbound, waiting for the same domain.
//!
//! What a peer may do: send at any rate. A masked port costs nothing, and is unmasked once its ring
//! was checked.

use super::device_node::{EVTCHN, Node, NodeError};
use super::ioctl::{
    self, EVTCHN_BIND_INTERDOMAIN, EVTCHN_BIND_UNBOUND, EVTCHN_NOTIFY, EVTCHN_RESET, EVTCHN_UNBIND, pair,
};
use crate::counters::Tally;
use crate::line_budget::LineBudget;
use crate::wake::{Extras, Slept, WakeOn};
use pregrant::platform::{Events, ReadySet};
use pregrant::{DomId, EvtchnPort, PlatformError};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Largest number of ports returned by one read.
const PORTS_A_READ: usize = 256;

/// The event channel ends of a handle.
#[derive(Debug)]
pub struct Evtchn {
    node: Arc<Node>,
    tally: Arc<Tally>,
    extras: Extras,
    masked: RefCell<Masked>,
    /// The read buffer, which is kept so that it is zeroed only once.
    taken: RefCell<Box<[u8; PORTS_A_READ * 4]>>,
}

/// The ports that fired and are masked, with one bit for each local port number.
#[derive(Default, Debug)]
struct Masked {
    bits: Vec<u64>,
    /// True if the kernel dropped events, so that any port may be masked.
    any: bool,
}

impl Masked {
    fn insert(&mut self, port: EvtchnPort) {
        let (word, bit) = (port.0 as usize / 64, port.0 % 64);
        if word >= self.bits.len() {
            self.bits.resize(word + 1, 0);
        }
        self.bits[word] |= 1 << bit;
    }

    /// Clears the port's bit. Returns true if the port is masked and must be unmasked.
    fn take(&mut self, port: EvtchnPort) -> bool {
        let (word, bit) = (port.0 as usize / 64, port.0 % 64);
        let Some(word) = self.bits.get_mut(word) else { return self.any };
        let was = *word >> bit & 1 != 0;
        *word &= !(1 << bit);
        was || self.any
    }
}

/// One end of an event channel. Dropping it closes the end, which makes the peer's end unbound.
#[derive(Debug)]
pub struct Channel {
    node: Arc<Node>,
    port: EvtchnPort,
    /// The peer's end; None if this end was offered.
    bound_to: Option<(DomId, EvtchnPort)>,
}

impl Evtchn {
    pub(super) fn open(tally: Arc<Tally>) -> Result<Self, NodeError> {
        Ok(Self {
            node: Arc::new(Node::open(EVTCHN)?),
            tally,
            extras: Extras::default(),
            masked: RefCell::default(),
            taken: RefCell::new(Box::new([0; PORTS_A_READ * 4])),
        })
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

    /// Reads the ports that fired. The kernel masks each port that it reports.
    fn take(&self, ready: &mut ReadySet) -> bool {
        let mut bytes = self.taken.borrow_mut();
        self.tally.syscalls.add(1);
        match rustix::io::read(&*self.node, &mut bytes[..]) {
            Ok(n) => {
                let ports = bytes[..n].chunks_exact(4).filter_map(|p| p.first_chunk::<4>());
                let mut masked = self.masked.borrow_mut();
                for port in ports.map(|p| EvtchnPort(u32::from_ne_bytes(*p))) {
                    masked.insert(port);
                    ready.ports.push(port);
                }
            }
            Err(Errno::FBIG) => {
                // The kernel's buffer overflowed. The lost ports are unknown, and each stays masked
                // until it is checked.
                DROPPED
                    .warn(format_args!("{node}: event ring overflowed, some events are lost; resetting it and checking all queues", node = EVTCHN.path));
                // SAFETY: this call takes no structure.
                let _ = unsafe { ioctl::call(self.node.as_fd(), EVTCHN_RESET, &mut []) };
                self.masked.borrow_mut().any = true;
                ready.others = true;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(e) => UNREAD.error(format_args!("{}: cannot read events: {e}", EVTCHN.path)),
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

    /// Binds a channel to this handle. Xen makes the peer's end unbound, which then waits for this
    /// domain, with whichever handle it binds.
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
            // The peer is gone or being replaced, which the device's state shows.
            log::debug!("{}: notify {}: {e}", EVTCHN.path, chan.port.0);
        }
    }

    fn unmask(&self, chan: &Channel) {
        if !self.masked.borrow_mut().take(chan.port) {
            return;
        }
        self.tally.syscalls.add(1);
        if let Err(e) = rustix::io::write(&*self.node, &chan.port.0.to_ne_bytes()) {
            log::debug!("{}: unmask {}: {e}", EVTCHN.path, chan.port.0);
        }
    }

    fn wait(&self, ready: &mut ReadySet, max: Option<Duration>) {
        ready.ports.clear();
        ready.others = false;
        self.extras.clear();
        if max == Some(Duration::ZERO) {
            self.take(ready);
            return;
        }
        // In a PV domain reading the clock is a system call, so read it only after a sleep that
        // ended early, perhaps by a signal.
        let (mut left, mut until) = (max, None);
        loop {
            self.tally.syscalls.add(1);
            let slept = self.extras.sleep(&*self.node, left);
            if slept == Slept::Own && self.take(ready) || self.extras.woke() || slept == Slept::Over {
                return;
            }
            // A `max` beyond the clock's range means no timeout. The part already slept is slept
            // once more, and only once.
            until = until.or_else(|| max.and_then(|max| Instant::now().checked_add(max)));
            left = until.map(|until: Instant| until.saturating_duration_since(Instant::now()));
        }
    }
}

impl WakeOn for Evtchn {
    fn extras(&self) -> &Extras {
        &self.extras
    }
    fn check_now(&self) {
        self.tally.syscalls.add(1);
        self.extras.sleep(&*self.node, Some(Duration::ZERO));
    }
}

/// Limits the log lines about dropped events, which guests that send events and reconnect could
/// repeat without end.
static DROPPED: LineBudget = LineBudget::new();
static UNREAD: LineBudget = LineBudget::new();
static UNCLOSED: LineBudget = LineBudget::new();

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the structure is 4 bytes.
        let closed = unsafe { ioctl::call(self.node.as_fd(), EVTCHN_UNBIND, &mut [self.port.0.into()]) };
        if let Err(e) = closed {
            UNCLOSED.warn(format_args!(
                "{node}: cannot close event channel {port}: {e}",
                node = EVTCHN.path,
                port = self.port.0
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_unmasked_once_after_it_fired_and_each_time_where_events_were_dropped() {
        let mut masked = Masked::default();
        assert!(!masked.take(EvtchnPort(70)));
        masked.insert(EvtchnPort(70));
        masked.insert(EvtchnPort(6));
        assert!(!masked.take(EvtchnPort(5)) && masked.take(EvtchnPort(6)) && masked.take(EvtchnPort(70)));
        assert!(!masked.take(EvtchnPort(70)) && !masked.take(EvtchnPort(4096)));
        masked.any = true;
        assert!((0..2).all(|_| masked.take(EvtchnPort(70)) && masked.take(EvtchnPort(4096))));
    }
}
