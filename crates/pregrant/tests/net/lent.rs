//! Payload that stays where the guest put it: what a port gets that reads it there, when pages are
//! mapped and for how long, and what a guest can do meanwhile.
//!
//! ```text
//!   model front --ring--> TxQueue, MapPath --tx_zero_copy--> a port that skips, copies, or keeps
//! ```
#![allow(unsafe_code)] // reads kept payload as a kernel would

use pregrant::net::back::{Polled, SharedControl, TxQueue};
use pregrant::net::path::held::HEAD_BYTES;
use pregrant::net::path::{AnyPath, Chain, MapPath, PersistentPath, TX_ORDER};
use pregrant::platform::local::LocalDomain;
use pregrant::platform::{Access, GrantOps, Platform};
use pregrant::port::{
    Arena, Burst, Completions, FramePort, Offload, Offloads, Payload, Token, ZeroCopyBurst,
};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{
    Extra, RSP_ERROR, RSP_OKAY, TXF_CSUM_BLANK, TXF_DATA_VALIDATED, TXF_EXTRA_INFO, TXF_MORE_DATA, TxRequest,
};
use pregrant::{PAGE_SIZE, PeerFault};
use pregrant_testkit::model_front::Slot;
use pregrant_testkit::shelf::Shelf;
use pregrant_testkit::two_domains::{GUEST, TestPort, TwoDomains, TxGame, Way};
use std::sync::{Arc, Mutex};

/// What the port does with zero-copy payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    Skip,
    Copy,
    Keep,
    /// Keep it, and complete it at once.
    KeepShortly,
}

/// A frame as the port saw it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub head: Vec<u8>,
    pub len: usize,
    pub whole: bool,
    offload: Offload,
    /// Head and payload, if it had the payload mapped.
    pub bytes: Vec<u8>,
}

pub struct LentPort<'a> {
    pub act: Act,
    pub caps: Offloads,
    /// The port also accepts payload in pages that stay mapped.
    pub named: bool,
    pub seen: Vec<Seen>,
    pub shelf: Arc<Shelf>,
    /// Called after the head was seen, before the payload is checked.
    pub between: &'a (dyn Fn() + Sync),
    pub private: Vec<Vec<u8>>,
}

impl LentPort<'_> {
    pub fn new(act: Act) -> Self {
        let caps = Offloads { csum: true, gso: true };
        Self {
            act,
            caps,
            named: false,
            seen: Vec::new(),
            shelf: Arc::default(),
            between: &|| {},
            private: Vec::new(),
        }
    }
}

impl FramePort for LentPort<'_> {
    fn caps(&self) -> Offloads {
        self.caps
    }
    fn payload(&self) -> Payload {
        if self.named { Payload::Named } else { Payload::ZeroCopy }
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        self.private.extend(frames.iter().map(|(frame, _)| frame.to_vec()));
        frames.frames.len()
    }
    fn tx_zero_copy(&mut self, frames: &mut ZeroCopyBurst<'_>) -> usize {
        let completions: Arc<dyn Completions> = self.shelf.clone();
        let first = self.seen.len();
        for i in 0..frames.len() {
            if frames.len_of(i) == 0 {
                continue;
            }
            assert_eq!(frames.pieces(i).count(), 0, "nothing is to be seen before it is mapped");
            assert_eq!(frames.hold(i, &completions), None);
            let (head, offload) = (frames.head(i).to_vec(), frames.offload(i));
            let (len, whole) = (frames.len_of(i), frames.is_whole(i));
            self.seen.push(Seen { head, len, whole, offload, bytes: Vec::new() });
        }
        if self.act == Act::Skip {
            return frames.len();
        }
        (self.between)();
        frames.map_payload();
        self.seen.truncate(first);
        for i in 0..frames.len() {
            if frames.len_of(i) == 0 {
                continue;
            }
            let mut bytes = frames.head(i).to_vec();
            for piece in frames.pieces(i) {
                let at = bytes.len();
                bytes.resize(at + piece.len(), 0);
                assert_eq!(piece.copy_out(&mut bytes[at..]), piece.len());
            }
            let (head, offload) = (frames.head(i).to_vec(), frames.offload(i));
            let (len, whole) = (frames.len_of(i), frames.is_whole(i));
            self.seen.push(Seen { head, len, whole, offload, bytes });
            let shelf = match self.act {
                Act::Keep => Shelf::kept,
                Act::KeepShortly => Shelf::done,
                Act::Skip | Act::Copy => continue,
            };
            shelf(&self.shelf).extend(frames.hold(i, &completions));
        }
        frames.len()
    }
    fn rx_burst(&mut self, _into: &mut Arena) -> usize {
        0
    }
}

