//! The back's end of a device of any class: from keys and states to a live connection, and back.
//!
//! ```text
//!   toolstack: 1 --offer--> 2 InitWait --front at 4: connect--> 4 Connected
//!                    ^                                              | front at 5, or a fault: disconnect
//!                    +-- front again at 1 (reconnect) -- 6 Closed <-- 5 <--+     a class that serves on at 5: front at 6
//! ```
//! [`Back`] has the handshake, which is the same for all classes; a [`BackDevice`] has what depends
//! on the class: the keys that it writes, and what it maps and binds. A device that is in state 4
//! at both ends when this process starts was left by a predecessor, orderly ([`Back::detach`]) or
//! not: [`Back::reattach`] resumes its live rings, and the front notices only a pause
//! (docs/protocol 1.1). A device that a predecessor closed stays closed until its front restarts
//! ([`Back::inherit`]).
//!
//! Every step is taken in [`Back::step`], which the owner calls when a watch fires; none runs on
//! the data path. What a front may do: write any keys in any order, change its state at any time,
//! disappear. The worst result is a device that closes with an error that names the cause; nothing
//! stays mapped or bound.

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

/// The back's key in which a hotplug script reports its result: empty, "connected" or "error".
pub const HOTPLUG_STATUS: &str = "hotplug-status";

/// Returns memory of this device that outlives the process, by name and least number of bytes.
/// None: there is none.
pub type KeptMemory<'a> = &'a mut dyn FnMut(&str, usize) -> Option<Box<dyn SharedBytes + Send>>;

/// How a connection begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    /// The connection begins with new rings: records of old ones are cleared, and the accepted
    /// features are written.
    Fresh,
    /// The connection begins with a predecessor's rings: records of them are replayed, and its
    /// offer still holds. Nothing is written to xenstore, except for changes since the predecessor
    /// ended.
    Reattach,
}

/// What a class gets to connect a device.
pub struct Connect<'a> {
    /// How the connection begins.
    pub begin: Begin,
    /// The previous back was the kernel's, which ended in good order.
    pub of_kernel: bool,
    /// Largest number of the guest's pages that the device may have mapped (XSA-300).
    pub page_limit: usize,
    /// Largest number of the guest's pages that the device may use until it closes without
    /// releasing them, unless the device cannot work with fewer. The limit does not apply to pages
    /// that a predecessor used.
    pub lasting: usize,
    /// Memory that outlives the process.
    pub kept: KeptMemory<'a>,
}

/// A change while a device is connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changed<'a> {
    /// A key of the front may have changed ([`ClassRules::front_keys`]).
    FrontKeys,
    /// The front's state is 7, or 4 after 7. Linux writes the key between the two, so the second
    /// check finds what the first may have missed.
    Reconfigured,
    /// This key of the device's own directory changed ([`ClassRules::own_keys`]).
    Own(&'a str),
}

/// The result of an orderly end, for the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Drained {
    /// Frames or answers that were delivered at the end.
    pub delivered: usize,
    /// Frames or answers for which there was no room, and that are lost with this process.
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
    /// The state in which a front of the class publishes its rings.
    pub handshake: Handshake,
    /// Whether a front in state Closing (5) may keep using its rings: the back then enters 5, too,
    /// and serves them until the front is Closed (6) or gone (docs/protocol 5.4).
    pub serves_closing: bool,
    /// Keys of the front that may change while the front is connected, besides `state`.
    pub front_keys: &'static [&'static str],
    /// Keys of the back's own directory that the toolstack may change, besides `online` and
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
    /// The device is not connected.
    None,
    /// The device is connected, and has its queues.
    Here,
    /// The device is connected, and workers have queues that the device needs for
    /// [`drain`](BackDevice::drain) or [`disconnect`](BackDevice::disconnect).
    HandedOut,
}

impl Connection {
    /// The state of a device with `all` queues (0: not connected), of which `here` are not with
    /// workers.
    pub const fn of_queues(here: usize, all: usize) -> Self {
        match all {
            0 => Self::None,
            _ if here < all => Self::HandedOut,
            _ => Self::Here,
        }
    }
}

/// Pages of its guest that a device has mapped, or may have (XSA-300).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageUse {
    /// Number of pages mapped from connect to disconnect, plus those that may be mapped at any
    /// moment.
    pub needed: usize,
    /// The part of the needed pages that the device cannot work without.
    pub least: usize,
    /// The part of `needed` that is mapped page by page.
    pub single: usize,
    /// Number of pages beyond `least` that the device would use in its current connection.
    pub requested: usize,
    /// Number of pages that the device may keep mapped beyond those that it needs, as of the last
    /// [`allow_pages`](BackDevice::allow_pages).
    pub allowed: usize,
}

