//! The frame hook, and received staging buffers that are sent: any actions, with backs that die,
//! and backs and fronts that break the protocol.
#![cfg(not(miri))]

use pregrant::net::back::{BackVif, Polled, PreviousState, VifConfig};
use pregrant::net::features::BackFeatures;
use pregrant::net::front::hook::HOOK_ROOM;
use pregrant::net::front::{Diverted, FrontConfig, FrontVif, HookAction, HookFrame, HookStats};
use pregrant::net::path::PathConfig;
use pregrant::net::path::staging::Heads;
use pregrant::net::path::staging::keys::Offer;
use pregrant::net::path::staging::list::{self as staging_list, DataLen};
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::local::{LocalDomain, LocalMap, LocalXen};
use pregrant::platform::{Access, PeerMem};
use pregrant::port::{Arena, MAX_FRAME, Offload};
use pregrant::ring::{NetRx, NetTx, RingKind, RingMem, RingPages, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{
    RSP_ERROR, RSP_OKAY, RXF_MORE_DATA, RxResponse, TXF_MORE_DATA, TXF_STAGING_BUFFER,
};
use pregrant::{GrantRef, PeerFault};
use pregrant_testkit::bus::{MapBus, connect, device};
use pregrant_testkit::dice::Dice;
use pregrant_testkit::raw_back::RawBack;
use pregrant_testkit::two_domains::{GUEST, HOST, SLOTS, TestPort};
use std::sync::LazyLock;

/// A connected vif, and what its hooks were asked and answered.
struct Stand {
    xen: LocalXen,
    guest: LocalDomain,
    host: LocalDomain,
    front: FrontVif<LocalDomain>,
    back: BackVif<LocalDomain>,
    buses: (MapBus, MapBus),
    port: TestPort,
    out: Arena,
    diverted: Diverted,
    dice: Dice,
    /// Frames that were given to the back.
    made: u64,
    /// The last one that a hook saw.
    seen: Option<u64>,
    sent: Vec<Vec<u8>>,
    said: HookStats,
}

/// Frame `number`: each byte tells it from others.
fn frame(number: u64, len: usize) -> Vec<u8> {
    static PATTERN: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..MAX_FRAME).map(|at| (at ^ at >> 8) as u8).collect());
    let mut bytes = PATTERN[..len].to_vec();
    bytes.iter_mut().for_each(|byte| *byte ^= number as u8);
    bytes[14..22].copy_from_slice(&number.to_le_bytes());
    bytes[22..26].copy_from_slice(&(len as u32).to_le_bytes());
    bytes
}

/// The frame that begins like this.
fn frame_of(head: &[u8]) -> (u64, Vec<u8>) {
    let number = u64::from_le_bytes(head[14..22].try_into().expect("8 bytes"));
    (number, frame(number, u32::from_le_bytes(head[22..26].try_into().expect("4 bytes")) as usize))
}

impl Stand {
    fn new(config: FrontConfig, features: BackFeatures, seed: u64) -> Self {
        let xen = LocalXen::new();
        let (guest, host) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let mut buses = device();
        let mut front = FrontVif::new(HOST, config, false);
        let staging = Heads { heads: features.staging.rx_heads };
        let paths = PathConfig { staging, ..PathConfig::default() };
        let mut back = BackVif::new(GUEST, 0, VifConfig { features, paths, ..VifConfig::default() });
        connect((&guest, &mut front, &mut buses.0), (&host, &mut back, &mut buses.1));
        assert!(front.is_live());
        Self {
            xen,
            guest,
            host,
            front,
            back,
            buses,
            port: TestPort::default(),
            out: Arena::new(),
            diverted: Diverted::new(),
            dice: Dice::new(seed),
            made: 0,
            seen: None,
            sent: Vec::new(),
            said: HookStats::default(),
        }
    }

    fn give(&mut self, lens: &[usize]) {
        for &len in lens {
            self.port.gives.push_back((frame(self.made, len), Offload::default()));
            self.made += 1;
        }
        while self.back.poll_rx(&self.host, 0, &mut self.port) == Ok(Polled::More) {}
    }

    /// The hook returns `action` for each frame that arrives.
    fn say(&mut self, action: HookAction) -> usize {
        self.out.clear();
        let Self { guest, front, out, diverted, .. } = self;
        let seen = front.queue_mut(0).unwrap().recv_hooked(guest, out, diverted, (1, 64), |_| action);
        seen.expect("an honest back")
    }

