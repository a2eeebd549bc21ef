//! What a back may do wrong, or unusually, to a guest, case by case, and how the guest's front
//! reacts (docs/protocol 2.6, 2.7 and 9).
//!
//! ```text
//!   case --answers, indices, events, keys--> front          a line each:
//!        <--requests---------------------------             CASE name front=<serves|silent|closed ...>
//! ```
//! Each case has a connection of its own. The front may be any: what it does wrong in turn is
//! ignored, or ends the case with an error.

#[path = "rx_pool.rs"]
mod rx_pool;
#[path = "search.rs"]
mod search;

use pregrant::net::features::BackFeatures;
use pregrant::net::path::staging::keys::active_key;
use pregrant::net::path::staging::list;
use pregrant::platform::{Access, Clock, Events, PeerMem, Platform};
use pregrant::ring::{NetCtrl, NetRx, NetTx, RingMem, RingPages, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{
    RSP_DROPPED, RSP_ERROR, RSP_NULL, RSP_OKAY, RXF_CSUM_BLANK, RXF_EXTRA_INFO, RXF_MORE_DATA, RxRequest,
    RxResponse, TXF_EXTRA_INFO, TXF_MORE_DATA, TxRequest, TxResponse,
};
use pregrant::wire::staging::ENTRIES_PER_PAGE;
use pregrant::xenbus::{Device, DeviceId, Side, XenbusState};
use pregrant::xenstore::{Client, Transport};
use pregrant::{EvtchnPort, GrantRef};
use rx_pool::Says;
use search::Seen;
use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Map<P> = <<P as Platform>::Peer as PeerMem>::Map;
type Chan<P> = <<P as Platform>::Events as Events>::Chan;
/// The function that plays a case on a connected front.
type Play<P, T> = fn(&mut Vif<'_, P, T>) -> Result<()>;

/// How long a front may take for any step; long, for an emulator on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// If nothing happens for this long, the front counts as silent.
const SILENCE: Duration = Duration::from_secs(20);
/// Slots of a ring of one page.
const SLOTS: u32 = 256;
/// Number of honest answers that show that a front goes on.
const ANSWERS: u32 = 40;
/// Number of pages that a serving front has posted again: some batches.
const SERVED: u32 = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offer {
    /// A grant for each frame.
    Plain,
    /// All that ours offers; staging lists are accepted.
    All,
    Mapping,
    Garbage,
}

pub struct Case<P: Platform, T: Transport> {
    pub name: &'static str,
    offer: Offer,
    play: Play<P, T>,
}

/// The expected result of each case, on the loopback and with the kernel module.
pub const GOLDEN: &str = include_str!("golden");

pub fn all<P: Platform, T: Transport>() -> Vec<Case<P, T>> {
    let mut cases: Vec<Case<P, T>> = Vec::new();
    let mut add = |name, offer, play| cases.push(Case { name, offer, play });
    let both: [(&str, Play<P, T>, &str); 32] = [
        ("nothing-wrong", |_| Ok(()), "all-nothing-wrong"),
        ("xsa-391-a-storm-of-events", |v| v.storm(), "all-xsa-391-a-storm-of-events"),
        ("tx-errors", |v| v.tx_errors(), "all-tx-errors"),
        ("tx-null", |v| v.tx_null(), "all-tx-null"),
        ("tx-an-id-that-is-none", |v| v.tx_id(u16::MAX), "all-tx-an-id-that-is-none"),
        ("tx-an-id-twice", |v| v.tx_twice(), "all-tx-an-id-twice"),
        ("xsa-39-tx-an-index-ahead", |v| v.tx_index(SLOTS + 1), "all-xsa-39-tx-an-index-ahead"),
        ("xsa-39-tx-an-index-back", |v| v.tx_index(u32::MAX - 1), "all-xsa-39-tx-an-index-back"),
        ("xsa-39-rx-an-index-ahead", |v| v.rx_index(SLOTS + 1), "all-xsa-39-rx-an-index-ahead"),
        ("xsa-39-rx-an-index-back", |v| v.rx_index(u32::MAX - 1), "all-xsa-39-rx-an-index-back"),
        ("rx-errors", |v| v.rx(&[at(0, 0, -1), at(0, 0, i16::MIN)]), "all-rx-errors"),
        ("rx-no-bytes", |v| v.rx(&[at(0, 0, 0)]), "all-rx-no-bytes"),
        ("rx-a-byte", |v| v.rx(&[at(0, 0, 1)]), "all-rx-a-byte"),
        ("rx-longer-than-a-page", |v| v.rx(&[at(0, 0, 4097)]), "all-rx-longer-than-a-page"),
        ("rx-the-longest", |v| v.rx(&[at(0, 0, i16::MAX)]), "all-rx-the-longest"),
        ("rx-across-its-page", |v| v.rx(&[at(4090, 0, 60)]), "all-rx-across-its-page"),
        ("rx-far-outside", |v| v.rx(&[at(u16::MAX, 0, 60)]), "all-rx-far-outside"),
        ("rx-blank-checksum", |v| v.rx(&[at(0, RXF_CSUM_BLANK, 60)]), "all-rx-blank-checksum"),
        ("rx-19-slots", |v| v.rx_chain(19), "all-rx-19-slots"),
        ("rx-30-slots", |v| v.rx_chain(30), "all-rx-30-slots"),
        ("rx-more-data-without-end", |v| v.rx_open(200), "all-rx-more-data-without-end"),
        ("rx-extra-of-type-9", |v| v.rx_extra([9, 0]), "all-rx-extra-of-type-9"),
        ("rx-gso-of-size-0", |v| v.rx_extra([1, 1]), "all-rx-gso-of-size-0"),
        ("rx-gso-of-type-9", |v| v.rx_extra([1 | 1448 << 16, 9]), "all-rx-gso-of-type-9"),
        ("rx-another-id", |v| v.rx_other_id(), "all-rx-another-id"),
        ("pieces-answered", |v| v.pieces_answered(), "all-pieces-answered"),
        ("pieces-an-id-that-is-none", |v| v.pieces_id(u16::MAX), "all-pieces-an-id-that-is-none"),
        ("pieces-an-id-twice", |v| v.pieces_twice(), "all-pieces-an-id-twice"),
        ("pieces-without-an-answer", |v| v.pieces().map(drop), "all-pieces-without-an-answer"),
        ("xsa-396-pieces-kept-at-the-end", |v| v.keep_pieces(false), "all-xsa-396-pieces-kept-at-the-end"),
        (
            "xsa-396-pieces-kept-after-answers",
            |v| v.keep_pieces(true),
            "all-xsa-396-pieces-kept-after-answers",
        ),
        ("xsa-403-all-that-is-granted", |v| v.search(), "all-xsa-403-all-that-is-granted"),
    ];
    for (name, play, _) in both {
        add(name, Offer::Plain, play);
    }
    for (_, play, name) in both {
        add(name, Offer::All, play);
    }
    add("keys-of-no-use", Offer::Garbage, |_| Ok(()));
    add("xsa-349-states-at-random", Offer::Plain, |v| v.states());
    add("xsa-396-pages-that-are-kept", Offer::All, |v| v.keep_pages());
    let of_pool: [(&str, Play<P, T>); 11] = [
        ("pool-nothing-wrong", |v| v.pool(Says::Done, Says::Done)),
        ("pool-adds-refused", |v| v.pool(Says::Refused, Says::Done)),
        ("pool-adds-in-part", |v| v.pool(Says::Part, Says::Done)),
        ("pool-adds-not-answered", |v| v.pool(Says::Nothing, Says::Done)),
        ("pool-dels-refused", |v| v.pool(Says::Done, Says::Refused)),
        ("pool-dels-in-part", |v| v.pool(Says::Done, Says::Part)),
        ("pool-dels-not-answered", |v| v.pool(Says::Done, Says::Nothing)),
        ("xsa-396-pool-kept-after-dels", |v| v.pool(Says::Done, Says::Kept)),
        ("xsa-396-pool-kept-at-the-end", |v| v.keep_pool()),
        ("pool-a-fault-behind-frames", |v| v.fault_behind_frames()),
        ("pool-comes-again", |v| v.long_frames()),
    ];
    for (name, play) in of_pool {
        add(name, Offer::Mapping, play);
    }
    cases
}

/// An answer; its id is filled in.
fn at(offset: u16, flags: u16, status: i16) -> RxResponse {
    RxResponse { id: 0, offset, flags, status }
}

/// The control ring, and what was asked there.
struct Control<P: Platform> {
    ring: RingPages<NetCtrl, Map<P>>,
    chan: Chan<P>,
    /// The page with the references that a request is about.
    list: Option<Map<P>>,
    /// Numbers of requests taken and of answers sent.
    taken: u32,
    given: u32,
    /// Answers to ADDs and DELs of the pool, and how many there were.
    says: [Says; 2],
    asked: [u32; 2],
}

pub struct Vif<'a, P: Platform, T: Transport> {
    p: &'a P,
    xs: &'a mut Client<T>,
    device: Device,
    tx: RingPages<NetTx, Map<P>>,
    rx: RingPages<NetRx, Map<P>>,
    chan: Chan<P>,
    control: Option<Control<P>>,
    /// All else that is mapped, by reference.
    maps: BTreeMap<u32, Map<P>>,
    /// Pages of a frame that was sent from granted pages, or that left the pool and are still
    /// mapped.
    pieces: Vec<Map<P>>,
    tx_cons: u32,
    rx_cons: u32,
    tx_prod: u32,
    rx_prod: u32,
    /// Sum over these pages after the front had finished with them.
    kept: Option<u64>,
    /// Sum over the first fragments while the front is still connected.
    shown: Option<(usize, u64)>,
    /// The contents of all that is granted.
    searched: Option<Seen>,
}

impl<'a, P: Platform, T: Transport> Vif<'a, P, T> {
    fn connect(p: &'a P, xs: &'a mut Client<T>, id: DeviceId, offer: Offer) -> Result<Self> {
        let device = Device::new(id, Side::Back);
        device.watch_peer(xs)?;
        close(p, xs, &device)?;
        for (key, value) in pairs(offer) {
            device.set(xs, &key, &value)?;
        }
        device.set_state(xs, XenbusState::InitWait)?;
        let refused = |s| offer == Offer::Garbage && s == XenbusState::Closing;
        let came =
            device.wait_peer(xs, p.clock(), Some(PATIENCE), |s| s == XenbusState::Connected || refused(s))?;
        if came != XenbusState::Connected {
            return Err(format!("the front stays at {came}").into());
        }
        let queues = front_number(xs, id, "multi-queue-num-queues")?.unwrap_or(1);
        if queues != 1 {
            return Err(format!("the front has {queues} queues").into());
        }
        let mut maps = BTreeMap::new();
        let ring = |xs: &mut Client<T>, key: &str| -> Result<Map<P>> {
            let one = front_number(xs, id, key)?;
            let gref = one.map_or_else(|| front_number(xs, id, &format!("{key}0")), |r| Ok(Some(r)))?;
            map(p, id, gref.ok_or("no ring")?, Access::ReadWrite)
        };
        let (tx, rx) = (ring(xs, "tx-ring-ref")?, ring(xs, "rx-ring-ref")?);
        let control = match offer {
            Offer::Mapping => Some(ring(xs, "ctrl-ring-ref")?),
            _ => None,
        };
        if offer == Offer::All {
            for (dir, acc) in [("tx", Access::ReadOnly), ("rx", Access::ReadWrite)] {
                let Some(gref) = front_number(xs, id, &format!("{dir}-data-ref0"))? else { continue };
                let entries =
                    list::read(&map(p, id, gref, Access::ReadOnly)?, ENTRIES_PER_PAGE).expect("memory");
                for entry in entries.iter().filter(|entry| entry.gref != 0) {
                    maps.insert(entry.gref, map(p, id, entry.gref, acc)?);
                }
            }
            device.set(xs, &active_key(0, 1), "1")?;
        }
        let port = match front_number(xs, id, "event-channel")? {
            Some(port) => port,
            None => front_number(xs, id, "event-channel-tx")?.ok_or("no event channel")?,
        };
        let chan = p.events().bind(id.front, EvtchnPort(port))?;
        let control = match control {
            Some(ring) => {
                let port = front_number(xs, id, "event-channel-ctrl")?.ok_or("no event channel")?;
                let chan = p.events().bind(id.front, EvtchnPort(port))?;
                let (ring, says) = (RingPages::new(ring), [Says::Done; 2]);
                Some(Control { ring, chan, list: None, taken: 0, given: 0, says, asked: [0; 2] })
            }
            None => None,
        };
        device.set_state(xs, XenbusState::Connected)?;
        let (tx, rx) = (RingPages::new(tx), RingPages::new(rx));
        Ok(Self {
            p,
            xs,
            device,
            tx,
            rx,
            chan,
            control,
            maps,
            pieces: Vec::new(),
            tx_cons: 0,
            rx_cons: 0,
            tx_prod: 0,
            rx_prod: 0,
            kept: None,
            shown: None,
            searched: None,
        })
    }

    fn state(&mut self) -> Result<XenbusState> {
        Ok(self.device.peer_state(self.xs)?)
    }

    fn now(&self) -> u64 {
        self.p.clock().now_ns()
    }

    fn notify(&self) {
        self.tx.full_fence();
        self.p.events().notify(&self.chan);
    }

    /// The next request of the guest's frames, if the front sends one in time.
    fn take_tx(&mut self) -> Result<TxRequest> {
        let until = self.now() + PATIENCE.as_nanos() as u64;
        while self.tx.load(Word::ReqProd) == self.tx_cons {
            // A front that is to wake us says from which request on.
            self.tx.store(Word::ReqEvent, self.tx_cons.wrapping_add(1));
            if self.now() > until || self.state()? != XenbusState::Connected {
                return Err("the front sends nothing".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.tx_cons = self.tx_cons.wrapping_add(1);
        Ok(TxRequest::from_words(self.tx.read::<3>(self.tx_cons.wrapping_sub(1))))
    }

    /// The next page for the guest, if the front posts one in time.
    fn take_rx(&mut self) -> Result<RxRequest> {
        let until = self.now() + PATIENCE.as_nanos() as u64;
        while self.rx.load(Word::ReqProd) == self.rx_cons {
            self.rx.store(Word::ReqEvent, self.rx_cons.wrapping_add(1));
            if self.now() > until || self.state()? != XenbusState::Connected {
                return Err("the front posts nothing".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.rx_cons = self.rx_cons.wrapping_add(1);
        Ok(RxRequest::from_words(self.rx.read::<2>(self.rx_cons.wrapping_sub(1))))
    }

    fn answer_tx(&mut self, id: u16, status: i16) {
        self.tx.write::<1>(self.tx_prod, [TxResponse { id, status }.to_word()]);
        self.tx_prod = self.tx_prod.wrapping_add(1);
        self.tx.store(Word::RspProd, self.tx_prod);
        self.notify();
    }

    /// Words into the next slot, seen with the others by [`Self::publish_rx`].
    fn put_rx(&mut self, words: [u32; 2]) {
        self.rx.write::<2>(self.rx_prod, words);
        self.rx_prod = self.rx_prod.wrapping_add(1);
    }

    fn publish_rx(&mut self) {
        self.rx.store(Word::RspProd, self.rx_prod);
        self.notify();
    }

    /// Leaves a false index until the front has closed, or has had time to.
    fn is_seen(&mut self) -> Result<()> {
        self.notify();
        let until = self.now() + SILENCE.as_nanos() as u64;
        while self.state()? == XenbusState::Connected && self.now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn storm(&mut self) -> Result<()> {
        (0..10_000).for_each(|_| self.notify());
        Ok(())
    }

    fn tx_errors(&mut self) -> Result<()> {
        for status in [RSP_ERROR, RSP_DROPPED, i16::MIN] {
            let req = self.take_tx()?;
            self.answer_tx(req.id, status);
        }
        Ok(())
    }

    /// A status that no answer to a request of a frame has.
    fn tx_null(&mut self) -> Result<()> {
        let id = self.take_tx()?.id;
        self.answer_tx(id, RSP_NULL);
        Ok(())
    }

    fn tx_id(&mut self, id: u16) -> Result<()> {
        self.take_tx()?;
        self.answer_tx(id, RSP_OKAY);
        Ok(())
    }

    fn tx_twice(&mut self) -> Result<()> {
        let id = self.take_tx()?.id;
        self.take_tx()?;
        self.answer_tx(id, RSP_OKAY);
        self.answer_tx(id, RSP_OKAY);
        Ok(())
    }

    fn tx_index(&mut self, ahead: u32) -> Result<()> {
        let id = self.take_tx()?.id;
        self.answer_tx(id, RSP_OKAY);
        self.tx.store(Word::RspProd, self.tx_prod.wrapping_add(ahead));
        self.is_seen()
    }

    fn rx_index(&mut self, ahead: u32) -> Result<()> {
        self.rx(&[at(0, 0, 60)])?;
        self.rx.store(Word::RspProd, self.rx_prod.wrapping_add(ahead));
        self.is_seen()
    }

    /// Sends these answers, each for the request in its slot.
    fn rx(&mut self, answers: &[RxResponse]) -> Result<()> {
        for &answer in answers {
            let id = self.take_rx()?.id;
            self.put_rx(RxResponse { id, ..answer }.to_words());
        }
        self.publish_rx();
        Ok(())
    }

    /// Sends a frame of this many slots.
    fn rx_chain(&mut self, slots: usize) -> Result<()> {
        let mut chain = vec![at(0, RXF_MORE_DATA, 100); slots];
        chain[slots - 1].flags = 0;
        self.rx(&chain)
    }

    /// Sends a frame without an end.
    fn rx_open(&mut self, slots: usize) -> Result<()> {
        self.rx(&vec![at(0, RXF_MORE_DATA, 1); slots])
    }

    /// Delivers a frame with this extra info after its first slot.
    fn rx_extra(&mut self, extra: [u32; 2]) -> Result<()> {
        let id = self.take_rx()?.id;
        self.put_rx(RxResponse { id, ..at(0, RXF_EXTRA_INFO, 60) }.to_words());
        self.take_rx()?;
        self.put_rx(extra);
        self.publish_rx();
        Ok(())
    }

    fn rx_other_id(&mut self) -> Result<()> {
        let id = self.take_rx()?.id;
        self.put_rx(RxResponse { id: id ^ 1, ..at(0, 0, 60) }.to_words());
        self.publish_rx();
        Ok(())
    }

    /// The requests of the next frame in several slots, whose later ones name the guest's own
    /// pages, if its driver sends such frames. Frames before it are answered.
    fn pieces(&mut self) -> Result<Vec<TxRequest>> {
        let until = self.now() + PATIENCE.as_nanos() as u64;
        while self.now() < until {
            let mut frame = vec![self.take_tx()?];
            if frame[0].flags & TXF_EXTRA_INFO != 0 {
                self.take_tx()?;
            }
            while frame[frame.len() - 1].flags & TXF_MORE_DATA != 0 {
                frame.push(self.take_tx()?);
            }
            if frame.len() > 1 {
                return Ok(frame);
            }
            self.answer_tx(frame[0].id, RSP_OKAY);
        }
        Err("the front sends no frame of several slots".into())
    }

    /// Maps those of its pages that are not mapped yet.
    fn map_pieces(&mut self, frame: &[TxRequest]) -> Result<()> {
        for req in frame.iter().skip(1).filter(|req| !self.maps.contains_key(&req.gref)) {
            self.pieces.push(map(self.p, self.device.id(), req.gref, Access::ReadOnly)?);
        }
        Ok(())
    }

    fn pieces_answered(&mut self) -> Result<()> {
        for _ in 0..ANSWERS / 10 {
            let frame = self.pieces()?;
            self.map_pieces(&frame)?;
            self.p.peer().unmap(&mut self.pieces);
            frame.iter().for_each(|req| self.answer_tx(req.id, RSP_OKAY));
        }
        Ok(())
    }

    /// Misbehaves while granted pages are in flight.
    fn pieces_id(&mut self, id: u16) -> Result<()> {
        self.pieces()?;
        self.answer_tx(id, RSP_OKAY);
        Ok(())
    }

    fn pieces_twice(&mut self) -> Result<()> {
        let frame = self.pieces()?;
        let last = frame[frame.len() - 1].id;
        self.answer_tx(last, RSP_OKAY);
        self.answer_tx(last, RSP_OKAY);
        Ok(())
    }

    /// Reads granted pages after the front has finished with them, because of an answer to each or
    /// because it closed.
    fn keep_pieces(&mut self, answers: bool) -> Result<()> {
        let frame = self.pieces()?;
        self.map_pieces(&frame)?;
        match answers {
            true => frame.iter().for_each(|req| self.answer_tx(req.id, RSP_OKAY)),
            false => self.begin_close()?,
        }
        std::thread::sleep(Duration::from_secs(1));
        self.kept = Some(self.sum());
        Ok(())
    }

    fn begin_close(&mut self) -> Result<()> {
        self.device.set_state(self.xs, XenbusState::Closing)?;
        let closed = |s| matches!(s, XenbusState::Closing | XenbusState::Closed | XenbusState::Initialising);
        self.device.wait_peer(self.xs, self.p.clock(), Some(PATIENCE), closed)?;
        Ok(())
    }

    fn states(&mut self) -> Result<()> {
        let path = format!("{}/state", self.device.own_dir());
        for state in ["3", "7", "99", "", "no number", "1", "8", "4"] {
            self.xs.write(&path, state)?;
        }
        Ok(())
    }

    /// Reads what the front still shows once it is closed.
    fn keep_pages(&mut self) -> Result<()> {
        for _ in 0..ANSWERS {
            let req = self.take_rx()?;
            if req.gref != 0 && !self.maps.contains_key(&req.gref) {
                let page = map(self.p, self.device.id(), req.gref, Access::ReadWrite)?;
                self.maps.insert(req.gref, page);
            }
        }
        self.begin_close()?;
        std::thread::sleep(Duration::from_secs(1));
        self.kept = Some(self.sum());
        Ok(())
    }

    /// A sum over the granted pages of the frame, or over all pages that are mapped besides the
    /// rings.
    fn sum(&self) -> u64 {
        match self.pieces.is_empty() {
            true => sum(self.maps.values()),
            false => self.sum_of(self.pieces.len()),
        }
    }

    /// The sum over the first `pieces` fragments.
    fn sum_of(&self, pieces: usize) -> u64 {
        sum(self.pieces.iter().take(pieces))
    }

    /// Number of pages that are mapped.
    fn mapped(&self) -> usize {
        let of_control = self.control.as_ref().map_or(0, |c| 1 + usize::from(c.list.is_some()));
        2 + self.maps.len() + self.pieces.len() + of_control
    }

    /// Closed, and nothing stays mapped.
    fn end(self) -> Result<()> {
        let Vif { p, xs, device, tx, rx, maps, pieces, chan, control, .. } = self;
        close(p, xs, &device)?;
        device.unwatch_peer(xs)?;
        drop(chan);
        let mut gone: Vec<Map<P>> =
            maps.into_values().chain(pieces).chain([tx.into_pages(), rx.into_pages()]).collect();
        if let Some(Control { ring, list, .. }) = control {
            gone.extend(list.into_iter().chain([ring.into_pages()]));
        }
        p.peer().unmap(&mut gone);
        Ok(())
    }

    /// What the front does now: it is served honest answers to all its requests, and asks for more.
    fn fate(&mut self) -> Result<&'static str> {
        let until = self.now() + SILENCE.as_nanos() as u64;
        let (mut sent, mut posted) = (0, 0);
        while self.now() < until {
            if self.state()? != XenbusState::Connected {
                return Ok("closed");
            }
            self.serve_control()?;
            let ahead = self.tx.load(Word::ReqProd).wrapping_sub(self.tx_cons);
            if ahead > 0 && ahead <= SLOTS {
                let id = self.take_tx()?.id;
                self.answer_tx(id, RSP_OKAY);
                sent += 1;
            }
            let ahead = self.rx.load(Word::ReqProd).wrapping_sub(self.rx_cons);
            if ahead > 0 && ahead <= SLOTS && posted < SLOTS + SERVED {
                self.rx(&[at(0, 0, 60)])?;
                posted += 1;
            }
            // More than its ring and a batch: it has taken TX answers since.
            if sent > 0 && posted >= SLOTS + SERVED {
                return Ok("serves");
            }
            self.tx.store(Word::ReqEvent, self.tx_cons.wrapping_add(1));
            if ahead == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok("silent")
    }
}

fn sum<'a, M: SharedBytes + 'a>(pages: impl Iterator<Item = &'a M>) -> u64 {
    let mut sum = 0u64;
    for page in pages {
        for at in (0..4096).step_by(4) {
            sum = sum.rotate_left(1) ^ u64::from(page.load_u32(at).unwrap_or(0));
        }
    }
    sum
}

fn pairs(offer: Offer) -> Vec<(String, String)> {
    let of = |pairs: &[(&str, &str)]| pairs.iter().map(|&(k, v)| (k.into(), v.into())).collect();
    let plain = of(&[("feature-sg", "1"), ("feature-rx-copy", "1"), ("feature-gso-tcpv4", "1")]);
    // Each key that another case wrote.
    let mut all: BTreeMap<String, String> = match offer {
        Offer::Garbage => {
            BackFeatures::default().pairs().into_iter().map(|(k, _)| (k.to_string(), "-1".into())).collect()
        }
        Offer::All => {
            BackFeatures::default().pairs().into_iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
        }
        Offer::Plain | Offer::Mapping => {
            BackFeatures::default().pairs().into_iter().map(|(k, _)| (k.to_string(), "0".into())).collect()
        }
    };
    let plain: Vec<(String, String)> = plain;
    all.extend(plain);
    let one: &[(&str, &str)] = match offer {
        Offer::Garbage => &[("multi-queue-max-queues", "99999999999"), ("staging-grants-sizes", ";;x;-1;")],
        _ => &[("multi-queue-max-queues", "1"), ("feature-split-event-channels", "0")],
    };
    all.extend(of(one));
    if offer == Offer::Mapping {
        all.extend(of(&[("feature-ctrl-ring", "1")]));
    }
    all.into_iter().collect()
}

fn front_number<T: Transport>(xs: &mut Client<T>, id: DeviceId, key: &str) -> Result<Option<u32>> {
    let value = xs.read_if_there(&format!("{}/{key}", id.front_dir()))?;
    Ok(value.map(|v| String::from_utf8_lossy(&v).trim().parse()).transpose()?)
}

fn map<P: Platform>(p: &P, id: DeviceId, gref: u32, acc: Access) -> Result<Map<P>> {
    let map = p.peer().map(id.front, &[GrantRef(gref)], acc);
    map.map_err(|e| format!("grant {gref} cannot be mapped: {}", e.status).into())
}

/// Closes, and waits for the front to do the same.
fn close<P: Platform, T: Transport>(p: &P, xs: &mut Client<T>, device: &Device) -> Result<()> {
    device.set_state(xs, XenbusState::Closing)?;
    let closed = |s| !matches!(s, XenbusState::Connected | XenbusState::Initialised);
    device.wait_peer(xs, p.clock(), Some(PATIENCE), closed)?;
    device.set_state(xs, XenbusState::Closed)?;
    Ok(())
}

impl<P: Platform, T: Transport> Case<P, T> {
    /// Plays it on the vif, and returns the result. The front must connect and keep sending frames.
    /// `holds`: this many pages stay mapped after the vif closed, until this returns.
    pub fn play(&self, p: &P, xs: &mut Client<T>, id: DeviceId, holds: impl Fn(usize)) -> Result<String> {
        let device = Device::new(id, Side::Back);
        let mut vif = match Vif::connect(p, xs, id, self.offer) {
            Ok(vif) => vif,
            // It connects, or says no: which is up to it.
            Err(_) if self.offer == Offer::Garbage => {
                close(p, xs, &device)?;
                return Ok(format!("CASE {} front=refuses", self.name));
            }
            Err(e) => return Err(format!("{}: {e}", self.name).into()),
        };
        (self.play)(&mut vif).map_err(|e| format!("{}: {e}", self.name))?;
        let again = match self.name {
            name if name.contains("comes-again") => 3,
            name => usize::from(name.contains("without-an-answer") || name.contains("states")),
        };
        for _ in 0..again {
            // Whether it has closed meanwhile is its own affair; the next connection counts. A
            // driver may send nothing more while a frame has no answer.
            vif.end()?;
            // At Closing it stays there where it finds InitWait: it waits for a back that closes.
            device.watch_peer(xs)?;
            device.wait_peer(xs, p.clock(), Some(PATIENCE), |s| s != XenbusState::Closing)?;
            device.unwatch_peer(xs)?;
            vif = Vif::connect(p, xs, id, self.offer).map_err(|e| format!("{}: {e}", self.name))?;
            // The pool's do the same again.
            if self.offer == Offer::Mapping {
                (self.play)(&mut vif).map_err(|e| format!("{}: {e}", self.name))?;
            }
        }
        let mut fate = match vif.kept {
            None => vif.fate()?,
            Some(_) => {
                if vif.state()? != XenbusState::Connected {
                    holds(vif.mapped());
                }
                std::thread::sleep(SILENCE / 10);
                "left-its-pages"
            }
        };
        let is_other = |(pieces, before)| vif.sum_of(pieces) != before;
        if vif.kept.is_some_and(|before| vif.sum() != before) || vif.shown.is_some_and(is_other) {
            fate = "used-its-pages";
        }
        if vif.searched.is_some_and(|seen| seen.marked > 0) {
            fate = "shows-what-is-beside-its-frames";
        }
        let Seen { pages, marked } = vif.searched.unwrap_or_default();
        if pages > 0 {
            eprintln!("{}: {pages} pages are granted, of which {marked} have what was not sent", self.name);
        }
        let line = format!("CASE {} front={fate}", self.name);
        vif.end()?;
        Ok(line)
    }
}
