//! The back's end of one device, whatever its class: from keys and states to a live connection, and
//! back.
//!
//! ```text
//!   toolstack: 1 --offer--> 2 InitWait --front at 4: connect--> 4 Connected
//!                    ^                                              | front at 5, or a fault: disconnect
//!                    +-- front again at 1 (reconnect) -- 6 Closed <-- 5 <--+     a class that serves on at 5: front at 6
//! ```
//! [`Back`] has the handshake, once for all classes; a [`BackDevice`] has what a class makes of it:
//! which keys it writes, what it maps and binds. A device that stands at 4 at both ends when this
//! process starts was left by a predecessor, in good order ([`Back::detach`]) or not:
//! [`Back::reattach`] goes on with its live rings, and the front sees nothing but a pause
//! (docs/protocol 1.1). One that a predecessor closed stays closed until its front comes down
//! ([`Back::inherit`]).
//!
//! Every step is taken in [`Back::step`], which the owner calls when a watch fired; none runs on
//! the data path. What a front may do: write any keys, in any order, change state at any time,
//! vanish. The worst is a device that closes with a line that names what was wrong; nothing stays
//! mapped or bound.

use super::bus::DeviceBus;
use super::connect_error::ConnectError;
use super::device::Class;
use super::state::{self, BackView, Handshake, Reaction, STEPS_AT_ONCE, XenbusState};
use crate::platform::Platform;
use crate::shm::SharedBytes;
use crate::units::DomId;
use alloc::boxed::Box;
use alloc::string::String;
use core::ops::{Deref, DerefMut};

/// The back's key in which a script reports its result: empty, "connected" or "error".
pub const HOTPLUG_STATUS: &str = "hotplug-status";

/// Memory that outlives this process, and is this device's: by name, of so many bytes at least.
/// None: there is to be none.
pub type KeptMemory<'a> = &'a mut dyn FnMut(&str, usize) -> Option<Box<dyn SharedBytes + Send>>;

/// How a connection begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    /// New rings: what is kept of old ones is cleared, and the front gets what was accepted.
    Fresh,
    /// A predecessor's rings: what is kept of them is replayed, what was offered then still
    /// holds. Nothing is written, but for what changed while no one was there to say so.
    Reattach,
}

/// The arguments of a class when its front is connected.
pub struct Connect<'a> {
    /// How it begins.
    pub begin: Begin,
    /// Its last back is the kernel's, which ended in good order.
    pub of_kernel: bool,
    /// Pages that it may have mapped (XSA-300).
    pub page_limit: usize,
    /// Of these, pages that it may take so that they do not come back before it closes, unless it
    /// cannot work without them. It does not hold for what a predecessor took.
    pub lasting: usize,
    /// Memory that outlives the process.
    pub kept: KeptMemory<'a>,
}

/// A change while a device is connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changed<'a> {
    /// One of the [front's keys](ClassRules::front_keys), perhaps.
    FrontKeys,
    /// The front says 7, or 4 after it: Linux's writes the key between the two, so the second check
    /// sees what the first may have missed.
    Reconfigured,
    /// This one of the [own keys](ClassRules::own_keys).
    Own(&'a str),
}

/// The result of an orderly end, for the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Drained {
    /// Frames or answers that were delivered at the last moment.
    pub delivered: usize,
    /// Those that found no room, and are lost with this process.
    pub lost: usize,
}

impl core::ops::AddAssign for Drained {
    fn add_assign(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.lost += other.lost;
    }
}

/// The handshake's rules for all devices of a class.
#[derive(Clone, Copy, Debug)]
pub struct ClassRules {
    /// The class.
    pub class: Class,
    /// The state in which its front publishes its rings.
    pub handshake: Handshake,
    /// Whether a front that says Closing (5) may go on using its rings: the back then says 5, too,
    /// and serves them until the front says Closed (6) or is gone (docs/protocol 5.4).
    pub serves_closing: bool,
    /// Keys of the front that may change while it is connected, beside `state`.
    pub front_keys: &'static [&'static str],
    /// Keys of the own directory that the toolstack may change, beside `online` and
    /// [`HOTPLUG_STATUS`].
    pub own_keys: &'static [&'static str],
}

impl ClassRules {
    /// The rules of most classes: a front is connected when it says Connected (4), its rings end
    /// when it says Closing (5), and no key changes meanwhile.
    pub const fn new(class: Class) -> Self {
        Self { class, handshake: Handshake::Direct, serves_closing: false, front_keys: &[], own_keys: &[] }
    }
}

