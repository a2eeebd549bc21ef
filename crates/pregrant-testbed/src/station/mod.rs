//! A guest's vif with a TCP/IP stack on it: one turn moves what came, lets an application work,
//! sends what is to go.
//!
//! ```text
//!   Frontend --recv--> GuestStack <--> application (ping, transfer)
//!            <--send--
//! ```
//! While the vif is not connected (no backend yet, or one that closed it) the stack goes on: its
//! timers run, its frames wait, so that a connection outlives the change of its backend.

pub mod frame_number;
pub mod guest_stack;
pub mod ping;
pub mod transfer;

use guest_stack::{GuestStack, asks_to_connect};
use pregrant::net::front::FrontStep;
use pregrant::platform::{Clock, Platform};
use pregrant::port::Arena;
use pregrant::xenstore::Transport;
use pregrant_cli::front::frame_hook::{Exit, FrameHook, HookLine};
use pregrant_host::drivers::{Frontend, FrontendError, Mode, PollLoop, Rest, Work};
use pregrant_host::wake::WakeOn;
use std::time::Duration;

pub struct Station<P: Platform, T: Transport> {
    ends: Ends<P, T>,
    poll_loop: PollLoop,
}

/// A vif, and the network stack on it.
struct Ends<P: Platform, T: Transport> {
    guest: Frontend<P, T>,
    stack: GuestStack,
    /// The hook that sees frames before the stack, if there is one.
    hook: Option<FrameHook<P, T>>,
    arena: Arena,
    live: bool,
}

/// The arguments of one turn of a station's worker.
struct Turn<'a, P: Platform, T: Transport, F> {
    ends: &'a mut Ends<P, T>,
    due: Duration,
    app: Option<F>,
    /// Number of frames that arrived in this turn.
    came: usize,
}

impl<P: Platform, T: Transport> Station<P, T>
where
    P::Events: WakeOn,
{
    /// Creates a station on a vif, which may still wait for its backend.
    pub fn new(guest: Frontend<P, T>, stack: GuestStack) -> Self {
        Self::hooked(guest, stack, None)
    }

    /// Creates a station as [`new`](Self::new) does, with a hook that sees frames before the stack.
    pub fn hooked(guest: Frontend<P, T>, stack: GuestStack, hook: Option<FrameHook<P, T>>) -> Self {
        let mut ends = Ends { guest, stack, hook, arena: Arena::new(), live: false };
        ends.report();
        Self { ends, poll_loop: PollLoop::new(Mode::Adaptive) }
    }

    /// Sets the mode in which the station waits; the default is adaptive.
    pub fn set_mode(&mut self, mode: Mode) {
        self.poll_loop = PollLoop::new(mode);
    }

    pub fn hook(&mut self) -> Option<&mut FrameHook<P, T>> {
        self.ends.hook.as_mut()
    }

    /// Describes the hook's actions in a line of text.
    pub fn hook_line(&self) -> Option<HookLine> {
        Some(self.ends.hook.as_ref()?.line(&self.ends.guest))
    }

    /// Returns the time in nanoseconds on the clock of the stack.
    pub fn now_ns(&self) -> u64 {
        self.ends.now_ns()
    }

    pub fn stack(&mut self) -> &mut GuestStack {
        &mut self.ends.stack
    }

    pub fn guest(&mut self) -> &mut Frontend<P, T> {
        &mut self.ends.guest
    }

    /// Returns true if the vif is connected, so that frames can travel.
    pub fn is_live(&self) -> bool {
        self.ends.live
    }

    /// Returns true if no frame waits to be sent or answered.
    pub fn is_quiet(&self) -> bool {
        self.ends.is_quiet()
    }

    /// Number of frames of the last turn that request a TCP connection to `port`.
    pub fn requests(&self, port: u16) -> usize {
        self.ends.arena.burst().iter().filter(|(frame, _)| asks_to_connect(frame, port)).count()
    }

    /// Runs one turn. `app` works on the stack between receiving and sending; `due` limits how long
    /// this may sleep. Returns how many frames arrived.
    pub fn turn<E: From<FrontendError>>(
        &mut self,
        due: Duration,
        app: impl FnOnce(&mut GuestStack, u64) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut turn = Turn { ends: &mut self.ends, due, app: Some(app), came: 0 };
        self.poll_loop.turn(&mut turn)?;
        Ok(turn.came)
    }
}