/// Puts a frame on the ring: fragments of the model's pages, as (page, offset, length).
pub fn play(g: &mut TxGame, fragments: &[(usize, u16, u16)], flags: u16, extra: Option<Extra>) {
    let total: usize = fragments.iter().map(|f| f.2 as usize).sum();
    let mut slots = Vec::new();
    for (k, &(page, offset, len)) in fragments.iter().enumerate() {
        let more = if k + 1 < fragments.len() { TXF_MORE_DATA } else { 0 };
        let (size, own) = if k == 0 { (total as u16, flags) } else { (len, 0) };
        let extras = if k == 0 && extra.is_some() { TXF_EXTRA_INFO } else { 0 };
        let gref = g.refs.get(page).map_or(0xDEAD, |r| r.0);
        slots.push(Slot::Data(TxRequest { gref, offset, flags: own | more | extras, id: k as u16, size }));
        if k == 0
            && let Some(extra) = extra
        {
            slots.push(Slot::extra(extra, false));
        }
    }
    g.model.play(&slots);
}

pub fn bytes_of(g: &TxGame, fragments: &[(usize, u16, u16)]) -> Vec<u8> {
    fragments.iter().flat_map(|&(page, at, len)| g.content(page, at as usize, len as usize)).collect()
}

pub fn run(g: &mut TxGame, domains: &TwoDomains, port: &mut dyn FramePort) -> Result<(), PeerFault> {
    while g.back.poll(&domains.host, GUEST, &g.chans.1, port, &mut g.arena, &g.control)? == Polled::More {}
    Ok(())
}

fn ops(back: &TxQueue<LocalDomain>) -> GrantOps {
    back.stats().grant_ops
}

/// Frames of one page and of several, in fragments of odd lengths.
const FRAMES: [&[(usize, u16, u16)]; 6] = [
    &[(0, 0, 1500)],
    &[(1, 2000, 129)],
    &[(2, 10, 4000), (3, 0, 4096), (4, 1, 900)],
    &[(5, 0, 14), (6, 77, 60), (7, 0, 0), (8, 5, 3000)],
    &[(9, 0, 60)],
    &[(10, 0, 4096), (11, 0, 4096), (12, 0, 4096), (13, 0, 4096), (14, 0, 4096)],
];
const LONG: usize = 5;
/// Number of copies: of heads and of the short frame.
const COPIES: u64 = 1 + 1 + 1 + 3 + 1 + 1;

#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn a_port_that_never_asks_for_payload_never_maps() {
    let domains = TwoDomains::new();
    let mut g = domains.tx_model(Way::Map, 0, 16);
    let mut port = LentPort::new(Act::Skip);
    FRAMES.iter().for_each(|f| play(&mut g, f, 0, None));
    run(&mut g, &domains, &mut port).unwrap();
    assert_eq!(ops(&g.back), GrantOps { copies: COPIES, maps: 0, unmaps: 0 });
    assert_eq!((port.seen.len(), port.private.len()), (6, 0));
    for (seen, f) in port.seen.iter().zip(FRAMES) {
        let whole = bytes_of(&g, f);
        assert_eq!((seen.len, seen.whole), (whole.len(), whole.len() <= 128));
        assert_eq!(seen.head, whole[..whole.len().min(HEAD_BYTES as usize)]);
    }
    let stats = g.back.stats();
    assert_eq!((stats.frames, stats.granted, stats.errors, stats.dropped), (6, 6, 0, 0));
    assert_eq!(stats.bytes, FRAMES.iter().map(|f| bytes_of(&g, f).len() as u64).sum::<u64>());
    assert!(g.model.answers().unwrap().iter().flatten().all(|&s| s == RSP_OKAY));
    g.model.finish().unwrap();
    g.close();
    domains.assert_empty();
}

