//! The state of a front's end of a device of any class, and its restarts.
//!
//! ```text
//!   watch fires --> the class' step:   peer's state --next--> nothing to do, or wait until begins_at_ns
//!                                                     '-----> a state: the class does what it stands for --enter--> written; once more
//! ```
//! [`state`] decides the next state and [`Backoff`] the pauses; a class provides the steps: the
//! keys that it writes, and what it grants.
//!
//! A back's `online` is 0 once the toolstack wants the device gone. Then a front that is closed
//! does not restart, and one that is [in use](Front::set_in_use) enters Closing (5) and keeps its
//! rings until it is not in use any more, or the back has closed.
//!
//! What a back may do: write any state at any time. A front closes where the back is in state 5 or
//! 6, or gone, and restarts after a pause; what it does at other states is its class' (a vif's:
//! `net/front/stage.rs`). A back can also hold a front that is in use in Closing without serving
//! it, as it can in Connected.

use super::backoff::Backoff;
use super::bus::DeviceBus;
use super::device::ONLINE;
use super::key_source::{Pairs, decimal};
use super::state::{self, Handshake, Reaction, XenbusState};
use crate::error::PlatformError;
use core::fmt;

/// A step failed, and the device must be closed.
#[derive(Debug)]
pub enum FrontError<E> {
    /// A key is missing or invalid, or xenstore failed.
    Keys(E),
    /// Memory, a grant or a channel could not be allocated.
    Platform(PlatformError),
    /// The back lacks a feature that this front requires; named in words.
    Lacks(&'static str),
}

impl<E: fmt::Display> fmt::Display for FrontError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys(e) => e.fmt(f),
            Self::Platform(e) => e.fmt(f),
            Self::Lacks(text) => f.write_str(text),
        }
    }
}

impl<E> From<PlatformError> for FrontError<E> {
    fn from(e: PlatformError) -> Self {
        Self::Platform(e)
    }
}

/// The state of a front.
#[derive(Debug)]
pub struct Front {
    state: XenbusState,
    handshake: Handshake,
    reconnect: bool,
    backoff: Backoff,
    begins_at_ns: Option<u64>,
    /// The device is in use: it does not close only because the toolstack asks for that.
    in_use: bool,
    /// The toolstack has asked to close the device while it was in use: the front is in Closing and
    /// keeps its rings.
    stays: bool,
}

impl Front {
    /// Creates the front of a device in state 1, as the toolstack created it. `reconnect`: the
    /// front restarts after a close.
    pub fn new(handshake: Handshake, reconnect: bool) -> Self {
        let (state, backoff) = (XenbusState::Initialising, Backoff::default());
        Self { state, handshake, reconnect, backoff, begins_at_ns: None, in_use: false, stays: false }
    }

    /// Continues where a predecessor in this domain (a front that died, or the kernel's) left the
    /// device: a connected device is closed first, and a closed one begins again. Call it before
    /// the first [`next`](Self::next), and only for a front that reconnects.
    pub fn succeed<B: DeviceBus>(&mut self, bus: &mut B) -> Result<(), B::Error> {
        use XenbusState as S;
        match bus.own_state()? {
            S::Initialising | S::Unknown => {}
            S::Closed => self.state = S::Closed,
            _ => {
                bus.set_state(S::Closing)?;
                self.state = S::Closing;
            }
        }
        Ok(())
    }

    /// The front's own state.
    pub fn state(&self) -> XenbusState {
        self.state
    }

    /// True if the front restarts after a close.
    pub fn reconnects(&self) -> bool {
        self.reconnect
    }

    /// The time, on the clock of [`next`](Self::next), at which to call that again. None: the front
    /// does not wait.
    pub fn begins_at_ns(&self) -> Option<u64> {
        self.begins_at_ns
    }

    /// Sets whether the device has a user who would lose data if it closed.
    pub fn set_in_use(&mut self, in_use: bool) {
        self.in_use = in_use;
    }

    /// True if the front is in Closing and keeps its rings, because it is in use.
    pub fn stays(&self) -> bool {
        self.stays
    }

    /// The state to [enter](Self::enter), given the back's state. None: there is nothing to do now.
    ///
    /// # Errors
    ///
    /// The back's directory cannot be read.
    pub fn next<B: DeviceBus>(
        &mut self,
        bus: &mut B,
        back: XenbusState,
        now_ns: u64,
    ) -> Result<Option<XenbusState>, B::Error> {
        use XenbusState as S;
        self.begins_at_ns = None;
        self.stays = self.in_use
            && back == S::Closing
            && matches!(self.state, S::Connected | S::Closing)
            && is_unwanted(bus)?;
        if self.stays {
            return Ok(Some(S::Closing).filter(|next| *next != self.state));
        }
        let Reaction::Enter(next) = state::front(self.state, back, self.handshake, self.reconnect) else {
            return Ok(None);
        };
        if next == S::Initialising {
            if is_unwanted(bus)? {
                return Ok(None);
            }
            self.begins_at_ns = self.backoff.begin(now_ns).err();
        }
        Ok(Some(next).filter(|_| self.begins_at_ns.is_none()))
    }

    /// Writes a state whose step is done. Once closed, the keys that are `stale` without a
    /// connection are removed.
    pub fn enter<B: DeviceBus>(
        &mut self,
        bus: &mut B,
        next: XenbusState,
        stale: fn(&str) -> bool,
    ) -> Result<(), B::Error> {
        if next == XenbusState::Closed {
            // The next front of this device may not know our keys, so it would not remove them. If
            // the toolstack removed the directory, they are gone, too.
            let _ = bus.publish(&Pairs::new(), stale);
        }
        bus.set_state(next)?;
        self.state = next;
        Ok(())
    }

    /// Begins to close from this end, for good, and reports why.
    pub fn close<B: DeviceBus>(&mut self, bus: &mut B, why: Option<&str>) -> Result<(), B::Error> {
        (self.reconnect, self.begins_at_ns) = (false, None);
        (self.in_use, self.stays) = (false, false);
        let reported = why.map_or(Ok(()), |text| bus.report(text));
        if !matches!(self.state, XenbusState::Closing | XenbusState::Closed) {
            self.state = XenbusState::Closing;
            bus.set_state(XenbusState::Closing)?;
        }
        reported
    }

    /// Begins to close from this end, in order to reconnect as after any close. A front that does
    /// not reconnect ends.
    pub fn restart<B: DeviceBus>(&mut self, bus: &mut B) -> Result<(), B::Error> {
        self.state = XenbusState::Closing;
        bus.set_state(XenbusState::Closing)
    }

    /// The toolstack removed the device with its directories: it counts as closed, and nothing is
    /// written.
    pub fn removed(&mut self) {
        (self.state, self.begins_at_ns, self.stays) = (XenbusState::Closed, None, false);
    }
}

/// Whether the toolstack wants the device gone. A front may read its back's directory.
fn is_unwanted<B: DeviceBus>(bus: &mut B) -> Result<bool, B::Error> {
    Ok(bus.text(ONLINE)?.and_then(|text| decimal(&text)) == Some(0))
}

/// Whether a back in this state has released what the front granted, or will.
pub fn lets_go(back: XenbusState) -> bool {
    matches!(back, XenbusState::Closing | XenbusState::Closed | XenbusState::Unknown)
}
