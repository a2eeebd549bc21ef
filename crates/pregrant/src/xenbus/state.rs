//! The states of a device's two ends, and the reaction of each end to the other's
//! (docs/protocol 2.10).
//!
//! ```text
//!   back   1 ──► 2 ─────────────► 4 ──► 5 ──► 6 ──► 2 ...      one legal step at a time
//!   front  1 ────────► (3) ──► 4 ──────► 5 ──► 6 ──► 1 ...      3: block only
//! ```
//! Both reactions are pure functions of "my state" and "the peer's state". An end that follows them
//! comes to rest whatever the peer writes, in whatever order, including garbage and nothing.

use core::fmt;

crate::numbered! {
    /// The state of one end. C: `enum xenbus_state`, xen/include/public/io/xenbus.h.
    #[derive(PartialOrd, Ord, Default)]
    XenbusState: u8 {
        /// The key is missing, or has no valid state.
        #[default]
        Unknown = 0,
        /// The toolstack created the device; this end has not started, or starts again.
        Initialising = 1,
        /// Back: its features are written, and the front may continue.
        InitWait = 2,
        /// Front: its rings and channels are written (a block front waits here for the back).
        Initialised = 3,
        /// The device is in service.
        Connected = 4,
        /// This end is closing.
        Closing = 5,
        /// This end is closed.
        Closed = 6,
        /// Front: the front wants a change while connected.
        Reconfiguring = 7,
        /// Back: the back has made the change.
        Reconfigured = 8,
    }
}

impl XenbusState {
    /// Parses a `state` key as the peer wrote it. A missing or invalid key is
    /// [`XenbusState::Unknown`].
    ///
    /// Both ends must see the same state, so this follows what Linux reads
    /// (`xenbus_read_driver_state`: `%d` of the kernel's sscanf, on text that ends at its first
    /// NUL): it accepts spaces before the number, a minus, leading zeros, and anything after it; an
    /// overflow wraps. A number that is no state is Unknown.
    pub fn parse(value: Option<&[u8]>) -> Self {
        let number = value.and_then(scan_decimal);
        number.and_then(|n| Self::from_raw(u8::try_from(n).ok()?)).unwrap_or_default()
    }

    /// The value of the key.
    pub const fn digit(self) -> &'static str {
        match self {
            Self::Unknown => "0",
            Self::Initialising => "1",
            Self::InitWait => "2",
            Self::Initialised => "3",
            Self::Connected => "4",
            Self::Closing => "5",
            Self::Closed => "6",
            Self::Reconfiguring => "7",
            Self::Reconfigured => "8",
        }
    }
}

/// The number that the kernel's `sscanf(text, "%d", &n)` finds. None: it finds none.
fn scan_decimal(text: &[u8]) -> Option<i32> {
    // The kernel's isspace includes the no-break space of Latin-1.
    let is_space = |b: &u8| matches!(b, b' ' | b'\t'..=b'\r' | 0xa0);
    let start = text.iter().position(|b| !is_space(b))?;
    let (minus, digits) = match text.get(start..)? {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let mut digits = digits.iter().take_while(|b| b.is_ascii_digit());
    // The kernel truncates a wrapping 64-bit number to an int, which equals wrapping in 32 bits.
    let fold = |n: i32, digit: &u8| n.wrapping_mul(10).wrapping_add(i32::from(digit - b'0'));
    let n = digits.clone().fold(0, fold);
    digits.next().map(|_| if minus { n.wrapping_neg() } else { n })
}

impl fmt::Display for XenbusState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({self:?})", self.digit())
    }
}

/// The next step of an end, given its peer's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Reaction {
    /// Do nothing until the peer's state changes.
    Stay,
    /// Do what this state requires, write it as this end's state, and ask again.
    Enter(XenbusState),
    /// Back only: the device is over; release everything and forget it.
    Remove,
}

/// Largest number of steps of an end in one call: more than between any two states, so that only a
/// peer that keeps changing its state reaches it.
pub const STEPS_AT_ONCE: u32 = 8;

/// When a device's front publishes its rings to the back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handshake {
    /// Net: the front enters 4 at once.
    Direct,
    /// Block: the front enters 3, and 4 when the back is connected.
    Confirmed,
}