#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn what_is_lent_is_the_frame_and_one_call_maps_a_batch() {
    let domains = TwoDomains::new();
    let mut g = domains.tx_model(Way::Map, u32::MAX - 3, 16);
    let mut port = LentPort::new(Act::Copy);
    FRAMES.iter().for_each(|f| play(&mut g, f, 0, None));
    run(&mut g, &domains, &mut port).unwrap();
    assert_eq!(ops(&g.back), GrantOps { copies: COPIES, maps: 11, unmaps: 11 });
    for (seen, f) in port.seen.iter().zip(FRAMES) {
        assert_eq!(seen.bytes, bytes_of(&g, f));
    }
    assert_eq!((port.seen.len(), g.back.stats().frames), (6, 6));
    g.model.answers().unwrap();
    g.model.finish().unwrap();

    // A port that asks for private bytes after all has them.
    struct Copier(LentPort<'static>);
    impl FramePort for Copier {
        fn caps(&self) -> Offloads {
            self.0.caps()
        }
        fn payload(&self) -> Payload {
            Payload::ZeroCopy
        }
        fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
            self.0.tx_burst(frames)
        }
        fn rx_burst(&mut self, _: &mut Arena) -> usize {
            0
        }
    }
    let mut port = Copier(LentPort::new(Act::Skip));
    FRAMES.iter().for_each(|f| play(&mut g, f, 0, None));
    run(&mut g, &domains, &mut port).unwrap();
    assert_eq!(port.0.private, FRAMES.map(|f| bytes_of(&g, f)));
    g.close();
    domains.assert_empty();
}

/// A list with one bad reference is refused as a whole: then page by page, and only that frame
/// fails. Where no one reads it, no one finds out, as for a frame that is dropped unseen.
#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn one_bad_reference_costs_its_own_frame() {
    const BAD: usize = 99;
    for (act, failed) in [(Act::Copy, true), (Act::Keep, true), (Act::Skip, false)] {
        let domains = TwoDomains::new();
        let mut g = domains.tx_model(Way::Map, 0, 16);
        let mut port = LentPort::new(act);
        let bad = [(2, 0, 1000), (BAD, 0, 1000), (3, 0, 1000)];
        play(&mut g, FRAMES[0], 0, None);
        play(&mut g, &bad, 0, None);
        play(&mut g, FRAMES[LONG], 0, None);
        run(&mut g, &domains, &mut port).unwrap();
        let due: &[usize] = if failed { &[0, 2] } else { &[0, 1, 2] };
        assert_eq!((port.seen.len(), g.back.stats().frames), (due.len(), due.len() as u64), "{act:?}");
        assert_eq!(g.back.stats().errors, u64::from(failed));
        if failed {
            assert_eq!(port.seen[0].bytes, bytes_of(&g, FRAMES[0]));
            assert_eq!(port.seen[1].bytes, bytes_of(&g, FRAMES[LONG]));
        }
        if act == Act::Keep {
            assert_eq!(g.model.answers().unwrap().len(), 0, "the first frame is kept");
            (0..2).for_each(|_| port.shelf.finish(0));
            run(&mut g, &domains, &mut port).unwrap();
        }
        let answers = g.model.answers().unwrap();
        let error = if failed { RSP_ERROR } else { RSP_OKAY };
        assert_eq!(answers, [vec![RSP_OKAY], vec![RSP_OKAY, error, RSP_OKAY], vec![RSP_OKAY; 5]]);
        g.close();
        domains.assert_empty();
    }
}