/// The share of its guest's pages that a connected device gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageShare {
    /// Pages beyond the [least](PageUse::least).
    pub pages: usize,
    /// Largest number of all the device's pages that may stay in use until the device closes.
    pub lasting: usize,
}

/// A class of devices, as the back's end needs it.
pub trait BackDevice {
    /// The platform that the device runs on.
    type Platform: Platform;
    /// The device's ports, which may hold something for the guest.
    type Ports: ?Sized;
    /// The handshake's rules.
    const RULES: ClassRules;

    /// Writes what this back offers, and removes what is left of an old connection, in one
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
    /// Whether the device is connected, and who has its queues.
    fn connection(&self) -> Connection;
    /// Before an orderly [`disconnect`](Self::disconnect): answers what was taken from the guest,
    /// and delivers what was taken from `ports`, or is still there, as far as there is room.
    fn drain(&mut self, p: &Self::Platform, ports: &mut Self::Ports) -> Drained;
    /// Releases rings, pages and channels.
    fn disconnect(&mut self, p: &Self::Platform);
    /// Handles a change; it is only called while the device is connected.
    fn changed<B: DeviceBus>(
        &mut self,
        p: &Self::Platform,
        bus: &mut B,
        what: Changed<'_>,
    ) -> Result<(), B::Error>;
    /// Pages of the guest that the device has mapped, or may have mapped.
    fn pages(&self) -> PageUse;
    /// Sets the device's share; pages beyond it are unmapped.
    fn allow_pages(&mut self, p: &Self::Platform, share: PageShare);
}

/// The state in which a predecessor left a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PreviousState {
    /// There is nothing to resume.
    Nothing,
    /// The rings may be live: call [`Back::reattach`].
    Connected,
    /// The predecessor closed the device, or was about to; with the reason that it reported, if
    /// any.
    Closed(Option<String>),
}

/// Whether a front in this state may have live rings.
fn is_connected<D: BackDevice>(front: XenbusState) -> bool {
    matches!(front, XenbusState::Connected | XenbusState::Reconfiguring)
        || D::RULES.handshake == Handshake::Confirmed && front == XenbusState::Initialised
        || D::RULES.serves_closing && front == XenbusState::Closing
}

/// The result of [`Back::step`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackStep {
    /// There is nothing to do until the next watch event.
    Waiting,
    /// The device must close, and [workers have its queues](Connection::HandedOut): get them back
    /// and call again.
    Recall,
    /// The device has become live.
    Connected,
    /// The front is closing, and the device stays live until the front has closed:
    /// [`ClassRules::serves_closing`].
    Closing,
    /// The device is not live any more; the front may come back.
    Closed,
    /// The toolstack wants the device gone, and it is closed: forget it.
    Removed,
}

/// One device of domain `of`: the handshake around a class's device.
pub struct Back<D> {
    of: DomId,
    handle: u32,
    state: XenbusState,
    /// This end closed the device, in this process or a predecessor. A front that stays in state 4
    /// is not connected again; it must restart first.
    shut: bool,
    /// The device is connected, and the front was not informed yet.
    unsaid: bool,
    /// xenstore has a reason why the device is closed.
    reported: bool,
    /// The device closes for good: [`step`](Self::step) goes to state 6 and no further.
    ending: bool,
    /// The device is not connected before the toolstack's script has reported that the remote side
    /// is ready.
    awaits_hotplug: bool,
    /// The device is not connected for now.
    paused: bool,
    /// A driver of the kernel served the device until now.
    of_kernel: bool,
    /// Largest number of pages that the device may have mapped.
    page_limit: usize,
    /// Largest number of the guest's pages that the device may keep until it closes.
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
    /// Creates the back's end of a device that the toolstack created. Nothing is written to
    /// xenstore yet.
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

    /// Call before [`inherit`](Self::inherit) if the kernel's driver served the device until now.
    /// This matters in state 2, in which a predecessor of ours has connected no front, but netback
    /// may have.
    pub fn take_from_kernel(&mut self) {
        self.of_kernel = true;
    }

    /// From now on the front is only connected when [`HOTPLUG_STATUS`] is "connected": a script of
    /// the toolstack prepares the remote side (docs/protocol 2.10). Call [`step`](Self::step) when
    /// that key changes.
    pub fn await_hotplug(&mut self) {
        self.awaits_hotplug = true;
    }

    /// Whether a front that could be connected waits, at state 2, since the device's backing was
    /// unavailable a moment ago. Call [`step`](Self::step) when that is over.
    pub fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Limits the pages that the device maps at later connects: those that it needs, and those that
    /// it keeps mapped.
    pub fn limit_pages(&mut self, pages: usize) {
        self.page_limit = pages;
    }

    /// Limits how many of the mapped pages may be kept until the device closes. Requests for more
    /// are refused, and the device works without these pages.
    pub fn limit_lasting(&mut self, pages: usize) {
        self.lasting = pages;
    }