    /// Any actions; what they come to is checked.
    fn hook(&mut self) {
        let Self { guest, front, out, diverted, dice, seen, sent, said, .. } = self;
        out.clear();
        let (mut pass, mut redirect) = (Vec::new(), Vec::new());
        let most = 1 + dice.below(80);
        let hook = |f: &mut HookFrame| {
            let (number, whole) = frame_of(f.head());
            assert!(seen.is_none_or(|last| last < number), "frame {number} again, or late");
            *seen = Some(number);
            assert!(whole.starts_with(f.head()) && f.len() == whole.len(), "frame {number} is another");
            let behind = f.head().len();
            match dice.below(8) {
                0 => {
                    let n = 1 + dice.below(HOOK_ROOM + 20);
                    let fits = f.len() + n <= 65535 && f.grow(n);
                    f.head_mut()[0] ^= u8::from(fits);
                }
                1 => assert!(f.shrink(1 + dice.below(20))),
                2 => f.head_mut().iter_mut().for_each(|b| *b = !*b),
                3 => assert!(f.grow(14) || f.len() > 65000),
                _ => {}
            }
            let left = [f.head(), &whole[behind..]].concat();
            assert_eq!(f.len(), left.len());
            let fits = left.len() <= 65535;
            match dice.below(5) {
                0 => {
                    said.passed += u64::from(fits);
                    said.dropped += u64::from(!fits);
                    pass.extend(fits.then_some(left));
                    HookAction::Pass
                }
                1 => {
                    said.dropped += 1;
                    HookAction::Drop
                }
                2 => {
                    said.redirected += u64::from(fits);
                    said.dropped += u64::from(!fits);
                    let vif = dice.below(3) as u32;
                    redirect.extend(fits.then_some((vif, left)));
                    HookAction::Redirect(vif)
                }
                _ => {
                    said.sent_on += 1; // or copied, or unsent
                    sent.push(left);
                    HookAction::Tx
                }
            }
        };
        front
            .queue_mut(0)
            .unwrap()
            .recv_hooked(guest, out, diverted, (1, most), hook)
            .expect("an honest back");
        let passed: Vec<_> = out.burst().iter().map(|(bytes, _)| bytes.to_vec()).collect();
        assert!(passed == pass, "frames that passed are others than the hook saw");
        let runs = diverted.runs().flat_map(|(vif, burst)| {
            burst.iter().map(|(bytes, _)| (vif, bytes.to_vec())).collect::<Vec<_>>()
        });
        assert!(runs.collect::<Vec<_>>() == redirect, "frames for other vifs are others");
        self.check();
    }

    /// Each buffer is in exactly one place; the counters match the hook's verdicts.
    fn check(&self) {
        let [slots, spare, on_tx] = self.front.queue(0).unwrap().rx().buffers().holds();
        if self.front.queue(0).unwrap().tx().sends_on() {
            assert_eq!(slots + spare + on_tx, 2 * SLOTS as usize);
        }
        assert!(on_tx <= self.front.in_flight(0) as usize);
        let stats = self.front.queue(0).unwrap().hook_stats();
        let tx = stats.sent_on + stats.sent_copied + stats.unsent;
        let said = HookStats { sent_on: tx, ..self.said };
        assert_eq!(HookStats { sent_on: tx, sent_copied: 0, unsent: 0, ..stats }, said);
    }

    /// The back takes the requests, and the front the answers.
    fn turn(&mut self) {
        while self.back.poll_tx(&self.host, 0, &mut self.port, &mut self.out) == Ok(Polled::More) {}
        self.front.queue_mut(0).unwrap().reclaim(&self.guest, 1).expect("an honest back");
        self.check();
    }

    /// Another back takes over the rings as they are.
    fn kill(&mut self) {
        self.back = BackVif::new(GUEST, 0, VifConfig::default());
        assert_eq!(self.back.inherit(&mut self.buses.1), Ok(PreviousState::Connected));
        let again = self.back.reattach(&self.host, &mut self.buses.1, &mut |_, _| None);
        assert_eq!(again.ok(), Some(true));
    }