/// If another frame of the batch must be mapped, unreadable pages are found before the port is
/// called: it gets nothing of a frame that is answered with ERROR.
#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn what_is_found_unreadable_in_time_is_not_handed_on() {
    let domains = TwoDomains::new();
    let mut g = domains.tx_model(Way::Map, 0, 16);
    let mut port = LentPort::new(Act::Skip);
    play(&mut g, FRAMES[0], 0, None);
    play(&mut g, &[(2, 0, 1000), (99, 0, 1000)], 0, None);
    play(&mut g, FRAMES[LONG], TXF_CSUM_BLANK, None); // no headers: copied whole
    run(&mut g, &domains, &mut port).unwrap();
    assert_eq!(port.seen.iter().map(|seen| seen.whole).collect::<Vec<_>>(), [false, true]);
    assert_eq!(port.seen[1].head, bytes_of(&g, FRAMES[LONG]));
    let answers = g.model.answers().unwrap();
    assert_eq!(answers, [vec![RSP_OKAY], vec![RSP_OKAY, RSP_ERROR], vec![RSP_OKAY; 5]]);
    g.close();
    domains.assert_empty();
}

/// Answered when the port has done with them and not before, in the order of the requests, their
/// pages unmapped; frames that come meanwhile go on to the port.
#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn kept_frames_are_answered_late_and_in_order() {
    let domains = TwoDomains::new();
    let mut g = domains.tx_model(Way::Map, 0, 16);
    let mut port = LentPort::new(Act::Keep);
    let before = domains.xen.counts().mapped;
    let mapped = || domains.xen.counts().mapped - before;
    for f in [0, LONG] {
        play(&mut g, FRAMES[f], 0, None);
    }
    run(&mut g, &domains, &mut port).unwrap();
    play(&mut g, FRAMES[4], 0, None); // short: whole, never kept
    play(&mut g, FRAMES[1], 0, None);
    run(&mut g, &domains, &mut port).unwrap();
    assert_eq!((port.seen.len(), port.shelf.kept().len(), mapped()), (4, 3, 7));
    assert_eq!(g.back.final_check(), Ok(false), "a worker that waits for a port sleeps");
    assert!(!g.back.is_late());
    // The last first: its pages go, its answer waits.
    port.shelf.finish(2);
    run(&mut g, &domains, &mut port).unwrap();
    assert_eq!((g.model.answers().unwrap().len(), mapped()), (0, 6));
    port.shelf.finish(0);
    run(&mut g, &domains, &mut port).unwrap();
    assert_eq!((g.model.answers().unwrap().len(), mapped()), (0, 6), "a batch's pages go together");
    port.shelf.finish(0);
    run(&mut g, &domains, &mut port).unwrap();
    assert_eq!((g.model.answers().unwrap().len(), mapped()), (4, 0));
    g.model.finish().unwrap();
    // Tokens that no one holds, and completed ones, mean nothing.
    port.shelf.done().extend([Token(0), Token(77), Token(u64::MAX)]);
    play(&mut g, FRAMES[0], 0, None);
    run(&mut g, &domains, &mut port).unwrap();
    assert_eq!((g.model.answers().unwrap().len(), mapped()), (0, 1));
    port.shelf.finish(0);
    run(&mut g, &domains, &mut port).unwrap();
    assert_eq!((g.model.answers().unwrap().len(), g.back.stats().frames), (1, 5));
    // One that is done with before the port's call is over needs no later poll.
    port.act = Act::KeepShortly;
    play(&mut g, FRAMES[0], 0, None);
    g.back.poll(&domains.host, GUEST, &g.chans.1, &mut port, &mut g.arena, &g.control).unwrap();
    assert_eq!((g.model.answers().unwrap().len(), mapped()), (1, 0));
    assert_eq!(port.shelf.given_up(), 0);
    g.close();
    domains.assert_empty();
}

