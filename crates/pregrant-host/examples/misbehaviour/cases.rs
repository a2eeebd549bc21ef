//! What a guest may do wrong, or unusually, on a TX ring, case by case, and how a back reacts
//! (docs/protocol 2.6 and 9).
//!
//! ```text
//!   case --slots--> TX ring --> back            a line each:
//!        <--answers, or none--                  CASE name answers=<id:status ...> nulls=<n> vif=<alive|dead> state=<n>
//! ```
//! Each case stands between two good frames of its own vif. A vif that a case killed is not used
//! again. The back may be any: nothing is demanded of the order of answers, nor of where the index
//! stops.

use pregrant::net::features::{ChannelKeys, FrontRequest, QueueKeys, of_front_connection};
use pregrant::platform::{Access, Clock, Events, GrantPool, Platform};
use pregrant::ring::{NetRx, NetTx, RingMem, RingPages, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{
    EXTRA_FLAG_MORE, EXTRA_TYPE_GSO, Extra, RSP_NULL, RSP_OKAY, TXF_CSUM_BLANK, TXF_DATA_VALIDATED,
    TXF_EXTRA_INFO, TXF_MORE_DATA, TxRequest, TxResponse,
};
use pregrant::xenbus::{Class, Device, DeviceId, Side, XenbusState};
use pregrant::xenstore::{Client, Transport};
use pregrant::{DomId, GrantRef};
use std::error::Error;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error>>;
/// The words of a ring's slots, one slot after another.
type Slots = Vec<[u32; 3]>;

/// Pages that a frame's fragments are in.
const PAGES: usize = 24;
const NO_GRANT: u32 = 900_000;
/// The id of the good frames.
const GOOD: u16 = 999;
/// How long an expected answer may take; long, for an emulator on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait to be sure that no answer comes.
const SILENCE: Duration = Duration::from_secs(8);

/// The cases, by pages that are granted.
enum Play {
    /// Slots are written, and the index after them is published.
    Slots(fn(&[GrantRef]) -> Slots),
    /// An index that is this many ahead of the requests played.
    Index(u32),
    /// Events are sent, and nothing else.
    Storm,
}

pub struct Case {
    pub name: &'static str,
    play: Play,
}

fn words(req: TxRequest) -> [u32; 3] {
    req.to_words()
}

/// A frame of fragments of these sizes, with ids from 0 on; the first has `flags`, and `extras`
/// follow it.
fn frame(refs: &[GrantRef], sizes: &[u16], flags: u16, extras: &[[u32; 3]]) -> Slots {
    let total = sizes.iter().sum();
    let mut slots = Slots::new();
    for (k, &size) in sizes.iter().enumerate() {
        let mut flags = if k == 0 { flags } else { 0 };
        if k + 1 < sizes.len() {
            flags |= TXF_MORE_DATA;
        }
        if k == 0 && !extras.is_empty() {
            flags |= TXF_EXTRA_INFO;
        }
        let size = if k == 0 { total } else { size };
        slots.push(words(TxRequest { gref: refs[k % PAGES].0, offset: 0, flags, id: k as u16, size }));
        if k == 0 {
            slots.extend(extras);
        }
    }
    slots
}

fn with(mut slots: Slots, k: usize, change: impl FnOnce(&mut TxRequest)) -> Slots {
    let mut req = TxRequest::from_words(slots[k]);
    change(&mut req);
    slots[k] = words(req);
    slots
}

fn multicast(refs: &[GrantRef], n: usize, extra: fn([u8; 6]) -> Extra) -> Slots {
    let address = |i: usize| [1, 0, 0x5e, 0, 1, i as u8];
    (0..n)
        .flat_map(|i| {
            let ask = TxRequest { gref: refs[0].0, offset: 0, flags: TXF_EXTRA_INFO, id: i as u16, size: 0 };
            [words(ask), extra(address(i)).to_tx_words(false)]
        })
        .collect()
}

/// Returns all cases; those after which the vif is dead come last.
pub fn all() -> Vec<Case> {
    let slots = |name, slots| Case { name, play: Play::Slots(slots) };
    vec![
        // Right, if odd.
        slots("one-slot", |r| frame(r, &[60], 0, &[])),
        slots("a-whole-page", |r| frame(r, &[4096], 0, &[])),
        slots("18-slots", |r| frame(r, &[100; 18], 0, &[])),
        slots("19-slots", |r| frame(r, &[100; 19], 0, &[])),
        slots("xsa-423-432-18-slots-of-a-byte", |r| frame(r, &[1; 18], 0, &[])),
        slots("xsa-448-a-fragment-of-nothing", |r| frame(r, &[200, 0, 100], 0, &[])),
        slots("one-id-twice", |r| [frame(r, &[60], 0, &[]), frame(r, &[70], 0, &[])].concat()),
        slots("blank-checksum-of-no-protocol", |r| {
            frame(r, &[100], TXF_CSUM_BLANK | TXF_DATA_VALIDATED, &[])
        }),
        slots("gso-of-no-protocol", |r| {
            let gso = Extra::Gso { size: 1448, gso_type: 1 }.to_tx_words(false);
            frame(r, &[3000, 3000], TXF_CSUM_BLANK | TXF_DATA_VALIDATED, &[gso])
        }),
        slots("gso-and-a-hash", |r| {
            let gso = Extra::Gso { size: 1448, gso_type: 1 }.to_tx_words(true);
            let hash = Extra::Hash { hash_type: 1, algorithm: 1, value: 0x0403_0201 }.to_tx_words(false);
            frame(r, &[3000, 3000], TXF_CSUM_BLANK | TXF_DATA_VALIDATED, &[gso, hash])
        }),
        slots("multicast-one-added", |r| multicast(r, 1, Extra::McastAdd)),
        slots("multicast-the-65th", |r| multicast(r, 65, Extra::McastAdd)),
        slots("multicast-all-deleted", |r| multicast(r, 64, Extra::McastDel)),
        Case { name: "xsa-332-391-a-storm-of-events", play: Play::Storm },
        // Wrong, and a frame's own business.
        slots("20-slots", |r| frame(r, &[100; 20], 0, &[])),
        slots("21-slots", |r| frame(r, &[100; 21], 0, &[])),
        slots("a-fragment-longer-than-the-rest", |r| with(frame(r, &[100, 100], 0, &[]), 0, |q| q.size = 90)),
        slots("13-bytes", |r| frame(r, &[13], 0, &[])),
        slots("no-bytes", |r| frame(r, &[0], 0, &[])),
        slots("no-such-grant", |r| with(frame(r, &[60], 0, &[]), 0, |q| q.gref = NO_GRANT)),
        slots("grant-0", |r| with(frame(r, &[60], 0, &[]), 0, |q| q.gref = 0)),
        slots("no-such-grant-in-the-middle", |r| {
            with(frame(r, &[1000, 1000, 1000], 0, &[]), 1, |q| q.gref = NO_GRANT)
        }),
        slots("xsa-361-367-no-such-grant-at-the-end", |r| {
            with(frame(r, &[1000, 1000, 1000], 0, &[]), 2, |q| q.gref = NO_GRANT)
        }),
        // Wrong, and the vif's end.
        slots("fatal-more-data-and-no-slot", |r| frame(r, &[60], TXF_MORE_DATA, &[])),
        slots("fatal-extra-info-and-no-slot", |r| frame(r, &[60], TXF_EXTRA_INFO, &[])),
        slots("fatal-22-slots", |r| frame(r, &[100; 22], 0, &[])),
        slots("fatal-across-its-page", |r| with(frame(r, &[60], 0, &[]), 0, |q| q.offset = 4090)),
        slots("fatal-a-later-slot-across-its-page", |r| {
            with(frame(r, &[100, 100], 0, &[]), 1, |q| q.offset = 4000)
        }),
        slots("fatal-extra-of-type-0", |r| frame(r, &[60], 0, &[[0; 3]])),
        slots("fatal-extra-of-type-9", |r| frame(r, &[60], 0, &[[9, 0, 0]])),
        slots("fatal-gso-size-0", |r| {
            frame(r, &[60], 0, &[Extra::Gso { size: 0, gso_type: 1 }.to_tx_words(false)])
        }),
        slots("fatal-gso-type-9", |r| {
            frame(r, &[60], 0, &[Extra::Gso { size: 1448, gso_type: 9 }.to_tx_words(false)])
        }),
        slots("fatal-extras-without-end", |r| {
            let gso = [u32::from(EXTRA_TYPE_GSO) | u32::from(EXTRA_FLAG_MORE) << 8 | 1448 << 16, 1, 0];
            frame(r, &[60], 0, &[gso; 3])
        }),
        Case { name: "fatal-xsa-39-an-index-past-the-ring", play: Play::Index(257) },
        Case { name: "fatal-xsa-39-an-index-that-goes-back", play: Play::Index(u32::MAX) },
    ]
}

impl Case {
    fn is_fatal(&self) -> bool {
        self.name.starts_with("fatal-")
    }
}

/// Vifs that [`play`] needs: one for all that is survived, and one for each case that is not.
pub fn vifs() -> usize {
    1 + all().iter().filter(|c| c.is_fatal()).count()
}

struct Vif<'a, P: Platform> {
    p: &'a P,
    device: Device,
    tx: RingPages<NetTx, <P::Grants as GrantPool>::Region>,
    /// Posted to by no one: the back may have frames for us and keeps them.
    _rx: RingPages<NetRx, <P::Grants as GrantPool>::Region>,
    pages: <P::Grants as GrantPool>::Region,
    refs: [GrantRef; PAGES],
    chan: <P::Events as Events>::Chan,
    req_prod: u32,
    rsp_cons: u32,
}

