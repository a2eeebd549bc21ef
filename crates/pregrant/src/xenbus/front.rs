//! Where the front's end of one device stands, whatever its class: its state, and when it begins anew.
//!
//! ```text
//!   watch fires --> the class' step:   peer's state --next--> nothing to do, or wait until begins_at_ns
//!                                                     '-----> a state: the class does what it stands for --enter--> written; once more
//! ```
//! [`state`] decides, [`Backoff`] says how often; a class has the steps: which keys it writes, what it grants.
//!
//! What a back may do: write any state at any time. A front follows it down each time, and begins anew not without pause.

use super::backoff::Backoff;
use super::bus::DeviceBus;
use super::key_source::Pairs;
use super::state::{self, Handshake, Reaction, XenbusState};

/// See the module.
#[derive(Debug)]
pub struct Front {
    state: XenbusState,
    handshake: Handshake,
    reconnect: bool,
    backoff: Backoff,
    begins_at_ns: Option<u64>,
}

impl Front {
    /// Of a device whose toolstack's state is 1. `reconnect`: it begins anew after a close.
    pub fn new(handshake: Handshake, reconnect: bool) -> Self {
        let (state, backoff) = (XenbusState::Initialising, Backoff::default());
        Self { state, handshake, reconnect, backoff, begins_at_ns: None }
    }

    /// Begins where a predecessor in this domain (a front that died, the kernel's) left the device: what is connected is brought down
    /// first, what is closed begins again. Before the first [`next`](Self::next), and only for one that reconnects.
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

    /// Whether it begins anew after a close.
    pub fn reconnects(&self) -> bool {
        self.reconnect
    }

    /// When it wants to be asked again for the [next](Self::next) state, by the clock of that; None: it does not wait.
    pub fn begins_at_ns(&self) -> Option<u64> {
        self.begins_at_ns
    }

    /// The state to [enter](Self::enter), where the back is in this one. None: nothing is to be done now.
    pub fn next(&mut self, back: XenbusState, now_ns: u64) -> Option<XenbusState> {
        self.begins_at_ns = None;
        let Reaction::Enter(next) = state::front(self.state, back, self.handshake, self.reconnect) else {
            return None;
        };
        if next == XenbusState::Initialising {
            self.begins_at_ns = self.backoff.begin(now_ns).err();
        }
        Some(next).filter(|_| self.begins_at_ns.is_none())
    }

    /// Writes it: what it stands for is done. Once closed, the keys that are `stale` without a connection are removed.
    pub fn enter<B: DeviceBus>(
        &mut self,
        bus: &mut B,
        next: XenbusState,
        stale: fn(&str) -> bool,
    ) -> Result<(), B::Error> {
        if next == XenbusState::Closed {
            // The next front of this device may be one that knows nothing of our keys, and removes none. Where the toolstack took the
            // directory, the keys are gone too.
            let _ = bus.publish(&Pairs::new(), stale);
        }
        bus.set_state(next)?;
        self.state = next;
        Ok(())
    }

    /// Begins to close from this end, for good, and says why.
    pub fn close<B: DeviceBus>(&mut self, bus: &mut B, why: Option<&str>) -> Result<(), B::Error> {
        (self.reconnect, self.begins_at_ns) = (false, None);
        let told = why.map_or(Ok(()), |text| bus.report(text));
        if !matches!(self.state, XenbusState::Closing | XenbusState::Closed) {
            self.state = XenbusState::Closing;
            bus.set_state(XenbusState::Closing)?;
        }
        told
    }

    /// The toolstack took the device away, directories and all: closed, without a word to anybody.
    pub fn removed(&mut self) {
        (self.state, self.begins_at_ns) = (XenbusState::Closed, None);
    }
}

/// Whether a back in this state has let go of what a front granted it, or is to.
pub fn lets_go(back: XenbusState) -> bool {
    matches!(back, XenbusState::Closing | XenbusState::Closed | XenbusState::Unknown)
}