/// The back's next state from `own` towards `target`, one legal step at a time. `None`: the back is
/// in that state, or no steps lead there.
pub fn back_step(own: XenbusState, target: XenbusState) -> Option<XenbusState> {
    use XenbusState::*;
    if own == target {
        return None;
    }
    match (own, target) {
        // A device that never connected need not be closed.
        (Unknown | Initialising, InitWait | Connected | Closing) => Some(InitWait),
        (Unknown | Initialising, Closed) => Some(Closed),
        (Closed, InitWait | Connected) => Some(InitWait),
        (InitWait | Initialised, Connected) => Some(Connected),
        (InitWait | Initialised, Closing | Closed) => Some(Closing),
        (Reconfigured | Reconfiguring, Connected) => Some(Connected),
        (Connected, Reconfigured) => Some(Reconfigured),
        (Connected | Reconfigured | Reconfiguring, InitWait | Closing | Closed) => Some(Closing),
        (Closing, InitWait | Connected | Closed) => Some(Closed),
        _ => None,
    }
}

/// What a back knows of its device besides both states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackView {
    /// When the front publishes its rings.
    pub handshake: Handshake,
    /// The toolstack wants the device to stay: `online` has no value other than 1.
    pub online: bool,
    /// The front's rings are mapped and served. A disk's rings stay in service in Closing, too,
    /// until its front has closed.
    pub in_service: bool,
}

/// The next step of a back.
///
/// Once the toolstack wants the device gone, it only closes: rings in service stay so until their
/// front closes, and nothing is offered or connected any more, whatever a front writes.
pub fn back(own: XenbusState, front: XenbusState, view: BackView) -> Reaction {
    use XenbusState::*;
    let BackView { handshake, online, in_service } = view;
    if own == Closed && (!online || front == Unknown) {
        return Reaction::Remove;
    }
    let is_up = matches!(own, Connected | Reconfigured) || own == Closing && in_service;
    let target = match front {
        // Nothing of the front is in use, so there is nothing to wait for.
        _ if !online && !is_up => Closed,
        Initialising if !online => Closed,
        Initialising => InitWait,
        // The front keeps using its rings.
        Connected if own == Closing && in_service => {
            return if online { Reaction::Enter(Connected) } else { Reaction::Stay };
        }
        Connected => Connected,
        Initialised if handshake == Handshake::Confirmed => Connected,
        // NetBSD's xennet enters 3 before it writes any key, and writes keys when we are in 2.
        Initialised if matches!(own, Unknown | Initialising | Closed) => InitWait,
        // Only a connected device can be reconfigured.
        Reconfiguring if matches!(own, Connected | Reconfigured) => Reconfigured,
        Closing => Closing,
        // With `online` the front may come back; otherwise, or if the front is gone, the device is
        // over.
        Closed | Unknown => Closed,
        InitWait | Initialised | Reconfiguring | Reconfigured => return Reaction::Stay,
    };
    // A closing front does not care about a back that is closed already.
    if target == Closing && own == Closed {
        return Reaction::Stay;
    }
    back_step(own, target).map_or(Reaction::Stay, Reaction::Enter)
}

/// The next step of a front. `reconnect`: begin again after a close, unlike Linux's netfront.
pub fn front(own: XenbusState, back: XenbusState, handshake: Handshake, reconnect: bool) -> Reaction {
    use XenbusState::*;
    let down = |own| match own {
        Closed => Reaction::Stay,
        Closing => Reaction::Enter(Closed),
        // Nothing was published to the back yet.
        Initialising | Unknown => Reaction::Enter(Closed),
        _ => Reaction::Enter(Closing),
    };
    match (back, own) {
        (InitWait, Initialising) => Reaction::Enter(match handshake {
            Handshake::Direct => Connected,
            Handshake::Confirmed => Initialised,
        }),
        // NetBSD's xbdback connects when it has its disk, and takes a front's rings when it sees
        // them.
        (Connected, Initialising) if handshake == Handshake::Confirmed => Reaction::Enter(Initialised),
        // The back waits for a front: begin again.
        (InitWait | Closed, Closed) if reconnect => Reaction::Enter(Initialising),
        // Between our 3 or 4 and its own 4 a back is still in 2.
        (InitWait, _) => Reaction::Stay,
        (Connected, Initialised) => Reaction::Enter(Connected),
        (Reconfigured, Reconfiguring) => Reaction::Enter(Connected),
        (Connected | Reconfigured | Reconfiguring | Initialised | Initialising, _) => Reaction::Stay,
        // A closed back may be about to begin: wait for it.
        (Closed, Initialising) => Reaction::Stay,
        (Closing | Closed | Unknown, own) => down(own),
    }
}

