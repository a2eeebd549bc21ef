//! `vtoy`, a class of devices: its front counts in a page that it granted, and its back answers
//! with the count that it has reached.
//!
//! ```text
//!   front  device/vtoy/N          ring-ref, event-channel, state           word 0 of the page: asked; word 2: the toy is at work
//!   back   backend/vtoy/GUEST/N   feature-count, state                     word 1: answered
//!   kept   "count": answered, before the page says so; a successor goes on from there
//!
//!   Toy: BackDevice            what the class offers, maps and binds; its keys
//!   Queue: ServedQueue         what a worker serves
//!   ToyInstance: ServedDevice  the handshake (Back<Toy>) joined with what the registry calls; one part, DeviceBacking
//!   Toys: DeviceClass          makes the devices; it goes into the list of a Backend's classes
//! ```
//! Copy this file to add a class. Discovery, throttling, shares of pages, recovery, log and status
//! come with the registry.
//!
//! A front may write anything to its page at any time. The back reads the count once, and closes
//! the device where it is further ahead than [`MOST`].

use pregrant::error::{PeerFault, PlatformError};
use pregrant::net::back::Drained;
use pregrant::platform::{Access, Events, PeerMem, Platform};
use pregrant::port::Arena;
use pregrant::shm::SharedBytes;
use pregrant::units::{DomId, EvtchnPort, GrantRef, PAGE_SIZE};
use pregrant::xenbus::back::{Begin, Changed, Connect, Connection, KeptMemory, PageShare, PageUse};
use pregrant::xenbus::bus::{DeviceBus, StoreBus};
use pregrant::xenbus::connect_error::ConnectError;
use pregrant::xenbus::key_source::needed;
use pregrant::xenbus::{Back, BackDevice, Class, ClassRules, Device, DeviceError, DeviceId};
use pregrant::xenstore::{Client, Transport};
use pregrant_host::drivers::device_class::{
    AnyBack, DeviceBacking, DeviceClass, Figures, Notes, RingFault, ServedDevice, ServedQueue, Trial,
    log_reattached,
};
use pregrant_host::drivers::device_log::DeviceLog;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

pub const VTOY: Class = Class::new("vtoy");
/// The words of the page: where the front counts, where the back answers, and whether the toy is
/// at work for its front.
pub const ASKED: usize = 0;
pub const ANSWERED: usize = 4;
pub const AT_WORK: usize = 8;
/// Largest number by which a front may be ahead of the back.
pub const MOST: u32 = 1000;

type Kept = Box<dyn SharedBytes + Send>;

struct Line<P: Platform> {
    page: <P::Peer as PeerMem>::Map,
    channel: <P::Events as Events>::Chan,
    kept: Option<Kept>,
    answered: u32,
    counts: Arc<Counts>,
}

/// A toy at the back.
pub struct Toy<P: Platform> {
    of: DomId,
    state: State<P>,
    counts: Arc<Counts>,
}

/// Whether the device is connected, and who has its queue.
enum State<P: Platform> {
    Closed,
    /// The device is connected, and has its queue.
    Here(Line<P>),
    /// The device is connected, and a worker has its queue.
    HandedOut,
}

/// Counters that the toy and its line share.
#[derive(Default)]
struct Counts {
    answered: AtomicU32,
    own: AtomicU64,
}

impl<P: Platform> Line<P> {
    /// Follows its front. True: there was something to follow.
    fn follow(&mut self, p: &P) -> Result<bool, PeerFault> {
        let asked = self.page.load_u32(ASKED).unwrap();
        match asked.wrapping_sub(self.answered) {
            0 => return Ok(false),
            n if n > MOST => {
                return Err(PeerFault::ReqProdOverrun {
                    req_prod: asked,
                    req_cons: self.answered,
                    size: MOST,
                });
            }
            n => drop(self.counts.own.fetch_add(n.into(), Ordering::Relaxed)),
        }
        self.answered = asked;
        self.counts.answered.store(asked, Ordering::Relaxed);
        assert!(self.kept.as_ref().is_none_or(|kept| kept.store_u32(0, asked)));
        assert!(self.page.store_u32(ANSWERED, asked));
        p.events().notify(&self.channel);
        Ok(true)
    }