    fn close(mut self) {
        let (fb, bb) = (&mut self.buses.0, &mut self.buses.1);
        self.front.close(fb, None).expect("a map");
        let _ = self.back.step(&self.host, bb, &mut |_, _| None).expect("keys");
        self.back.close(&self.host, bb, None).expect("a map");
        let _ = self.front.step(&self.guest, fb);
        assert!(self.front.is_closed());
        let counts = self.xen.counts();
        assert_eq!((counts.grants, counts.mapped, counts.channels), (0, 0, 0), "left behind");
    }
}

fn config(len: u32) -> FrontConfig {
    let len = DataLen::new(len);
    FrontConfig { staging: Buffers { sent_on: true, ..Buffers::of(len, len) }, ..FrontConfig::default() }
}

fn revision(revision: u32) -> BackFeatures {
    BackFeatures { staging: Offer { revision, ..Offer::all() }, ..BackFeatures::default() }
}

/// Whatever a hook decides for frames of any length, each frame goes to the one place that was
/// named, as the hook left it and in order; also if backs die with buffers in flight.
#[test]
fn any_actions() {
    let lens = [60, 64, 255, 256, 257, 1500, 1514, 2048, 4096, 4097, 65535];
    let of = |staging| FrontConfig { staging, ..FrontConfig::default() };
    let (plain, len) = (of(Buffers::NONE), DataLen::new(2048));
    let mut heads = revision(3);
    heads.staging.rx_heads = true;
    for (k, (config, features, sends_on)) in [
        (config(256), heads.clone(), true),
        (FrontConfig { headroom: 256, ..config(2048) }, heads, true),
        (config(256), revision(3), true),
        (config(2048), revision(3), true),
        (FrontConfig { headroom: 256, ..config(2048) }, revision(3), true),
        (FrontConfig { headroom: 64, ..config(4096) }, revision(3), true),
        (config(4096), revision(3), true),
        (config(65535), revision(3), true),
        (config(2048), revision(2), false),
        (of(Buffers::of(len, len)), revision(3), false),
        (of(Buffers { sent_on: true, ..Buffers::of(None, len) }), revision(3), false),
        (of(Buffers { sent_on: true, ..Buffers::of(len, None) }), revision(3), false),
        (plain, revision(3), false),
    ]
    .into_iter()
    .enumerate()
    {
        let mut stand = Stand::new(config, features, 77 + k as u64);
        assert_eq!(stand.front.queue(0).unwrap().tx().sends_on(), sends_on, "{config:?}");
        for _ in 0..600 {
            match stand.dice.below(12) {
                0..=3 => {
                    let few = 1 + stand.dice.below(40);
                    let give: Vec<_> = (0..few).map(|_| lens[stand.dice.below(lens.len())]).collect();
                    stand.give(&give);
                }
                4 if stand.dice.below(4) == 0 => stand.kill(),
                4..=8 => stand.hook(),
                _ => stand.turn(),
            }
        }
        while stand.front.queue(0).unwrap().hook_stats().frames()
            < stand.seen.map_or(0, |_| stand.said.frames())
            || !stand.port.gives.is_empty()
        {
            stand.give(&[]);
            stand.hook();
            stand.turn();
        }
        while stand.front.in_flight(0) > 0 {
            stand.turn();
        }
        // All that was sent arrived, in order, but for what there was no room for.
        let stats = stand.front.queue(0).unwrap().hook_stats();
        let mut due = stand.sent.iter();
        for (bytes, _) in &stand.port.took {
            assert!(due.any(|left| left == bytes), "a frame of {} bytes that no hook sent", bytes.len());
        }
        let tx = stats.sent_on + stats.sent_copied;
        assert_eq!(stand.port.took.len() as u64, tx, "{config:?}");
        assert_eq!(stand.sent.len() as u64, tx + stats.unsent);
        assert_eq!((stats.sent_on > 0, stats.sent_copied > 0), (sends_on, true), "{config:?}: {stats:?}");
        assert!(stats.passed > 0 && stats.dropped > 0 && stats.redirected > 0);
        assert_eq!(
            stand.front.queue(0).unwrap().rx().buffers().holds()[2],
            0,
            "buffers on TX, and nothing is in flight"
        );
        assert_eq!(stand.back.stats(0).0.errors, 0, "{config:?}");
        stand.close();
    }
}