impl<P: Platform, T: Transport> Ends<P, T>
where
    P::Events: WakeOn,
{
    fn now_ns(&self) -> u64 {
        self.guest.platform().clock().now_ns()
    }

    /// Returns true if no frame waits to be sent or answered.
    fn is_quiet(&self) -> bool {
        self.stack.outgoing().frames.is_empty() && (!self.live || self.guest.vif().in_flight(0) == 0)
    }

    /// Sleeps until something arrives, or a timer of the stack or `due` expires.
    fn sleep(&mut self, due: Duration) -> Result<(), FrontendError> {
        let timer = self.stack.idle_for_ns(self.now_ns()).map_or(Duration::MAX, Duration::from_nanos);
        let exit = self.exit().map_or(Duration::MAX, |_| Exit::<P, T>::LOOKED_AFTER);
        let due = timer.min(due).min(exit);
        self.guest.sleep(!self.is_quiet(), (due < Duration::MAX).then_some(due))
    }

    /// Returns the vif by which the hook's frames leave, if there is one.
    fn exit(&mut self) -> Option<&mut Exit<P, T>> {
        self.hook.as_mut()?.exit()
    }

    fn control(&mut self) -> Result<(), FrontendError> {
        if let Some(exit) = self.exit() {
            exit.control()?;
        }
        if self.guest.control(Duration::ZERO)? != FrontStep::Waiting
            || self.live != self.guest.vif().is_live()
        {
            self.report();
        }
        Ok(())
    }

    /// Logs the vif's new state.
    fn report(&mut self) {
        self.live = self.guest.vif().is_live();
        self.guest.log_state();
    }
}

impl<P, T, E, F> Rest for Turn<'_, P, T, F>
where
    P: Platform,
    T: Transport,
    P::Events: WakeOn,
    E: From<FrontendError>,
    F: FnOnce(&mut GuestStack, u64) -> Result<(), E>,
{
    type Error = E;
    fn control(&mut self) -> Result<(), E> {
        Ok(self.ends.control()?)
    }
    fn sleep(&mut self) -> Result<(), E> {
        Ok(self.ends.sleep(self.due)?)
    }
}

impl<P, T, E, F> Work for Turn<'_, P, T, F>
where
    P: Platform,
    T: Transport,
    P::Events: WakeOn,
    E: From<FrontendError>,
    F: FnOnce(&mut GuestStack, u64) -> Result<(), E>,
{
    fn round(&mut self) -> Result<bool, E> {
        let ends = &mut *self.ends;
        ends.arena.clear();
        if let Some(exit) = ends.exit() {
            exit.round()?;
        }
        if ends.live {
            self.came = match &mut ends.hook {
                Some(hook) => hook.recv(&mut ends.guest, 0, &mut ends.arena)?,
                None => ends.guest.recv(0, &mut ends.arena, 1)?,
            };
        }
        let now = ends.now_ns();
        ends.stack.receive(&ends.arena.burst());
        ends.stack.poll(now);
        if let Some(app) = self.app.take() {
            app(&mut ends.stack, now)?;
        }
        ends.stack.poll(now);
        if !ends.live {
            return Ok(false);
        }
        let mut moved = self.came > 0;
        if !ends.stack.outgoing().frames.is_empty() {
            let sent = ends.guest.send(0, &ends.stack.outgoing()).map_err(FrontendError::from)?;
            ends.stack.sent(sent);
            moved |= sent > 0;
        }
        Ok(moved | (ends.guest.reclaim(0, 1)? > 0))
    }
    fn is_live(&self) -> bool {
        self.ends.live
    }
}