/// A port that never completes: the ring becomes full, its worker sleeps; a queue beside it
/// continues.
#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn a_port_that_never_completes_stops_its_own_queue_alone() {
    let domains = TwoDomains::new();
    let (mut g, mut other) = (domains.tx_model(Way::Map, 0, 16), domains.tx_model(Way::Map, 0, 16));
    let (mut port, mut copies) = (LentPort::new(Act::Keep), LentPort::new(Act::Copy));
    while g.model.free() > 0 {
        play(&mut g, FRAMES[0], 0, None);
        run(&mut g, &domains, &mut port).unwrap();
        play(&mut other, FRAMES[LONG], 0, None);
        run(&mut other, &domains, &mut copies).unwrap();
        assert_eq!(other.model.answers().unwrap().len(), 1);
    }
    assert_eq!((port.seen.len(), g.model.answers().unwrap().len()), (256, 0));
    assert_eq!(g.back.final_check(), Ok(false));
    g.close();
    other.close();
    assert_eq!(port.shelf.given_up(), 1);
    domains.assert_empty();
}

/// The end of a queue has the port give up what it keeps while it is still mapped: drained in
/// good order, or dropped after a fault.
#[test]
fn a_queue_that_ends_asks_for_what_is_kept_before_it_unmaps() {
    struct Checks(TwoDomains, Mutex<Vec<usize>>);
    impl Completions for Checks {
        fn complete(&self, _: &mut Vec<Token>) {}
        fn give_up(&self) {
            self.1.lock().unwrap().push(self.0.xen.counts().mapped);
        }
    }
    struct Place(*const u8, usize);
    // SAFETY: an address and a length.
    unsafe impl Send for Place {}
    /// Keeps all, and where they are.
    struct Kernel(Arc<dyn Completions>, Vec<Place>);
    impl FramePort for Kernel {
        fn caps(&self) -> Offloads {
            Offloads::default()
        }
        fn payload(&self) -> Payload {
            Payload::ZeroCopy
        }
        fn tx_burst(&mut self, _: &Burst<'_>) -> usize {
            unreachable!("all are lent")
        }
        fn tx_zero_copy(&mut self, frames: &mut ZeroCopyBurst<'_>) -> usize {
            frames.map_payload();
            for i in 0..frames.len() {
                assert!(frames.hold(i, &self.0).is_some());
                let other: Arc<dyn Completions> = Arc::new(Shelf::default());
                assert_eq!(frames.hold(i, &other), None, "a queue has one keeper");
                self.1.extend(frames.pieces(i).map(|piece| Place(piece.as_raw().0, piece.len())));
            }
            frames.len()
        }
        fn rx_burst(&mut self, _: &mut Arena) -> usize {
            0
        }
    }
    for drain in if cfg!(miri) { &[false][..] } else { &[true, false] } {
        let domains = TwoDomains::new();
        let checks = Arc::new(Checks(
            TwoDomains { guest: domains.guest.clone(), host: domains.host.clone(), xen: domains.xen.clone() },
            Mutex::default(),
        ));
        let mut port = Kernel(checks.clone(), Vec::new());
        let mut g = domains.tx_model(Way::Map, 0, 5);
        play(&mut g, FRAMES[0], 0, None);
        play(&mut g, FRAMES[2], 0, None);
        run(&mut g, &domains, &mut port).unwrap();
        let whole = [bytes_of(&g, FRAMES[0]), bytes_of(&g, FRAMES[2])].concat();
        let mut read = Vec::new();
        for &Place(at, len) in &port.1 {
            let mut bytes = vec![0; len];
            // SAFETY: the frames are kept, so their pages are mapped; `len` bytes were named.
            unsafe { pregrant::shm::copy_from_shared(at, bytes.as_mut_ptr(), len) };
            read.extend(bytes);
        }
        assert!(read == [&whole[128..1500], &whole[1500 + 128..]].concat(), "what is kept stays readable");
        if *drain {
            g.back.drain(&domains.host, &g.chans.1);
            assert_eq!(g.model.answers().unwrap().len(), 2, "in good order all is answered");
        }
        g.close();
        assert_eq!(*checks.1.lock().unwrap(), [4 + 1], "asked once, four pages and the ring's mapped");
        domains.assert_empty();
    }
}

