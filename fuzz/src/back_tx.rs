//! The guest attacks the back's TX: slots, extras, indices, grants, pages; over copy, map and
//! staging.
//!
//! ```text
//!   tape --operations--> raw guest --ring, pages--> TxQueue --> port
//!                            |                         |          |
//!                            '-- what the rules say ---+----------'   compared after each poll
//! ```
//! After each poll: the answers are those of whole frames in request order, one for each slot, NULL
//! for extras; a frame that the rules refuse is refused, one that is plainly good arrives with
//! exactly the guest's bytes (the arena is poisoned before), and a fault is reported if and only if
//! there is one. At the end nothing is mapped or granted.

use crate::guest_pages::{GuestPages, Right, granted};
use crate::staged::Staged;
use crate::tape::{self, Tape};
use pregrant::net::back::{Polled, SharedControl, TxQueue};
use pregrant::net::batch::tx::MulticastAsk;
use pregrant::net::checksum;
use pregrant::net::gso::MIN_GSO_SIZE;
use pregrant::net::headers::MacAddr;
use pregrant::net::path::{AnyPath, CopyPath, MapPath, PersistentPath, StagingPath};
use pregrant::platform::local::{LocalChan, LocalDomain, LocalRegion};
use pregrant::platform::{Access, Events, GrantPool};
use pregrant::port::{Arena, BURST_FRAMES, Burst, FramePort, Offload, Offloads, Payload};
use pregrant::ring::{BackRing, NetTx, RingMem, RingPages, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{
    DROP_SLOTS, Extra, FATAL_SLOTS, MCAST_LIST_MAX, MIN_FRAME, RSP_ERROR, RSP_NULL, RSP_OKAY, TXF_CSUM_BLANK,
    TXF_DATA_VALIDATED, TXF_EXTRA_INFO, TXF_MORE_DATA, TxRequest, TxResponse,
};
use pregrant::{PAGE_SIZE, PeerFault};
use pregrant_testkit::two_domains::{GUEST, Ring, SLOTS, TwoDomains};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// Number of pages with ordinary grants.
const PAGES: usize = 8;
/// Largest number of operations of one input.
const OPS: usize = 300;
/// Byte that fills the arena before a poll.
const POISON: u8 = 0xEE;

/// A frame as the rules read it off the ring.
struct Frame {
    /// Every slot, in ring order: a data slot's request with its own length, or None for an extra.
    slots: Vec<Option<(TxRequest, usize)>>,
    offload: Offload,
    refused: bool,
    /// The slot has no frame but this multicast request.
    multicast: Option<MulticastAsk>,
}

/// Changes that the guest makes to its memory while the back's poll runs.
#[derive(Clone, Copy)]
enum Meanwhile {
    /// A word of the ring's slots.
    Slot(usize, u32),
    /// All bytes of the page.
    Page(usize, u8),
}

/// A port that accepts frames. Because it is called in the middle of a poll, it also makes the
/// guest's changes then.
struct Port {
    took: Vec<(Vec<u8>, Offload)>,
    meanwhile: Option<Meanwhile>,
    ring: LocalRegion,
    pages: LocalRegion,
    payload: Payload,
}

impl FramePort for Port {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    /// Asks sometimes for private bytes, and sometimes for zero-copy frames, which it copies: both
    /// must be equal.
    fn payload(&self) -> Payload {
        self.payload
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        self.took.extend(frames.iter().map(|(bytes, offload)| (bytes.to_vec(), offload)));
        match self.meanwhile.take() {
            Some(Meanwhile::Slot(at, word)) => assert!(self.ring.store_u32(at, word)),
            Some(Meanwhile::Page(page, with)) => {
                assert!(self.pages.copy_in(page * PAGE_SIZE, &[with; PAGE_SIZE]));
            }
            None => {}
        }
        frames.frames.len()
    }
    fn rx_burst(&mut self, _: &mut Arena) -> usize {
        0
    }
}

/// A frame as the port gets it: the checksum of a large segment is blank. None: it cannot be, and
/// the frame is dropped.
fn blanked(frame: Option<&[u8]>, offload: Offload) -> Option<(Option<Vec<u8>>, Offload)> {
    let mut frame = frame.map(<[u8]>::to_vec);
    if offload.gso_type == 0 || offload.csum_blank {
        return Some((frame, offload));
    }
    checksum::make_blank(frame.as_deref_mut().unwrap_or_default()).ok()?;
    Some((frame, Offload { csum_blank: true, csum_ok: true, ..offload }))
}

struct Game {
    domains: TwoDomains,
    ring: Ring<NetTx>,
    req_prod: u32,
    /// Requests that the back consumed, and answered.
    cons: u32,
    /// The index that the guest showed is not its own.
    lying: bool,
    back: TxQueue<LocalDomain>,
    chans: (LocalChan, LocalChan),
    pages: GuestPages,
    staged: Option<Staged>,
    port: Port,
    arena: Arena,
    next_id: u16,
    frames: u64,
    errors: u64,
    /// Large segments without a blank checksum that could have none.
    unfit: u64,
    /// Pages that may be mapped between two polls.
    mapped: RangeInclusive<usize>,
    control: SharedControl,
    /// The offer to the guest; and the addresses that it named, as the rules have them.
    offered: bool,
    named: BTreeSet<[u8; 6]>,
}

pub fn back_tx(data: &[u8]) {
    tape::play(data, OPS, Game::new, |game, tape| game.play(tape).is_ok(), Game::close);
}

impl Game {
    fn new(tape: &mut Tape<'_>) -> Self {
        let domains = TwoDomains::new();
        let way = tape.below(5);
        let limit = if way == 2 { tape.below(PAGES + 1) } else { 0 };
        let start = if tape.below(2) == 0 { 0 } else { u32::MAX - u32::from(tape.u8()) };
        let (front_ring, back_ring) = domains.ring::<NetTx>();
        let chans = domains.channel();
        let (staged, path) = match way {
            0 => (None, AnyPath::Copy(CopyPath::default())),
            1 => (None, AnyPath::Map(MapPath::default())),
            2 => (None, AnyPath::Persistent(PersistentPath::new(limit, Access::ReadOnly).expect("memory"))),
            _ => {
                let (staged, buffers) = Staged::new(&domains, tape, Access::ReadOnly);
                (Some(staged), AnyPath::Staging(StagingPath::new(buffers).expect("memory")))
            }
        };
        for word in [Word::ReqProd, Word::RspProd] {
            front_ring.store(word, start);
        }
        let ring_memory = front_ring.into_pages();
        let mut pages = GuestPages::new(&domains, PAGES, Right::Read);
        pages.kept = way == 2;
        let port = Port {
            took: Vec::new(),
            meanwhile: None,
            ring: ring_memory.clone(),
            pages: pages.region.clone(),
            payload: Payload::Private,
        };
        let (ring, _) = BackRing::attach(back_ring, None).expect("a fresh ring");
        let (control, offered) = (SharedControl::default(), tape.below(2) == 0);
        control.lock().offer_multicast(offered);
        let mapped = domains.xen.counts().mapped;
        Self {
            ring: RingPages::new(ring_memory),
            req_prod: start,
            cons: start,
            lying: false,
            back: TxQueue::new(ring, path).expect("memory"),
            chans,
            pages,
            staged,
            port,
            arena: Arena::new(),
            next_id: 0,
            frames: 0,
            errors: 0,
            unfit: 0,
            mapped: mapped..=mapped + limit,
            control,
            offered,
            named: BTreeSet::new(),
            domains,
        }
    }

    /// Plays one operation. `Err`: the back reported a fault, and was right.
    fn play(&mut self, tape: &mut Tape<'_>) -> Result<(), PeerFault> {
        match tape.below(16) {
            0 => self.frame(tape, 1),
            1 => {
                let slots = tape.one_of(&[2, 3, 18, 19, 20, 21, 22, 23]);
                self.frame(tape, slots);
            }
            2 => {
                for _ in 0..1 + tape.below(64) {
                    let (gref, id) = (self.pages.gref(self.next_id as usize), self.next_id);
                    self.next_id = self.next_id.wrapping_add(1);
                    self.push(TxRequest { gref, offset: 9, flags: 0, id, size: 60 }.to_words());
                }
            }
            3 => self.staged_frame(tape),
            4 => {
                let words = [tape.u32(), tape.u32(), tape.u32()];
                self.push(words);
            }
            // Once more the last one, but for a byte.
            5 => {
                let mut words = self.ring.read::<3>(self.req_prod.wrapping_sub(1));
                let at = tape.below(12);
                words[at / 4] ^= u32::from(tape.u8()) << (at % 4 * 8);
                self.push(words);
            }
            6 => {
                let right = tape.one_of(&[Right::None, Right::Read, Right::Write, Right::Stranger]);
                self.pages.grant(&self.domains, tape.u8() as usize, right);
            }
            7 => {
                let (page, with) = (tape.below(PAGES), tape.u8());
                assert!(self.pages.region.copy_in(page * PAGE_SIZE, &[with; PAGE_SIZE]));
            }
            // A word of the page but the indices: they are changed below.
            8 => {
                let word = 4 * (4 + tape.u16() as usize % (PAGE_SIZE / 4 - 4));
                assert!(self.port.ring.store_u32(word, tape.u32()));
            }
            9 => self.ring.store(tape.one_of(&[Word::ReqEvent, Word::RspEvent]), tape.u32()),
            10 => {
                let word = 4 * (16 + tape.u16() as usize % (PAGE_SIZE / 4 - 16));
                self.port.meanwhile = Some(match tape.below(2) {
                    0 => Meanwhile::Slot(word, tape.u32()),
                    _ => Meanwhile::Page(tape.below(PAGES), tape.u8()),
                });
            }
            11 => {
                let by = tape.one_of(&[1u32, 256, 257, 0x8000_0000, u32::MAX]);
                self.ring.store(Word::ReqProd, self.req_prod.wrapping_add(by ^ u32::from(tape.u8())));
                self.lying = true;
                return self.run(true);
            }
            12 => {
                for k in 0..1 + tape.u8() % 80 {
                    let mac = [1, 0, 0, 0, k, tape.u8() & 1];
                    let flags = TXF_EXTRA_INFO;
                    self.push(TxRequest { gref: 0, offset: 0, flags, id: u16::from(k), size: 0 }.to_words());
                    self.push(Extra::McastAdd(mac).to_tx_words(false));
                }
            }
            // A slot at the limits.
            13 => {
                let (page, id) = (tape.u8().into(), self.next_id);
                let gref = if tape.below(8) == 0 { 0 } else { self.pages.gref(page) };
                let offset = tape.one_of(&[0, 0, 1, 64, 4036, 4082, 4095, 4096, u16::MAX]);
                let size = tape.one_of(&[60, 14, 13, 0, 1, 4096, 4095, 4097, u16::MAX]);
                self.next_id = id.wrapping_add(1);
                let flags = u16::from(tape.u8()) & 0x1F;
                self.push(TxRequest { gref, offset, flags, id, size }.to_words());
            }
            14 => {
                self.domains.guest.notify(&self.chans.0);
                return self.run(true);
            }
            _ => return self.run(false),
        }
        Ok(())
    }

    fn push(&mut self, words: [u32; 3]) {
        self.ring.write::<3>(self.req_prod, words);
        self.req_prod = self.req_prod.wrapping_add(1);
    }

    /// A frame of this many slots, which follows the rules unless the tape has odd values.
    fn frame(&mut self, tape: &mut Tape<'_>, slots: usize) {
        let flags = u16::from(tape.u8());
        let extras = flags as usize >> 6;
        let mut reqs = Vec::new();
        let mut total = 0u16;
        for _ in 0..slots {
            let (page, offset) = (tape.u8() as usize, u16::from(tape.u8()));
            let len = tape.one_of(&[60, 14, 0, 1, 128, 129, 700, 1514, 3841, 4096]) as u16;
            let offset = if usize::from(len + offset) > PAGE_SIZE { 0 } else { offset };
            let id = self.next_id;
            self.next_id = self.next_id.wrapping_add(1);
            total = total.wrapping_add(len);
            let gref = self.pages.gref(page);
            reqs.push(TxRequest { gref, offset, flags: TXF_MORE_DATA, id, size: len });
        }
        if let Some(last) = reqs.last_mut() {
            last.flags = 0;
        }
        reqs[0].size = total.wrapping_add((flags as u8 as i8 as i16 >> 5) as u16 & 1);
        reqs[0].flags |= flags & (TXF_CSUM_BLANK | TXF_DATA_VALIDATED);
        if extras > 0 {
            reqs[0].flags |= TXF_EXTRA_INFO;
        }
        for (k, req) in reqs.iter().enumerate() {
            self.push(req.to_words());
            for n in 0..if k == 0 { extras } else { 0 } {
                let extra = match tape.below(6) {
                    0 => Extra::Gso { size: tape.u16(), gso_type: tape.u8() },
                    1 => Extra::Hash { hash_type: tape.u8(), algorithm: 1, value: 7 },
                    2 => Extra::Xdp { headroom: 9 },
                    3 => Extra::McastAdd([1 | tape.u8(), 0, 0, 0, 0, 9]),
                    4 => Extra::McastDel([tape.u8(), 0, 0, 0, 0, 9]),
                    _ => Extra::Gso { size: 1448, gso_type: 1 },
                };
                self.push(extra.to_tx_words(n + 1 < extras));
            }
        }
    }

    /// A slot without a grant: its bytes are in a staging buffer, if there is one.
    fn staged_frame(&mut self, tape: &mut Tape<'_>) {
        let more = if tape.u8() & 0xF0 == 0xF0 { TXF_MORE_DATA } else { 0 };
        let (id, offset) = (tape.u16() % 600, u16::from(tape.u8()));
        let len = self.staged.as_ref().map_or(0, |s| s.len) as u16;
        let left = len.saturating_sub(offset);
        let size = [60, 14, 0, left, left + 1, len, len + 1, left / 2][tape.below(8)];
        self.push(TxRequest { gref: 0, offset, flags: more, id, size }.to_words());
    }

    /// Shows the back what was pushed, and polls until nothing moves.
    fn run(&mut self, check_first: bool) -> Result<(), PeerFault> {
        if !self.lying {
            self.ring.store(Word::ReqProd, self.req_prod);
        }
        if check_first {
            let n = self.ring.load(Word::ReqProd).wrapping_sub(self.cons);
            let found = self.back.final_check();
            assert_eq!(found.is_err(), n > SLOTS, "{found:?} with {n} requests shown");
            assert_eq!(found?, n > 0);
        }
        while self.poll()? == Polled::More {}
        if self.lying {
            // It has taken what was shown, as if it had been pushed.
            self.req_prod = self.cons;
            self.lying = false;
        }
        let mapped = self.domains.xen.counts().mapped;
        assert!(self.mapped.contains(&mapped), "{mapped} pages are mapped, {:?} may be", self.mapped);
        Ok(())
    }

    /// Polls once and compares the result with the rules.
    fn poll(&mut self) -> Result<Polled, PeerFault> {
        let shown = self.ring.load(Word::ReqProd).wrapping_sub(self.cons);
        let before = self.ring.load(Word::RspProd);
        let (frames, fault) = if shown > SLOTS { (Vec::new(), true) } else { self.frames_shown(shown) };
        let due: Vec<Option<Vec<u8>>> = frames.iter().map(|f| self.bytes_of(f)).collect();
        let repeated = self.repeated_ids(&frames);
        if !frames.is_empty() {
            self.arena.bytes_mut().fill(POISON);
        }
        self.port.took.clear();
        self.port.payload = match self.port.payload {
            Payload::Private => Payload::ZeroCopy,
            Payload::ZeroCopy => Payload::Named,
            Payload::Named => Payload::Standing(200),
            Payload::Standing(_) => Payload::Private,
        };

        let (port, arena) = (&mut self.port, &mut self.arena);
        let polled = self.back.poll(&self.domains.host, GUEST, &self.chans.1, port, arena, &self.control);
        let polled = match polled {
            Ok(polled) => polled,
            Err(e) => {
                assert!(fault, "{e} where there is no fault");
                return Err(e);
            }
        };
        let after = self.ring.load(Word::RspProd);
        if polled == Polled::Idle {
            assert!(frames.is_empty() && !fault, "requests that are not read");
            assert_eq!(after, before);
            return Ok(polled);
        }
        let mut took = self.port.took.drain(..).collect::<Vec<_>>().into_iter();
        let mut answered = 0;
        for (frame, due) in frames.iter().zip(&due) {
            if self.cons == after {
                break;
            }
            assert!(after.wrapping_sub(self.cons) >= frame.slots.len() as u32, "rsp_prod inside a frame");
            let okay = self.answer_of(frame);
            self.cons = self.cons.wrapping_add(frame.slots.len() as u32);
            answered += 1;
            if let Some(multicast) = frame.multicast {
                assert_eq!(okay, self.is_granted(multicast), "{multicast:?}");
                self.errors += u64::from(!okay);
            } else if okay {
                assert!(!frame.refused, "a frame against the rules was taken");
                let Some((due, due_offload)) = blanked(due.as_deref(), frame.offload) else {
                    self.unfit += 1;
                    continue;
                };
                let (bytes, offload) = took.next().expect("the port got what was answered OKAY");
                assert_eq!(offload, due_offload);
                assert!(
                    due.as_ref() == Some(&bytes),
                    "{} bytes that are not what the guest sent",
                    bytes.len()
                );
                self.frames += 1;
            } else {
                let twice = frame.slots.iter().flatten().any(|(req, _)| repeated.contains(&req.id));
                assert!(frame.refused || due.is_none() || twice, "a good frame was refused");
                self.errors += 1;
            }
        }
        assert!(answered > 0 && self.cons == after, "whole frames, and at least one");
        assert!(took.next().is_none(), "the port got a frame that was not answered OKAY");
        Ok(polled)
    }

    /// The frames on the ring as docs/protocol 2.6 reads them, as many as a batch can have; and
    /// whether there is a fault among them.
    fn frames_shown(&self, shown: u32) -> (Vec<Frame>, bool) {
        let mut frames = Vec::new();
        let mut at = 0;
        while at < shown && frames.len() < BURST_FRAMES {
            let slot = |k: u32| self.ring.read::<3>(self.cons.wrapping_add(k));
            let first = TxRequest::from_words(slot(at));
            let mut frame = Frame {
                slots: vec![Some((first, 0))],
                offload: Offload {
                    csum_blank: first.flags & TXF_CSUM_BLANK != 0,
                    csum_ok: first.flags & (TXF_CSUM_BLANK | TXF_DATA_VALIDATED) != 0,
                    ..Offload::default()
                },
                refused: false,
                multicast: None,
            };
            at += 1;
            let mut groups = Vec::new();
            let mut more = first.flags & TXF_EXTRA_INFO != 0;
            while more {
                // No one has more extras in a frame than there are types; the exact number is the
                // back's.
                if at == shown || frame.slots.len() > 8 {
                    return (frames, true);
                }
                let words = slot(at);
                let Ok((extra, again)) = Extra::parse([words[0], words[1]]) else { return (frames, true) };
                match extra {
                    Extra::Gso { size, gso_type } => {
                        frame.offload.gso_size = size;
                        frame.offload.gso_type = gso_type;
                    }
                    Extra::McastAdd(mac) => groups.push(MulticastAsk::Add(MacAddr(mac))),
                    Extra::McastDel(mac) => groups.push(MulticastAsk::Del(MacAddr(mac))),
                    _ => {}
                }
                frame.slots.push(None);
                at += 1;
                more = again;
            }
            let (mut rest, mut nr) = (0, 1);
            let mut more = first.flags & TXF_MORE_DATA != 0;
            while more {
                if at == shown || nr + 1 >= FATAL_SLOTS {
                    return (frames, true);
                }
                let req = TxRequest::from_words(slot(at));
                if usize::from(req.offset) + usize::from(req.size) > PAGE_SIZE {
                    return (frames, true);
                }
                rest += usize::from(req.size);
                frame.slots.push(Some((req, req.size.into())));
                (at, nr, more) = (at + 1, nr + 1, req.flags & TXF_MORE_DATA != 0);
            }
            let total = usize::from(first.size);
            match (&groups[..], nr) {
                (&[multicast], 1) => frame.multicast = Some(multicast),
                _ => {
                    let tiny = frame.offload.gso_type != 0 && frame.offload.gso_size < MIN_GSO_SIZE;
                    let wrong = rest > total || total < MIN_FRAME || nr >= DROP_SLOTS || tiny;
                    frame.refused = wrong || !groups.is_empty();
                }
            }
            if !frame.refused && frame.multicast.is_none() {
                frame.slots[0] = Some((first, total - rest));
                if usize::from(first.offset) + total - rest > PAGE_SIZE {
                    return (frames, true);
                }
            }
            frames.push(frame);
        }
        (frames, false)
    }

    /// A frame's bytes, when each has one place where the guest put it. None where a grant or a
    /// buffer is of no use.
    fn bytes_of(&self, frame: &Frame) -> Option<Vec<u8>> {
        if frame.refused || frame.multicast.is_some() {
            return None;
        }
        let mut bytes = Vec::new();
        for &(req, len) in frame.slots.iter().flatten().filter(|s| s.1 > 0) {
            match (&self.staged, req.gref) {
                (Some(staged), 0) => bytes.extend(staged.bytes_of(req.id, req.offset, len)?),
                (None, 0) => return None,
                (_, gref) => bytes.extend(granted(&self.domains, gref, req.offset, len)?),
            }
        }
        Some(bytes)
    }

    /// Whether docs/protocol 2.8 makes the back grant a multicast request.
    fn is_granted(&mut self, multicast: MulticastAsk) -> bool {
        match multicast {
            _ if !self.offered => return false,
            MulticastAsk::Del(MacAddr(mac)) => {
                self.named.remove(&mac);
            }
            MulticastAsk::Add(MacAddr(mac)) if !self.named.contains(&mac) => {
                if self.named.len() == MCAST_LIST_MAX || mac[0] & 1 == 0 {
                    return false;
                }
                self.named.insert(mac);
            }
            MulticastAsk::Add(_) => {}
        }
        true
    }

    /// Ids of staging buffers that a batch may name twice, which is an error.
    fn repeated_ids(&self, frames: &[Frame]) -> BTreeSet<u16> {
        let mut seen = BTreeSet::new();
        let staged = frames.iter().flat_map(|f| &f.slots).flatten().filter(|(req, _)| req.gref == 0);
        staged.map(|(req, _)| req.id).filter(|id| self.staged.is_some() && !seen.insert(*id)).collect()
    }

    /// The next frame's answers, each in its place; true: all OKAY.
    fn answer_of(&self, frame: &Frame) -> bool {
        let mut okay = true;
        for (k, slot) in frame.slots.iter().enumerate() {
            let index = self.cons.wrapping_add(k as u32);
            let rsp = TxResponse::from_word(self.ring.read::<1>(index)[0]);
            match slot {
                None => assert_eq!(rsp.status, RSP_NULL, "an extra's answer"),
                Some((req, _)) => {
                    assert_eq!(rsp.id, req.id, "an answer in another's place");
                    assert!([RSP_OKAY, RSP_ERROR].contains(&rsp.status));
                    okay &= rsp.status == RSP_OKAY;
                    assert!(!frame.refused || rsp.status == RSP_ERROR, "ERROR on every slot");
                }
            }
        }
        okay
    }

    fn close(self) {
        let stats = self.back.stats();
        assert_eq!((stats.frames, stats.errors, stats.dropped), (self.frames, self.errors, self.unfit));
        let named: BTreeSet<[u8; 6]> =
            self.control.lock().multicast.addresses().iter().map(|m| m.0).collect();
        assert_eq!(named, self.named);
        let Self { domains, ring, back, pages, staged, chans, port, .. } = self;
        drop((back, port, chans));
        pages.close(&domains);
        if let Some(staged) = staged {
            staged.close(&domains);
        }
        assert!(domains.guest.release(ring.into_pages()).is_ok());
        domains.assert_empty();
    }
}