    fn is_behind(&self) -> bool {
        self.page.load_u32(ASKED) != Some(self.answered)
    }
}

/// The device's only queue. None: its event channel is lost.
struct Queue<P: Platform>(Option<Line<P>>);

impl<P: Platform> ServedQueue<P> for Queue<P> {
    fn number(&self) -> usize {
        0
    }
    fn poll(&mut self, p: &P, _: &mut Arena) -> Result<bool, RingFault> {
        let followed = self.0.as_mut().map_or(Ok(false), |line| line.follow(p));
        followed.map_err(|fault| RingFault { key: "ring-ref".into(), fault })
    }
    fn arm(&mut self, p: &P) -> Result<bool, RingFault> {
        if let Some(line) = &self.0 {
            p.events().unmask(&line.channel);
        }
        Ok(self.is_pending())
    }
    fn is_pending(&mut self) -> bool {
        self.0.as_ref().is_some_and(Line::is_behind)
    }
    fn channels(&self, p: &P) -> Vec<EvtchnPort> {
        self.0.iter().map(|line| p.events().local(&line.channel)).collect()
    }
    fn adopt(&mut self, p: &P) -> Result<(), PlatformError> {
        let Some(Line { page, channel, kept, answered, counts }) = self.0.take() else { return Ok(()) };
        let channel = p.events().adopt(channel)?;
        self.0 = Some(Line { page, channel, kept, answered, counts });
        Ok(())
    }
}

impl<P: Platform> BackDevice for Toy<P> {
    type Platform = P;
    type Ports = ();
    const RULES: ClassRules = ClassRules { front_keys: &["mood"], ..ClassRules::new(VTOY) };

    fn offer<B: DeviceBus>(&mut self, bus: &mut B) -> Result<(), B::Error> {
        bus.publish(&vec![("feature-count".into(), "1".into())], |_| false)
    }

    fn connect<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
        with: Connect<'_>,
    ) -> Result<(), ConnectError<B::Error>> {
        let gref = GrantRef(needed(bus, "ring-ref").map_err(ConnectError::Keys)?);
        let port = EvtchnPort(needed(bus, "event-channel").map_err(ConnectError::Keys)?);
        let of = self.of;
        let page = p.peer().map(of, &[gref], Access::ReadWrite);
        let page = page.map_err(|error| ConnectError::Map { key: "ring-ref".into(), of, gref, error })?;
        let channel = p.events().bind(of, port);
        let channel =
            channel.map_err(|error| ConnectError::Bind { key: "event-channel".into(), of, port, error })?;
        let kept = (with.kept)("count", PAGE_SIZE);
        let answered = match (&kept, with.begin) {
            (Some(kept), Begin::Reattach) => kept.load_u32(0).unwrap(),
            (kept, _) => {
                assert!(kept.as_ref().is_none_or(|kept| kept.store_u32(0, 0)));
                0
            }
        };
        // A predecessor may have died between what it kept and the page, or before its event.
        assert!(page.store_u32(ANSWERED, answered));
        p.events().notify(&channel);
        let counts = Arc::clone(&self.counts);
        counts.answered.store(answered, Ordering::Relaxed);
        self.state = State::Here(Line { page, channel, kept, answered, counts });
        Ok(())
    }

    fn connection(&self) -> Connection {
        match self.state {
            State::Closed => Connection::None,
            State::Here(_) => Connection::Here,
            State::HandedOut => Connection::HandedOut,
        }
    }

    fn drain(&mut self, p: &P, (): &mut ()) -> Drained {
        let own = || self.counts.own.load(Ordering::Relaxed);
        let before = own();
        if let State::Here(line) = &mut self.state {
            let _ = line.follow(p); // a violation has no answer
        }
        Drained { delivered: (own() - before) as usize, lost: 0 }
    }

    fn disconnect(&mut self, _: &P) {
        self.state = State::Closed;
    }

    fn changed<B: DeviceBus>(&mut self, _: &P, bus: &mut B, _: Changed<'_>) -> Result<(), B::Error> {
        bus.text("mood").map(drop)
    }

    fn pages(&self) -> PageUse {
        let needed = usize::from(self.connection() != Connection::None);
        PageUse { needed, least: needed, ..PageUse::default() }
    }

    fn allow_pages(&mut self, _: &P, _: PageShare) {
        // It has no pages beyond those that it needs.
    }
}