/// Eth, IPv6 with `options` times 8 bytes of destination options, TCP; the checksum blank. In the
/// model's pages.
pub fn headers(options: u8, payload: usize) -> Vec<u8> {
    let ext = if options == 0 { 0 } else { 8 * options as usize };
    let mut frame = vec![0; 14 + 40 + ext + 20 + payload];
    frame[12..14].copy_from_slice(&[0x86, 0xDD]);
    frame[14] = 0x60;
    let len = (ext + 20 + payload) as u16;
    frame[18..20].copy_from_slice(&len.to_be_bytes());
    frame[20] = if ext == 0 { 6 } else { 60 };
    if ext > 0 {
        frame[54] = 6;
        frame[55] = options - 1;
    }
    frame[54 + ext + 12] = 0x50;
    (0..payload).for_each(|i| frame[74 + ext + i] = i as u8 ^ 0x5A);
    frame
}

/// No one parses bytes that a guest can still write: if headers matter and are not all in the head,
/// the frame is copied whole.
#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn frames_whose_headers_are_longer_than_the_head_are_copied_whole() {
    let blank = TXF_CSUM_BLANK | TXF_DATA_VALIDATED;
    let gso = Some(Extra::Gso { size: 500, gso_type: 2 });
    // 128 bytes end with the TCP header's, or before it.
    for (options, flags, extra, whole) in [
        (0, blank, None, false),
        (6, blank, None, false),
        (7, blank, None, true),
        (20, blank, None, true),
        (7, 0, None, false),
        (0, blank, gso, false),
        (7, blank, gso, true),
        (0, TXF_DATA_VALIDATED, gso, false),
        (7, TXF_DATA_VALIDATED, gso, true),
    ] {
        let domains = TwoDomains::new();
        let mut g = domains.tx_model(Way::Map, 0, 4);
        let frame = headers(options, 2000);
        assert!(g.memory.copy_in(0, &frame));
        let mut port = LentPort::new(Act::Skip);
        // One whose headers no one needs beside it.
        play(&mut g, &[(1, 0, 1000)], 0, None);
        play(&mut g, &[(0, 0, 100), (0, 100, frame.len() as u16 - 100)], flags, extra);
        run(&mut g, &domains, &mut port).unwrap();
        let what = (options, flags, extra);
        if port.seen.is_empty() {
            panic!("{what:?}: nothing was lent");
        }
        let seen = &port.seen[1];
        assert_eq!((seen.whole, seen.len, port.seen[0].whole), (whole, frame.len(), false), "{what:?}");
        let mut due = frame.clone();
        if extra.is_some() {
            assert!(seen.offload.csum_blank, "{what:?}");
            if flags == TXF_DATA_VALIDATED {
                pregrant::net::checksum::make_blank(&mut due).unwrap();
                assert_eq!(g.back.stats().gso_checksum_fixups, 1);
            }
        }
        assert_eq!(seen.head, due[..if whole { due.len() } else { 128 }], "{what:?}");
        assert_eq!(ops(&g.back).maps, if whole { 2 } else { 0 }, "{what:?}");
        g.model.answers().unwrap();
        g.close();
        domains.assert_empty();
    }
}