/// Whether a device is connected, and who has its queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Connection {
    /// It is not connected.
    None,
    /// It is connected, and has its queues.
    Here,
    /// It is connected, and workers have queues that it needs to [drain](BackDevice::drain) or to
    /// [disconnect](BackDevice::disconnect).
    HandedOut,
}

/// Pages of its guest that a device has mapped, or may have (XSA-300).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageUse {
    /// Pages that are mapped from connect to disconnect, and those that may be at any moment.
    pub needed: usize,
    /// Of these, pages that it cannot give way with.
    pub least: usize,
    /// Of those that are needed, pages that are mapped each on its own.
    pub single: usize,
    /// Pages that it would have beyond the least, as it is connected now.
    pub requested: usize,
    /// Pages that it may keep mapped beyond those that it needs, as of the last
    /// [`allow_pages`](BackDevice::allow_pages).
    pub allowed: usize,
}

/// The share of its guest's pages that a connected device gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageShare {
    /// Pages beyond the [least](PageUse::least).
    pub pages: usize,
    /// The bound of those pages, of all that it has, that do not come back before it closes.
    pub lasting: usize,
}

/// A class of devices, as the back's end of one needs it.
pub trait BackDevice {
    /// Where it runs.
    type Platform: Platform;
    /// Its ports, which may hold something for the guest.
    type Ports: ?Sized;
    /// The handshake's rules.
    const RULES: ClassRules;

    /// Writes what this back can do, and removes what is left of an old connection: in one
    /// transaction.
    fn offer<B: DeviceBus>(&mut self, bus: &mut B) -> Result<(), B::Error>;
    /// Reads the front's keys, maps, binds, and publishes what was accepted. After an error nothing
    /// is mapped. After [`ConnectError::NotYet`] the front waits, until one of the
    /// [own keys](ClassRules::own_keys) changes.
    fn connect<B: DeviceBus>(
        &mut self,
        p: &Self::Platform,
        bus: &mut B,
        with: Connect<'_>,
    ) -> Result<(), ConnectError<B::Error>>;
    /// Whether it is connected, and who has its queues.
    fn connection(&self) -> Connection;
    /// Answers what was taken from the guest, and delivers what was taken from `ports` and what
    /// that holds while there is room: before [`disconnect`](Self::disconnect), in good order.
    fn drain(&mut self, p: &Self::Platform, ports: &mut Self::Ports) -> Drained;
    /// Lets go of rings, pages and channels.
    fn disconnect(&mut self, p: &Self::Platform);
    /// Checks what changed; only while it is connected.
    fn changed<B: DeviceBus>(
        &mut self,
        p: &Self::Platform,
        bus: &mut B,
        what: Changed<'_>,
    ) -> Result<(), B::Error>;
    /// The pages of its guest that it has mapped, or may have.
    fn pages(&self) -> PageUse;
    /// Sets its share; pages beyond it are unmapped.
    fn allow_pages(&mut self, p: &Self::Platform, share: PageShare);
}

/// A device as a predecessor left it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PreviousState {
    /// Nothing that matters.
    Nothing,
    /// Rings that may be live: for [`Back::reattach`].
    Connected,
    /// It closed the device, or was about to. With what it said of the reason, if there was one.
    Closed(Option<String>),
}

/// A front's state in which its rings may be live.
fn is_connected<D: BackDevice>(front: XenbusState) -> bool {
    matches!(front, XenbusState::Connected | XenbusState::Reconfiguring)
        || D::RULES.handshake == Handshake::Confirmed && front == XenbusState::Initialised
        || D::RULES.serves_closing && front == XenbusState::Closing
}

/// The result of [`Back::step`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackStep {
    /// Nothing to do until the next watch event.
    Waiting,
    /// It must close, and [workers have its queues](Connection::HandedOut): get them back and call
    /// again.
    Recall,
    /// It is live now.
    Connected,
    /// Its front closes it, and it is live until the front has: [`ClassRules::serves_closing`].
    Closing,
    /// It is live no longer; the front may come back.
    Closed,
    /// The toolstack wants the device gone, and it is closed: forget it.
    Removed,
}

