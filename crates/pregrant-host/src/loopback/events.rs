//! Event channels: pending bits in shared memory, and a system call only to wake a sleeper.
//!
//! ```text
//!   notify:  route of our end (one load) -> pending bit in the peer's page -> asleep? eventfd
//!   wait:    take what is pending, mask it -> nothing? say "waiting", look once more, ppoll
//! ```
//!
//! The bits, and why no wake-up is lost: [`super::ledger::Upcall`]. An end whose peer died has no route: notifies go
//! nowhere until somebody binds again. A notify makes no system call when the peer is awake.
//!
//! What a peer may do: send at any rate (each event is masked until unmasked), or events for ends that are closed
//! (dropped).

use super::ledger::{PORTS, Route, SLOTS};
use super::peer::Peer;
use super::protocol::{Op, Request};
use super::{Core, errno};
use crate::counters::add;
use crate::line_budget::LineBudget;
use crate::wake::{Extras, WakeOn};
use pregrant::platform::{Events, ReadySet};
use pregrant::{DomId, EvtchnPort, PlatformError};
use rustix::io::Errno;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// This process' event channel ends.
#[derive(Debug)]
pub struct LoopbackEvents {
    core: Rc<Core>,
    extras: Extras,
}

/// One end; closed on drop, which makes the peer's end unbound.
#[derive(Debug)]
pub struct Channel {
    core: Rc<Core>,
    port: u32,
    /// Where notifies go, as of the route that was looked at last.
    target: RefCell<(Route, Option<Rc<Peer>>)>,
}

impl LoopbackEvents {
    pub(super) fn new(core: Rc<Core>) -> Self {
        Self { core, extras: Extras::default() }
    }

    /// Shows this end's events again, as if one had just come. For a driver that wants its own loop to run once.
    pub fn kick(&self, chan: &Channel) {
        self.core.own_upcall().raise(chan.port);
    }

    fn take(&self, ready: &mut ReadySet) -> bool {
        let open = self.core.open_ports.borrow();
        self.core.own_upcall().take(|port| {
            // A bit may come late from a peer of a closed end.
            if open[port as usize / 64] & 1 << (port % 64) != 0 {
                ready.ports.push(EvtchnPort(port));
            }
        });
        !ready.ports.is_empty()
    }

    /// Sleeps until woken, a descriptor is readable, or `max` has passed.
    fn sleep(&self, max: Option<Duration>) {
        self.core.forget_dead();
        add(&self.core.tally.syscalls, 1);
        if self.extras.sleep(&self.core.upcall, max) {
            add(&self.core.tally.syscalls, 1);
            let _ = rustix::io::read(&self.core.upcall, &mut [0; 8]);
        }
    }

    fn opened(&self, port: u64) -> Result<Channel, PlatformError> {
        let port = u32::try_from(port).ok().filter(|p| (*p as usize) < PORTS);
        let port = port.ok_or(errno("open an event channel", Errno::PROTO))?;
        self.core.open_ports.borrow_mut()[port as usize / 64] |= 1 << (port % 64);
        Ok(Channel { core: Rc::clone(&self.core), port, target: RefCell::new((Route(0), None)) })
    }
}

impl Events for LoopbackEvents {
    type Chan = Channel;

    fn offer(&self, to: DomId) -> Result<(Channel, EvtchnPort), PlatformError> {
        let reply = self.core.call(&Request::new(Op::Offer, 0, u32::from(to.0), 0));
        let reply = reply.map_err(|e| errno("offer an event channel", e))?;
        let channel = self.opened(reply.words[0])?;
        let port = EvtchnPort(channel.port);
        Ok((channel, port))
    }

    fn bind(&self, to: DomId, port: EvtchnPort) -> Result<Channel, PlatformError> {
        let reply = self.core.call(&Request::new(Op::Bind, port.0, u32::from(to.0), 0));
        let channel =
            self.opened(reply.map_err(|e| errno("bind to an event channel of the peer", e))?.words[0])?;
        // Events of the time without us are lost: as Xen does, let the driver look once.
        self.kick(&channel);
        Ok(channel)
    }

    fn local(&self, chan: &Channel) -> EvtchnPort {
        EvtchnPort(chan.port)
    }

    #[inline]
    fn notify(&self, chan: &Channel) {
        let route = Route(self.core.ledger.route(chan.port).load(Ordering::Acquire));
        if !route.is_bound() {
            return;
        }
        let mut target = chan.target.borrow_mut();
        if target.0 != route {
            *target = (route, self.core.peer(DomId(route.domid())).ok());
        }
        let Some(peer) = &target.1 else { return };
        // From shared memory: checked, so that a scribble is no panic.
        let (slot, port) = (route.slot(), route.port());
        if slot >= SLOTS || port as usize >= PORTS {
            return;
        }
        add(&self.core.tally.notifications, 1);
        if peer.ledger.upcall(slot).raise(port) {
            add(&self.core.tally.wakeups, 1);
            add(&self.core.tally.syscalls, 1);
            peer.wake(&self.core, slot);
        }
    }

    fn unmask(&self, chan: &Channel) {
        self.core.own_upcall().unmask(chan.port);
    }

    fn wait(&self, ready: &mut ReadySet, max: Option<Duration>) {
        ready.ports.clear();
        self.extras.clear();
        if self.take(ready) || max == Some(Duration::ZERO) {
            return;
        }
        // A `max` beyond the clock's range is for ever.
        let until = max.and_then(|max| Instant::now().checked_add(max));
        loop {
            if self.core.own_upcall().about_to_sleep() {
                self.sleep(until.map(|until| until.saturating_duration_since(Instant::now())));
                self.core.own_upcall().awake();
            }
            if self.take(ready) || self.extras.woke() || until.is_some_and(|until| Instant::now() >= until) {
                return;
            }
        }
    }
}

impl WakeOn for LoopbackEvents {
    fn extras(&self) -> &Extras {
        &self.extras
    }
    fn look_now(&self) {
        self.sleep(Some(Duration::ZERO));
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.core.open_ports.borrow_mut()[self.port as usize / 64] &= !(1 << (self.port % 64));
        match self.core.call(&Request::new(Op::Close, self.port, 0, 0)) {
            // The broker went first: nothing is left to close.
            Ok(_) | Err(Errno::PIPE) => {}
            Err(e) => {
                static LINES: LineBudget = LineBudget::new();
                LINES.warn(format_args!("loopback: event channel {} could not be closed: {e}", self.port));
            }
        }
    }
}