#[cfg(test)]
mod tests {
    use super::XenbusState::*;
    use super::*;
    use alloc::{format, vec::Vec};
    use proptest::prelude::*;

    #[test]
    fn a_state_is_what_linux_reads() {
        for state in XenbusState::ALL {
            assert_eq!(XenbusState::parse(Some(state.digit().as_bytes())), state);
        }
        // As callers of libxenstore write it that include the NUL, and other forms that `%d`
        // accepts.
        let fours = [
            &b"4\0"[..],
            b"4\0garbage",
            b" 4",
            b"\t\n\x0b\x0c\r\xa04",
            b"4 ",
            b"4\n",
            b"4x",
            b"4.5",
            b"4-",
            b"04",
            b"0000000000000000000000004",
            b"4294967300",
            b"-4294967292",
            b"18446744073709551620",
        ];
        for four in fours {
            assert_eq!(XenbusState::parse(Some(four)), Connected, "{}", four.escape_ascii());
        }
        // The kernel does not accept a plus, or a NUL or a minus before the space.
        let garbled = [
            &b""[..],
            b" ",
            b"\0",
            b"\x004",
            b"9",
            b"44",
            b"-1",
            b"-4",
            b"- 4",
            b"--4",
            b"+4",
            b"four",
            b"x4",
            b"\xff",
            b"0x4",
            b"-",
        ];
        for garbled in garbled {
            assert_eq!(XenbusState::parse(Some(garbled)), Unknown, "{}", garbled.escape_ascii());
        }
        assert_eq!(XenbusState::parse(None), Unknown);
    }

    fn view(online: bool, in_service: bool) -> BackView {
        BackView { handshake: Handshake::Direct, online, in_service }
    }

    /// Returns all states that a back goes through until it has nothing to do. Its rings are in
    /// service from state 4 on, until it enters any other state; if the class serves closing fronts
    /// (`on`), they are in service in state 5, too, while the front is in state 5.
    fn walk_serving(
        (mut own, mut in_service): (XenbusState, bool),
        front: XenbusState,
        (handshake, online, on): (Handshake, bool, bool),
    ) -> (Vec<XenbusState>, Reaction) {
        let mut way = Vec::new();
        loop {
            match back(own, front, BackView { handshake, online, in_service }) {
                Reaction::Enter(next) => {
                    assert!(way.len() < 6, "no rest: {way:?}");
                    way.push(next);
                    in_service = match next {
                        Connected | Reconfigured => true,
                        Closing => on && in_service && front == Closing,
                        _ => false,
                    };
                    own = next;
                }
                last => return (way, last),
            }
        }
    }

    /// Like `walk_serving`, for a vif that is in service in its own state.
    fn walk(own: XenbusState, front: XenbusState, online: bool) -> (Vec<XenbusState>, Reaction) {
        let in_service = matches!(own, Connected | Reconfigured);
        walk_serving((own, in_service), front, (Handshake::Direct, online, false))
    }