/// One device of domain `of`: its handshake, around what its class makes of it.
pub struct Back<D> {
    of: DomId,
    handle: u32,
    state: XenbusState,
    /// Closed from this end, by us or a predecessor: a front that goes on saying 4 is not connected
    /// again, it must come down first.
    shut: bool,
    /// It is connected, and its front does not know.
    unsaid: bool,
    /// The store has a reason for which the device is closed.
    reported: bool,
    /// Closed for good: [`step`](Self::step) goes to 6 and no further.
    ending: bool,
    /// Not connected before the toolstack's script has said that the remote side is ready.
    awaits_hotplug: bool,
    /// Not connected for now.
    paused: bool,
    /// A driver of the kernel's served it until now.
    of_kernel: bool,
    /// Pages that it may have mapped.
    page_limit: usize,
    /// Of these, those that do not come back.
    lasting: usize,
    device: D,
}

impl<D> Deref for Back<D> {
    type Target = D;
    #[inline(always)]
    fn deref(&self) -> &D {
        &self.device
    }
}

impl<D> DerefMut for Back<D> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut D {
        &mut self.device
    }
}

impl<D: BackDevice> Back<D> {
    /// A device that the toolstack created; nothing is written yet.
    pub fn around(device: D, of: DomId, handle: u32) -> Self {
        Self {
            of,
            handle,
            state: XenbusState::Initialising,
            shut: false,
            unsaid: false,
            reported: false,
            ending: false,
            awaits_hotplug: false,
            paused: false,
            of_kernel: false,
            page_limit: usize::MAX,
            lasting: usize::MAX,
            device,
        }
    }

    /// Before [`inherit`](Self::inherit): the kernel's driver serves it until now. A predecessor of
    /// ours that died at state 2 connected no one; netback may have.
    pub fn take_from_kernel(&mut self) {
        self.of_kernel = true;
    }

    /// From now on the front is connected only when [`HOTPLUG_STATUS`] says "connected": a script
    /// of the toolstack's makes the remote side ready (docs/protocol 2.10). Call
    /// [`step`](Self::step) when that key changes.
    pub fn await_hotplug(&mut self) {
        self.awaits_hotplug = true;
    }

    /// Whether a front that could be connected waits, at state 2, since the device's backing was
    /// unavailable a moment ago. Call [`step`](Self::step) when that is over.
    pub fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Pages that later connects may have mapped: those that it needs, and those that stay mapped
    /// since they were seen.
    pub fn limit_pages(&mut self, pages: usize) {
        self.page_limit = pages;
    }

    /// Of these, pages that do not come back before it closes; what is wanted beyond that is
    /// refused, and the device does without.
    pub fn limit_lasting(&mut self, pages: usize) {
        self.lasting = pages;
    }

    /// Whether it is connected.
    pub fn is_connected(&self) -> bool {
        self.device.connection() != Connection::None
    }

    /// The guest.
    pub fn front(&self) -> DomId {
        self.of
    }

    /// The guest's number of the device.
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Our own state.
    pub fn state(&self) -> XenbusState {
        self.state
    }

    /// Checks a predecessor's state first. A device that the predecessor closed, for a fault or by
    /// request, stays closed.
    pub fn inherit<B: DeviceBus>(&mut self, bus: &mut B) -> Result<PreviousState, B::Error> {
        match bus.own_state()? {
            // 8 is 4 with a request of the front's granted.
            XenbusState::Connected | XenbusState::Reconfigured => Ok(PreviousState::Connected),
            // Linux's netback with live rings, after it was bound again: its last unbinding took
            // the key, for which its 4 waits ever since.
            XenbusState::InitWait
                if self.of_kernel
                    && bus.own_text(HOTPLUG_STATUS)?.is_none()
                    && is_connected::<D>(bus.peer_state()?) =>
            {
                Ok(PreviousState::Connected)
            }
            // A front that is in use goes on with its rings after its 5, or after the toolstack's
            // in our directory. A back that closes for a fault says why before it says 5.
            XenbusState::Closing
                if D::RULES.serves_closing
                    && is_connected::<D>(bus.peer_state()?)
                    && bus.reported()?.is_none() =>
            {
                Ok(PreviousState::Connected)
            }
            own @ (XenbusState::Closing | XenbusState::Closed) => {
                self.state = own;
                self.shut = true;
                let why = bus.reported()?;
                self.reported = why.is_some();
                Ok(PreviousState::Closed(why))
            }
            _ => Ok(PreviousState::Nothing),
        }
    }