/// A port that finishes a checksum, or cuts, reads all of a frame more than once, so it has private
/// bytes.
#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn a_port_gets_private_bytes_of_what_it_cannot_hand_on_unfinished() {
    let blank = TXF_CSUM_BLANK | TXF_DATA_VALIDATED;
    let gso = Some(Extra::Gso { size: 500, gso_type: 2 });
    for (csum, gso_too, whole) in
        [(true, true, [false; 3]), (true, false, [false, false, true]), (false, false, [false, true, true])]
    {
        let domains = TwoDomains::new();
        let mut g = domains.tx_model(Way::Map, 0, 4);
        let frame = headers(0, 2000);
        assert!(g.memory.copy_in(0, &frame));
        let mut port = LentPort::new(Act::Copy);
        port.caps = Offloads { csum, gso: gso_too };
        let all = [(0, 0, frame.len() as u16)];
        play(&mut g, &all, 0, None);
        play(&mut g, &all, blank, None);
        play(&mut g, &all, blank, gso);
        run(&mut g, &domains, &mut port).unwrap();
        assert_eq!(port.seen.iter().map(|seen| seen.whole).collect::<Vec<_>>(), whole);
        assert!(port.seen.iter().all(|seen| seen.bytes == frame));
        g.close();
        domains.assert_empty();
    }
}

/// If the headers are not understood, the frame is copied whole, too, and completing its checksum
/// reports the error.
#[test]
fn a_blank_checksum_without_headers_is_copied_whole() {
    let domains = TwoDomains::new();
    let mut g = domains.tx_model(Way::Map, 0, 4);
    let mut port = LentPort::new(Act::Copy);
    play(&mut g, &[(0, 0, 1000)], TXF_CSUM_BLANK, None);
    run(&mut g, &domains, &mut port).unwrap();
    assert_eq!((port.seen.len(), port.private.len()), (0, 1), "nothing is lent: an ordinary burst");
    assert_eq!(port.private[0], g.content(0, 0, 1000));
    assert_eq!(ops(&g.back).maps, 1);
    g.close();
    domains.assert_empty();
}

/// Time of check and time of use: a guest that rewrites a frame after its head was validated
/// changes only payload, not head, length or offload.
#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn xsa_155_a_frame_that_is_rewritten_after_the_check_changes_in_its_payload_alone() {
    for private in [false, true] {
        let domains = TwoDomains::new();
        let mut g = domains.tx_model(Way::Map, 0, 4);
        let frame = headers(0, 3000);
        assert!(g.memory.copy_in(0, &frame));
        let memory = g.memory.clone();
        let rewrite = || assert!(memory.copy_in(0, &[0xEE; PAGE_SIZE]));
        let mut port = LentPort { between: &rewrite, ..LentPort::new(Act::Copy) };
        let blank = TXF_CSUM_BLANK | TXF_DATA_VALIDATED;
        play(&mut g, &[(0, 0, frame.len() as u16)], blank, Some(Extra::Gso { size: 500, gso_type: 2 }));
        if private {
            // A port that takes private bytes reads each of them once, before it is called.
            let mut port = TestPort::default();
            run(&mut g, &domains, &mut port).unwrap();
            rewrite();
            assert_eq!(port.took[0].0, frame);
        } else {
            run(&mut g, &domains, &mut port).unwrap();
            let seen = &port.seen[0];
            let offload = Offload { csum_blank: true, csum_ok: true, gso_type: 2, gso_size: 500 };
            assert_eq!((seen.len, seen.offload), (frame.len(), offload));
            assert_eq!(seen.head, frame[..128]);
            assert_eq!(seen.bytes[..128], frame[..128]);
            assert!(seen.bytes[128..].iter().all(|&b| b == 0xEE), "it was rewritten");
        }
        g.close();
        domains.assert_empty();
    }
}