/// A frame that fits its buffer is sent back in it, whatever its length; a longer frame, and one
/// without headroom, by a copy.
#[test]
fn what_is_sent_on_as_it_is() {
    for (len, headroom, grow, sent_on) in [
        (60, 0, 0, true),
        (2048, 0, 0, true),
        (2049, 0, 0, false),
        (60, 256, 16, true),
        (1792, 256, 256, true),
        (1792, 256, HOOK_ROOM, true),
        (1793, 256, 0, false),
        (2048, 0, 16, false),
    ] {
        let mut stand = Stand::new(FrontConfig { headroom, ..config(2048) }, revision(3), 1);
        stand.give(&[len; 3]);
        let Stand { guest, front, out, diverted, .. } = &mut stand;
        let seen = front.queue_mut(0).unwrap().recv_hooked(guest, out, diverted, (1, 2), |f| {
            assert!(grow == 0 || f.grow(grow));
            HookAction::Tx
        });
        assert_eq!(seen, Ok(2), "no more than were asked for");
        let stats = front.queue(0).unwrap().hook_stats();
        let (on, copied) = if sent_on { (2, 0) } else { (0, 2) };
        assert_eq!((stats.sent_on, stats.sent_copied), (on, copied), "{len} behind {headroom}, {grow} more");
        stand.said.sent_on = 2;
        stand.turn();
        for (k, (bytes, _)) in stand.port.took.iter().enumerate() {
            assert!(*bytes == [vec![0; grow], frame(k as u64, len)].concat());
        }
        assert_eq!(
            (stand.port.took.len(), stand.front.queue(0).unwrap().rx().buffers().holds()),
            (2, [256, 256, 0])
        );
        assert_eq!(stand.back.stats(0).0.staging, if len + grow <= 2048 { 2 } else { 0 });
        stand.close();
    }
}

/// A frame of several slots is sent back in all of its buffers, if each slot is staged.
#[test]
fn a_frame_of_several_slots_goes_back_in_its_buffers() {
    let segment = Offload { csum_blank: true, csum_ok: true, gso_type: 1, gso_size: 1448 };
    let unfinished = Offload { csum_blank: true, csum_ok: true, ..Offload::default() };
    for (len, headroom, grow, offload, data_len, sent_on) in [
        (4096, 0, 0, Offload::default(), 65535, true),
        (4097, 0, 0, unfinished, 65535, true),
        (9000, 0, 0, segment, 65535, true),
        (65535, 0, 0, segment, 65535, true),
        (1500, 0, 0, segment, 65535, true),
        (65000, 256, 256, segment, 65535, true),
        (65000, 0, -14, segment, 65535, true),
        (5000, 0, 14, Offload::default(), 65535, false),
        (4097, 0, 0, Offload::default(), 4096, false),
        (9000, 0, 0, segment, 2048, false),
    ] {
        let what = format!("{len} bytes behind {headroom}, {grow} more, buffers of {data_len}");
        let mut stand = Stand::new(FrontConfig { headroom, ..config(data_len) }, revision(3), 1);
        let due = |k: u64| match usize::try_from(grow) {
            Ok(n) => [vec![9; n], frame(k, len)].concat(),
            Err(_) => frame(k, len).split_off(14),
        };
        for turn in 0..40 {
            stand.port.gives.extend((0..2).map(|k| (frame(2 * turn + k, len), offload)));
            stand.give(&[]);
            let Stand { guest, front, out, diverted, .. } = &mut stand;
            let seen = front.queue_mut(0).unwrap().recv_hooked(guest, out, diverted, (1, 64), |f| {
                assert!(if grow < 0 { f.shrink(14) } else { f.grow(grow as usize) });
                if grow > 0 {
                    f.head_mut()[..grow as usize].fill(9);
                }
                HookAction::Tx
            });
            assert_eq!(seen, Ok(2), "{what}");
            stand.said.sent_on += 2;
            stand.turn();
            for (k, (bytes, offload_then)) in stand.port.took.drain(..).enumerate() {
                assert!(bytes == due(2 * turn + k as u64) && offload_then == offload, "{what}");
            }
        }
        let stats = stand.front.queue(0).unwrap().hook_stats();
        let (on, copied) = if sent_on { (80, 0) } else { (0, 80) };
        assert_eq!((stats.sent_on, stats.sent_copied, stats.unsent), (on, copied, 0), "{what}");
        assert_eq!(stand.front.queue(0).unwrap().rx().buffers().holds(), [256, 256, 0], "{what}");
        stand.close();
    }
}

