//! Where the front's end of one device stands, whatever its class: its state and its restarts.
//!
//! ```text
//!   watch fires --> the class' step:   peer's state --next--> nothing to do, or wait until begins_at_ns
//!                                                     '-----> a state: the class does what it stands for --enter--> written; once more
//! ```
//! [`state`] decides, [`Backoff`] says how often; a class has the steps: which keys it writes, what
//! it grants.
//!
//! A back's `online` is 0 once the toolstack wants the device gone. A front that is closed then
//! does not restart, and one that is [in use](Front::set_in_use) says Closing (5) and goes on
//! with its rings until it is not, or until the back has closed.
//!
//! What a back may do: write any state at any time. A front follows it down each time, and
//! restarts after a pause. Or hold a front that is in use at Closing, and not serve it: so it may
//! at Connected.

use super::backoff::Backoff;
use super::bus::DeviceBus;
use super::device::ONLINE;
use super::key_source::{Pairs, decimal};
use super::state::{self, Handshake, Reaction, XenbusState};
use crate::error::PlatformError;
use core::fmt;

/// A step failed. The device is to be closed.
#[derive(Debug)]
pub enum FrontError<E> {
    /// Keys: missing, garbled, or the store failed.
    Keys(E),
    /// No memory, grant or channel to be had.
    Platform(PlatformError),
    /// The back cannot do what this front cannot do without: in words.
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

/// See the module.
#[derive(Debug)]
pub struct Front {
    state: XenbusState,
    handshake: Handshake,
    reconnect: bool,
    backoff: Backoff,
    begins_at_ns: Option<u64>,
    /// It does not close just because the toolstack asks for that.
    in_use: bool,
    /// The toolstack has asked, and it is in use: at Closing with its rings.
    stays: bool,
}

impl Front {
    /// Of a device whose toolstack's state is 1. `reconnect`: it restarts after a close.
    pub fn new(handshake: Handshake, reconnect: bool) -> Self {
        let (state, backoff) = (XenbusState::Initialising, Backoff::default());
        Self { state, handshake, reconnect, backoff, begins_at_ns: None, in_use: false, stays: false }
    }

    /// Begins where a predecessor in this domain (a front that died, the kernel's) left the device:
    /// what is connected is brought down first, what is closed begins again. Before the first
    /// [`next`](Self::next), and only for one that reconnects.
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

    /// Our own state.
    pub fn state(&self) -> XenbusState {
        self.state
    }

    /// Whether it restarts after a close.
    pub fn reconnects(&self) -> bool {
        self.reconnect
    }

    /// When it wants to be asked again for the [next](Self::next) state, by the clock of that;
    /// None: it does not wait.
    pub fn begins_at_ns(&self) -> Option<u64> {
        self.begins_at_ns
    }

    /// Whether somebody uses the device, who would lose data: see the module.
    pub fn set_in_use(&mut self, in_use: bool) {
        self.in_use = in_use;
    }

    /// Whether it is at Closing and goes on with its rings, since it is in use.
    pub fn stays(&self) -> bool {
        self.stays
    }

    /// The state to [enter](Self::enter), where the back is in this one. None: nothing is to be
    /// done now.
    ///
    /// # Errors
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

    /// Writes it: what it stands for is done. Once closed, the keys that are `stale` without a
    /// connection are removed.
    pub fn enter<B: DeviceBus>(
        &mut self,
        bus: &mut B,
        next: XenbusState,
        stale: fn(&str) -> bool,
    ) -> Result<(), B::Error> {
        if next == XenbusState::Closed {
            // The next front of this device may be one that knows nothing of our keys, and removes
            // none. Where the toolstack took the directory, the keys are gone too.
            let _ = bus.publish(&Pairs::new(), stale);
        }
        bus.set_state(next)?;
        self.state = next;
        Ok(())
    }

    /// Begins to close from this end, for good, and says why.
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

    /// Begins to close from this end, to reconnect as after any close; one that does not reconnect
    /// is over.
    pub fn restart<B: DeviceBus>(&mut self, bus: &mut B) -> Result<(), B::Error> {
        self.state = XenbusState::Closing;
        bus.set_state(XenbusState::Closing)
    }

    /// The toolstack took the device away, directories and all: closed, without a word to anybody.
    pub fn removed(&mut self) {
        (self.state, self.begins_at_ns, self.stays) = (XenbusState::Closed, None, false);
    }
}

/// Whether the toolstack wants the device gone. A front may read its back's directory.
fn is_unwanted<B: DeviceBus>(bus: &mut B) -> Result<bool, B::Error> {
    Ok(bus.text(ONLINE)?.and_then(|text| decimal(&text)) == Some(0))
}

/// Whether a back in this state has let go of what a front granted it, or is to.
pub fn lets_go(back: XenbusState) -> bool {
    matches!(back, XenbusState::Closing | XenbusState::Closed | XenbusState::Unknown)
}