    /// True if the device is connected.
    pub fn is_connected(&self) -> bool {
        self.device.connection() != Connection::None
    }

    /// The guest's domain.
    pub fn front(&self) -> DomId {
        self.of
    }

    /// The guest's number of the device.
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// The back's own state.
    pub fn state(&self) -> XenbusState {
        self.state
    }

    /// Reads a predecessor's state. Call it first. A device that the predecessor closed, for a
    /// fault or on request, stays closed.
    pub fn inherit<B: DeviceBus>(&mut self, bus: &mut B) -> Result<PreviousState, B::Error> {
        match bus.own_state()? {
            // State 8 is 4 after a granted reconfiguration.
            XenbusState::Connected | XenbusState::Reconfigured => Ok(PreviousState::Connected),
            // Linux's netback with live rings, after it was bound again: its last unbinding removed
            // the key for which it waits before it enters 4.
            XenbusState::InitWait
                if self.of_kernel
                    && bus.own_text(HOTPLUG_STATUS)?.is_none()
                    && is_connected::<D>(bus.peer_state()?) =>
            {
                Ok(PreviousState::Connected)
            }
            // A front that is in use keeps its rings after its own 5, or after the toolstack's 5 in
            // our directory. A back that closes for a fault writes the reason before it writes 5.
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

    /// Resumes a predecessor's connection, if [`inherit`](Self::inherit) returned
    /// [`PreviousState::Connected`]. Call it before the first [`step`](Self::step). True: the
    /// device is live; a front that may have missed the notification of the last answers was
    /// notified, and the owner must poll before it sleeps (R5). It writes nothing but a 4 that was
    /// never written (and a disk's length if that grew meanwhile), so the front does not react, and
    /// the predecessor's offer stays valid. False: there is nothing to resume; use `step` as usual.
    ///
    /// A channel that another process held until just now may not be free yet: if
    /// [`ConnectError::is_too_early`], call this again for up to a second. After any other error
    /// call [`close`](Self::close).
    pub fn reattach<B: DeviceBus>(
        &mut self,
        p: &D::Platform,
        bus: &mut B,
        kept: KeptMemory<'_>,
    ) -> Result<bool, ConnectError<B::Error>> {
        // From here on xenstore and this end agree; `step` follows a front that left meanwhile.
        let own = bus.own_state().map_err(ConnectError::Keys)?;
        let front = bus.peer_state().map_err(ConnectError::Keys)?;
        self.state = match own {
            XenbusState::Reconfigured => own,
            // The toolstack writes 5 over a 4. It is the back's own 5 if the front has entered it,
            // too.
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

    /// Stops in good order without closing: [drains](BackDevice::drain) and releases everything,
    /// and writes nothing to xenstore. State 4 stays, for a successor to
    /// [`reattach`](Self::reattach).
    pub fn detach(&mut self, p: &D::Platform, ports: &mut D::Ports) -> Drained {
        let drained = self.device.drain(p, ports);
        self.device.disconnect(p);
        drained
    }

    /// Begins to close for good, in good order: drains as [`detach`](Self::detach) does, releases
    /// everything, and enters 5. [`step`](Self::step) then follows the front to 6, and no further.
    /// A device that is not connected keeps its state.
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

    /// Reads the front's state and makes the steps that it allows. After an error call
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

    /// Like [`step`](Self::step), but a connected front is not informed yet and may not send:
    /// prepare the receiver of its frames, then call [`say_connected`](Self::say_connected).
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
            // A toolstack that wants the device gone waits for 6, and may have written 5 over our
            // state, whatever the front's is.
            if !online
                && self.state == S::Closed
                && bus.own_state().map_err(ConnectError::Keys)? == S::Closing
            {
                bus.set_state(S::Closed).map_err(ConnectError::Keys)?;
            }
            self.shut &= is_connected::<D>(front);
            // A device that the toolstack removes goes in any case.
            if self.shut && online {
                return Ok(came_to);
            }
            // The front may keep its rings, which belong to the next back, although the toolstack
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

    /// Writes state 4, if that is due.
    pub fn say_connected<B: DeviceBus>(&mut self, bus: &mut B) -> Result<(), B::Error> {
        if core::mem::take(&mut self.unsaid) && self.is_connected() {
            bus.set_state(XenbusState::Connected)?;
            self.state = XenbusState::Connected;
        }
        Ok(())
    }

    /// Closes from this end, after a fault or an error, or because the toolstack or the operator
    /// wants it. The text goes to xenstore, where `xenstore-ls` shows it.
    pub fn close<B: DeviceBus>(
        &mut self,
        p: &D::Platform,
        bus: &mut B,
        why: Option<&str>,
    ) -> Result<(), B::Error> {
        self.device.disconnect(p);
        self.shut = true;
        self.reported |= why.is_some();
        // The state matters more than the text: it is written even if the text cannot be.
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
