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

use super::counters::add;
use super::ledger::{PORTS, Route, SLOTS};
use super::peer::Peer;
use super::protocol::{Op, Request};
use super::{Core, errno};
use pregrant::platform::{Events, ReadySet};
use pregrant::{DomId, EvtchnPort, PlatformError};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Descriptors that [`LoopbackEvents::also_wake_on`] takes at most.
pub const EXTRAS_MAX: usize = 16;

/// This process' event channel ends.
#[derive(Debug)]
pub struct LoopbackEvents {
    core: Rc<Core>,
    extras: RefCell<Vec<Option<OwnedFd>>>,
    woken: Cell<u32>,
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
        Self { core, extras: RefCell::new(Vec::new()), woken: Cell::new(0) }
    }

    /// Makes [`Events::wait`] return also when `fd` becomes readable (the xenstore connection, a tap). A duplicate is
    /// kept until [`forget`](Self::forget). Returns the number for [`woken_by`](Self::woken_by).
    ///
    /// # Errors
    /// No descriptor left, or more than [`EXTRAS_MAX`].
    pub fn also_wake_on(&self, fd: BorrowedFd<'_>) -> Result<usize, PlatformError> {
        let fd = fd.try_clone_to_owned().map_err(|e| {
            errno("duplicate a descriptor to wake on", Errno::from_io_error(&e).unwrap_or(Errno::MFILE))
        })?;
        let mut extras = self.extras.borrow_mut();
        let free = extras.iter().position(Option::is_none);
        match free {
            Some(at) => {
                extras[at] = Some(fd);
                Ok(at)
            }
            None if extras.len() < EXTRAS_MAX => {
                extras.push(Some(fd));
                Ok(extras.len() - 1)
            }
            None => Err(errno("wake on one more descriptor (16 at most)", Errno::MFILE)),
        }
    }

    /// Stops waking on a descriptor.
    pub fn forget(&self, number: usize) {
        if let Some(extra) = self.extras.borrow_mut().get_mut(number) {
            *extra = None;
        }
    }

    /// Whether descriptor `number` was readable when the last wait slept, or at the last [`look`](Self::look).
    pub fn woken_by(&self, number: usize) -> bool {
        number < EXTRAS_MAX && self.woken.get() & 1 << number != 0
    }

    /// Looks at the descriptors without sleeping (one system call). A wait that finds events does not look at them, so
    /// a busy loop calls this once in a while. True when one is readable.
    pub fn look(&self) -> bool {
        if self.extras.borrow().iter().all(Option::is_none) {
            return false;
        }
        self.sleep(Some(Duration::ZERO));
        self.woken.get() != 0
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
        let extras = self.extras.borrow();
        let mut numbers = [0; EXTRAS_MAX + 1];
        let mut count = 1;
        let mut fds: [PollFd<'_>; EXTRAS_MAX + 1] =
            std::array::from_fn(|_| PollFd::new(&self.core.upcall, PollFlags::IN));
        for (number, fd) in extras.iter().enumerate() {
            if let Some(fd) = fd {
                fds[count] = PollFd::new(fd, PollFlags::IN);
                numbers[count] = number;
                count += 1;
            }
        }
        let timeout = max.map(|d| Timespec {
            tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: d.subsec_nanos().into(),
        });
        add(&self.core.tally.syscalls, 1);
        // EINTR: the caller's loop looks at its clock and comes back.
        let _ = rustix::event::poll(&mut fds[..count], timeout.as_ref());
        if !fds[0].revents().is_empty() {
            add(&self.core.tally.syscalls, 1);
            let _ = rustix::io::read(&self.core.upcall, &mut [0; 8]);
        }
        let mut woken = 0;
        for at in 1..count {
            if !fds[at].revents().is_empty() {
                woken |= 1 << numbers[at];
            }
        }
        self.woken.set(woken);
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
        self.woken.set(0);
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
            if self.take(ready) || self.woken.get() != 0 || until.is_some_and(|until| Instant::now() >= until)
            {
                return;
            }
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.core.open_ports.borrow_mut()[self.port as usize / 64] &= !(1 << (self.port % 64));
        match self.core.call(&Request::new(Op::Close, self.port, 0, 0)) {
            // The broker went first: nothing is left to close.
            Ok(_) | Err(Errno::PIPE) => {}
            Err(e) => log::warn!("loopback: event channel {} could not be closed: {e}", self.port),
        }
    }
}