/// With a back that answers nothing RX continues as long as there are TX ids; then frames are
/// dropped, and counted.
#[test]
fn a_full_tx_ring_drops_and_stops_no_rx() {
    let mut stand = Stand::new(config(256), revision(3), 1);
    for _ in 0..8 {
        stand.give(&[60; 64]);
        assert_eq!(stand.say(HookAction::Tx), 64);
    }
    let HookStats { sent_on, unsent, .. } = stand.front.queue(0).unwrap().hook_stats();
    assert_eq!(
        (sent_on, unsent, stand.front.queue(0).unwrap().rx().buffers().holds()),
        (256, 256, [256, 0, 256])
    );
    stand.give(&[60; 64]);
    assert_eq!(stand.say(HookAction::Pass), 64);
    (stand.said.passed, stand.said.sent_on) = (64, 512);
    stand.turn();
    assert_eq!(
        (stand.port.took.len(), stand.front.queue(0).unwrap().rx().buffers().holds()),
        (256, [256, 256, 0])
    );
    stand.close();
}

/// A back under the test's control, behind a front that connected to it.
struct Liar {
    xen: LocalXen,
    guest: LocalDomain,
    front: FrontVif<LocalDomain>,
    bus: MapBus,
    tx: RawBack<NetTx>,
    rx: RawBack<NetRx>,
    /// RX buffers, and where each is.
    buffers: (LocalMap, Box<[u32]>),
    out: Arena,
    diverted: Diverted,
}

impl Liar {
    fn new() -> Self {
        Self::of(2048)
    }

    fn of(len: u32) -> Self {
        let xen = LocalXen::new();
        let (guest, host) = (xen.domain(GUEST.0), xen.domain(HOST.0));
        let (mut bus, bb) = device();
        bb.own.borrow_mut().extend(BackFeatures::default().pairs());
        bb.own.borrow_mut().insert("state".into(), "2".into());
        let mut front = FrontVif::new(HOST, config(len), false);
        front.step(&guest, &mut bus).expect("keys");
        for (key, text) in [("staging-grants-active", "1"), ("state", "4")] {
            bb.own.borrow_mut().insert(key.into(), text.into());
        }
        front.step(&guest, &mut bus).expect("keys");
        assert!(front.is_live() && front.queue(0).unwrap().tx().sends_on());
        let keys = bus.own.borrow();
        let map = |key: &str, acc| {
            let gref = GrantRef(keys[key].parse().expect("a number"));
            host.map(GUEST, &[gref], acc).expect("it is granted")
        };
        fn raw<K: RingKind>(map: LocalMap) -> RawBack<K> {
            RawBack { ring: RingPages::new(map), rsp_prod: 0 }
        }
        let tx = raw::<NetTx>(map("tx-ring-ref", Access::ReadWrite));
        let rx = raw::<NetRx>(map("rx-ring-ref", Access::ReadWrite));
        let list = staging_list::read(&map("rx-data-ref0", Access::ReadOnly), 512).expect("memory");
        let list = staging_list::validate(&list, 256, DataLen::new(len).expect("a length")).expect("a list");
        let pages = host.map(GUEST, &list.refs, Access::ReadWrite).expect("they are granted");
        drop(keys);
        let buffers = (pages, list.place);
        let (out, diverted) = (Arena::new(), Diverted::new());
        Self { xen, guest, front, bus, tx, rx, buffers, out, diverted }
    }

    fn receive(&mut self, action: HookAction) -> Result<usize, PeerFault> {
        self.out.clear();
        let Self { guest, front, out, diverted, .. } = self;
        front.queue_mut(0).unwrap().recv_hooked(guest, out, diverted, (1, 64), |_| action)
    }

    /// RX requests from `from` on.
    fn posted(&self, from: u32) -> Vec<u16> {
        let end = self.rx.ring.load(Word::ReqProd);
        (from..end).map(|k| NetRx::read_req(&self.rx.ring, k).id).collect()
    }

    fn close(self) {
        let Self { xen, guest, mut front, mut bus, tx, rx, buffers, .. } = self;
        front.close(&mut bus, None).expect("a map");
        drop((tx, rx, buffers));
        bus.peer.borrow_mut().insert("state".into(), "6".into());
        front.step(&guest, &mut bus).expect("a map");
        assert!(front.is_closed());
        let counts = xen.counts();
        assert_eq!((counts.grants, counts.channels), (0, 0));
    }
}