/// Pages that stay mapped are private bytes by then: a head may be a whole page, and the rest is
/// zero-copy.
#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn a_head_is_as_long_as_what_another_path_fetched() {
    let domains = TwoDomains::new();
    let chain = Chain::new(
        TX_ORDER,
        [
            AnyPath::Persistent(PersistentPath::new(256, Access::ReadOnly).expect("memory")),
            AnyPath::Map(MapPath::default()),
        ],
    );
    let mut g = domains.tx_model_by(chain, None, 0, 4);
    let mut port = LentPort::new(Act::Copy);
    // The first page is seen here, and stays mapped.
    play(&mut g, &[(0, 0, 1500)], 0, None);
    run(&mut g, &domains, &mut port).unwrap();
    let frame = [(0, 0, 4000), (1, 0, 3000)];
    play(&mut g, &frame, 0, None);
    run(&mut g, &domains, &mut port).unwrap();
    let seen = port.seen.last().unwrap();
    assert_eq!((seen.head.len(), seen.whole, seen.len), (4000, false, 7000));
    assert!(seen.bytes == bytes_of(&g, &frame));
    g.close();
}

/// A port may serve several queues: what it completes of one is not another's.
#[test]
fn a_token_is_one_frame_s_alone() {
    let domains = TwoDomains::new();
    let (mut a, mut b) = (domains.tx_model(Way::Map, 0, 1), domains.tx_model(Way::Map, 0, 1));
    let mut port = LentPort::new(Act::Keep);
    for g in [&mut a, &mut b] {
        play(g, FRAMES[0], 0, None);
        run(g, &domains, &mut port).unwrap();
    }
    let kept = port.shelf.kept().clone();
    assert!(kept.len() == 2 && kept[0] != kept[1], "{kept:?}");
    let mapped = domains.xen.counts().mapped;
    port.shelf.finish(0); // that of `a`
    run(&mut b, &domains, &mut port).unwrap();
    assert_eq!(domains.xen.counts().mapped, mapped, "the frame of `b` is kept still");
    a.close();
    b.close();
}

/// While a port has a burst of one queue, another queue moves frames by a handle of its own: each
/// counts its own operations.
#[test]
#[cfg_attr(miri, ignore = "no other accesses than those of the others")]
fn a_queue_counts_the_operations_of_its_own_handle() {
    /// Polls the other queue.
    struct Nested<'a>(&'a mut dyn FnMut());
    // SAFETY: it stays on this thread.
    unsafe impl Send for Nested<'_> {}
    impl FramePort for Nested<'_> {
        fn caps(&self) -> Offloads {
            Offloads::default()
        }
        fn payload(&self) -> Payload {
            Payload::ZeroCopy
        }
        fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
            frames.frames.len()
        }
        fn tx_zero_copy(&mut self, frames: &mut ZeroCopyBurst<'_>) -> usize {
            frames.map_payload();
            (self.0)();
            frames.len()
        }
        fn rx_burst(&mut self, _: &mut Arena) -> usize {
            0
        }
    }
    let domains = TwoDomains::new();
    let other = domains.host.another().expect("a second handle");
    let (mut g, mut copied) = (domains.tx_model(Way::Map, 0, 5), domains.tx_model(Way::Copy, 0, 5));
    play(&mut g, FRAMES[0], 0, None);
    play(&mut copied, FRAMES[0], 0, None);
    let (control, mut arena, mut inner) = (SharedControl::default(), Arena::new(), Arena::new());
    let mut nested = || {
        let mut port = LentPort::new(Act::Skip);
        let (back, chan) = (&mut copied.back, &copied.chans.1);
        assert_eq!(back.poll(&other, GUEST, chan, &mut port, &mut inner, &control), Ok(Polled::More));
    };
    let mut port = Nested(&mut nested);
    let chan = &g.chans.1;
    while g.back.poll(&domains.host, GUEST, chan, &mut port, &mut arena, &control) == Ok(Polled::More) {}
    let (of_map, of_copy) = (g.back.stats().grant_ops, copied.back.stats().grant_ops);
    assert_eq!((of_copy.copies > 0, of_copy.maps, of_copy.unmaps), (true, 0, 0));
    assert_eq!((of_map.copies, of_map.maps > 0, of_map.maps == of_map.unmaps), (1, true, true));
    for mut game in [g, copied] {
        assert_eq!(game.model.answers().expect("answers by the rules").len(), 1);
        game.close();
    }
    domains.assert_empty();
}