    #[test]
    fn the_backs_ways() {
        assert_eq!(walk(Initialising, Initialising, true), ([InitWait].into(), Reaction::Stay));
        assert_eq!(walk(InitWait, Connected, true), ([Connected].into(), Reaction::Stay));
        assert_eq!(walk(Connected, Closing, true), ([Closing].into(), Reaction::Stay));
        assert_eq!(walk(Closing, Closed, true), ([Closed].into(), Reaction::Stay));
        assert_eq!(walk(Closing, Closed, false), ([Closed].into(), Reaction::Remove));
        assert_eq!(walk(Closed, Initialising, true), ([InitWait].into(), Reaction::Stay));
        // A front that starts again without closing gets a whole new handshake.
        assert_eq!(walk(Connected, Initialising, true), ([Closing, Closed, InitWait].into(), Reaction::Stay));
        assert_eq!(walk(Initialising, Connected, true), ([InitWait, Connected].into(), Reaction::Stay));
        // The front is gone.
        assert_eq!(walk(Connected, Unknown, true), ([Closing, Closed].into(), Reaction::Remove));
        assert_eq!(walk(Connected, Reconfiguring, true), ([Reconfigured].into(), Reaction::Stay));
        assert_eq!(walk(Reconfigured, Connected, true), ([Connected].into(), Reaction::Stay));
        assert_eq!(walk(InitWait, Initialised, true), ([].into(), Reaction::Stay));
        for own in [Unknown, Initialising, Closed] {
            assert_eq!(walk(own, Initialised, true), ([InitWait].into(), Reaction::Stay));
        }
        assert_eq!(walk(Connected, Initialised, true), ([].into(), Reaction::Stay));
        assert_eq!(walk(InitWait, Reconfiguring, true), ([].into(), Reaction::Stay));
    }

    #[test]
    fn a_disk_in_service_waits_at_5_for_its_front() {
        let disk =
            |own, front, online| walk_serving((own, true), front, (Handshake::Confirmed, online, true));
        for online in [true, false] {
            let gone = if online { Reaction::Stay } else { Reaction::Remove };
            assert_eq!(disk(Connected, Closing, online), ([Closing].into(), Reaction::Stay));
            assert_eq!(disk(Closing, Closing, online), ([].into(), Reaction::Stay));
            assert_eq!(disk(Closing, Closed, online), ([Closed].into(), gone));
            assert_eq!(disk(Closing, Unknown, online), ([Closed].into(), Reaction::Remove));
            // The front never saw the toolstack's 5, or is in use and does not announce it.
            assert_eq!(disk(Connected, Connected, online), ([].into(), Reaction::Stay));
        }
        // It continues after all, if the toolstack does not want the disk gone.
        assert_eq!(disk(Closing, Connected, true), ([Connected].into(), Reaction::Stay));
        assert_eq!(disk(Closing, Connected, false), ([].into(), Reaction::Stay));
        // A front that begins again, or with new rings, has closed.
        let again_states = [Closed, InitWait, Connected];
        assert_eq!(disk(Closing, Initialising, true), (again_states[..2].into(), Reaction::Stay));
        assert_eq!(disk(Closing, Initialised, true), (again_states.into(), Reaction::Stay));
        for front in [Initialising, Initialised] {
            assert_eq!(disk(Closing, front, false), ([Closed].into(), Reaction::Remove));
        }
    }

    #[test]
    fn what_the_toolstack_wants_gone_goes_from_every_state_and_stays_gone() {
        for handshake in [Handshake::Direct, Handshake::Confirmed] {
            for (own, front) in XenbusState::ALL.into_iter().flat_map(|o| XenbusState::ALL.map(|f| (o, f))) {
                // States that a back never has.
                if matches!(own, Unknown | Initialised | Reconfiguring) {
                    continue;
                }
                for in_service in [false, true] {
                    let is_up = matches!(own, Connected | Reconfigured) || own == Closing && in_service;
                    if in_service && !is_up {
                        continue;
                    }
                    for serves_on in [false, true] {
                        let how = (handshake, false, serves_on);
                        let (way, last) = walk_serving((own, in_service), front, how);
                        let what = format!("{own}, front {front}, {handshake:?}: {way:?}, {last:?}");
                        assert!(!way.contains(&InitWait), "{what}");
                        assert!(is_up || !way.contains(&Connected), "{what}");
                        let ends = !is_up || matches!(front, Initialising | Closed | Unknown);
                        assert!(last == Reaction::Remove || !ends, "{what}");
                    }
                }
                assert_eq!(back(Closed, front, view(false, false)), Reaction::Remove);
            }
        }
    }