/// A buffer is posted again once the answer to its own TX request was taken, whatever else is
/// answered.
#[test]
fn a_buffer_comes_back_by_its_own_answer_alone() {
    for status in [RSP_OKAY, RSP_ERROR, 7, i16::MIN] {
        let mut liar = Liar::new();
        for k in 0..3u16 {
            let place = liar.buffers.1[usize::from(k)] as usize;
            assert!(liar.buffers.0.copy_in(place + 64, &[k as u8 + 1; 100]));
            liar.rx.answer_rx(RxResponse { id: 9, offset: 64, flags: 0, status: 100 });
        }
        assert_eq!(liar.receive(HookAction::Tx), Ok(3));
        let sent: Vec<_> = (0..3).map(|k| liar.tx.tx(k)).collect();
        for (k, req) in sent.iter().enumerate() {
            assert_eq!((req.flags, req.offset, req.size), (TXF_STAGING_BUFFER, 64, 100));
            assert_eq!(req.gref, 256 + k as u32, "RX ids go on from TX ids, and whatever the answer's id is");
        }
        let next = liar.posted(256);
        assert!(next.len() == 3 && next.iter().all(|id| *id >= 256), "spare buffers, not {next:?}");
        // Buffer 1 comes back, and is posted when a slot wants one.
        liar.tx.answer_tx(sent[1].id, status);
        assert_eq!(liar.front.queue_mut(0).unwrap().reclaim(&liar.guest, 1), Ok(1));
        assert_eq!(liar.front.queue(0).unwrap().rx().buffers().holds(), [256, 254, 2]);
        assert_eq!(liar.front.queue(0).unwrap().stats().0.errors, u64::from(status != RSP_OKAY));
        liar.rx.answer_rx(RxResponse { id: 0, offset: 0, flags: 0, status: 60 });
        assert_eq!(liar.receive(HookAction::Tx), Ok(1));
        assert_eq!(liar.posted(259), [1], "the one that came back last is the warm one");
        // Again, and one that no one sent: a fault, and no buffer is spare for it.
        liar.tx.answer_tx(sent[1].id, status);
        let before = liar.front.queue(0).unwrap().rx().buffers().holds();
        assert_eq!(
            liar.front.queue_mut(0).unwrap().reclaim(&liar.guest, 1),
            Err(PeerFault::UnknownId(sent[1].id))
        );
        assert_eq!(liar.front.queue(0).unwrap().rx().buffers().holds(), before);
        liar.close();
    }
}