impl<'a, P: Platform> Vif<'a, P> {
    fn connect<T: Transport>(p: &'a P, xs: &mut Client<T>, back: DomId, handle: u32) -> Result<Self> {
        let id = DeviceId { class: Class::VIF, front: p.domid(), back, handle };
        let device = Device::new(id, Side::Front);
        device.watch_peer(xs)?;
        let page = || -> Result<_> {
            let mut gref = [GrantRef::NONE];
            Ok((p.grants().alloc(back, Access::ReadWrite, &mut gref)?, gref[0]))
        };
        let ((tx, tx_ring), (rx, rx_ring)) = (page()?, page()?);
        let (tx, rx) = (RingPages::new(tx), RingPages::new(rx));
        tx.init();
        rx.init();
        let mut refs = [GrantRef::NONE; PAGES];
        let pages = p.grants().alloc(back, Access::ReadOnly, &mut refs)?;
        // To no one, from us, of a type for experiments.
        let head = [2, 0xbb, 0, 0, 0, 1, 2, 0xbb, 0, 0, 1, handle as u8, 0x88, 0xb6];
        for page in 0..PAGES {
            let _ = pages.copy_in(page * 4096, &head); // inside of them
        }
        let (chan, port) = p.events().offer(back)?;
        let queue = QueueKeys::new(tx_ring, rx_ring, ChannelKeys::Single(port));
        let request = FrontRequest { multicast_control: true, ..FrontRequest::new(vec![queue]) };
        let minute = Some(Duration::from_secs(60));
        device.wait_peer(xs, p.clock(), minute, |s| s == XenbusState::InitWait)?;
        device.replace_in_transaction(xs, &request.pairs(), of_front_connection)?;
        device.set_state(xs, XenbusState::Connected)?;
        let state = device.wait_peer(xs, p.clock(), minute, |s| s == XenbusState::Connected)?;
        if state != XenbusState::Connected {
            return Err(format!("vif {handle}: the back is at {state}, and not connected").into());
        }
        Ok(Self { p, device, tx, _rx: rx, pages, refs, chan, req_prod: 0, rsp_cons: 0 })
    }