    #[test]
    fn the_fronts_ways() {
        let net = |own, back| front(own, back, Handshake::Direct, true);
        assert_eq!(net(Initialising, Initialising), Reaction::Stay);
        assert_eq!(net(Initialising, InitWait), Reaction::Enter(Connected));
        assert_eq!(net(Connected, InitWait), Reaction::Stay);
        assert_eq!(net(Connected, Connected), Reaction::Stay);
        assert_eq!(net(Connected, Closing), Reaction::Enter(Closing));
        assert_eq!(net(Closing, Closing), Reaction::Enter(Closed));
        assert_eq!(net(Closed, Closing), Reaction::Stay);
        assert_eq!(net(Closed, Closed), Reaction::Enter(Initialising));
        assert_eq!(net(Connected, Unknown), Reaction::Enter(Closing));
        assert_eq!(front(Closed, Closed, Handshake::Direct, false), Reaction::Stay);
        let block = |own, back| front(own, back, Handshake::Confirmed, true);
        assert_eq!(block(Initialising, InitWait), Reaction::Enter(Initialised));
        assert_eq!(block(Initialised, InitWait), Reaction::Stay);
        assert_eq!(block(Initialised, Connected), Reaction::Enter(Connected));
        // A block back may be connected first. A vif's back cannot: its front's 4 is what lets it
        // connect.
        assert_eq!(block(Initialising, Connected), Reaction::Enter(Initialised));
        assert_eq!(net(Initialising, Connected), Reaction::Stay);
    }

    #[test]
    fn any_two_states_lead_to_service() {
        // From any two states, with alternate steps, both ends reach 4: there is no deadlock.
        for handshake in [Handshake::Direct, Handshake::Confirmed] {
            for (f, b) in XenbusState::ALL.into_iter().flat_map(|f| XenbusState::ALL.map(|b| (f, b))) {
                let (mut own, mut peer) = (f, b);
                // States that this end never writes; a driver that starts reads its own state once
                // and restarts.
                if matches!(f, Unknown | InitWait | Reconfigured | Reconfiguring) {
                    continue;
                }
                if matches!(b, Unknown | Initialised | Reconfiguring) {
                    continue;
                }
                let mut turns = 0;
                loop {
                    let in_service = matches!(peer, Connected | Reconfigured);
                    let view = BackView { handshake, online: true, in_service };
                    let (x, y) = (front(own, peer, handshake, true), back(peer, own, view));
                    if let Reaction::Enter(next) = y {
                        peer = next;
                    } else if let Reaction::Enter(next) = x {
                        own = next;
                    } else {
                        break;
                    }
                    turns += 1;
                    assert!(turns < 50, "no rest from front {f} back {b}");
                }
                let stuck = own == Initialised && peer != Connected;
                assert!(
                    own == Connected && peer == Connected || stuck,
                    "front {f} back {b} rest at {own} {peer}"
                );
            }
        }
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore)]
        fn a_hostile_front_never_makes_an_illegal_step(
            fronts in prop::collection::vec((0usize..9, any::<bool>()), 0..100),
            serves_on in any::<bool>(),
        ) {
            let (mut own, mut in_service, mut over) = (Initialising, false, false);
            let handshake = if serves_on { Handshake::Confirmed } else { Handshake::Direct };
            for (front, online) in fronts {
                let front = XenbusState::ALL[front];
                // Once it is over, only the toolstack begins it again.
                over &= !online;
                loop {
                    let reaction = back(own, front, BackView { handshake, online, in_service });
                    prop_assert!(!over || reaction == Reaction::Remove, "{} after the end", own);
                    let Reaction::Enter(next) = reaction else {
                        over |= reaction == Reaction::Remove && !online;
                        break;
                    };
                    let legal = matches!(
                        (own, next),
                        (Initialising, InitWait | Closed) | (InitWait, Connected | Closing) | (Connected, Closing | Reconfigured)
                            | (Reconfigured, Connected | Closing) | (Closing, Closed) | (Closed, InitWait)
                    );
                    let goes_on = (own, next) == (Closing, Connected) && in_service && serves_on;
                    prop_assert!(legal || goes_on, "{} to {}", own, next);
                    prop_assert!(online || next != InitWait && own != InitWait || next == Closing);
                    in_service = match next {
                        Connected | Reconfigured => true,
                        Closing => serves_on && in_service && front == Closing,
                        _ => false,
                    };
                    own = next;
                }
            }
        }
    }
}
