//! Event channels: pending bits in shared memory, and a system call only to wake a sleeper.
//!
//! ```text
//!   notify:  route of our end (one load) -> pending bit in the peer's page -> asleep? eventfd
//!   wait:    take what is pending, mask it -> nothing? say "waiting", check once more, ppoll
//! ```
//!
//! [`crate::ledger::Upcall`] describes the bits, and why no wake-up is lost. An end whose peer died
//! has no route: its notifications go nowhere until a peer binds again. A notification makes no
//! system call while the peer is awake.
//!
//! What a peer may do: send at any rate (each event is masked until it is unmasked), or send events
//! for ends that are closed, which are dropped.

use crate::attachment::Core;
use crate::error::errno;
use crate::ledger::{PORTS, Route, SLOTS};
use crate::peer::Peer;
use crate::protocol::{Op, Request};
use crate::reach::Reach;
use pregrant::platform::{Events, ReadySet};
use pregrant::{DomId, EvtchnPort, PlatformError};
use pregrant_host::line_budget::LineBudget;
use pregrant_host::wake::{Extras, Slept, WakeOn};
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One end of an event channel. Dropping it closes the end, which makes the peer's end unbound.
#[derive(Debug)]
pub struct Channel {
    core: Arc<Core>,
    port: u32,
    /// The peer's end; None if this domain offered the channel.
    bound_to: Option<(DomId, EvtchnPort)>,
    /// The route that was seen last, and the peer to which it leads.
    target: Mutex<(Route, Option<Arc<Peer>>)>,
}

impl Reach {
    /// Makes this end pending again, as if an event had just come, so that a driver's loop runs
    /// once.
    pub fn kick(&self, chan: &Channel) {
        self.core.own_upcall().raise(chan.port);
    }

    fn take(&self, ready: &mut ReadySet) -> bool {
        let open = &self.core.open_ports;
        self.core.own_upcall().take(|port| {
            // A peer may set a bit late, after this end was closed.
            if open[port as usize / 64].load(Ordering::Relaxed) & 1 << (port % 64) != 0 {
                ready.ports.push(EvtchnPort(port));
            }
        });
        !ready.ports.is_empty()
    }

    /// Sleeps until an event or a readable descriptor ends it, or `max` has passed.
    fn sleep(&self, max: Option<Duration>) {
        self.forget_some_dead();
        self.core.tally.syscalls.add(1);
        if self.extras.sleep(&self.core.upcall, max) == Slept::Own {
            self.core.tally.syscalls.add(1);
            let _ = rustix::io::read(&self.core.upcall, &mut [0; 8]);
        }
    }

    fn opened(&self, port: u64, bound_to: Option<(DomId, EvtchnPort)>) -> Result<Channel, PlatformError> {
        let port = u32::try_from(port).ok().filter(|p| (*p as usize) < PORTS);
        let port = port.ok_or(errno("open an event channel", Errno::PROTO))?;
        self.core.open_ports[port as usize / 64].fetch_or(1 << (port % 64), Ordering::Relaxed);
        let core = Arc::clone(&self.core);
        Ok(Channel { core, port, bound_to, target: Mutex::new((Route(0), None)) })
    }
}

impl Events for Reach {
    type Chan = Channel;

    fn offer(&self, to: DomId) -> Result<(Channel, EvtchnPort), PlatformError> {
        let reply = self.core.call(&Request::new(Op::Offer, 0, u32::from(to.0), 0));
        let reply = reply.map_err(|e| errno("offer an event channel", e))?;
        let channel = self.opened(reply.words[0], None)?;
        let port = EvtchnPort(channel.port);
        Ok((channel, port))
    }

    fn bind(&self, to: DomId, port: EvtchnPort) -> Result<Channel, PlatformError> {
        let reply = self.core.call(&Request::new(Op::Bind, port.0, u32::from(to.0), 0));
        let reply = reply.map_err(|e| errno("bind to an event channel of the peer", e))?;
        let channel = self.opened(reply.words[0], Some((to, port)))?;
        // Events from the time without an attachment are lost: as Xen does, make the driver check
        // once.
        self.kick(&channel);
        Ok(channel)
    }

    fn adopt(&self, chan: Channel) -> Result<Channel, PlatformError> {
        let offered = errno("take over an event channel's end that was offered, not bound", Errno::INVAL);
        let (to, port) = chan.bound_to.ok_or(offered)?;
        drop(chan);
        self.bind(to, port)
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
        let mut target = chan.target.lock().unwrap_or_else(PoisonError::into_inner);
        if target.0 != route {
            *target = (route, self.peer(DomId(route.domid())).ok().map(|peer| Arc::clone(&peer)));
        }
        let Some(peer) = &target.1 else { return };
        // From shared memory: checked, so that a corrupt route does not panic.
        let (slot, port) = (route.slot(), route.port());
        if slot >= SLOTS || port as usize >= PORTS {
            return;
        }
        self.core.tally.notifications.add(1);
        if peer.ledger.upcall(slot).raise(port) {
            self.core.tally.wakeups.add(1);
            self.core.tally.syscalls.add(1);
            // Another thread that uses the channel does not wait for the system call.
            let peer = Arc::clone(peer);
            drop(target);
            peer.wake(slot);
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
        // A `max` beyond the clock's range means no timeout.
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

impl WakeOn for Reach {
    fn extras(&self) -> &Extras {
        &self.extras
    }
    fn check_now(&self) {
        self.sleep(Some(Duration::ZERO));
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.core.open_ports[self.port as usize / 64].fetch_and(!(1 << (self.port % 64)), Ordering::Relaxed);
        match self.core.call(&Request::new(Op::Close, self.port, 0, 0)) {
            // The broker ended first: nothing is left to close.
            Ok(_) | Err(Errno::PIPE) => {}
            Err(e) => {
                static LINES: LineBudget = LineBudget::new();
                LINES
                    .warn(format_args!("loopback: cannot close event channel {port}: {e}", port = self.port));
            }
        }
    }
}