/// A toy that is served.
struct ToyInstance<P: Platform>(Back<Toy<P>>);

impl<P: Platform, T: Transport + 'static> ServedDevice<P, T> for ToyInstance<P> {
    fn back(&self) -> &dyn AnyBack<P, T> {
        &self.0
    }
    fn back_mut(&mut self) -> &mut dyn AnyBack<P, T> {
        &mut self.0
    }
    fn place(&mut self, _: &Device, _: &mut Client<T>, _: bool) -> Result<Notes, String> {
        Ok(Notes::new())
    }
    fn connected(&mut self, begin: Begin, _: &Device, log: &DeviceLog) {
        if begin == Begin::Reattach {
            log_reattached(log, "");
        }
        log.say(log::Level::Info, &"connected, a toy");
    }
    fn closed(&mut self, _: &DeviceId, _: &DeviceLog) {}
    fn detach(&mut self, p: &P) -> Drained {
        self.0.detach(p, &mut ())
    }
    fn hand_out_queues(&mut self) -> Vec<Box<dyn ServedQueue<P>>> {
        match std::mem::replace(&mut self.0.state, State::HandedOut) {
            State::Here(line) => vec![Box::new(Queue(Some(line)))],
            state => {
                self.0.state = state;
                Vec::new()
            }
        }
    }
    fn take_back_queues(&mut self, queues: Vec<Box<dyn ServedQueue<P>>>) {
        for queue in queues {
            if let Ok(queue) = (queue as Box<dyn Any>).downcast::<Queue<P>>() {
                // A queue whose channel is lost has closed its page.
                self.0.state = queue.0.map_or(State::Closed, State::Here);
            }
        }
    }
    fn own_key_changed(&mut self, _: &Device, _: &DeviceLog) {}
    fn figures(&self) -> Figures {
        let Counts { answered, own } = &*self.0.counts;
        let [answered, own] = [answered.load(Ordering::Relaxed).into(), own.load(Ordering::Relaxed)];
        let counters = vec![("answered", answered), ("answered_by_this", own)];
        Figures { counters, ..Figures::default() }
    }
    fn backing(&mut self) -> Option<&mut dyn DeviceBacking<P, T>> {
        Some(self)
    }
}

/// The toy that is at work for its front: its device's close waits for that.
impl<P: Platform, T: Transport + 'static> DeviceBacking<P, T> for ToyInstance<P> {
    fn try_ahead(&mut self, _: &mut StoreBus<'_, T>) -> Result<(Trial, bool), DeviceError> {
        Ok((Trial::Nothing, false))
    }
    fn under_way(&mut self, _: &P) -> Option<Duration> {
        let State::Here(line) = &self.0.state else { return None };
        (line.page.load_u32(AT_WORK) == Some(1)).then_some(Duration::from_secs(3600))
    }
    fn give_up(&mut self) -> bool {
        false
    }
}

pub struct Toys;

impl<P: Platform, T: Transport + 'static> DeviceClass<P, T> for Toys {
    fn rules(&self) -> ClassRules {
        Toy::<P>::RULES
    }
    fn make(&mut self, id: &DeviceId, _: KeptMemory<'_>) -> Box<dyn ServedDevice<P, T>> {
        let toy = Toy { of: id.front, state: State::Closed, counts: Arc::default() };
        Box::new(ToyInstance(Back::around(toy, id.front, id.handle)))
    }
}