    /// Goes on where a predecessor stopped, where [`inherit`](Self::inherit) said
    /// [`PreviousState::Connected`], before the first [`step`](Self::step). True: it is live, a
    /// front that may not have been notified of the last answers was notified, and the owner polls
    /// before it arms (R5). Writes nothing but a 4 that was never said (and a disk's length, where
    /// it grew meanwhile), so that the front does not react; whatever was advertised and accepted
    /// then is so now. False: there is nothing to take up, step as ever.
    ///
    /// A channel that a process held until just now may not be free yet: when
    /// [`ConnectError::is_too_early`], call it again for a second. After any other error call
    /// [`close`](Self::close).
    pub fn reattach<B: DeviceBus>(
        &mut self,
        p: &D::Platform,
        bus: &mut B,
        kept: KeptMemory<'_>,
    ) -> Result<bool, ConnectError<B::Error>> {
        // From here on the store and this end agree; a front that left meanwhile is followed by
        // `step`.
        let own = bus.own_state().map_err(ConnectError::Keys)?;
        let front = bus.peer_state().map_err(ConnectError::Keys)?;
        self.state = match own {
            XenbusState::Reconfigured => own,
            // The toolstack writes 5 over a 4; it is ours where our front has said it.
            XenbusState::Closing if !matches!(front, XenbusState::Initialised | XenbusState::Connected) => {
                own
            }
            _ => XenbusState::Connected,
        };
        if !is_connected::<D>(front) {
            return Ok(false);
        }
        self.connect(p, bus, Begin::Reattach, kept)?;
        if own == XenbusState::InitWait {
            bus.set_state(XenbusState::Connected).map_err(ConnectError::Keys)?;
        }
        Ok(true)
    }

    fn is_handed_out(&self) -> bool {
        self.device.connection() == Connection::HandedOut
    }

    fn connect<B: DeviceBus>(
        &mut self,
        p: &D::Platform,
        bus: &mut B,
        begin: Begin,
        kept: KeptMemory<'_>,
    ) -> Result<(), ConnectError<B::Error>> {
        let Self { of_kernel, page_limit, lasting, .. } = *self;
        let with = Connect { begin, of_kernel, page_limit, lasting, kept };
        self.device.connect(p, bus, with)?;
        if core::mem::take(&mut self.reported) {
            bus.recant().map_err(ConnectError::Keys)?;
        }
        Ok(())
    }

    /// Stops in good order without closing: [drains](BackDevice::drain), lets go, writes nothing.
    /// State 4 stays, for a successor to [`reattach`](Self::reattach).
    pub fn detach(&mut self, p: &D::Platform, ports: &mut D::Ports) -> Drained {
        let drained = self.device.drain(p, ports);
        self.device.disconnect(p);
        drained
    }

    /// Begins to close for good, in good order: drains as [`detach`](Self::detach) does, lets go,
    /// and says 5. [`step`](Self::step) then follows the front to 6, and no further. A device that
    /// is not connected stays as it is.
    pub fn end<B: DeviceBus>(
        &mut self,
        p: &D::Platform,
        bus: &mut B,
        ports: &mut D::Ports,
    ) -> Result<Drained, B::Error> {
        let drained = self.detach(p, ports);
        self.end_detached(bus)?;
        Ok(drained)
    }

    /// The second half of [`end`](Self::end), of a device that was [detached](Self::detach).
    pub fn end_detached<B: DeviceBus>(&mut self, bus: &mut B) -> Result<(), B::Error> {
        self.ending = true;
        if matches!(self.state, XenbusState::Connected | XenbusState::Reconfigured) {
            self.shut = true;
            self.state = XenbusState::Closing;
            bus.set_state(XenbusState::Closing)?;
        }
        self.shut |= self.state == XenbusState::Closing;
        Ok(())
    }

    /// Checks the front's state and takes what steps it allows. After an error call
    /// [`close`](Self::close).
    pub fn step<B: DeviceBus>(
        &mut self,
        p: &D::Platform,
        bus: &mut B,
        kept: KeptMemory<'_>,
    ) -> Result<BackStep, ConnectError<B::Error>> {
        let came_to = self.step_unsaid(p, bus, kept)?;
        self.say_connected(bus).map_err(ConnectError::Keys)?;
        Ok(came_to)
    }

