//! `vtoy`, a class of devices that this test alone knows: its front counts in a page that it
//! granted, its back reports the count that it has reached.
//!
//! ```text
//!   front  device/vtoy/N          ring-ref, event-channel, state           word 0 of the page: asked; word 2: the toy is at work
//!   back   backend/vtoy/GUEST/N   feature-count, state                     word 1: answered
//!   kept   "count": answered, before the page says so; a successor goes on from there
//! ```
//! All of a class is here: what it is at the back ([`BackDevice`]), how it is served
//! ([`ServedDevice`]), and the class.

use pregrant::error::{PeerFault, PlatformError};
use pregrant::net::back::Drained;
use pregrant::platform::{Access, Events, PeerMem, Platform};
use pregrant::port::Arena;
use pregrant::shm::SharedBytes;
use pregrant::units::{DomId, EvtchnPort, GrantRef, PAGE_SIZE};
use pregrant::xenbus::back::{Begin, Changed, Connect, KeptMemory};
use pregrant::xenbus::bus::{DeviceBus, StoreBus};
use pregrant::xenbus::connect_error::ConnectError;
use pregrant::xenbus::key_source::needed;
use pregrant::xenbus::{Back, BackDevice, Class, Device, DeviceError, DeviceId};
use pregrant::xenstore::Transport;
use pregrant_host::drivers::registry::{AnyBack, DeviceLog, Figures, RingFault, ServedQueue};
use pregrant_host::drivers::{DeviceClass, ServedDevice};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

pub const VTOY: Class = Class::new("vtoy");
pub const ASKED: usize = 0;
pub const ANSWERED: usize = 4;
pub const AT_WORK: usize = 8;
/// How much a front may be ahead.
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
    /// While it is connected, and here.
    line: Option<Line<P>>,
    lent: bool,
    counts: Arc<Counts>,
}

/// State that the toy and its line share.
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

/// Its one queue. None: its channel is lost.
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
    const CLASS: Class = VTOY;
    const FRONT_KEYS: &'static [&'static str] = &["mood"];

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
        self.line = Some(Line { page, channel, kept, answered, counts });
        Ok(())
    }

    fn is_connected(&self) -> bool {
        self.line.is_some() || self.lent
    }

    fn is_handed_out(&self) -> bool {
        self.lent
    }

    fn drain(&mut self, p: &P, (): &mut ()) -> Drained {
        let own = || self.counts.own.load(Ordering::Relaxed);
        let before = own();
        let _ = self.line.as_mut().map(|line| line.follow(p)); // a violation has no answer
        Drained { delivered: (own() - before) as usize, lost: 0 }
    }

    fn disconnect(&mut self, _: &P) {
        self.line = None;
    }

    fn changed<B: DeviceBus>(&mut self, _: &P, bus: &mut B, _: Changed<'_>) -> Result<(), B::Error> {
        bus.text("mood").map(drop)
    }

    fn needed_pages(&self) -> usize {
        usize::from(self.is_connected())
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
    fn detach(&mut self, p: &P) -> Drained {
        self.0.detach(p, &mut ())
    }
    fn end(&mut self, p: &P, bus: &mut StoreBus<'_, T>) -> Result<Drained, DeviceError> {
        self.0.end(p, bus, &mut ())
    }
    fn connected(&mut self, _: &Device, log: &DeviceLog) {
        log.say(log::Level::Info, &"connected, a toy");
    }
    fn lend(&mut self) -> Vec<Box<dyn ServedQueue<P>>> {
        self.0.lent = true;
        vec![Box::new(Queue(self.0.line.take()))]
    }
    fn take_back(&mut self, queues: Vec<Box<dyn ServedQueue<P>>>) {
        self.0.lent = false;
        for queue in queues {
            if let Ok(line) = (queue as Box<dyn Any>).downcast::<Queue<P>>() {
                self.0.line = line.0;
            }
        }
    }
    fn under_way(&mut self, _: &P) -> Option<Duration> {
        let works = self.0.line.as_ref().is_some_and(|line| line.page.load_u32(AT_WORK) == Some(1));
        works.then_some(Duration::from_secs(3600))
    }
    fn figures(&self) -> Figures {
        let Counts { answered, own } = &*self.0.counts;
        let [answered, own] = [answered.load(Ordering::Relaxed).into(), own.load(Ordering::Relaxed)];
        let counters = vec![("answered", answered), ("answered_by_this", own)];
        Figures { counters, ..Figures::default() }
    }
}

pub struct Toys;

impl<P: Platform, T: Transport + 'static> DeviceClass<P, T> for Toys {
    fn class(&self) -> Class {
        VTOY
    }
    fn front_keys(&self) -> &'static [&'static str] {
        Toy::<P>::FRONT_KEYS
    }
    fn make(&mut self, id: &DeviceId, _: KeptMemory<'_>) -> Box<dyn ServedDevice<P, T>> {
        let toy = Toy { of: id.front, line: None, lent: false, counts: Arc::default() };
        Box::new(ToyInstance(Back::around(toy, id.front, id.handle)))
    }
}
