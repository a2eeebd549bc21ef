//! A guest's vif with a TCP/IP stack on it: one turn moves what came, lets an application work, sends what is to go.
//!
//! ```text
//!   Frontend --recv--> GuestStack <--> application (ping, transfer)
//!            <--send--
//! ```
//! While the vif is not connected (no backend yet, or one that closed it) the stack goes on: its timers run, its frames
//! wait, so that a connection outlives the change of its backend.

pub(crate) mod frame_number;
pub mod guest_stack;
pub mod ping;
pub mod transfer;

use guest_stack::{GuestStack, asks_to_connect};
use pregrant::net::front::FrontStep;
use pregrant::net::path::staging::list::DataLen;
use pregrant::platform::{Clock, Platform};
use pregrant::port::Arena;
use pregrant::xenstore::Transport;
use pregrant_host::drivers::{Frontend, FrontendError, Mode, Next, PollController};
use pregrant_host::wake::WakeOn;
use std::time::Duration;

/// See the module.
pub struct Station<P: Platform, T: Transport> {
    guest: Frontend<P, T>,
    stack: GuestStack,
    arena: Arena,
    pace: PollController,
    live: bool,
}

impl<P: Platform, T: Transport> Station<P, T>
where
    P::Events: WakeOn,
{
    /// A vif that may still wait for its backend.
    pub fn new(guest: Frontend<P, T>, stack: GuestStack) -> Self {
        let (arena, pace) = (Arena::new(), PollController::new(Mode::Adaptive));
        let mut station = Self { guest, stack, arena, pace, live: false };
        station.tell();
        station
    }

    /// Nanoseconds, on the clock of the stack.
    pub fn now_ns(&self) -> u64 {
        self.guest.platform().clock().now_ns()
    }

    /// The stack.
    pub fn stack(&mut self) -> &mut GuestStack {
        &mut self.stack
    }

    /// The vif.
    pub fn guest(&mut self) -> &mut Frontend<P, T> {
        &mut self.guest
    }

    /// Whether frames travel at present.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Whether nothing waits to be sent, or to be answered.
    pub fn is_quiet(&self) -> bool {
        self.stack.outgoing().frames.is_empty() && (!self.live || self.guest.vif().in_flight(0) == 0)
    }

    /// Of the frames that came in the last turn, those that ask for a TCP connection to `port`.
    pub fn requests(&self, port: u16) -> usize {
        self.arena.burst().iter().filter(|(frame, _)| asks_to_connect(frame, port)).count()
    }

    /// One turn. `app` works on the stack between what came and what goes; `due` is how long this may sleep for its sake.
    /// Returns how many frames came.
    pub fn turn<E: From<FrontendError>>(
        &mut self,
        due: Duration,
        app: impl FnOnce(&mut GuestStack, u64) -> Result<(), E>,
    ) -> Result<usize, E> {
        self.arena.clear();
        let came = if self.live { self.guest.recv(0, &mut self.arena, 1)? } else { 0 };
        let now = self.now_ns();
        self.stack.receive(&self.arena.burst());
        self.stack.poll(now);
        app(&mut self.stack, now)?;
        self.stack.poll(now);
        if !self.live {
            self.sleep(due)?;
            return Ok(came);
        }
        let mut moved = came > 0;
        if !self.stack.outgoing().frames.is_empty() {
            let sent = self.guest.send(0, &self.stack.outgoing()).map_err(FrontendError::from)?;
            self.stack.sent(sent);
            moved |= sent > 0;
        }
        moved |= self.guest.reclaim(0, 1)? > 0;
        match self.pace.after(moved) {
            Next::Again => {}
            Next::Control => self.control()?,
            Next::Sleep => self.sleep(due)?,
        }
        Ok(came)
    }

    /// Sleeps until something comes, or until a timer of the stack or `due` says so.
    fn sleep(&mut self, due: Duration) -> Result<(), FrontendError> {
        let timer = self.stack.idle_for_ns(self.now_ns()).map_or(Duration::MAX, Duration::from_nanos);
        let due = timer.min(due);
        self.guest.sleep(!self.is_quiet(), (due < Duration::MAX).then_some(due))?;
        self.control()
    }

    /// Follows the backend's state.
    fn control(&mut self) -> Result<(), FrontendError> {
        if self.guest.control(Duration::ZERO)? != FrontStep::Waiting
            || self.live != self.guest.vif().is_live()
        {
            self.tell();
        }
        Ok(())
    }

    /// What became of the vif, for the log.
    fn tell(&mut self) {
        self.live = self.guest.vif().is_live();
        log_state(&self.guest);
    }
}

/// What became of a vif, for the log: its peer and path, and what it could not have.
pub fn log_state<P: Platform, T: Transport>(guest: &Frontend<P, T>) {
    let (id, vif) = (guest.device().id(), guest.vif());
    if !vif.is_live() {
        return log::info!("{id}: waits for a backend ({})", id.back);
    }
    let path = match vif.staging_lens(0) {
        _ if !vif.staging_accepted(0) => "ordinary grants".to_string(),
        (Some(tx), Some(rx)) if tx == rx => format!("path staging {}", tx.value()),
        (tx, rx) => {
            let of = |len: Option<DataLen>| len.map_or("none".to_string(), |len| len.value().to_string());
            format!("path staging, TX {}, RX {}", of(tx), of(rx))
        }
    };
    let queues = vif.nr_queues();
    log::info!("{id}: connected to {}, {path}, {queues} queue(s)", id.back);
    if let Some(e) = vif.shortage() {
        log::warn!(
            "{id}: not all that was wished for: {queues} queue(s), {} TX requests each, {path}; {e}",
            vif.tx_ids(0)
        );
    }
}