    /// As [`step`](Self::step), but a front that is connected does not see it yet, and may not
    /// send: make what its frames go to, then [say it](Self::say_connected).
    pub fn step_unsaid<B: DeviceBus>(
        &mut self,
        p: &D::Platform,
        bus: &mut B,
        kept: KeptMemory<'_>,
    ) -> Result<BackStep, ConnectError<B::Error>> {
        use XenbusState as S;
        let mut came_to = BackStep::Waiting;
        for _ in 0..STEPS_AT_ONCE {
            let front = bus.peer_state().map_err(ConnectError::Keys)?;
            let online = bus.online().map_err(ConnectError::Keys)?;
            // A toolstack that asks for the end waits for 6, and may have written 5 over ours,
            // whatever the front says.
            if !online
                && self.state == S::Closed
                && bus.own_state().map_err(ConnectError::Keys)? == S::Closing
            {
                bus.set_state(S::Closed).map_err(ConnectError::Keys)?;
            }
            self.shut &= is_connected::<D>(front);
            // A device that the toolstack removes goes all the same.
            if self.shut && online {
                return Ok(came_to);
            }
            // The front may go on with its rings: they are the next back's, though the toolstack
            // wants the device gone.
            if self.ending && D::RULES.serves_closing && front == S::Closing {
                return Ok(came_to);
            }
            let in_service = self.is_connected();
            let view = BackView { handshake: D::RULES.handshake, online, in_service };
            let next = match state::back(self.state, front, view) {
                Reaction::Stay => {
                    if self.state == S::Connected {
                        self.device.changed(p, bus, Changed::FrontKeys).map_err(ConnectError::Keys)?;
                    }
                    return Ok(came_to);
                }
                Reaction::Remove if self.is_handed_out() => return Ok(BackStep::Recall),
                Reaction::Remove => {
                    self.device.disconnect(p);
                    return Ok(BackStep::Removed);
                }
                Reaction::Enter(S::InitWait | S::Connected) if self.ending => return Ok(came_to),
                Reaction::Enter(next) => next,
            };
            match next {
                S::InitWait => self.device.offer(bus).map_err(ConnectError::Keys)?,
                S::Connected if !self.is_connected() => {
                    let plugged = |status: Option<String>| status.as_deref() == Some("connected");
                    if self.awaits_hotplug
                        && !plugged(bus.own_text(HOTPLUG_STATUS).map_err(ConnectError::Keys)?)
                    {
                        return Ok(came_to);
                    }
                    if self.paused {
                        return Ok(came_to);
                    }
                    match self.connect(p, bus, Begin::Fresh, kept) {
                        Err(ConnectError::NotYet) => return Ok(came_to),
                        connected => connected?,
                    }
                    self.unsaid = true;
                    return Ok(BackStep::Connected);
                }
                S::Reconfigured | S::Connected => {
                    self.device.changed(p, bus, Changed::Reconfigured).map_err(ConnectError::Keys)?;
                }
                S::Closing if D::RULES.serves_closing && front == S::Closing && in_service => {
                    came_to = BackStep::Closing;
                }
                S::Closing | S::Closed if self.is_handed_out() => return Ok(BackStep::Recall),
                S::Closing | S::Closed => {
                    if self.is_connected() {
                        came_to = BackStep::Closed;
                    }
                    self.device.disconnect(p);
                }
                _ => {}
            }
            bus.set_state(next).map_err(ConnectError::Keys)?;
            self.state = next;
        }
        Ok(came_to) // the front's state changed meanwhile, and there is an event that says so
    }

    /// Says state 4, if it is to be said.
    pub fn say_connected<B: DeviceBus>(&mut self, bus: &mut B) -> Result<(), B::Error> {
        if core::mem::take(&mut self.unsaid) && self.is_connected() {
            bus.set_state(XenbusState::Connected)?;
            self.state = XenbusState::Connected;
        }
        Ok(())
    }

    /// Closes from this end: after a fault, an error, or when the toolstack or the operator wants
    /// it. The text goes to the store, where `xenstore-ls` shows it.
    pub fn close<B: DeviceBus>(
        &mut self,
        p: &D::Platform,
        bus: &mut B,
        why: Option<&str>,
    ) -> Result<(), B::Error> {
        self.device.disconnect(p);
        self.shut = true;
        self.reported |= why.is_some();
        // The state matters more than the text: it is written even where the text has no place.
        let said = why.map_or(Ok(()), |text| bus.report(text));
        if self.state != XenbusState::Closed {
            self.state = XenbusState::Closing;
            bus.set_state(XenbusState::Closing)?;
            self.state = XenbusState::Closed;
            bus.set_state(XenbusState::Closed)?;
        }
        said
    }
}