/// A frame of several slots in a layout that no honest back makes: sent if TX can express it, else
/// copied, or a fault. Each of its buffers returns by its own answer.
#[test]
fn slots_of_any_kind_are_sent_on_or_copied() {
    for (parts, on) in [
        (&[(0, 4096), (0, 4096), (100, 1)][..], true),
        (&[(64, 0), (64, 14), (4095, 1), (5, 0)], true),
        (&[(0, 20); 18], true),
        (&[(0, 20); 19], false),
        (&[(0, 13), (0, 100)], false), // TX has the header in its first slot
    ] {
        let mut liar = Liar::of(65535);
        for (k, (offset, status)) in parts.iter().enumerate() {
            let place = liar.buffers.1[k] as usize + usize::from(*offset);
            assert!(liar.buffers.0.copy_in(place, &vec![k as u8; *status as usize]));
            let flags = if k + 1 < parts.len() { RXF_MORE_DATA } else { 0 };
            liar.rx.answer_rx(RxResponse { id: 0, offset: *offset, flags, status: *status });
        }
        assert_eq!(liar.receive(HookAction::Tx), Ok(1));
        let stats = liar.front.queue(0).unwrap().hook_stats();
        assert_eq!((stats.sent_on, stats.sent_copied), (on.into(), (!on).into()), "{parts:?}");
        let holds = |liar: &Liar| liar.front.queue(0).unwrap().rx().buffers().holds();
        if !on {
            assert_eq!(holds(&liar), [256, 256, 0], "{parts:?}");
            liar.close();
            continue;
        }
        let filled: Vec<_> = parts.iter().enumerate().filter(|(_, (_, len))| *len > 0).collect();
        let sent: Vec<_> = (0..filled.len() as u32).map(|k| liar.tx.tx(k)).collect();
        assert_eq!(liar.tx.ring.load(Word::ReqProd), sent.len() as u32);
        for (k, (req, (slot, (offset, len)))) in sent.iter().zip(&filled).enumerate() {
            let more = if k + 1 < sent.len() { TXF_MORE_DATA } else { 0 };
            let total: i16 = parts.iter().map(|(_, len)| len).sum();
            let size = if k == 0 { total } else { *len };
            let due = (TXF_STAGING_BUFFER | more, 256 + *slot as u32, *offset, size as u16);
            assert_eq!((req.flags, req.gref, req.offset, req.size), due, "{parts:?}, request {k}");
        }
        for (k, req) in sent.iter().enumerate().rev() {
            assert_eq!(holds(&liar)[2], k + 1, "{parts:?}");
            liar.tx.answer_tx(req.id, if k == 0 { RSP_ERROR } else { RSP_OKAY });
            assert_eq!(liar.front.queue_mut(0).unwrap().reclaim(&liar.guest, 1), Ok(1));
        }
        assert_eq!(holds(&liar), [256, 256, 0]);
        liar.close();
    }
    // A part that is not in its buffer: a fault, and none of the frame was sent.
    let mut liar = Liar::of(65535);
    for (offset, flags) in [(0, RXF_MORE_DATA), (4000, 0)] {
        liar.rx.answer_rx(RxResponse { id: 0, offset, flags, status: 97 });
    }
    assert_eq!(liar.receive(HookAction::Tx), Err(PeerFault::BadResponse { offset: 4000, status: 97 }));
    assert_eq!(liar.tx.ring.load(Word::ReqProd), 0);
    liar.close();
    // No room for all of its slots: none is sent.
    let mut liar = Liar::of(65535);
    for k in 0..17 * 15 {
        let flags = if k % 15 < 14 { RXF_MORE_DATA } else { 0 };
        liar.rx.answer_rx(RxResponse { id: 0, offset: 0, flags, status: 60 });
    }
    assert_eq!(liar.receive(HookAction::Tx), Ok(17));
    for flags in [RXF_MORE_DATA, 0] {
        liar.rx.answer_rx(RxResponse { id: 0, offset: 0, flags, status: 60 });
    }
    assert_eq!(liar.receive(HookAction::Tx), Ok(1));
    let stats = liar.front.queue(0).unwrap().hook_stats();
    assert_eq!((stats.sent_on, stats.unsent, liar.front.in_flight(0)), (17, 1, 255));
    liar.close();
}

#[test]
fn an_id_that_no_one_sent_frees_no_buffer() {
    for id in [255, 256, u16::MAX] {
        let mut liar = Liar::new();
        liar.rx.answer_rx(RxResponse { id: 0, offset: 0, flags: 0, status: 60 });
        assert_eq!(liar.receive(HookAction::Tx), Ok(1));
        liar.tx.answer_tx(id, RSP_OKAY);
        assert_eq!(liar.front.queue_mut(0).unwrap().reclaim(&liar.guest, 1), Err(PeerFault::UnknownId(id)));
        assert_eq!(liar.front.queue(0).unwrap().rx().buffers().holds(), [256, 255, 1]);
        liar.close();
    }
}

/// The back changes a buffer after the hook has checked it: the hook's head is sent, and only the
/// back gets it.
#[test]
fn a_back_that_changes_a_buffer_changes_no_verdict() {
    let mut liar = Liar::new();
    let place = liar.buffers.1[0] as usize;
    assert!(liar.buffers.0.copy_in(place, &[1; 300]));
    liar.rx.answer_rx(RxResponse { id: 0, offset: 0, flags: 0, status: 300 });
    let Liar { guest, front, out, diverted, buffers, .. } = &mut liar;
    let seen = front.queue_mut(0).unwrap().recv_hooked(guest, out, diverted, (1, 64), |f| {
        assert_eq!((f.head(), f.len()), (&[1; 256][..], 300));
        assert!(buffers.0.copy_in(place, &[2; 300]));
        assert_eq!(f.head(), [1; 256]);
        f.head_mut()[0] = 9;
        HookAction::Pass
    });
    assert_eq!(seen, Ok(1));
    let due = [&[9][..], &[1; 255], &[2; 44]].concat();
    assert!(out.burst().frame(0) == due, "the head as the hook saw it, the rest as it is by then");
    // Answers that are outside the buffer.
    for (offset, status) in [(2000, 60), (0, 4097), (65535, 1)] {
        let mut liar = Liar::new();
        liar.rx.answer_rx(RxResponse { id: 0, offset, flags: 0, status });
        assert_eq!(liar.receive(HookAction::Tx), Err(PeerFault::BadResponse { offset, status }));
        assert_eq!(
            (liar.tx.ring.load(Word::ReqProd), liar.front.queue(0).unwrap().rx().buffers().holds()),
            (0, [256, 256, 0])
        );
        liar.close();
    }
    liar.close();
}