    fn write(&mut self, slots: &Slots) {
        for slot in slots {
            self.tx.write::<3>(self.req_prod, *slot);
            self.req_prod = self.req_prod.wrapping_add(1);
        }
        self.tx.store(Word::ReqProd, self.req_prod);
        self.notify();
    }

    fn notify(&self) {
        self.tx.full_fence();
        self.p.events().notify(&self.chan);
    }

    /// The next `n` answers; fewer if the back sends no more, or has closed the vif.
    fn answers<T: Transport>(&mut self, xs: &mut Client<T>, n: usize, until: u64) -> Result<Vec<TxResponse>> {
        let mut got = Vec::new();
        while got.len() < n {
            // An index that breaks the protocol is taken for what it is: n answers at most.
            while self.rsp_cons != self.tx.load(Word::RspProd) && got.len() < n {
                got.push(TxResponse::from_word(self.tx.read::<3>(self.rsp_cons)[0]));
                self.rsp_cons = self.rsp_cons.wrapping_add(1);
            }
            let closed = self.device.peer_state(xs)? != XenbusState::Connected;
            if closed || self.p.clock().now_ns() >= until {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(got)
    }

    fn now(&self, later: Duration) -> u64 {
        self.p.clock().now_ns() + later.as_nanos() as u64
    }

    fn play_good(&mut self) {
        let good = with(frame(&self.refs, &[60], 0, &[]), 0, |q| q.id = GOOD);
        self.write(&good);
    }

    /// Whether a good frame is answered.
    fn is_alive<T: Transport>(&mut self, xs: &mut Client<T>) -> Result<bool> {
        self.play_good();
        let until = self.now(PATIENCE);
        Ok(self.answers(xs, 1, until)? == [TxResponse { id: GOOD, status: RSP_OKAY }])
    }

    /// Plays the case after a good frame; returns the largest number of answers that are possible.
    fn begin<T: Transport>(&mut self, xs: &mut Client<T>, case: &Case) -> Result<usize> {
        if !self.is_alive(xs)? {
            return Err(format!("{}: no answer to a good frame before it", case.name).into());
        }
        Ok(match case.play {
            Play::Slots(slots) => {
                let slots = slots(&self.refs);
                self.write(&slots);
                slots.len()
            }
            Play::Index(ahead) => {
                self.tx.store(Word::ReqProd, self.req_prod.wrapping_add(ahead));
                self.notify();
                0
            }
            Play::Storm => {
                (0..10_000).for_each(|_| self.notify());
                0
            }
        })
    }

    fn line<T: Transport>(
        &self,
        xs: &mut Client<T>,
        case: &Case,
        got: &[TxResponse],
        alive: bool,
    ) -> Result<String> {
        let nulls = got.iter().filter(|r| r.status == RSP_NULL).count();
        let state = self.device.peer_state(xs)?;
        Ok(format!(
            "CASE {} answers={} nulls={nulls} vif={} state={}",
            case.name,
            by_id(got),
            if alive { "alive" } else { "dead" },
            state.digit()
        ))
    }

    /// Closes like a front that ends; pages are freed when the back has unmapped them.
    fn close<T: Transport>(self, xs: &mut Client<T>) -> Result<()> {
        let minute = Some(Duration::from_secs(20));
        self.device.set_state(xs, XenbusState::Closing)?;
        let down = |s| matches!(s, XenbusState::Closing | XenbusState::Closed);
        self.device.wait_peer(xs, self.p.clock(), minute, down)?;
        self.device.set_state(xs, XenbusState::Closed)?;
        self.device.wait_peer(xs, self.p.clock(), minute, |s| s == XenbusState::Closed)?;
        self.device.unwatch_peer(xs)?;
        drop(self.pages);
        Ok(())
    }
}

/// Statuses by id, `0-17:0,18:-1`; those of extra infos, which have no id, left out.
fn by_id(got: &[TxResponse]) -> String {
    let mut got: Vec<_> = got.iter().filter(|r| r.status != RSP_NULL).map(|r| (r.id, r.status)).collect();
    got.sort_unstable();
    let mut runs: Vec<(u16, u16, i16)> = Vec::new();
    for (id, status) in got {
        match runs.last_mut() {
            Some((_, last, same)) if *same == status && id == *last + 1 => *last = id,
            _ => runs.push((id, id, status)),
        }
    }
    let run = |(first, last, status): &(u16, u16, i16)| match first == last {
        true => format!("{first}:{status}"),
        false => format!("{first}-{last}:{status}"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

/// Plays every case on the vifs of `p` from 0 on, and passes each case's line to `say`.
pub fn play<P: Platform, T: Transport>(
    p: &P,
    xs: &mut Client<T>,
    back: DomId,
    mut say: impl FnMut(String),
) -> Result<()> {
    let (fatal, survived): (Vec<Case>, Vec<Case>) = all().into_iter().partition(Case::is_fatal);
    let mut common = Vif::connect(p, xs, back, 0)?;
    for case in &survived {
        let asked = common.begin(xs, case)?;
        let until = common.now(PATIENCE);
        let got = common.answers(xs, asked, until)?;
        let alive = common.is_alive(xs)?;
        say(common.line(xs, case, &got, alive)?);
    }
    common.close(xs)?;
    // All at once, since each is waited for in vain.
    let mut vifs = Vec::new();
    for (handle, case) in fatal.iter().enumerate() {
        let mut vif = Vif::connect(p, xs, back, 1 + handle as u32)?;
        let asked = vif.begin(xs, case)?;
        vifs.push((vif, case, asked, Vec::new()));
    }
    let Some(until) = vifs.first().map(|(vif, ..)| vif.now(SILENCE)) else { return Ok(()) };
    for (vif, case, asked, got) in &mut vifs {
        *got = vif.answers(xs, *asked, until)?;
        // The right value in place of a false index would be false, too.
        if !matches!(case.play, Play::Index(_)) {
            vif.play_good();
        }
    }
    let until = p.clock().now_ns() + SILENCE.as_nanos() as u64;
    for (mut vif, case, _, got) in vifs {
        let alive = !vif.answers(xs, 1, until)?.is_empty();
        say(vif.line(xs, case, &got, alive)?);
        vif.close(xs)?;
    }
    Ok(())
}