/// A front that receives after a fault finds frames that were sent on already, without a buffer: a
/// fault again.
#[test]
fn a_caller_that_goes_on_after_a_fault_gets_faults() {
    for again in [HookAction::Pass, HookAction::Drop, HookAction::Tx, HookAction::Redirect(1)] {
        for (good, len) in [(1, 60), (3, 60), (1, 300)] {
            let mut liar = Liar::new();
            for _ in 0..good {
                liar.rx.answer_rx(RxResponse { id: 0, offset: 0, flags: 0, status: len });
            }
            liar.rx.answer_rx(RxResponse { id: 0, offset: 65535, flags: 0, status: 1 });
            let fault = PeerFault::BadResponse { offset: 65535, status: 1 };
            assert_eq!(liar.receive(HookAction::Tx), Err(fault));
            let buffers = liar.front.queue(0).unwrap().rx().buffers().holds();
            assert_eq!(buffers[2], good, "were sent on");
            for _ in 0..3 {
                assert!(liar.receive(again).is_err(), "{again:?} behind {good} frames of {len} bytes");
                assert_eq!(liar.front.queue(0).unwrap().rx().buffers().holds(), buffers);
            }
            liar.close();
        }
    }
}

/// A few answers are not worth the check, but every answer is if there is little room on TX.
#[test]
fn answers_are_taken_where_tx_is_scarce() {
    let mut liar = Liar::new();
    for _ in 0..4 {
        for _ in 0..50 {
            liar.rx.answer_rx(RxResponse { id: 0, offset: 0, flags: 0, status: 60 });
        }
        assert_eq!(liar.receive(HookAction::Tx), Ok(50));
    }
    assert_eq!((liar.front.in_flight(0), liar.front.room(0)), (200, 56));
    for k in 0..5 {
        liar.tx.answer_tx(liar.tx.tx(k).id, RSP_OKAY);
    }
    liar.rx.answer_rx(RxResponse { id: 0, offset: 0, flags: 0, status: 60 });
    assert_eq!(liar.receive(HookAction::Tx), Ok(1));
    assert_eq!(
        (liar.front.in_flight(0), liar.front.queue(0).unwrap().rx().buffers().holds()),
        (196, [256, 60, 196])
    );
    liar.close();
}

/// Fewer buffers than slots and TX ids: a slot that has none for the time being is posted when an
/// answer brings one, and a front that sleeps is woken for it.
#[test]
fn a_slot_without_a_buffer_is_waited_for() {
    let features = BackFeatures { max_rx_ring_order: 3, ..revision(3) };
    let mut stand = Stand::new(FrontConfig { ring_order: 4, ..config(64) }, features, 1);
    let [slots, spare, on_tx] = stand.front.queue(0).unwrap().rx().buffers().holds();
    assert_eq!((slots, on_tx), (2048, 0));
    assert!(
        spare < stand.front.queue(0).unwrap().tx().chain().ids() as usize,
        "the list has room for no more"
    );
    for _ in 0..(slots + spare) / 64 {
        stand.give(&[60; 64]);
        assert_eq!(stand.say(HookAction::Tx), 64);
    }
    assert_eq!(stand.front.queue(0).unwrap().rx().buffers().holds(), [0, 0, slots + spare], "all are on TX");
    let Stand { guest, host, front, back, port, out, .. } = &mut stand;
    assert!(!front.is_pending(false), "nothing is there yet");
    assert_eq!(front.queue_mut(0).unwrap().final_check(guest, false), Ok(false));
    let before = back.stats(0).0.notifications;
    while back.poll_tx(host, 0, port, out) == Ok(Polled::More) {}
    assert!(back.stats(0).0.notifications > before, "the front sleeps, and is notified");
    assert!(front.is_pending(false));
    assert_eq!(front.queue_mut(0).unwrap().final_check(guest, false), Ok(true));
    assert_eq!(stand.say(HookAction::Drop), 0);
    let [posted, _, on_tx] = stand.front.queue(0).unwrap().rx().buffers().holds();
    assert!(posted == slots && on_tx == 0, "{posted} slots are posted again, {on_tx} buffers are on TX");
    stand.close();
}
